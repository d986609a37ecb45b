"""Observations from a sidecar, without a copy, and actions back.

>>> from sidecar import Worker
>>> def act(observation):                       # doctest: +SKIP
...     return model(np.frombuffer(observation, np.float32))
>>> Worker("/dev/shm/obs0").serve(act)          # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Union

from ._errors import (
    ActionTooLarge,
    AllReserved,
    AttachError,
    Code,
    Detached,
    Ended,
    NoSidecar,
    Orphaned,
    Refused,
    RegionError,
    Replaced,
    SidecarError,
    StateError,
)
from ._events import Drain, Session, SessionClosed, SessionOpened, SidecarGone, Warmup
from ._native import DeviceArray, Observation, Reservation, __version__
from ._worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Buffer

    class Tensor(Protocol):
        """Anything with DLPack: torch.Tensor, jax.Array, ..."""

        def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
        def __dlpack_device__(self) -> tuple[Any, int]: ...

    class DeviceTensor(Protocol):
        """An array on a GPU: torch.Tensor, cupy.ndarray, ..."""

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]: ...

    #: What an action may be.
    Payload = Union[bytes, Buffer, Tensor, DeviceTensor, Reservation]
else:
    # For annotations; the buffer protocol has no name in Python before 3.12.
    Payload = Any

__all__ = [
    "ActionTooLarge",
    "AllReserved",
    "AttachError",
    "Code",
    "Detached",
    "DeviceArray",
    "Drain",
    "Ended",
    "NoSidecar",
    "Observation",
    "Orphaned",
    "Payload",
    "Refused",
    "RegionError",
    "Replaced",
    "Reservation",
    "Session",
    "SessionClosed",
    "SessionOpened",
    "SidecarError",
    "SidecarGone",
    "StateError",
    "Warmup",
    "Worker",
    "__version__",
]
