"""One worker for two sidecars."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Callable

import pytest

import sidecar
from gateway import Rig


@pytest.fixture
def two(make_rig: Callable[..., Rig]) -> Iterator[tuple[list[Rig], sidecar.Worker]]:
    """Warm, with the sessions `s0` and `s1`; the warm-up hook ran once."""
    rigs = [make_rig(), make_rig()]
    warmed: list[int] = []
    with sidecar.Worker([rig.shm for rig in rigs], on_warmup=lambda: warmed.append(1)) as worker:
        for at, rig in enumerate(rigs):
            rig.control(type="warmup")
            with pytest.raises(TimeoutError):
                while True:
                    worker.take(0.3)
            rig.expect("ready")
            rig.open(f"s{at}")
        with pytest.raises(TimeoutError):
            worker.take(0.3)
        assert warmed == [1]
        yield rigs, worker


Two = tuple[list[Rig], sidecar.Worker]


def test_each_answer_goes_to_its_own_tunnel(two: Two) -> None:
    rigs, worker = two
    for step in range(20):
        at = step % 2
        rigs[at].observe(f"s{at}", bytes([step]))
        observation = worker.take(10)
        assert observation.source == at and observation.session.id == f"s{at}"
        assert observation.session.path == rigs[at].shm
        observation.answer(bytes([step + 100]))
        assert rigs[at].action() == (f"s{at}", bytes([step + 100]))
    assert len(worker.observation_memory()) == 2 and worker.attached == (True, True)


def test_a_batch_has_what_is_there_in_order_of_arrival(two: Two) -> None:
    rigs, worker = two
    order = [1, 0, 1, 0]
    for step, at in enumerate(order):
        before = rigs[at].stat()["counters"]["frames_in"]
        rigs[at].observe(f"s{at}", bytes([step]))
        while rigs[at].stat()["counters"]["frames_in"] == before:
            pass
    batch = worker.take_batch(3)
    assert [(one.source, bytes(one.payload)[0]) for one in batch] == [(1, 0), (0, 1), (1, 2)]
    batch += worker.take_batch(3)
    assert len(batch) == 4
    for step, observation in enumerate(batch):
        observation.answer(bytes([step]))
    assert [rigs[at].action()[1] for at in order] == [b"\0", b"\1", b"\2", b"\3"]
    with pytest.raises(TimeoutError):
        worker.take_batch(3, timeout=0.05)
    with pytest.raises(ValueError, match="batch"):
        worker.take_batch(0)


def test_a_wait_ends_with_either_sidecar(two: Two) -> None:
    rigs, worker = two
    for at in (0, 1, 1, 0):
        came: list[sidecar.Observation] = []
        thread = threading.Thread(target=lambda came=came: came.append(worker.take(20)))
        thread.start()
        threading.Event().wait(0.02)
        rigs[at].observe(f"s{at}", b"wake")
        thread.join(20)
        assert came[0].source == at
        came[0].answer(b"up")
        assert rigs[at].action()[1] == b"up"


def test_one_sidecar_ends_and_the_other_is_served_on(two: Two) -> None:
    rigs, worker = two
    thread = threading.Thread(target=lambda: worker.serve(lambda observation: b"served"))
    thread.start()
    assert rigs[0].end() == 0
    for _ in range(3):
        rigs[1].observe("s1", b"x")
        assert rigs[1].action()[1] == b"served"
    assert thread.is_alive()
    assert rigs[1].end() == 0
    thread.join(20)
    assert not thread.is_alive()
