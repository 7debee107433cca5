"""The kernel's hwmon chips: temperatures, fans, voltages, currents, power, energy, humidity.

Source: Linux Documentation/hwmon/sysfs-interface.rst, which fixes names and units: millidegrees
        Celsius, revolutions per minute, millivolts, milliamperes, microwatts, microjoules and
        thousandths of a percent. `tempN_fault` 1: the value means nothing. `tempN_enable` 0: the
        sensor is switched off, thus absent.
Files:  <root>/class/hwmon/hwmon*/{name,<kind><N>_*}, also under hwmon*/device for old drivers
Cost:   one pread a value, alarm and fault; names and limits are read every `SCAN_RUNS` runs. A
        sensor on a slow bus can take milliseconds, 22 s in one report (prometheus/node_exporter
        issue 2242): hence a thread and an interval of its own.

A sensor that fails is reported as one and takes no other with it. ``device`` is the chip's name
and the device that it sits on, since hwmon numbers change from boot to boot.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.metrics import SENSOR_LABELS, Family, Metric, counter, gauge
from agent.sources.kept_files import KeptFiles
from rankmend.errors import NoSourceError, SourceError

TURNS_RPM: Final = 100  # below, chips count no turns
SCAN_RUNS: Final = 30  # 5 minutes at 10 s: a limit is set once at boot, if at all
_ATTRIBUTE: Final = re.compile(
    r"(?P<sensor>(?P<kind>temp|fan|in|curr|power|energy|humidity|intrusion)\d{1,4})_(?P<what>[a-z_]+)"
)
_INTEGER: Final = re.compile(r"-?\d{1,19}")  # a long of the kernel
_LABEL_CHARS_MAX: Final = 64
_WHOLE_SENSOR: Final = "any"  # `temp1_alarm`, of chips that don't say which limit

Labels = tuple[tuple[str, str], ...]

FAMILIES: Final[tuple[Family, ...]] = (
    *(
        gauge(f"hwmon_{subject}_{unit}", unit, SENSOR_LABELS, f"{text} of a hwmon sensor.")
        for subject, unit, text in (
            ("voltage", "volts", "Voltage"),
            ("current", "amperes", "Current"),
            ("power", "watts", "Power"),
            ("humidity", "ratio", "Relative humidity"),
        )
    ),
    *(
        gauge(f"hwmon_{subject}_{limit}_{unit}", unit, SENSOR_LABELS, f"The sensor's {text} limit.")
        for subject, unit, limits in (
            ("voltage", "volts", ("lcrit", "min", "max", "crit")),
            ("current", "amperes", ("max", "crit")),
            ("power", "watts", ("max", "crit")),
        )
        for limit, text in (
            ("lcrit", "lower critical"),
            ("min", "lower"),
            ("max", "upper"),
            ("crit", "critical"),
        )
        if limit in limits
    ),
    gauge("hwmon_power_cap_watts", "watts", SENSOR_LABELS, "Power that the device is held to."),
    counter("hwmon_energy_joules", "joules", SENSOR_LABELS, "Energy that the device has used."),
    gauge(
        "hwmon_alarm",
        "",
        (*SENSOR_LABELS, "alarm"),
        "1 while the chip raises an alarm; alarm is the limit (max, crit, min ...), or any.",
    ),
    gauge(
        "hwmon_fault",
        "",
        SENSOR_LABELS,
        "1 when the chip says that the sensor itself does not work.",
    ),
)


@dataclass(frozen=True, slots=True)
class SensorKind:
    """One kind of sensor: what its files hold, and the metrics that they become."""

    divisor: int  # from the file's unit to the base unit
    metric: str
    limits: tuple[tuple[str, str], ...] = ()  # file to metric
    low: float = float("-inf")  # what no machine can have, in the base unit, is a sensor's fault
    high: float = float("inf")


def _limits(subject: str, unit: str, *names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"rankmend_{subject}_{name}_{unit}") for name in names)


KINDS: Final = {
    "temp": SensorKind(
        1000,
        "rankmend_thermal_temperature_celsius",
        _limits("thermal", "celsius", "lcrit", "min", "max", "crit", "emergency"),
        *(
            -55.0,
            150.0,
        ),  # what the sensors themselves measure: data sheets of LM75, TMP461, ADT7461
    ),
    "fan": SensorKind(
        1,
        "rankmend_thermal_fan_rpm",
        _limits("thermal_fan", "rpm", "min", "max"),
        *(
            0.0,
            60_000.0,
        ),  # the fastest server fans turn 40,000 times a minute; an open input counts 1,350,000 / n
    ),
    "in": SensorKind(
        1000,
        "rankmend_hwmon_voltage_volts",
        _limits("hwmon_voltage", "volts", "lcrit", "min", "max", "crit"),
        *(-1_000.0, 1_000.0),  # racks are fed with 800 V
    ),
    "curr": SensorKind(
        1000,
        "rankmend_hwmon_current_amperes",
        _limits("hwmon_current", "amperes", "max", "crit"),
        *(-10_000.0, 10_000.0),
    ),
    "power": SensorKind(
        1_000_000,
        "rankmend_hwmon_power_watts",
        _limits("hwmon_power", "watts", "max", "crit", "cap"),
        *(-1e6, 1e6),
    ),
    "energy": SensorKind(1_000_000, "rankmend_hwmon_energy_joules_total"),
    "humidity": SensorKind(100_000, "rankmend_hwmon_humidity_ratio", (), 0.0, 1.0),
}
# Chips of mainboards measure in eight bits: an input without a sensor reads their ends, 127 and -62 to -128 C.
# Sources: lm-sensors#533, it87#59, netdata#23673; the kernel's drivers nct6775, it87, w83627ehf, f71882fg.
_BOARD_CHIP: Final = re.compile(r"(?:nct[67]\d|it8\d|w83[67]\d|f71\d|f818|sch5\d|dme1737|asus)")
_BOARD_LOW_C, _BOARD_HIGH_C = -40.0, 126.9


@dataclass(frozen=True, slots=True)
class HwmonSensor:
    """One sensor as it was found: where its values are, and what doesn't change."""

    labels: Labels
    kind: SensorKind | None  # None: it has alarms and no value
    value_path: str | None
    fault_path: str | None
    enable_path: str | None
    alarms: tuple[tuple[str, str], ...]  # label to path
    fixed: tuple[Metric, ...]  # its name and its limits


def parse_integer(text: str) -> int:
    """Return the whole number in a sensor's file."""
    if not _INTEGER.fullmatch(text):
        raise SourceError(f"sensor value is not a whole number: {text[:40]!r}")
    return int(text)


class HwmonReader:
    """Reads all chips below a class folder. Used by one thread only."""

    def __init__(self, class_folder: Path) -> None:
        self._folder = class_folder
        self._files = KeptFiles()
        self._sensors: tuple[HwmonSensor, ...] = ()
        self._chips: tuple[tuple[str, str], ...] = ()
        self._runs_left = 0
        self._turned: set[Labels] = set()  # fans that have turned

    def read(self) -> Iterator[Metric]:
        """Return the values of every sensor, or raise NoSourceError where there is no chip."""
        self._files.begin_run()
        chips = tuple(
            (chip.name, str(chip.resolve()))
            for chip in sorted(self._folder.glob("hwmon*"), key=number_of)
        )
        if not chips:
            raise NoSourceError(f"no chip under {self._folder}")
        if chips != self._chips or self._runs_left == 0:
            self._files.forget(str(self._folder))
            self._sensors = tuple(self._scan(chips))
            self._chips, self._runs_left = chips, SCAN_RUNS
        self._runs_left -= 1
        for sensor in self._sensors:
            yield from self._read_sensor(sensor)

    def _read_sensor(self, sensor: HwmonSensor) -> Iterator[Metric]:
        if sensor.enable_path and self._flag(sensor.enable_path) == 0:
            return
        yield from sensor.fixed
        value, is_read = self._value_of(sensor)
        fault = self._flag(sensor.fault_path) if sensor.fault_path else None
        if value is not None and not _can_be(sensor, value):
            value, is_read, fault = None, False, 1
        if fault is not None:
            yield Metric("rankmend_hwmon_fault", fault, sensor.labels)
        for name, path in sensor.alarms:
            if (alarm := self._flag(path)) is not None:
                # A chip raises the alarms of an input that nothing is connected to, too.
                reported = alarm and not (fault and not is_read)
                yield Metric(
                    "rankmend_hwmon_alarm", int(reported), (*sensor.labels, ("alarm", name))
                )
        if sensor.kind is None or sensor.value_path is None:
            return
        is_well = is_read and not fault
        yield Metric("rankmend_thermal_sensor_success", int(is_well), sensor.labels)
        if is_well and value is not None:
            yield Metric(sensor.kind.metric, value, sensor.labels)
            if sensor.kind is KINDS["fan"]:
                if value >= TURNS_RPM:
                    self._turned.add(sensor.labels)
                has_turned = sensor.labels in self._turned
                yield Metric("rankmend_thermal_fan_turned", int(has_turned), sensor.labels)

    def _value_of(self, sensor: HwmonSensor) -> tuple[float | None, bool]:
        """Return the value in the base unit, and whether it could be read; a sensor of alarms alone has none."""
        if sensor.kind is None or sensor.value_path is None:
            return None, True
        try:
            value = parse_integer(self._files.read(sensor.value_path))
        except (NoSourceError, SourceError):
            return None, False
        return value / sensor.kind.divisor, True

    def _flag(self, path: str) -> int | None:
        try:
            return 1 if parse_integer(self._files.read(path)) else 0
        except (NoSourceError, SourceError):
            return None

    def _scan(self, chips: tuple[tuple[str, str], ...]) -> Iterator[HwmonSensor]:
        seen: set[str] = set()
        for name, _target in chips:
            chip = self._folder / name
            device = device_name(chip)
            if device in seen:  # two chips of one name on one device
                device = f"{device}-{name}"
            seen.add(device)
            for sensor, files in _attributes(chip).items():
                labels = (("device", device), ("sensor", sensor))
                yield self._describe(labels, files)

    def _describe(self, labels: Labels, files: dict[str, Path]) -> HwmonSensor:
        match = _ATTRIBUTE.fullmatch(next(iter(files.values())).name)
        assert match is not None, "only such files were listed"
        kind = KINDS.get(match["kind"])
        value = files.get("input") or files.get("average")  # power meters may have the latter only
        fixed = []
        if label := read_label(files.get("label")):
            named = (*labels, ("label", label))
            fixed.append(Metric("rankmend_thermal_sensor_info", 1, named))
        for name, metric in kind.limits if kind else ():
            if name in files:
                try:
                    limit = parse_integer(self._files.read(str(files[name])))
                except (NoSourceError, SourceError):
                    continue
                assert kind is not None
                fixed.append(Metric(metric, limit / kind.divisor, labels))
        for name, _metric in kind.limits if kind else ():
            if name in files:
                self._files.forget(str(files[name]))  # not read again for minutes
        alarms = tuple(
            (what.removesuffix("alarm").rstrip("_") or _WHOLE_SENSOR, str(path))
            for what, path in sorted(files.items())
            if what == "alarm" or what.endswith("_alarm")
        )
        return HwmonSensor(
            labels=labels,
            kind=kind,
            value_path=str(value) if value else None,
            fault_path=str(files["fault"]) if "fault" in files else None,
            enable_path=str(files["enable"]) if "enable" in files else None,
            alarms=alarms,
            fixed=tuple(fixed),
        )


def _can_be(sensor: HwmonSensor, value: float) -> bool:
    """Return whether a machine can have such a value: else its sensor is faulty, or not connected."""
    kind, device = sensor.kind, dict(sensor.labels)["device"]
    if kind is None:
        return True
    if kind is KINDS["temp"] and _BOARD_CHIP.match(device):
        return _BOARD_LOW_C < value < _BOARD_HIGH_C
    return kind.low <= value <= kind.high


def _attributes(chip: Path) -> dict[str, dict[str, Path]]:
    """Return a chip's files by sensor and attribute, in the order of the sensors' numbers."""
    found: dict[str, dict[str, Path]] = {}
    for folder in (chip / "device", chip):  # attributes of the chip itself come last and win
        try:
            paths = list(folder.iterdir())
        except OSError:  # no device, or the chip has just gone
            continue
        for path in paths:
            if match := _ATTRIBUTE.fullmatch(path.name):
                found.setdefault(match["sensor"], {})[match["what"]] = path
    return dict(sorted(found.items(), key=lambda item: number_of(Path(item[0]))))


def device_name(chip: Path) -> str:
    """Return a chip's name and its device, which stay the same from boot to boot."""
    name = read_label(chip / "name") or read_label(chip / "device" / "name") or "unnamed"
    link = chip / "device"
    return f"{name}-{link.resolve().name if link.exists() else chip.name}"


def number_of(path: Path) -> tuple[str, int]:
    """Return the sort key that puts hwmon10 behind hwmon9."""
    match = re.search(r"\d+", path.name)
    return (path.name[: match.start()], int(match.group())) if match else (path.name, -1)


def read_label(path: Path | None) -> str:
    """Return a name that a driver gives, or nothing where it gives none."""
    try:
        return path.read_text(encoding="utf-8").strip()[:_LABEL_CHARS_MAX] if path else ""
    except (OSError, UnicodeDecodeError):
        return ""
