"""Holds what an interface sends for a while, where the kernel has no netem: INTERFACE TAP DELAY_S.

Makes the interface TAP, to which a rule of nftables (netdev, egress, fwd) diverts frames, and sends each on by a packet
socket past queueing (PACKET_QDISC_BYPASS). From Linux 5.17 on what such a socket sends meets the rule, too: it lets frames with
our mark pass, or each would come back for ever. A frame that finds the queue full is lost, as in a switch.
Slower than the kernel's own: some 50,000 frames/s. Source: linux/if_tun.h, packet(7).
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from recovery.lab.inject.faulty.lifeline import say_ready, wait_for_go

_TUNSETIFF: Final = 0x400454CA
_IFF_TAP_WITHOUT_HEADER: Final = 0x0002 | 0x1000
_SOL_PACKET: Final = 263
_PACKET_QDISC_BYPASS: Final = 20
_FRAME_BYTES_MAX: Final = 65_536 + 64
MARK: Final = 0x726D6472  # of the frames that have waited
_FRAMES_MAX: Final = 10_000  # 15 MB at most


def main(arguments: Sequence[str]) -> None:
    interface, tap_name, delay_s = arguments[0], arguments[1], float(arguments[2])
    wait_for_go()
    tap = _open_tap(tap_name)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as card:
        card.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        card.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        card.bind((interface, 0))
        card.setblocking(False)
        say_ready()
        _carry(tap, card, delay_s)


def _open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP_WITHOUT_HEADER))
    with contextlib.suppress(OSError):  # it must send nothing of its own
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1", encoding="ascii")
    subprocess.run(["ip", "link", "set", "dev", name, "mtu", "65500", "up"], check=True, timeout=15)
    return tap


def _carry(tap: int, card: socket.socket, delay_s: float) -> None:
    waiting: deque[tuple[float, bytes]] = deque()  # when due, frame
    while True:
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            with contextlib.suppress(OSError):  # the interface is down, or its queue full: lost
                card.send(waiting.popleft()[1])
        timeout_s = max(0.0, waiting[0][0] - now_s) if waiting else None
        ready = select.select([0, tap], [], [], timeout_s)[0]
        if 0 in ready and not os.read(0, 4096):
            return
        if tap in ready:
            with contextlib.suppress(OSError):
                frame = os.read(tap, _FRAME_BYTES_MAX)
                if len(waiting) < _FRAMES_MAX:
                    waiting.append((time.monotonic() + delay_s, frame))
