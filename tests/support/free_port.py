"""A port for a program that is started with its number."""

import random
import socket
from pathlib import Path
from typing import Final

_LEAST: Final = 10_000
_TRIES: Final = 200


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on.

    Below the range from which the kernel takes ports of outgoing connections: one of those might take it before the
    program listens. Drawn anew each time, so that tests that run side by side hardly ever get the same one.
    """
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    above = int(text.split()[0])
    drawn = random.SystemRandom()
    for _try in range(_TRIES):
        port = drawn.randrange(_LEAST, above) if above > _LEAST else 0
        try:
            with socket.create_server((address, port)) as server:
                return int(server.getsockname()[1])
        except OSError:
            continue
    raise AssertionError(f"no free port on {address} between {_LEAST} and {above}")
