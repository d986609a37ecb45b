"""Exceptions, by who has to do something about them, each with a code that stays the same over all versions."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """What went wrong, for programs: the same numbers as in `sidecar.h`, and as stable. Texts may change."""

    #: The sidecar has ended in order, and nothing more will come. Not an error.
    ENDED = 3
    #: The caller: not now, or not with this object any more.
    ERR_STATE = -6
    #: The caller: these two objects do not belong together.
    ERR_MISMATCH = -8
    #: A limit: an action is larger than its slot.
    ERR_ACTION_TOO_LARGE = -100
    #: A limit: the caller has reserved all action slots.
    ERR_ALL_RESERVED = -101
    #: The sidecar: there is none.
    ERR_NO_SIDECAR = -200
    #: The sidecar: it said no.
    ERR_REFUSED = -201
    #: The sidecar: its region can't be used.
    ERR_REGION = -202
    #: The sidecar: it ended, and none followed.
    ERR_ORPHANED = -203
    #: The sidecar: it gave this worker's place to another one.
    ERR_REPLACED = -204
    #: The sidecar: it found nonsense in this worker's pages and reads them no more.
    ERR_DETACHED = -205
    #: The sidecar: its pages hold nonsense.
    ERR_DAMAGED = -206
    #: The system refused something.
    ERR_SYSTEM = -300
    #: This package: a mistake of its own.
    ERR_BUG = -400


class SidecarError(Exception):
    """Anything that this package raises by itself, but for arguments of a wrong type or value and the buffer protocol."""

    #: What went wrong, for programs.
    code: Code = Code.ERR_BUG
    #: Which of the worker's sidecars it concerns, counted from 0.
    source: int = 0


class AttachError(SidecarError):
    """There is no hold on the region."""


class NoSidecar(AttachError):
    """No sidecar listens there. Start one with this `--shm`."""

    code: Code = Code.ERR_NO_SIDECAR


class Refused(AttachError):
    """The sidecar said no: another worker is attached, for example."""

    code: Code = Code.ERR_REFUSED
    #: The process of the worker that is in the way; 0: that is not the reason, or it is not known.
    pid: int = 0


class RegionError(AttachError):
    """The region can't be used (`ERR_REGION`), is damaged (`ERR_DAMAGED`), or the system refused (`ERR_SYSTEM`)."""

    code: Code = Code.ERR_REGION


class Ended(SidecarError):
    """The sidecar ended in order. Iteration and `serve` end with it, without an exception."""

    code: Code = Code.ENDED


class Orphaned(SidecarError):
    """The sidecar died, and none came back within `orphan_grace`."""

    code: Code = Code.ERR_ORPHANED


class Replaced(SidecarError):
    """Another worker has taken the place of this one."""

    code: Code = Code.ERR_REPLACED
    #: Its process; 0: not known.
    pid: int = 0


class Detached(SidecarError):
    """The sidecar found nonsense in this worker's shared pages: something wrote over them."""

    code: Code = Code.ERR_DETACHED


class ActionTooLarge(SidecarError, ValueError):
    """The action does not fit its slot. Raise the sidecar's `--action-bytes`."""

    code: Code = Code.ERR_ACTION_TOO_LARGE


class AllReserved(SidecarError):
    """Every action slot is held by a `Reservation`. Answer with them, or release them."""

    code: Code = Code.ERR_ALL_RESERVED


class StateError(SidecarError, RuntimeError):
    """Not now, or not here: a worker that is closed, an observation that was answered, a forked child, two threads."""

    code: Code = Code.ERR_STATE
