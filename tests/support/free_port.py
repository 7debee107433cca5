"""A port for a program that is started with its number."""

import os
import random
import socket
from pathlib import Path
from typing import Final

from recovery.launcher.rendezvous.ports import USUAL_FIRST, USUAL_LAST

_LEAST: Final = 10_000
_TRIES: Final = 200
_given: set[int] = set()  # by this process


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on.

    Nobody else takes it before the program listens: it lies outside the range from which the kernel takes ports of
    outgoing connections, and outside the one in which launchers reserve theirs. Workers of pytest-xdist each have
    ports of their own, and none gets one twice.
    """
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    above = int(text.split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = [
        port
        for port in range(_LEAST + worker, above, count)
        if not USUAL_FIRST <= port <= USUAL_LAST and port not in _given
    ]
    drawn = random.SystemRandom()
    for _try in range(_TRIES):
        port = drawn.choice(mine) if mine else 0
        try:
            with socket.create_server((address, port)) as server:
                _given.add(port)
                return int(server.getsockname()[1])
        except OSError:
            continue
    raise AssertionError(f"no free port on {address} between {_LEAST} and {above}")
