"""Stands between a connection and aiohttp: how many there are, how slow and how talkative one may be.

aiohttp bounds a line and a header field, and no more: a client that sends a byte a minute, or
a million requests in one breath, would be held for ever. Here a request's head must be complete within
`HEAD_S_MAX`, an answer be read within `IDLE_S_MAX`, and what comes beyond the request that is being answered is bounded.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from typing import Final, Protocol, cast

from aiohttp import web

from recovery.service.roles import TooManyError

HEAD_S_MAX: Final = 10.0  # a head is one packet or two; lost ones are repeated within 3 s
IDLE_S_MAX: Final = 75.0  # between requests: above a report a minute, aiohttp's and nginx' default
HANDSHAKE_S_MAX: Final = 10.0
# Beyond a request's own body: what asyncio reads (256 KiB at once) before the handler has its turn, and
# what a client still sends that is being told that its body is too large.
SLACK_BYTES: Final = 1024 * 1024
HEADS_MAX: Final = 64  # in one read; nobody who means well sends requests ahead
# All connections of a room are read into one buffer. Without it uvloop would make 256 KiB for each read of a TLS connection, and
# give most of it back: the C library maps and unmaps that much each time.
READ_BYTES: Final = 64 * 1024
_LOOK_S: Final = 1.0


class Handler(Protocol):
    """The part of asyncio's protocol that aiohttp's connection handler has."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class ConnectionGuard(asyncio.BufferedProtocol):
    """One connection."""

    __slots__ = (
        "_allowed",
        "_handler",
        "_is_idle",
        "_on_lost",
        "_received",
        "_room",
        "is_surplus",
        "subject",
        "transport",
    )

    def __init__(
        self, handler: Handler, room: "ConnectionRoom", on_lost: Callable[[], None]
    ) -> None:
        self._on_lost: Callable[[], None] | None = on_lost
        self._handler: Handler | None = handler
        self._room = room
        self._received, self._allowed = 0, SLACK_BYTES
        self._is_idle = True
        self.subject = ""  # that has authenticated here last; empty: nobody yet
        self.is_surplus = False  # beyond the subject's share: closed after the answer
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's are not derived from asyncio's
        self._room.enter(self)
        self.transport = stream
        self._room.await_head(self)
        if self._handler is not None:
            self._handler.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._room.leave(self)
        if self._on_lost is not None:  # once, also for one that never shook hands
            self._on_lost()
            self._on_lost = None
        if self._handler is not None and self.transport is not None:
            self._handler.connection_lost(exc)
        self._handler = self.transport = None

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where to read to; `buffer_updated` follows before any other connection is read."""
        return self._room.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._room.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._is_idle:
            self._is_idle = False
            self._room.await_head(self)
        if self._received > self._allowed or data.count(b"\r\n\r\n") > HEADS_MAX:
            self.cut()
        elif self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._handler is not None else None

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def begin(self, body_bytes_max: int) -> None:
        """Note that a request's head is complete; its handler bounds the rest."""
        self._received, self._allowed = 0, body_bytes_max + SLACK_BYTES
        self._is_idle = False
        self._room.await_nothing(self)

    def end(self) -> None:
        """Note that the answer is on its way."""
        self._received, self._allowed = 0, SLACK_BYTES
        self._is_idle = True
        self._room.await_request(self)

    def claim(self, subject: str) -> None:
        """Count the connection to the subject that has authenticated in it, or raise TooManyError."""
        if subject != self.subject:
            self._room.claim(self, subject)

    def cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class ConnectionRoom:
    """All connections that have shaken hands. `recovery.service.entrance` bounds their number."""

    def __init__(self, server: web.Server, now_s: Callable[[], float]) -> None:
        """``now_s`` runs only while the service listens: nobody is slow that it did not read."""
        self._server = server
        self.now_s = now_s
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._loop = asyncio.get_running_loop()
        self._guards: set[ConnectionGuard] = set()
        self._claimed: Counter[str] = Counter()  # connections by subject
        self.of_subject_max = sys.maxsize
        self._few = sys.maxsize
        # Until when, each in the order in which that ends. A look at 20,000 guards each second took 3 % of the loop.
        self._heads: dict[ConnectionGuard, float] = {}
        self._idle: dict[ConnectionGuard, float] = {}
        self.cut = 0
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def make(self, on_lost: Callable[[], None]) -> ConnectionGuard:
        """Make the protocol of a connection that was just accepted."""
        return ConnectionGuard(self._server(), self, on_lost)

    def enter(self, guard: ConnectionGuard) -> None:
        self._guards.add(guard)

    def leave(self, guard: ConnectionGuard) -> None:
        self._guards.discard(guard)
        self._release(guard)
        self.await_nothing(guard)

    def claim(self, guard: ConnectionGuard, subject: str) -> None:
        if guard not in self._guards:  # it was lost meanwhile
            return
        count = self._claimed[subject]
        is_full = self._claimed.total() >= self.of_subject_max
        if count >= self.of_subject_max or (is_full and count >= self._few):
            guard.is_surplus = True
            raise TooManyError(
                f"{count} connections of {subject} are open, its share of limits.connections", 1.0
            )
        self._release(guard)
        self._claimed[subject] += 1
        guard.subject = subject

    def _release(self, guard: ConnectionGuard) -> None:
        if guard.subject:
            self._claimed[guard.subject] -= 1
            if not self._claimed[guard.subject]:
                del self._claimed[guard.subject]
            guard.subject = ""

    def await_head(self, guard: ConnectionGuard) -> None:
        """Cut the connection unless the head of a request is complete within `HEAD_S_MAX`."""
        self.await_nothing(guard)
        self._heads[guard] = self.now_s() + HEAD_S_MAX

    def await_request(self, guard: ConnectionGuard) -> None:
        """Cut the connection unless another request begins within `IDLE_S_MAX`."""
        if guard in self._guards:  # an answer may outlive its connection
            self.await_nothing(guard)
            self._idle[guard] = self.now_s() + IDLE_S_MAX

    def await_nothing(self, guard: ConnectionGuard) -> None:
        """Let the connection be."""
        self._heads.pop(guard, None)
        self._idle.pop(guard, None)

    def take_limits(self, connections: int) -> None:
        """Leave an eighth of all connections to others than any one subject: a site may have one token for 10,000 nodes, which hold 20,000.

        The last eighth is for subjects with few, so that several subjects together don't take all either: it takes nine of them.
        """
        self.of_subject_max = max(1, connections - connections // 8)
        self._few = max(4, connections // 64)

    def close(self) -> None:
        self._timer.cancel()

    def cut_rest(self) -> None:
        """Cut what is still open: TLS would wait for the other side's farewell, and a stream's reader sends none."""
        for guard in list(self._guards):
            guard.cut()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_S, self._look)
        now_s = self.now_s()
        for waiting in (self._heads, self._idle):
            late = list(takewhile(lambda guard: waiting[guard] <= now_s, waiting))  # noqa: B023 - used at once
            for guard in late:
                self.await_nothing(guard)
                self.cut += 1
                guard.cut()


def guard_of(request: web.BaseRequest) -> ConnectionGuard | None:
    """Return the guard of a request's connection, while there is one."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, ConnectionGuard) else None
