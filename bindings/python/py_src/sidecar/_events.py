"""What a worker is told besides observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._worker import Worker


class Session:
    """One session: all observations of one episode at the gateway.

    `state` is yours: whatever the policy has to remember from one observation to the next.
    """

    __slots__ = ("__weakref__", "epoch", "id", "is_open", "path", "resumed", "source", "state")

    def __init__(self, id: str, epoch: int, resumed: bool, source: int, path: str) -> None:
        #: Its id at the gateway.
        self.id: str = id
        #: Its number at this sidecar.
        self.epoch: int = epoch
        #: It was open before this worker, or the tunnel, came. The context of an earlier worker is gone.
        self.resumed: bool = resumed
        #: Which of the worker's sidecars, counted from 0, and that one's region.
        self.source: int = source
        self.path: str = path
        #: False once it is over.
        self.is_open: bool = True
        #: Yours.
        self.state: Any = None

    def __repr__(self) -> str:
        closed = "" if self.is_open else ", closed"
        return f"<sidecar.Session {self.id!r}{closed}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Session can't be pickled or copied: it is of this process; pass its id")


class Warmup(NamedTuple):
    """Make the model ready, then say `ready()`, or `failed(why)`, which ends the sidecar."""

    worker: Worker
    source: int

    def ready(self) -> None:
        """The model is warm. The gateway waits for this word before it opens a session."""
        self.worker._native.ready(self.source)

    def failed(self, message: str) -> None:
        """The model can't be made ready: the sidecar ends with this message, of which 256 bytes are kept."""
        self.worker._native.warmup_failed(self.source, message)


class SessionOpened(NamedTuple):
    """Observations of this session follow."""

    session: Session


class SessionClosed(NamedTuple):
    """The session is over: its memory can go."""

    session: Session


class Drain(NamedTuple):
    """No more sessions will come from this sidecar; it ends soon."""

    source: int


class SidecarGone(NamedTuple):
    """The sidecar died. The worker looks for its successor by itself."""

    source: int
