"""`serve`: hooks, the no-op, and what becomes of a handler's exception."""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable

import pytest

import sidecar
from gateway import Rig, until


class Serving:
    """`serve` in a thread, since the tests play the gateway."""

    def __init__(self, rig: Rig, handler: Callable[[sidecar.Observation], Any], **options: Any) -> None:
        self.worker = sidecar.Worker(rig.shm)
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.worker.serve(handler, **options)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def join(self) -> None:
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.worker.close()


def test_a_whole_job_with_its_hooks(rig: Rig) -> None:
    told: list[object] = []

    def handler(observation: sidecar.Observation) -> object:
        told.append(bytes(observation.payload))
        return observation

    serving = Serving(
        rig,
        handler,
        on_warmup=lambda: told.append("warm"),
        on_open=lambda session: told.append(("open", session.id, session.resumed)),
        on_close=lambda session: told.append(("close", session.id)),
        noop=b"noop",
    )
    rig.warm_up()
    # Again, as after a redial: the model is warm.
    for session in ("one", "two"):
        rig.open(session)
        rig.observe(session, b"echo")
        assert rig.action() == (session, b"echo")
        rig.observe(session, b"")
        assert rig.action() == (session, b"noop"), "without the handler"
        rig.close_session(session)
    assert rig.end() == 0
    serving.join()
    assert serving.error is None
    assert told == [
        "warm",
        ("open", "one", False),
        b"echo",
        ("close", "one"),
        ("open", "two", False),
        b"echo",
        ("close", "two"),
    ]


def test_a_failing_handler_is_logged_and_reported(
    make_rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    reply = tmp_path / "reply"
    reply.write_bytes(b"failure reply")
    rig = make_rig("--on-failure", "reply", "--failure-reply", str(reply))
    rig.expect_noted("failed", "worker failed: ")

    def handler(observation: sidecar.Observation) -> object:
        if observation.payload == b"bad":
            raise ZeroDivisionError("no such policy")
        if observation.payload == b"none":
            return None
        if observation.payload == b"large":
            return bytes(65_537)
        if observation.payload == b"by itself":
            observation.answer(b"answered")
            return None
        return b"good"

    serving = Serving(rig, handler)
    rig.warm_up()
    rig.open("one")
    for payload, expected in [
        (b"bad", b"failure reply"),
        (b"none", b"failure reply"),
        (b"large", b"failure reply"),
        (b"by itself", b"answered"),
        (b"fine", b"good"),
    ]:
        rig.observe("one", payload)
        assert rig.action() == ("one", expected), payload
    assert rig.end() == 0
    serving.join()
    errors = [
        record
        for record in caplog.records
        if record.name == "sidecar" and record.levelno == logging.ERROR
    ]
    assert len(errors) == 3
    assert "ZeroDivisionError: no such policy" in caplog.text and "in handler" in caplog.text
    # The sidecar's log has the line and the place.
    output = rig.output()
    assert "ZeroDivisionError: no such policy (test_serve.py:" in output, output
    assert "returned None" in output and "--action-bytes" in output


def test_a_handler_may_end_the_process_instead(rig: Rig) -> None:
    def handler(observation: sidecar.Observation) -> bytes:
        raise ZeroDivisionError("fatal")

    serving = Serving(rig, handler, on_error="raise")
    rig.warm_up()
    rig.open("one")
    rig.observe("one", b"x")
    serving.join()
    assert isinstance(serving.error, ZeroDivisionError)
    assert "worker failed" not in rig.output()
    with pytest.raises(ValueError, match="on_error"):
        sidecar.Worker.serve(serving.worker, handler, on_error="ignore")  # type: ignore[arg-type]


def test_a_failing_warm_up_ends_the_sidecar_with_its_message(rig: Rig) -> None:
    def load() -> None:
        raise MemoryError("weights of 80 GB")

    rig.expect_noted("warm-up failed: MemoryError: weights of 80 GB")
    serving = Serving(rig, lambda observation: b"", on_warmup=load)
    rig.control(type="warmup")
    serving.join()
    assert isinstance(serving.error, MemoryError)
    assert rig.sidecar.wait(20) == 1
    assert "weights of 80 GB" in rig.output()


def test_nothing_is_held_between_two_observations(rig: Rig) -> None:
    """Neither the loop nor the handler's result keeps the slot while the next observation is waited for."""
    serving = Serving(rig, lambda observation: observation.payload)
    rig.warm_up()
    rig.open("one")
    rig.observe("one", b"x")
    assert rig.action()[1] == b"x"
    until(lambda: rig.stat()["gauges"]["lent_slots"] == 0, "the slot's way back")
    assert rig.end() == 0
    serving.join()


def test_iteration_calls_hooks_and_delivers_empty_observations(rig: Rig) -> None:
    told: list[object] = []

    def run() -> None:
        with sidecar.Worker(
            rig.shm,
            on_warmup=lambda: told.append("warm"),
            on_open=lambda session: told.append(session.id),
            on_close=lambda session: told.append(session.is_open),
        ) as worker:
            for observation in worker:
                observation.answer(b"empty" if observation.is_empty else observation)

    thread = threading.Thread(target=run)
    thread.start()
    rig.warm_up()
    rig.open("one")
    rig.observe("one", b"")
    assert rig.action()[1] == b"empty"
    rig.observe("one", b"full")
    assert rig.action()[1] == b"full"
    rig.close_session("one")
    assert rig.end() == 0
    thread.join(30)
    assert told == ["warm", "one", False]


def test_all_events_can_be_had_without_hooks(rig: Rig) -> None:
    kinds: list[str] = []

    def run() -> None:
        with sidecar.Worker(rig.shm) as worker:
            for event in worker.events():
                kinds.append(type(event).__name__)
                if isinstance(event, sidecar.Warmup):
                    event.ready()
                elif isinstance(event, sidecar.Observation):
                    event.answer(b"y")

    thread = threading.Thread(target=run)
    thread.start()
    rig.warm_up()
    rig.open("one")
    rig.observe("one", b"x")
    rig.action()
    rig.close_session("one")
    assert rig.end() == 0
    thread.join(30)
    assert kinds == ["Warmup", "SessionOpened", "Observation", "SessionClosed", "Drain"]


def test_coroutine_functions_are_refused_where_nobody_waits_for_them(rig: Rig) -> None:
    async def coroutine(*_: object) -> bytes:
        return b""

    rig.expect_noted("warm-up failed: TypeError: a hook is a coroutine function")
    with sidecar.Worker(rig.shm, on_warmup=coroutine) as worker:
        with pytest.raises(TypeError, match="async for"):
            worker.serve(coroutine)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="an action is bytes"):
            worker.serve(lambda observation: b"", noop="nothing")  # type: ignore[arg-type]
        rig.control(type="warmup")
        with pytest.raises(TypeError, match="a hook is a coroutine function"):
            worker.take(10)
    # The model was not loaded, and nobody was told that it was.
    assert rig.sidecar.wait(20) == 1
    assert "coroutine" in rig.output()
