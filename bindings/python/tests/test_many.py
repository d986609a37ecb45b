"""One worker for two sidecars."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Callable

import pytest

import sidecar
from gateway import Rig, until


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


def frames_in(rig: Rig, count: int) -> None:
    """Waits until so many observations were received, and all that was said before them."""
    until(lambda: rig.stat()["counters"]["frames_in"] >= count, f"{count} observations")


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


def test_a_reservation_is_of_its_own_sidecar_alone(two: Two) -> None:
    """Both observations have the same number, each at its sidecar."""
    rigs, worker = two
    for at, rig in enumerate(rigs):
        rig.observe(f"s{at}", b"x")
    first, second = worker.take(10), worker.take(10)
    assert first.sequence == second.sequence
    reserved = first.reserve(1)
    with pytest.raises(sidecar.StateError, match="of sidecar") as caught:
        second.answer(reserved)
    assert caught.value.code is sidecar.Code.ERR_MISMATCH
    memoryview(reserved)[:] = b"1"
    first.answer(reserved)
    second.answer(b"2")
    assert rigs[first.source].action()[1] == b"1" and rigs[second.source].action()[1] == b"2"


def test_a_batch_ends_where_a_session_does(two: Two) -> None:
    rigs, worker = two
    told: list[str] = []
    worker.on_close = lambda session: told.append(f"{session.id} closed")
    worker.on_open = lambda session: told.append(f"{session.id} opened")
    rigs[0].observe("s0", b"last")
    rigs[0].close_session("s0")
    rigs[0].open("s2")
    rigs[0].observe("s2", b"first")
    frames_in(rigs[0], 2)
    batch = worker.take_batch(8)
    assert [bytes(one.payload) for one in batch] == [b"last"] and told == []
    assert batch[0].session.id == "s0" and batch[0].session.is_open
    batch = worker.take_batch(8)
    assert [bytes(one.payload) for one in batch] == [b"first"]
    assert told == ["s0 closed", "s2 opened"]
    # What ended a batch is due first, however the worker goes on.
    batch[0].answer(b"y")
    rigs[0].action()
    rigs[0].observe("s2", b"more")
    rigs[0].close_session("s2")
    rigs[0].open("s3")
    rigs[0].observe("s3", b"x")
    frames_in(rigs[0], 4)
    batch = worker.take_batch(8)
    assert len(batch) == 1
    batch[0].release()
    thread = threading.Thread(target=lambda: worker.serve(lambda observation: b"served"))
    thread.start()
    assert rigs[0].action() == ("s3", b"served")
    assert told[2:] == ["s2 closed", "s3 opened"]
    assert [rig.end() for rig in rigs] == [0, 0]
    thread.join(20)
    assert not thread.is_alive()
