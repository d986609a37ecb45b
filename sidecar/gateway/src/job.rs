//! A job: which agents there are, which case is next, and what came of it. Shared by all connections.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use crate::faults::{Faults, StepFault};
use crate::link::Link;
use crate::options::Options;
use crate::report::{GatewayEvent, Latency, Report};
use crate::simulator::{Factory, Simulator};

/// What a dial gets.
#[derive(Debug)]
pub(crate) enum Admission {
    /// An upgrade; the connection goes to this tunnel.
    Welcome(Ticket),
    /// An upgrade that is closed in the same segment (tunnel contract A.1: capacity and double dials still get 101).
    CloseAtOnce(&'static str),
    /// An HTTP status.
    Refuse(u16, &'static str),
}

/// A place among the connections of a job; given back when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) agent: String,
    pub(crate) tunnel: mpsc::UnboundedSender<Link>,
}

#[derive(Debug)]
struct Agent {
    connected: bool,
    /// The window has passed, or the job is over: dials of this pair get 401.
    over: bool,
    tunnel: mpsc::UnboundedSender<Link>,
}

/// See the module.
pub(crate) struct Job {
    pub(crate) options: Options,
    simulators: Factory,
    events: mpsc::UnboundedSender<GatewayEvent>,
    /// True once no more steps are played.
    over: watch::Sender<bool>,
    state: Mutex<State>,
}

struct State {
    job: Option<String>,
    faults: Faults,
    agents: HashMap<String, Agent>,
    next_case: u32,
    ended_cases: u32,
    over: bool,
    times: Vec<Duration>,
    report: Report,
}

impl Job {
    pub(crate) fn new(
        options: Options,
        simulators: Factory,
        events: mpsc::UnboundedSender<GatewayEvent>,
    ) -> Self {
        let state = State {
            job: options.job.clone(),
            faults: options.faults.clone(),
            agents: HashMap::new(),
            next_case: 0,
            ended_cases: 0,
            over: false,
            times: Vec::new(),
            report: Report { cases: options.cases, ..Report::default() },
        };
        Self { options, simulators, events, over: watch::Sender::new(false), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, event: GatewayEvent) {
        // Nobody may be listening any more; the report says it all at the end.
        let _ = self.events.send(event);
    }

    /// Decides about a dial. `new_tunnel` starts the tunnel of an agent that was never seen.
    pub(crate) fn admit(
        &self,
        job: &str,
        agent: &str,
        bearer: Option<&str>,
        new_tunnel: impl FnOnce() -> mpsc::UnboundedSender<Link>,
    ) -> Admission {
        let mut state = self.state();
        if let Some(status) = state.faults.take_refusal() {
            return Admission::Refuse(status, "on request");
        }
        if bearer != Some(self.options.token.as_str()) {
            return Admission::Refuse(401, "the bearer token is not the job's");
        }
        if agent.is_empty() || agent.len() > 64 {
            return Admission::Refuse(401, "the agent id is empty or longer than 64 bytes");
        }
        if job.is_empty() || *state.job.get_or_insert_with(|| job.to_owned()) != job {
            return Admission::Refuse(401, "there is no such job");
        }
        if state.over || state.agents.get(agent).is_some_and(|agent| agent.over) {
            return Admission::Refuse(401, "the job is over for this agent");
        }
        if state.faults.take_instant_close() {
            return Admission::CloseAtOnce("on request");
        }
        if state.agents.get(agent).is_some_and(|agent| agent.connected) {
            return Admission::CloseAtOnce("the agent is connected already");
        }
        let connected = state.agents.values().filter(|agent| agent.connected).count();
        if connected >= self.options.parallel_cap {
            return Admission::CloseAtOnce("the parallelism cap is reached");
        }
        state.report.connections += 1;
        let entry = state.agents.entry(agent.to_owned()).or_insert_with(|| Agent {
            connected: false,
            over: false,
            tunnel: new_tunnel(),
        });
        entry.connected = true;
        Admission::Welcome(Ticket { agent: agent.to_owned(), tunnel: entry.tunnel.clone() })
    }

    /// The connection of `agent` is gone.
    pub(crate) fn disconnected(&self, agent: &str) {
        if let Some(agent) = self.state().agents.get_mut(agent) {
            agent.connected = false;
        }
    }

    /// The agent's tunnel is over; further dials get 401.
    pub(crate) fn agent_over(&self, agent: &str) {
        if let Some(agent) = self.state().agents.get_mut(agent) {
            agent.over = true;
        }
    }

    /// The agent's first connection never arrived.
    pub(crate) fn forget(&self, agent: &str) {
        self.state().agents.remove(agent);
    }

    /// Waits until the job is over: all cases ended, or it was ended.
    pub(crate) fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.subscribe();
        // The sender lives as long as the job, which whoever waits holds.
        async move { drop(over.wait_for(|over| *over).await) }
    }

    /// The next case, if one is left.
    pub(crate) fn next_case(&self) -> Option<(u32, Box<dyn Simulator>)> {
        let mut state = self.state();
        if state.over || state.next_case >= self.options.cases {
            return None;
        }
        let case = state.next_case;
        state.next_case += 1;
        drop(state);
        Some((case, (self.simulators)(case)))
    }

    pub(crate) fn take_step_faults(&self, step: u32) -> Vec<StepFault> {
        self.state().faults.take_step(step)
    }

    pub(crate) fn case_ended(&self, case: u32, solved: bool, steps: u32, how: String) {
        let mut state = self.state();
        state.ended_cases += 1;
        state.report.solved += u32::from(solved);
        let last = state.ended_cases >= self.options.cases;
        drop(state);
        if last {
            self.over.send_replace(true);
        }
        self.tell(GatewayEvent::CaseEnded { case, solved, steps, how });
    }

    pub(crate) fn answered(&self, took: Option<Duration>) {
        let mut state = self.state();
        state.report.steps += 1;
        state.times.extend(took);
    }

    pub(crate) fn note(&self, note: impl FnOnce(&mut Report)) {
        note(&mut self.state().report);
    }

    /// No more cases are given out: a drain on request, or a loss that cannot be mended.
    pub(crate) fn end(&self, failure: Option<String>) {
        let mut state = self.state();
        state.over = true;
        state.report.failure = state.report.failure.take().or(failure);
        drop(state);
        self.over.send_replace(true);
    }

    /// Whether nothing more can come: all cases ended, or the job was ended, and every tunnel is over.
    pub(crate) fn is_finished(&self) -> bool {
        let state = self.state();
        let over = state.over || state.ended_cases >= self.options.cases;
        over && state.agents.values().all(|agent| agent.over)
    }

    pub(crate) fn report(&self) -> Report {
        let state = self.state();
        let mut times = state.times.clone();
        let mut report = state.report.clone();
        report.latency_ns = Latency::of(&mut times);
        report.faults_left = state.faults.left();
        report
    }
}
