"""The address at which other machines reach this one."""

import socket

from rankmend.errors import LaunchError


def route_address(host: str, port: int) -> str:
    """Return this machine's address on its route to ``host``. Sends nothing."""
    try:
        family, kind, _protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"no route to {host}: {error}; name this node's address with --local-addr"
        ) from error
