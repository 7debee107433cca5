"""Network cards as the kernel sees them: carrier, speed, and every kind of error.

Source: Linux Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-statistics.
Files:  <root>/class/net/<device>/{carrier,carrier_changes,carrier_down_count,speed,mtu,flags} and
        statistics/*. Devices with hardware beneath them, bonds, and those named as wanted.
Cost:   20 reads a device through kept descriptors; no privilege.

Bytes and packets are the network collector's.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from agent.sources.kept_files import KeptFiles
from agent.sources.pci_topology import (
    has_hardware,
    is_excluded,
    list_names,
    read_driver,
    read_names,
    read_pci,
)
from rankmend.errors import NoSourceError, SourceError

Labels = tuple[tuple[str, str], ...]

RESCAN_RUNS: Final = 60  # how often known names are looked at anew: devices can be renamed
_BYTES_OF_MBIT: Final = 1e6 / 8
_SPEED_UNKNOWN: Final = 0xFFFF_FFFF  # include/uapi/linux/ethtool.h: -1, unsigned in old kernels
_IS_ENABLED: Final = 1  # IFF_UP
_FLAGS: Final = re.compile(r"0x[0-9a-f]{1,8}")
# Each is a kind of the error counter. rx_errors, tx_errors and the drops are the sums that the
# network collector shows.
ERRORS: Final = (
    "rx_crc_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_over_errors",
    "rx_nohandler",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
    "collisions",
)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "ethernet_info",
        "",
        ("device", "pci_bus_id", "driver"),
        "What a network device is; always 1.",
    ),
    gauge("ethernet_enabled", "", ("device",), "1 when the device is switched on (IFF_UP)."),
    gauge(
        "ethernet_carrier",
        "",
        ("device",),
        "1 when the link is up; no series while the device is switched off.",
    ),
    counter("ethernet_carrier_changes", "", ("device",), "Times that the link came or went."),
    counter("ethernet_carrier_downs", "", ("device",), "Times that the link went."),
    gauge(
        "ethernet_speed_bytes_per_second",
        "bytes per second",
        ("device",),
        "Speed of the link; no series while it is down.",
    ),
    gauge("ethernet_mtu_bytes", "bytes", ("device",), "Largest packet."),
    counter("ethernet_errors", "", ("device", "kind"), "Errors by the kernel's own kinds."),
    gauge(
        "ethernet_unreadable_files",
        "",
        ("device",),
        "Files of the device that could not be read in the last run; their values are missing.",
    ),
)


def parse_number(text: str) -> int:
    """Return a decimal number of at most 64 bits, which may be negative."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        raise SourceError(f"no decimal number of 64 bits: {text[:80]!r}")
    return int(text)


def parse_flags(text: str) -> int:
    """Return the flags of a device (netdevice(7)) from text such as ``0x1003``."""
    if not _FLAGS.fullmatch(text):
        raise SourceError(f"flags are not '0x<hex>': {text[:80]!r}")
    return int(text, 16)


def find_devices(net_root: Path, excluded: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the devices that have hardware or are bonds, and those named by ``wanted``."""
    return [
        name
        for name in list_names(net_root)
        if not is_excluded(name, excluded)
        and (
            any(fnmatchcase(name, pattern) for pattern in wanted)
            or has_hardware(net_root / name)
            or (net_root / name / "bonding").is_dir()
        )
    ]


class EthernetCollector:
    name = "ethernet"
    interval_s = 1.0

    def __init__(
        self, sysfs_root: Path, excluded: Sequence[str] = (), wanted: Sequence[str] = ()
    ) -> None:
        self._root = sysfs_root / "class" / "net"
        self._excluded, self._wanted = tuple(excluded), tuple(wanted)
        self._files = KeptFiles()
        self._infos: dict[str, Metric] = {}
        self._names: frozenset[str] = frozenset()
        self._run = 0

    def collect(self) -> Iterator[Metric]:
        names = read_names(self._root)
        if names != self._names or self._run % RESCAN_RUNS == 0:
            self._rescan()
            self._names = names
        self._run += 1
        if not self._infos:
            raise NoSourceError(f"no network card at {self._root}")
        for device, info in self._infos.items():
            yield info
            yield from self._read_device(device)

    def _rescan(self) -> None:
        devices = find_devices(self._root, self._excluded, self._wanted)
        for gone in [name for name in self._infos if name not in devices]:
            self._files.forget(f"{self._root}/{gone}/")
        self._infos = {name: _describe(self._root / name, name) for name in devices}

    def _read_device(self, device: str) -> Iterator[Metric]:
        labels = (("device", device),)
        folder = f"{self._root}/{device}"
        failed: list[str] = []
        flags = self._number(f"{folder}/flags", failed, parse_flags)
        is_enabled = flags is not None and bool(flags & _IS_ENABLED)
        if flags is not None:
            yield Metric("rankmend_ethernet_enabled", int(is_enabled), labels)
        # both answer EINVAL on a device that is switched off
        if is_enabled or flags is None:
            carrier = self._number(f"{folder}/carrier", failed)
            if carrier is not None:
                yield Metric("rankmend_ethernet_carrier", carrier, labels)
            if carrier:
                yield from self._read_speed(folder, labels, failed)
        for name, metric in (
            ("mtu", "rankmend_ethernet_mtu_bytes"),
            ("carrier_changes", "rankmend_ethernet_carrier_changes_total"),
            ("carrier_down_count", "rankmend_ethernet_carrier_downs_total"),
        ):
            value = self._number(f"{folder}/{name}", failed)
            if value is not None:
                yield Metric(metric, value, labels)
        for kind in ERRORS:
            value = self._number(f"{folder}/statistics/{kind}", failed)
            if value is not None:
                yield Metric("rankmend_ethernet_errors_total", value, (*labels, ("kind", kind)))
        yield Metric("rankmend_ethernet_unreadable_files", len(failed), labels)

    def _read_speed(self, folder: str, labels: Labels, failed: list[str]) -> Iterator[Metric]:
        """Return the speed; -1, and EINVAL from some virtual devices, say that there is none."""
        try:
            speed_mbit = parse_number(self._files.read(f"{folder}/speed"))
        except NoSourceError:
            return
        except SourceError as error:
            if not isinstance(error.__cause__, OSError):
                failed.append(f"{folder}/speed")
            return
        if 0 < speed_mbit < _SPEED_UNKNOWN:
            speed = speed_mbit * _BYTES_OF_MBIT
            yield Metric("rankmend_ethernet_speed_bytes_per_second", speed, labels)

    def _number(
        self, path: str, failed: list[str], parse: Callable[[str], int] = parse_number
    ) -> int | None:
        try:
            return parse(self._files.read(path))
        except NoSourceError:
            return None
        except SourceError:
            failed.append(path)
            return None


def _describe(folder: Path, device: str) -> Metric:
    link = folder / "device"
    return Metric(
        "rankmend_ethernet_info",
        1,
        (
            ("device", device),
            ("pci_bus_id", read_pci(link).bus_id),
            ("driver", read_driver(link)),
        ),
    )
