"""The BMC's own sensors and its event log, through ipmitool in the root helper.

Source: ``ipmitool sdr elist`` and ``sel elist`` (detectors/formats/ipmi.py), asked of
        agent/root_helper. Absent: no root helper, no ipmitool, no /dev/ipmi0.
Cost:   nothing here: the helper waits for the BMC, which takes seconds for its sensors and 15 to
        33 s for a full log in reports (canonical/prometheus-hardware-exporter issues 62, 101).
        Hence intervals of minutes, and an age on every value.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from agent.metrics import Family, Metric, gauge
from agent.root_helper.client import Ask
from agent.root_helper.questions import HelperQuery, ProgramOutcome, ProgramResult
from detectors.formats.ipmi import (
    IpmiSensor,
    SensorUnit,
    parse_sel,
    parse_sel_info,
    parse_sensors,
    unique,
)
from rankmend.errors import NoSourceError, SourceError

EVENT_KINDS_MAX: Final = 100  # among the newest 200 entries; the rarest kinds are left out
_SUBJECTS: Final = {
    SensorUnit.CELSIUS: ("temperature", "celsius"),
    SensorUnit.RPM: ("fan", "rpm"),
    SensorUnit.VOLT: ("voltage", "volts"),
    SensorUnit.AMPERE: ("current", "amperes"),
    SensorUnit.WATT: ("power", "watts"),
}

FAMILIES: Final[tuple[Family, ...]] = (
    *(
        gauge(f"ipmi_{subject}", unit, ("sensor",), f"{text} that the BMC measures.")
        for subject, unit, text in (
            ("temperature_celsius", "celsius", "Temperature"),
            ("fan_rpm", "revolutions per minute", "Speed of a fan"),
            ("fan_ratio", "ratio", "Speed of a fan, of its most,"),
            ("voltage_volts", "volts", "Voltage"),
            ("current_amperes", "amperes", "Current"),
            ("power_watts", "watts", "Power"),
        )
    ),
    *(
        gauge(f"ipmi_{subject}_{limit}_{unit}", help_unit, ("sensor",), f"The sensor's {text}.")
        for subject, unit, help_unit in (
            ("temperature", "celsius", "celsius"),
            ("fan", "rpm", "revolutions per minute"),
            ("voltage", "volts", "volts"),
            ("current", "amperes", "amperes"),
            ("power", "watts", "watts"),
        )
        for limit, text in (
            ("lcrit", "lower critical threshold"),
            ("min", "lower non-critical threshold"),
            ("max", "upper non-critical threshold"),
            ("crit", "upper critical threshold"),
        )
    ),
    gauge(
        "ipmi_sensor_state_id",
        "",
        ("sensor",),
        "State of a sensor with thresholds: 0 ok, 1 non-critical, 2 critical, 3 non-recoverable.",
    ),
    gauge(
        "ipmi_sensor_event",
        "",
        ("sensor", "event"),
        "1 for each state that a discrete sensor asserts, such as Failure detected.",
    ),
    gauge(
        "ipmi_part_success",
        "",
        ("part",),
        "1 when ipmitool showed the full (with values) or compact (discrete) sensors.",
    ),
    gauge(
        "ipmi_unreadable_lines",
        "",
        (),
        "Lines of ipmitool in the last run that make no sense; their sensors are missing.",
    ),
    gauge("ipmi_sel_entries", "", (), "Entries in the BMC's event log."),
    gauge("ipmi_sel_used_ratio", "ratio", (), "How full the BMC's event log is."),
    gauge(
        "ipmi_sel_events",
        "",
        ("sensor", "event", "state"),
        "Entries of one kind among the newest of the BMC's event log (docs/reference/thermal.md).",
    ),
)


class IpmiCollector:
    name = "ipmi"
    interval_s = 60.0

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        results = ask_all(self._ask, HelperQuery.IPMI_SENSORS, "BMC")
        sensors: list[IpmiSensor] = []
        unreadable = 0
        for part, result in results.items():
            has_answered = result.outcome is ProgramOutcome.ANSWERED and bool(result.output)
            yield Metric("rankmend_ipmi_part_success", int(has_answered), (("part", part),))
            if has_answered:
                parsed = parse_sensors(result.output)
                sensors += parsed.sensors
                unreadable += parsed.unreadable_lines
        if not sensors:
            raise SourceError(f"ipmitool shows no sensor: {_why(results)}")
        yield Metric("rankmend_ipmi_unreadable_lines", unreadable)
        for sensor in unique(sensors):
            yield from _show(sensor)


class IpmiEventsCollector:
    name = "ipmi_events"
    interval_s = 300.0

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        results = ask_all(self._ask, HelperQuery.IPMI_EVENTS, "BMC")
        for part in ("info", "list"):
            result = results.get(part)
            if result is None or result.outcome is not ProgramOutcome.ANSWERED or result.exit_code:
                raise SourceError(f"ipmitool can't read the event log: {_why(results)}")
        info = parse_sel_info(results["info"].output)
        if info.entries is not None:
            yield Metric("rankmend_ipmi_sel_entries", info.entries)
        if info.used_ratio is not None:
            yield Metric("rankmend_ipmi_sel_used_ratio", info.used_ratio)
        kinds = Counter(
            (entry.sensor, entry.event, "asserted" if entry.is_asserted else "deasserted")
            for entry in parse_sel(results["list"].output)
        )
        for (sensor, event, state), count in kinds.most_common(EVENT_KINDS_MAX):
            labels = (("sensor", sensor), ("event", event), ("state", state))
            yield Metric("rankmend_ipmi_sel_events", count, labels)


def ask_all(ask: Ask, query: HelperQuery, what: str) -> dict[str, ProgramResult]:
    """Return the results by name, or raise NoSourceError where there is nothing to ask."""
    results = {result.name: result for result in ask(query).results}
    if not results:
        raise NoSourceError(f"this node has no {what}")
    if all(result.outcome is ProgramOutcome.ABSENT for result in results.values()):
        raise NoSourceError(next(iter(results.values())).error)
    return results


def _why(results: Mapping[str, ProgramResult]) -> str:
    problems = [f"{part}: {result.error[:200]}" for part, result in results.items() if result.error]
    return "; ".join(problems) or "no reason is given"


def _show(sensor: IpmiSensor) -> Iterator[Metric]:
    labels = (("sensor", sensor.name),)
    for event in sensor.events:
        yield Metric("rankmend_ipmi_sensor_event", 1, (*labels, ("event", event)))
    if sensor.value is None:
        return
    if sensor.state is not None:
        yield Metric("rankmend_ipmi_sensor_state_id", sensor.state.value, labels)
    if sensor.unit is SensorUnit.RATIO:
        yield Metric("rankmend_ipmi_fan_ratio", sensor.value, labels)
    if sensor.unit not in _SUBJECTS:
        return
    subject, unit = _SUBJECTS[sensor.unit]
    yield Metric(f"rankmend_ipmi_{subject}_{unit}", sensor.value, labels)
    thresholds = sensor.thresholds
    for limit, value in (
        ("lcrit", thresholds.lower_critical),
        ("min", thresholds.lower),
        ("max", thresholds.upper),
        ("crit", thresholds.upper_critical),
    ):
        if value is not None:
            yield Metric(f"rankmend_ipmi_{subject}_{limit}_{unit}", value, labels)
