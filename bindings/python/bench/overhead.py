"""What a Python worker costs on top of the built-in one: empty handler, 64 B, in lockstep.

    SIDECAR_BIN=target/release/sidecar python bindings/python/bench/overhead.py [--rounds N] [--cpu N]

Both workers play the same rounds, alternately, against the same kind of gateway. Compared is what the sidecar measures
between an observation's last byte and the action's publication (`hand_over` + `worker`), as medians of each turn. With
`--cpu` everything runs on one processor; without, runs are bimodal where processors have to wake each other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gateway import Rig

PYTHON = "import sidecar; sidecar.Worker().serve(lambda observation: b'')"
#: The design's target (issue "For the people who bring the model").
TARGET_US = 3.0


def turn(binary: str, command: list[str], rounds: int) -> dict[str, float]:
    """Medians in microseconds."""
    rig = Rig(binary, command=command)
    try:
        rig.warm_up()
        rig.open("bench")
        payload = bytes(64)
        for _ in range(rounds):
            rig.observe("bench", payload)
            rig.action()
        stages = rig.stat()["latency_ns"]
        rig.end()
    finally:
        rig.clean_up()
    return {name: stages[name]["p50"] / 1000 for name in ("hand_over", "worker", "total")}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rounds", type=int, default=5000)
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--cpu", type=int)
    chosen = options.parse_args()
    binary = os.environ.get("SIDECAR_BIN", "target/release/sidecar")
    if chosen.cpu is not None:
        os.sched_setaffinity(0, {chosen.cpu})
    commands = {
        "rust": [binary, "worker", "--policy", "noop"],
        "python": [sys.executable, "-c", PYTHON],
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(chosen.turns):
        for name, command in commands.items():
            found[name].append(turn(binary, command, chosen.rounds))
    both = {name: [one["hand_over"] + one["worker"] for one in turns] for name, turns in found.items()}
    extra = [python - rust for python, rust in zip(both["python"], both["rust"])]
    # Where one processor serves all, what the worker does after it has published delays the rest as well.
    total = [python["total"] - rust["total"] for python, rust in zip(found["python"], found["rust"])]
    result = {
        "turns": found,
        "extra_us": {"median": statistics.median(extra), "least": min(extra), "most": max(extra)},
        "extra_total_us": {"median": statistics.median(total), "least": min(total), "most": max(total)},
        "target_us": TARGET_US,
        "verdict": "pass"
        if max(extra) <= TARGET_US
        else "miss"
        if min(extra) > TARGET_US
        else "undecided",
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
