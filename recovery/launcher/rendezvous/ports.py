"""Ports that the launcher owns: it binds them when it picks them, so no other process gets them.

A port is taken from the moment it is chosen, and refuses connections until we listen on it: a
rank that came early to a port on which we listen would be reset when we leave it to rank 0, and
while it is refused it tries again. By default the range lies outside
net.ipv4.ip_local_port_range, out of which the kernel hands ports to outgoing connections.
"""

import errno
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, LaunchError

PORT_MAX: Final = 65_535
PRIVILEGED_MAX: Final = 1_023
USUAL_FIRST, USUAL_LAST = 20_000, 29_999  # below the kernel's default range, 32768 to 60999
ROOM_MIN: Final = 1_000  # a smaller gap beside the kernel's range is not worth moving to
BACKLOG: Final = 4_096  # the kernel cuts it to net.core.somaxconn, 4096 since Linux 5.4
LOCAL_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from `first` to `last`, both included."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last <= PORT_MAX:
            raise ConfigError(
                f"port range {self}: want FIRST-LAST with 1 <= FIRST <= LAST <= {PORT_MAX}"
            )

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def cycle_from(self, port: int) -> Iterator[int]:
        """Yield every port once, from ``port`` upwards and round."""
        start = (port - self.first) % self.size
        for offset in range(self.size):
            yield self.first + (start + offset) % self.size

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Return the range written as ``20000-29999``, or as one port."""
        first, separator, last = text.strip().partition("-")
        if not separator:
            last = first
        # isdigit alone would let "²" through, on which int() fails
        if not (text.isascii() and first.isdigit() and last.isdigit()):
            raise ConfigError(f"port range {text!r}: want FIRST-LAST, such as 20000-29999")
        if max(len(first), len(last)) > len(str(PORT_MAX)):
            raise ConfigError(f"port range {text[:40]!r}: a port has at most 5 digits")
        return cls(int(first), int(last))


def default_range(local_port_range: str) -> PortRange:
    """Return the range to use, given the text of net.ipv4.ip_local_port_range.

    The usual range where the kernel's leaves it alone, else the room below or above the
    kernel's; where there is none, the usual one all the same: a port that we hold is ours.
    """
    usual = PortRange(USUAL_FIRST, USUAL_LAST)
    words = local_port_range.split()
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return usual
    low, high = (int(word) for word in words)
    if high < usual.first or low > usual.last:
        return usual
    if low - 1 - PRIVILEGED_MAX >= ROOM_MIN:
        return PortRange(max(PRIVILEGED_MAX + 1, low - usual.size), low - 1)
    if PORT_MAX - high >= ROOM_MIN:
        return PortRange(high + 1, min(PORT_MAX, high + usual.size))
    return usual


def read_default_range(path: Path = LOCAL_PORT_RANGE) -> PortRange:
    """Return the range to use on this machine."""
    try:
        return default_range(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):  # another kernel, or a container without it
        return default_range("")


@dataclass(frozen=True, slots=True)
class ReservedPort:
    """A port with the socket that holds it."""

    port: int
    holder: socket.socket

    def listen(self) -> socket.socket:
        """Take connections from now on, and return the socket. Safe to repeat."""
        try:
            # Connections inherit it: while they close, another socket can listen on the port.
            self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.holder.listen(BACKLOG)
        except OSError as error:
            raise LaunchError(f"can't listen on port {self.port}: {error}") from error
        return self.holder

    def release(self) -> None:
        """Close our socket: the port stays taken only where a copy was handed on."""
        self.holder.close()


def reserve(ports: PortRange, address: str = "", first: int | None = None) -> ReservedPort:
    """Return a free port of ``ports``, which nobody else can have until it is released.

    The search starts at ``first``, else at a random port, so that two launchers seldom try
    the same ones. An empty ``address`` is every address of the machine.
    """
    start = ports.first + secrets.randbelow(ports.size) if first is None else first
    for is_closing in (False, True):  # a port that is free altogether, if there is one
        for port in ports.cycle_from(start):
            if (holder := _hold(address, port, is_closing=is_closing)) is not None:
                return ReservedPort(port, holder)
    raise LaunchError(f"no free port in {ports} on {address or 'this machine'}: all are busy")


def reserve_exactly(port: int, address: str = "") -> ReservedPort:
    """Return this port as `reserve` does, or say who holds it."""
    PortRange(port, port)
    for is_closing in (False, True):
        if (holder := _hold(address, port, is_closing=is_closing)) is not None:
            return ReservedPort(port, holder)
    raise LaunchError(f"port {port} on {address or 'this machine'} is busy{_describe_holder(port)}")


def _hold(address: str, port: int, *, is_closing: bool) -> socket.socket | None:
    """Return a socket that holds the port, or None when the port is busy.

    With ``is_closing``, connections of the last attempt may still be closing on the port. Only a
    socket that listens can hold such a port against others.
    """
    try:
        family, host = _resolve(address)
        holder = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(f"can't listen on address {address!r}: {error}") from error
    try:
        if host == "::":
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if is_closing:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        if is_closing:
            holder.listen(BACKLOG)
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise LaunchError(f"can't listen on port {port} of {address!r}: {error}") from error
    return holder


def _resolve(address: str) -> tuple[socket.AddressFamily, str]:
    if not address:
        if socket.has_dualstack_ipv6():
            return socket.AF_INET6, "::"
        return socket.AF_INET, "0.0.0.0"  # noqa: S104 (ranks of other nodes connect)
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    return found[0][0], str(found[0][4][0])


def _describe_holder(port: int) -> str:
    """Return who listens on ``port``, as far as /proc shows this user."""
    import psutil  # noqa: PLC0415 - for this error alone

    try:
        held = [
            connection
            for connection in psutil.net_connections("tcp")
            if connection.laddr and connection.laddr.port == port
        ]
        held.sort(key=lambda connection: connection.status != psutil.CONN_LISTEN)
        pid = next((connection.pid for connection in held if connection.pid), None)
        if pid is None:
            if held:
                return ": by a process of another user or container"
            return ": by a process that does not listen on it yet, such as another `rankmend run`"
        process = psutil.Process(pid)
        return f": held by process {pid} ({process.name()}) of user {process.username()}"
    except (psutil.Error, OSError, RuntimeError):  # gone in between, or /proc is restricted
        return ""
