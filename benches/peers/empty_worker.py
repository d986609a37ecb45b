#!/usr/bin/env python3
"""A worker on our own package with a handler that does nothing: usage empty_worker.py CORE --shm REGION."""

import os
import sys

from sidecar import Worker


def main(core: str, region: str) -> None:
    with Worker(region) as worker:
        # Only now, so that it counted all cores before it decided whether to spin.
        os.sched_setaffinity(0, {int(core)})
        worker.serve(lambda observation: b"")


main(sys.argv[1], sys.argv[3])
