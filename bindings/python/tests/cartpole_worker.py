"""Balances the cart-pole, for as long as it lives. Run by the sidecar: `python cartpole_worker.py [SECONDS_TO_THINK]`."""

import struct
import sys
import time

from sidecar import Observation, Worker

# A linear controller: position, velocity, angle, angular velocity.
WEIGHTS = (0.1, 0.4, 4.0, 1.0)
THINK = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0


def act(observation: Observation) -> bytes:
    state = struct.unpack_from("<4f", observation)
    if THINK:
        time.sleep(THINK)
    return b"\1" if sum(weight * value for weight, value in zip(WEIGHTS, state)) > 0 else b"\0"


if __name__ == "__main__":
    Worker().serve(act)
