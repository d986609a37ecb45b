//! The sidecar's process: started as the program starts it, killed, started again, and judged by how it ends.

use core::cell::RefCell;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::panic::catch_unwind;
use std::path::Path;
use std::rc::Rc;

use sidecar::bridge::{Bridge, FailurePolicy, Rules};
use sidecar::driver::SocketOptions;
use sidecar::exit::Exit;
use sidecar::frame_loop::{FrameLoop, Waiting};
use sidecar_core::agent::{Agent, Config, Endpoint, Limits, Outcome, Timers};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, JobId};
use sidecar_shm::layout::Geometry;
use sidecar_shm::region::{self, Found, Identity};
use sidecar_shm::simulation::{self, Died, Fuse};
use sidecar_shm::spin::{Mode, Spin};

use crate::driver::{SimulatedDriver, Stopped};
use crate::fault::Fault;
use crate::gateway::Case;
use crate::oracle::{REPLY, WARMUP};
use crate::plan::{ACTION_BYTES, FirstDial, MILLI, Policy, SECOND, SLOT_BYTES};
use crate::world::{JOB, START, World};

/// How a life of a sidecar's process ended.
enum Life {
    /// On its own accord.
    Ended(Box<Outcome>),
    /// Killed, or dead at a store.
    Died,
}

/// A region's file that nobody needs any more.
fn remove(path: &Path) {
    // It is gone already when the sidecar ended in order.
    let _ = std::fs::remove_file(path);
}

/// Runs the schedule of a world to its end.
pub(crate) fn run(world: World) -> World {
    let path = world.path.clone();
    remove(&path);
    let shared = Rc::new(RefCell::new(world));
    loop {
        let life = live(&shared);
        let mut world = shared.borrow_mut();
        simulation::set_fuse(None);
        if world.violation.is_some() {
            break;
        }
        let again = match life {
            Life::Died => world.sidecar_died(),
            Life::Ended(outcome) => world.sidecar_ended(&outcome),
        };
        if !again || world.violation.is_some() {
            break;
        }
    }
    let mut world = Rc::try_unwrap(shared).expect("the frame loop and its driver are gone").into_inner();
    world.coverage.schedules = 1;
    world.coverage.virtual_nanos = world.now - START;
    world.bury_workers();
    remove(&path);
    world
}

/// One life, from the start of the process to its end.
fn live(shared: &Rc<RefCell<World>>) -> Life {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let frame_loop = boot(shared)?;
        match frame_loop.run() {
            Ok((outcome, bridge)) => {
                // As the program does at its end.
                if matches!(outcome, Outcome::Drained | Outcome::Closed) {
                    bridge.remove_region();
                }
                Some(outcome)
            }
            Err(failure) => {
                shared.borrow_mut().fail(format!("the frame loop failed: {failure}"));
                None
            }
        }
    }));
    let world = &mut *shared.borrow_mut();
    match caught {
        Ok(Some(outcome)) => return Life::Ended(Box::new(outcome)),
        Ok(None) => {}
        Err(payload) if payload.is::<Stopped>() => world.note(|| "sidecar is killed".into()),
        Err(payload) => match payload.downcast_ref::<Died>() {
            Some(Died(point)) => {
                world.note(|| format!("sidecar dies at {point:?}"));
                world.oracle_died(true);
            }
            None => world.fail(format!("panic in the sidecar: {}", crate::panic_text(&*payload))),
        },
    }
    Life::Died
}

/// What the program does between its arguments and its first turn.
fn boot(shared: &Rc<RefCell<World>>) -> Option<FrameLoop> {
    let mut world = shared.borrow_mut();
    let world = &mut *world;
    world.coverage.lives += 1;
    let sidecar = &mut world.sidecar;
    sidecar.incarnation += 1;
    sidecar.killed = false;
    sidecar.cold_starts += u32::from(!sidecar.ready_known);
    sidecar.since = world.now;
    let geometry = Geometry {
        observation_slots: world.plan.slots,
        observation_bytes: SLOT_BYTES,
        action_slots: world.plan.action_slots,
        action_bytes: ACTION_BYTES,
    };
    let agent = AgentId::new(&format!("agent-{}", sidecar.incarnation)).expect("it is short");
    let identity = Identity { job_endpoint_hash: [7; 32], agent };
    let now = Instant::from_nanos(world.now);
    if let Some(left) = sidecar.fuse {
        simulation::set_fuse(Some(Fuse { owner: true, left }));
        // If it dies here there is no second time.
        sidecar.fuse = None;
    }
    let opened = match region::create(&world.path, &geometry, &identity, now) {
        Ok(opened) => opened,
        Err(error) => {
            world.fail(format!("no region: {error}"));
            return None;
        }
    };
    let mut config = config(world, opened.agent.clone());
    config.agent = opened.agent.clone();
    let user_timeout = config.timers.dead_after;
    let seed = world.random.bytes();
    let first = world.sidecar.incarnation == 1;
    let kept = match &opened.found {
        Found::TakenOver { kept, age } => {
            world.coverage.row("region taken over");
            world.note(|| format!("sidecar takes over, {} kept, {} ms old", kept.len(), age.as_millis()));
            kept.as_slice()
        }
        found => {
            if let Found::Replaced { why } = found {
                world.note(|| format!("sidecar starts over: {why}"));
                if world.now - world.sidecar.last_byte > 74 * SECOND {
                    world.coverage.row("region too old, session forfeited");
                }
                world.was_forgotten(why);
            } else if !first {
                world.fail("promise 4: the region of a dead sidecar was not found".into());
            }
            [].as_slice()
        }
    };
    let agent = Agent::resume(config, opened.resume, seed, now);
    let orphans: Vec<_> = opened.owner.orphans().iter().map(|it| (it.seat, it.generation, it.pid)).collect();
    let mut bridge = Bridge::new(agent, opened.owner, rules(world), kept);
    if let Some(action) = &opened.last_action {
        bridge.keep_last_action(action);
    }
    let (commands, command_queue) = crossbeam_channel::unbounded();
    let (requests, request_queue) = tokio::sync::mpsc::unbounded_channel();
    world.sidecar.alive = true;
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor is left");
    world.sidecar.doorbells = bridge.owner().doorbells().into_iter().map(copy).collect();
    world.sidecar.commands = Some(commands);
    world.sidecar.requests = Some(request_queue);
    world.sidecar.rung = false;
    world.call_workers(&orphans);
    let driver = Box::new(SimulatedDriver::new(Rc::clone(shared)));
    let waiting = Waiting { spin: Spin::measure(Mode::Off, 1), busy: false };
    let options = SocketOptions { user_timeout, busy_poll: None };
    Some(FrameLoop::new(bridge, driver, command_queue, requests, options, waiting))
}

fn config(world: &World, agent: AgentId) -> Config {
    let text = "the simulation's own texts are short";
    Config {
        endpoint: Endpoint { host: "gateway".parse().expect(text), path: "/tunnel".parse().expect(text) },
        job: JobId::new(JOB).expect(text),
        agent,
        timers: Timers::default(),
        limits: Limits { slot_bytes: SLOT_BYTES, ..Limits::default() },
        unfreeze: world.plan.unfreeze,
        wedge_after: Some(Duration::from_secs(120)),
        fresh_agent_on_wedge: world.plan.fresh_agent,
        wait_for_slot: world.plan.wait_for_slot,
    }
}

fn rules(world: &World) -> Rules {
    let on_failure = match world.plan.policy {
        Policy::Hold => FailurePolicy::Hold,
        Policy::Reply => FailurePolicy::Reply(REPLY.to_vec()),
        Policy::Close => FailurePolicy::Close,
    };
    let warmup_payload = world.plan.warmup_payload.then(|| WARMUP.to_vec());
    Rules { on_failure, worker_timeout: world.plan.worker_timeout, warmup_payload }
}

impl World {
    /// A successor made a new start: that is right only when there was nothing to go on with.
    fn was_forgotten(&mut self, why: &str) {
        let age = self.now - self.sidecar.last_byte;
        let heard = self.gateway.upgraded_once;
        if heard && age < 74 * SECOND && !self.plan.fresh_agent && self.sidecar.last_byte > START {
            self.fail(format!("promise 4: a successor after {} ms started over: {why}", age / MILLI));
        }
        self.oracle_forfeited();
    }

    fn process_is_over(&mut self) {
        if core::mem::replace(&mut self.sidecar.alive, false) {
            self.sidecar.gone_since = self.now;
        }
        self.sidecar.commands = None;
        self.sidecar.requests = None;
        self.sidecar.doorbells.clear();
        if let Some(at) = self.current.take() {
            self.sidecar_closes(at, false);
            self.conns[at].faulted = true;
        }
        self.sidecar.disconnected = self.now;
        self.unlink_workers();
    }

    /// Killed. `true`: it is started again.
    fn sidecar_died(&mut self) -> bool {
        self.oracle_died(false);
        self.process_is_over();
        self.sidecar.signalled = None;
        // Sometimes the successor dies in the middle of taking over.
        let again = self.faults_left > 0 && self.random.once_in(3);
        self.sidecar.fuse = again.then(|| self.random.within(1..=25) as u32);
        if again {
            self.faults_left -= 1;
            self.coverage.fault(Fault::SuccessorFuse);
        }
        let delay = 50 * MILLI + self.outage();
        self.wait_without_sidecar(delay);
        self.violation.is_none()
    }

    /// It ended by itself. `true`: it was an upgrade, and the new one is started.
    fn sidecar_ended(&mut self, outcome: &Outcome) -> bool {
        let signalled = self.sidecar.signalled.take();
        let exit = match signalled {
            Some(Fault::Terminate) => Exit::Terminated,
            _ if matches!(outcome, Outcome::Drained | Outcome::Closed | Outcome::Left) => Exit::Done,
            _ => Exit::of(outcome),
        };
        self.note(|| format!("sidecar ends: {outcome:?}, exit code {}", exit.code()));
        if *outcome == Outcome::Left {
            self.coverage.row("SIGUSR2, taken over");
            if signalled.is_none() {
                self.fail("the sidecar left, and nobody had asked it to".into());
            }
            self.oracle_died(false);
            self.process_is_over();
            let delay = 20 * MILLI + self.random.below(SECOND);
            self.wait_without_sidecar(delay);
            return self.violation.is_none();
        }
        self.coverage.end(format!("{} {}", exit.code(), name(outcome)));
        self.judge_end(outcome);
        if matches!(outcome, Outcome::Drained | Outcome::Closed) {
            if self.path.exists() {
                self.fail("the region is still there after an orderly end".into());
            }
            self.ended = true;
            self.process_is_over();
            self.workers_learn_of_the_end();
        }
        self.judge_cases(outcome);
        false
    }

    fn wait_without_sidecar(&mut self, delay: u64) {
        let until = self.now + delay;
        while self.next_event().is_some_and(|next| next <= until) && self.violation.is_none() {
            self.step();
        }
        self.set_time(until);
    }

    /// The reason for the end has to be a fact.
    fn judge_end(&mut self, outcome: &Outcome) {
        let silent = self.now - self.sidecar.last_byte;
        let wrong = match outcome {
            Outcome::Drained if !self.gateway.drain => Some("no drain was read"),
            Outcome::Closed if !self.terminated => Some("no SIGTERM was sent"),
            Outcome::TokenRefused { .. } if self.gateway.refused == 0 => Some("no 401 was said"),
            Outcome::TokenRefused { first: false, .. } if self.gateway.refused < 2 => {
                Some("the token was read once")
            }
            Outcome::Capacity if self.gateway.closed_at_once == 0 && self.coverage.faults() == 0 => {
                Some("nothing was closed at once")
            }
            Outcome::Capacity if self.plan.wait_for_slot => Some("it was to wait for a place"),
            Outcome::DialBudget { .. } if self.now - START < 299 * SECOND => Some("the first dial has 5 min"),
            Outcome::RedialBudget { .. } if silent < 32 * SECOND => {
                Some("the redial budget is 33 s at least")
            }
            Outcome::RedialBudget { .. }
                if silent > 200 * SECOND && self.now - self.gateway.last_accept > 200 * SECOND =>
            {
                Some("the redial budget is 75 s at most")
            }
            Outcome::WorkerFailed if !self.plan.bad_model && self.worker_deaths < 3 => {
                Some("no worker had failed")
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.fail(format!("the end is wrong: {outcome:?}, but {wrong}"));
        }
        let row = match outcome {
            Outcome::TokenRefused { first: true, .. } => "401 on the first dial",
            Outcome::TokenRefused { .. } => "401 on a redial",
            Outcome::RedialBudget { .. } => "redial budget is over",
            Outcome::WorkerFailed => "warm-up fails",
            Outcome::Closed => "SIGTERM",
            _ => return,
        };
        self.coverage.row(row);
    }

    /// Every case is solved, or it is known why not.
    fn judge_cases(&mut self, outcome: &Outcome) {
        for (number, case) in self.gateway.cases.clone().iter().enumerate() {
            match case {
                Case::Solved => self.coverage.row("case solved"),
                Case::Failed(why) => {
                    let why = *why;
                    let policy = why == "the agent closed the session";
                    let allowed = self.plan.policy == Policy::Close
                        || self.plan.fresh_agent
                        || self.terminated
                        || matches!(outcome, Outcome::Closed | Outcome::WorkerFailed);
                    if policy && !allowed {
                        self.fail(format!("case {number}: the sidecar closed the session on its own"));
                    }
                    self.coverage.row("case failed, explained");
                }
                Case::Pending | Case::Open => self.coverage.row("case cut off by the end"),
            }
        }
        let quiet = self.coverage.faults() == 0
            && self.plan.first_dial == FirstDial::Fine
            && !self.plan.bad_model
            && self.plan.oversize == u64::MAX
            && self.plan.worker_timeout.is_none();
        if quiet && self.gateway.cases.iter().any(|case| *case != Case::Solved) {
            self.fail(format!("a case is not solved, and nothing was wrong: {:?}", self.gateway.cases));
        }
        if quiet && !matches!(outcome, Outcome::Drained) {
            self.fail(format!("the end is {outcome:?}, and nothing was wrong"));
        }
    }

    /// Nothing of the workers is left, and nothing of them is said.
    fn bury_workers(&mut self) {
        for at in 0..self.workers.len() {
            self.worker_dies(at);
        }
    }
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Drained => "drained",
        Outcome::Closed => "closed on SIGTERM",
        Outcome::Left => "left",
        Outcome::TokenRefused { first: true, .. } => "401 on the first dial",
        Outcome::TokenRefused { .. } => "401 on a redial",
        Outcome::Capacity => "over the cap",
        Outcome::DialBudget { .. } => "dial budget",
        Outcome::RedialBudget { .. } => "redial budget",
        Outcome::WorkerFailed => "worker failed",
    }
}
