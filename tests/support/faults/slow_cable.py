"""A cable that takes time: frames wait here before they go on. For kernels without netem; slow, so not for load.

    delay.py PORT TAP DELAY_S        in the network namespace of the switches

makes the network device TAP, says so on standard output, and carries each frame between it and PORT, which
must be on no bridge, until standard input ends. A frame that finds the queue full is lost, as in a switch.
"""

import contextlib
import fcntl
import heapq
import os
import select
import socket
import struct
import sys
import time
from typing import NoReturn

# linux/if_tun.h, linux/if_ether.h, linux/if_packet.h
_TUNSETIFF = 0x400454CA
_IFF_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_IGNORE_OUTGOING = 23  # Linux 4.20: or it would read what it has sent
_FRAME_BYTES_MAX = 65536 + 64
_FRAMES_MAX = 10_000  # 15 MB at most


def open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP_WITHOUT_HEADER))
    return tap


def open_port(name: str) -> int:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.bind((name, _ETH_P_ALL))
    port.setblocking(False)
    return port.detach()


def carry(tap: int, port: int, delay_s: float) -> NoReturn:
    other = {tap: port, port: tap}
    waiting: list[tuple[float, int, int, bytes]] = []  # due, serial, to whom, frame
    serial = 0
    while True:
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            _due_s, _serial, target, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # that end is down: lost
                os.write(target, frame)
        timeout_s = max(0.0, waiting[0][0] - now_s) if waiting else None
        ready = select.select([0, tap, port], [], [], timeout_s)[0]
        if 0 in ready:
            sys.exit()
        for source in ready:
            with contextlib.suppress(OSError):  # that end is down, which is said once
                frame = os.read(source, _FRAME_BYTES_MAX)
                if len(waiting) < _FRAMES_MAX:
                    serial += 1
                    due_s = time.monotonic() + delay_s
                    heapq.heappush(waiting, (due_s, serial, other[source], frame))


if __name__ == "__main__":
    ends = open_tap(sys.argv[2]), open_port(sys.argv[1])
    print("ready", flush=True)
    carry(*ends, float(sys.argv[3]))
