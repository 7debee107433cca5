"""hwmon and thermal zones: every kind of sensor, and none that fools anybody."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.hwmon import SCAN_RUNS, HwmonReader, parse_integer
from agent.collectors.thermal import ThermalCollector
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, ROOT, values_of

SYS = ROOT / "tests" / "fixtures" / "sys-hwmon" / "sys"
CHIP = Path("devices/platform/nct6775.656/hwmon/hwmon0")


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SYS, tmp_path / "sys", symlinks=True))


def collect(root: Path) -> dict[str, float]:
    return values_of(list(ThermalCollector(root).collect()))


def test_every_kind_of_sensor_is_in_base_units() -> None:
    values = collect(SYS)

    assert values["hwmon_voltage_volts{nct6775-nct6775.656,in0}"] == 1.816
    assert values["hwmon_voltage_max_volts{nct6775-nct6775.656,in0}"] == 1.744
    assert values["hwmon_voltage_volts{nct6775-nct6775.656,in1}"] == -12.032
    assert values["hwmon_voltage_lcrit_volts{nct6775-nct6775.656,in1}"] == -13.2
    assert values["thermal_sensor_info{nct6775-nct6775.656,in0,Vcore}"] == 1
    assert values["thermal_fan_rpm{nct6775-nct6775.656,fan1}"] == 420
    assert values["thermal_fan_min_rpm{nct6775-nct6775.656,fan1}"] == 500
    assert values["thermal_temperature_celsius{nct6775-nct6775.656,temp2}"] == 41.5
    assert values["thermal_emergency_celsius{nct6775-nct6775.656,temp2}"] == 110
    assert values["thermal_lcrit_celsius{nct6775-nct6775.656,temp2}"] == -20
    assert values["hwmon_current_amperes{pmbus-0-0058,curr1}"] == 14.25
    assert values["hwmon_current_crit_amperes{pmbus-0-0058,curr1}"] == 25
    assert values["hwmon_power_watts{pmbus-0-0058,power1}"] == 1710
    assert values["hwmon_power_watts{pmbus-0-0058,power2}"] == 1605  # an average is all it has
    assert values["hwmon_power_cap_watts{pmbus-0-0058,power2}"] == 3000
    assert values["hwmon_energy_joules_total{pmbus-0-0058,energy1}"] == 9007199254.740993
    assert values["hwmon_humidity_ratio{pmbus-0-0058,humidity1}"] == 0.4525


def test_alarms_name_their_limit_where_the_chip_does() -> None:
    values = collect(SYS)

    assert values["hwmon_alarm{nct6775-nct6775.656,in0,any}"] == 1
    assert values["hwmon_alarm{nct6775-nct6775.656,temp2,max}"] == 1
    assert values["hwmon_alarm{nct6775-nct6775.656,temp2,crit}"] == 0
    assert values["hwmon_alarm{nct6775-nct6775.656,intrusion0,any}"] == 1
    assert values["hwmon_alarm{pmbus-0-0058,power2,cap}"] == 1


def test_value_of_a_faulty_sensor_is_not_believed() -> None:
    values = collect(SYS)

    assert values["hwmon_fault{nct6775-nct6775.656,temp1}"] == 1
    assert values["thermal_sensor_success{nct6775-nct6775.656,temp1}"] == 0
    assert "thermal_temperature_celsius{nct6775-nct6775.656,temp1}" not in values
    assert values["hwmon_fault{nct6775-nct6775.656,temp2}"] == 0


def test_sensor_that_is_switched_off_is_absent() -> None:
    assert not [name for name in collect(SYS) if "temp3" in name]


def test_zone_shows_its_lowest_trip_point_of_each_kind_and_none_that_is_not_set() -> None:
    values = collect(SYS)

    assert values["thermal_zone_passive_celsius{thermal_zone0,x86_pkg_temp}"] == 80
    assert values["thermal_zone_critical_celsius{thermal_zone0,x86_pkg_temp}"] == 105
    assert not [name for name in values if "zone_hot" in name or "zone_active" in name]


def test_values_change_with_the_files_and_limits_at_the_next_scan(sys: Path) -> None:
    collector = ThermalCollector(sys)
    list(collector.collect())
    (sys / CHIP / "temp2_input").write_text("50000\n")
    (sys / CHIP / "temp2_max_alarm").write_text("0\n")
    (sys / CHIP / "temp2_crit").write_text("90000\n")

    runs = [values_of(list(collector.collect())) for _ in range(SCAN_RUNS)]

    name = "{nct6775-nct6775.656,temp2}"
    assert runs[0][f"thermal_temperature_celsius{name}"] == 50
    assert runs[0]["hwmon_alarm{nct6775-nct6775.656,temp2,max}"] == 0
    assert runs[0][f"thermal_crit_celsius{name}"] == 100
    assert runs[-1][f"thermal_crit_celsius{name}"] == 90


def test_chip_that_comes_and_goes_is_noticed_at_once(sys: Path) -> None:
    collector = ThermalCollector(sys)
    list(collector.collect())
    (sys / "class/hwmon/hwmon1").unlink()

    assert not [name for name in values_of(list(collector.collect())) if "pmbus" in name]

    link = sys / "class/hwmon/hwmon7"
    link.symlink_to("../../devices/pci0000:00/0000:00:01.0/i2c-0/0-0058/hwmon/hwmon1")
    assert values_of(list(collector.collect()))["hwmon_power_watts{pmbus-0-0058,power1}"] == 1710


def test_sensor_without_an_answer_takes_no_other_with_it(sys: Path) -> None:
    (sys / CHIP / "in0_input").unlink()
    (sys / CHIP / "in0_input").mkdir()  # reading it is an error
    (sys / CHIP / "in1_input").write_text("N/A\n")

    values = collect(sys)

    assert values["thermal_sensor_success{nct6775-nct6775.656,in0}"] == 0
    assert values["thermal_sensor_success{nct6775-nct6775.656,in1}"] == 0
    assert values["thermal_temperature_celsius{nct6775-nct6775.656,temp2}"] == 41.5


def test_old_driver_with_its_files_beside_the_device_is_read(sys: Path) -> None:
    chip = sys / CHIP
    for file in [path for path in chip.iterdir() if path.name != "device"]:
        file.rename(chip.parent.parent / file.name)

    values = collect(sys)

    assert values["thermal_temperature_celsius{nct6775-nct6775.656,temp2}"] == 41.5


def test_node_without_chips_is_absent(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        list(HwmonReader(tmp_path).read())


@PATIENT
@given(st.text())
def test_any_text_is_a_whole_number_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_integer(text), int)
    except SourceError:
        assert not (text.isascii() and text.isdigit() and len(text) < 20)


@pytest.mark.parametrize(
    ("file", "text", "is_faulty"),
    [
        ("temp2_input", "3892313987", True),  # an ASUS board: an open input of nct6793
        ("temp2_input", "127000", True),  # the end of eight bits
        ("temp2_input", "127500", True),
        ("temp2_input", "-62000", True),
        ("temp2_input", "-128000", True),
        ("temp2_input", "-40000", True),
        ("temp2_input", "126000", False),
        ("temp2_input", "105000", False),  # hot, and said to be
        ("temp2_input", "-5000", False),
        ("fan1_input", "1350000", True),
        ("fan1_input", "38000", False),
        ("fan1_input", "0", False),
        ("fan1_input", "-1", True),
        ("in0_input", "2147483647", True),
        ("in0_input", "0", False),
    ],
)
def test_a_reading_that_no_machine_can_have_is_a_faulty_sensor_and_neither_hot_nor_an_alarm(
    sys: Path, file: str, text: str, is_faulty: bool
) -> None:
    sensor = file.partition("_")[0]
    (sys / CHIP / file).write_text(text)

    values = collect(sys)

    labels = f"nct6775-nct6775.656,{sensor}"
    assert values[f"thermal_sensor_success{{{labels}}}"] == (not is_faulty)
    assert values.get(f"hwmon_fault{{{labels}}}", 0) == is_faulty
    metrics = {
        "temp": "thermal_temperature_celsius",
        "fan1": "thermal_fan_rpm",
        "in0": "hwmon_voltage_volts",
    }
    metric = next(name for start, name in metrics.items() if sensor.startswith(start))
    assert (f"{metric}{{{labels}}}" in values) != is_faulty
    alarms = [value for name, value in values.items() if name.startswith(f"hwmon_alarm{{{labels},")]
    assert not (is_faulty and any(alarms))


def test_other_chips_may_be_as_hot_as_their_sensors_measure(sys: Path) -> None:
    chip = sys / CHIP
    (chip / "name").write_text("nvme\n")
    (chip / "temp2_input").write_text("127000")

    hot = collect(sys)
    (chip / "temp2_input").write_text("151000")
    impossible = collect(sys)

    assert hot["thermal_temperature_celsius{nvme-nct6775.656,temp2}"] == 127
    assert "thermal_temperature_celsius{nvme-nct6775.656,temp2}" not in impossible


def test_only_a_fan_that_has_turned_can_stop(sys: Path) -> None:
    """A header without a fan reads 0 for ever, and may have a lower limit."""
    reader = HwmonReader(sys / "class/hwmon")
    labels = "thermal_fan_turned{nct6775-nct6775.656,fan1}"

    def turned(rpm: int) -> float:
        (sys / CHIP / "fan1_input").write_text(str(rpm))
        return values_of(list(reader.read()))[labels]

    assert [turned(0), turned(60), turned(420), turned(0)] == [0, 0, 1, 1]
