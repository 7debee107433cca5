"""Reads `ss -H -t -i -n -O`, with or without `-p` (iproute2): the TCP connections of a host, with what the kernel counts of each. Pure."""

import re
from dataclasses import dataclass
from typing import Final

LINES_MAX: Final = 100_000
_ENDS: Final = re.compile(r"^\s*(?:[A-Z][A-Z0-9-]*\s+)?\d+\s+\d+\s+(\S+):(\d+)\s+(\S+):(\d+)\s")
_PROGRAM: Final = re.compile(r'users:\(\("([^"]{1,64})"')
_ACKED: Final = re.compile(r"\sbytes_acked:(\d{1,20})\b")
_IN_FLIGHT: Final = re.compile(r"\sunacked:[1-9]")
_QUEUED: Final = re.compile(r"\snotsent:[1-9]")


@dataclass(frozen=True, slots=True)
class TcpFlow:
    address: str  # own
    port: int
    peer: str
    peer_port: int
    acked_bytes: int  # sent, and acknowledged, since the connection was made
    program: str  # "": another user's, or not asked for
    is_held_up: bool = False  # the path holds it up: data is in flight, and more waits to be sent


def parse_ss(text: str) -> tuple[TcpFlow, ...]:
    """Return the connections; a line of another shape is none. Without ``bytes_acked`` nothing was sent."""
    found = []
    for line in text.splitlines()[:LINES_MAX]:
        ends = _ENDS.match(line)
        if ends is None or not (0 < int(ends[2]) < 65536 and 0 < int(ends[4]) < 65536):
            continue
        acked, program = _ACKED.search(line), _PROGRAM.search(line)
        found.append(
            TcpFlow(
                _plain(ends[1]), int(ends[2]), _plain(ends[3]), int(ends[4]),
                int(acked[1]) if acked else 0, program[1] if program else "",
                bool(_IN_FLIGHT.search(line) and _QUEUED.search(line)),
            )
        )  # fmt: skip
    return tuple(found)


def _plain(address: str) -> str:
    """Return the address without brackets, interface and the prefix of IPv4 in IPv6."""
    return address.strip("[]").split("%")[0].removeprefix("::ffff:")
