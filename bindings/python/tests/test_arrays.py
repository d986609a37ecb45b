"""numpy, torch and DLPack: extras that the package never imports."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest

import sidecar
from gateway import Rig, until

Played = tuple[Rig, sidecar.Worker]


def lent_slots(rig: Rig) -> int:
    return rig.stat()["gauges"]["lent_slots"]


def observation_of(rig: Rig, worker: sidecar.Worker, payload: bytes) -> sidecar.Observation:
    rig.observe("one", payload)
    return worker.take(10)


def address(array: Any) -> int:
    return array.__array_interface__["data"][0]


def test_the_package_imports_no_extra() -> None:
    program = (
        "import sys, sidecar\n"
        "assert not {'numpy', 'torch', 'typing_extensions'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_numpy_reads_the_slot_itself(played: Played) -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    rig, worker = played
    sent = np.arange(1000, dtype=np.float32)
    observation = observation_of(rig, worker, sent.tobytes())
    seen = np.frombuffer(observation, np.float32)
    assert (seen == sent).all() and not seen.flags.writeable
    start, length, _ = worker.observation_memory()[0]
    assert start <= address(seen) and address(seen) + seen.nbytes <= start + length, (
        "it lies in the region"
    )
    same = np.from_dlpack(observation)
    assert address(same) == address(seen) and not same.flags.writeable and same.dtype == np.uint8
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        own = np.from_dlpack(observation, copy=True)
        assert address(own) != address(seen) and own.flags.writeable and own.tobytes() == sent.tobytes()
    assert observation.views == 2
    observation.answer(seen[::-1] * 2)
    assert rig.action()[1] == (sent[::-1] * 2).tobytes()
    until(lambda: lent_slots(rig) == 1, "the slot that is looked at")
    del seen
    assert observation.views == 1
    reshaped = same[:4].reshape(2, 2)
    del same
    gc.collect()
    assert observation.views == 1
    assert reshaped.tobytes() == sent.tobytes()[:4]
    del reshaped
    until(lambda: lent_slots(rig) == 0, "the slot's way back")
    with pytest.raises(BufferError):
        np.from_dlpack(observation)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u2", ">i4", "?", "c8"])
def test_numpy_arrays_are_actions(played: Played, dtype: str) -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    rig, worker = played
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for action in (
        array,
        array.T,
        array[:, ::2],
        array[::-1],
        np.asfortranarray(array),
        array[0, 0, 0],
        array[:0],
    ):
        observation_of(rig, worker, b"x").answer(action)
        assert rig.action()[1] == action.tobytes()
    observation = observation_of(rig, worker, b"x")
    with pytest.raises(BufferError, match="objects"):
        observation.answer(np.array([object()]))


def test_numpy_writes_an_action_in_place(played: Played) -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    rig, worker = played
    observation = observation_of(rig, worker, b"x")
    reserved = observation.reserve(8)
    view = np.frombuffer(reserved, np.float32)
    view[:] = [1.0, 2.0]
    del view
    observation.answer(reserved)
    assert rig.action()[1] == np.array([1, 2], np.float32).tobytes()


class OnlyDlpack:
    """An array that has DLPack and no buffer protocol, as tensors do; `old`: from before DLPack had versions."""

    def __init__(self, array: Any, old: bool = False, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.old = old
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if self.old:
            if options:
                raise TypeError("__dlpack__() got an unexpected keyword argument")
            return self.array.__dlpack__()
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
def test_tensors_are_actions(played: Played, old: bool) -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    rig, worker = played
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = [
        array,
        array.T,
        array[:, ::2],
        array[::-1, :, 1:],
        array[0, 0],
        array[:0],
        np.float64([[2.5]]),
    ]
    tensors.append(np.array(7, np.int16))
    for tensor in tensors:
        observation_of(rig, worker, b"x").answer(OnlyDlpack(tensor, old))
        assert rig.action()[1] == tensor.tobytes()
    before = sys.getrefcount(array)
    observation_of(rig, worker, b"x").answer(OnlyDlpack(array, old))
    rig.action()
    assert sys.getrefcount(array) == before, "the tensor is let go of"


def test_a_tensor_elsewhere_is_refused(played: Played) -> None:
    rig, worker = played
    observation = observation_of(rig, worker, b"x")
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        observation.answer(OnlyDlpack(None, device=(2, 0)))
    observation.answer(b"corrected")
    # What is not heard before the end is dropped by it.
    assert rig.action()[1] == b"corrected"


def test_a_capsule_that_nobody_takes_lets_go_of_the_slot(played: Played) -> None:
    rig, worker = played
    observation = observation_of(rig, worker, b"x")
    assert observation.__dlpack_device__() == (1, 0)
    capsules = [
        observation.__dlpack__(),
        observation.__dlpack__(max_version=(1, 1), dl_device=(1, 0), copy=False),
        observation.__dlpack__(max_version=(0, 8)),
    ]
    assert ["dltensor_versioned" in repr(capsule) for capsule in capsules] == [False, True, False]
    assert observation.views == 3
    copied = observation.__dlpack__(max_version=(1, 0), copy=True)
    assert observation.views == 3
    del capsules, copied
    assert observation.views == 0
    with pytest.raises(BufferError, match="device"):
        observation.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="streams"):
        observation.__dlpack__(stream=1)


def test_torch_reads_the_slot_and_its_tensors_are_actions(played: Played) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: some gigabytes, tried by hand")
    rig, worker = played
    sent = torch.arange(100, dtype=torch.float32)
    observation = observation_of(rig, worker, sent.numpy().tobytes())
    seen = torch.from_dlpack(observation).view(torch.float32)
    assert torch.equal(seen, sent)
    start, length, _ = worker.observation_memory()[0]
    assert start <= seen.data_ptr() < start + length
    with pytest.warns(UserWarning, match="not writable"):
        assert torch.frombuffer(observation, dtype=torch.float32).data_ptr() == seen.data_ptr()
    tensor = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    observation.answer(tensor.T)
    assert rig.action()[1] == tensor.T.contiguous().view(torch.int16).numpy().tobytes()
    del seen
    gc.collect()
    until(lambda: lent_slots(rig) == 0, "the slot's way back")
    observation = observation_of(rig, worker, b"x")
    with pytest.raises(Exception, match=r"detach|gradient"):
        observation.answer(torch.ones(2, requires_grad=True))
    observation.answer(torch.ones(2, requires_grad=True).detach())
    assert rig.action()[1] == torch.ones(2).numpy().tobytes()
