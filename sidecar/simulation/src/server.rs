//! What the gateway says, in due time and in every form that the contract and RFC 6455 allow: whole, in fragments, with
//! pings in between, with things in front that an agent has to ignore.

use crate::gateway::{Case, Phase};
use crate::net::Ended;
use crate::oracle::{Delivery, Mark, Session};
use crate::plan::{MILLI, SECOND, SLOT_BYTES};
use crate::wire;
use crate::world::{Do, World};

/// JSON's form of a text, with quotes.
pub(crate) fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl World {
    /// Does what was planned for a tunnel.
    pub(crate) fn gateway_does(&mut self, tunnel: usize, generation: u64, what: Do) {
        if self.gateway.tunnels[tunnel].generation != generation {
            return;
        }
        let Some(at) = self.gateway.tunnels[tunnel].live else { return };
        if self.gateway.conns[at].closing {
            return;
        }
        match what {
            Do::Warmup => {
                let it = &mut self.gateway.tunnels[tunnel];
                if it.phase == Phase::Queued {
                    it.phase = Phase::Warmup;
                }
                self.control(at, "{\"type\":\"warmup\"}", Some(Mark::Warmup));
            }
            Do::Queued => {
                self.coverage.row("queued");
                self.control(at, "{\"reason\":\"no_gpu_available\",\"type\":\"queued\"}", None);
            }
            Do::RoundTrip => {
                self.coverage.row("warm-up round trip with an empty session id");
                let delivery = self.deliver(at, 0, 0, Some(0));
                self.oracle.deliveries[delivery].step = 0;
            }
            Do::NextSession => self.next_session(tunnel, at),
            Do::OpenAgain => {
                if let Some(session) = self.gateway.tunnels[tunnel].session {
                    self.say_open(at, session);
                }
            }
            Do::Observe => self.observe(tunnel, at),
            Do::Reask => self.reask(tunnel, at),
            Do::CloseSession => {
                if let Some(session) = self.gateway.tunnels[tunnel].session {
                    self.say_close(at, session, "case over");
                    self.end_session(tunnel, "closed");
                    self.plan_for(tunnel, MILLI, Do::NextSession);
                }
            }
            Do::Drain => {
                let it = &mut self.gateway.tunnels[tunnel];
                it.phase = Phase::Draining;
                it.drain_sent = true;
                self.control(at, "{\"type\":\"drain\",\"reason\":\"done\"}", Some(Mark::Drain));
            }
        }
    }

    fn next_session(&mut self, tunnel: usize, at: usize) {
        if self.gateway.tunnels[tunnel].session.is_some()
            || self.gateway.tunnels[tunnel].phase != Phase::Running
        {
            return;
        }
        let Some(case) = self.gateway.cases.iter().position(|case| *case == Case::Pending) else {
            let delay = self.random.below(20 * MILLI);
            return self.plan_for(tunnel, delay, Do::Drain);
        };
        self.gateway.cases[case] = Case::Open;
        let number = self.oracle.sessions.len();
        let name = match self.random.below(8) {
            0 => format!("{number}-{}", "x".repeat(253 - number.to_string().len())),
            1 => format!("\"{number}\\\n"),
            2 => format!("séance {number}"),
            _ => format!("s{number}"),
        };
        let steps = self.plan.steps;
        self.oracle.sessions.push(Session::new(name, case, steps, self.now));
        self.gateway.tunnels[tunnel].session = Some(number);
        self.say_open(at, number);
        self.watch_case(tunnel, number);
        for _ in 0..self.plan.pipeline {
            self.plan_for(tunnel, 2, Do::Observe);
        }
    }

    fn say_open(&mut self, at: usize, session: usize) {
        let name = json(&self.oracle.sessions[session].name);
        self.control(
            at,
            &format!("{{\"type\":\"session_open\",\"session_id\":{name}}}"),
            Some(Mark::SessionOpen(session)),
        );
    }

    fn say_close(&mut self, at: usize, session: usize, reason: &str) {
        let name = json(&self.oracle.sessions[session].name);
        let text = format!("{{\"session_id\":{name},\"reason\":\"{reason}\",\"type\":\"session_close\"}}");
        self.control(at, &text, Some(Self::mark_of_close(session)));
    }

    fn observe(&mut self, tunnel: usize, at: usize) {
        let Some(session) = self.gateway.tunnels[tunnel].session else { return };
        if self.gateway.tunnels[tunnel].phase != Phase::Running {
            return;
        }
        let it = &mut self.oracle.sessions[session];
        if it.asked as usize >= it.answered.len() {
            return;
        }
        let step = it.asked;
        it.asked += 1;
        self.deliver(at, session, step, None);
    }

    /// Everything that was asked and not answered, once more.
    fn reask(&mut self, tunnel: usize, at: usize) {
        let Some(session) = self.gateway.tunnels[tunnel].session else { return };
        let it = &self.oracle.sessions[session];
        let open: Vec<u32> = (0..it.asked).filter(|step| !it.answered[*step as usize]).collect();
        if open.is_empty() {
            // What would have been asked next was not sent while the agent was away.
            return self.observe(tunnel, at);
        }
        for step in open {
            self.deliver(at, session, step, None);
        }
    }

    /// Sends an observation; returns its number.
    fn deliver(&mut self, at: usize, session: usize, step: u32, length: Option<usize>) -> usize {
        let length = length.unwrap_or_else(|| {
            if self.random.once_in(self.plan.oversize) {
                return SLOT_BYTES as usize + self.random.within(1..=4000) as usize;
            }
            match self.random.below(8) {
                0 => 0,
                1 => SLOT_BYTES as usize,
                2 => self.random.within(16..=SLOT_BYTES.into()) as usize,
                _ => self.random.within(16..=130) as usize,
            }
        });
        let number = self.oracle.deliveries.len();
        let payload = crate::oracle::observation(number, length);
        let message = wire::data(&self.oracle.sessions[session].name, &payload);
        self.oracle.deliveries.push(Delivery::new(session, step, length, at));
        if length == 0 {
            self.oracle.sessions[session].empty = Some(number);
            self.coverage.row("observation with an empty payload");
        }
        if length > SLOT_BYTES as usize {
            self.coverage.row("message larger than a slot");
        }
        self.note(|| {
            format!("gateway -> observation {number}, {length} bytes, session {session} step {step}")
        });
        self.message(at, wire::BINARY, &message, Some(Mark::Observation(number)));
        number
    }

    fn control(&mut self, at: usize, text: &str, mark: Option<Mark>) {
        self.note(|| format!("gateway -> {}", crate::gateway::short(text)));
        self.message(at, wire::TEXT, text.as_bytes(), mark);
    }

    /// A message, in one frame or in several.
    fn message(&mut self, at: usize, opcode: u8, message: &[u8], mark: Option<Mark>) {
        let mut bytes = Vec::with_capacity(message.len() + 16);
        if self.random.once_in(self.plan.junk) {
            self.junk(&mut bytes);
        }
        if self.random.once_in(self.plan.fragments) {
            self.coverage.row("fragments with pings in between");
            let mut rest = message;
            let mut opcode = opcode;
            for _ in 0..self.random.within(1..=4) {
                let count = self.random.below(rest.len() as u64 + 1) as usize;
                wire::frame(&mut bytes, false, opcode, &rest[..count]);
                (rest, opcode) = (&rest[count..], wire::CONTINUATION);
                if self.random.once_in(2) {
                    wire::frame(&mut bytes, true, wire::PING, b"between");
                }
            }
            wire::frame(&mut bytes, true, opcode, rest);
        } else {
            wire::frame(&mut bytes, true, opcode, message);
        }
        self.gateway_writes(at, &bytes, mark);
    }

    /// Something that an agent counts, answers or ignores, and that changes nothing else.
    fn junk(&mut self, out: &mut Vec<u8>) {
        let text = |out: &mut Vec<u8>, text: &str| wire::frame(out, true, wire::TEXT, text.as_bytes());
        let row = match self.random.below(11) {
            0 => {
                text(
                    out,
                    "{\"type\":\"confetti\",\"deep\":{\"a\":[1,2,{\"b\":null}]},\"session_id\":\"s1\"}",
                );
                "unknown control type"
            }
            1 => {
                text(out, "{\"type\":");
                "text that is no control frame"
            }
            2 => {
                text(out, "{\"type\":\"ready\"}");
                "control frame of the wrong direction"
            }
            3 => {
                text(out, "{\"type\":\"session_close\",\"session_id\":\"nobody\"}");
                "session_close for a session that is not open"
            }
            4 => {
                wire::frame(out, true, wire::BINARY, &wire::data("nobody", b"OBS lost"));
                "data frame for an unknown session"
            }
            5 => {
                wire::frame(out, true, wire::BINARY, &[0, 0, 0]);
                "data frame shorter than 4 bytes"
            }
            6 => {
                wire::frame(out, true, wire::BINARY, &[0, 0, 0, 200, b's']);
                "session id past the end"
            }
            7 => {
                wire::frame(out, true, wire::BINARY, &wire::data(&"y".repeat(257), b"OBS"));
                "session id longer than 256 bytes"
            }
            8 => {
                wire::frame(out, true, wire::PONG, b"unasked");
                "unsolicited pong"
            }
            9 => {
                let mut message = vec![0, 0, 0, 2, 0xff, 0xfe];
                message.extend_from_slice(b"OBS");
                wire::frame(out, true, wire::BINARY, &message);
                "session id that is not UTF-8"
            }
            _ => {
                wire::frame(out, true, wire::PING, &[7; 125]);
                "ping"
            }
        };
        self.coverage.row(row);
    }

    /// The gateway goes away, politely.
    pub(crate) fn gateway_says_goodbye(&mut self) -> bool {
        let Some(tunnel) = self.gateway.live() else { return false };
        let at = self.gateway.tunnels[tunnel].live.expect("that is what live says");
        if self.gateway.conns[at].closing {
            return false;
        }
        let mut bytes = Vec::new();
        wire::frame(&mut bytes, true, wire::CLOSE, &wire::close(1001, "going away"));
        self.gateway_writes(at, &bytes, None);
        self.gateway.conns[at].closing = true;
        self.gateway.closed_at_once += 1;
        self.conns[at].faulted = true;
        if self.random.once_in(2) {
            // It does not wait for the answer.
            self.gateway_hangs_up(at, Ended::Reset);
            self.gateway_lost(at, "own close");
        }
        true
    }

    pub(crate) fn job_ends(&mut self) -> bool {
        let Some(tunnel) = self.gateway.live() else { return false };
        let at = self.gateway.tunnels[tunnel].live.expect("that is what live says");
        self.gateway.terminal = true;
        self.end_session(tunnel, "the job ended");
        for case in &mut self.gateway.cases {
            if matches!(case, Case::Pending | Case::Open) {
                *case = Case::Failed("the job ended");
            }
        }
        self.conns[at].faulted = true;
        self.gateway_hangs_up(at, Ended::Fin);
        self.gateway_lost(at, "job ended");
        true
    }

    pub(crate) fn close_in_mid_session(&mut self) -> bool {
        let Some((tunnel, at, session)) = self.open_session() else { return false };
        self.coverage.row("session_close while inference runs");
        self.say_close(at, session, "cancelled");
        self.end_session(tunnel, "the gateway closed the session");
        self.plan_for(tunnel, MILLI, Do::NextSession);
        true
    }

    pub(crate) fn open_again(&mut self) -> bool {
        let Some((_, at, session)) = self.open_session() else { return false };
        self.say_open(at, session);
        true
    }

    pub(crate) fn replace_session(&mut self) -> bool {
        let Some((tunnel, at, _)) = self.open_session() else { return false };
        if !self.gateway.cases.contains(&Case::Pending) {
            return false;
        }
        self.coverage.row("session_open for another id");
        self.end_session(tunnel, "replaced by the gateway");
        self.next_session(tunnel, at);
        true
    }

    pub(crate) fn drain_early(&mut self) -> bool {
        let Some((tunnel, _, _)) = self.open_session() else { return false };
        self.coverage.row("drain while an answer is computed");
        for case in &mut self.gateway.cases {
            if *case == Case::Pending {
                *case = Case::Failed("drained");
            }
        }
        let generation = self.gateway.tunnels[tunnel].generation;
        self.gateway_does(tunnel, generation, Do::Drain);
        true
    }

    pub(crate) fn violate_rules(&mut self) -> bool {
        let Some(tunnel) = self.gateway.live() else { return false };
        let at = self.gateway.tunnels[tunnel].live.expect("that is what live says");
        if self.gateway.conns[at].closing {
            return false;
        }
        let bytes: &[u8] = match self.random.below(6) {
            // Masked; a reserved bit; a reserved opcode; not minimal; a long ping; a continuation of nothing.
            0 => &[0x81, 0x82, 1, 2, 3, 4, 5, 6],
            1 => &[0xc1, 0x02, b'{', b'}'],
            2 => &[0x83, 0x00],
            3 => &[0x82, 126, 0, 5, 0, 0, 0, 0, 0],
            4 => &[0x89, 126, 0, 126],
            _ => &[0x80, 0x01, b'x'],
        };
        self.coverage.row("RFC 6455 violation closes the socket");
        self.conns[at].faulted = true;
        self.gateway_writes(at, bytes, None);
        self.conns[at].deaf = true;
        true
    }

    fn open_session(&self) -> Option<(usize, usize, usize)> {
        let tunnel = self.gateway.live()?;
        let it = &self.gateway.tunnels[tunnel];
        let at = it.live?;
        if self.gateway.conns[at].closing || it.phase != Phase::Running {
            return None;
        }
        Some((tunnel, at, it.session?))
    }

    /// A bound for everything: long after the last fault.
    pub(crate) const fn patience(&self) -> u64 {
        3000 * SECOND
    }
}
