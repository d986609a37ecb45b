"""The worker: iteration, hooks, failure handling."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Union

from . import _native
from ._errors import Ended
from ._events import Drain, Session, SessionClosed, SessionOpened, SidecarGone, Warmup
from ._native import Observation

if TYPE_CHECKING:
    from typing import Literal

    from . import Payload

    Path = Union[str, "os.PathLike[str]"]
    Handler = Callable[[Observation], Union[Payload, None]]
    Event = Union[Observation, Warmup, SessionOpened, SessionClosed, Drain, SidecarGone]

log = logging.getLogger("sidecar")


class Worker:
    """A hold on the region of one sidecar, or of several.

    `path` is what the sidecar has as `--shm`; a list of paths serves several tunnels with one model. Without it, it is
    what the sidecar that started this process says in `SIDECAR_SHM`.

    :param timeout: seconds to wait for a sidecar that is not there yet.
    :param orphan_grace: seconds to look for a new sidecar when the last one died.
    :param stay: wait for the next sidecar also when one has ended in order.
    :param pin: page-lock the slots for the GPU: `True`, or the number that CUDA gives the device in this process. What
        keeps them from it is logged and stands in `pin_errors`; the worker goes on, its copies are slower. With it
        `Observation.device` is there, where the sidecar copies to this GPU; `device_errors` says why not.
    :param on_warmup: called once, before the first session: load the model, run it once.
    :param on_open: called with the `Session` that opened, before its first observation.
    :param on_close: called with the `Session` that is over.

    Hooks are plain functions; with `async for` they may be coroutine functions. What a hook raises is raised where the
    event was waited for. One thread at a time waits; any thread may answer.

    :raises NoSidecar: none came within `timeout`.
    :raises Refused: another worker is attached there.
    :raises RegionError: the region can't be used.
    """

    def __init__(
        self,
        path: Path | Sequence[Path] | None = None,
        *,
        timeout: float = 30.0,
        orphan_grace: float = 90.0,
        stay: bool = False,
        pin: bool | int = False,
        on_warmup: Callable[[], Any] | None = None,
        on_open: Callable[[Session], Any] | None = None,
        on_close: Callable[[Session], Any] | None = None,
    ) -> None:
        if path is None:
            path = os.environ.get("SIDECAR_SHM")
            if not path:
                raise ValueError(
                    "no path was given, and SIDECAR_SHM is not set: what is the sidecar's --shm?"
                )
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        #: The regions, as given.
        self.paths: tuple[str, ...] = tuple(os.fspath(path) for path in paths)
        #: The hooks; they may be changed at any time.
        self.on_warmup: Callable[[], Any] | None = on_warmup
        self.on_open: Callable[[Session], Any] | None = on_open
        self.on_close: Callable[[Session], Any] | None = on_close
        self._warm = False
        # Stands for a session that nobody announced.
        nobody = [Session("", 0, False, source, path) for source, path in enumerate(self.paths)]
        for session in nobody:
            session.is_open = False
        self._sessions = nobody
        self._ended: set[int] = set()
        # What ended a batch, and is due before anything else.
        self._ahead: tuple[Any, ...] | None = None
        self._native = _native.Workers(
            list(self.paths), list(nobody), timeout, orphan_grace, stay, _device(pin)
        )
        for source, error in enumerate(self.pin_errors):
            if error is not None:
                log.warning("the slots of %s: %s", self.paths[source], error)
        for source, error in enumerate(self.device_errors):
            if error is not None:
                log.warning("%s: %s", self.paths[source], error)

    # What comes

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event, whatever it is; no hook is called. `None` after `timeout` seconds without one.

        :raises Ended: all sidecars have ended in order.
        """
        came = self._come(timeout)
        return came if came is None or isinstance(came, Observation) else self._event(came)

    def events(self) -> Iterator[Event]:
        """All events until the sidecars end. Answer a `Warmup` with its `ready()`; no hook is called."""
        while True:
            try:
                event = self.next()
            except Ended:
                return
            if event is not None:
                yield event
                # Only the caller holds an observation while the next one is waited for.
                del event

    def take(self, timeout: float | None = None) -> Observation:
        """The next observation. Hooks are called for what comes before it.

        :raises TimeoutError: none came within `timeout` seconds.
        :raises Ended: all sidecars have ended in order.
        """
        remaining = _Remaining(timeout)
        while True:
            event = self.next(remaining.seconds())
            if isinstance(event, Observation):
                return event
            if event is not None:
                self._handle(event)
            if remaining.is_over():
                raise TimeoutError(f"no observation within {timeout} s")

    def take_batch(self, max: int, timeout: float | None = None) -> list[Observation]:
        """Waits for one observation, and takes what else is there already, `max` in all; in order of arrival.

        Hooks are called for what comes before the first. Anything else than an observation ends the batch, and its hook
        is called when the next one is asked for: the sessions of a batch are still there when it is looked at.

        :raises TimeoutError: none came within `timeout` seconds.
        :raises Ended: all sidecars have ended in order.
        """
        if max < 1:
            raise ValueError(f"a batch of {max}")
        batch = [self.take(timeout)]
        while len(batch) < max:
            try:
                came = self._come(0)
            except Ended:
                # The next call says so again.
                break
            if not isinstance(came, Observation):
                self._ahead = came
                break
            batch.append(came)
        return batch

    def __iter__(self) -> Iterator[Observation]:
        """Observations until the sidecars end. Hooks are called in between."""
        while True:
            try:
                observation = self.take()
            except Ended:
                return
            yield observation
            # The slot is given back before the wait for the next one, if nobody else holds it.
            del observation

    async def __aiter__(self) -> AsyncIterator[Observation]:
        """As `for`, without blocking the loop. Hooks may be coroutine functions."""
        loop = asyncio.get_running_loop()
        # Asked for first: from now on the sidecar rings it.
        fd = self.fileno()
        while True:
            try:
                event = self.next(0)
            except Ended:
                return
            if event is None:
                await _readable(loop, fd)
            elif isinstance(event, Observation):
                yield event
                # As in the blocking form.
                del event
            else:
                await self._handle_async(event)

    # Serving

    def serve(
        self,
        handler: Handler,
        *,
        on_warmup: Callable[[], Any] | None = None,
        on_open: Callable[[Session], Any] | None = None,
        on_close: Callable[[Session], Any] | None = None,
        noop: Payload = b"",
        on_error: Literal["report", "raise"] = "report",
    ) -> None:
        """Answers each observation with what `handler` returns for it, until the sidecars end.

        An empty observation is answered with `noop`; the handler does not see it. A handler that answered by itself
        returns `None`.

        When the handler raises an exception, it is logged with its traceback (logger `sidecar`, standard error if
        nobody has set up logging), and the sidecar is told, whose `--on-failure` decides. After that, `"report"` serves
        on; `"raise"` passes the exception on without telling the sidecar, so that a sidecar that started this process
        starts it again, and the new one gets the observation again.
        """
        if inspect.iscoroutinefunction(handler):
            raise TypeError("the handler is a coroutine function; use `async for obs in worker`")
        if on_error not in ("report", "raise"):
            raise ValueError(f"on_error is {on_error!r}, neither 'report' nor 'raise'")
        if on_warmup is not None:
            self.on_warmup = on_warmup
        if on_open is not None:
            self.on_open = on_open
        if on_close is not None:
            self.on_close = on_close
        while True:
            try:
                came, self._ahead = self._ahead or self._native.serve(handler, noop), None
            except Ended as ended:
                if self._is_over(ended):
                    return
                continue
            if came[0] != "failed":
                self._handle(self._event(came))
                continue
            _, _, observation, error = came
            if on_error == "raise":
                raise error
            self._report(observation, error)
            # Nothing is held while the next event is waited for: neither the observation nor what the traceback holds.
            del came, observation, error

    def _report(self, observation: Observation, error: Exception) -> None:
        log.error("the handler failed on observation %d", observation.sequence, exc_info=error)
        if not observation.answered:
            observation.failed(_summary(error))

    # Hooks

    def _come(self, timeout: float | None) -> Observation | tuple[Any, ...] | None:
        """What comes next, as the extension module says it: nothing about it is done yet."""
        if self._ahead is not None:
            came, self._ahead = self._ahead, None
            return came
        while True:
            try:
                return self._native.next(timeout)
            except Ended as ended:
                if self._is_over(ended):
                    raise

    def _event(self, came: tuple[Any, ...]) -> Event:
        name, source = came[0], came[1]
        if name == "warmup":
            return Warmup(self, source)
        if name == "opened":
            session = Session(came[2], came[3], came[4], source, self.paths[source])
            before = self._sessions[source]
            if before.is_open and before.epoch == session.epoch and before.id == session.id:
                # The tunnel was cut and is back: what the policy remembers stays.
                before.resumed = True
                session = before
            before.is_open = False
            session.is_open = True
            self._sessions[source] = session
            self._native.set_session(source, session)
            return SessionOpened(session)
        if name == "closed":
            session = self._sessions[source]
            session.is_open = False
            return SessionClosed(session)
        if name == "drain":
            return Drain(source)
        return SidecarGone(source)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Warmup):
            try:
                if not self._warm and self.on_warmup is not None:
                    _done(self.on_warmup())
            except Exception as error:
                self._warmup_failed(event, error)
                raise
            self._warm = True
            event.ready()
        elif isinstance(event, SessionOpened):
            if self.on_open is not None:
                _done(self.on_open(event.session))
        elif isinstance(event, SessionClosed):
            if self.on_close is not None:
                _done(self.on_close(event.session))
        elif isinstance(event, SidecarGone):
            log.warning("the sidecar at %s is gone; waiting for its successor", self.paths[event.source])

    async def _handle_async(self, event: Event) -> None:
        if isinstance(event, Warmup):
            try:
                if not self._warm and self.on_warmup is not None:
                    await _finish(self.on_warmup())
            except Exception as error:
                self._warmup_failed(event, error)
                raise
            self._warm = True
            event.ready()
        elif isinstance(event, SessionOpened) and self.on_open is not None:
            await _finish(self.on_open(event.session))
        elif isinstance(event, SessionClosed) and self.on_close is not None:
            await _finish(self.on_close(event.session))
        else:
            self._handle(event)

    @staticmethod
    def _warmup_failed(event: Warmup, error: Exception) -> None:
        log.error("the warm-up failed", exc_info=error)
        event.failed(_summary(error))

    def _is_over(self, ended: Ended) -> bool:
        """One of several sidecars has ended, or the last one."""
        log.debug("the sidecar at %s has ended", self.paths[ended.source])
        self._ended.add(ended.source)
        return len(self._ended) == len(self.paths)

    # The hold itself

    def fileno(self) -> int:
        """A descriptor for poll loops: call `next(0)` until it returns `None`, then wait until this is readable."""
        return self._native.fileno()

    def fd(self) -> int:
        """As `fileno`."""
        return self._native.fileno()

    @property
    def action_bytes(self) -> int:
        """The largest action in bytes; with several sidecars, the smallest of their limits."""
        return min(self._native.action_bytes())

    @property
    def attached(self) -> tuple[bool, ...]:
        """Whether each sidecar is there."""
        return tuple(self._native.attached())

    def observation_memory(self) -> list[tuple[int, int, int]]:
        """Address, length and region id of each sidecar's observation slots, for page-locking (cudaHostRegister).

        They stay the same until the region id changes: the sidecar made its region anew.
        """
        return self._native.observation_memory()

    @property
    def pinned(self) -> tuple[bool, ...]:
        """Whether the slots of each sidecar are page-locked."""
        return tuple(pinned for pinned, _ in self._native.pin_states())

    @property
    def pin_errors(self) -> tuple[str | None, ...]:
        """Why they are not, where that was asked for."""
        return tuple(error for _, error in self._native.pin_states())

    @property
    def device_errors(self) -> tuple[str | None, ...]:
        """Why `Observation.device` is `None` though the sidecar copies to a GPU (`--device-copy`)."""
        return tuple(self._native.device_states())

    @property
    def closed(self) -> bool:
        return self._native.closed

    def close(self) -> None:
        """Lets go of the regions; does nothing the second time. What was not answered is left to the next worker."""
        self._native.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return self._native.__reduce__()

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<sidecar.Worker on {', '.join(self.paths)}{closed}>"


def _device(pin: bool | int) -> int | None:
    if isinstance(pin, bool):
        return 0 if pin else None
    if pin < 0:
        raise ValueError(f"pin is {pin}: True, False, or the number of a device")
    return pin


class _Remaining:
    """What is left of a timeout, when a wait has several parts."""

    def __init__(self, timeout: float | None) -> None:
        self.end = None if timeout is None else time.monotonic() + timeout

    def seconds(self) -> float | None:
        return None if self.end is None else max(0.0, self.end - time.monotonic())

    def is_over(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end


async def _readable(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    ready = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, tell)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _done(result: Any) -> None:
    """Outside of `async for` nobody would wait for a hook's coroutine: a model would count as loaded that is not."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("a hook is a coroutine function; use `async for obs in worker`")


async def _finish(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def _summary(error: BaseException) -> str:
    """One line: the sidecar keeps 256 bytes of it."""
    said = "".join(traceback.format_exception_only(type(error), error)).strip().replace("\n", " ")
    frames = traceback.extract_tb(error.__traceback__)
    where = (
        f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, {frames[-1].name})"
        if frames
        else ""
    )
    return said[: 250 - len(where)] + where
