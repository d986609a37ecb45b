//! The faults, and when they come.

use crate::net::Ended;
use crate::plan::{Policy, SECOND};
use crate::world::{Event, World};

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Something that goes wrong.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in tables and traces.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

faults! {
    /// The connection is reset for both.
    CutReset = "cut: reset on both sides",
    /// Both see a FIN.
    CutFin = "cut: FIN on both sides",
    /// Only the sidecar learns that it is gone.
    CutForSidecar = "cut: known to the sidecar only",
    /// Only the gateway does.
    CutForGateway = "cut: known to the gateway only",
    /// No byte passes any more, and nobody is told.
    Silent = "cut: silent",
    /// No byte reaches the gateway.
    SilentUp = "cut: silent towards the gateway",
    /// No byte reaches the sidecar.
    SilentDown = "cut: silent towards the sidecar",
    /// Nothing passes for a while.
    Stall = "network stalls and goes on",
    /// Dials are refused for a while.
    DialRefused = "dials refused",
    /// Dials are not answered for a while.
    DialSilent = "dials unanswered",
    /// The gateway's name is unknown for a while.
    Dns = "name resolution fails",
    /// The gateway's process is restarted.
    GatewayRestart = "gateway restarts",
    /// The gateway says close.
    GatewayClose = "gateway closes with 1001",
    /// The next redials are closed at once.
    InstantClose = "instant close after the 101",
    /// The next redials are answered with a status that passes.
    Status = "429 or 5xx on a redial",
    /// The token is replaced.
    TokenRotated = "token replaced in mid-run",
    /// The job ends: 401 for ever.
    JobTerminal = "401 in mid-run",
    /// `session_close` while inference runs.
    SessionClose = "session_close in mid-session",
    /// `session_open` for the session that is open.
    DuplicateOpen = "duplicate session_open",
    /// `session_open` for another one.
    Replace = "session_open for another id",
    /// `drain` during a session.
    Drain = "drain in mid-session",
    /// A frame that breaks RFC 6455.
    Violation = "gateway breaks RFC 6455",
    /// The worker is killed.
    WorkerKill = "worker killed",
    /// The worker dies at one of its stores.
    WorkerFuse = "worker dies at a store",
    /// The worker is stopped for a while.
    WorkerStop = "worker stopped and continued",
    /// The worker's connection to the sidecar breaks; the process lives.
    WorkerUnplugged = "worker's connection breaks",
    /// The worker is closed, and the same process attaches again.
    WorkerReopens = "worker closed and attached again by its process",
    /// The worker takes very long for one answer.
    WorkerLate = "worker answers late",
    /// The worker gives up on an observation.
    WorkerFails = "worker fails on an observation",
    /// The sidecar is killed.
    SidecarKill = "sidecar killed",
    /// The sidecar dies at one of its stores.
    SidecarFuse = "sidecar dies at a store",
    /// A successor dies at a store, mostly while it takes over.
    SuccessorFuse = "successor dies at a store",
    /// Both are killed.
    BothKill = "sidecar and worker killed",
    /// SIGUSR2: it leaves, and a successor takes over.
    Upgrade = "sidecar upgraded (SIGUSR2)",
    /// SIGTERM.
    Terminate = "SIGTERM",
}

impl World {
    /// Rolls the dice after a step.
    pub(crate) fn perhaps_a_fault(&mut self) {
        if self.faults_left == 0 || !self.random.once_in(self.plan.density) {
            return;
        }
        let fault = self.random.pick(Fault::ALL);
        // The end of everything is rarer than what is survived.
        if matches!(fault, Fault::Terminate | Fault::JobTerminal | Fault::Drain) && !self.random.once_in(4) {
            return;
        }
        self.suffer(fault);
    }

    /// Rolls them when the policy `close` is about to be followed: what it says is swallowed by a cut, or by the death of
    /// who wanted to say it, or by both.
    pub(crate) fn perhaps_a_swallowed_close(&mut self) {
        if self.plan.policy != Policy::Close || self.faults_left == 0 || self.random.once_in(2) {
            return;
        }
        let cut = self.random.pick(&[Fault::SilentUp, Fault::CutForSidecar, Fault::SidecarFuse]);
        self.suffer(cut);
        if self.faults_left > 0 && self.random.once_in(2) {
            self.suffer(Fault::SidecarFuse);
        }
    }

    fn suffer(&mut self, fault: Fault) {
        if self.inject(fault) {
            self.faults_left -= 1;
            self.last_fault = self.now;
            self.coverage.fault(fault);
            self.note(|| format!("FAULT   {}", fault.name()));
        }
    }

    /// `false`: it would change nothing now.
    fn inject(&mut self, fault: Fault) -> bool {
        let now = self.now;
        match fault {
            Fault::CutReset
            | Fault::CutFin
            | Fault::CutForSidecar
            | Fault::CutForGateway
            | Fault::Silent
            | Fault::SilentUp
            | Fault::SilentDown
            | Fault::Stall => return self.break_network(fault),
            Fault::DialRefused | Fault::DialSilent | Fault::Dns => {
                // Of use only together with a cut.
                if !self.break_network(Fault::CutReset) {
                    return false;
                }
                let until = now + self.outage();
                match fault {
                    Fault::DialRefused => self.refused_until = until,
                    Fault::DialSilent => self.unanswered_until = until,
                    _ => self.unresolved_until = until,
                }
            }
            Fault::GatewayRestart => {
                let until = now + self.outage();
                self.gateway_restarts(until);
            }
            Fault::GatewayClose => return self.gateway_says_goodbye(),
            Fault::InstantClose => {
                if !self.break_network(Fault::CutReset) {
                    return false;
                }
                self.gateway.instant_closes += self.random.within(1..=3) as u32;
            }
            Fault::Status => {
                if !self.break_network(Fault::CutFin) {
                    return false;
                }
                let status = self.random.pick(&[429, 500, 503]);
                self.gateway.statuses.push(status);
            }
            Fault::TokenRotated => {
                if !self.break_network(Fault::CutReset) {
                    return false;
                }
                self.gateway.token = 1;
            }
            Fault::JobTerminal => return self.job_ends(),
            Fault::SessionClose => return self.close_in_mid_session(),
            Fault::DuplicateOpen => return self.open_again(),
            Fault::Replace => return self.replace_session(),
            Fault::Drain => return self.drain_early(),
            Fault::Violation => return self.violate_rules(),
            Fault::WorkerKill => return self.kill_worker(),
            Fault::WorkerFuse => {
                let left = self.random.within(1..=12) as u32;
                return self.light_worker_fuse(left);
            }
            Fault::WorkerStop => return self.stop_worker(),
            Fault::WorkerUnplugged => return self.unplug_worker(),
            Fault::WorkerReopens => return self.reopen_worker(),
            Fault::WorkerLate => self.next_is_late = true,
            Fault::WorkerFails => self.next_fails = true,
            Fault::SidecarKill => {
                if !self.sidecar.alive {
                    return false;
                }
                self.sidecar.killed = true;
            }
            // It comes with the death before it.
            Fault::SuccessorFuse => return false,
            Fault::SidecarFuse => {
                if !self.sidecar.alive || self.sidecar.fuse.is_some() {
                    return false;
                }
                self.sidecar.fuse = Some(self.random.within(1..=60) as u32);
            }
            Fault::BothKill => {
                if !self.sidecar.alive {
                    return false;
                }
                self.kill_worker();
                self.sidecar.killed = true;
            }
            Fault::Upgrade | Fault::Terminate => {
                if !self.sidecar.alive {
                    return false;
                }
                self.signal(fault);
            }
        }
        true
    }

    /// Mostly within the gateway's window, sometimes not.
    pub(crate) fn outage(&mut self) -> u64 {
        match self.random.below(10) {
            0..=5 => self.random.below(3 * SECOND),
            6..=8 => self.random.within(3..=20) * SECOND,
            _ => self.random.within(20..=120) * SECOND,
        }
    }

    fn gateway_restarts(&mut self, until: u64) {
        self.refused_until = self.refused_until.max(until);
        for at in 0..self.conns.len() {
            if self.conns[at].gateway {
                self.conns[at].faulted = true;
                self.gateway_hangs_up(at, Ended::Reset);
                self.gateway_lost(at, "restart");
            }
        }
        if self.random.once_in(3) {
            return self.gateway_forgets();
        }
        // The window runs from when it is back.
        for tunnel in 0..self.gateway.tunnels.len() {
            if self.gateway.tunnels[tunnel].window.is_some() {
                let generation = self.gateway.tunnels[tunnel].generation;
                self.gateway.tunnels[tunnel].window = Some(until + crate::gateway::WINDOW);
                self.at(until + crate::gateway::WINDOW, Event::Window(tunnel, generation));
            }
        }
    }
}
