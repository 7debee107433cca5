"""Pluggable transceivers: temperature, voltage, optical power by lane, and who made them.

Source: `detectors.formats.transceiver` on the memory that `Ethtool.module_memory` reads, which
        needs CAP_NET_ADMIN: the agent gets it through the root helper.
Cost:   the bus to a module is slow, 5 to 200 ms a page: once a minute.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from agent.collectors.ethernet import find_devices
from agent.metrics import Family, Metric, gauge
from detectors.formats.transceiver import Range, Transceiver, parse_transceiver
from rankmend.errors import NoSourceError, SourceError

Labels = tuple[tuple[str, str], ...]

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "transceiver_info",
        "",
        ("device", "standard", "vendor", "part", "revision", "serial"),
        "What a transceiver is; always 1.",
    ),
    gauge(
        "transceiver_success",
        "",
        ("device",),
        "1 when the transceiver could be read, 0 when it or its driver refused.",
    ),
    gauge("transceiver_supply_volts", "volts", ("device",), "Supply voltage of a transceiver."),
    *(
        gauge(f"transceiver_{name}", unit, labels, text)
        for quantity, unit, labels, what in (
            ("temperature", "celsius", ("device",), "Temperature"),
            ("receive_power", "watts", ("device", "lane"), "Optical power received"),
            ("transmit_power", "watts", ("device", "lane"), "Optical power sent"),
        )
        for name, labels, text in (
            (f"{quantity}_{unit}", labels, f"{what}."),
            (f"{quantity}_min_{unit}", ("device",), f"{what}: lower alarm limit of the module."),
            (f"{quantity}_max_{unit}", ("device",), f"{what}: upper alarm limit of the module."),
        )
    ),
    gauge("transceiver_bias_amperes", "amperes", ("device", "lane"), "Current of the laser."),
    gauge(
        "transceiver_receive_lost",
        "",
        ("device", "lane"),
        "1 when the lane has lost its light since it was last read.",
    ),
)


class TransceiverCollector:
    name = "transceiver"
    interval_s = 60.0

    def __init__(
        self,
        sysfs_root: Path,
        read_memory: Callable[[str], bytes],
        excluded: Sequence[str] = (),
        wanted: Sequence[str] = (),
    ) -> None:
        self._root = sysfs_root / "class" / "net"
        self._read_memory = read_memory
        self._excluded, self._wanted = tuple(excluded), tuple(wanted)

    def collect(self) -> Iterator[Metric]:
        found: list[tuple[str, Transceiver]] = []
        broken: dict[str, SourceError] = {}
        reason = "no network card"
        devices = find_devices(self._root, self._excluded, self._wanted)
        for device in devices:
            try:
                found.append((device, parse_transceiver(self._read_memory(device))))
            except NoSourceError as error:
                reason = str(error)
            except SourceError as error:
                broken[device] = error
        if broken and len(broken) == len(devices):  # not the modules: the way to them
            raise SourceError("no transceiver can be read") from broken[devices[0]]
        if not found and not broken:
            raise NoSourceError(f"no transceiver at {self._root}: {reason}")
        for device in broken:
            yield Metric("rankmend_transceiver_success", 0, (("device", device),))
        for device, transceiver in found:
            labels = (("device", device),)
            yield Metric("rankmend_transceiver_success", 1, labels)
            yield from _show(transceiver, labels)


def _show(transceiver: Transceiver, labels: Labels) -> Iterator[Metric]:
    info = (
        ("standard", transceiver.standard.value),
        ("vendor", transceiver.vendor),
        ("part", transceiver.part),
        ("revision", transceiver.revision),
        ("serial", transceiver.serial),
    )
    yield Metric("rankmend_transceiver_info", 1, (*labels, *info))
    if transceiver.temperature_celsius is not None:
        celsius = transceiver.temperature_celsius
        yield Metric("rankmend_transceiver_temperature_celsius", celsius, labels)
    if transceiver.voltage_volts is not None:
        yield Metric("rankmend_transceiver_supply_volts", transceiver.voltage_volts, labels)
    for quantity, unit, limits in (
        ("temperature", "celsius", transceiver.temperature_limits_celsius),
        ("receive_power", "watts", transceiver.receive_limits_watts),
        ("transmit_power", "watts", transceiver.transmit_limits_watts),
    ):
        yield from _show_limits(quantity, unit, limits, labels)
    for lane in transceiver.lanes:
        of_lane = (*labels, ("lane", str(lane.number)))
        for metric, value in (
            ("receive_power_watts", lane.receive_watts),
            ("transmit_power_watts", lane.transmit_watts),
            ("bias_amperes", lane.bias_amperes),
            ("receive_lost", lane.is_receive_lost),
        ):
            if value is not None:
                yield Metric(f"rankmend_transceiver_{metric}", float(value), of_lane)


def _show_limits(
    quantity: str, unit: str, limits: Range | None, labels: Labels
) -> Iterator[Metric]:
    if limits is not None:
        yield Metric(f"rankmend_transceiver_{quantity}_min_{unit}", limits.low, labels)
        yield Metric(f"rankmend_transceiver_{quantity}_max_{unit}", limits.high, labels)
