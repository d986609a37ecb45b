//! Actions that lie on the device.

use std::sync::Arc;

use sidecar_cuda::context::Context;
use sidecar_cuda::device::{DeviceMemory, OwnedStream};
use sidecar_cuda::fence::Stream;
use sidecar_cuda::pin::{Pin, PinError};
use sidecar_cuda::worker::{AnswerError, CopyError, PinnedWorker};
use sidecar_shm::worker::WorkerError;

use crate::simulated::{GEOMETRY, Said, Side, Simulated, device, lent};

const NOTHING: [&str; 0] = [];
const LARGEST: usize = GEOMETRY.action_bytes as usize;

fn pinned(simulated: &Simulated, side: &mut Side) -> PinnedWorker {
    let worker = side.attach();
    PinnedWorker::of(worker, simulated.open().map_err(PinError::from).and_then(|driver| Pin::with(driver, 0)))
}

#[test]
fn an_action_is_copied_back_behind_what_computes_it_and_sent() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    let (memory, stream) = device(&worker);
    for length in [0, 1, 100, LARGEST] {
        let payload: Vec<u8> = (0..16_384).map(|at| (at * 11 + length) as u8).collect();
        side.observe(&payload);
        let mut lent = lent(&mut worker);
        // What computes it here: the copy, which has not even begun when the action is handed over.
        // SAFETY: the memory has room for the payload, and lives, with the stream, to the end of the test.
        unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
        // SAFETY: as above.
        unsafe { worker.answer_from_device(lent, memory.start(), length, stream.stream()) }.unwrap();
        assert_eq!(side.take(), [Said::Action(payload[..length].to_vec())]);
    }
    assert_eq!(side.owner.free_slots(), GEOMETRY.observation_slots);
    assert_eq!(simulated.calls("pageable"), 0, "action slots are page-locked, too");
    drop((memory, stream, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn what_cannot_be_copied_back_is_told_to_the_sidecar_and_leaves_nothing() {
    let cases = [
        ("fail=cuMemcpyDtoHAsync_v2:1", LARGEST, "cuMemcpyDtoHAsync_v2: CUDA_ERROR_INVALID_VALUE"),
        ("fail=cuStreamSynchronize@1:719", LARGEST, "cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED"),
        ("", LARGEST + 1, "an action of 4097 bytes"),
        ("devices=0", 8, "there is no device to copy to"),
    ];
    for (config, length, says) in cases {
        let simulated = Simulated::new(config);
        let mut side = Side::new();
        let mut worker = pinned(&simulated, &mut side);
        let memory = worker.pin().map(Pin::context).map(|context| {
            let memory = DeviceMemory::new(Arc::<Context>::clone(context), 2 * LARGEST).unwrap();
            (memory, OwnedStream::new(Arc::clone(context)).unwrap())
        });
        let (start, stream) = memory
            .as_ref()
            .map_or((0, Stream::DEFAULT), |(memory, stream)| (memory.start(), stream.stream()));
        // As often as there are action slots, and once more: none of them is lost.
        for _ in 0..=GEOMETRY.action_slots {
            side.observe(b"payload");
            let lent = lent(&mut worker);
            // SAFETY: the memory is twice as large, where there is one, and lives to the end of the test.
            let answered = unsafe { worker.answer_from_device(lent, start, length, stream) };
            let heard = side.take();
            if config.contains("@1") && answered.is_ok() {
                assert!(matches!(&*heard, [Said::Action(_)]), "{config}: {heard:?}");
                continue;
            }
            let error = answered.unwrap_err();
            let expected = match &error {
                AnswerError::NotCopied(CopyError::NoDevice) => config == "devices=0",
                AnswerError::NotCopied(CopyError::Refused(_)) => config.contains("fail"),
                AnswerError::Worker(WorkerError::ActionTooLarge { .. }) => length > LARGEST,
                AnswerError::Worker(_) => false,
            };
            assert!(expected && error.to_string().contains(says), "{config}: {error}");
            assert!(
                matches!(&*heard, [Said::Failed(message)] if message.contains(says)),
                "{config}: {heard:?}"
            );
        }
        assert_eq!(side.owner.free_slots(), GEOMETRY.observation_slots, "{config}");
        drop((memory, worker));
        assert_eq!(simulated.wrongs(), NOTHING, "{config}");
    }
}
