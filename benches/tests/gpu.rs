//! The harness for a GPU where its figures mean nothing: it runs to its end on a simulated driver, tells every row without
//! a verdict, and does nothing that a driver would not allow.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A stand-in for PyTorch, as far as the script uses it.
const TORCH: &str = "
__version__ = 'that-is-none'
uint8 = None
class cuda:
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: None)
class Tensor:
    def to(self, device):
        assert device == 'cuda', device
def frombuffer(payload, dtype):
    assert isinstance(payload, bytes) and payload, payload
    return Tensor()
";

struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn bench(&self, driver: &Path, python: &str, more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_sidecar-bench"))
            .args(["gpu", "--out"])
            .arg(self.path("out"))
            .arg("--scripts")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers"))
            .args(["--python", python])
            .args(more)
            .env("SIDECAR_SIMULATED_CUDA_DRIVER", driver)
            .env("SIMULATED_CUDA", "devices=1")
            .env("SIMULATED_CUDA_REPORT", self.path("calls"))
            .env("PYTHONPATH", self.directory.path())
            .output()
            .unwrap()
    }

    fn report(&self) -> (Value, String) {
        let read = |name: &str| std::fs::read_to_string(self.path("out").join(name)).unwrap();
        (serde_json::from_str(&read("report.json")).unwrap(), read("report.md"))
    }
}

/// Beside the test's own program, where cargo puts the libraries of its dependencies.
fn driver() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libsimulated_cuda_driver.so")
}

fn said(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr)
}

/// Targets that the report has, each of them open for this reason.
fn open(report: &Value, reason: &str) -> usize {
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        assert_eq!(row["verdict"], "missing", "{row}");
        assert!(row["note"].as_str().unwrap().starts_with(reason), "{row}");
    }
    rows.iter().filter(|row| row["target"].is_number()).count()
}

#[test]
fn every_cell_is_measured_nothing_is_claimed_and_the_driver_has_nothing_to_complain_of() {
    let machine = Machine::new();
    std::fs::write(machine.path("torch.py"), TORCH).unwrap();
    let ran = machine.bench(&driver(), "python3", &["--rounds", "2", "--check"]);
    let talk = said(&ran);
    assert!(ran.status.success() && talk.contains("0 pass, 0 missed"), "{talk}");
    let (report, text) = machine.report();
    assert_eq!(open(&report, "open: a simulated driver"), 8);
    assert_eq!(report["rows"].as_array().unwrap().len(), 2 * 9 + 3 * 8);
    for (figures, cells, rounds) in [("copies_us", 9 + 9 + 4, 2 * 8), ("latencies_us", 3 * 7, 2 * 8)] {
        let figures = report[figures].as_array().unwrap();
        assert_eq!(figures.len(), cells);
        for cell in figures {
            assert_eq!(cell["samples"], rounds, "{cell}");
            assert!(
                cell["p50"].as_f64().unwrap() > 0.0 && cell["p99"].as_f64() >= cell["p50"].as_f64(),
                "{cell}"
            );
        }
    }
    assert!(
        text.contains("| gpu | Simulated") && text.contains("| copied ahead in parts of 128 KiB, as it is |")
    );
    let calls = std::fs::read_to_string(machine.path("calls")).unwrap();
    assert!(calls.contains("calls: cuMemHostAlloc 1"), "{calls}");
    let wrongs: Vec<_> = calls.lines().filter(|line| !line.contains(" calls: ")).collect();
    assert!(wrongs.is_empty(), "{wrongs:?}");
}

#[test]
fn without_pytorch_its_rows_say_so_and_the_others_are_measured() {
    let machine = Machine::new();
    let missing = "raise ImportError('No module named torch')";
    std::fs::write(machine.path("torch.py"), missing).unwrap();
    for (python, why) in [("python3", "No module named torch"), ("/no/such/python", "No such file")] {
        let ran = machine.bench(&driver(), python, &["--quick"]);
        let talk = said(&ran);
        let left_out = talk.lines().find(|line| line.starts_with("left out: torch.frombuffer"));
        assert!(ran.status.success() && left_out.is_some_and(|line| line.contains(why)), "{talk}");
        assert_eq!(machine.report().0["latencies_us"].as_array().unwrap().len(), 3 * 6);
    }
}

#[test]
fn without_a_gpu_it_says_why_and_every_target_is_open() {
    let machine = Machine::new();
    let ran = machine.bench("/no/such/libcuda.so.1".as_ref(), "python3", &["--check"]);
    let talk = said(&ran);
    assert!(ran.status.success() && talk.starts_with("skipped: gpu: no NVIDIA driver"), "{talk}");
    assert_eq!(talk.matches("open: no GPU: no NVIDIA driver").count(), 8, "{talk}");
    assert!(talk.contains("0 pass, 0 missed, 0 undecided, 8 not measured here"), "{talk}");
    assert_eq!(open(&machine.report().0, "open: no GPU"), 8);
}

#[test]
fn what_the_driver_refuses_ends_the_run_with_its_word() {
    let machine = Machine::new();
    let ran = Command::new(env!("CARGO_BIN_EXE_sidecar-bench"))
        .args(["gpu", "--quick", "--scripts", "/no/such/directory", "--out"])
        .arg(machine.path("out"))
        .env("SIDECAR_SIMULATED_CUDA_DRIVER", driver())
        .env("SIMULATED_CUDA", "devices=1;fail=cuMemHostRegister_v2:2")
        .output()
        .unwrap();
    let talk = said(&ran);
    assert!(!ran.status.success() && talk.contains("error: not page-locked"), "{talk}");
}
