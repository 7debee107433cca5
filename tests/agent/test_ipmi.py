"""IPMI: every form of ipmitool's output, and collectors that never mix absent with broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.ipmi import IpmiCollector, IpmiEventsCollector
from agent.root_helper.questions import HelperAnswer, HelperQuery, ProgramOutcome, ProgramResult
from detectors.formats.ipmi import (
    IpmiSensor,
    SensorState,
    SensorUnit,
    Thresholds,
    parse_sel,
    parse_sel_info,
    parse_sensors,
)
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, ROOT, values_of

FIXTURES = ROOT / "tests" / "fixtures" / "ipmi"


def read(name: str) -> str:
    return (FIXTURES / name).read_text()


class FakeHelper:
    """Answers with what the test says of each part."""

    def __init__(self, *results: ProgramResult) -> None:
        self.results = results
        self.asked: list[HelperQuery] = []

    def __call__(self, query: HelperQuery) -> HelperAnswer:
        self.asked.append(query)
        return HelperAnswer(query, 0.0, self.results)


def answered(name: str, output: str, exit_code: int = 0) -> ProgramResult:
    return ProgramResult(name, ProgramOutcome.ANSWERED, exit_code, output)


def values_of_sensors(*results: ProgramResult) -> dict[str, float]:
    return values_of(list(IpmiCollector(FakeHelper(*results)).collect()))


def test_sensors_carry_value_state_and_thresholds() -> None:
    values = values_of_sensors(
        answered("full", read("sdr-full.csv")), answered("compact", read("sdr-compact.csv"))
    )

    assert values["ipmi_temperature_celsius{Inlet Temp}"] == 23
    assert values["ipmi_temperature_crit_celsius{Inlet Temp}"] == 47
    assert values["ipmi_temperature_min_celsius{Inlet Temp}"] == 3
    assert values["ipmi_fan_rpm{FAN, rear}"] == 420
    assert values["ipmi_fan_lcrit_rpm{FAN, rear}"] == 500
    assert values["ipmi_sensor_state_id{FAN, rear}"] == 2
    assert values["ipmi_sensor_state_id{FAN2}"] == 0
    assert values["ipmi_sensor_state_id{Pwr Total}"] == 1
    assert values["ipmi_power_watts{Pwr Total}"] == 3420
    assert values["ipmi_voltage_volts{PSU1 Volt}"] == 230
    assert values["ipmi_current_amperes{PSU1 Curr}"] == 1.6
    assert values["ipmi_temperature_celsius{Outlet Temp}"] == pytest.approx(40)
    assert values["ipmi_temperature_crit_celsius{Outlet Temp}"] == pytest.approx(80)
    assert values["ipmi_fan_ratio{Fan Duty}"] == 0.45
    assert values["ipmi_sensor_event{PS2 Status,Failure detected}"] == 1
    assert values["ipmi_sensor_event{PS Redundancy,Redundancy Lost}"] == 1
    assert values["ipmi_unreadable_lines"] == 1


def test_sensors_of_one_name_stay_apart() -> None:
    values = values_of_sensors(answered("full", read("sdr-full.csv")))

    assert values["ipmi_temperature_celsius{Temp 3.1}"] == 48
    assert values["ipmi_temperature_celsius{Temp 3.2}"] == 51


def test_sensor_without_a_reading_is_absent_and_never_zero() -> None:
    values = values_of_sensors(
        answered("full", read("sdr-full.csv")), answered("compact", read("sdr-compact.csv"))
    )

    assert not [name for name in values if "GPU9" in name or "GPU Slot 4" in name]
    assert not [name for name in values if "Intrusion" in name]  # asserts nothing


def test_short_form_and_sensor_form_are_read_as_well() -> None:
    short = {s.name: s for s in parse_sensors(read("sdr-full-short.csv")).sensors}
    listed = {s.name: s for s in parse_sensors(read("sensor.csv")).sensors}

    assert short["FAN1"] == IpmiSensor(
        "FAN1", "", 420, SensorUnit.RPM, SensorState.CRITICAL, Thresholds()
    )
    assert short["12V"].value == 12.096
    assert short["GPU9 Temp"].value is None
    assert listed["Inlet Temp"].thresholds == Thresholds(-7, 3, 42, 47)
    assert listed["FAN1"].state is SensorState.CRITICAL
    assert listed["GPU9 Temp"].value is None
    assert listed["PS1 Status"].value is None


def test_part_that_fails_takes_no_other_with_it_and_shows() -> None:
    failed = ProgramResult("compact", ProgramOutcome.FAILED, None, "", "it took too long")

    values = values_of_sensors(answered("full", read("sdr-full-short.csv")), failed)

    assert values["ipmi_part_success{full}"] == 1
    assert values["ipmi_part_success{compact}"] == 0
    assert values["ipmi_temperature_celsius{Inlet Temp}"] == 23


def test_bmc_that_hangs_is_broken_and_node_without_one_is_absent() -> None:
    hung = ProgramResult("full", ProgramOutcome.FAILED, None, "", "it took too long")
    no_tool = ProgramResult("full", ProgramOutcome.ABSENT, None, "", "no /usr/sbin/ipmitool")

    with pytest.raises(SourceError, match="it took too long"):
        values_of_sensors(hung)
    with pytest.raises(SourceError, match="no sensor"):
        values_of_sensors(answered("full", "", exit_code=1))
    with pytest.raises(NoSourceError, match="no /usr/sbin/ipmitool"):
        values_of_sensors(no_tool)
    with pytest.raises(NoSourceError, match="no BMC"):
        values_of_sensors()


def test_event_log_is_counted_by_kind() -> None:
    helper = FakeHelper(answered("info", read("sel-info.txt")), answered("list", read("sel.csv")))

    values = values_of(list(IpmiEventsCollector(helper).collect()))

    assert helper.asked == [HelperQuery.IPMI_EVENTS]
    assert values["ipmi_sel_entries"] == 486
    assert values["ipmi_sel_used_ratio"] == 0.95
    assert values["ipmi_sel_events{Memory #0x53,Correctable ECC,asserted}"] == 2
    assert values["ipmi_sel_events{Fan FAN1,Lower Critical going low,deasserted}"] == 1
    assert values["ipmi_sel_events{Power Supply PS2 Status,Power Supply AC lost,asserted}"] == 1
    assert values["ipmi_sel_events{Linux kernel panic: Fatal excep,,asserted}"] == 1


def test_empty_event_log_is_measured() -> None:
    helper = FakeHelper(
        answered("info", "Entries          : 0\nPercent Used     : unknown\n"),
        answered("list", "SEL has no entries\n"),
    )

    assert values_of(list(IpmiEventsCollector(helper).collect())) == {"ipmi_sel_entries": 0}


def test_event_log_that_cannot_be_read_is_broken() -> None:
    helper = FakeHelper(
        answered("info", read("sel-info.txt")),
        ProgramResult("list", ProgramOutcome.FAILED, None, "", "too slow"),
    )

    with pytest.raises(SourceError, match="too slow"):
        list(IpmiEventsCollector(helper).collect())


@PATIENT
@given(st.text())
def test_any_text_gives_sensors_with_different_names(text: str) -> None:
    parsed = parse_sensors(text)

    names = [sensor.name for sensor in parsed.sensors]
    assert len(set(names)) == len(names)


@PATIENT
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ["Temp", "Temp #2", "23", "degrees C", "RPM", "ok", "ns", "C8h", "7.1", "", "nan"]
            ),
            max_size=18,
        ),
        max_size=20,
    )
)
def test_lines_of_familiar_fields_never_break_the_collector(lines: list[list[str]]) -> None:
    text = "\n".join(",".join(line) for line in lines)
    helper = FakeHelper(answered("full", text), answered("compact", text))

    try:
        metrics = list(IpmiCollector(helper).collect())
    except SourceError:
        return
    assert len({(metric.name, metric.labels) for metric in metrics}) == len(metrics)


@PATIENT
@given(st.text())
def test_any_event_log_is_read_or_left_out(text: str) -> None:
    for entry in parse_sel(text):
        assert entry.sensor.isprintable()
    assert (parse_sel_info(text).used_ratio or 0) >= 0
