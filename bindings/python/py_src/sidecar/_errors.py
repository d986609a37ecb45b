"""Exceptions, by who has to do something about them."""

from __future__ import annotations


class SidecarError(Exception):
    """Anything that this package raises by itself. `source` numbers the sidecar, where there are several."""

    source: int = 0


class AttachError(SidecarError):
    """There is no hold on the region."""


class NoSidecar(AttachError):
    """No sidecar listens there. Start one with this `--shm`."""


class Refused(AttachError):
    """The sidecar said no: another worker is attached, for example."""


class RegionError(AttachError):
    """The region is damaged, or the system refused something about it."""


class Ended(SidecarError):
    """The sidecar ended in order. Iteration and `serve` end with it, without an exception."""


class Orphaned(SidecarError):
    """The sidecar died, and none came back within `orphan_grace`."""


class Replaced(SidecarError):
    """Another worker has taken the place of this one."""


class Detached(SidecarError):
    """The sidecar found nonsense in this worker's shared pages: something wrote over them."""


class ActionTooLarge(SidecarError, ValueError):
    """The action does not fit its slot. Raise the sidecar's `--action-bytes`."""


class AllReserved(SidecarError):
    """Every action slot is held by a `Reservation`. Answer with them, or release them."""
