#!/usr/bin/env python3
"""An independent gateway, played against the real sidecar with its echo worker.

    gateway_b.py SIDECAR_BINARY uring|epoll [--seed N]

It follows the tunnel contract (A.1-A.6) on the Python `websockets` server and shares no code with the sidecar.
Every byte of every answer is compared with the observation that was sent. Each wait has a deadline, and so has
the whole. A failed check is printed and the run goes on where it can; the exit code is 0 only when every check
passed.
"""

import argparse
import asyncio
import json
import random
import secrets
import signal
import sys
import time
import uuid
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from checks import Checks, Stop, difference
from sidecar_process import SidecarProcess
from tunnel import Closed, Frame, Tunnel, data_frame, parse_frame

WHOLE_RUN = 60.0
FIRST_DIAL = 15.0
READY = 15.0
ANSWER = 8.0
# A.5: the gateway keeps a session for 30 s. The first redial is due at once; this leaves it a slow machine.
REDIAL = 10.0
DRAINED = 10.0

SIZES = [0, 1, 125, 126, 65_535, 65_536, 3_000_000]
# Lengths of the whole data frame where the WebSocket header changes its form (RFC 6455, 5.2).
FRAME_LENGTHS = [125, 126, 65_535, 65_536]
# What the scenario makes the sidecar note in its region: two cuts, two unknown types, one frame for a closed session, a
# burst that takes all slots.
EXPECTED = (
    "all observation slots are taken",
    "connection lost: ",
    "control frame of the unknown type ",
    "data frame dropped: its session is not open",
    "dropped_frames",
)
# More in one go than the region has slots.
BURST = 8
# Payload size, fragment size.
FRAGMENTED = [
    (0, 1),
    (0, 4096),
    (1, 3),
    (125, 1),
    (126, 7),
    (65_535, 4096),
    (65_536, 4096),
    (65_536, 65_536),
    (3_000_000, 4096),
    (3_000_000, 1_000_000),
]


class Gateway:
    """The server side and the run's bookkeeping."""

    def __init__(self, sidecar: SidecarProcess, seed: int) -> None:
        self.sidecar = sidecar
        self.random = random.Random(seed)
        self.verdict = Checks()
        self.check = self.verdict.check
        self.arrivals: asyncio.Queue[Tunnel] = asyncio.Queue()
        self.refused: list[str] = []
        self.observations = 0
        self.answers = 0

    # The server's two callbacks.

    def admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """A.1: the bearer token decides; anything else about the request is checked once it is admitted."""
        if request.headers.get_all("Authorization") == [f"Bearer {self.sidecar.token}"]:
            return None
        self.refused.append(request.path)
        return connection.respond(HTTPStatus.UNAUTHORIZED, "bad or missing token\n")

    async def connected(self, connection: ServerConnection) -> None:
        """Runs for as long as the connection lives."""
        tunnel = Tunnel(connection)
        self.arrivals.put_nowait(tunnel)
        await tunnel.pump()

    # Waiting.

    async def within(self, seconds: float, what: str, awaitable):
        """The result, unless the deadline or the sidecar's end comes first."""
        task = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait(
                {task, self.sidecar.ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                return task.result()
        finally:
            task.cancel()
        if self.sidecar.ended.done():
            raise Stop(f"the sidecar ended with {self.sidecar.ended.result()} instead of {what}")
        raise Stop(f"{what} was due, and nothing came within {seconds} s")

    async def next_frame(self, tunnel: Tunnel, what: str) -> Frame:
        """The next data frame. An echoed `session_close` (A.2: optional) is passed over."""
        while True:
            message = await self.within(ANSWER, what, tunnel.inbox.get())
            if isinstance(message, Closed):
                raise Stop(f"the agent closed the connection (code {message.code}) instead of {what}")
            if isinstance(message, bytes):
                return parse_frame(message)
            if json.loads(message).get("type") != "session_close":
                self.check(f"only data between observation and action ({what})", False, message)

    # Steps.

    async def arrival(self, seconds: float, what: str) -> Tunnel:
        """The next connection, its request held against A.1."""
        tunnel = await self.within(seconds, what, self.arrivals.get())
        request = tunnel.connection.request
        names = {name.lower() for name in request.headers}
        self.check(
            f"{what}: path and job",
            urlsplit(request.path).path == "/tunnel" and tunnel.jobs == [self.sidecar.job],
            request.path,
        )
        self.check(
            f"{what}: no origin, extensions or subprotocol asked for",
            not names & {"origin", "sec-websocket-extensions", "sec-websocket-protocol"},
            str(names),
        )
        return tunnel

    def payload(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def pings(self) -> list[bytes]:
        """An empty ping, the largest that is allowed, and one in between."""
        return [b"", self.payload(125), self.payload(self.random.randrange(1, 125))]

    def compare(self, name: str, session: str, payload: bytes, frame: Frame) -> None:
        """One answer against the observation that it belongs to."""
        self.answers += 1
        wrong = difference(payload, frame.payload)
        if frame.session != session.encode():
            wrong = f"session {frame.session[:40]!r} instead of {session[:40]!r}"
        self.check(name, not wrong, wrong)

    async def exchange(self, tunnel: Tunnel, session: str, name: str, payload: bytes, send=None) -> None:
        """One observation and its answer; `send` puts the frame on the wire, whole by default."""
        self.observations += 1
        await self.within(
            ANSWER,
            f"room for an observation ({name})",
            (send or tunnel.send_whole)(data_frame(session, payload)),
        )
        self.compare(name, session, payload, await self.next_frame(tunnel, f"an answer to {name}"))

    async def fragmented(self, tunnel: Tunnel, session: str, size: int, fragment: int) -> None:
        """One payload size in fragments, with and without an empty final one, pings in between."""
        endings = {
            "an empty final one": tunnel.send_fragmented,
            "a full final one": tunnel.send_fragmented_to_the_end,
        }
        for ending, send in endings.items():
            name = f"{size} B in fragments of {fragment} and {ending}"
            in_fragments = partial(send, size=fragment, pings=self.pings())
            await self.exchange(tunnel, session, name, self.payload(size), in_fragments)

    # The run.

    async def warm_up(self) -> Tunnel:
        """Dial to ready, the empty round trip, queued."""
        tunnel = await self.arrival(FIRST_DIAL, "first dial")
        self.sidecar.keep_region()
        agent = tunnel.agents[0] if len(tunnel.agents) == 1 else ""
        self.check("the agent id is a version 4 UUID", is_uuid4(agent), repr(tunnel.agents))
        await tunnel.ping(b"before warmup")
        self.check("nothing is sent before the warm-up", tunnel.inbox.empty())
        await tunnel.control({"type": "warmup"})
        ready = await self.within(READY, "ready", tunnel.inbox.get())
        self.check("ready answers the warm-up", kind(ready) == "ready", repr(ready))
        await self.exchange(tunnel, "", "the empty warm-up round trip", b"")
        await tunnel.control({"type": "queued", "reason": "no_gpu_available"})
        await tunnel.ping(b"while queued")
        return tunnel

    async def whole_messages(self, tunnel: Tunnel, session: str) -> None:
        """Session 1: unfragmented, one after the other, then a burst."""
        await tunnel.control({"type": "session_open", "session_id": session})
        for size in SIZES:
            await self.exchange(tunnel, session, f"{size} B whole", self.payload(size))
        for length in FRAME_LENGTHS:
            payload = self.payload(length - len(data_frame(session, b"")))
            await self.exchange(tunnel, session, f"a frame of {length} B", payload)
        burst = [self.payload(size) for size in self.random.sample(range(1, 20_000), BURST)]
        self.observations += BURST
        for payload in burst:
            await tunnel.send_whole(data_frame(session, payload))
        for number, payload in enumerate(burst, 1):
            frame = await self.next_frame(tunnel, f"answer {number} of the burst")
            self.compare(f"burst, answer {number} of {BURST} in order", session, payload, frame)
        self.check("the token is not in the shared region", not self.sidecar.region_holds_token())
        await tunnel.control({"type": "session_close", "session_id": session, "reason": "case_done"})

    async def fragments_and_cuts(self, tunnel: Tunnel, session: str) -> Tunnel:
        """Session 2: fragmented, with pings in between; two cuts, each followed by the same session."""
        # Another order of fields, raw UTF-8, and fields that nobody announced.
        await tunnel.control(
            f'{{"extra": {{"a": [1, null, "}}"]}}, "session_id": "{session}", "type": "session_open"}}'
        )
        for size, fragment in FRAGMENTED:
            await self.fragmented(tunnel, session, size, fragment)

        await self.exchange(tunnel, session, "the observation before the first cut", self.payload(5000))
        tunnel = await self.cut(tunnel, "redial after a cut between observations")
        await self.exchange(tunnel, session, "the same session goes on after the cut", self.payload(65_536))

        half = data_frame(session, self.payload(200_000))
        await tunnel.send_unfinished(half[:100_000], 4096)
        await tunnel.ping(b"half of it is there")
        tunnel = await self.cut(tunnel, "redial after a cut inside a message")
        await self.exchange(tunnel, session, "half a message left nothing behind", self.payload(200_000))
        await self.fragmented(tunnel, session, 65_536, 4096)
        await tunnel.control({"type": "session_close", "session_id": session})
        return tunnel

    async def cut(self, tunnel: Tunnel, what: str) -> Tunnel:
        """Resets the connection and waits for the same agent's next one."""
        agents = tunnel.agents
        tunnel.cut()
        started = time.monotonic()
        tunnel = await self.arrival(REDIAL, what)
        self.check(f"{what}: the same agent id", tunnel.agents == agents, f"{tunnel.agents} after {agents}")
        print(f"      {what}: {(time.monotonic() - started) * 1000:.0f} ms after the cut", flush=True)
        return tunnel

    async def odd_frames_and_drain(self, tunnel: Tunnel, session: str, closed_session: str) -> None:
        """Session 3: unknown control types, a frame for a closed session, and drain before the answer."""
        await tunnel.control({"type": "session_open", "session_id": session})
        await self.exchange(tunnel, session, "a session id of 256 bytes", self.payload(126))
        await tunnel.control(
            {"type": "fleet_notice", "session_id": session, "level": 3, "nested": {"type": "drain"}}
        )
        await tunnel.control({"type": "x" * 5000})
        await self.exchange(tunnel, session, "unknown control types change nothing", self.payload(65_535))
        await tunnel.send_whole(data_frame(closed_session, self.payload(1000)))
        await self.exchange(tunnel, session, "a frame for a closed session gets no answer", self.payload(1))
        await self.exchange(tunnel, session, "3000000 B under the long session id", self.payload(3_000_000))

        last = self.payload(3_000_000)
        self.observations += 1
        await tunnel.send_whole(data_frame(session, last))
        await tunnel.control({"type": "drain", "reason": "job_complete"})
        frame = await self.next_frame(tunnel, "an answer to the observation before drain")
        self.compare("drain waits for the last answer", session, last, frame)
        end = await self.within(DRAINED, "close after drain", tunnel.inbox.get())
        self.check("after drain the agent closes with 1000", end == Closed(1000), repr(end)[:200])

    async def after_the_end(self) -> None:
        """What must hold once the sidecar is gone."""
        await asyncio.wait({self.sidecar.ended}, timeout=DRAINED)
        code = self.sidecar.ended.result() if self.sidecar.ended.done() else None
        self.check("exit code 0 after drain", code == 0, f"exit code {code}")
        left = await self.sidecar.survivors_after(5.0)
        self.check("no process is left", not left, f"pids {left}")
        self.check("the region is gone", not self.sidecar.files(), str(self.sidecar.files()))
        self.check("never redials after drain", self.arrivals.empty())
        self.check("every dial carried the token", not self.refused, f"refused: {self.refused}")
        self.check(
            "one answer for each observation",
            self.answers == self.observations,
            f"{self.answers} for {self.observations}",
        )
        noted = self.sidecar.noted()
        surprises = {entry: count for entry, count in noted.items() if not entry.startswith(EXPECTED)}
        self.check("nothing else is noted in the region", not surprises, str(surprises))
        self.check("the frame for a closed session is counted", noted.get("dropped_frames") == 1, str(noted))
        self.check("the token is not in the output", self.sidecar.token not in self.sidecar.output())

    async def play(self) -> None:
        """The whole scenario, in order."""
        first, second, third = "case-1", "Sitzung-zwei-äöü-✓", "c" * 256
        server = serve(
            self.connected,
            "127.0.0.1",
            0,
            process_request=self.admit,
            compression=None,
            max_size=None,
            ping_interval=None,
            close_timeout=2,
        )
        async with server as listening:
            await self.sidecar.start(listening.sockets[0].getsockname()[1])
            tunnel = await self.warm_up()
            await self.whole_messages(tunnel, first)
            tunnel = await self.fragments_and_cuts(tunnel, second)
            await self.odd_frames_and_drain(tunnel, third, first)
            await self.after_the_end()


def kind(message: object) -> str | None:
    """The `type` of a control frame, None for anything else."""
    try:
        return json.loads(message).get("type") if isinstance(message, str) else None
    except (ValueError, AttributeError):
        return None


def is_uuid4(text: str) -> bool:
    try:
        return uuid.UUID(text).version == 4 and len(text) == 36
    except ValueError:
        return False


async def run(binary: str, driver: str, seed: int) -> int:
    """Plays it once under the overall deadline; whatever happens, nothing of it stays behind."""
    sidecar = SidecarProcess(binary, driver, str(uuid.uuid4()), "token-" + secrets.token_hex(16))
    gateway = Gateway(sidecar, seed)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    try:
        await asyncio.wait_for(gateway.play(), WHOLE_RUN)
    except Stop as stop:
        gateway.check("the run goes on", False, str(stop))
    except asyncio.TimeoutError:
        gateway.check(f"the run ends within {WHOLE_RUN:.0f} s", False)
    finally:
        await sidecar.clean_up()
    if gateway.verdict.failed:
        tail = sidecar.output().replace(sidecar.token, "<token>").splitlines()[-40:]
        print("--- the sidecar's last lines", *tail, "---", sep="\n", flush=True)
    return gateway.verdict.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="an independent gateway against the real sidecar")
    parser.add_argument("sidecar", help="path of the sidecar binary")
    parser.add_argument("driver", choices=["uring", "epoll"])
    parser.add_argument("--seed", type=int, default=1, help="for the payloads (default: 1)")
    arguments = parser.parse_args()
    print(f"gateway on websockets, driver {arguments.driver}, seed {arguments.seed}", flush=True)
    return asyncio.run(run(arguments.sidecar, arguments.driver, arguments.seed))


if __name__ == "__main__":
    sys.exit(main())
