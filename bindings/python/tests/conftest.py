"""Fixtures: a real sidecar on a gateway of ours. `SIDECAR_BIN` names the binary."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import sidecar
from gateway import Rig

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def binary() -> str:
    found = Path(os.environ.get("SIDECAR_BIN", ROOT / "target/release/sidecar"))
    if not found.is_file():
        pytest.fail(f"no sidecar at {found}: `cargo build --release`, or say where it is in SIDECAR_BIN")
    return str(found)


@pytest.fixture
def make_rig(binary: str) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(*flags: str, **settings: Any) -> Rig:
        rigs.append(Rig(binary, *flags, **settings))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.clean_up()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


@pytest.fixture
def played(rig: Rig) -> Iterator[tuple[Rig, sidecar.Worker]]:
    """A warm worker in this process, and an open session `one`."""
    with sidecar.Worker(rig.shm) as worker:
        warm_up(rig, worker)
        yield rig, worker


def warm_up(rig: Rig, worker: sidecar.Worker, session: str = "one") -> None:
    """Through the warm-up and into a session."""
    rig.control(type="warmup")
    event = worker.next(30)
    assert isinstance(event, sidecar.Warmup)
    event.ready()
    rig.expect("ready")
    rig.open(session)
    event = worker.next(30)
    assert isinstance(event, sidecar.SessionOpened)
    assert event.session.id == session
