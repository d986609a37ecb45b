"""A Python worker for the harness in benches/: it replies what that one's gateway expects, see benches/src/reply.rs.

    python bindings/python/bench/worker.py REGION          or, started by a sidecar, without the region

The reply's first bytes are the observation's last ones, the rest is a pattern: that proves that all of the observation
was there, and costs next to nothing in any language.
"""

from __future__ import annotations

import sys

from sidecar import Observation, Worker

LARGE, SMALL, ECHOED = 7_680, 64, 8
#: Observations of a contest's size ask for its large reply.
CONTEST = (87_040, 786_432)
PATTERN = bytes((index * 7 + 3) & 0xFF for index in range(LARGE))
TAILS = {length: PATTERN[ECHOED:length] for length in (LARGE, SMALL)}


def act(observation: Observation) -> bytes:
    payload = observation.payload
    tail = TAILS[LARGE if payload.nbytes in CONTEST else SMALL]
    if payload.nbytes < ECHOED:
        return bytes(ECHOED) + tail
    return payload[-ECHOED:].tobytes() + tail


if __name__ == "__main__":
    Worker(sys.argv[1] if len(sys.argv) > 1 else None).serve(act, noop=bytes(ECHOED) + TAILS[SMALL])
