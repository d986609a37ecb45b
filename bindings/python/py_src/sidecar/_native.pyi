"""The extension module. Users import from `sidecar`."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, final

from . import Payload
from ._events import Session

__version__: str

@final
class Observation:
    """One observation, and the slot that it lies in.

    It has the buffer protocol (read-only) and DLPack: `np.frombuffer(obs, dtype)`, `torch.frombuffer(obs, dtype=...)`,
    `memoryview(obs)`, `np.from_dlpack(obs)` copy nothing. Views are counted; the slot goes back to the sidecar once the
    observation was answered and no view of it is left.
    """

    def answer(self, action: Payload, stream: Any = None) -> None:
        """Sends the action, and gives the slot back once no view of it is left.

        One that lies on the GPU (`__cuda_array_interface__`: torch, CuPy) is copied back first, behind all that is on
        `stream`: a number, a stream of torch or CuPy, the one that the array names, or the default stream. That is
        waited for. For any other action `stream` means nothing.

        :raises ActionTooLarge: it does not fit an action slot.
        :raises TypeError: not bytes, a buffer, or a tensor.
        :raises ValueError: an array on the GPU with gaps.
        :raises StateError: it lies on the GPU, and the worker has none, or the driver refused.
        :raises RuntimeError: it was answered already, the worker is closed, or this is a forked child.
        """
    def reserve(self, nbytes: int) -> Reservation:
        """An action slot to be written in place, to be given to `answer`. Waits for one."""
    def failed(self, message: str) -> None:
        """Says that no action comes; the sidecar's `--on-failure` decides. 256 bytes of the message are kept."""
    def release(self) -> None:
        """Gives the slot back. Unanswered, the observation is left to a successor of this worker.

        :raises BufferError: views of it are alive.
        """
    def copy_to(self, target: Any, stream: Any = None) -> None:
        """Copies the payload to an array on the GPU (`__cuda_array_interface__`: torch, CuPy), and does not wait.

        The slot goes back to the sidecar only when the copy is over. `stream` is a number, a stream of torch or CuPy, or
        the default stream.

        :raises StateError: the worker has no GPU, or the driver refused.
        :raises ValueError: the target is smaller than the payload, read-only, or has gaps.
        """
    def used_by(self, stream: Any = None) -> None:
        """The GPU reads the slot in what was put on this stream so far; it goes back only when that is over.

        For `tensor.copy_(torch.from_dlpack(obs), non_blocking=True)` and kernels of your own.

        :raises StateError: the worker has no GPU, or the driver refused.
        """
    @property
    def device_pointer(self) -> int | None:
        """Where a kernel on the GPU sees the payload; `None` if the slots are not page-locked."""
    @property
    def device(self) -> DeviceArray | None:
        """The payload on the GPU, where a sidecar with `--device-copy` has copied it already.

        `None` if it has not, or if this worker cannot use it: `Worker.device_errors`. It counts as a view.
        """
    @property
    def payload(self) -> memoryview:
        """The payload, where it was received. Read-only."""
    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
    @property
    def is_empty(self) -> bool:
        """The payload is empty: answer with the action that does nothing."""
    @property
    def cancelled(self) -> bool:
        """Its session is over: an action would be dropped. Ask between the steps of a long inference."""
    @property
    def answered(self) -> bool:
        """An action was given, or a failure reported."""
    @property
    def session(self) -> Session:
        """The session it belongs to."""
    @property
    def sequence(self) -> int:
        """Counts the observations of its sidecar."""
    @property
    def slot(self) -> int:
        """The slot it lies in."""
    @property
    def redelivered(self) -> bool:
        """A worker before this one had it and did not answer."""
    @property
    def source(self) -> int:
        """Which of the worker's sidecars it came from, counted from 0."""
    @property
    def first_byte_ns(self) -> int:
        """When its first byte came (CLOCK_BOOTTIME, as the others)."""
    @property
    def last_byte_ns(self) -> int:
        """When its last byte came."""
    @property
    def published_ns(self) -> int:
        """When the sidecar handed it over."""
    @property
    def taken_ns(self) -> int:
        """When this worker took it."""
    @property
    def views(self) -> int:
        """How many views of the slot are alive."""
    def __enter__(self) -> Observation: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class DeviceArray:
    """A payload on the GPU: `torch.from_dlpack(obs.device)`, `cupy.asarray(obs.device)`.

    It may still be arriving. DLPack has the consumer's stream wait for it; `__cuda_array_interface__` waits here, unless
    `wait` has told a stream to. It lies there until the observation was answered or released and no array of it is left,
    and as long as its sidecar lives. Work that reads it may run on then only if `Observation.used_by` was told of it.
    """

    def wait(self, stream: Any = None) -> None:
        """Waits until the bytes are there, for what is put on this stream from now on; two seconds at most.

        :raises StateError: the driver refused.
        """
    @property
    def pointer(self) -> int:
        """Where its first byte lies."""
    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Reservation:
    """An action slot, written in place: `np.frombuffer(reservation, dtype)[:] = ...`.

    All views of it have to be gone before it is given to `answer`: the sidecar reads it from then on.
    """

    @property
    def nbytes(self) -> int:
        """How many bytes there are; all of them are sent."""
    def release(self) -> None:
        """Gives the slot back unused.

        :raises BufferError: views of it are alive.
        """
    def __enter__(self) -> Reservation: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Workers:
    """What `sidecar.Worker` is built on."""

    def __new__(
        cls,
        paths: Sequence[str],
        sessions: Sequence[Session],
        timeout: float,
        orphan_grace: float,
        stay: bool,
        pin: int | None,
    ) -> Workers: ...
    def next(self, timeout: float | None) -> Observation | tuple[Any, ...] | None: ...
    def serve(
        self, handler: Callable[[Observation], Payload | None], noop: Payload
    ) -> tuple[Any, ...]: ...
    def ready(self, source: int) -> None: ...
    def warmup_failed(self, source: int, message: str) -> None: ...
    def set_session(self, source: int, session: Session) -> None: ...
    def fileno(self) -> int: ...
    def action_bytes(self) -> list[int]: ...
    def observation_memory(self) -> list[tuple[int, int, int]]: ...
    def pin_states(self) -> list[tuple[bool, str | None]]: ...
    def device_states(self) -> list[str | None]: ...
    def attached(self) -> list[bool]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
