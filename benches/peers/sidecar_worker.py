#!/usr/bin/env python3
"""A worker on our own package, through its lowest layer: usage sidecar_worker.py REGION."""

import sys

from reply import reply
from sidecar import Worker


def main(region: str) -> None:
    with Worker(region) as worker:
        worker.serve(lambda observation: reply(memoryview(observation)))


main(sys.argv[1])
