"""The other end, for the tests: a gateway on Python's `websockets`, with a real sidecar on it.

It follows the tunnel contract (A.2, A.3) and shares no code with the sidecar. One connection, one thread; every wait
has an end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import random
import signal
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Callable

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

#: No wait is longer: a watchdog, not a measurement.
WATCHDOG = 30.0


def until(condition: Callable[[], object], what: str) -> None:
    """Waits for a condition, under the watchdog."""
    end = time.monotonic() + WATCHDOG
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {WATCHDOG} s"
        time.sleep(0.002)


def children(pid: int) -> list[int]:
    """What a process has started; quicker than statistics tell it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def stat(binary: str, shm: str) -> dict:
    """What `sidecar stat` reads from a region."""
    command = [binary, "stat", "--shm", shm, "--json"]
    shown = subprocess.run(command, capture_output=True, check=True, timeout=WATCHDOG)
    return json.loads(shown.stdout)


class Rig:
    """A gateway, and a sidecar that has dialled it."""

    def __init__(
        self,
        binary: str,
        *flags: str,
        command: list[str] | None = None,
        gpu: str = "none",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="sidecar-python-", dir="/dev/shm")
        self.shm = os.path.join(self.directory.name, "obs")
        self.token = uuid.uuid4().hex
        self.arrivals: queue.Queue[ServerConnection] = queue.Queue()
        self.messages: queue.Queue[str | bytes | None] = queue.Queue()
        self.server = serve(self._serve, "127.0.0.1", 0, max_size=None, compression=None)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.binary = binary
        self.job = str(uuid.uuid4())
        self.flags = flags
        self.command = command
        self.gpu = gpu
        self.environment = environment or {}
        self.log = Path(self.directory.name, "log")
        self.expected: list[str] = []
        self.sidecar = self.start()
        self.tunnel = self.arrivals.get(timeout=WATCHDOG)
        # The region's own name is gone when the sidecar has ended in order. A successor goes on with the same file.
        self.kept = os.path.join(self.directory.name, "kept")
        os.link(self.shm, self.kept)

    def start(self) -> subprocess.Popen[bytes]:
        port = self.server.socket.getsockname()[1]
        environment = {name: value for name, value in os.environ.items() if "TOKEN" not in name}
        environment.update(JOB_TOKEN=self.token, HOME=self.directory.name, NO_COLOR="1")
        environment.update(self.environment)
        child = ["--", *self.command] if self.command else []
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [
                    *(self.binary, "--gpu", self.gpu, "--shm", self.shm, "--job", self.job),
                    *("--endpoint", f"ws://127.0.0.1:{port}/tunnel", "--slot-bytes", "1048576"),
                    *(*self.flags, *child),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def restart(self) -> None:
        """The sidecar dies as by SIGKILL, and another one takes over."""
        self.sidecar.kill()
        self.sidecar.wait()
        assert self.messages.get(timeout=WATCHDOG) is None, "nothing more comes from the dead one"
        self.sidecar = self.start()
        self.tunnel = self.arrivals.get(timeout=WATCHDOG)

    def _serve(self, connection: ServerConnection) -> None:
        self.arrivals.put(connection)
        with contextlib.suppress(ConnectionClosed):
            for message in connection:
                self.messages.put(message)
        self.messages.put(None)

    # What a gateway says

    def control(self, **fields: str) -> None:
        self.tunnel.send(json.dumps(fields))

    def warm_up(self) -> None:
        self.control(type="warmup")
        self.expect("ready")

    def open(self, session: str) -> None:
        self.control(type="session_open", session_id=session)

    def close_session(self, session: str) -> None:
        self.control(type="session_close", session_id=session, reason="done")

    def observe(self, session: str, payload: bytes) -> None:
        name = session.encode()
        self.tunnel.send(struct.pack(">I", len(name)) + name + payload)

    def drain(self) -> None:
        self.control(type="drain")

    # What it hears

    def message(self) -> str | bytes:
        message = self.messages.get(timeout=WATCHDOG)
        assert message is not None, f"the sidecar hung up\n{self.output()}"
        return message

    def expect(self, kind: str) -> None:
        """The next control frame of this type; others, and data, are passed over."""
        while True:
            message = self.message()
            if isinstance(message, str) and json.loads(message)["type"] == kind:
                return

    def action(self) -> tuple[str, bytes]:
        """The session and the payload of the next data frame."""
        while True:
            message = self.message()
            if isinstance(message, bytes):
                (length,) = struct.unpack_from(">I", message)
                return message[4 : 4 + length].decode(), message[4 + length :]

    def has_action(self) -> bool:
        return not self.messages.empty()

    # What can be seen from outside

    def stat(self) -> dict:
        return stat(self.binary, self.shm)

    def expect_noted(self, *starts: str) -> None:
        """Entries of the region's error log that start so, and counters of these names, are no surprise."""
        self.expected.extend(starts)

    def surprises(self) -> dict[str, int]:
        """What the region's error log and its counters of trouble hold besides."""
        seen = stat(self.binary, self.kept)
        noted = dict(seen["trouble"])
        noted |= {record["text"]: record["count"] for record in seen["errors"]}
        return {
            entry: count for entry, count in noted.items() if not entry.startswith(tuple(self.expected))
        }

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> int:
        """An orderly end; the sidecar's exit code."""
        self.drain()
        return self.sidecar.wait(WATCHDOG)

    def clean_up(self) -> None:
        if self.sidecar.poll() is None:
            self.sidecar.send_signal(signal.SIGTERM)
            try:
                self.sidecar.wait(10)
            except subprocess.TimeoutExpired:
                self.sidecar.kill()
                self.sidecar.wait()
        self.server.shutdown()
        self.thread.join(WATCHDOG)
        self.server.socket.close()
        surprises = self.surprises()
        self.directory.cleanup()
        assert not surprises, f"the region's error log or counters hold {surprises}"


class CartPole:
    """The cart-pole of Barto, Sutton and Anderson, as in Gym's `CartPole-v1`."""

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        self.state = [generator.uniform(-0.05, 0.05) for _ in range(4)]

    def observation(self) -> bytes:
        return struct.pack("<4f", *self.state)

    def step(self, push_right: bool) -> bool:
        """One step of 20 ms; whether the pole still stands."""
        position, velocity, angle, turn = self.state
        force = 10.0 if push_right else -10.0
        cosine, sine = math.cos(angle), math.sin(angle)
        pressed = (force + 0.05 * turn**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * pressed) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        moving = pressed - 0.05 * turning * cosine / 1.1
        self.state = [
            position + 0.02 * velocity,
            velocity + 0.02 * moving,
            angle + 0.02 * turn,
            turn + 0.02 * turning,
        ]
        return abs(self.state[0]) < 2.4 and abs(self.state[2]) < 12 * math.pi / 180
