"""What the files of an RDMA port hold: its state, its rate, and the counters of the InfiniBand specification with the series of each.

Source: Linux Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c.
"""

import re
from dataclasses import dataclass
from typing import Final

from rankmend.errors import NoSourceError, SourceError

BYTES_OF_GBIT: Final = 1e9 / 8
_WORDS: Final = 4  # port_*_data count octets divided by 4
_NOT_AVAILABLE: Final = "N/A"  # "N/A (no PMA)": the card does not have this counter
_STATE: Final = re.compile(r"(\d{1,3}): ?\S.*")
_RATE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec(?: \(\d{1,2}X(?: [A-Z0-9]+)?\))?")


@dataclass(frozen=True, slots=True)
class PortCounter:
    """A counter of the InfiniBand specification."""

    metric: str
    factor: int = 1
    saturates_at: int | None = None  # where it stops: narrow counters do not wrap


def _bits(width: int) -> int:
    return (1 << width) - 1


# Widths: PortCounters of the InfiniBand specification, as PORT_PMA_ATTR in the kernel has them.
# Data and packets have 64 bits where the card has PortCountersExtended; else 32.
COUNTERS: Final = {
    name: PortCounter(f"rankmend_nic_{metric}_total", factor, _bits(width))
    for name, metric, factor, width in (
        ("symbol_error", "symbol_errors", 1, 16),
        ("link_error_recovery", "link_error_recoveries", 1, 8),
        ("link_downed", "link_downed", 1, 8),
        ("port_rcv_errors", "receive_errors", 1, 16),
        ("port_rcv_remote_physical_errors", "receive_remote_physical_errors", 1, 16),
        ("port_rcv_switch_relay_errors", "receive_switch_relay_errors", 1, 16),
        ("port_xmit_discards", "transmit_discards", 1, 16),
        ("port_xmit_constraint_errors", "transmit_constraint_errors", 1, 8),
        ("port_rcv_constraint_errors", "receive_constraint_errors", 1, 8),
        ("local_link_integrity_errors", "local_link_integrity_errors", 1, 4),
        ("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors", 1, 4),
        ("VL15_dropped", "vl15_drops", 1, 16),
        ("port_xmit_wait", "transmit_wait_ticks", 1, 32),
        ("port_xmit_data", "transmit_bytes", _WORDS, 32),
        ("port_rcv_data", "receive_bytes", _WORDS, 32),
        ("port_xmit_packets", "transmit_packets", 1, 32),
        ("port_rcv_packets", "receive_packets", 1, 32),
        ("unicast_xmit_packets", "transmit_unicast_packets", 1, 64),
        ("unicast_rcv_packets", "receive_unicast_packets", 1, 64),
        ("multicast_xmit_packets", "transmit_multicast_packets", 1, 64),
        ("multicast_rcv_packets", "receive_multicast_packets", 1, 64),
    )
}
# asked each time; the others count errors and congestion, which no check judges within 5 s
QUICK_COUNTERS: Final = frozenset({"link_downed", "link_error_recovery"})
# read whatever the checks are: the planes of the network go by the packets
USED_COUNTERS: Final = QUICK_COUNTERS | {"port_rcv_packets"}
# how much traffic there is: no check reads it, people read it when they look
SHOWN_COUNTERS: Final = frozenset(
    {"port_xmit_wait", "port_xmit_data", "port_rcv_data", "port_xmit_packets"}
)
SHOWN_METRICS: Final = frozenset(COUNTERS[name].metric for name in SHOWN_COUNTERS)


def parse_state(text: str) -> int:
    """Return the number in the text of a port's state, such as ``4: ACTIVE``."""
    match = _STATE.fullmatch(text)
    if match is None or not text.isascii():
        raise SourceError(f"port state is not '<id>: <NAME>': {text[:80]!r}")
    return int(match[1])


def parse_rate(text: str) -> float:
    """Return bytes per second from text such as ``400 Gb/sec (4X NDR)``."""
    match = _RATE.fullmatch(text)
    if match is None or not text.isascii():
        raise SourceError(f"port rate is not '<number> Gb/sec (<lanes>X <kind>)': {text[:80]!r}")
    return float(match[1]) * BYTES_OF_GBIT


def parse_counter(text: str) -> int:
    """Return the value of a counter, or raise NoSourceError where the card does not have it."""
    if text.startswith(_NOT_AVAILABLE):
        raise NoSourceError(f"no such counter: {text[:80]!r}")
    if not text.isascii() or not text.isdigit() or len(text) > 20:  # a 64-bit number
        raise SourceError(f"counter is not a decimal number of 64 bits: {text[:80]!r}")
    return int(text)
