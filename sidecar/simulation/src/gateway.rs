//! The gateway, written from the tunnel contract (appendix A) and from nothing of ours: upgrade, warm-up, sessions in
//! sequence, the 30 s window, pings every 20 s, a read deadline of 45 s that pongs alone move, frames dropped while the
//! agent is away, drain. What it says is in [`crate::server`].

use crate::net::Ended;
use crate::oracle::Mark;
use crate::plan::{FirstDial, Greeting, Lost, MILLI, SECOND};
use crate::wire;
use crate::world::{Do, Event, World};

/// How long a session is kept after an unclean close (A.5).
pub(crate) const WINDOW: u64 = 30 * SECOND;
/// Between two pings, and how long without a pong (A.6).
const PING: u64 = 20 * SECOND;
const DEADLINE: u64 = 45 * SECOND;
/// A case without progress is given up after this long.
const CASE_TIMEOUT: u64 = 400 * SECOND;

/// A.4, from the server's side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Queued,
    Warmup,
    Running,
    Draining,
}

/// What the gateway keeps for a pair of job and agent.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) agent: String,
    pub(crate) phase: Phase,
    pub(crate) live: Option<usize>,
    pub(crate) window: Option<u64>,
    /// Stepped with each change of connection: what was planned before is void.
    pub(crate) generation: u64,
    pub(crate) session: Option<usize>,
    pub(crate) gone: bool,
    queued_told: bool,
    pub(crate) drain_sent: bool,
}

/// The server's end of a connection.
#[derive(Debug, Default)]
pub(crate) struct ServerConn {
    upgraded: bool,
    pub(crate) closed: bool,
    /// Our close frame is out.
    pub(crate) closing: bool,
    input: Vec<u8>,
    pub(crate) tunnel: Option<usize>,
    last_pong: u64,
}

/// A case of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    Pending,
    Open,
    Solved,
    /// Why not.
    Failed(&'static str),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) tunnels: Vec<Tunnel>,
    pub(crate) conns: Vec<ServerConn>,
    pub(crate) cases: Vec<Case>,
    /// The job is over: 401.
    pub(crate) terminal: bool,
    /// Number of the valid token.
    pub(crate) token: u32,
    pub(crate) instant_closes: u32,
    pub(crate) statuses: Vec<u16>,
    /// Upgrades refused with 401, instant closes, drains that were read: what exit codes are compared with.
    pub(crate) refused: u32,
    pub(crate) closed_at_once: u32,
    pub(crate) drain: bool,
    pub(crate) upgraded_once: bool,
    /// The last upgrade that was taken.
    pub(crate) last_accept: u64,
}

impl Gateway {
    pub(crate) fn new(plan: &crate::plan::Plan) -> Self {
        let mut gateway = Self {
            tunnels: Vec::new(),
            conns: Vec::new(),
            cases: vec![Case::Pending; plan.cases as usize],
            terminal: false,
            token: 0,
            instant_closes: 0,
            statuses: Vec::new(),
            refused: 0,
            closed_at_once: 0,
            drain: false,
            upgraded_once: false,
            last_accept: 0,
        };
        match plan.first_dial {
            FirstDial::Fine | FirstDial::Absent(_) => {}
            FirstDial::Status(status, often) => gateway.statuses = vec![status; often as usize],
            FirstDial::Capacity(often) => gateway.instant_closes = often,
            FirstDial::Unauthorized => gateway.terminal = true,
        }
        gateway
    }

    pub(crate) fn is_done(&self) -> bool {
        !self.cases.iter().any(|case| matches!(case, Case::Pending | Case::Open))
    }

    /// The tunnel that is up.
    pub(crate) fn live(&self) -> Option<usize> {
        self.tunnels.iter().position(|tunnel| tunnel.live.is_some())
    }
}

impl World {
    pub(crate) fn gateway_reads(&mut self, at: usize, bytes: &[u8]) {
        if self.gateway.conns[at].closed {
            return;
        }
        self.gateway.conns[at].input.extend_from_slice(bytes);
        loop {
            let conn = &self.gateway.conns[at];
            if conn.closed {
                return;
            }
            let taken = if conn.upgraded {
                match wire::client_frame(&conn.input) {
                    Ok(None) => return,
                    Ok(Some((frame, length))) => {
                        self.gateway.conns[at].input.drain(..length);
                        self.take_frame(at, &frame);
                        continue;
                    }
                    Err(why) => Err(why),
                }
            } else {
                wire::request(&conn.input)
            };
            match taken {
                Ok(None) => return,
                Ok(Some((request, length))) => {
                    self.gateway.conns[at].input.drain(..length);
                    self.take_request(at, &request);
                }
                Err(why) => return self.fail(format!("the gateway can't read what the sidecar sent: {why}")),
            }
        }
    }

    fn take_request(&mut self, at: usize, request: &wire::Request) {
        if request.job != crate::world::JOB {
            return self.fail(format!("dialled for job {}", request.job));
        }
        self.note(|| format!("gateway <- upgrade, agent {}", short(&request.agent)));
        if let Some(status) = self.gateway.statuses.pop() {
            self.coverage.row("429, 5xx: retried");
            return self.refuse(at, status);
        }
        if self.gateway.terminal || request.token != crate::world::TOKENS[self.gateway.token as usize] {
            self.gateway.refused += 1;
            return self.refuse(at, 401);
        }
        let known = self.gateway.tunnels.iter().position(|tunnel| tunnel.agent == request.agent);
        let gone = known.is_some_and(|known| self.gateway.tunnels[known].gone);
        if gone && self.plan.refuse_gone {
            self.gateway.refused += 1;
            return self.refuse(at, 401);
        }
        self.gateway_writes(at, wire::accept(&request.key).as_bytes(), None);
        self.gateway.conns[at].upgraded = true;
        self.conns[at].head = self.conns[at].written;
        let taken =
            self.gateway.tunnels.iter().any(|tunnel| tunnel.live.is_some() || tunnel.window.is_some())
                && known.is_none_or(|known| self.gateway.tunnels[known].live.is_some());
        if self.gateway.instant_closes > 0 {
            self.gateway.instant_closes -= 1;
            return self.close_at_once(at, "told to");
        }
        if gone || taken {
            return self.close_at_once(at, if gone { "the pair is gone" } else { "the agent is connected" });
        }
        if self.conns[at].sidecar {
            // A request may outlive the process that sent it.
            self.oracle_dialled(&request.agent);
        }
        let tunnel = known.unwrap_or_else(|| {
            self.gateway.tunnels.push(Tunnel {
                agent: request.agent.clone(),
                phase: Phase::Queued,
                live: None,
                window: None,
                generation: 0,
                session: None,
                gone: false,
                queued_told: false,
                drain_sent: false,
            });
            self.gateway.tunnels.len() - 1
        });
        self.attach(at, tunnel, known.is_some());
    }

    fn refuse(&mut self, at: usize, status: u16) {
        self.note(|| format!("gateway -> {status}"));
        let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
        self.gateway_writes(at, answer.as_bytes(), None);
        self.gateway.conns[at].closed = true;
        self.gateway_hangs_up(at, Ended::Fin);
    }

    fn close_at_once(&mut self, at: usize, why: &str) {
        self.note(|| format!("gateway -> 101, then close at once: {why}"));
        self.gateway.closed_at_once += 1;
        let row = if self.gateway.upgraded_once {
            "instant close on a redial"
        } else {
            "instant close, first dial"
        };
        self.coverage.row(row);
        let mut bytes = Vec::new();
        wire::frame(&mut bytes, true, wire::CLOSE, &wire::close(1008, why));
        self.gateway_writes(at, &bytes, None);
        self.gateway.conns[at].closed = true;
        self.gateway_hangs_up(at, Ended::Fin);
    }

    fn attach(&mut self, at: usize, tunnel: usize, again: bool) {
        self.note(|| format!("gateway -> 101{}", if again { ", restored" } else { "" }));
        self.gateway.upgraded_once = true;
        self.gateway.last_accept = self.now;
        let conn = &mut self.gateway.conns[at];
        conn.tunnel = Some(tunnel);
        conn.last_pong = self.now;
        let it = &mut self.gateway.tunnels[tunnel];
        it.live = Some(at);
        it.window = None;
        it.generation += 1;
        let (phase, session) = (it.phase, it.session);
        self.after(PING, Event::Ping(at));
        self.after(DEADLINE, Event::Deadline(at));
        let soon = self.random.below(30 * MILLI);
        if phase == Phase::Draining || self.gateway.is_done() {
            return self.plan_for(tunnel, soon, Do::Drain);
        }
        if phase != Phase::Running {
            return self.plan_for(tunnel, soon, Do::Warmup);
        }
        self.coverage.row("redialled: the session goes on");
        let Some(session) = session else { return self.plan_for(tunnel, soon, Do::NextSession) };
        if self.gateway.cases[self.oracle.sessions[session].case] != Case::Open {
            return self.plan_for(tunnel, soon, Do::CloseSession);
        }
        if matches!(self.plan.greeting, Greeting::Warmup | Greeting::Both) {
            self.coverage.row("warmup again after a redial");
            self.plan_for(tunnel, soon, Do::Warmup);
        }
        // An agent that can't know of the session yet has to be told of it.
        let known = self.oracle.sessions[session].answers > 0;
        if !known || matches!(self.plan.greeting, Greeting::SessionOpen | Greeting::Both) {
            if known {
                self.coverage.row("session_open for the session that is open");
            }
            self.plan_for(tunnel, soon + 1, Do::OpenAgain);
        }
        if self.plan.lost == Lost::Reask || !known {
            self.plan_for(tunnel, soon + 2, Do::Reask);
        }
    }

    /// What the gateway does next for a tunnel, if its connection is still the same by then.
    pub(crate) fn plan_for(&mut self, tunnel: usize, delay: u64, what: Do) {
        let generation = self.gateway.tunnels[tunnel].generation;
        self.after(delay, Event::Gate(tunnel, generation, what));
    }

    fn take_frame(&mut self, at: usize, frame: &wire::ClientFrame) {
        let Some(tunnel) = self.gateway.conns[at].tunnel else { return };
        match frame.opcode {
            wire::PONG => self.gateway.conns[at].last_pong = self.now,
            wire::PING => {
                let mut bytes = Vec::new();
                wire::frame(&mut bytes, true, wire::PONG, &frame.payload);
                self.gateway_writes(at, &bytes, None);
            }
            wire::CLOSE => self.take_close(at, tunnel, &frame.payload),
            wire::TEXT => self.take_text(tunnel, &frame.payload),
            _ => self.take_action(tunnel, &frame.payload),
        }
    }

    fn take_close(&mut self, at: usize, tunnel: usize, payload: &[u8]) {
        let code = payload.first_chunk::<2>().map(|code| u16::from_be_bytes(*code));
        self.note(|| format!("gateway <- close {code:?}"));
        if !core::mem::replace(&mut self.gateway.conns[at].closing, true) {
            let mut bytes = Vec::new();
            wire::frame(&mut bytes, true, wire::CLOSE, &payload[..payload.len().min(2)]);
            self.gateway_writes(at, &bytes, None);
        }
        if code == Some(1000) {
            // A clean close: the agent has left.
            let it = &mut self.gateway.tunnels[tunnel];
            it.gone = true;
            it.live = None;
            it.generation += 1;
            let drained = it.phase == Phase::Draining;
            self.end_session(tunnel, if drained { "drained" } else { "the agent closed" });
            self.gateway.conns[at].closed = true;
            return self.gateway_hangs_up(at, Ended::Fin);
        }
        self.gateway_hangs_up(at, Ended::Fin);
        self.gateway_lost(at, "close");
    }

    fn take_text(&mut self, tunnel: usize, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        self.note(|| format!("gateway <- {}", short(&text)));
        if text.contains("\"ready\"") {
            let it = &mut self.gateway.tunnels[tunnel];
            if it.phase != Phase::Warmup {
                return;
            }
            it.phase = Phase::Running;
            let delay = self.random.below(50 * MILLI);
            if self.plan.round_trip {
                self.plan_for(tunnel, delay / 2, Do::RoundTrip);
            }
            if self.plan.queued && !core::mem::replace(&mut self.gateway.tunnels[tunnel].queued_told, true) {
                self.plan_for(tunnel, delay / 2, Do::Queued);
            }
            self.plan_for(tunnel, delay, Do::NextSession);
        } else if text.contains("\"session_close\"") {
            let session = self.gateway.tunnels[tunnel].session;
            if let Some(session) = session.filter(|session| self.closed_by(&text) == Some(*session)) {
                self.oracle.sessions[session].forfeited = true;
                self.end_session(tunnel, "the agent closed the session");
                self.plan_for(tunnel, MILLI, Do::NextSession);
            }
        } else {
            self.fail(format!("the sidecar sent a control frame that no agent sends: {text}"));
        }
    }

    fn take_action(&mut self, tunnel: usize, message: &[u8]) {
        let (session, payload) = match wire::split_data(message) {
            Ok((session, payload)) => (session.to_owned(), payload),
            Err(why) => return self.fail(format!("the sidecar sent a data frame with {why}")),
        };
        let Some(delivery) = self.oracle_received(&session, payload) else { return };
        let of = self.oracle.deliveries[delivery].session;
        if self.gateway.tunnels[tunnel].session != Some(of) {
            // It crossed a session_close: dropped, as the contract says.
            return;
        }
        let Case::Open = self.gateway.cases[self.oracle.sessions[of].case] else { return };
        self.oracle.sessions[of].answers += 1;
        self.oracle.sessions[of].progress = self.now;
        let step = self.oracle.deliveries[delivery].step as usize;
        let it = &mut self.oracle.sessions[of];
        let open = if it.answered[step] { it.answered.iter().position(|done| !done) } else { Some(step) };
        // The simulator can't tell an answer that comes a second time from the one that it waits for.
        if let Some(step) = open.filter(|step| (*step as u32) < it.asked) {
            it.answered[step] = true;
        }
        if it.answered.iter().all(|done| *done) {
            self.gateway.cases[it.case] = Case::Solved;
            self.note(|| "gateway: case solved".into());
            return self.plan_for(tunnel, MILLI, Do::CloseSession);
        }
        let delay = self.random.below(20 * MILLI);
        self.plan_for(tunnel, delay, Do::Observe);
    }

    /// The session of a tunnel is over on this side.
    pub(crate) fn end_session(&mut self, tunnel: usize, why: &'static str) {
        let Some(session) = self.gateway.tunnels[tunnel].session.take() else { return };
        let case = self.oracle.sessions[session].case;
        if self.gateway.cases[case] == Case::Open {
            self.gateway.cases[case] = Case::Failed(why);
            self.note(|| format!("gateway: case failed: {why}"));
        }
    }

    /// It is restarted without what it knew: the agent is one that it has never seen.
    pub(crate) fn gateway_forgets(&mut self) {
        for tunnel in 0..self.gateway.tunnels.len() {
            if self.gateway.tunnels[tunnel].session.is_some() {
                self.coverage.row("gateway has forgotten the session");
            }
            self.end_session(tunnel, "the gateway forgot it");
            let it = &mut self.gateway.tunnels[tunnel];
            it.agent.clear();
            it.window = None;
            it.generation += 1;
            it.gone = true;
        }
    }

    /// A connection is gone, other than cleanly.
    pub(crate) fn gateway_lost(&mut self, at: usize, why: &str) {
        if core::mem::replace(&mut self.gateway.conns[at].closed, true) {
            return;
        }
        let Some(tunnel) = self.gateway.conns[at].tunnel else { return };
        let it = &mut self.gateway.tunnels[tunnel];
        if it.live != Some(at) {
            return;
        }
        it.live = None;
        it.generation += 1;
        self.note(|| format!("gateway: connection lost ({why}), the window opens"));
        let it = &mut self.gateway.tunnels[tunnel];
        let generation = it.generation;
        it.window = Some(self.now + WINDOW);
        self.after(WINDOW, Event::Window(tunnel, generation));
    }

    pub(crate) fn window_is_over(&mut self, tunnel: usize, generation: u64) {
        let now = self.now;
        let it = &mut self.gateway.tunnels[tunnel];
        if it.generation != generation || it.window.is_none_or(|until| until > now) {
            return;
        }
        it.window = None;
        it.gone = true;
        self.coverage.row("window expires");
        self.oracle_window_expired();
        self.note(|| "gateway: the window is over".into());
        self.end_session(tunnel, "the window expired");
    }

    pub(crate) fn ping_is_due(&mut self, at: usize) {
        if self.gateway.conns[at].closed || !self.conns[at].gateway {
            return;
        }
        let mut bytes = Vec::new();
        wire::frame(&mut bytes, true, wire::PING, &self.now.to_be_bytes());
        self.gateway_writes(at, &bytes, None);
        self.after(PING, Event::Ping(at));
    }

    pub(crate) fn deadline_is_due(&mut self, at: usize) {
        if self.gateway.conns[at].closed || !self.conns[at].gateway {
            return;
        }
        let due = self.gateway.conns[at].last_pong + DEADLINE;
        if due > self.now {
            return self.at(due, Event::Deadline(at));
        }
        if !self.conns[at].faulted
            && self.gateway.conns[at].tunnel.is_some()
            && !self.gateway.conns[at].closing
        {
            return self.fail("promise 5: no pong for 45 s on a healthy connection".into());
        }
        self.coverage.row("read deadline of the gateway");
        let how = if self.random.once_in(2) { Ended::Fin } else { Ended::Reset };
        self.gateway_hangs_up(at, how);
        self.gateway_lost(at, "read deadline");
    }

    pub(crate) fn case_may_be_stuck(&mut self, tunnel: usize, session: usize) {
        if self.gateway.tunnels[tunnel].session != Some(session) {
            return;
        }
        let due = self.oracle.sessions[session].progress + CASE_TIMEOUT;
        if due > self.now {
            return self.at(due, Event::CaseTimeout(tunnel, session));
        }
        self.oracle_stuck(tunnel, session);
        self.gateway.cases[self.oracle.sessions[session].case] = Case::Failed("no progress");
        self.note(|| "gateway: the case makes no progress and is given up".into());
        if self.gateway.tunnels[tunnel].live.is_some() {
            self.plan_for(tunnel, 0, Do::CloseSession);
        } else {
            self.end_session(tunnel, "no progress");
        }
    }

    pub(crate) fn watch_case(&mut self, tunnel: usize, session: usize) {
        self.after(CASE_TIMEOUT, Event::CaseTimeout(tunnel, session));
    }

    /// What the session's end is told with.
    pub(crate) const fn mark_of_close(session: usize) -> Mark {
        Mark::SessionClose(session)
    }
}

/// For a trace.
pub(crate) fn short(text: &str) -> String {
    if text.chars().count() > 60 {
        format!("{}...", text.chars().take(57).collect::<String>().escape_debug())
    } else {
        text.escape_debug().to_string()
    }
}
