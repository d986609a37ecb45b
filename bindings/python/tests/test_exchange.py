"""Observations in, actions out: what may be one, and what is told about them."""

from __future__ import annotations

import array
import time

import pytest

import sidecar
from gateway import Rig, until

Played = tuple[Rig, sidecar.Worker]


def test_an_observation_is_answered(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"state")
    observation = worker.take(10)
    assert bytes(observation.payload) == b"state"
    assert observation.nbytes == 5
    assert not observation.is_empty and not observation.answered and not observation.redelivered
    assert observation.session.id == "one" and observation.session.is_open
    assert observation.session.path == rig.shm
    stamps = (
        observation.first_byte_ns,
        observation.last_byte_ns,
        observation.published_ns,
        observation.taken_ns,
        time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    )
    assert list(stamps) == sorted(stamps) and stamps[0] > 0
    observation.answer(b"action")
    assert observation.answered
    assert rig.action() == ("one", b"action")
    with pytest.raises(RuntimeError, match="answered already"):
        observation.answer(b"again")
    with pytest.raises(BufferError, match="given back"):
        memoryview(observation)
    assert "answered" in repr(observation)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 4095, 4096, 65_536, 1_048_576])
def test_every_size_comes_whole(played: Played, size: int) -> None:
    rig, worker = played
    payload = bytes(index * 7 % 251 for index in range(size))
    rig.observe("one", payload)
    with worker.take(10) as observation:
        assert observation.is_empty == (size == 0)
        assert observation.payload == payload
        observation.answer(observation.payload[:65_536])
    assert rig.action()[1] == payload[:65_536]


@pytest.mark.parametrize(
    "action",
    [
        b"",
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(b"every second byte")[::2],
        array.array("f", [1.5, -2.0]),
    ],
    ids=lambda action: type(action).__name__,
)
def test_actions_are_whatever_is_bytes(played: Played, action: object) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    worker.take(10).answer(action)
    assert rig.action()[1] == bytes(memoryview(action).tobytes())


@pytest.mark.parametrize("action", ["text", 5, [1, 2], None, object()])
def test_what_is_no_action_is_refused_and_can_be_corrected(played: Played, action: object) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    with pytest.raises(TypeError, match="an action is bytes"):
        observation.answer(action)
    observation.answer(b"corrected")
    assert rig.action()[1] == b"corrected"


def test_an_action_that_does_not_fit_is_told(played: Played) -> None:
    rig, worker = played
    assert worker.action_bytes == 65_536
    rig.observe("one", b"x")
    observation = worker.take(10)
    with pytest.raises(sidecar.ActionTooLarge, match="--action-bytes") as caught:
        observation.answer(bytes(65_537))
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, sidecar.SidecarError)
    observation.answer(bytes(65_536))
    assert len(rig.action()[1]) == 65_536


def test_an_action_is_written_in_place(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    reserved = observation.reserve(4)
    with memoryview(reserved) as view:
        assert not view.readonly and view.nbytes == reserved.nbytes == 4
        view[:] = b"here"
        with pytest.raises(BufferError, match="could still write"):
            observation.answer(reserved)
    observation.answer(reserved)
    assert rig.action()[1] == b"here"
    with pytest.raises(BufferError, match="used already"):
        memoryview(reserved)


def test_reservations_run_out_and_come_back(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    held = [observation.reserve(1) for _ in range(16)]
    with pytest.raises(sidecar.AllReserved):
        observation.answer(b"y")
    held.pop().release()
    observation.answer(b"y")
    assert rig.action()[1] == b"y"
    rig.observe("one", b"x")
    other = worker.take(10)
    with pytest.raises(RuntimeError, match="reserved by observation"):
        other.answer(held[0])


def test_a_session_that_closes_is_seen_during_an_inference(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    assert not observation.cancelled
    rig.expect_noted("dropped_actions")
    rig.close_session("one")
    until(lambda: observation.cancelled, "the end of the session")
    closed = worker.next(10)
    assert isinstance(closed, sidecar.SessionClosed)
    assert closed.session is observation.session and not observation.session.is_open
    # Late: it goes nowhere, and that is no error.
    observation.answer(b"late")
    assert observation.cancelled
    rig.open("two")
    assert isinstance(worker.next(10), sidecar.SessionOpened)
    rig.observe("two", b"y")
    worker.take(10).answer(b"in time")
    assert rig.action() == ("two", b"in time")


def test_a_session_has_a_place_for_the_policy(played: Played) -> None:
    rig, worker = played
    for step in range(3):
        rig.observe("one", b"x")
        observation = worker.take(10)
        session = observation.session
        session.state = (session.state or 0) + 1
        observation.answer(bytes([session.state]))
        assert rig.action()[1] == bytes([step + 1])
    rig.close_session("one")
    rig.open("two")
    assert isinstance(worker.next(10), sidecar.SessionClosed)
    opened = worker.next(10)
    assert isinstance(opened, sidecar.SessionOpened) and opened.session.state is None


def test_a_timeout_is_told(played: Played) -> None:
    _, worker = played
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.15 s"):
        worker.take(0.15)
    assert time.monotonic() - start >= 0.15
    assert worker.next(0) is None
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="seconds"):
            worker.next(wrong)


def test_attaching_says_what_is_wrong(rig: Rig, tmp_path: object) -> None:
    with pytest.raises(sidecar.NoSidecar, match="--shm"):
        sidecar.Worker(f"{tmp_path}/nothing", timeout=0.2)
    with sidecar.Worker(rig.shm):
        start = time.monotonic()
        with pytest.raises(sidecar.Refused, match="worker"):
            sidecar.Worker(rig.shm, timeout=20)
        assert time.monotonic() - start < 5, "it does not wait for what waiting can't help"
    with pytest.raises(ValueError, match="path"):
        sidecar.Worker([])


def test_a_path_is_taken_from_the_environment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIDECAR_SHM", raising=False)
    with pytest.raises(ValueError, match="SIDECAR_SHM"):
        sidecar.Worker()
    monkeypatch.setenv("SIDECAR_SHM", rig.shm)
    with sidecar.Worker() as worker:
        assert worker.paths == (rig.shm,) and worker.attached == (True,)
        assert rig.shm in repr(worker)


def test_a_closed_worker_says_so(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"kept")
    observation = worker.take(10)
    view = observation.payload
    worker.close()
    worker.close()
    assert worker.closed and "closed" in repr(worker)
    assert view == b"kept", "views stay good"
    for act in (worker.next, lambda: observation.answer(b"x"), worker.fileno):
        with pytest.raises(RuntimeError, match="closed"):
            act()


def test_the_end_ends_the_iteration(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"last")
    iterator = iter(worker)
    next(iterator).answer(b"y")
    assert rig.action()[1] == b"y"
    rig.drain()
    assert list(iterator) == []
    assert rig.sidecar.wait(10) == 0
    with pytest.raises(sidecar.Ended):
        worker.take()
