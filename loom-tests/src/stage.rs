//! A whole sidecar in a model: its frame loop with bridge, agent and region as they are, over a driver, a gateway and a
//! control thread of the model's. Time stands still, and nothing that sleeps wakes by itself.
//!
//! Until the first observation is delivered everything happens in one thread. Then the model's crew starts, in threads
//! of loom's: a worker, and whoever else does something at the same time.

use core::cell::RefCell;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use loom::thread::JoinHandle;
use sidecar::bridge::{Bridge, Rules};
use sidecar::channel::{self, ToFrameLoop};
use sidecar::config::{Token, TokenSources};
use sidecar::driver::{
    Calls, Close, Completion, Completions, Driver, Expect, SocketOptions, Taken, Tell, Wait,
};
use sidecar::frame_loop::{Command, FrameLoop, Request, Waiting};
use sidecar_core::agent::{Agent, Config, Endpoint, Limits, Outcome, Timers};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, JobId};
use sidecar_shm::attach::Candidate;
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{DoorbellHandle, SeatGrant, SeatRefused, Sleep};
use sidecar_shm::region::{self, Identity, Opened};
use sidecar_shm::simulation::{self, Attach};
use sidecar_shm::spin::{Mode, Spin};
use sidecar_shm::sync::monitor::Monitor;
use sidecar_shm::worker::{AttachOptions, Event, Worker};
use tokio::sync::{mpsc, oneshot};

use crate::gateway::{Gateway, Record, Until};

const GEOMETRY: Geometry =
    Geometry { observation_slots: 2, observation_bytes: 4096, action_slots: 2, action_bytes: 64 };
/// Pids of the workers; the first is there from the start.
pub(crate) const PIDS: [u32; 2] = [11, 12];

type Answer = oneshot::Receiver<Result<SeatGrant, SeatRefused>>;

/// What the crew has to work with.
pub(crate) struct Cast {
    pub(crate) worker: Worker,
    /// The worker's seat and its generation.
    pub(crate) seat: (u8, u32),
    pub(crate) commands: ToFrameLoop,
    /// The same way without the bell.
    pub(crate) queue: channel::Sender<Command>,
    pub(crate) outside: Arc<Outside>,
}

type Crew = Box<dyn FnOnce(Cast) -> Vec<JoinHandle<()>>>;

/// What passes between the frame loop's driver and other threads of the model: the network's news, and what the frame
/// loop asks of the control thread.
pub(crate) struct Outside {
    /// Loom knows of each access by the doorbell's lock: a driver polls both at once.
    news: Mutex<News>,
    doorbell: DoorbellHandle,
    asked: Monitor<Asked>,
    /// Seats that were asked for. Not loom's lock: the command that asks comes after it.
    joins: Mutex<Vec<Answer>>,
    /// The sidecar's ends of workers' connections: they stay open as long as the model.
    connections: Mutex<Vec<UnixStream>>,
    /// Workers that have done their part.
    idle: Mutex<Vec<Worker>>,
}

/// What came over the network and was not received yet.
#[derive(Default)]
struct News {
    bytes: VecDeque<u8>,
    /// They open another session.
    replaces: bool,
    /// The connection ends behind them.
    cut: bool,
}

/// What the control thread is to do.
#[derive(Default)]
struct Asked {
    dials: VecDeque<u64>,
    grants: VecDeque<SeatGrant>,
    over: bool,
}

impl Outside {
    /// The gateway ends the connection; all that was sent before has reached it.
    pub(crate) fn cut(&self) {
        self.doorbell.change(|| self.news().cut = true);
    }

    /// The gateway says something.
    pub(crate) fn say(&self, bytes: &[u8]) {
        self.doorbell.change(|| self.news().bytes.extend(bytes));
    }

    /// The gateway opens another session.
    pub(crate) fn replace(&self, bytes: &[u8]) {
        self.doorbell.change(|| {
            let mut news = self.news();
            news.replaces = true;
            news.bytes.extend(bytes);
        });
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().expect("nobody panics with it")
    }

    /// A worker takes the seat of a grant.
    pub(crate) fn attach(&self, grant: SeatGrant) -> Worker {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        self.connections.lock().expect("nobody panics with it").push(ours);
        assert!(simulation::set_attach(Some(Attach::Granted(grant, theirs.into()))).is_none());
        let options = AttachOptions { timeout: Duration::ZERO, ..AttachOptions::default() };
        Worker::attach(&region_path(), &options).expect("the seat was granted")
    }

    /// A worker has done its part. It stays attached as long as the model: that it leaves is another race.
    pub(crate) fn keep(&self, worker: Worker) {
        self.idle.lock().expect("nobody panics with it").push(worker);
    }

    /// The worker that was kept.
    pub(crate) fn kept(&self) -> Worker {
        self.idle.lock().expect("nobody panics with it").pop().expect("it has done its part")
    }

    /// Somebody rings.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    /// A worker will ask for a seat, and this is where the answer comes.
    pub(crate) fn asks(&self, answer: Answer) {
        self.joins.lock().expect("nobody panics with it").push(answer);
    }

    /// The next dial that the frame loop asks for; `None`: it has ended.
    pub(crate) fn await_dial(&self) -> Option<u64> {
        self.asked.wait(|asked| asked.dials.pop_front().map(Some).or(asked.over.then_some(None)))
    }

    /// The seat that was asked for.
    pub(crate) fn await_grant(&self) -> SeatGrant {
        self.asked.wait(|asked| asked.grants.pop_front())
    }
}

/// The answer to a dial.
pub(crate) fn dialled(dial: u64) -> Command {
    static TOKEN: OnceLock<Token> = OnceLock::new();
    let token = TOKEN.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        std::fs::write(&file, "sesame").expect("a file");
        TokenSources { file: Some(file), env_file: None }.read().expect("a token")
    });
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    Command::Dial { dial, answer: Ok((vec![address], token.clone())) }
}

/// Answers each observation with its own bytes and one more, until it has answered the one that starts with `last`.
pub(crate) fn answers(mut worker: Worker, last: u8) -> Worker {
    loop {
        let event = worker.next(None).expect("the sidecar says nothing wrong");
        match event {
            Event::Warmup => worker.ready().expect("there is room"),
            Event::Observation(observation) => {
                let action = [observation.payload(), b"!"].concat();
                worker.answer(observation, &action).expect("there is room");
                if action[0] == last {
                    return worker;
                }
            }
            _ => {}
        }
    }
}

/// A thread of the model that has the stack of a real one; those that loom gives by itself are small.
pub(crate) fn thread(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    /// In words of the machine.
    const STACK: usize = 1 << 17;
    loom::thread::Builder::new().stack_size(STACK).spawn(body).expect("a thread of a model")
}

/// See the module's text.
pub(crate) struct Stage {
    frame_loop: FrameLoop,
    record: Rc<RefCell<Record>>,
    crew: Rc<RefCell<Vec<JoinHandle<()>>>>,
    pub(crate) outside: Arc<Outside>,
}

/// A worker that asks for a seat.
pub(crate) fn candidate(number: usize) -> Candidate {
    Candidate { pid: PIDS[number], start_time: 1, seat: None }
}

/// The region's path, in a directory that lasts as long as the test.
pub(crate) fn region_path() -> PathBuf {
    thread_local! {
        static DIRECTORY: tempfile::TempDir = {
            let place = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
            tempfile::Builder::new().prefix("sidecar-loom-").tempdir_in(place).expect("a directory")
        };
    }
    DIRECTORY.with(|directory| directory.path().join("obs"))
}

/// Opens the region, as a sidecar does when it starts.
pub(crate) fn open_region() -> Opened {
    let agent = AgentId::new("agent").expect("it is short");
    region::create(&region_path(), &GEOMETRY, &Identity { job_endpoint_hash: [7; 32], agent }, now())
        .expect("there is room for a small region")
}

fn now() -> Instant {
    Instant::from_nanos(1_000_000_000_000)
}

impl Stage {
    /// A sidecar that has done nothing yet; `crew` starts once the first observation is delivered.
    pub(crate) fn new(
        until: Until,
        on_redial: Vec<u8>,
        crew: impl FnOnce(Cast) -> Vec<JoinHandle<()>> + 'static,
    ) -> Self {
        simulation::set_time(Some(now()));
        simulation::set_processes(&PIDS.map(|pid| (pid, 1)));
        // What a run left that failed.
        drop(simulation::set_attach(None));
        let _ = std::fs::remove_file(region_path());
        let Opened { owner, agent, .. } = open_region();
        let text = "the model's own texts are short";
        let config = Config {
            endpoint: Endpoint { host: "gateway".parse().expect(text), path: "/tunnel".parse().expect(text) },
            job: JobId::new("job").expect(text),
            agent,
            timers: Timers::default(),
            limits: Limits { slot_bytes: GEOMETRY.observation_bytes, ..Limits::default() },
            unfreeze: None,
            wedge_after: None,
            fresh_agent_on_wedge: false,
            wait_for_slot: false,
        };
        let bridge = Bridge::new(Agent::new(config, [7; 32], now()), owner, Rules::default(), &[]);
        let doorbell = bridge.owner().doorbell_handle();
        let (commands, queue) = channel::unbounded();
        let to_frame_loop = ToFrameLoop::new(commands.clone(), doorbell.clone());
        let (requests, asked) = mpsc::unbounded_channel();
        let gateway = Gateway::new(until, on_redial);
        let record = Rc::clone(&gateway.record);
        let started = Rc::default();
        let (reply, answer) = oneshot::channel();
        let outside = Arc::new(Outside {
            news: Mutex::default(),
            doorbell,
            asked: Monitor::default(),
            joins: vec![answer].into(),
            connections: Mutex::default(),
            idle: Mutex::default(),
        });
        to_frame_loop.send(Command::Join { candidate: candidate(0), reply });
        let driver = ModelDriver {
            seen: 0,
            asked,
            gateway,
            commands: to_frame_loop,
            queue: commands,
            outside: Arc::clone(&outside),
            worker: None,
            crew: Some(Box::new(crew)),
            started: Rc::clone(&started),
            receive: None,
            inbox: VecDeque::new(),
            done: Vec::new(),
            quiet: false,
            is_open: false,
        };
        let waiting = Waiting { spin: Spin::measure(Mode::Off, 1), busy: false };
        let options = SocketOptions { user_timeout: Duration::from_secs(1), busy_poll: None };
        let frame_loop = FrameLoop::new(bridge, Box::new(driver), queue, requests, options, waiting);
        Self { frame_loop, record, crew: started, outside }
    }

    /// Runs the frame loop to its end, then waits for the crew.
    pub(crate) fn play(self) -> (Outcome, Bridge, Record) {
        let (outcome, bridge) = self.frame_loop.run().expect("the frame loop goes on");
        self.outside.asked.change(|asked| asked.over = true);
        for thread in self.crew.take() {
            thread.join().expect("it ends in order");
        }
        (outcome, bridge, self.record.take())
    }
}

/// A socket to the model's gateway, and the doorbell.
struct ModelDriver {
    seen: u32,
    asked: mpsc::UnboundedReceiver<Request>,
    gateway: Gateway,
    commands: ToFrameLoop,
    queue: channel::Sender<Command>,
    outside: Arc<Outside>,
    /// Before the crew starts; with its seat.
    worker: Option<(Worker, (u8, u32))>,
    crew: Option<Crew>,
    started: Rc<RefCell<Vec<JoinHandle<()>>>>,
    receive: Option<(*mut u8, usize)>,
    inbox: VecDeque<u8>,
    /// Completions of what was done at once.
    done: Completions,
    /// A send was taken whose end is told with the end of the turn.
    quiet: bool,
    is_open: bool,
}

impl ModelDriver {
    /// What the control thread gets to do, and what it does by itself before the crew is there.
    fn attend(&mut self) {
        let alone = self.crew.is_some();
        while let Ok(request) = self.asked.try_recv() {
            match request {
                Request::Dial { dial, .. } if alone => self.commands.send(dialled(dial)),
                Request::Dial { dial, .. } => self.outside.asked.change(|asked| asked.dials.push_back(dial)),
                Request::WorkerReady => {}
                Request::DropWorker { why, .. } | Request::RestartWorker { why, .. } => {
                    panic!("a worker is dropped: {why}")
                }
            }
        }
        let mut granted = None;
        self.outside.joins.lock().expect("nobody panics with it").retain_mut(|join| match join.try_recv() {
            Ok(grant) => {
                granted = Some(grant.expect("there is a seat"));
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => true,
            Err(oneshot::error::TryRecvError::Closed) => panic!("nobody answers"),
        });
        match granted {
            Some(grant) if alone => {
                let seat = (grant.seat, grant.generation);
                self.worker = Some((self.outside.attach(grant), seat));
            }
            Some(grant) => self.outside.asked.change(|asked| asked.grants.push_back(grant)),
            None => {}
        }
        while alone
            && let Some((worker, _)) = &mut self.worker
            && let Event::Warmup = worker.next(Some(Duration::ZERO)).expect("a sidecar is there")
        {
            worker.ready().expect("there is room");
        }
    }

    fn poll(&mut self, sleep: Sleep, completions: &mut Completions) {
        let (doorbell, mut seen) = (self.outside.doorbell.clone(), self.seen);
        if doorbell.poll(&mut seen, sleep, || self.collect(completions)) {
            completions.push(Completion::Doorbell);
        }
        self.seen = seen;
    }

    /// Takes what has come on the connection into the memory that waits for it. `false`: nothing has, or nothing waits.
    fn collect(&mut self, completions: &mut Completions) -> bool {
        let Some((into, length)) = self.receive else { return false };
        let mut news = self.outside.news();
        self.inbox.append(&mut news.bytes);
        if self.inbox.is_empty() && !news.cut && !self.gateway.has_closed {
            return false;
        }
        let count = length.min(self.inbox.len());
        for (at, byte) in self.inbox.drain(..count).enumerate() {
            // SAFETY: the caller of `receive` keeps `length` bytes there for us until this completion.
            unsafe { into.add(at).write(byte) };
        }
        // First what was said before.
        news.cut &= count > 0;
        self.receive = None;
        completions.push(Completion::Received(Ok(count)));
        self.gateway.record.borrow_mut().replaced |= news.replaces && self.inbox.is_empty();
        true
    }

    /// Once the observation has been delivered, and there is nothing left to do.
    fn start_crew(&mut self) {
        if self.gateway.has_asked
            && let Some(crew) = self.crew.take()
        {
            let (worker, seat) = self.worker.take().expect("a worker was ready");
            let (commands, queue) = (self.commands.clone(), self.queue.clone());
            let cast = Cast { worker, seat, commands, queue, outside: Arc::clone(&self.outside) };
            self.started.replace(crew(cast));
        }
    }
}

impl Driver for ModelDriver {
    fn name(&self) -> &'static str {
        "model"
    }

    fn connect(&mut self, _: SocketAddr, _: SocketOptions) -> io::Result<()> {
        self.close(Close::Abort);
        self.gateway.connected();
        self.is_open = true;
        self.done.push(Completion::Connected(Ok(())));
        Ok(())
    }

    unsafe fn receive(&mut self, into: *mut u8, length: usize, _: Expect) {
        assert!(self.is_open && self.receive.is_none(), "one receive at a time");
        self.receive = Some((into, length));
    }

    unsafe fn send(&mut self, from: *const u8, length: usize, tell: Tell) {
        assert!(self.is_open, "a connection is there");
        // SAFETY: the caller keeps these bytes valid and unchanged until the completion.
        let bytes = unsafe { core::slice::from_raw_parts(from, length) };
        let answer = self.gateway.hears(bytes);
        self.inbox.extend(answer);
        match tell {
            Tell::AtOnce => self.done.push(Completion::Sent(Ok(Taken::Now))),
            Tell::AtTurnEnd => self.quiet = true,
        }
    }

    fn is_receiving(&self) -> bool {
        self.receive.is_some()
    }

    fn is_sending(&self) -> bool {
        self.quiet || self.done.iter().any(|done| matches!(done, Completion::Sent(_)))
    }

    fn take_calls(&mut self) -> Calls {
        Calls::default()
    }

    fn turn(&mut self, wait: Wait, completions: &mut Completions) -> io::Result<()> {
        self.attend();
        completions.append(&mut self.done);
        if self.crew.is_some() {
            self.poll(Sleep::Never, completions);
            if completions.is_empty() {
                self.start_crew();
            }
        }
        let sleeps = completions.is_empty() && matches!(wait, Wait::Block(_));
        self.poll(if sleeps { Sleep::UntilSomething } else { Sleep::Never }, completions);
        if core::mem::take(&mut self.quiet) {
            completions.push(Completion::Sent(Ok(Taken::Submitted)));
        }
        Ok(())
    }

    fn close(&mut self, _: Close) {
        self.is_open = false;
        self.receive = None;
        self.inbox.clear();
        self.done.clear();
        self.quiet = false;
    }
}
