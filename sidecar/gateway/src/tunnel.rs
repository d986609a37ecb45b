//! One agent's tunnel: the server's side of the state machine (tunnel contract A.4, A.5). It outlives its
//! connections by the reconnect window.

use core::time::Duration;
use std::io;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, sleep_until};

use crate::faults::{CutHow, StepFault};
use crate::job::Job;
use crate::link::{End, Inbound, Link};
use crate::message::{Control, FromAgent, read_control, read_data, start_data};
use crate::options::OnLost;
use crate::random::session_id;
use crate::report::GatewayEvent;
use crate::simulator::{Simulator, Step};

/// Steps between two progress events.
const TOLD_EVERY: u32 = 25;

/// Starts an agent's tunnel; connections are sent into it.
pub(crate) fn start(job: Arc<Job>, agent: String) -> mpsc::UnboundedSender<Link> {
    let (sender, links) = mpsc::unbounded_channel();
    tokio::spawn(Tunnel::new(job, agent).run(links));
    sender
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Queued,
    Warmup,
    Running,
    Draining,
}

struct Session {
    id: String,
    case: u32,
    simulator: Box<dyn Simulator>,
    /// Steps that were answered; the number of the step that is due.
    step: u32,
    asked: Option<Asked>,
    /// The next observation leaves at this time.
    due: Instant,
    deadline: Option<Instant>,
}

struct Asked {
    at: Instant,
    /// No connection was lost since.
    clean: bool,
    /// When the step is asked again.
    again: Option<Instant>,
}

/// Why a connection is not used any more.
enum Gone {
    /// With a FIN, after what was sent has left.
    Ended(String),
    /// With a reset.
    Reset(String),
}

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Self {
        Self::Ended(error.to_string())
    }
}

/// What happens next.
enum Next {
    Link(Link),
    /// The connection's reading side said something; `None`: it is gone.
    Inbound(Option<Inbound>),
    Ping,
    /// A timer of the session: send or give up.
    Session,
    WindowPassed,
    DrainTimedOut,
}

struct Tunnel {
    job: Arc<Job>,
    agent: String,
    phase: Phase,
    warmup_answered: bool,
    session: Option<Session>,
    link: Option<Link>,
    /// A fault on request: the connection is not served any more.
    silent: bool,
    window_ends: Option<Instant>,
    drain_ends: Option<Instant>,
    connections: u64,
    frame: Vec<u8>,
}

impl Tunnel {
    fn new(job: Arc<Job>, agent: String) -> Self {
        Self {
            job,
            agent,
            phase: Phase::Queued,
            warmup_answered: false,
            session: None,
            link: None,
            silent: false,
            window_ends: None,
            drain_ends: None,
            connections: 0,
            frame: Vec::new(),
        }
    }

    async fn run(mut self, mut links: mpsc::UnboundedReceiver<Link>) {
        let mut pings = self.pings();
        loop {
            let next = self.next(&mut links, &mut pings).await;
            let result = match next {
                Next::Link(link) => {
                    pings = self.pings();
                    self.connected(link).await
                }
                Next::Inbound(None) => Err(Gone::Ended("the reader ended".to_owned())),
                Next::Inbound(Some(inbound)) => self.handle(inbound).await,
                Next::Ping => self.ping().await,
                Next::Session => self.session_due().await,
                Next::WindowPassed => return self.window_passed(),
                Next::DrainTimedOut => Err(Gone::Ended("the drained agent did not close".to_owned())),
            };
            if let Err(gone) = result
                && self.disconnected(gone)
            {
                return;
            }
        }
    }

    fn pings(&self) -> Interval {
        let period = self.job.options.timers.ping_interval.max(Duration::from_millis(1));
        let mut pings = interval_at(Instant::now() + period, period);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings
    }

    async fn next(&mut self, links: &mut mpsc::UnboundedReceiver<Link>, pings: &mut Interval) -> Next {
        let session_due = self.session_timer();
        let window_ends = self.window_ends;
        let drain_ends = self.drain_ends;
        let connected = self.link.is_some();
        tokio::select! {
            biased;
            Some(link) = links.recv() => Next::Link(link),
            inbound = inbound(&mut self.link) => Next::Inbound(inbound),
            _ = pings.tick(), if connected => Next::Ping,
            () = until(session_due) => Next::Session,
            () = until(window_ends) => Next::WindowPassed,
            () = until(drain_ends) => Next::DrainTimedOut,
        }
    }

    /// The next time at which the session has something to do by itself.
    fn session_timer(&self) -> Option<Instant> {
        let Some(session) = &self.session else {
            // Between two cases the next one is due at once.
            return (self.phase == Phase::Running && self.link.is_some() && !self.silent).then(Instant::now);
        };
        let send = match &session.asked {
            _ if self.link.is_none() || self.silent => None,
            Some(asked) => asked.again,
            None => Some(session.due),
        };
        [send, session.deadline].into_iter().flatten().min()
    }

    async fn connected(&mut self, link: Link) -> Result<(), Gone> {
        let resumed = self.connections > 0;
        self.connections += 1;
        self.link = Some(link);
        self.silent = false;
        self.window_ends = None;
        self.job.tell(GatewayEvent::Connected { agent: self.agent.clone(), resumed });
        let reask = self.job.options.on_lost == OnLost::Reask;
        let again = Instant::now() + self.job.options.timers.reask_after;
        if let Some(asked) = self.session.as_mut().and_then(|session| session.asked.as_mut()) {
            asked.again = reask.then_some(again);
        }
        match self.phase {
            Phase::Queued | Phase::Warmup => self.warm_up().await,
            Phase::Draining => self.drain("the job is over").await,
            Phase::Running => Ok(()),
        }
    }

    async fn warm_up(&mut self) -> Result<(), Gone> {
        self.phase = Phase::Warmup;
        self.control(&Control::Warmup).await?;
        if self.job.options.warmup_frame && !self.warmup_answered {
            start_data("", &mut self.frame);
            if let Some(link) = &mut self.link {
                link.outlet.data(&self.frame).await?;
            }
        }
        Ok(())
    }

    async fn control(&mut self, control: &Control<'_>) -> Result<(), Gone> {
        match &mut self.link {
            Some(link) if !self.silent => Ok(link.outlet.text(&control.text()).await?),
            _ => Ok(()),
        }
    }

    async fn ping(&mut self) -> Result<(), Gone> {
        match &mut self.link {
            Some(link) if !self.silent => Ok(link.outlet.ping().await?),
            _ => Ok(()),
        }
    }

    async fn handle(&mut self, inbound: Inbound) -> Result<(), Gone> {
        if self.silent && !matches!(inbound, Inbound::Ended(_)) {
            return Ok(());
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        match inbound {
            Inbound::Ping(payload) => Ok(link.outlet.pong(&payload).await?),
            Inbound::Pong(payload) => {
                if !payload.is_empty() && !link.outlet.take_pong(&payload) {
                    tracing::debug!("a pong that answers no ping");
                }
                Ok(())
            }
            Inbound::Text(text) => self.handle_text(&text).await,
            Inbound::Data { frame, at } => self.handle_data(&frame, at).await,
            Inbound::Close { code, reason } => {
                // The answer to a close is the same code (RFC 6455 section 5.5.1).
                link.outlet.close(code, "").await?;
                let code = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
                Err(Gone::Ended(format!("closed by the agent with {code} {reason}")))
            }
            Inbound::Ended(End::Violation(violation)) => {
                link.outlet.close(Some(violation.code), violation.what).await?;
                Err(Gone::Ended(format!("the agent sent {}", violation.what)))
            }
            Inbound::Ended(end) => Err(Gone::Ended(end.to_string())),
        }
    }

    async fn handle_text(&mut self, text: &[u8]) -> Result<(), Gone> {
        match read_control(text) {
            Ok(FromAgent::Ready) if self.phase == Phase::Warmup => {
                self.phase = Phase::Running;
                if self.job.options.unknown_control
                    && let Some(link) = &mut self.link
                {
                    link.outlet.text(r#"{"type":"evaluating","progress":[1,{"of":2}]}"#).await?;
                }
                if self.job.options.queued {
                    self.control(&Control::Queued { reason: "no_gpu_available" }).await?;
                }
                Ok(())
            }
            // Before the warm-up it is ignored, after it it says nothing new (A.4).
            Ok(FromAgent::Ready) => Ok(()),
            Ok(FromAgent::SessionClose { session, reason }) => {
                if self.session.as_ref().is_some_and(|open| open.id == session) {
                    self.end_case(false, format!("closed by the agent: {reason}"));
                }
                Ok(())
            }
            Ok(FromAgent::Ignored { kind }) => {
                tracing::debug!(kind, "a control frame without effect");
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "a text message that is no control frame");
                Ok(())
            }
        }
    }

    async fn handle_data(&mut self, frame: &[u8], at: Instant) -> Result<(), Gone> {
        let (id, action) = match read_data(frame) {
            Ok(parts) => parts,
            // A malformed data frame drops the connection (A.3).
            Err(error) => return Err(Gone::Ended(error.to_string())),
        };
        if id.is_empty() && !self.warmup_answered {
            self.warmup_answered = true;
            return Ok(());
        }
        let Some(session) = self.session.as_mut().filter(|session| session.id.as_bytes() == id) else {
            self.job.note(|report| report.dropped_frames += 1);
            return Ok(());
        };
        let Some(asked) = session.asked.take() else {
            self.job.note(|report| report.duplicate_answers += 1);
            return Ok(());
        };
        self.job.answered(asked.clean.then(|| at - asked.at));
        session.step += 1;
        session.due = Instant::now() + self.job.options.timers.step_delay;
        if session.step.is_multiple_of(TOLD_EVERY) {
            self.job.tell(GatewayEvent::Step { case: session.case, step: session.step });
        }
        match session.simulator.act(action) {
            Step::Running => Ok(()),
            Step::Solved => self.close_case(true, "solved".to_owned()).await,
            Step::Failed(how) | Step::Rejected(how) => self.close_case(false, how).await,
        }
    }

    async fn close_case(&mut self, solved: bool, how: String) -> Result<(), Gone> {
        if let Some(session) = &self.session {
            let id = session.id.clone();
            self.end_case(solved, how.clone());
            self.control(&Control::SessionClose { session_id: &id, reason: &how }).await?;
        }
        Ok(())
    }

    fn end_case(&mut self, solved: bool, how: String) {
        if let Some(session) = self.session.take() {
            self.job.case_ended(session.case, solved, session.step, how);
        }
    }

    /// A session's timer: its case takes too long, its observation is due, or the next case is.
    async fn session_due(&mut self) -> Result<(), Gone> {
        let now = Instant::now();
        let Some(session) = &mut self.session else { return self.next_case().await };
        if session.deadline.is_some_and(|deadline| deadline <= now) {
            return self.close_case(false, "took too long".to_owned()).await;
        }
        if session.asked.is_some() {
            self.job.note(|report| report.reasked += 1);
        }
        let step = session.step;
        session.asked = Some(Asked { at: now, clean: session.asked.is_none(), again: None });
        start_data(&session.id, &mut self.frame);
        session.simulator.observe(&mut self.frame);
        self.observe(step).await
    }

    async fn observe(&mut self, step: u32) -> Result<(), Gone> {
        for fault in self.job.take_step_faults(step) {
            let Some(link) = &mut self.link else { return Ok(()) };
            match fault {
                StepFault::Malformed(kind) => link.outlet.malformed(kind).await?,
                StepFault::Silent => {
                    self.silent = true;
                    return Ok(());
                }
                StepFault::Close(code) => {
                    link.outlet.close(Some(code), "on request").await?;
                    return Err(Gone::Ended(format!("closed with {code} on request")));
                }
                StepFault::Cut(CutHow::After) => {
                    link.outlet.data(&self.frame).await?;
                    return Err(Gone::Ended("cut after an observation on request".to_owned()));
                }
                StepFault::Cut(CutHow::Before) => return Err(Gone::Reset("cut on request".to_owned())),
                StepFault::Cut(CutHow::MidFrame) => {
                    link.outlet.half_data(&self.frame).await?;
                    // Half a frame that is reset too early was never there.
                    sleep(Duration::from_millis(20)).await;
                    return Err(Gone::Reset("cut in the middle of a frame on request".to_owned()));
                }
                StepFault::Drain => {
                    link.outlet.data(&self.frame).await?;
                    self.job.end(None);
                    return self.drain("on request").await;
                }
            }
        }
        if let Some(link) = &mut self.link {
            link.outlet.data(&self.frame).await?;
        }
        Ok(())
    }

    async fn next_case(&mut self) -> Result<(), Gone> {
        let Some((case, simulator)) = self.job.next_case() else {
            debug_assert!(self.job.is_dispatched());
            return self.drain("all cases are done").await;
        };
        let now = Instant::now();
        let id = session_id();
        self.job.tell(GatewayEvent::Case { case, session: id.clone() });
        let deadline = self.job.options.timers.case_timeout.map(|timeout| now + timeout);
        let control = Control::SessionOpen { session_id: &id };
        let opened = self.control(&control).await;
        self.session = Some(Session { id, case, simulator, step: 0, asked: None, due: now, deadline });
        opened
    }

    async fn drain(&mut self, reason: &str) -> Result<(), Gone> {
        self.phase = Phase::Draining;
        self.drain_ends = Some(Instant::now() + self.job.options.timers.drain);
        self.job.tell(GatewayEvent::Drained { agent: self.agent.clone() });
        self.control(&Control::Drain { reason }).await
    }

    /// Lets the connection go; `true` when the tunnel is over with it.
    fn disconnected(&mut self, gone: Gone) -> bool {
        let Some(link) = self.link.take() else { return false };
        let why = match gone {
            Gone::Ended(why) => {
                link.retire();
                why
            }
            Gone::Reset(why) => {
                link.reset();
                why
            }
        };
        self.job.disconnected(&self.agent);
        self.job.tell(GatewayEvent::Disconnected { agent: self.agent.clone(), why: why.clone() });
        if self.phase == Phase::Draining {
            self.end_case(false, "drained".to_owned());
            self.job.agent_over(&self.agent);
            return true;
        }
        if let Some(session) = &mut self.session
            && let Some(asked) = &mut session.asked
        {
            asked.clean = false;
            let event = GatewayEvent::ExchangeLost { case: session.case, step: session.step, why };
            self.job.note(|report| report.lost_exchanges += 1);
            self.job.tell(event);
        }
        self.window_ends = Some(Instant::now() + self.job.options.timers.window);
        false
    }

    fn window_passed(mut self) {
        self.job.tell(GatewayEvent::WindowExpired { agent: self.agent.clone() });
        self.end_case(false, "the reconnect window expired".to_owned());
        self.job.end(Some("reconnect window expired".to_owned()));
        self.job.agent_over(&self.agent);
    }
}

async fn inbound(link: &mut Option<Link>) -> Option<Inbound> {
    match link {
        Some(link) => link.inbound.recv().await,
        None => core::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => core::future::pending().await,
    }
}
