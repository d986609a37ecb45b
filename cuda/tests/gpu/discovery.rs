//! What is found, in which order, and what is said where there is nothing.

use std::path::Path;

use sidecar_cuda::discovery::{Choice, ChoiceError, Inventory};
use sidecar_cuda::driver::{Driver, Unavailable};
use sidecar_cuda::numa::System;

use crate::simulated::Simulated;

fn system() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (bus, node) in [("0000:41:00.0", "0"), ("0000:61:00.0", "1"), ("0000:81:00.0", "-1")] {
        let device = root.path().join("sys/bus/pci/devices").join(bus);
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("numa_node"), format!("{node}\n")).unwrap();
    }
    let module = root.path().join("sys/module/nvidia");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::write(module.join("version"), "535.1\n").unwrap();
    root
}

fn inventory(simulated: &Simulated) -> Inventory {
    let root = system();
    Inventory::of(&simulated.driver(), simulated.nvml(), &System::at(root.path())).unwrap()
}

#[test]
fn a_machine_without_a_driver_is_told_and_nothing_panics() {
    let missing = Driver::open_at(Path::new("/no/such/libcuda.so.1")).unwrap_err();
    assert!(matches!(missing, Unavailable::NoLibrary { .. }), "{missing}");
    assert!(missing.to_string().contains("/no/such/libcuda.so.1"), "{missing}");
}

#[test]
fn a_library_that_is_no_driver_is_told_by_the_first_function_that_it_lacks() {
    let other = Driver::open_at(Path::new("libc.so.6")).unwrap_err();
    assert_eq!(other, Unavailable::TooOld { symbol: "cuInit" });
}

#[test]
fn a_driver_without_a_device_and_a_driver_that_does_not_start_are_told_apart() {
    let none = Simulated::new("devices=0").open().unwrap_err();
    assert!(matches!(none, Unavailable::NoDevice { .. }), "{none}");
    let hidden = Simulated::new("devices=2;visible=").open().unwrap_err();
    assert!(matches!(hidden, Unavailable::NoDevice { .. }), "{hidden}");
    for (code, says) in [(803, "reboot"), (999, "nvidia_uvm"), (34, "stub"), (4711, "CUDA error 4711")] {
        let broken = Simulated::new(&format!("init={code}")).open().unwrap_err();
        assert!(matches!(broken, Unavailable::Broken(_)), "{broken}");
        assert!(broken.to_string().contains(says), "{broken}");
    }
}

#[test]
fn gpus_are_listed_in_bus_order_with_all_that_is_known_of_them() {
    let simulated = Simulated::new("devices=3;seed=9");
    let inventory = inventory(&simulated);
    assert_eq!(inventory.driver_version.as_deref(), Some("550.54.15"));
    assert_eq!(inventory.cuda_version, (12, 4));
    assert_eq!(inventory.nvml, None);
    let facts: Vec<_> = inventory
        .gpus
        .iter()
        .map(|gpu| (gpu.index, gpu.smi_index, gpu.ordinal, gpu.bus.as_str(), gpu.numa_node))
        .collect();
    // CUDA counts them the other way round.
    assert_eq!(
        facts,
        [
            (0, Some(0), 2, "0000:41:00.0", Some(0)),
            (1, Some(1), 1, "0000:61:00.0", Some(1)),
            (2, Some(2), 0, "0000:81:00.0", None),
        ]
    );
    let second = &inventory.gpus[1];
    assert_eq!(second.name, "Simulated GPU 1");
    assert_eq!(second.uuid.as_str(), "GPU-51090000-0000-0000-0000-000000000001");
    assert_eq!((second.memory_total, second.memory_free), (32 << 30, Some(31 << 30)));
    assert_eq!(second.compute, (8, 9));
    assert_eq!(simulated.wrongs(), [""; 0]);
    assert_eq!(simulated.calls("cuDevicePrimaryCtxRetain"), 0, "looking makes no context");
}

#[test]
fn without_nvml_free_memory_is_unknown_and_the_version_is_the_modules() {
    let inventory = inventory(&Simulated::new("devices=1;nvml=off"));
    assert_eq!(inventory.driver_version.as_deref(), Some("535.1"));
    assert!(inventory.nvml.is_some_and(|why| why.contains("nvmlInit")));
    let gpu = &inventory.gpus[0];
    assert_eq!((gpu.memory_free, gpu.smi_index), (None, None));
    assert_eq!(gpu.memory_total, 24 << 30);
}

#[test]
fn what_is_hidden_is_not_counted_and_the_order_stays_the_buss() {
    // CUDA's 0 and 2, which are nvidia-smi's 2 and 0.
    for visible in ["0,2", "2,0"] {
        let inventory = inventory(&Simulated::new(&format!("devices=3;visible={visible}")));
        let numbers: Vec<_> = inventory.gpus.iter().map(|gpu| (gpu.index, gpu.smi_index)).collect();
        assert_eq!(numbers, [(0, Some(0)), (1, Some(2))], "{visible}");
    }
}

#[test]
fn a_part_of_a_gpu_is_named_as_such() {
    let inventory = inventory(&Simulated::new("devices=1;mig=on"));
    let gpu = &inventory.gpus[0];
    assert!(gpu.uuid.as_str().starts_with("MIG-5100"), "{}", gpu.uuid);
    assert_eq!(gpu.smi_index, None);
    assert!(gpu.memory_free.is_some());
}

#[test]
fn each_question_that_a_driver_may_refuse_is_an_error_and_no_panic() {
    let questions = [
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetPCIBusId",
        "cuDeviceTotalMem_v2",
        "cuDeviceGetUuid",
        "cuDeviceGetUuid_v2",
        "cuDeviceGetAttribute",
        "cuDriverGetVersion",
    ];
    for question in questions {
        let simulated = Simulated::new(&format!("devices=1;fail={question}:999"));
        let refused = simulated
            .open()
            .and_then(|driver| Inventory::of(&driver, simulated.nvml(), &System::here()))
            .unwrap_err();
        assert!(refused.to_string().contains(question), "{question}: {refused}");
    }
    for question in ["nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo"] {
        let simulated = Simulated::new(&format!("devices=1;fail={question}:999"));
        assert_eq!(inventory(&simulated).gpus.len(), 1, "{question}");
        assert_eq!(simulated.wrongs(), [""; 0]);
    }
}

#[test]
fn a_gpu_is_chosen_by_its_place_or_by_its_uuid() {
    let inventory = inventory(&Simulated::new("devices=2;seed=3"));
    let find = |text: &str| inventory.find(&text.parse::<Choice>().unwrap()).map(|gpu| gpu.index);
    assert_eq!(find("1"), Ok(1));
    assert_eq!(find("2"), Err(ChoiceError::NoSuchIndex { index: 2, count: 2 }));
    assert_eq!(find("GPU-51030000-0000-0000-0000-000000000001"), Ok(1));
    assert_eq!(find("GPU-5103"), Err(ChoiceError::NotOne { prefix: "GPU-5103".into(), count: 2 }));
    assert_eq!(find("GPU-ff"), Err(ChoiceError::NotOne { prefix: "GPU-ff".into(), count: 0 }));
    for text in ["", "-1", "gpu0", "5103"] {
        let parsed = text.parse::<Choice>();
        assert!(text == "5103" || parsed.is_err(), "{text}");
    }
}
