"""A BMC's Redfish answers about fans, power supplies, temperatures, coolant and leaks.

Forms: DMTF DSP0268, schemas ThermalSubsystem, ThermalMetrics, Fan, PowerSubsystem, PowerSupply,
       PowerSupplyMetrics, EnvironmentMetrics, Sensor, CoolantConnector, CoolingUnit, Pump, LeakDetector,
       PowerDistribution, Circuit,
       and the older Thermal and Power (deprecated in 2020, and all that many BMCs have).

A property that is missing, null or of another type than in the schema is absent and never zero; a
part whose state is Absent or Disabled is left out.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

NAME_CHARS_MAX: Final = 64
PATH_CHARS_MAX: Final = 512
ITEMS_MAX: Final = 256  # in one collection or list
_PATH: Final = re.compile(r"/redfish/v1(/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*")
_SECONDS_PER_MINUTE: Final = 60
_PASCALS: Final = 1000  # in a kPa
_NOT_THERE: Final = frozenset({"Absent", "Disabled", "UnavailableOffline"})

Page = Mapping[str, Any]


class ReadingKind(Enum):
    """A quantity; the value is the end of its metric's name."""

    TEMPERATURE = "temperature_celsius"
    FAN_SPEED = "fan_rpm"
    FAN_RATIO = "fan_ratio"
    POWER = "power_watts"
    POWER_CAPACITY = "power_capacity_watts"
    SUPPLY_INPUT = "supply_input_watts"
    SUPPLY_OUTPUT = "supply_output_watts"
    SUPPLY_CAPACITY = "supply_capacity_watts"
    SUPPLY_VOLTAGE = "supply_input_volts"
    COOLANT_SUPPLY = "coolant_supply_celsius"
    COOLANT_RETURN = "coolant_return_celsius"
    COOLANT_FLOW = "coolant_flow_liters_per_second"
    COOLANT_PRESSURE = "coolant_supply_pascals"
    COOLANT_LOSS = "coolant_delta_pascals"
    TEMPERATURE_MAX = "temperature_max_celsius"
    TEMPERATURE_CRITICAL = "temperature_crit_celsius"
    LEAK = "leak_state_id"
    MAINS_POWER = "mains_power_watts"
    MAINS_LOAD = "mains_load_ratio"


class BmcPart(Enum):
    CHASSIS = "chassis"
    TEMPERATURE = "temperature"
    FAN = "fan"
    SUPPLY = "supply"
    COOLANT = "coolant"
    COOLING_UNIT = "cooling_unit"
    PUMP = "pump"
    LEAK_DETECTOR = "leak_detector"
    POWER_EQUIPMENT = "power_equipment"
    CIRCUIT = "circuit"
    BREAKER = "breaker"


class HealthLevel(Enum):
    OK = 0
    WARNING = 1
    CRITICAL = 2


_LEVELS: Final = {
    "OK": HealthLevel.OK,
    "Warning": HealthLevel.WARNING,
    "Critical": HealthLevel.CRITICAL,
}


# A breaker that somebody has switched off is no fault.
_BREAKERS: Final = {"Normal": HealthLevel.OK, "Tripped": HealthLevel.CRITICAL}


@dataclass(frozen=True, slots=True)
class BmcReading:
    kind: ReadingKind
    sensor: str
    value: float


@dataclass(frozen=True, slots=True)
class BmcHealth:
    part: BmcPart
    sensor: str
    level: HealthLevel


Item = BmcReading | BmcHealth


def link(page: Page, name: str) -> str | None:
    """Return the path that a property leads to, if it is one below /redfish/v1."""
    return _path(_section(page, name).get("@odata.id"))


def members(page: Page) -> tuple[str, ...]:
    """Return the paths of a collection's members."""
    paths = (_path(item.get("@odata.id")) for item in _items(page, "Members"))
    return tuple(dict.fromkeys(path for path in paths if path))


def name_of(page: Page) -> str:
    """Return a resource's id, which is unique among its siblings; else its name."""
    return _text(page.get("Id")) or _text(page.get("Name")) or "unnamed"


def is_there(page: Page) -> bool:
    return _section(page, "Status").get("State") not in _NOT_THERE


def parse_health(page: Page, part: BmcPart, sensor: str | None = None) -> Iterator[Item]:
    level = _LEVELS.get(_text(_section(page, "Status").get("Health")))
    if level is not None:
        yield BmcHealth(part, sensor if sensor is not None else name_of(page), level)


def parse_thermal(page: Page) -> Iterator[Item]:
    """Return the older Thermal: temperatures and fans in one resource."""
    for sensor, item in _named(page, "Temperatures"):
        value = _number(item.get("ReadingCelsius"))
        if value is None:
            continue
        yield BmcReading(ReadingKind.TEMPERATURE, sensor, value)
        yield from _reading(
            ReadingKind.TEMPERATURE_MAX, sensor, item.get("UpperThresholdNonCritical")
        )
        yield from _reading(
            ReadingKind.TEMPERATURE_CRITICAL, sensor, item.get("UpperThresholdCritical")
        )
        yield from parse_health(item, BmcPart.TEMPERATURE, sensor)
    for sensor, item in _named(page, "Fans"):
        reading = _number(item.get("Reading"))
        if item.get("ReadingUnits") == "Percent":
            yield from _reading(ReadingKind.FAN_RATIO, sensor, reading, 0.01)
        else:
            yield from _reading(ReadingKind.FAN_SPEED, sensor, reading)
        yield from parse_health(item, BmcPart.FAN, sensor)


def parse_power(page: Page) -> Iterator[Item]:
    """Return the older Power: consumption and supplies in one resource."""
    for sensor, item in _named(page, "PowerControl"):
        yield from _reading(ReadingKind.POWER, sensor, item.get("PowerConsumedWatts"))
        yield from _reading(ReadingKind.POWER_CAPACITY, sensor, item.get("PowerCapacityWatts"))
    for sensor, item in _named(page, "PowerSupplies"):
        output = _number(item.get("PowerOutputWatts"))
        if output is None:
            output = _number(item.get("LastPowerOutputWatts"))
        yield from _reading(ReadingKind.SUPPLY_INPUT, sensor, item.get("PowerInputWatts"))
        yield from _reading(ReadingKind.SUPPLY_OUTPUT, sensor, output)
        yield from _reading(ReadingKind.SUPPLY_CAPACITY, sensor, item.get("PowerCapacityWatts"))
        yield from _reading(ReadingKind.SUPPLY_VOLTAGE, sensor, item.get("LineInputVoltage"))
        yield from parse_health(item, BmcPart.SUPPLY, sensor)


def parse_thermal_metrics(page: Page) -> Iterator[Item]:
    summary = _section(page, "TemperatureSummaryCelsius")
    for name in ("Intake", "Exhaust", "Ambient", "Internal"):
        yield from _reading(ReadingKind.TEMPERATURE, name, _excerpt(summary, name))
    for item in _items(page, "TemperatureReadingsCelsius"):
        source = _text(item.get("DataSourceUri")).rstrip("/").rpartition("/")[2]
        sensor = _text(item.get("DeviceName")).rpartition("/")[2] or source
        if sensor:
            yield from _reading(ReadingKind.TEMPERATURE, sensor, item.get("Reading"))


def parse_fan(page: Page) -> Iterator[Item]:
    speed = _section(page, "SpeedPercent")
    yield from _reading(ReadingKind.FAN_RATIO, name_of(page), speed.get("Reading"), 0.01)
    yield from _reading(ReadingKind.FAN_SPEED, name_of(page), speed.get("SpeedRPM"))
    yield from parse_health(page, BmcPart.FAN)


def parse_supply(page: Page) -> Iterator[Item]:
    yield from _reading(ReadingKind.SUPPLY_CAPACITY, name_of(page), page.get("PowerCapacityWatts"))
    yield from parse_health(page, BmcPart.SUPPLY)


def parse_supply_metrics(page: Page, sensor: str) -> Iterator[Item]:
    yield from _reading(ReadingKind.SUPPLY_INPUT, sensor, _excerpt(page, "InputPowerWatts"))
    yield from _reading(ReadingKind.SUPPLY_OUTPUT, sensor, _excerpt(page, "OutputPowerWatts"))
    yield from _reading(ReadingKind.SUPPLY_VOLTAGE, sensor, _excerpt(page, "InputVoltage"))


def parse_environment(page: Page) -> Iterator[Item]:
    yield from _reading(ReadingKind.POWER, "total", _excerpt(page, "PowerWatts"))
    yield from _reading(
        ReadingKind.TEMPERATURE, "environment", _excerpt(page, "TemperatureCelsius")
    )


_SENSORS: Final = {  # ReadingType of a Sensor, to which its unit belongs
    "Temperature": (ReadingKind.TEMPERATURE, BmcPart.TEMPERATURE, 1.0),
    "Rotational": (ReadingKind.FAN_SPEED, BmcPart.FAN, 1.0),
    "Power": (ReadingKind.POWER, None, 1.0),
    "LiquidFlowLPM": (ReadingKind.COOLANT_FLOW, BmcPart.COOLANT, 1 / _SECONDS_PER_MINUTE),
}


def parse_sensor(page: Page) -> Iterator[Item]:
    """Return one member of a chassis' Sensors, where it is of a kind that is served."""
    form = _SENSORS.get(_text(page.get("ReadingType")))
    value = _number(page.get("Reading"))
    if form is None or value is None:
        return
    kind, part, factor = form
    yield BmcReading(kind, name_of(page), value * factor)
    if kind is ReadingKind.TEMPERATURE:
        limits = _section(page, "Thresholds")
        yield from _reading(
            ReadingKind.TEMPERATURE_MAX, name_of(page), _excerpt(limits, "UpperCaution")
        )
        critical = _excerpt(limits, "UpperCritical")
        yield from _reading(ReadingKind.TEMPERATURE_CRITICAL, name_of(page), critical)
    if part is not None:
        yield from parse_health(page, part)


def expansion(root: Page) -> str | None:
    """Return the query by which a collection comes with its members, where the BMC knows it."""
    features = _section(_section(root, "ProtocolFeaturesSupported"), "ExpandQuery")
    levels = "($levels=1)" if features.get("Levels") is True else ""
    if features.get("NoLinks") is True:
        return f"?$expand=.{levels}"
    return f"?$expand=*{levels}" if features.get("ExpandAll") is True else None


def expanded(page: Page) -> list[Page]:
    """Return the members that came with their collection: those that are more than a link."""
    return [item for item in _items(page, "Members") if len(item) > 1]


def parse_coolant_connector(page: Page, side: str = "") -> Iterator[Item]:
    """Return one connector of a loop; ``side``: primary or secondary, of a distribution unit."""
    sensor = f"{side} {name_of(page)}".strip()
    for kind, name, factor in (
        (ReadingKind.COOLANT_SUPPLY, "SupplyTemperatureCelsius", 1.0),
        (ReadingKind.COOLANT_RETURN, "ReturnTemperatureCelsius", 1.0),
        (ReadingKind.COOLANT_FLOW, "FlowLitersPerMinute", 1 / _SECONDS_PER_MINUTE),
        (ReadingKind.COOLANT_PRESSURE, "SupplyPressurekPa", _PASCALS),
        (ReadingKind.COOLANT_LOSS, "DeltaPressurekPa", _PASCALS),
    ):
        yield from _reading(kind, sensor, _excerpt(page, name), factor)
    yield from parse_health(page, BmcPart.COOLANT, sensor)


def parse_pump(page: Page) -> Iterator[Item]:
    speed = _section(page, "PumpSpeedPercent")
    yield from _reading(ReadingKind.FAN_SPEED, name_of(page), speed.get("SpeedRPM"))
    yield from parse_health(page, BmcPart.PUMP)


def parse_leak_detector(page: Page) -> Iterator[Item]:
    level = _LEVELS.get(_text(page.get("DetectorState")))
    if level is not None:
        yield BmcReading(ReadingKind.LEAK, name_of(page), level.value)
    yield from parse_health(page, BmcPart.LEAK_DETECTOR)


def parse_leak_groups(page: Page) -> Iterator[Item]:
    """Return the detectors that LeakDetection itself lists (schema 1.0)."""
    for group in _items(page, "LeakDetectorGroups"):
        for item in _items(group, "Detectors"):
            level = _LEVELS.get(_text(item.get("DetectorState")))
            sensor = _text(item.get("DeviceName"))
            if level is not None and sensor:
                yield BmcReading(ReadingKind.LEAK, sensor, level.value)


def parse_circuit(page: Page) -> Iterator[Item]:
    """Return one mains circuit of a power distribution unit; of several lines the one with the highest current counts."""
    sensor = name_of(page)
    yield from _reading(ReadingKind.MAINS_POWER, sensor, _excerpt(page, "PowerWatts"))
    rated = _number(page.get("RatedCurrentAmps"))
    lines = _section(page, "PolyPhaseCurrentAmps")
    amps = [_excerpt(page, "CurrentAmps"), *(_excerpt(lines, f"Line{at}") for at in (1, 2, 3))]
    known = [limit for limit in amps if limit is not None]
    if rated is not None and rated > 0 and known:
        yield from _reading(ReadingKind.MAINS_LOAD, sensor, max(known), 1 / rated)
    breaker = _BREAKERS.get(_text(page.get("BreakerState")))
    if breaker is not None:
        yield BmcHealth(BmcPart.BREAKER, sensor, breaker)
    yield from parse_health(page, BmcPart.CIRCUIT)


def parse_distribution_metrics(page: Page) -> Iterator[Item]:
    """Return the power of a whole unit, where its circuits tell none."""
    yield from _reading(ReadingKind.MAINS_POWER, "total", _excerpt(page, "PowerWatts"))


def _reading(kind: ReadingKind, sensor: str, value: Any, factor: float = 1.0) -> Iterator[Item]:
    number = _number(value)
    if number is not None:
        yield BmcReading(kind, sensor, number * factor)


def _excerpt(page: Page, name: str) -> float | None:
    """Return the reading of a sensor that is quoted in another resource."""
    return _number(_section(page, name).get("Reading"))


def _named(page: Page, name: str) -> Iterator[tuple[str, Page]]:
    """Return the parts of a list that are there, each with a name of its own."""
    used: set[str] = set()
    for item in _items(page, name):
        if not is_there(item):
            continue
        keys = ("Name", "FanName", "MemberId")
        text = next((text for key in keys if (text := _text(item.get(key)))), "unnamed")
        sensor, number = text, 2
        while sensor in used:
            sensor, number = f"{text} #{number}", number + 1
        used.add(sensor)
        yield sensor, item


def _section(page: Page, name: str) -> Page:
    section = page.get(name)
    return section if isinstance(section, dict) else {}


def _items(page: Page, name: str) -> list[Page]:
    items = page.get(name)
    if not isinstance(items, list):
        return []
    return [item for item in items[:ITEMS_MAX] if isinstance(item, dict)]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 and math.isfinite(value) else None


def _path(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    path = value.partition("#")[0]
    is_sound = len(path) <= PATH_CHARS_MAX and _PATH.fullmatch(path) is not None
    return path if is_sound and "/.." not in path else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return "".join(char if char.isprintable() else " " for char in text).strip()[:NAME_CHARS_MAX]
