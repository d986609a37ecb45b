"""Python workers under the rehearsal gateway: what a contestant runs before a job."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Callable

from gateway import WATCHDOG, children, stat

HERE = Path(__file__).resolve().parent
CASES = 3


def rehearse(binary: str, worker: Path, *arguments: str, disturb: Callable[[int, str], object]) -> None:
    """Plays `CASES` cases with a worker that the sidecar starts; `disturb` is called again and again meanwhile with the
    sidecar's pid and region. Every case has to be solved, with no exchange lost."""
    with tempfile.TemporaryDirectory(prefix="sidecar-python-", dir="/dev/shm") as directory:
        environment = {name: value for name, value in os.environ.items() if "TOKEN" not in name}
        environment.update(JOB_TOKEN=uuid.uuid4().hex, HOME=directory, NO_COLOR="1")
        listen = ("gateway", "--listen", "127.0.0.1:0", "--cases", str(CASES), "--payload", "20000")
        gateway = subprocess.Popen(
            [binary, *listen, "--on-lost", "reask"], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert gateway.stdout is not None
        endpoint = json.loads(gateway.stdout.readline())["endpoint"]
        shm = os.path.join(directory, "obs")
        with open(os.path.join(directory, "log"), "w+") as log:
            sidecar = subprocess.Popen(
                [
                    *(binary, "--gpu", "none", "--shm", shm, "--job", str(uuid.uuid4())),
                    *("--endpoint", endpoint, "--", sys.executable, str(worker), *arguments),
                ],
                env=environment,
                stderr=log,
            )
            try:
                end = time.monotonic() + 4 * WATCHDOG
                while gateway.poll() is None and time.monotonic() < end:
                    disturb(sidecar.pid, shm)
                lines = [json.loads(line) for line in gateway.stdout]
                log.seek(0)
                told = f"{log.read()}\n{lines}"
                assert gateway.wait(WATCHDOG) == 0, told
                assert sidecar.wait(WATCHDOG) == 0, told
            finally:
                for process in (sidecar, gateway):
                    if process.poll() is None:
                        process.terminate()
                        process.wait(WATCHDOG)
                gateway.stdout.close()
    ended = [line for line in lines if line.get("event") == "case_ended"]
    assert [case["solved"] for case in ended] == [True] * CASES, told
    assert not [line for line in lines if line.get("event") == "exchange_lost"], told


def test_workers_die_in_a_rehearsal_and_every_case_is_solved(binary: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = answered = 0

    def kill(pid: int, shm: str) -> None:
        """The worker dies, once it has answered something: three that die before they are ready end the sidecar."""
        nonlocal kills, answered
        time.sleep(chance.uniform(0.1, 0.4))
        if kills == 5:
            return
        try:
            actions = stat(binary, shm)["counters"]["actions_out"]
        except subprocess.CalledProcessError:
            # There is no region yet, or none any more.
            return
        if actions > answered:
            answered = actions
            for child in children(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                    kills += 1

    rehearse(binary, HERE / "cartpole_worker.py", "0.001", disturb=kill)
    assert kills == 5, "the cases took long enough to be disturbed"


def test_the_quick_start_works_as_written(binary: str, tmp_path: Path) -> None:
    readme = HERE.parent.joinpath("README.md").read_text()
    _, _, snippet = readme.partition("`worker.py`:\n\n```python\n")
    code, _, _ = snippet.partition("```")
    assert "serve(act)" in code
    worker = tmp_path / "worker.py"
    worker.write_text(code)
    rehearse(binary, worker, disturb=lambda pid, shm: time.sleep(0.05))
