"""Temperatures, fans and power: every hwmon chip and every thermal zone of the kernel.

Source: hwmon chips: agent/collectors/hwmon.py. Zones: Linux
        Documentation/ABI/testing/sysfs-class-thermal (millidegrees Celsius).
Files:  <root>/class/thermal/thermal_zone*/{type,temp,trip_point_*_{temp,type}}
Cost:   one pread a zone; its trip points are read every `SCAN_RUNS` runs.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.collectors.hwmon import HwmonReader, number_of, parse_integer, read_label
from agent.metrics import SENSOR_LABELS, Family, Metric, gauge
from agent.sources.kept_files import KeptFiles
from rankmend.errors import NoSourceError, SourceError

SCAN_RUNS: Final = 30  # 5 minutes at 10 s
TRIPS_MAX: Final = 64  # THERMAL_MAX_TRIPS was 12; newer kernels have no bound
_MILLI: Final = re.compile(r"-?\d{1,9}")
_TRIP_METRICS: Final = {
    "passive": "rankmend_thermal_zone_passive_celsius",
    "hot": "rankmend_thermal_zone_hot_celsius",
    "critical": "rankmend_thermal_zone_critical_celsius",
}
_ABSOLUTE_ZERO_CELSIUS: Final = -273.15  # below: THERMAL_TEMP_INVALID, no reading
_TRIP_MILLI_MAX: Final = 1_000_000  # unset points hold INT_MAX or THERMAL_TEMP_INVALID (-274000)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "thermal_temperature_celsius", "celsius", SENSOR_LABELS, "Temperature of a hwmon sensor."
    ),
    gauge("thermal_max_celsius", "celsius", SENSOR_LABELS, "The sensor's upper limit (temp_max)."),
    gauge(
        "thermal_crit_celsius", "celsius", SENSOR_LABELS, "The sensor's critical limit (temp_crit)."
    ),
    *(
        gauge(f"thermal_{limit}_celsius", "celsius", SENSOR_LABELS, f"The sensor's {text}.")
        for limit, text in (
            ("min", "lower limit (temp_min)"),
            ("lcrit", "lower critical limit (temp_lcrit)"),
            ("emergency", "limit above the critical one (temp_emergency)"),
        )
    ),
    gauge("thermal_fan_rpm", "revolutions per minute", SENSOR_LABELS, "Speed of a fan."),
    gauge(
        "thermal_fan_turned", "", SENSOR_LABELS, "1 once the fan has turned since the agent began."
    ),
    gauge(
        "thermal_fan_min_rpm",
        "revolutions per minute",
        SENSOR_LABELS,
        "The fan's lower limit (fan_min).",
    ),
    gauge(
        "thermal_fan_max_rpm",
        "revolutions per minute",
        SENSOR_LABELS,
        "The fan's upper limit (fan_max).",
    ),
    gauge(
        "thermal_sensor_info",
        "",
        ("device", "sensor", "label"),
        "The driver's own name for a sensor; always 1.",
    ),
    gauge(
        "thermal_sensor_success",
        "",
        SENSOR_LABELS,
        "1 when the sensor could be read, 0 when its driver refused or gave no number.",
    ),
    gauge(
        "thermal_zone_temperature_celsius",
        "celsius",
        ("device", "type"),
        "Temperature of a kernel thermal zone.",
    ),
    *(
        gauge(
            f"thermal_zone_{kind}_celsius",
            "celsius",
            ("device", "type"),
            f"The zone's lowest {kind} trip point.",
        )
        for kind in ("passive", "hot", "critical")
    ),
)


@dataclass(frozen=True, slots=True)
class _Zone:
    name: str
    temperature_path: str
    labels: tuple[tuple[str, str], ...]
    trips: tuple[Metric, ...]


def parse_milli(text: str) -> float:
    """Return the value in text such as ``45000``, in whole units: 45.0."""
    if not _MILLI.fullmatch(text):
        raise SourceError(f"sensor value is not a whole number: {text!r}")
    return int(text) / 1000


class ThermalCollector:
    name = "thermal"
    interval_s = 10.0

    def __init__(self, sysfs_root: Path) -> None:
        self._hwmon_folder = sysfs_root / "class" / "hwmon"
        self._zone_folder = sysfs_root / "class" / "thermal"
        self._hwmon = HwmonReader(self._hwmon_folder)
        self._files = KeptFiles()
        self._zones: tuple[_Zone, ...] = ()
        self._runs_left = 0

    def collect(self) -> Iterator[Metric]:
        zones = sorted(self._zone_folder.glob("thermal_zone*"), key=number_of)
        has_chips = True
        try:
            yield from self._hwmon.read()
        except NoSourceError:
            has_chips = False
        if not zones and not has_chips:
            raise NoSourceError(f"no sensor under {self._hwmon_folder} and {self._zone_folder}")
        self._files.begin_run()
        if self._runs_left == 0 or [zone.name for zone in self._zones] != [z.name for z in zones]:
            self._files.forget(str(self._zone_folder))
            self._zones = tuple(_describe(zone) for zone in zones)
            self._runs_left = SCAN_RUNS
        self._runs_left -= 1
        for zone in self._zones:
            yield from self._read_zone(zone)

    def _read_zone(self, zone: _Zone) -> Iterator[Metric]:
        sensor = (("device", zone.name), ("sensor", "temp"))
        try:
            value = parse_milli(self._files.read(zone.temperature_path))
            if value < _ABSOLUTE_ZERO_CELSIUS:
                raise SourceError(f"a temperature of {value} C")
        except (NoSourceError, SourceError):  # a disabled zone answers EAGAIN or ENODATA
            yield Metric("rankmend_thermal_sensor_success", 0, sensor)
            return
        yield Metric("rankmend_thermal_sensor_success", 1, sensor)
        yield Metric("rankmend_thermal_zone_temperature_celsius", value, zone.labels)
        yield from zone.trips


def _describe(zone: Path) -> _Zone:
    labels = (("device", zone.name), ("type", read_label(zone / "type") or "unknown"))
    lowest: dict[str, float] = {}
    for number in range(TRIPS_MAX):
        kind = read_label(zone / f"trip_point_{number}_type")
        if not kind:
            break
        try:
            milli = parse_integer(read_label(zone / f"trip_point_{number}_temp"))
        except SourceError:
            continue
        if kind in _TRIP_METRICS and 0 < milli < _TRIP_MILLI_MAX:
            lowest[kind] = min(milli / 1000, lowest.get(kind, _TRIP_MILLI_MAX))
    trips = tuple(
        Metric(_TRIP_METRICS[kind], celsius, labels) for kind, celsius in sorted(lowest.items())
    )
    return _Zone(zone.name, str(zone / "temp"), labels, trips)
