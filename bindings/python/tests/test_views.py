"""Views keep their slot, and never see it used again."""

from __future__ import annotations

import copy
import gc
import pickle
import queue
import threading
import time
import tracemalloc
import weakref

import pytest

import sidecar
from conftest import warm_up
from gateway import Rig, until

Played = tuple[Rig, sidecar.Worker]
SLOTS = 4


def lent_slots(rig: Rig) -> int:
    return rig.stat()["gauges"]["lent_slots"]


def exchange(rig: Rig, worker: sidecar.Worker, payload: bytes) -> None:
    rig.observe("one", payload)
    worker.take(10).answer(b"y")
    rig.action()


def test_a_view_is_read_only(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"payload")
    observation = worker.take(10)
    view = memoryview(observation)
    assert view.readonly and view.format == "B" and view.shape == (7,)
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_view_keeps_the_slot_after_the_answer(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"first" * 1000)
    observation = worker.take(10)
    view = observation.payload
    assert observation.views == 1
    with pytest.raises(BufferError, match="1 views"):
        observation.release()
    observation.answer(b"y")
    assert rig.action()[1] == b"y", "the action does not wait for the view"
    # The slots that are left go round many times.
    for round in range(5 * SLOTS):
        exchange(rig, worker, bytes([round]) * 5000)
    assert view == b"first" * 1000
    assert lent_slots(rig) == 1
    with pytest.raises(BufferError, match="given back"):
        memoryview(observation)
    view.release()
    assert observation.views == 0
    until(lambda: lent_slots(rig) == 0, "the slot's way back")


def test_a_view_outlives_the_observation_and_the_worker(rig: Rig) -> None:
    worker = sidecar.Worker(rig.shm)
    warm_up(rig, worker)
    rig.observe("one", b"still here")
    observation = worker.take(10)
    gone = weakref.ref(observation)
    view = observation.payload[6:]
    observation.answer(b"y")
    assert rig.action()[1] == b"y"
    worker.close()
    del observation, worker
    gc.collect()
    assert gone() is not None, "the view holds it"
    assert view == b"here"
    del view
    gc.collect()
    assert gone() is None


def test_an_observation_that_nobody_holds_gives_its_slot_back(played: Played) -> None:
    rig, worker = played
    for _ in range(3 * SLOTS):
        exchange(rig, worker, b"x")
    until(lambda: lent_slots(rig) == 0, "the slots' way back")
    rig.observe("one", b"x")
    observation = worker.take(10)
    array = memoryview(observation).cast("B")
    observation.answer(b"y")
    rig.action()
    until(lambda: lent_slots(rig) == 1, "the view's slot")
    del observation, array
    until(lambda: lent_slots(rig) == 0, "the slot's way back")


def test_an_observation_in_its_sessions_state_is_collected(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    # The session may be over before its answer is sent.
    rig.expect_noted("dropped_actions")
    observation.session.state = observation
    gone = weakref.ref(observation)
    observation.answer(b"y")
    rig.close_session("one")
    assert isinstance(worker.next(10), sidecar.SessionClosed)
    rig.open("two")
    assert isinstance(worker.next(10), sidecar.SessionOpened)
    del observation
    gc.collect()
    assert gone() is None


def test_nothing_leaks(played: Played) -> None:
    rig, worker = played

    def rounds(count: int) -> None:
        for index in range(count):
            rig.observe("one", b"x" * 1000)
            observation = worker.take(10)
            view = observation.payload
            if index % 3 == 0:
                del view
            observation.answer(memoryview(b"answer"))
            rig.action()

    rounds(20)
    gc.collect()
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        rounds(1000)
        gc.collect()
        end, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A leaked object of 100 bytes would make more; buffers of the test's own gateway make up to 70 kB.
    assert end - start < 100_000, f"{end - start} bytes more after 1000 rounds"
    assert not [one for one in gc.get_objects() if isinstance(one, sidecar.Observation)]
    until(lambda: lent_slots(rig) == 0, "no slot with us")


def test_handles_refuse_pickling_and_copying(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    reserved = observation.reserve(1)
    for handle in (worker, observation, reserved, observation.session):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(handle)
        with pytest.raises(TypeError, match="pickled"):
            copy.copy(handle)
        with pytest.raises(TypeError, match="pickled"):
            copy.deepcopy(handle)


def test_other_threads_answer_while_one_waits(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    waiting = threading.Event()
    came: list[object] = []

    def wait() -> None:
        waiting.set()
        came.append(worker.take(10))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    observation.answer(b"from the main thread")
    assert rig.action()[1] == b"from the main thread"

    def busy() -> bool:
        try:
            worker.next(0)
        except RuntimeError as error:
            assert "another thread" in str(error)
            return True
        return False

    until(busy, "the other thread's wait")
    rig.observe("one", b"y")
    thread.join(10)
    assert isinstance(came[0], sidecar.Observation)
    came[0].answer(b"z")
    assert rig.action()[1] == b"z"


def test_a_with_block_gives_the_slot_back_and_hides_no_exception(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    with pytest.raises(KeyError), worker.take(10) as observation:
        raise KeyError("of the user")
    assert "released" in repr(observation)
    rig.observe("one", b"y")
    with pytest.raises(KeyError), worker.take(10) as observation:
        view = observation.payload
        raise KeyError("of the user, with a view alive")
    assert view == b"y" and observation.views == 1
    del view
    with pytest.raises(BufferError, match="1 views"), observation:
        held = observation.payload
    del held
    observation.answer(b"z")
    assert rig.action()[1] == b"z"


def test_a_view_keeps_its_bytes_over_the_death_of_the_sidecar(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"of before" * 1000)
    observation = worker.take(10)
    view = observation.payload
    observation.answer(b"y")
    rig.action()
    rig.restart()
    # The session goes on; the slots that are left go round many times at the successor, too.
    for round in range(5 * SLOTS):
        exchange(rig, worker, bytes([round]) * 9000)
    assert view == b"of before" * 1000
    view.release()
    until(lambda: lent_slots(rig) == 0, "the slot's way back")


def test_a_view_keeps_its_bytes_when_its_worker_is_closed_and_others_follow(rig: Rig) -> None:
    first = sidecar.Worker(rig.shm)
    warm_up(rig, first)
    rig.observe("one", b"of the first" * 1000)
    observation = first.take(10)
    view = observation.payload
    observation.answer(b"y")
    rig.action()
    first.close()
    with sidecar.Worker(rig.shm) as second:
        while not isinstance(event := second.next(10), sidecar.SessionOpened):
            if isinstance(event, sidecar.Warmup):
                event.ready()
        for round in range(5 * SLOTS):
            exchange(rig, second, bytes([round]) * 12000)
        assert view == b"of the first" * 1000
        # The slot comes back from a worker that was closed long ago.
        assert lent_slots(rig) == 1
        del view, observation
        until(lambda: lent_slots(rig) == 0, "the slot's way back")
        exchange(rig, second, b"and on")


def test_many_threads_answer_and_no_view_sees_another_observation(played: Played) -> None:
    """All slots are under way, and views come and go in every thread while the last one ends elsewhere."""
    rig, worker = played
    rig.expect_noted("all observation slots are taken")
    count, threads = 400, 4
    waiting: queue.Queue[sidecar.Observation | None] = queue.Queue()
    wrong: list[int] = []

    def act() -> None:
        while (observation := waiting.get()) is not None:
            views = [memoryview(observation) for _ in range(3)]
            expected = views[0][:4].tobytes() * 512
            observation.answer(views[1][:4])
            for view in views:
                if view != expected:
                    wrong.append(observation.sequence)
                view.release()
                # Long enough for the next observation to come into a slot that was given back too early.
                time.sleep(0.001)
            del observation, view, views

    workers = [threading.Thread(target=act) for _ in range(threads)]
    for thread in workers:
        thread.start()
    sent = 0
    answered = []
    try:
        while len(answered) < count:
            while sent < count and sent - len(answered) < SLOTS:
                rig.observe("one", sent.to_bytes(4, "big") * 512)
                waiting.put(worker.take(10))
                sent += 1
            answered.append(int.from_bytes(rig.action()[1], "big"))
    finally:
        for _ in workers:
            waiting.put(None)
        for thread in workers:
            thread.join(30)
    assert sorted(answered) == list(range(count)) and wrong == []
    until(lambda: lent_slots(rig) == 0, "all slots' way back")
