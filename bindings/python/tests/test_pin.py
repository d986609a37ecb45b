"""Page-locked slots and copies to a GPU, in processes that find the simulated driver where the real one would be.

`SIMULATED_CUDA_DRIVER` names it; `cargo build --package simulated-cuda-driver` makes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from websockets.exceptions import ConnectionClosed

import sidecar
from conftest import ROOT
from gateway import WATCHDOG, Rig

WORKER = str(Path(__file__).with_name("pinned_worker.py"))


class Machine:
    """Where a program finds the driver's two libraries."""

    def __init__(self, directory: Path) -> None:
        name = os.environ.get("SIMULATED_CUDA_DRIVER", ROOT / "target/debug/libsimulated_cuda_driver.so")
        driver = Path(name)
        if not driver.is_file():
            pytest.fail(
                f"no simulated driver at {driver}: `cargo build --package simulated-cuda-driver`"
            )
        self.directory = directory
        self.report = directory / "report"
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (directory / library).symlink_to(driver)

    def command(self, what: str, config: str = "devices=1", *arguments: str) -> list[str]:
        return [
            *("env", f"LD_LIBRARY_PATH={self.directory}", f"SIMULATED_CUDA={config}"),
            *(f"SIMULATED_CUDA_REPORT={self.report}", sys.executable, WORKER, what, *arguments),
        ]

    def gpu(self, config: str = "devices=1") -> dict[str, Any]:
        """A sidecar on this machine. Locks of GPUs are the user's, not the test's."""
        config = f"seed={os.getpid() % 199};{config}"
        environment = {
            "LD_LIBRARY_PATH": str(self.directory),
            "SIMULATED_CUDA": config,
            "SIMULATED_CUDA_REPORT": str(self.report),
        }
        return {"gpu": "0", "environment": environment}

    def worker(self, what: str, config: str = "devices=1", *arguments: str) -> list[str]:
        return self.command(what, f"seed={os.getpid() % 199};{config}", *arguments)

    def check(self) -> str:
        """No process did with the driver what it must not, and no worker left anything behind; what was called.

        A sidecar leaves its ring on the device to the end of its process: a worker may have it open.
        """
        lines = self.report.read_text().splitlines()
        sidecars = {line.split()[0] for line in lines if " calls: cuIpcGetMemHandle " in line}
        wrongs = [
            line
            for line in lines
            if " violation: " in line or (" leak: " in line and line.split()[0] not in sidecars)
        ]
        assert not wrongs
        return "\n".join(lines)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def ask(rig: Rig, payload: bytes) -> bytes:
    rig.observe("one", payload)
    session, action = rig.action()
    assert session == "one"
    return action


def start(rig: Rig) -> None:
    rig.warm_up()
    rig.open("one")


def test_a_payload_goes_to_the_device_byte_for_byte_and_back(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig(command=machine.command("echo"))
    start(rig)
    for size in (1, 4096, 60_000):
        payload = bytes((at * 7 + size) % 256 for at in range(size))
        assert ask(rig, payload) == payload
    assert rig.end() == 0, rig.output()
    said = machine.check()
    assert "cuMemHostRegister_v2 2" in said and "cuMemHostUnregister 2" in said, said


def test_a_slot_comes_back_only_when_the_device_is_done_with_it(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    # One slot: each observation is received where the one before it was.
    rig = make_rig("--slots", "1", command=machine.command("late"))
    # Until it is given back there is no other.
    rig.expect_noted("all observation slots are taken")
    start(rig)
    assert ask(rig, b"\0" * 50_000) == b"none"
    for step in range(1, 20):
        assert ask(rig, bytes([step]) * 50_000) == bytes([step - 1]) * 50_000
    assert rig.end() == 0, rig.output()
    machine.check()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("devices=0", "sees no GPU"),
        ("devices=1;fail=cuMemHostRegister_v2:2", "ulimit -l"),
        ("devices=1;map=off", "cannot lock memory"),
        ("devices=1;fail=cuMemHostRegister_v2:712", "locked already"),
    ],
)
def test_what_keeps_slots_from_being_locked_is_said_and_the_worker_goes_on(
    make_rig: Callable[..., Rig], machine: Machine, config: str, says: str
) -> None:
    rig = make_rig(command=machine.command("state", config))
    start(rig)
    said = json.loads(ask(rig, b"payload"))
    assert said["pinned"] == [False] and says in said["errors"][0], said
    assert said["pointer"] is None
    assert rig.end() == 0, rig.output()
    assert says in rig.output(), "the log names it"


def test_copies_work_from_slots_that_could_not_be_locked(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig(command=machine.command("echo", "fail=cuMemHostRegister_v2:2", "--device"))
    start(rig)
    payload = bytes(range(256)) * 64
    assert ask(rig, payload) == payload
    assert rig.end() == 0, rig.output()
    machine.check()


def test_what_is_no_array_and_no_stream_is_refused(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig(command=machine.command("state"))
    start(rig)
    said = json.loads(ask(rig, b"payload"))
    assert said["pinned"] == [True] and said["errors"] == [None] and said["pointer"], said
    assert said["problems"] == ["TypeError", "TypeError"]
    assert rig.end() == 0, rig.output()


def test_without_asking_there_is_no_gpu(played: tuple[Rig, sidecar.Worker]) -> None:
    rig, worker = played
    assert worker.pinned == (False,) and worker.pin_errors == (None,)
    rig.observe("one", b"payload")
    with worker.take(30) as observation:
        assert observation.device_pointer is None
        with pytest.raises(sidecar.StateError, match="pin=True"):
            observation.used_by()
        observation.answer(b"action")
    assert rig.action()[1] == b"action"
    with pytest.raises(ValueError, match="pin is -1"):
        sidecar.Worker(rig.shm, pin=-1)


@pytest.mark.parametrize("way", ["ahead", "array", "dlpack"])
def test_an_observation_is_on_the_device_when_it_is_taken(
    make_rig: Callable[..., Rig], machine: Machine, way: str
) -> None:
    flags = ("--device-copy", "--action-bytes", "1048576")
    rig = make_rig(*flags, command=machine.worker(way), **machine.gpu())
    start(rig)
    for step in range(6):
        for size in (1, 4096, 131_072, 700_000):
            row = bytes((at * 7 + size + step) % 251 for at in range(251))
            payload = (row * (size // 251 + 1))[:size]
            assert ask(rig, payload) == payload
    assert rig.end() == 0, rig.output()
    said = machine.check()
    assert "cuIpcOpenMemHandle_v2 1" in said and "cuIpcCloseMemHandle 1" in said, said


def test_another_thread_is_told_of_an_observation_while_the_driver_copies_it(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig(command=machine.command("busy", "devices=1;slow=cuMemcpyHtoDAsync_v2:1000"))
    start(rig)
    payload = bytes(range(256)) * 200
    action = ask(rig, payload)
    assert action[:-4] == payload
    # Who waits for the call is told at its begin and at its end.
    assert int.from_bytes(action[-4:], "little") > 8
    assert rig.end() == 0, rig.output()
    machine.check()


def test_a_slot_that_is_answered_while_the_driver_copies_it_comes_back_only_when_that_is_over(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    # One slot: each observation is received where the one before it was.
    slow = "devices=1;slow=cuMemcpyHtoDAsync_v2:100"
    rig = make_rig("--slots", "1", command=machine.command("hasty", slow))
    rig.expect_noted("all observation slots are taken")
    start(rig)
    assert ask(rig, b"\0" * 50_000) == b"none"
    copied = 0
    for step in range(1, 20):
        action = ask(rig, bytes([step]) * 50_000)
        assert action in (bytes([step - 1]) * 50_000, b"none")
        copied += action != b"none"
    assert copied > 0
    assert rig.end() == 0, rig.output()
    machine.check()


def test_a_capsule_of_the_array_says_what_dlpack_asks_for_and_is_freed_once(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig("--device-copy", command=machine.worker("capsule"), **machine.gpu())
    start(rig)
    for size in (1, 4096, 700_000):
        tensor = {
            "at": 0,
            "device": [2, 0],
            "dtype": [1, 8, 1],
            "shape": [size],
            "strides": [1],
            "byte_offset": 0,
        }
        plain = {"name": "dltensor", "version": None, "flags": None, **tensor}
        versioned = {"name": "dltensor_versioned", "version": [1, 0], "flags": 0, **tensor}
        assert json.loads(ask(rig, b"x" * size)) == [plain, plain, versioned, versioned]
    assert rig.end() == 0, rig.output()
    machine.check()


def test_fragments_and_a_message_that_was_cut_leave_nothing_wrong_on_the_device(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    flags = ("--device-copy", "--action-bytes", "1048576")
    rig = make_rig(*flags, command=machine.worker("ahead"), **machine.gpu())
    rig.expect_noted("connection lost")
    start(rig)

    def message(salt: int) -> list[bytes]:
        row = bytes((at * 5 + salt) % 241 for at in range(241))
        whole = struct.pack(">I", 3) + b"one" + row * 3000
        return [whole[at : at + 150_001] for at in range(0, len(whole), 150_001)]

    def answer() -> bytes:
        return rig.action()[1]

    def cut(parts: list[bytes]) -> Iterator[bytes]:
        yield from parts[:-1]
        time.sleep(0.05)
        rig.tunnel.socket.shutdown(socket.SHUT_RDWR)
        yield parts[-1]

    for salt in range(3):
        rig.tunnel.send(message(salt))
        assert answer() == b"".join(message(salt))[7:]
        with contextlib.suppress(ConnectionClosed, OSError):
            rig.tunnel.send(cut(message(100 + salt)))
        assert rig.messages.get(timeout=WATCHDOG) is None, "the connection was cut"
        rig.tunnel = rig.arrivals.get(timeout=WATCHDOG)
        # Of another message than the one that was begun, in the same slot, and in one go.
        rig.tunnel.send(b"".join(message(200 + salt)))
        assert answer() == b"".join(message(200 + salt))[7:]
    assert rig.end() == 0, rig.output()
    machine.check()


def test_an_array_on_the_device_keeps_its_slot_after_the_answer(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig("--device-copy", command=machine.worker("held"), **machine.gpu())
    start(rig)
    assert ask(rig, b"\0" * 50_000) == b"none"
    for step in range(1, 12):
        assert ask(rig, bytes([step]) * 50_000) == bytes([step - 1]) * 50_000
    assert rig.end() == 0, rig.output()
    machine.check()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("ipc=off", "CUDA_ERROR_NOT_SUPPORTED"),
        ("fail=cuIpcOpenMemHandle_v2:201", "run both in one container"),
        ("fail=cuIpcOpenEventHandle:400", "cuIpcOpenEventHandle"),
    ],
)
def test_what_keeps_a_worker_from_the_array_is_said_and_the_slot_is_there(
    make_rig: Callable[..., Rig], machine: Machine, config: str, says: str
) -> None:
    rig = make_rig("--device-copy", command=machine.worker("fallback", config), **machine.gpu())
    start(rig)
    payload = bytes(range(256)) * 200
    assert ask(rig, payload) == payload
    assert says in json.loads(ask(rig, b"?"))[0]
    assert rig.end() == 0, rig.output()
    assert says in rig.output(), "the log names it"
    machine.check()


def test_without_device_copy_there_is_no_array_and_no_complaint(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig(command=machine.worker("fallback"), **machine.gpu())
    start(rig)
    assert ask(rig, b"payload") == b"payload"
    assert json.loads(ask(rig, b"?")) == [None]
    assert rig.end() == 0, rig.output()
    machine.check()


def test_a_successor_of_the_sidecar_copies_to_an_array_of_its_own(
    make_rig: Callable[..., Rig], machine: Machine
) -> None:
    rig = make_rig("--device-copy", command=machine.worker("ahead"), **machine.gpu())
    start(rig)
    assert ask(rig, b"before" * 9000) == b"before" * 9000
    rig.restart()
    # The session goes on.
    for step in range(3):
        assert ask(rig, bytes([step]) * 60_000) == bytes([step]) * 60_000
    assert rig.end() == 0, rig.output()
    machine.check()


@pytest.mark.parametrize("way", ["back", "named"])
def test_an_action_on_the_device_is_copied_back_and_sent(
    make_rig: Callable[..., Rig], machine: Machine, way: str
) -> None:
    rig = make_rig(command=machine.worker(way), **machine.gpu())
    start(rig)
    for size in (1, 4096, 60_000):
        payload = bytes((at * 3 + size) % 256 for at in range(size))
        assert ask(rig, payload) == payload
    assert rig.end() == 0, rig.output()
    machine.check()
