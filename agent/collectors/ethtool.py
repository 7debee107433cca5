"""What network drivers count: pause, priority flow control, discards, errors of the link itself.

Source: agent/sources/network_driver.py. Names of counters are each driver's own:
        mlx5   Linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst
        mlx4, mlxsw, bnxt_en, ice, i40e, ixgbe, hns3   the string tables of the driver's source
Cost:   3 ioctls and 2 netlink questions a device, every 5 s: an mlx5 asks its firmware each time.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from agent.collectors.ethernet import find_devices
from agent.metrics import Family, Metric, counter, gauge
from agent.sources.network_driver import DriverInfo, FecBlocks, PauseFrames
from detectors.formats.pause_counters import (
    LINK_PAUSE_FRAMES,
    LINK_PAUSE_US,
    PRIORITY_PAUSE_FRAMES,
    PRIORITY_PAUSE_US,
)
from rankmend.errors import NoSourceError, SourceError

_Value = TypeVar("_Value")
Labels = tuple[tuple[str, str], ...]
_DIRECTIONS: Final = {"rx": "receive", "tx": "transmit"}
_US: Final = 1e-6

_WAY_LABELS: Final = ("device", "direction")
FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "ethernet_driver_info",
        "",
        ("device", "driver", "version", "firmware"),
        "Driver and firmware; always 1.",
    ),
    gauge(
        "ethernet_driver_success",
        "",
        ("device",),
        "1 when the driver answered everything that it can, 0 when a question failed.",
    ),
    counter("ethernet_pause_frames", "", _WAY_LABELS, "Pause frames of the whole link."),
    counter(
        "ethernet_pause_seconds",
        "seconds",
        _WAY_LABELS,
        "Time for which pause frames stopped the link.",
    ),
    counter(
        "ethernet_pause_storms",
        "",
        ("device", "kind"),
        "Times that the card sent pauses for too long: warning, or error with pauses cut off.",
    ),
    counter(
        "ethernet_priority_pause_frames",
        "",
        ("device", "priority", "direction"),
        "Pause frames of a priority (PFC).",
    ),
    counter(
        "ethernet_priority_pause_seconds",
        "seconds",
        ("device", "priority", "direction"),
        "Time for which a priority was stopped (PFC).",
    ),
    counter(
        "ethernet_priority_discards",
        "",
        ("device", "priority", "direction"),
        "Packets of a priority dropped for lack of buffers.",
    ),
    counter(
        "ethernet_link_errors",
        "",
        ("device", "kind"),
        "Errors that the card counts at its port, by kind.",
    ),
    counter(
        "ethernet_ecn_marked_packets",
        "",
        ("device",),
        "Packets received with a mark of congestion, RDMA not among them.",
    ),
    counter(
        "ethernet_fec_blocks",
        "",
        ("device", "outcome"),
        "Blocks that forward error correction has corrected, or could not.",
    ),
)


class Driver(Protocol):
    def driver_info(self, device: str) -> DriverInfo: ...
    def statistics(self, device: str) -> dict[str, int]: ...
    def pause_frames(self, device: str) -> PauseFrames: ...
    def fec_blocks(self, device: str) -> FecBlocks: ...
    def forget(self, device: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Rule:
    """Counters whose name fits a pattern. Its groups: way (rx, tx), priority, or neither."""

    pattern: re.Pattern[str]
    metric: str
    factor: float = 1.0


def _rule(pattern: str, metric: str, factor: float = 1.0) -> _Rule:
    return _Rule(re.compile(pattern), f"rankmend_ethernet_{metric}_total", factor)


def _rules(patterns: Sequence[str], metric: str, factor: float = 1.0) -> tuple[_Rule, ...]:
    return tuple(_rule(pattern, metric, factor) for pattern in patterns)


_WAY: Final = "(?P<way>[rt]x)"
_PRIORITY: Final = "(?P<priority>[0-7])"
_RULES: Final = (
    *_rules(PRIORITY_PAUSE_FRAMES, "priority_pause_frames"),
    *_rules(PRIORITY_PAUSE_US, "priority_pause_seconds", _US),
    _rule(f"{_WAY}_prio{_PRIORITY}_discards", "priority_discards"),  # mlx5
    # pause of the whole link, where the kernel's own question has no answer
    *_rules(LINK_PAUSE_FRAMES, "pause_frames"),
    *_rules(LINK_PAUSE_US, "pause_seconds", _US),
)
# name of a counter to the kind of its metric
_STORMS: Final = {
    "tx_pause_storm_warning_events": "warning",
    "tx_pause_storm_error_events": "error",
}
LINK_ERRORS: Final = {
    "link_down_events_phy": "link_down",
    "link_down_events": "link_down",  # bnxt_en
    "rx_crc_errors_phy": "crc",
    "rx_fcs_err_frames": "crc",  # bnxt_en
    "rx_crc_errors.nic": "crc",  # ice
    "port.rx_crc_errors": "crc",  # i40e
    "mac_rx_fcs_err_pkt_num": "crc",  # hns3
    "rx_symbol_err_phy": "symbol",
    "rx_pcs_symbol_err_phy": "uncorrected_symbol",
    "rx_pcs_symbol_err": "uncorrected_symbol",  # bnxt_en
    "rx_corrected_bits_phy": "corrected_bit",
    "rx_corrected_bits": "corrected_bit",  # bnxt_en
    "rx_discards_phy": "receive_discard",
    "tx_discards_phy": "transmit_discard",
    "rx_out_of_buffer": "out_of_buffer",
    "module_unplug": "module_unplug",
    "module_bus_stuck": "module_bus_stuck",
    "module_high_temp": "module_high_temperature",
    "module_bad_shorted": "module_shorted",
}
_ECN: Final = frozenset({"rx_ecn_mark"})  # mlx5


def map_counter(name: str) -> tuple[str, tuple[tuple[str, str], ...], float] | None:
    """Return metric, labels and factor of a driver's counter, or None for one not shown."""
    if name in LINK_ERRORS:
        return "rankmend_ethernet_link_errors_total", (("kind", LINK_ERRORS[name]),), 1.0
    if name in _STORMS:
        return "rankmend_ethernet_pause_storms_total", (("kind", _STORMS[name]),), 1.0
    if name in _ECN:
        return "rankmend_ethernet_ecn_marked_packets_total", (), 1.0
    for rule in _RULES:
        match = rule.pattern.fullmatch(name)
        if match is not None:
            groups = match.groupdict()
            direction = ("direction", _DIRECTIONS[groups["way"]])
            priority = groups.get("priority")
            labels = (("priority", priority), direction) if priority else (direction,)
            return rule.metric, labels, rule.factor
    return None


class EthtoolCollector:
    name = "ethtool"
    interval_s = 5.0

    def __init__(
        self,
        sysfs_root: Path,
        driver: Driver,
        excluded: Sequence[str] = (),
        wanted: Sequence[str] = (),
    ) -> None:
        self._root = sysfs_root / "class" / "net"
        self._driver = driver
        self._excluded, self._wanted = tuple(excluded), tuple(wanted)
        self._mapped: dict[str, tuple[str, Labels, float] | None] = {}
        self._devices: list[str] = []

    def collect(self) -> Iterator[Metric]:
        devices = find_devices(self._root, self._excluded, self._wanted)
        if not devices:
            raise NoSourceError(f"no network card at {self._root}")
        for gone in set(self._devices) - set(devices):
            self._driver.forget(gone)
        self._devices = devices
        for device in devices:
            yield from self._read_device(device)

    def _read_device(self, device: str) -> Iterator[Metric]:
        values: dict[tuple[str, Labels], float] = {}
        own = (("device", device),)
        failed: list[SourceError] = []
        info = _answer(self._driver.driver_info, device, failed)
        if info is not None:
            yield Metric(
                "rankmend_ethernet_driver_info",
                1,
                (
                    *own,
                    ("driver", info.driver),
                    ("version", info.version),
                    ("firmware", info.firmware),
                ),
            )
        pause = _answer(self._driver.pause_frames, device, failed)
        if pause is not None:
            for direction, frames in (("receive", pause.received), ("transmit", pause.sent)):
                if frames is not None:
                    key = ("rankmend_ethernet_pause_frames_total", (("direction", direction),))
                    values[key] = frames
        fec = _answer(self._driver.fec_blocks, device, failed)
        if fec is not None:
            for outcome, blocks in (
                ("corrected", fec.corrected),
                ("uncorrectable", fec.uncorrectable),
            ):
                if blocks is not None:
                    values["rankmend_ethernet_fec_blocks_total", (("outcome", outcome),)] = blocks
        for name, count in (_answer(self._driver.statistics, device, failed) or {}).items():
            if name not in self._mapped:
                self._mapped[name] = map_counter(name)
            mapped = self._mapped[name]
            if mapped is not None:
                metric, labels, factor = mapped
                values.setdefault((metric, labels), count * factor)
        for (metric, labels), value in values.items():
            yield Metric(metric, value, (*own, *labels))
        yield Metric("rankmend_ethernet_driver_success", int(not failed), own)


def _answer(ask: Callable[[str], _Value], device: str, failed: list[SourceError]) -> _Value | None:
    try:
        return ask(device)
    except NoSourceError:
        return None
    except SourceError as error:
        failed.append(error)
        return None
