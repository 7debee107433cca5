"""Limits copies to a share of the speed of the link that leads to the peer.

Sources: /sys/class/net/*/speed in Mbit/s, -1 or an error where the driver doesn't know it
(Documentation/ABI/testing/sysfs-class-net), /proc/net/route and /proc/net/ipv6_route.
"""

import ipaddress
import sys
from pathlib import Path
from typing import Final

BURST_S: Final = 0.05  # a burst delays others' packets by as long as the link takes for it

SHARE: Final = 0.05  # of the link; less than what a step's time varies by
UNKNOWN_BYTES_PER_S: Final = 100e6  # 8 % of 10 Gbit/s, the least that nodes with GPUs have
BYTES_PER_S_MIN: Final = 1e6  # slower, and a timeout at the peer could end a copy


class TokenBucket:
    """Lets bytes pass at a mean rate, with bursts of `BURST_S` of it, or of one piece if that is larger.

    In any T seconds at most ``bytes_per_s * (T + BURST_S)`` pass, and one piece.
    """

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a rate of {bytes_per_s} bytes/s: want more than 0")
        self._bytes_per_s = bytes_per_s
        self._free = bytes_per_s * BURST_S  # negative: owed
        self._at_s = now_s

    def take(self, size_bytes: int, now_s: float) -> float:
        """Return how many seconds to wait before this piece may pass. It counts at once."""
        rate = self._bytes_per_s
        self._free = min(rate * BURST_S, self._free + rate * max(0.0, now_s - self._at_s))
        self._at_s = max(self._at_s, now_s)
        wait_s = max(0.0, -self._free / rate)
        self._free -= size_bytes
        return wait_s


def route_interface(routes: str, address: ipaddress.IPv4Address) -> str | None:
    """Return the interface for an address by the text of /proc/net/route."""
    found: tuple[int, str] | None = None
    for line in routes.splitlines()[1:]:
        words = line.split()
        try:
            to, mask = (int.from_bytes(bytes.fromhex(words[at]), sys.byteorder) for at in (1, 7))
        except (IndexError, ValueError):
            continue
        if int(address) & mask == to and (found is None or mask > found[0]):
            found = mask, words[0]
    return found and found[1]


def route_interface_v6(routes: str, address: ipaddress.IPv6Address) -> str | None:
    """Return the interface for an address by the text of /proc/net/ipv6_route."""
    found: tuple[int, str] | None = None
    for line in routes.splitlines():
        words = line.split()
        try:
            network = ipaddress.ip_network((bytes.fromhex(words[0]), int(words[1], 16)), False)
            name = words[9]
        except (IndexError, ValueError):
            continue
        if name == "lo" or address not in network:
            continue
        if found is None or network.prefixlen > found[0]:
            found = network.prefixlen, name
    return found and found[1]


def interface_to(address: str, proc: Path = Path("/proc")) -> str | None:
    """Return the interface that leads to a numeric address; None if that isn't known."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        if isinstance(parsed, ipaddress.IPv4Address):
            return route_interface((proc / "net/route").read_text(encoding="ascii"), parsed)
        return route_interface_v6((proc / "net/ipv6_route").read_text(encoding="ascii"), parsed)
    except (OSError, ValueError):
        return None


def speed_bytes_per_s(interface: str, sysfs: Path = Path("/sys")) -> float | None:
    """Return the speed of an interface; None if its driver doesn't know."""
    try:
        text = (sysfs / "class/net" / interface / "speed").read_text(encoding="ascii")
        speed = int(text)
    except (OSError, ValueError):
        return None
    return speed * 1e6 / 8 if speed > 0 else None


def copy_bytes_per_s(interface: str | None, sysfs: Path = Path("/sys")) -> float:
    """Return the rate for copies over this interface."""
    speed = speed_bytes_per_s(interface, sysfs) if interface else None
    return UNKNOWN_BYTES_PER_S if speed is None else max(BYTES_PER_S_MIN, speed * SHARE)
