//! `--gpu` and `sidecar gpus` in processes, against the simulated driver: what is found and said, who may have a GPU, and
//! what its worker is shown.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use sidecar_cuda::worker::PinnedWorker;
use sidecar_shm::worker::{AttachOptions, Event};
use support::{Gateway, JOB, Region, Running, TOKEN, sidecar, wait_for, with_worker};

/// Beside the test's own program, where cargo puts the libraries of its dependencies.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libsimulated_cuda_driver.so")
}

/// A machine whose GPUs have UUIDs that no other test's have: locks are the user's, not the test's.
struct Machine {
    config: String,
    seed: u8,
    root: tempfile::TempDir,
}

impl Machine {
    fn new(seed: u8, config: &str) -> Self {
        // Another run of the tests may be at it.
        let seed = seed.wrapping_add((std::process::id() % 12) as u8 * 20);
        let root = tempfile::tempdir().unwrap();
        Self { config: format!("seed={seed};{config}"), seed, root }
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn uuid(&self, index: u8) -> String {
        format!("GPU-51{:02x}0000-0000-0000-0000-0000000000{index:02x}", self.seed)
    }

    fn report(&self) -> PathBuf {
        self.root.path().join("report")
    }

    /// The command on this machine.
    fn on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("SIDECAR_SIMULATED_CUDA_DRIVER", library())
            .env("SIDECAR_SIMULATED_ROOT", self.root.path())
            .env("SIMULATED_CUDA", &self.config)
            .env("SIMULATED_CUDA_REPORT", self.report())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("XLA_PYTHON_CLIENT_MEM_FRACTION")
            .env_remove("SIDECAR_GPU_MEMORY_FRACTION")
    }

    fn main_job(&self, gpu: &str, region: &Region, endpoint: &str) -> Command {
        let mut command = sidecar();
        command.args(["--gpu", gpu, "--job", JOB, "--endpoint", endpoint, "--shm"]).arg(region.path());
        command.env("JOB_TOKEN", TOKEN);
        self.on(&mut command);
        command
    }

    /// No process of this machine did with the driver what it must not; and one has ended.
    fn check_rules(&self) -> String {
        let report = fs::read_to_string(self.report()).unwrap();
        assert!(report.contains("calls: cuInit"), "{report}");
        let wrongs: Vec<_> = report.lines().filter(|line| line.contains(" violation: ")).collect();
        assert!(wrongs.is_empty(), "{wrongs:?}");
        report
    }

    /// The same, and none has left anything to the end of its process.
    fn check_leaks(&self) -> String {
        let report = self.check_rules();
        assert!(!report.contains(" leak: "), "{report}");
        report
    }

    /// The same, and no process has made a context.
    fn check(&self) {
        let report = self.check_leaks();
        assert!(!report.contains("cuDevicePrimaryCtxRetain"), "the sidecar makes no context:\n{report}");
    }

    /// How often a call was made, by all processes.
    fn calls(&self, name: &str) -> u64 {
        let report = fs::read_to_string(self.report()).unwrap();
        let count = |line: &str| line.split_once(&format!(" calls: {name} "))?.1.parse::<u64>().ok();
        report.lines().filter_map(count).sum()
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(command: &mut Command, says: &[&str]) {
    let (code, said) = Running::start(command).finish();
    assert_eq!(code, 1, "{said}");
    for text in says {
        assert!(said.contains(text), "{text:?} is missing in:\n{said}");
    }
}

#[test]
fn gpus_are_listed_in_bus_order_as_a_table_and_as_data() {
    let machine = Machine::new(1, "devices=2");
    machine.file("sys/bus/pci/devices/0000:61:00.0/numa_node", "1\n");
    let text = output(machine.on(sidecar().arg("gpus")));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].contains("550.54.15") && lines[0].contains("bus order"), "{text}");
    assert!(lines[2].starts_with("0 ") && lines[2].contains("0000:41:00.0"), "{text}");
    assert!(lines[3].contains(&machine.uuid(1)) && lines[3].contains("31744/32768"), "{text}");

    let data: serde_json::Value =
        serde_json::from_str(&output(machine.on(sidecar().args(["gpus", "--json"])))).unwrap();
    let second = &data["gpus"][1];
    assert_eq!(data["gpus"].as_array().unwrap().len(), 2);
    assert_eq!((&second["index"], &second["numa_node"]), (&1.into(), &1.into()));
    assert_eq!(data["gpus"][0]["numa_node"], serde_json::Value::Null);
    assert_eq!(second["uuid"], machine.uuid(1));
    assert_eq!(second["memory_free_bytes"], 31_u64 << 30);
    machine.check();
}

#[test]
fn without_a_driver_or_a_device_that_is_the_answer() {
    let machine = Machine::new(2, "devices=0");
    assert!(output(machine.on(sidecar().arg("gpus"))).contains("sees no GPU"));
    let mut none = sidecar();
    none.args(["gpus", "--json"]).env("SIDECAR_SIMULATED_CUDA_DRIVER", "/no/such/libcuda.so.1");
    let data: serde_json::Value = serde_json::from_str(&output(&mut none)).unwrap();
    assert_eq!(data["gpus"], serde_json::json!([]));
    assert!(data["unavailable"].as_str().unwrap().contains("no NVIDIA driver"), "{data}");
    let region = Region::new();
    let mut command = machine.main_job("0", &region, "ws://127.0.0.1:9/x");
    fails(&mut command, &["--gpu 0", "sees no GPU", "--gpu none"]);
    command.env("SIDECAR_SIMULATED_CUDA_DRIVER", "/no/such/libcuda.so.1");
    fails(&mut command, &["--gpu 0", "no NVIDIA driver", "--gpu none"]);
    assert!(region.leftovers().is_empty());
}

#[test]
fn what_is_hidden_cannot_be_chosen() {
    let machine = Machine::new(3, "devices=2");
    let text = output(machine.on(sidecar().arg("gpus")).env("CUDA_VISIBLE_DEVICES", machine.uuid(1)));
    assert!(text.contains(&machine.uuid(1)) && !text.contains(&machine.uuid(0)), "{text}");
    let region = Region::new();
    let mut command = machine.main_job("1", &region, "ws://127.0.0.1:9/x");
    fails(command.env("CUDA_VISIBLE_DEVICES", machine.uuid(1)), &["no GPU 1", "sidecar gpus"]);
}

/// A worker that writes what it was shown, and then works.
fn with_witness(command: &mut Command, directory: &Path) {
    let script = format!(
        "env | grep -E '^(CUDA_VISIBLE_DEVICES|XLA_|SIDECAR_GPU)' | sort > {}/seen; exec {} worker --policy cartpole",
        directory.display(),
        env!("CARGO_BIN_EXE_sidecar")
    );
    command.args(["--", "sh", "-c", &script]);
}

#[test]
fn a_game_is_played_with_the_gpu_locked_and_the_worker_shown_it_alone() {
    let machine = Machine::new(4, "devices=2");
    let region = Region::new();
    let gateway = Gateway::start(&["--cases", "1"]);
    let mut command = machine.main_job("1", &region, &gateway.endpoint);
    with_witness(&mut command, machine.root.path());
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1);
    for fact in
        ["preflight: gpu 1, nvidia-smi's 1: Simulated GPU 1", "driver 550.54.15, CUDA 12.4", "memory", "numa"]
    {
        assert!(said.contains(fact), "{fact:?} is missing in:\n{said}");
    }
    let seen = fs::read_to_string(machine.root.path().join("seen")).unwrap();
    assert_eq!(seen, format!("CUDA_VISIBLE_DEVICES={}\n", machine.uuid(1)));
    machine.check();
}

#[test]
fn a_second_sidecar_on_a_gpu_is_refused_with_the_first_ones_pid_until_that_is_killed() {
    let machine = Machine::new(5, "devices=2");
    let (first_region, second_region) = (Region::new(), Region::new());
    let gateway = Gateway::start(&["--cases", "1"]);
    let first = Running::start(&mut machine.main_job("0", &first_region, &gateway.endpoint));
    wait_for("the region", || first_region.path().exists());
    let pid = first.pid().to_string();
    let mut second = machine.main_job("0", &second_region, &gateway.endpoint);
    fails(&mut second, &["--gpu 0", &machine.uuid(0), &pid, "--share-gpu"]);
    second.args(["--share-gpu", "2"]);
    fails(&mut second, &[&pid]);
    assert!(second_region.leftovers().is_empty());
    // By its UUID it is the same one; the other one is free.
    fails(&mut machine.main_job(&machine.uuid(0), &second_region, &gateway.endpoint), &[&pid]);
    let mut other = Running::start(&mut machine.main_job("1", &second_region, &gateway.endpoint));
    other.await_stderr("preflight: gpu 1");
    other.signal(Signal::KILL);
    other.finish();
    first.signal(Signal::KILL);
    assert_eq!(first.finish().0, 128 + 9);
    // The gateway may not have heard yet that the first one is gone.
    first_region.expect(&["connection lost: closed right after the upgrade"]);
    let mut third = machine.main_job("0", &first_region, &gateway.endpoint);
    with_worker(&mut third, "cartpole");
    let (code, said) = Running::start(&mut third).finish();
    assert_eq!(code, 0, "{said}");
    machine.check();
}

#[test]
fn sharers_get_a_part_of_the_memory_each_and_no_more_than_were_said() {
    let machine = Machine::new(6, "devices=1");
    let regions = [Region::new(), Region::new(), Region::new()];
    let gateways = [(); 3].map(|()| Gateway::start(&["--cases", "1"]));
    let job = |at: usize| {
        let mut command = machine.main_job("0", &regions[at], &gateways[at].endpoint);
        command.args(["--share-gpu", "2"]);
        command
    };
    let mut first = Running::start(&mut job(0));
    first.await_stderr("place 0");
    let mut second = job(1);
    with_witness(&mut second, machine.root.path());
    let mut second = Running::start(second.env("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2"));
    second.await_stderr("place 1");
    fails(&mut job(2), &["share it", &first.pid().to_string(), &second.pid().to_string()]);
    let (code, said) = second.finish();
    assert_eq!(code, 0, "{said}");
    let seen = fs::read_to_string(machine.root.path().join("seen")).unwrap();
    // What the user set stays.
    let expected = format!(
        "CUDA_VISIBLE_DEVICES={}\nSIDECAR_GPU_MEMORY_FRACTION=0.450\nXLA_PYTHON_CLIENT_MEM_FRACTION=0.2\n",
        machine.uuid(0)
    );
    assert_eq!(seen, expected);
    first.signal(Signal::TERM);
    assert_eq!(first.finish().0, 143);
    machine.check();
}

#[test]
fn sharing_needs_a_gpu() {
    let machine = Machine::new(7, "devices=1");
    let region = Region::new();
    let mut command = machine.main_job("none", &region, "ws://127.0.0.1:9/x");
    fails(command.args(["--share-gpu", "2"]), &["--share-gpu 2", "--gpu"]);
}

#[test]
fn a_run_without_a_gpu_looks_for_no_driver() {
    let machine = Machine::new(8, "devices=1");
    let region = Region::new();
    let gateway = Gateway::start(&["--cases", "1"]);
    let mut command = machine.main_job("none", &region, &gateway.endpoint);
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("preflight"), "{said}");
    assert!(!machine.report().exists(), "the driver was loaded");
}

#[test]
fn region_and_frame_loop_are_put_near_the_gpu_where_there_is_more_than_one_node() {
    let machine = Machine::new(9, "devices=1");
    machine.file("sys/bus/pci/devices/0000:41:00.0/numa_node", "0\n");
    machine.file("sys/devices/system/node/online", "0-1\n");
    // The last core that this process may use: a place that nothing would choose by itself.
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let core = (0..1024).rfind(|core| allowed.is_set(*core)).unwrap();
    machine.file("sys/devices/system/node/node0/cpulist", &format!("{core},1023\n"));
    let gateway = Gateway::start(&["--cases", "1"]);
    let region = Region::new();
    let mut running = Running::start(&mut machine.main_job("0", &region, &gateway.endpoint));
    running.await_stderr("the gpu is on node 0; so is the frame loop; the region is");
    // What the kernel says to this process it says to the sidecar.
    let region_is = match sidecar_cuda::numa::Near::node(0) {
        Ok(_) => "the region is, too".to_owned(),
        Err(error) => format!("the region is anywhere ({error}); better: numactl"),
    };
    running.await_stderr(&region_is);
    let frame_loop = rustix::process::Pid::from_raw(running.pid().cast_signed());
    let placed = rustix::thread::sched_getaffinity(frame_loop).unwrap();
    assert_eq!((0..1024).filter(|core| placed.is_set(*core)).collect::<Vec<_>>(), [core]);
    running.signal(Signal::KILL);
    running.finish();

    // A container without any of its cores, and a region that was allocated before.
    region.expect(&["connection lost"]);
    machine.file("sys/devices/system/node/node0/cpulist", "1023\n");
    let mut running = Running::start(&mut machine.main_job("0", &region, &gateway.endpoint));
    running.await_stderr("the region is where the last sidecar had it; better: numactl --cpunodebind=0");
    running.signal(Signal::TERM);
    running.finish();
    machine.check();
}

#[test]
fn huge_pages_are_used_where_there_are_some_and_told_of_either_way() {
    let machine = Machine::new(10, "devices=1");
    let region = Region::new();
    let gateway = Gateway::start(&["--cases", "1"]);
    let mut command = machine.main_job("0", &region, &gateway.endpoint);
    command.arg("--huge");
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("preflight: huge pages: "), "{said}");
    assert!(!said.contains("better: --huge"), "{said}");
    assert_eq!(gateway.report()["solved"], 1);
}

#[test]
fn observations_are_copied_ahead_in_parts_and_one_copy_is_counted_for_each_small_one() {
    let machine = Machine::new(11, "devices=2");
    let region = Region::new();
    // Three parts of 128 KiB and a rest, at the least.
    let gateway = Gateway::start(&["--cases", "2", "--step-delay", "1ms", "--payload", "500000"]);
    let mut command = machine.main_job("1", &region, &gateway.endpoint);
    command.arg("--device-copy");
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 2, "{said}");
    for fact in [
        "device copy: observations are copied to 33554432 bytes on the gpu",
        "page-locked: 33570816 bytes here",
    ] {
        assert!(said.contains(fact), "{fact:?} is missing in:\n{said}");
    }
    machine.check_rules();
    let left = fs::read_to_string(machine.report()).unwrap();
    assert!(left.contains("leak: 33554432 bytes of device memory"), "the ring ends with the process: {left}");
    let (copies, records) = (machine.calls("cuMemcpyHtoDAsync_v2"), machine.calls("cuEventRecord"));
    assert!(records >= 1000, "each step was announced: {records}");
    assert!(copies > records, "large ones take several: {copies} for {records}");
    assert_eq!(machine.calls("cuMemFree_v2"), 0);
}

#[test]
fn what_keeps_it_from_copying_ahead_is_said_and_the_game_is_played() {
    let cases = [
        ("ipc=off", "cannot be passed to the worker"),
        ("fail=cuMemHostRegister_v2:2", "ulimit -l"),
        ("fail=cuMemAlloc_v2:2", "bytes of device memory"),
        ("fail=cuDevicePrimaryCtxRetain:46", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ];
    for (at, (config, says)) in (0_u8..).zip(cases) {
        let machine = Machine::new(12 + at, &format!("devices=1;{config}"));
        let region = Region::new();
        let gateway = Gateway::start(&["--cases", "1"]);
        let mut command = machine.main_job("0", &region, &gateway.endpoint);
        command.arg("--device-copy");
        with_worker(&mut command, "cartpole");
        let (code, said) = Running::start(&mut command).finish();
        assert_eq!((code, &gateway.report()["solved"]), (0, &1.into()), "{config}: {said}");
        assert!(said.contains("device copy: not possible") && said.contains(says), "{config}: {said}");
        assert!(said.contains("page-locked: 0 bytes here"), "{config}: {said}");
        machine.check_leaks();
        assert_eq!(machine.calls("cuMemcpyHtoDAsync_v2"), 0, "{config}");
    }
}

#[test]
fn a_copy_that_fails_in_the_middle_of_a_game_costs_a_line_and_the_copies() {
    for (at, config) in (0_u8..).zip(["cuMemcpyHtoDAsync_v2@7:700", "cuEventRecord@5:719:deferred"]) {
        let machine = Machine::new(16 + at, &format!("devices=1;fail={config}"));
        let region = Region::new();
        region.expect(&["--device-copy has stopped working"]);
        let gateway = Gateway::start(&["--cases", "1"]);
        let mut command = machine.main_job("0", &region, &gateway.endpoint);
        command.arg("--device-copy");
        with_worker(&mut command, "cartpole");
        let (code, said) = Running::start(&mut command).finish();
        assert_eq!((code, &gateway.report()["solved"]), (0, &1.into()), "{config}: {said}");
        assert_eq!(said.matches("--device-copy has stopped working").count(), 1, "{config}: {said}");
        machine.check_rules();
        assert!(machine.calls("cuMemcpyHtoDAsync_v2") < 10, "{config}: the driver is asked no more");
    }
}

#[test]
fn copying_ahead_needs_a_gpu() {
    let machine = Machine::new(18, "devices=1");
    let region = Region::new();
    let mut command = machine.main_job("none", &region, "ws://127.0.0.1:9/x");
    fails(command.arg("--device-copy"), &["--device-copy without a GPU", "--gpu"]);
}

/// Names the region to the process that is this test's worker: the test once more.
const WORKER_OF: &str = "SIDECAR_TEST_PINNED_WORKER_OF";
const KEEPS_OPEN: &str = "a_sidecar_that_ends_with_an_error_leaves_the_ring_to_the_worker_that_has_it_open";

/// A worker that goes, damages the region's file, and still has the ring on the device open. Ends when it is killed.
fn keep_the_ring_open(region: &Path) -> ! {
    let mut worker = PinnedWorker::attach(region, &AttachOptions::default(), 0).unwrap();
    assert!(worker.ring_trouble().is_none(), "{:?}", worker.ring_trouble());
    let observation = loop {
        match worker.next(None).unwrap() {
            Event::Warmup => worker.worker().ready().unwrap(),
            Event::Observation(observation) if observation.device_ring().is_some() => break observation,
            Event::Observation(observation) => worker.worker().answer(observation, b"").unwrap(),
            _ => {}
        }
    };
    let arrival = worker.lend(observation).arrival().cloned().expect("it lies on the device");
    drop(worker);
    fs::OpenOptions::new().write(true).open(region).unwrap().set_len(0).unwrap();
    eprintln!("damaged");
    loop {
        std::thread::park();
        core::hint::black_box(&arrival);
    }
}

#[test]
fn a_sidecar_that_ends_with_an_error_leaves_the_ring_to_the_worker_that_has_it_open() {
    if let Some(region) = std::env::var_os(WORKER_OF) {
        keep_the_ring_open(region.as_ref());
    }
    let machine = Machine::new(19, "devices=1");
    let region = Region::new();
    region.expect(&["worker gone", "connection lost"]);
    let gateway = Gateway::start(&["--cases", "1", "--step-delay", "1ms"]);
    let mut command = machine.main_job("0", &region, &gateway.endpoint);
    let sidecar = Running::start(command.args(["--device-copy", "--slots", "4"]));
    let mut worker = Command::new(std::env::current_exe().unwrap());
    worker.args(["--exact", KEEPS_OPEN, "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    machine.on(&mut worker).env(WORKER_OF, region.path());
    let mut worker = Running::start(&mut worker);
    worker.await_stderr("damaged");
    let mut next = sidecar_worker(&region);
    let next = Running::start(&mut next);
    let (code, said) = sidecar.finish();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("error[region-damaged]: "), "{said}");
    machine.check_rules();
    assert_eq!(machine.calls("cuIpcGetMemHandle"), 1);
    drop((worker, next, gateway));
}

fn sidecar_worker(region: &Region) -> Command {
    let mut command = sidecar();
    command.args(["worker", "--policy", "noop", "--shm"]).arg(region.path());
    command
}
