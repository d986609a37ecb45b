//! The cases of a tunnel: one after the other, each in a session of its own, in lockstep.
//!
//! The simulator does not know whether its tunnel has a connection. An observation that is due while there is none is
//! dropped, not queued (tunnel contract A.5), and the exchange is lost; `--on-lost` says what follows.

use core::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Gone, Phase, Tunnel};
use crate::faults::{CutHow, StepFault};
use crate::message::{Control, read_data, start_data};
use crate::options::OnLost;
use crate::random::session_id;
use crate::report::GatewayEvent;
use crate::simulator::{Simulator, Step};

/// Steps between two progress events.
const TOLD_EVERY: u32 = 25;

pub(super) struct Session {
    pub(super) id: String,
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
    /// All of it was written: an answer may have been kept over a connection loss.
    delivered: bool,
    /// When the step is asked again.
    again: Option<Instant>,
}

impl Tunnel {
    /// The next time at which the session has something to do by itself.
    pub(super) fn session_timer(&self) -> Option<Instant> {
        let served = self.phase == Phase::Running && !self.silent;
        let Some(session) = &self.session else {
            // Between two cases the next one is due at once.
            return (served && self.link.is_some()).then(Instant::now);
        };
        let send = match &session.asked {
            None => Some(session.due),
            Some(asked) if self.link.is_some() => asked.again,
            Some(_) => None,
        };
        [send.filter(|_| served), session.deadline].into_iter().flatten().min()
    }

    /// A connection is there again: when an exchange that was lost with the one before is asked again.
    pub(super) fn plan_reask(&mut self) {
        if self.job.options.on_lost == OnLost::Stall {
            return;
        }
        if let Some(asked) = self.session.as_mut().and_then(|session| session.asked.as_mut()) {
            // Only what was delivered can have an answer that was kept and is worth waiting for.
            let grace = if asked.delivered { self.job.options.timers.reask_after } else { Duration::ZERO };
            asked.again = Some(Instant::now() + grace);
        }
    }

    /// The connection is gone; an exchange that is outstanding counts as lost.
    pub(super) fn interrupt(&mut self, why: String) {
        if let Some(session) = &mut self.session
            && let Some(asked) = &mut session.asked
        {
            asked.clean = false;
            asked.again = None;
            let event = GatewayEvent::ExchangeLost { case: session.case, step: session.step, why };
            self.job.note(|report| report.lost_exchanges += 1);
            self.job.tell(event);
        }
    }

    pub(super) async fn handle_data(&mut self, frame: &[u8], at: Instant) -> Result<(), Gone> {
        let (id, action) = match read_data(frame) {
            Ok(parts) => parts,
            // A malformed data frame drops the connection (A.3).
            Err(error) => return Err(Gone::Ended(error.to_string())),
        };
        if id.is_empty() && self.job.options.warmup_frame && !self.warmup_answered {
            self.warmup_answered = true;
            return self.run_if_warm().await;
        }
        let Some(session) = self.session.as_mut().filter(|session| session.id.as_bytes() == id) else {
            self.job.note(|report| report.unknown_session += 1);
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

    pub(super) fn end_case(&mut self, solved: bool, how: String) {
        if let Some(session) = self.session.take() {
            self.job.case_ended(session.case, solved, session.step, how);
        }
    }

    /// A session's timer: its case takes too long, its observation is due, or the next case is.
    pub(super) async fn session_due(&mut self) -> Result<(), Gone> {
        let now = Instant::now();
        let connected = self.link.is_some();
        let Some(session) = &mut self.session else { return self.next_case().await };
        if session.deadline.is_some_and(|deadline| deadline <= now) {
            return self.close_case(false, "took too long".to_owned()).await;
        }
        if session.asked.is_some() {
            self.job.note(|report| report.reasked += 1);
        }
        let step = session.step;
        let clean = session.asked.is_none();
        session.asked = Some(Asked { at: now, clean, delivered: false, again: None });
        if !connected {
            self.job.note(|report| report.dropped_frames += 1);
            self.interrupt("the observation was due while the tunnel was down".to_owned());
            return Ok(());
        }
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
                    self.deliver().await?;
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
                    self.deliver().await?;
                    self.job.end(None);
                    return self.drain("on request").await;
                }
            }
        }
        self.deliver().await
    }

    /// Writes the observation that lies in `frame`.
    async fn deliver(&mut self) -> Result<(), Gone> {
        if let Some(link) = &mut self.link {
            link.outlet.data(&self.frame).await?;
        }
        if let Some(asked) = self.session.as_mut().and_then(|session| session.asked.as_mut()) {
            asked.delivered = true;
        }
        Ok(())
    }

    async fn next_case(&mut self) -> Result<(), Gone> {
        let Some((case, simulator)) = self.job.next_case() else {
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
}
