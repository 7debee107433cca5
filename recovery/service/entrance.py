"""Accepts connections: so many in all, and so many from one address.

The service accepts by itself, since only before the TLS handshake is it cheap to turn an address away, and since a handshake
that fails, or never ends, must be counted to its address until it has. One address never holds more than three quarters of
all connections, so that the others always get in.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from rankmend.errors import ConfigError
from rankmend.listening import plain_address
from recovery.service.guard import HANDSHAKE_S_MAX, ConnectionRoom

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64  # connections between two looks at everything else
_SHORT_S: Final = 1.0  # without descriptors or memory; as asyncio's own servers
_SHORT_OF: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TOLD_S: Final = 60.0  # between two log lines about one address
_TOLD_MAX: Final = 1_000


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
    """The listening socket of a service."""

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
        self._told_at_s: dict[str, float] = {}
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
            self._tell(address, refusal)
            return
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
            return  # no TLS, another authority, or gone again: the peer's own log says so
        except Exception:
            log.exception("connection not opened", extra={"peer": address})
        finally:
            if not is_open:
                guard.connection_lost(None)
                connection.close()

    def _tell(self, address: str, refusal: str) -> None:
        """Log who is turned away, once a minute for each address."""
        now_s = self._room.now_s()
        told_s = self._told_at_s.get(address)
        if told_s is not None and now_s - told_s < _TOLD_S:
            return
        self._told_at_s.pop(address, None)
        self._told_at_s[address] = now_s
        if len(self._told_at_s) > _TOLD_MAX:
            del self._told_at_s[next(iter(self._told_at_s))]
        log.warning("connection refused", extra={"peer": address, "reason": refusal})


def _address(peer: object) -> str:
    return plain_address(str(peer[0])) if isinstance(peer, tuple) and peer else "?"
