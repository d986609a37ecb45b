#!/usr/bin/env python3
"""An independent agent for the rehearsal gateway: the client of tunnel contract A.7 on the `websockets` package.

    JOB_TOKEN=... a7_client.py URL [JOB] [--cases N]

It balances cart-pole in one tunnel, one session a case, until `drain`. It shares no code with the gateway or the
sidecar: that is the point of it. Everything that the contract promises is checked on the way; the exit code is 0,
and the last line `1 passed, 0 failed`, only if `drain` came after exactly the sessions that were expected.
"""

import argparse
import asyncio
import json
import os
import struct
import sys
import uuid

import websockets

DEFAULT_JOB = "6f1f7a52-6f5e-4f43-9d0e-2b6b5f0a9c11"
STEPS = 500
# A whole job of five cases takes seconds; this only keeps a broken run from waiting for ever.
WHOLE_RUN = 120.0


class Broken(Exception):
    """The gateway did what the contract does not allow, or left out what it promises."""


def infer(payload: bytes) -> bytes:
    """The linear policy: push to the side to which cart and pole are falling. Empty in, no-op out (A.3)."""
    if not payload:
        return b""
    if len(payload) < 16:
        raise Broken(f"an observation of {len(payload)} bytes holds no state")
    x, x_dot, theta, theta_dot = struct.unpack_from("<4f", payload)
    return b"\x01" if 0.1 * x + 0.4 * x_dot + 4.0 * theta + theta_dot > 0.0 else b"\x00"


class Agent:
    """One tunnel: what A.7 calls run_agent, with its promises checked."""

    def __init__(self) -> None:
        self.warm = False
        self.open: str | None = None
        self.sessions: list[str] = []
        self.observations = 0

    async def run(self, url: str, token: str, job: str) -> None:
        """Plays until `drain`; raises `Broken` if anything else ends the tunnel."""
        endpoint = f"{url}?job={job}&agent={uuid.uuid4()}"
        headers = {"Authorization": f"Bearer {token}"}
        async with websockets.connect(
            endpoint,
            additional_headers=headers,
            ping_interval=20,
            ping_timeout=10,
            max_size=None,
            compression=None,
        ) as ws:
            async for message in ws:
                if isinstance(message, str):
                    if await self.control(ws, json.loads(message)):
                        return
                else:
                    await ws.send(self.answer(message))
        raise Broken(f"the tunnel was closed without drain (code {ws.close_code})")

    async def control(self, ws, frame: dict) -> bool:
        """Takes a control frame (A.2); True on `drain`."""
        kind = frame.get("type")
        if kind == "warmup":
            self.warm = True
            await ws.send(json.dumps({"type": "ready"}))
        elif kind == "session_open":
            if not self.warm:
                raise Broken("a session was opened before warmup")
            if self.open is not None:
                raise Broken("a session was opened inside another one")
            self.open = frame["session_id"]
            if self.open in self.sessions:
                raise Broken(f"session {self.open} was opened twice")
            self.sessions.append(self.open)
            self.observations = 0
        elif kind == "session_close":
            if frame["session_id"] != self.open:
                raise Broken(f"session {frame['session_id']} was closed while {self.open} is open")
            if self.observations != STEPS:
                raise Broken(f"a session ended after {self.observations} of {STEPS} steps: {frame.get('reason')}")
            print(f"ok    session {self.open}: {self.observations} steps", flush=True)
            self.open = None
        elif kind == "drain":
            if self.open is not None:
                raise Broken("drain came inside a session")
            return True
        return False

    def answer(self, message: bytes) -> bytes:
        """The answer to a data frame (A.3), under the same session id."""
        (length,) = struct.unpack(">I", message[:4])
        session = message[4 : 4 + length].decode("utf-8")
        # The warm-up round trip has an empty session id.
        if session and session != self.open:
            raise Broken(f"an observation came for session {session} while {self.open} is open")
        self.observations += 1 if session else 0
        return message[: 4 + length] + infer(message[4 + length :])


def main() -> int:
    parser = argparse.ArgumentParser(description="the client of tunnel contract A.7 on websockets")
    parser.add_argument("url", help="ws://HOST:PORT/PATH of the gateway")
    parser.add_argument("job", nargs="?", default=DEFAULT_JOB, help="job id")
    parser.add_argument("--cases", type=int, default=5, help="sessions to expect")
    arguments = parser.parse_args()
    token = os.environ.get("JOB_TOKEN")
    if not token:
        parser.error("JOB_TOKEN is not set")

    agent = Agent()
    try:
        asyncio.run(asyncio.wait_for(agent.run(arguments.url, token, arguments.job), WHOLE_RUN))
        if len(agent.sessions) != arguments.cases:
            raise Broken(f"{len(agent.sessions)} sessions before drain instead of {arguments.cases}")
    except asyncio.TimeoutError:  # the builtin of that name only from Python 3.11
        failure = f"no drain within {WHOLE_RUN:.0f} s"
    except (Broken, OSError, ValueError, KeyError, struct.error, websockets.WebSocketException) as error:
        failure = f"{type(error).__name__}: {error}"
    else:
        print(f"ok    drain after {len(agent.sessions)} sessions\n1 passed, 0 failed", flush=True)
        return 0
    print(f"FAIL  {failure}\n0 passed, 1 failed", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
