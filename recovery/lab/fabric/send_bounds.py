"""How much a node may send in tests of the network: a rate, which the kernel paces, and bytes in all.

The kernel holds back what is due later, so that no burst goes out; the time for which it had something to send counts as before. So a
path that carries the rate shows the rate, and a slower one what it carries.
"""

import contextlib
import socket
import struct
import threading
import time
from typing import Final

SO_MAX_PACING_RATE: Final = 47  # asm-generic/socket.h
AHEAD_S: Final = 0.25  # that a program may be ahead of the rate: what the kernel holds for it


class SendBounds:
    """Of one node. For any thread."""

    def __init__(self, bytes_per_s: float, bytes_max: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._left = bytes_max
        self._lock = threading.Lock()

    def of_one(self, flows: int) -> "FlowBound":
        """Return the bound of each of so many flows that send at the same time."""
        return FlowBound(self, self.bytes_per_s / max(1, flows))

    def take(self, count: int) -> bool:
        """Return whether so many bytes more may be sent; they count at once."""
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
            return True


class FlowBound:
    """Of one flow, for the thread that sends it."""

    def __init__(self, node: SendBounds, bytes_per_s: float) -> None:
        self._node = node
        self.bytes_per_s = bytes_per_s
        self._sent = 0

    def pace(self, connection: socket.socket) -> None:
        """Have the kernel send at the rate; where it can't, `take` waits."""
        rate = struct.pack("@N", max(1, round(self.bytes_per_s)))
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)

    def take(self, count: int, elapsed_s: float) -> bool:
        """Return whether so many bytes more may be sent, once the rate allows it. ``elapsed_s``: since the first ones."""
        ahead_s = self._sent / self.bytes_per_s - elapsed_s
        if ahead_s > AHEAD_S:
            time.sleep(ahead_s - AHEAD_S)
        self._sent += count
        return self._node.take(count)
