"""The gateway's end of one tunnel connection, on the `websockets` server.

Control frames (tunnel contract A.2), data frames (A.3), fragmentation, pings and cuts. It knows nothing of
scenarios, and it shares no code with the sidecar: that is the point of it.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from checks import Stop

PONG_WITHIN = 5.0


@dataclass(frozen=True)
class Closed:
    """The connection ended; `code` is the agent's close code, None without a close frame."""

    code: int | None


@dataclass(frozen=True)
class Frame:
    """A data frame as it came: the session it names and its payload."""

    session: bytes
    payload: bytes


def data_frame(session: str, payload: bytes) -> bytes:
    """A.3: length of the session id (big-endian), the session id, the payload."""
    name = session.encode()
    return struct.pack(">I", len(name)) + name + payload


def pieces(frame: bytes, size: int) -> Iterator[bytes]:
    """The frame in fragments of `size` bytes, the last one shorter."""
    for start in range(0, len(frame), size):
        yield frame[start : start + size]


def parse_frame(message: bytes) -> Frame:
    """Reads a data frame; raises `Stop` on one that A.3 does not allow."""
    if len(message) < 4:
        raise Stop(f"a data frame of {len(message)} bytes came from the agent")
    (length,) = struct.unpack_from(">I", message)
    if length > 256 or 4 + length > len(message):
        raise Stop(f"the agent's data frame of {len(message)} bytes claims a session id of {length}")
    return Frame(message[4 : 4 + length], message[4 + length :])


class Tunnel:
    """One accepted connection. What the agent sends waits in `inbox`, in order, until it is asked for."""

    def __init__(self, connection: ServerConnection) -> None:
        query = parse_qs(urlsplit(connection.request.path).query)
        self.connection = connection
        self.jobs = query.get("job", [])
        self.agents = query.get("agent", [])
        self.inbox: asyncio.Queue[str | bytes | Closed] = asyncio.Queue()

    async def pump(self) -> None:
        """Moves what arrives into the inbox until the connection ends."""
        try:
            async for message in self.connection:
                self.inbox.put_nowait(message)
        except ConnectionClosed:
            pass
        received = self.connection.protocol.close_rcvd
        self.inbox.put_nowait(Closed(received.code if received else None))

    async def control(self, text: str | dict) -> None:
        """Sends a control frame; a string is sent as it is."""
        await self.connection.send(text if isinstance(text, str) else json.dumps(text))

    async def send_whole(self, frame: bytes) -> None:
        """One WebSocket frame."""
        await self.connection.send(frame)

    async def send_fragmented(self, frame: bytes, size: int, pings: list[bytes]) -> None:
        """Fragments of `size` bytes and, as the library ends every iterable, an empty final one.

        After each fragment one of `pings` is sent, and its pong awaited, until they are used up.
        """
        left = iter(pings)

        async def fragments():
            for piece in pieces(frame, size):
                yield piece
                await self._next_ping(left)

        await self.connection.send(fragments())

    async def send_fragmented_to_the_end(self, frame: bytes, size: int, pings: list[bytes]) -> None:
        """The same, but the last piece itself carries FIN: no empty fragment follows."""
        left = iter(pings)
        fragments = list(pieces(frame, size))
        for number, piece in enumerate(fragments):
            last = number == len(fragments) - 1
            await self._fragment(piece, number == 0, last)
            if not last:
                await self._next_ping(left)

    async def send_unfinished(self, frame: bytes, size: int) -> None:
        """The fragments without a final one: a message that never ends."""
        for number, piece in enumerate(pieces(frame, size)):
            await self._fragment(piece, number == 0, False)

    async def _fragment(self, piece: bytes, first: bool, last: bool) -> None:
        async with self.connection.send_context():
            if first:
                self.connection.protocol.send_binary(piece, fin=last)
            else:
                self.connection.protocol.send_continuation(piece, fin=last)

    async def _next_ping(self, left: Iterator[bytes]) -> None:
        payload = next(left, None)
        if payload is not None:
            await self.ping(payload)

    async def ping(self, payload: bytes) -> None:
        """Sends a ping and waits for the pong: the library wakes us only for one with the same payload."""
        pong = await self.connection.ping(payload)
        try:
            await asyncio.wait_for(pong, PONG_WITHIN)
        except asyncio.TimeoutError as timeout:
            raise Stop(f"no pong with the payload {payload!r} within {PONG_WITHIN} s") from timeout
        except ConnectionClosed as closed:
            raise Stop(f"the connection ended instead of a pong: {closed}") from closed

    def cut(self) -> None:
        """Drops the TCP connection at once: a reset, without a close frame and without what is unsent."""
        transport = self.connection.transport
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        transport.abort()
