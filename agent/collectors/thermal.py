"""Temperatures and fans: every hwmon chip and every thermal zone of the kernel.

Source: Linux Documentation/hwmon/sysfs-interface.rst (millidegrees Celsius, revolutions per
        minute) and Documentation/ABI/testing/sysfs-class-thermal (millidegrees Celsius).
Files:  <root>/class/hwmon/hwmon*/{name,temp*_{input,label,max,crit},fan*_input}, also under
        hwmon*/device for old drivers; <root>/class/thermal/thermal_zone*/{type,temp}
Cost:   one read a file. A sensor on a slow bus can take milliseconds, 22 s in one report
        (prometheus/node_exporter issue 2242): hence an interval of its own.

A sensor that fails is reported as one and takes no other with it. ``device`` is the chip's name
and the device that it sits on, since hwmon numbers change from boot to boot.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from agent.metrics import Metric
from rankmend.errors import NoSourceError, SourceError

_INPUT = re.compile(r"(temp|fan)\d+_input")
_MILLI = re.compile(r"-?\d{1,9}")
_LABEL_CHARS_MAX = 64

Labels = tuple[tuple[str, str], ...]


def parse_milli(text: str) -> float:
    """Return the value in text such as ``45000``, in whole units: 45.0."""
    if not _MILLI.fullmatch(text):
        raise SourceError(f"sensor value is no whole number: {text!r}")
    return int(text) / 1000


class ThermalCollector:
    name = "thermal"
    interval_s = 10.0

    def __init__(self, sysfs_root: Path) -> None:
        self._hwmon = sysfs_root / "class" / "hwmon"
        self._zones = sysfs_root / "class" / "thermal"

    def collect(self) -> Iterator[Metric]:
        chips = sorted(self._hwmon.glob("hwmon*"), key=_number)
        zones = sorted(self._zones.glob("thermal_zone*"), key=_number)
        if not chips and not zones:
            raise NoSourceError(f"no sensor under {self._hwmon} and {self._zones}")
        seen: set[str] = set()
        for chip in chips:
            device = _device_name(chip)
            if device in seen:  # two chips of one name on one device
                device = f"{device}-{chip.name}"
            seen.add(device)
            yield from _read_chip(chip, device)
        for zone in zones:
            yield from _read_zone(zone)


def _read_chip(chip: Path, device: str) -> Iterator[Metric]:
    inputs = {}
    for folder in (chip / "device", chip):  # attributes of the chip itself come first
        try:
            found = {path.name: path for path in folder.iterdir() if _INPUT.fullmatch(path.name)}
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise SourceError(f"cannot list {folder}") from error
        inputs.update(found)
    for name, path in sorted(inputs.items(), key=lambda item: _number(item[1])):
        sensor = name.removesuffix("_input")
        labels = (("device", device), ("sensor", sensor))
        yield from _read_sensor(path, sensor, labels)


def _read_sensor(path: Path, sensor: str, labels: Labels) -> Iterator[Metric]:
    text = _read_optional(path.with_name(f"{sensor}_label"))
    if text:
        named = (*labels, ("label", text[:_LABEL_CHARS_MAX]))
        yield Metric("rankmend_thermal_sensor_info", 1, named)
    try:
        value = parse_milli(_read(path))
    except SourceError:
        yield Metric("rankmend_thermal_sensor_success", 0, labels)
        return
    yield Metric("rankmend_thermal_sensor_success", 1, labels)
    if sensor.startswith("fan"):
        yield Metric("rankmend_thermal_fan_rpm", value * 1000, labels)
        return
    yield Metric("rankmend_thermal_temperature_celsius", value, labels)
    for limit in ("max", "crit"):
        text = _read_optional(path.with_name(f"{sensor}_{limit}"))
        if text is not None and _MILLI.fullmatch(text):
            yield Metric(f"rankmend_thermal_{limit}_celsius", parse_milli(text), labels)


def _read_zone(zone: Path) -> Iterator[Metric]:
    sensor = (("device", zone.name), ("sensor", "temp"))
    try:
        value = parse_milli(_read(zone / "temp"))
    except SourceError:  # a disabled zone answers EAGAIN or ENODATA
        yield Metric("rankmend_thermal_sensor_success", 0, sensor)
        return
    yield Metric("rankmend_thermal_sensor_success", 1, sensor)
    labels = (("device", zone.name), ("type", _read_optional(zone / "type") or "unknown"))
    yield Metric("rankmend_thermal_zone_temperature_celsius", value, labels)


def _device_name(chip: Path) -> str:
    name = _read_optional(chip / "name") or _read_optional(chip / "device" / "name") or "unnamed"
    link = chip / "device"
    return f"{name}-{link.resolve().name if link.exists() else chip.name}"


def _number(path: Path) -> tuple[str, int]:
    """Return the sort key that puts hwmon10 behind hwmon9."""
    match = re.search(r"\d+", path.name)
    return (path.name[: match.start()], int(match.group())) if match else (path.name, -1)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}") from error


def _read_optional(path: Path) -> str | None:
    try:
        return _read(path)
    except SourceError:
        return None
