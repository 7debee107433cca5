"""Has the kernel end TCP connections whose path is cut in silence: a firewall that forgot the flow, a host without power.

Nothing tells of such a cut: a connection that waits for an answer waits on, and a pool lends out one that leads nowhere. With these
options the kernel probes an idle connection, and ends one of which nothing is confirmed any more (tcp(7), RFC 5482). A peer that only
stalls keeps its connections: its kernel confirms. Each connection that lasts longer than one exchange has them; where a connection is
made for one exchange, as for alerts, its timeouts bound it.
"""

import contextlib
import socket
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

SocketOption: TypeAlias = tuple[int, int, int]

# A report would wait for 15 s, longer than a node may be silent (10 s), and a poll for a minute.
CUT_S_MAX: Final = 5.0
# Here nothing is urgent, and two thousand launchers are probed: a console's page holds one of its person's streams until then. Linux tries for 15 min.
SERVED_CUT_S_MAX: Final = 30.0


def _options(idle_s: int, between_s: int, probes: int, cut_s: float) -> tuple[SocketOption, ...]:
    return (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(cut_s * 1000)),
    )


CLIENT_OPTIONS: Final = _options(3, 1, 3, CUT_S_MAX)
SERVED_OPTIONS: Final = _options(15, 5, 3, SERVED_CUT_S_MAX)


def end_when_cut(connection: socket.socket, options: Sequence[SocketOption]) -> None:
    """Set the options on a connection; one that has just ended takes none."""
    with contextlib.suppress(OSError):
        for option in options:
            connection.setsockopt(*option)


def make_client_socket(address: Any) -> socket.socket:
    """Return the socket of a client, for one address that `socket.getaddrinfo` has found."""
    family, kind, protocol, _name, _address = address
    connection = socket.socket(family, kind, protocol)
    end_when_cut(connection, CLIENT_OPTIONS)
    return connection
