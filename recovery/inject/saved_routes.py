"""Routes as `ip route save` writes them, without those that the kernel makes by itself for each address. Pure.

Restored with the others, they would come a second time, with another metric. Source: rtnetlink(7), iproute2/ip/iproute.c
(route_dump_magic, 0x45311224), linux/rtnetlink.h (struct rtmsg, RTPROT_KERNEL).
"""

import struct
from typing import Final

from rankmend.errors import SourceError

_MAGIC: Final = struct.pack("=I", 0x45311224)
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr: length first
_PROTOCOL_AT: Final = _HEADER.size + 5  # rtm_protocol in struct rtmsg
_KERNEL: Final = 2


def without_kernels(saved: bytes) -> bytes:
    """Return the same with only the routes that somebody has added; empty where there is none."""
    if not saved.startswith(_MAGIC):
        raise SourceError(f"ip route save wrote no routes: {saved[:40]!r}")
    kept, at = [], len(_MAGIC)
    while at + _HEADER.size <= len(saved):
        length = _HEADER.unpack_from(saved, at)[0]
        if length <= _PROTOCOL_AT or at + length > len(saved):
            raise SourceError(f"ip route save wrote a route of {length} bytes at {at}")
        if saved[at + _PROTOCOL_AT] != _KERNEL:
            kept.append(saved[at : at + (length + 3 & ~3)])
        at += length + 3 & ~3
    return _MAGIC + b"".join(kept) if kept else b""
