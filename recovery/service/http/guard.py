"""Stands between a connection and aiohttp: bounds how many there are, how slow and how talkative each may be.

aiohttp bounds a line and a header field, and no more: it would hold a client that sends a byte a
minute, or a million requests at once, for ever. Here a request's head must be complete within
`HEAD_S_MAX`, an answer be read within `IDLE_S_MAX`, and the bytes beyond the request that is being
answered are bounded.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, Protocol, cast

from aiohttp import web

from rankmend.cut_paths import SERVED_OPTIONS, end_when_cut
from rankmend.errors import ConfigError
from rankmend.listening import plain_address
from recovery.service.roles import TooManyError

log = logging.getLogger(__name__)

HEAD_S_MAX: Final = 10.0  # a head is one packet or two; lost ones are repeated within 3 s
IDLE_S_MAX: Final = 75.0  # between requests: above a report a minute, aiohttp's and nginx' default
HANDSHAKE_S_MAX: Final = 10.0
# Beyond a request's own body: what asyncio reads (256 KiB at once) before the handler has its turn, and
# what a client still sends after the answer that its body is too large.
SLACK_BYTES: Final = 1024 * 1024
HEADS_MAX: Final = 64  # in one read; nobody who means well sends requests ahead
# All connections of a room are read into one buffer. Without it uvloop would make 256 KiB for each read of a TLS connection, and
# give most of it back: the C library maps and unmaps that much each time.
READ_BYTES: Final = 64 * 1024
_LOOK_S: Final = 1.0

_AT_ONCE: Final = 64  # connections between two looks at everything else
_SHORT_S: Final = 1.0  # without descriptors or memory; as asyncio's own servers
_SHORT_OF: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LOG_AGAIN_S: Final = 60.0  # between two log lines about one address
_LOGGED_MAX: Final = 1_000


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
        if self._on_lost is not None:  # once, also for a connection that never shook hands
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
    """All connections that have shaken hands. The entrance bounds their number."""

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


class Bounds(Protocol):
    """The part of `recovery.service.controller_config.Limits` that is about connections."""

    @property
    def connections(self) -> int: ...
    @property
    def connections_per_address(self) -> int: ...
    @property
    def shared_addresses(self) -> tuple[str, ...]: ...


class Quota:
    """Counts the connections of each address. Pure."""

    def __init__(self, limits: Bounds) -> None:
        self._held: Counter[str] = Counter()
        self.take_limits(limits)

    def take_limits(self, limits: Bounds) -> None:
        self._all_max = limits.connections
        self._one_max = min(limits.connections_per_address, max(1, _most_of(limits.connections)))
        self._shared = read_networks(limits.shared_addresses)

    def refusal(self, address: str) -> str | None:
        """Return why this address gets no further connection now, or None."""
        held, of_all = self._held[address], self._held.total()
        if held == 0:
            del self._held[address]
        if of_all >= self._all_max:
            return f"{of_all} connections are open; limits.connections is {self._all_max}"
        if held >= self._one_max and not self._is_shared(address):
            return f"{held} connections are open; the limit per address is {self._one_max}"
        return None

    def enter(self, address: str) -> None:
        self._held[address] += 1

    def leave(self, address: str) -> None:
        self._held[address] -= 1
        if self._held[address] <= 0:
            del self._held[address]

    def __len__(self) -> int:
        return self._held.total()

    def _is_shared(self, address: str) -> bool:
        if not self._shared:
            return False
        try:
            wanted = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(wanted in network for network in self._shared)


def _most_of(connections: int) -> int:
    return connections - connections // 4


def read_networks(
    texts: Sequence[str],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Return the networks, or raise ConfigError that names the one at fault."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError(
                f"limits.shared_addresses: {text!r} is not an address or network such as 10.1.2.3 or "
                f"10.1.0.0/16: {error}"
            ) from error
    return tuple(found)


class Entrance:
    """The listening socket of a service: accepts so many connections in total, and so many from one address.

    The service accepts by itself, since only before the TLS handshake is it cheap to turn an
    address away, and since a handshake that fails, or never ends, must count for its address until
    it has. One address never holds more than three quarters of all connections, so that the others
    always get in.
    """

    def __init__(
        self,
        listener: socket.socket,
        room: ConnectionRoom,
        limits: Bounds,
        context: ssl.SSLContext | None,
        backlog: int,
    ) -> None:
        self._listener = listener
        self._room = room
        self._quota = Quota(limits)
        self.context = context  # for connections from now on
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._logged_at_s: dict[str, float] = {}
        self.refused = 0
        try:
            listener.listen(backlog)
        except OSError as error:  # two may bind one port, and the first to listen has it
            host, port = listener.getsockname()[:2]
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._loop.add_reader(listener.fileno(), self._accept)

    def take_limits(self, limits: Bounds) -> None:
        self._quota.take_limits(limits)

    def __len__(self) -> int:
        return len(self._quota)

    def close(self) -> None:
        """Accept nothing more; what is open stays open."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
        for task in self._opening:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORT_OF:
                    raise
                self._pause(error)
                return
            self._welcome(connection, _address(peer))

    def _pause(self, error: OSError) -> None:
        """Leave the others in the kernel's queue until there may be descriptors again."""
        log.error("cannot accept a connection", extra={"error": str(error), "again_s": _SHORT_S})
        descriptor = self._listener.fileno()
        self._loop.remove_reader(descriptor)

        def again() -> None:
            if self._listener.fileno() == descriptor:
                self._loop.add_reader(descriptor, self._accept)

        self._loop.call_later(_SHORT_S, again)

    def _welcome(self, connection: socket.socket, address: str) -> None:
        refusal = self._quota.refusal(address)
        if refusal is not None:
            self.refused += 1
            connection.close()
            self._log_refusal(address, refusal)
            return
        connection.setblocking(False)
        end_when_cut(connection, SERVED_OPTIONS)
        self._quota.enter(address)
        task = self._loop.create_task(self._open(connection, address))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, address: str) -> None:
        """Shake hands, and hand the connection to its guard."""
        is_open = False
        try:
            context = self.context
            guard = self._room.make(lambda: self._quota.leave(address))
            await self._loop.connect_accepted_socket(
                lambda: guard,
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S_MAX if context is not None else None,
            )
            is_open = True
        except (OSError, ssl.SSLError, asyncio.TimeoutError, asyncio.CancelledError):
            return  # no TLS, another authority, or gone again: the peer's own log has it
        except Exception:
            log.exception("connection not opened", extra={"peer": address})
        finally:
            if not is_open:
                guard.connection_lost(None)
                connection.close()

    def _log_refusal(self, address: str, refusal: str) -> None:
        """Log who is turned away, once a minute for each address."""
        now_s = self._room.now_s()
        told_s = self._logged_at_s.get(address)
        if told_s is not None and now_s - told_s < _LOG_AGAIN_S:
            return
        self._logged_at_s.pop(address, None)
        self._logged_at_s[address] = now_s
        if len(self._logged_at_s) > _LOGGED_MAX:
            del self._logged_at_s[next(iter(self._logged_at_s))]
        log.warning("connection refused", extra={"peer": address, "reason": refusal})


def _address(peer: object) -> str:
    return plain_address(str(peer[0])) if isinstance(peer, tuple) and peer else "?"
