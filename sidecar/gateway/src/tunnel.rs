//! One agent's tunnel: the server's side of the state machine (tunnel contract A.4, A.5). It outlives its
//! connections by the reconnect window. What is played over it is in [`session`].

mod session;

use core::time::Duration;
use std::io;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::job::Job;
use crate::link::{End, Inbound, Link};
use crate::message::{Control, FromAgent, read_control, start_data};
use crate::report::GatewayEvent;
use session::Session;

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
    /// The agent has waited long enough for its warm-up.
    WarmUp,
    /// The job is over before this agent was ready.
    JobOver,
    WindowPassed,
    DrainTimedOut,
}

struct Tunnel {
    job: Arc<Job>,
    agent: String,
    phase: Phase,
    /// When the warm-up begins, while the agent is kept in `Queued`.
    warmup_due: Option<Instant>,
    /// `ready` came after `warmup`.
    ready: bool,
    /// The empty warm-up frame was answered.
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
        // A first connection that never arrives is given up like a lost one.
        let window_ends = Some(Instant::now() + job.options.timers.window);
        Self {
            job,
            agent,
            phase: Phase::Queued,
            warmup_due: None,
            ready: false,
            warmup_answered: false,
            session: None,
            link: None,
            silent: false,
            window_ends,
            drain_ends: None,
            connections: 0,
            frame: Vec::new(),
        }
    }

    async fn run(mut self, mut links: mpsc::UnboundedReceiver<Link>) {
        let mut pings = self.pings();
        let job_over = self.job.over();
        tokio::pin!(job_over);
        loop {
            let unready = matches!(self.phase, Phase::Queued | Phase::Warmup);
            let next = tokio::select! {
                biased;
                () = &mut job_over, if unready => Next::JobOver,
                next = self.next(&mut links, &mut pings) => next,
            };
            let result = match next {
                Next::Link(link) => {
                    pings = self.pings();
                    self.connected(link).await
                }
                Next::Inbound(None) => Err(Gone::Ended("the reader ended".to_owned())),
                Next::Inbound(Some(inbound)) => self.handle(inbound).await,
                Next::Ping => self.ping().await,
                Next::Session => self.session_due().await,
                Next::WarmUp => self.warm_up().await,
                Next::JobOver if self.link.is_some() => self.drain("the job is over").await,
                Next::JobOver => return self.job.agent_over(&self.agent),
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
        let warmup_due = self.warmup_due.filter(|_| self.link.is_some());
        let window_ends = self.window_ends;
        let drain_ends = self.drain_ends;
        let connected = self.link.is_some();
        tokio::select! {
            biased;
            Some(link) = links.recv() => Next::Link(link),
            inbound = inbound(&mut self.link) => Next::Inbound(inbound),
            _ = pings.tick(), if connected => Next::Ping,
            () = until(session_due) => Next::Session,
            () = until(warmup_due) => Next::WarmUp,
            () = until(window_ends) => Next::WindowPassed,
            () = until(drain_ends) => Next::DrainTimedOut,
        }
    }

    async fn connected(&mut self, link: Link) -> Result<(), Gone> {
        let resumed = self.connections > 0;
        self.connections += 1;
        self.link = Some(link);
        self.silent = false;
        self.window_ends = None;
        self.job.tell(GatewayEvent::Connected { agent: self.agent.clone(), resumed });
        self.plan_reask();
        match self.phase {
            Phase::Queued => {
                self.warmup_due = Some(Instant::now() + self.job.options.timers.warmup_after);
                Ok(())
            }
            // The first `warmup` or its `ready` may have been lost.
            Phase::Warmup => self.warm_up().await,
            Phase::Draining => self.drain("the job is over").await,
            Phase::Running => Ok(()),
        }
    }

    async fn warm_up(&mut self) -> Result<(), Gone> {
        self.phase = Phase::Warmup;
        self.warmup_due = None;
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
            _ => {
                self.job.note(|report| report.dropped_frames += 1);
                Ok(())
            }
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
                let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
                Err(Gone::Ended(format!("closed by the agent with {code}{reason}")))
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
                self.ready = true;
                self.run_if_warm().await
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

    /// Takes the agent into `Running` once it is ready and the empty frame, if one was sent, is answered.
    async fn run_if_warm(&mut self) -> Result<(), Gone> {
        if self.phase != Phase::Warmup || !self.ready {
            return Ok(());
        }
        if self.job.options.warmup_frame && !self.warmup_answered {
            tracing::info!(agent = self.agent, "ready, but the empty warm-up frame is not answered yet");
            return Ok(());
        }
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
        let window = self.job.options.timers.window;
        tracing::info!(
            "the connection is gone ({why}); waiting {window:?} for the agent to come back, however it left; Ctrl-C ends"
        );
        self.interrupt(why);
        self.window_ends = Some(Instant::now() + window);
        false
    }

    fn window_passed(mut self) {
        if self.connections == 0 {
            return self.job.forget(&self.agent);
        }
        let linger = self.job.options.timers.linger;
        tracing::info!("the agent did not come back: the job is over; dials get 401 for {linger:?} more");
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
        // A timer's tick is a millisecond, and what is due already would wait for the next one.
        Some(time) if time <= Instant::now() => {}
        Some(time) => sleep_until(time).await,
        None => core::future::pending().await,
    }
}
