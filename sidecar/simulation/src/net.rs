//! The network: one TCP connection after the other between sidecar and gateway, as bytes in flight. It delays, splits,
//! merges, fills up, and breaks in every way that a real one does: cut with a reset or a FIN, silent in one direction
//! or both, known to one side only.

use std::collections::VecDeque;
use std::io;

use sidecar::driver::Tell;

use crate::fault::Fault;
use crate::oracle::Mark;
use crate::plan::{MILLI, SECOND};
use crate::world::{Event, World};

/// How an end of a connection looks from the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Fin,
    Reset,
}

/// A receive that the driver has under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) into: *mut u8,
    pub(crate) length: usize,
    pub(crate) exact: bool,
    /// Bytes that are there already: MSG_WAITALL takes them out of the kernel one by one.
    pub(crate) filled: usize,
}

/// A send that the driver has under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    pub(crate) from: *const u8,
    pub(crate) length: usize,
    pub(crate) taken: usize,
}

/// A connection, from both ends and in between.
#[derive(Debug, Default)]
pub(crate) struct Conn {
    pub(crate) established: bool,
    /// The sidecar's socket is open; the gateway's is.
    pub(crate) sidecar: bool,
    pub(crate) gateway: bool,
    /// The network did something to it.
    pub(crate) faulted: bool,
    silent_up: bool,
    silent_down: bool,
    cut: bool,
    stalled_until: u64,
    up_last: u64,
    down_last: u64,
    up_flight: usize,
    down_flight: usize,
    down_queue: VecDeque<u8>,
    down_end: Option<Ended>,
    /// Bytes that the gateway has written.
    pub(crate) written: u64,
    pub(crate) marks: VecDeque<(u64, Mark)>,
    /// In the sidecar's kernel.
    rx: VecDeque<u8>,
    rx_end: Option<Ended>,
    /// Bytes that the sidecar was given.
    consumed: u64,
    pub(crate) receive: Option<Receive>,
    pub(crate) send: Option<Send>,
    pub(crate) connected: Option<io::Result<()>>,
    pub(crate) sent: Option<io::Result<()>>,
    /// When the end of the last send has to be told.
    pub(crate) tell: Option<Tell>,
    user_timeout: bool,
    /// The gateway broke a rule: what it says after that is not listened to.
    pub(crate) deaf: bool,
    /// Since when it is established; the sidecar sent its close frame.
    pub(crate) since: u64,
    pub(crate) sidecar_closing: bool,
    /// Bytes of the answer to the upgrade.
    pub(crate) head: u64,
}

impl Conn {
    pub(crate) fn dialled() -> Self {
        Self { sidecar: true, ..Self::default() }
    }

    /// Nothing can be sent on it any more.
    pub(crate) const fn is_sending(&self) -> bool {
        self.send.is_some() || self.sent.is_some()
    }

    pub(crate) fn ended_for_sending(&self) -> bool {
        self.rx_end == Some(Ended::Reset)
    }
}

/// The sidecar's kernel gives up bytes that nobody acknowledges after this long (TCP_USER_TIMEOUT, `dead_after`).
const USER_TIMEOUT: u64 = 40 * SECOND;

impl World {
    pub(crate) fn arrival(&mut self, conn: usize, up: bool) -> u64 {
        let delay = self.plan.latency + self.random.below(self.plan.jitter + 1);
        let now = self.now;
        let conn = &mut self.conns[conn];
        let last = if up { &mut conn.up_last } else { &mut conn.down_last };
        *last = (now + delay).max(*last + 1).max(conn.stalled_until);
        *last
    }

    fn piece(&mut self, most: usize) -> usize {
        if most > 1 && self.random.once_in(self.plan.split) {
            // Mostly within the headers, where it hurts.
            let bound = if self.random.once_in(2) { most.min(20) } else { most };
            1 + self.random.below(bound as u64) as usize
        } else {
            most
        }
    }

    /// The sidecar's kernel takes what it has room for.
    pub(crate) fn pump_up(&mut self, at: usize) {
        while let Some(send) = self.conns[at].send {
            if send.taken == send.length {
                self.conns[at].send = None;
                self.conns[at].sent = Some(Ok(()));
                return;
            }
            let room = self.plan.window.saturating_sub(self.conns[at].up_flight);
            if room == 0 {
                return;
            }
            let count = self.piece(room.min(send.length - send.taken));
            // SAFETY: `Driver::send` has the caller keep the bytes valid and unchanged until the completion, which is
            // given only once all were taken.
            let bytes =
                unsafe { core::slice::from_raw_parts(send.from.wrapping_add(send.taken), count) }.to_vec();
            let conn = &mut self.conns[at];
            conn.send = Some(Send { taken: send.taken + count, ..send });
            conn.up_flight += count;
            if conn.silent_up || conn.cut {
                if !core::mem::replace(&mut conn.user_timeout, true) {
                    self.after(USER_TIMEOUT, Event::SidecarEnd(at, Ended::Reset));
                }
                continue;
            }
            let arrival = self.arrival(at, true);
            self.at(arrival, Event::ToGateway(at, bytes));
        }
    }

    /// The gateway's kernel sends what there is room for.
    pub(crate) fn pump_down(&mut self, at: usize) {
        loop {
            let conn = &mut self.conns[at];
            if conn.down_queue.is_empty() {
                if let Some(end) = conn.down_end.take()
                    && !conn.silent_down
                    && !conn.cut
                {
                    let arrival = self.arrival(at, false);
                    self.at(arrival, Event::SidecarEnd(at, end));
                }
                return;
            }
            let room = self.plan.window.saturating_sub(conn.down_flight + conn.rx.len());
            if room == 0 {
                return;
            }
            let most = room.min(conn.down_queue.len());
            let count = self.piece(most);
            let conn = &mut self.conns[at];
            let bytes: Vec<u8> = conn.down_queue.drain(..count).collect();
            conn.down_flight += count;
            if conn.silent_down || conn.cut {
                continue;
            }
            let arrival = self.arrival(at, false);
            self.at(arrival, Event::ToSidecar(at, bytes));
        }
    }

    /// The gateway writes; `mark` says what the bytes end with.
    pub(crate) fn gateway_writes(&mut self, at: usize, bytes: &[u8], mark: Option<Mark>) {
        let conn = &mut self.conns[at];
        if !conn.gateway {
            return;
        }
        conn.down_queue.extend(bytes);
        conn.written += bytes.len() as u64;
        if let Some(mark) = mark.filter(|_| !conn.deaf) {
            conn.marks.push_back((conn.written, mark));
        }
        self.pump_down(at);
    }

    /// The gateway closes its socket.
    pub(crate) fn gateway_hangs_up(&mut self, at: usize, how: Ended) {
        let conn = &mut self.conns[at];
        if !core::mem::replace(&mut conn.gateway, false) {
            return;
        }
        if how == Ended::Reset {
            conn.down_queue.clear();
        }
        conn.down_end = Some(how);
        self.pump_down(at);
    }

    pub(crate) fn bytes_for_gateway(&mut self, at: usize, bytes: &[u8]) {
        let conn = &mut self.conns[at];
        conn.up_flight = conn.up_flight.saturating_sub(bytes.len());
        if conn.cut {
            return;
        }
        if conn.gateway {
            self.gateway_reads(at, bytes);
        } else if conn.sidecar {
            let arrival = self.arrival(at, false);
            self.at(arrival, Event::SidecarEnd(at, Ended::Reset));
        }
        self.pump_up(at);
    }

    pub(crate) fn bytes_for_sidecar(&mut self, at: usize, bytes: &[u8]) {
        let conn = &mut self.conns[at];
        conn.down_flight = conn.down_flight.saturating_sub(bytes.len());
        if conn.cut {
            return;
        }
        if conn.sidecar && conn.rx_end.is_none() {
            conn.rx.extend(bytes);
        } else if !conn.sidecar && conn.gateway && !conn.silent_up {
            // Nobody has that socket any more: the kernel says so.
            let arrival = self.arrival(at, true);
            self.at(arrival, Event::GatewayEnd(at, Ended::Reset));
        }
        self.pump_down(at);
    }

    /// The end of a connection reaches the sidecar's kernel.
    pub(crate) fn end_for_sidecar(&mut self, at: usize, how: Ended) {
        let lose = self.random.once_in(2);
        let conn = &mut self.conns[at];
        // A reset, or bytes that nobody acknowledges, end what a FIN has half closed.
        if !conn.sidecar || conn.rx_end == Some(Ended::Reset) || conn.rx_end == Some(how) {
            return;
        }
        conn.rx_end = Some(how);
        if how == Ended::Reset {
            if lose {
                conn.rx.clear();
            }
            if conn.send.take().is_some() {
                conn.sent = Some(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
    }

    /// The sidecar's process closes its socket, or ends.
    pub(crate) fn sidecar_closes(&mut self, at: usize, orderly: bool) {
        let lose = self.random.once_in(3);
        let conn = &mut self.conns[at];
        if !core::mem::replace(&mut conn.sidecar, false) {
            return;
        }
        conn.faulted = true;
        conn.receive = None;
        conn.send = None;
        conn.connected = None;
        conn.sent = None;
        if !conn.established || conn.silent_up || conn.cut {
            return;
        }
        // Unread bytes turn the FIN into a reset, which may overtake what was sent.
        let how =
            if !orderly && (!conn.rx.is_empty() || conn.down_flight > 0) { Ended::Reset } else { Ended::Fin };
        if how == Ended::Reset && lose {
            conn.cut = true;
        }
        conn.rx.clear();
        let arrival = self.arrival(at, true);
        self.at(arrival, Event::GatewayEnd(at, how));
    }

    /// What the driver's receive comes to, if anything: `Some(None)` is an error.
    pub(crate) fn take_received(&mut self, at: usize) -> Option<io::Result<usize>> {
        let Receive { into, length, exact, filled } = self.conns[at].receive?;
        let wait_all = exact && self.plan.wait_all;
        let conn = &mut self.conns[at];
        if conn.rx.is_empty() && filled == 0 {
            let end = conn.rx_end?;
            conn.receive = None;
            return Some(match end {
                Ended::Fin => Ok(0),
                Ended::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            });
        }
        let most = (length - filled).min(conn.rx.len());
        let count = if wait_all { most } else { self.piece(most) };
        let conn = &mut self.conns[at];
        for (index, byte) in conn.rx.drain(..count).enumerate() {
            // SAFETY: `Driver::receive` has the caller keep `into..into + length` valid for writes until the
            // completion, and `filled + count <= length`.
            unsafe { into.wrapping_add(filled + index).write(byte) };
        }
        let count = filled + count;
        if wait_all && count < length && conn.rx_end.is_none() {
            conn.receive = Some(Receive { into, length, exact, filled: count });
            self.pump_down(at);
            return None;
        }
        conn.receive = None;
        conn.consumed += count as u64;
        let consumed = conn.consumed;
        let it = &self.conns[at];
        // A frame that breaks the rules shows nothing of the tunnel, however late it comes.
        let late = !it.deaf && self.now - it.since > 3 * SECOND;
        let told = late || it.marks.front().is_some_and(|(end, _)| *end <= consumed);
        if told && consumed > it.head && self.gateway.conns[at].tunnel.is_some() {
            self.sidecar.last_byte = self.now;
        }
        while let Some((end, mark)) = self.conns[at].marks.front().copied()
            && end <= consumed
        {
            self.conns[at].marks.pop_front();
            self.oracle_consumed(at, mark);
        }
        self.pump_down(at);
        Some(Ok(count))
    }

    /// A network fault, to the connection that there is. `false`: there is none that it would touch.
    pub(crate) fn break_network(&mut self, fault: Fault) -> bool {
        let Some(at) = self.current.filter(|at| self.conns[*at].established && self.conns[*at].sidecar)
        else {
            return false;
        };
        let soon = self.now + self.random.below(20 * MILLI);
        let conn = &mut self.conns[at];
        conn.faulted = true;
        match fault {
            Fault::CutReset => {
                conn.cut = true;
                self.at(soon, Event::SidecarEnd(at, Ended::Reset));
                self.at(soon, Event::GatewayEnd(at, Ended::Reset));
            }
            Fault::CutFin => {
                self.at(soon, Event::SidecarEnd(at, Ended::Fin));
                self.at(soon, Event::GatewayEnd(at, Ended::Fin));
            }
            Fault::CutForSidecar => {
                conn.cut = true;
                self.at(soon, Event::SidecarEnd(at, Ended::Reset));
            }
            Fault::CutForGateway => {
                conn.silent_down = true;
                self.at(soon, Event::GatewayEnd(at, Ended::Reset));
            }
            Fault::Silent => (conn.silent_up, conn.silent_down) = (true, true),
            Fault::SilentUp => conn.silent_up = true,
            Fault::SilentDown => conn.silent_down = true,
            Fault::Stall => {
                let until = self.now + self.random.within(1..=35) * SECOND;
                self.conns[at].stalled_until = until;
            }
            _ => return false,
        }
        true
    }
}
