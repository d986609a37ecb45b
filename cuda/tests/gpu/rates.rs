//! The program that measures, on a driver where its figures mean nothing: that it runs to its end, says every row, and
//! does nothing that a driver would not allow.

use std::process::Command;

#[test]
fn every_row_is_measured_and_the_driver_has_nothing_to_complain_of() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples/copy_rates");
    let ran = Command::new(&program)
        .args(["--rounds", "1", "--json"])
        .env("SIDECAR_SIMULATED_CUDA_DRIVER", crate::simulated::library())
        .env("SIMULATED_CUDA", "devices=1")
        .env("SIMULATED_CUDA_REPORT", &report)
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    let talk = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{said}{talk}");
    assert!(talk.contains("no figure below says anything"), "{talk}");
    let rows = |name: &str| said.lines().filter(|line| line.starts_with(&format!("{{\"{name}\":"))).count();
    assert_eq!((rows("rate"), rows("latency"), rows("ahead")), (7, 3, 15), "{said}");
    let report = std::fs::read_to_string(report).unwrap();
    let wrongs: Vec<_> = report.lines().filter(|line| !line.contains(" calls: ")).collect();
    assert!(wrongs.is_empty(), "{wrongs:?}");
}

#[test]
fn without_a_gpu_it_says_so() {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples/copy_rates");
    let ran =
        Command::new(program).env("SIDECAR_SIMULATED_CUDA_DRIVER", "/no/such/libcuda.so.1").output().unwrap();
    assert!(ran.status.success());
    assert!(String::from_utf8(ran.stdout).unwrap().starts_with("skipped: no NVIDIA driver"));
}
