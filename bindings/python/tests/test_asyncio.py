"""`async for`, beside other work of the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import sidecar
from gateway import Rig


def test_the_loop_runs_on_while_the_worker_waits(rig: Rig) -> None:
    ticks = 0
    told: list[object] = []

    async def warm() -> None:
        await asyncio.sleep(0)
        told.append("warm")

    async def opened(session: sidecar.Session) -> None:
        told.append(session.id)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async def infer(observation: sidecar.Observation) -> bytes:
        await asyncio.sleep(0)
        return bytes(observation.payload) + b"!"

    async def serve() -> None:
        ticking = asyncio.ensure_future(tick())
        with sidecar.Worker(
            rig.shm, on_warmup=warm, on_open=opened, on_close=lambda session: told.append("closed")
        ) as worker:
            async for observation in worker:
                observation.answer(await infer(observation))
                del observation
        ticking.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    rig.warm_up()
    rig.open("one")
    for step in range(30):
        before = ticks
        if step % 10 == 0:
            # Long enough for the loop to be asleep in its selector, and for others to run.
            threading.Event().wait(0.05)
            assert ticks > before
        rig.observe("one", bytes([step]))
        assert rig.action()[1] == bytes([step, ord("!")])
    rig.close_session("one")
    assert rig.end() == 0
    thread.join(30)
    assert not thread.is_alive()
    assert told == ["warm", "one", "closed"]


def test_a_task_that_waits_can_be_cancelled(rig: Rig) -> None:
    async def first(worker: sidecar.Worker) -> Any:
        async for observation in worker:
            return observation
        return None

    async def run() -> None:
        with sidecar.Worker(rig.shm) as worker:
            task = asyncio.ensure_future(first(worker))
            await asyncio.sleep(0.05)
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError)
            # The worker is as good as before.
            assert worker.next(0) is None

    asyncio.run(run())
