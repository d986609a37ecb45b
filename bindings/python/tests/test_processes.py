"""Workers as processes: a whole job, sudden deaths, signals, forks."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

import sidecar
from gateway import WATCHDOG, CartPole, Rig, children, until

WORKER = str(Path(__file__).with_name("cartpole_worker.py"))
STEPS = 500


def worker_pid(rig: Rig) -> int:
    return rig.stat()["gauges"]["worker_pid"]


def play(rig: Rig, seed: int, before_action: Callable[[int], None] = lambda step: None) -> int:
    """One case of cart-pole; how many steps the pole stood."""
    pole = CartPole(seed)
    session = f"case-{seed}"
    rig.open(session)
    for step in range(STEPS):
        rig.observe(session, pole.observation() + struct.pack("<I", step))
        before_action(step)
        answered, action = rig.action()
        assert answered == session and action in (b"\0", b"\1")
        if not pole.step(action == b"\1"):
            return step + 1
    assert not rig.has_action(), "one action for each observation"
    rig.close_session(session)
    return STEPS


def test_a_job_is_played_to_the_last_step(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(command=[sys.executable, WORKER])
    rig.warm_up()
    assert [play(rig, seed) for seed in range(3)] == [STEPS] * 3
    counters = rig.stat()["counters"]
    assert counters["actions_out"] == 3 * STEPS and counters["dropped_actions"] == 0
    assert rig.end() == 0, rig.output()


def test_a_worker_that_is_killed_at_random_moments_loses_nothing(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(command=[sys.executable, WORKER, "0.001"])
    rig.warm_up()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = sorted(chance.sample(range(STEPS), 5))
    killed: list[int] = []

    def kill(step: int) -> None:
        if step in kills:
            # From before the worker sees the observation to after it has answered.
            time.sleep(chance.choice([0, 0.0001, 0.0003, 0.0006, 0.001, 0.003]))
            for pid in children(rig.sidecar.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(step)

    assert play(rig, 7, kill) == STEPS, f"seed {seed}\n{rig.output()}"
    assert len(killed) >= len(kills)
    counters = rig.stat()["counters"]
    assert counters["actions_out"] == STEPS
    print(f"{len(killed)} kills, {counters['redelivered']} redeliveries")
    assert rig.end() == 0, rig.output()


@pytest.fixture
def run(rig: Rig) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Runs a piece of Python with a warm `worker` in a session of its own; `rig` is warm when it returns."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        program = (
            "import os, sys, sidecar\n"
            f"worker = sidecar.Worker({rig.shm!r})\n"
            "event = worker.next(30)\n"
            "event.ready()\n"
            f"{code}\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        children.append(child)
        rig.warm_up()
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "wait", ["worker.take()", "list(worker)", "worker.serve(print)", "worker.next(1000)"]
)
def test_ctrl_c_ends_a_wait(run: Callable[[str], subprocess.Popen[str]], wait: str) -> None:
    child = run(f"print('waiting', flush=True)\n{wait}")
    assert child.stdout is not None and child.stdout.readline() == "waiting\n"
    time.sleep(0.15)
    child.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, error = child.communicate(timeout=WATCHDOG)
    assert time.monotonic() - start < 5
    assert "KeyboardInterrupt" in error and child.returncode == -signal.SIGINT


def test_ctrl_c_ends_the_wait_for_a_sidecar(tmp_path: Path) -> None:
    program = (
        f"import sidecar; print('waiting', flush=True); sidecar.Worker('{tmp_path}/none', timeout=1000)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=WATCHDOG)
    assert "KeyboardInterrupt" in error


def test_other_threads_run_while_one_waits(
    run: Callable[[str], subprocess.Popen[str]], rig: Rig
) -> None:
    code = (
        "import threading, time\n"
        "def count():\n"
        "    n = 0\n"
        "    while n < 50:\n"
        "        time.sleep(0.001)\n"
        "        n += 1\n"
        "    print('counted', flush=True)\n"
        "threading.Thread(target=count).start()\n"
        "worker.serve(lambda obs: b'y')"
    )
    child = run(code)
    assert child.stdout is not None and child.stdout.readline() == "counted\n"
    assert rig.end() == 0
    child.communicate(timeout=WATCHDOG)
    assert child.returncode == 0


def test_waiting_takes_no_processor(run: Callable[[str], subprocess.Popen[str]]) -> None:
    child = run("print('waiting', flush=True)\nworker.take()")
    assert child.stdout is not None and child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    before = processor_time(child.pid)
    time.sleep(2)
    assert processor_time(child.pid) - before <= 0.06


def test_a_forked_child_is_refused_and_harms_nobody(
    run: Callable[[str], subprocess.Popen[str]], rig: Rig
) -> None:
    code = (
        "import gc, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "held = worker.take()\n"
        "other = worker.take()\n"
        "reserved = held.reserve(3)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    acts = [worker.next, worker.take, worker.ready if 0 else worker.fileno, lambda: held.answer(b'no'),\n"
        "            lambda: held.failed('no'), held.release, lambda: memoryview(held), lambda: held.payload,\n"
        "            lambda: memoryview(reserved), reserved.release, lambda: held.reserve(1), held.__dlpack__]\n"
        "    for act in acts:\n"
        "        try:\n"
        "            act()\n"
        "        except RuntimeError as error:\n"
        "            assert 'forked child' in str(error), error\n"
        "        else:\n"
        "            print('not refused', act, flush=True)\n"
        "    worker.close()\n"
        "    del acts, act, held, other, reserved, worker\n"
        "    gc.collect()\n"
        "    sys.exit(0)\n"
        "print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\n"
        "memoryview(reserved)[:] = b'yes'\n"
        "held.answer(reserved)\n"
        "other.answer(b'too')\n"
        "del held, other, reserved\n"
        "worker.serve(lambda obs: b'on')\n"
    )
    child = run(code)
    rig.open("one")
    rig.observe("one", b"x" * 100)
    rig.observe("one", b"y" * 100)
    assert child.stdout is not None and child.stdout.readline() == "child 0\n"
    assert rig.action()[1] == b"yes" and rig.action()[1] == b"too"
    for _ in range(10):
        rig.observe("one", b"z")
        assert rig.action()[1] == b"on"
    stat = rig.stat()
    assert stat["counters"]["poisoned"] == 0
    assert rig.end() == 0, rig.output()
    child.communicate(timeout=WATCHDOG)
    assert child.returncode == 0


def test_an_unanswered_observation_is_given_to_the_next_worker(
    run: Callable[[str], subprocess.Popen[str]], rig: Rig
) -> None:
    child = run("obs = worker.take()\nprint('has it', flush=True)\nos.kill(os.getpid(), 9)")
    rig.open("one")
    rig.observe("one", b"precious")
    assert child.stdout is not None and child.stdout.readline() == "has it\n"
    child.wait(WATCHDOG)
    with sidecar.Worker(rig.shm) as worker:
        told = []
        while not isinstance(event := worker.next(30), sidecar.Observation):
            told.append(event)
            if isinstance(event, sidecar.Warmup):
                event.ready()
        assert event.redelivered and event.payload == b"precious"
        assert event.session.id == "one" and event.session.resumed
        assert any(isinstance(one, sidecar.SessionOpened) for one in told)
        event.answer(b"saved")
        assert rig.action() == ("one", b"saved")


def test_a_sidecar_that_dies_is_followed_by_the_next(rig: Rig) -> None:
    with sidecar.Worker(rig.shm) as worker:
        rig.control(type="warmup")
        warmup = worker.next(30)
        assert isinstance(warmup, sidecar.Warmup)
        warmup.ready()
        rig.expect("ready")
        rig.open("one")
        assert isinstance(worker.next(30), sidecar.SessionOpened)
        rig.observe("one", b"before")
        observation = worker.take(30)
        session = observation.session
        session.state = "remembered"
        observation.answer(b"y")
        assert rig.action()[1] == b"y"
        rig.restart()
        rig.observe("one", b"after")
        observation = worker.take(30)
        assert observation.payload == b"after"
        assert observation.session is session and session.state == "remembered"
        observation.answer(b"z")
        assert rig.action() == ("one", b"z")


def test_a_worker_without_a_sidecar_gives_up_in_the_end(rig: Rig) -> None:
    with sidecar.Worker(rig.shm, orphan_grace=0.2) as worker:
        rig.sidecar.kill()
        rig.sidecar.wait()
        with pytest.raises(sidecar.Orphaned, match="came back"):
            worker.take(20)


def test_a_worker_script_finds_its_region(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(command=[sys.executable, WORKER])
    rig.warm_up()
    until(lambda: worker_pid(rig), "the worker's pid")
    assert re.search(r"cartpole_worker", Path(f"/proc/{worker_pid(rig)}/cmdline").read_text())
    assert rig.end() == 0
