//! Host memory of the driver's own.

use std::sync::Arc;

use sidecar_cuda::context::Context;
use sidecar_cuda::device::{DeviceMemory, OwnedStream};
use sidecar_cuda::host::HostMemory;

use crate::simulated::Simulated;

const NOTHING: [&str; 0] = [];
const BYTES: usize = 8192;

fn context(simulated: &Simulated) -> Arc<Context> {
    Arc::new(Context::primary(simulated.driver(), 0).unwrap())
}

#[test]
fn it_arrives_on_the_device_and_is_given_back() {
    let simulated = Simulated::new("");
    let context = context(&simulated);
    let memory = DeviceMemory::new(Arc::clone(&context), BYTES).unwrap();
    let stream = OwnedStream::new(Arc::clone(&context)).unwrap();
    let host = HostMemory::new(context, BYTES).unwrap();
    host.send(BYTES - 1, 3, &memory, &stream).unwrap();
    let mut arrived = vec![1; BYTES];
    memory.read(&mut arrived, &stream).unwrap();
    assert!(arrived[..BYTES - 1].iter().all(|byte| *byte == 0), "zeroes were sent");
    assert_ne!(arrived[BYTES - 1], 0, "one byte more was copied than was asked for");
    assert_eq!(simulated.calls("cuMemcpyHtoDAsync_v2"), 3);
    drop((host, memory, stream));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn what_the_driver_refuses_is_told_and_leaves_nothing() {
    for config in ["fail=cuMemHostAlloc:2", "fail=cuMemcpyHtoDAsync_v2@2:700"] {
        let simulated = Simulated::new(config);
        let context = context(&simulated);
        let memory = DeviceMemory::new(Arc::clone(&context), BYTES).unwrap();
        let stream = OwnedStream::new(Arc::clone(&context)).unwrap();
        let sent = HostMemory::new(context, BYTES).and_then(|host| host.send(BYTES, 2, &memory, &stream));
        let error = sent.unwrap_err().to_string();
        assert!(config.contains(error.split(':').next().unwrap()), "{config}: {error}");
        drop((memory, stream));
        assert_eq!(simulated.wrongs(), NOTHING, "{config}");
    }
}
