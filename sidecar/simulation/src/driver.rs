//! The driver that the frame loop has in a simulation. Its wait is where the world goes on.

use core::cell::RefCell;
use core::net::SocketAddr;
use std::io;
use std::rc::Rc;

use sidecar::driver::{
    Calls, Close, Completion, Completions, Driver, Expect, SocketOptions, Taken, Tell, Wait,
};
use sidecar_shm::simulation;

use crate::net::{Receive, Send};
use crate::plan::{MICRO, MILLI, SECOND};
use crate::world::World;

/// The frame loop's end, from outside: SIGKILL, or a promise that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stopped;

/// Whether a turn ends whatever there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    NotYet,
    Reached,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct SimulatedDriver {
    world: Rc<RefCell<World>>,
}

impl SimulatedDriver {
    pub(crate) const fn new(world: Rc<RefCell<World>>) -> Self {
        Self { world }
    }

    /// Nothing more is done by this process.
    fn stop_if_told(world: &World) {
        if world.sidecar.killed || world.violation.is_some() {
            std::panic::resume_unwind(Box::new(Stopped));
        }
    }
}

impl Driver for SimulatedDriver {
    fn name(&self) -> &'static str {
        "simulation"
    }

    fn connect(&mut self, _: SocketAddr, _: SocketOptions) -> io::Result<()> {
        self.close(Close::Abort);
        self.world.borrow_mut().dial();
        Ok(())
    }

    unsafe fn receive(&mut self, into: *mut u8, length: usize, expect: Expect) {
        let mut world = self.world.borrow_mut();
        let at = world.current.expect("the caller has a connection");
        assert!(world.conns[at].receive.is_none(), "one receive at a time");
        world.conns[at].receive =
            Some(Receive { into, length, exact: expect == Expect::Remainder, filled: 0 });
    }

    unsafe fn send(&mut self, from: *const u8, length: usize, tell: Tell) {
        let mut world = self.world.borrow_mut();
        let at = world.current.expect("the caller has a connection");
        world.conns[at].tell = Some(tell);
        let conn = &world.conns[at];
        assert!(conn.send.is_none() && conn.sent.is_none(), "one send at a time");
        // SAFETY: the caller keeps `from..from + length` valid and unchanged until the completion.
        let bytes = unsafe { core::slice::from_raw_parts(from, length) };
        world.oracle_sends(at, bytes);
        if world.conns[at].ended_for_sending() {
            world.conns[at].sent = Some(Err(io::ErrorKind::BrokenPipe.into()));
            return;
        }
        world.conns[at].send = Some(Send { from, length, taken: 0 });
        world.pump_up(at);
    }

    fn is_receiving(&self) -> bool {
        let world = self.world.borrow();
        world.current.is_some_and(|at| world.conns[at].receive.is_some())
    }

    fn is_sending(&self) -> bool {
        let world = self.world.borrow();
        world.current.is_some_and(|at| world.conns[at].is_sending())
    }

    fn take_calls(&mut self) -> Calls {
        Calls::default()
    }

    fn turn(&mut self, wait: Wait, completions: &mut Completions) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        if let Some(fuse) = simulation::fuse() {
            world.sidecar.fuse = Some(fuse.left);
        }
        simulation::set_fuse(None);
        world.turned();
        Self::stop_if_told(&world);
        world.sidecar.sleeps = matches!(wait, Wait::Block(_));
        if world.sidecar.sleeps {
            world.oracle_sleeps();
        }
        let passes = 1 + world.random.below(3 * MICRO);
        let start = world.now + passes;
        // A kernel wakes late rather than early.
        let deadline = match wait {
            Wait::Poll => Some(start),
            Wait::Block(None) => None,
            Wait::Block(Some(most)) => {
                let most = most.as_nanos() as u64;
                let late =
                    if most == MILLI { world.random.below(20 * MILLI) } else { world.random.below(MICRO) };
                Some(start.saturating_add(most).saturating_add(late))
            }
        };
        loop {
            world.collect(completions, End::NotYet);
            if !completions.is_empty() {
                break;
            }
            match (world.next_event(), deadline) {
                (Some(next), deadline) if deadline.is_none_or(|deadline| next <= deadline) => world.step(),
                (_, Some(deadline)) => {
                    world.set_time(deadline);
                    world.look_for_the_end();
                    world.collect(completions, End::Reached);
                    break;
                }
                _ => world.fail("deadlock: nothing will ever happen, and the sidecar sleeps".into()),
            }
            Self::stop_if_told(&world);
        }
        if world.sidecar.sleeps {
            world.oracle_sleeps();
            Self::stop_if_told(&world);
        }
        world.sidecar.sleeps = false;
        world.set_time(start);
        world.light_fuse();
        Ok(())
    }

    fn close(&mut self, how: Close) {
        let mut world = self.world.borrow_mut();
        let Some(at) = world.current.take() else { return };
        let lingers = how == Close::Orderly && world.conns[at].established;
        world.note(|| format!("sidecar closes, {how:?}"));
        world.sidecar_closes(at, how == Close::Orderly);
        world.sidecar.disconnected = world.now;
        if !lingers {
            return;
        }
        // The peer's FIN is waited for, for one second at most.
        let fuse = simulation::fuse();
        simulation::set_fuse(None);
        let deadline = world.now + SECOND;
        while world.conns[at].gateway && world.next_event().is_some_and(|next| next <= deadline) {
            world.step();
            Self::stop_if_told(&world);
        }
        simulation::set_fuse(fuse);
    }
}

impl World {
    /// What a kernel has for the frame loop. A success that nobody waits for ends no turn.
    fn collect(&mut self, completions: &mut Completions, end: End) {
        if core::mem::take(&mut self.sidecar.rung) {
            completions.push(Completion::Doorbell);
        }
        let Some(at) = self.current else { return };
        if let Some(connected) = self.conns[at].connected.take() {
            completions.push(Completion::Connected(connected));
        }
        if let Some(received) = self.take_received(at) {
            completions.push(Completion::Received(received));
        }
        let conn = &mut self.conns[at];
        let waits = conn.tell == Some(Tell::AtTurnEnd);
        let ends = end == End::Reached || !waits || !completions.is_empty();
        if let Some(sent) = conn.sent.take_if(|sent| ends || sent.is_err()) {
            let taken = if waits { Taken::Submitted } else { Taken::Now };
            completions.push(Completion::Sent(sent.map(|()| taken)));
        }
        if completions.len() > 1 && self.random.once_in(2) {
            completions.reverse();
        }
    }

    fn light_fuse(&mut self) {
        // The fuse burns over turns: what one did not pass is left for the next.
        if let Some(left) = self.sidecar.fuse {
            simulation::set_fuse(Some(simulation::Fuse { owner: true, left }));
        }
    }
}
