"""The output of ipmitool: sensors with their thresholds, discrete states, the event log.

Forms: ``ipmitool -c sdr elist``, with -v and without, ``-c sensor`` and ``-c sel elist``, as
       lib/ipmi_sdr.c, ipmi_sensor.c and ipmi_sel.c of ipmitool 1.8 print them; ``sel info``.
       No field is quoted, though a sensor's name may hold a comma.

A sensor without a reading is absent and never zero. Names repeat on some boards (Dell calls two
sensors Temp): `parse_sensors` makes them differ.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

SENSORS_MAX: Final = 2_000
ENTRIES_MAX: Final = 10_000
NAME_CHARS_MAX: Final = 64
EVENTS_MAX: Final = 16  # a discrete sensor has 15 states (IPMI 2.0, table 42-1)
_NAME_COMMAS_MAX: Final = 3
_NUMBER: Final = re.compile(r"[+-]?\d{1,12}(\.\d{1,6})?(e[+-]?\d{1,2})?", re.IGNORECASE)
_DISCRETE: Final = re.compile(r"[0-9A-Fa-f]{2}h")
_ENTITY: Final = re.compile(r"\d{1,3}\.\d{1,3}")
_SEL_NUMBER: Final = re.compile(r"[0-9a-fA-F]{1,4}")
_NO_STATES: Final = frozenset({"", "No Reading", "Event-Only", "na"})


class SensorUnit(Enum):
    CELSIUS = "degrees C"
    RPM = "RPM"
    RATIO = "percent"
    VOLT = "Volts"
    AMPERE = "Amps"
    WATT = "Watts"


class SensorState(Enum):
    OK = 0
    NON_CRITICAL = 1
    CRITICAL = 2
    NON_RECOVERABLE = 3


_STATES: Final = {
    "ok": SensorState.OK,
    **dict.fromkeys(("nc", "lnc", "unc"), SensorState.NON_CRITICAL),
    **dict.fromkeys(("cr", "lcr", "ucr"), SensorState.CRITICAL),
    **dict.fromkeys(("nr", "lnr", "unr"), SensorState.NON_RECOVERABLE),
    **dict.fromkeys(("lower non-critical", "upper non-critical"), SensorState.NON_CRITICAL),
    **dict.fromkeys(("lower critical", "upper critical"), SensorState.CRITICAL),
    **dict.fromkeys(
        ("lower non-recoverable", "upper non-recoverable"), SensorState.NON_RECOVERABLE
    ),
}
_WITHOUT_READING: Final = frozenset({"ns", "na"})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """None: the sensor has no such threshold."""

    lower_critical: float | None = None
    lower: float | None = None  # non-critical
    upper: float | None = None  # non-critical
    upper_critical: float | None = None


@dataclass(frozen=True, slots=True)
class IpmiSensor:
    name: str
    entity: str  # entity id and instance, 7.1; empty where the form has none
    value: float | None
    unit: SensorUnit | None  # None: one that rankmend has no metric for
    state: SensorState | None
    thresholds: Thresholds
    events: tuple[str, ...] = ()  # what a discrete sensor asserts


@dataclass(frozen=True, slots=True)
class IpmiSensors:
    sensors: tuple[IpmiSensor, ...]
    unreadable_lines: int


@dataclass(frozen=True, slots=True)
class SelEntry:
    number: int
    sensor: str
    event: str
    is_asserted: bool


@dataclass(frozen=True, slots=True)
class SelInfo:
    entries: int | None
    used_ratio: float | None


def parse_sensors(text: str) -> IpmiSensors:
    """Return the sensors in the output of ``-c sdr elist`` or ``-c sensor``, names made unique."""
    sensors: list[IpmiSensor] = []
    unreadable = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        sensor = _parse_line(line) if len(sensors) < SENSORS_MAX else None
        if sensor is None:
            unreadable += 1
        else:
            sensors.append(sensor)
    return IpmiSensors(unique(sensors), unreadable)


def unique(sensors: Sequence[IpmiSensor]) -> tuple[IpmiSensor, ...]:
    """Return the sensors with names that differ: by the entity first, then by their order."""
    counts = Counter(sensor.name for sensor in sensors)
    used: set[str] = set()
    named = []
    for sensor in sensors:
        wanted = sensor.name
        if counts[wanted] > 1 and sensor.entity:
            wanted = f"{wanted} {sensor.entity}"
        name, number = wanted, 2
        while name in used:
            name, number = f"{wanted} #{number}", number + 1
        used.add(name)
        named.append(replace(sensor, name=name))
    return tuple(named)


def _parse_line(line: str) -> IpmiSensor | None:
    fields = line.split(",")
    for parts in range(1, min(_NAME_COMMAS_MAX + 1, len(fields))):
        name = ",".join(fields[:parts]).strip()[:NAME_CHARS_MAX]
        if not name or not name.isprintable():
            return None
        sensor = _parse_fields(name, [field.strip() for field in fields[parts:]])
        if sensor is not None:
            return sensor
    return None


def _parse_fields(name: str, fields: Sequence[str]) -> IpmiSensor | None:
    if len(fields) >= 2 and _DISCRETE.fullmatch(fields[0]) and fields[1] in ("ok", "ns"):
        return _discrete(name, fields[2:], is_read=fields[1] == "ok")
    if len(fields) < 3:
        return None
    reading, unit_text, status = fields[0], fields[1], fields[2].lower()
    if unit_text == "discrete":  # `-c sensor` prints bits without their meaning
        return IpmiSensor(name, "", None, None, None, Thresholds())
    value = _number(reading)
    if value is None and reading not in ("", "na", "disabled"):
        return None
    if status not in _STATES and status not in _WITHOUT_READING:
        return None
    entity = fields[3] if len(fields) > 3 and _ENTITY.fullmatch(fields[3]) else ""
    unit, factor, offset = _unit(unit_text)
    scaled = [_scaled(limit, factor, offset) for limit in _thresholds(fields)]
    return IpmiSensor(
        name=name,
        entity=entity,
        value=_scaled(value, factor, offset),
        unit=unit,
        state=_STATES.get(status) if value is not None else None,
        thresholds=Thresholds(*scaled),
        # a threshold sensor that shows states, too: 12.3,Volts,ok,7.1,State Asserted
        events=_events(fields[4:]) if entity and len(fields) < 17 else (),
    )


def _discrete(name: str, fields: Sequence[str], is_read: bool) -> IpmiSensor:
    entity = fields[0] if fields and _ENTITY.fullmatch(fields[0]) else ""
    events = _events(fields[1:]) if is_read else ()
    return IpmiSensor(name, entity, None, None, None, Thresholds(), events)


def _events(fields: Sequence[str]) -> tuple[str, ...]:
    texts = (field[:NAME_CHARS_MAX] for field in fields if field.isprintable())
    return tuple(dict.fromkeys(text for text in texts if text not in _NO_STATES))[:EVENTS_MAX]


def _thresholds(fields: Sequence[str]) -> tuple[float | None, ...]:
    """Return lower critical, lower, upper and upper critical of one of the two long forms."""
    if len(fields) == 17:  # -v sdr: ..., unr, ucr, unc, lnr, lcr, lnc, min, max
        _unr, ucr, unc, _lnr, lcr, lnc = fields[9:15]
    elif len(fields) == 9:  # sensor: ..., lnr, lcr, lnc, unc, ucr, unr
        _lnr, lcr, lnc, unc, ucr, _unr = fields[3:9]
    else:
        return (None, None, None, None)
    return tuple(_number(text) for text in (lcr, lnc, unc, ucr))


def _unit(text: str) -> tuple[SensorUnit | None, float, float]:
    """Return the base unit, and factor and offset to it."""
    if text.startswith(("percent", "%")):
        return SensorUnit.RATIO, 0.01, 0.0
    if text == "degrees F":
        return SensorUnit.CELSIUS, 5 / 9, -32 * 5 / 9
    if text == "degrees K":
        return SensorUnit.CELSIUS, 1.0, -273.15
    try:
        return SensorUnit(text), 1.0, 0.0
    except ValueError:
        return None, 1.0, 0.0


def _scaled(value: float | None, factor: float, offset: float) -> float | None:
    return None if value is None else value * factor + offset


def _number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def parse_sel(text: str) -> tuple[SelEntry, ...]:
    """Return the entries of ``-c sel elist``; what is none (an empty log says so) is left out."""
    entries = []
    for line in text.splitlines()[:ENTRIES_MAX]:
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 4 or not _SEL_NUMBER.fullmatch(fields[0]):
            continue
        ends = [place for place, field in enumerate(fields) if field in ("Asserted", "Deasserted")]
        end = ends[0] if ends else len(fields)
        event = ", ".join(field for field in fields[4:end] if field)
        entries.append(
            SelEntry(
                number=int(fields[0], 16),
                sensor=_printable(fields[3]),
                event=_printable(event),
                is_asserted=not ends or fields[end] == "Asserted",
            )
        )
    return tuple(entries)


def parse_sel_info(text: str) -> SelInfo:
    """Return what ``sel info`` says of the log's size."""
    entries = re.search(r"^Entries\s*:\s*(\d{1,9})\s*$", text, re.MULTILINE)
    used = re.search(r"^Percent Used\s*:\s*(\d{1,3})\s*%", text, re.MULTILINE)
    return SelInfo(
        entries=int(entries[1]) if entries else None,
        used_ratio=int(used[1]) / 100 if used else None,
    )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)[:NAME_CHARS_MAX]
