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

from gateway import WATCHDOG, children

WORKER = str(Path(__file__).with_name("cartpole_worker.py"))
CASES = 3


def test_workers_die_in_a_rehearsal_and_every_case_is_solved(binary: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = 0
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
                    *("--endpoint", endpoint, "--", sys.executable, WORKER, "0.001"),
                ],
                env=environment,
                stderr=log,
            )
            try:
                end = time.monotonic() + 4 * WATCHDOG
                while gateway.poll() is None and time.monotonic() < end:
                    time.sleep(chance.uniform(0.2, 0.6))
                    for pid in children(sidecar.pid) if kills < 5 else []:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            kills += 1
                lines = [json.loads(line) for line in gateway.stdout]
                log.seek(0)
                told = f"seed {seed}\n{log.read()}\n{lines}"
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
    assert kills == 5, "the cases took long enough to be disturbed"
