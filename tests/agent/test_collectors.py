"""Each collector on the fixture tree, on a node without its source, and on a broken one."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.agent import AgentCollector
from agent.collectors.disk import DiskCollector
from agent.collectors.host import HostCollector
from agent.collectors.network import NetworkCollector
from agent.collectors.pressure import PressureCollector, parse_pressure
from agent.collectors.thermal import ThermalCollector, parse_milli
from agent.ranks.table import RankTable
from agent.sampling.collection import Collector
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import FIXTURE, PATIENT, values_of
from tests.support.collectors import unpack_ttar

PROC, SYS = FIXTURE / "proc", FIXTURE / "sys"


@pytest.fixture(autouse=True)
def _psutil_root() -> object:
    yield
    psutil.PROCFS_PATH = "/proc"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROC, tmp_path / "proc"))


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SYS, tmp_path / "sys", symlinks=True))


def test_host_figures_are_in_base_units() -> None:
    values = values_of(list(HostCollector(PROC).collect()))

    assert values["host_cpu_seconds_total{user}"] == 1200.34  # 120034 ticks of 10 ms
    assert values["host_cpus"] == 2
    assert values["host_load_processes{15m}"] == 4.0
    assert values["host_memory_available_bytes"] == 2_000_000_000 * 1024
    assert values["host_swap_out_bytes_total"] == 151 * 4096


def test_network_leaves_out_the_devices_of_containers() -> None:
    values = values_of(list(NetworkCollector(PROC).collect()))

    assert values["network_receive_drops_total{eth0}"] == 2
    assert values["network_transmit_errors_total{eth0}"] == 3
    assert not [name for name in values if "veth" in name]


def test_disk_leaves_out_partitions_and_loop_devices() -> None:
    values = values_of(list(DiskCollector(PROC).collect()))

    assert values["disk_busy_seconds_total{nvme0n1}"] == 4.5
    assert not [name for name in values if "loop0" in name or "nvme0n1p1" in name]


def test_pressure_is_in_seconds() -> None:
    values = values_of(list(PressureCollector(PROC).collect()))

    assert values["pressure_some_seconds_total{cpu}"] == 5.448429
    assert values["pressure_full_seconds_total{io}"] == 3.162405


def test_thermal_names_the_device_and_isolates_the_broken_sensor() -> None:
    values = values_of(list(ThermalCollector(SYS).collect()))

    assert values["thermal_temperature_celsius{coretemp-coretemp.0,temp1}"] == 61.0
    assert values["thermal_crit_celsius{nvme-nvme0,temp1}"] == 84.85
    assert values["thermal_sensor_info{nvme-nvme0,temp1,Composite}"] == 1
    assert values["thermal_temperature_celsius{nct6775-nct6775.656,temp2}"] == -5.0
    assert values["thermal_fan_rpm{nct6775-nct6775.656,fan2}"] == 0
    assert values["thermal_sensor_success{nct6775-nct6775.656,temp1}"] == 0
    assert "thermal_temperature_celsius{nct6775-nct6775.656,temp1}" not in values
    assert values["thermal_zone_temperature_celsius{thermal_zone0,x86_pkg_temp}"] == 62.0


def test_thermal_zone_below_absolute_zero_has_no_reading(sys: Path) -> None:
    path = sys / "class" / "thermal" / "thermal_zone0" / "temp"
    path.write_text("-274000\n")  # THERMAL_TEMP_INVALID of the kernel

    values = values_of(list(ThermalCollector(sys).collect()))

    assert values["thermal_sensor_success{thermal_zone0,temp}"] == 0
    assert not any(name.startswith("thermal_zone_temperature") for name in values)


def test_thermal_zone_that_refuses_is_reported_and_takes_no_other_with_it(sys: Path) -> None:
    (sys / "class" / "thermal" / "thermal_zone0" / "temp").unlink()

    values = values_of(list(ThermalCollector(sys).collect()))

    assert values["thermal_sensor_success{thermal_zone0,temp}"] == 0
    assert values["thermal_temperature_celsius{nvme-nvme0,temp1}"] == 38.85


def test_two_chips_of_one_name_on_one_device_stay_apart(sys: Path) -> None:
    nvme = sys / "devices" / "pci0000:00" / "0000:01:00.0" / "nvme" / "nvme0" / "hwmon"
    shutil.copytree(nvme / "hwmon1", nvme / "hwmon3", symlinks=True)
    (sys / "class" / "hwmon" / "hwmon3").symlink_to(
        os.path.relpath(nvme / "hwmon3", sys / "class" / "hwmon")
    )

    values = values_of(list(ThermalCollector(sys).collect()))

    assert values["thermal_temperature_celsius{nvme-nvme0,temp1}"] == 38.85
    assert values["thermal_temperature_celsius{nvme-nvme0-hwmon3,temp1}"] == 38.85


def test_agent_measures_itself() -> None:
    values = values_of(list(AgentCollector(SystemClock(), RankTable()).collect()))

    assert values["agent_memory_bytes"] > 1e6
    assert values["agent_descriptors"] >= 3
    assert values["agent_threads"] >= 1


def test_a_host_that_is_renamed_while_the_agent_runs_is_noticed() -> None:
    names = iter(["n1", "n1", "n2", "n1"])
    collector = AgentCollector(SystemClock(), RankTable(), read_name=lambda: next(names))

    seen = [values_of(list(collector.collect()))["agent_node_renamed"] for _look in range(3)]

    assert seen == [0, 1, 0]


def test_a_configured_name_is_never_renamed() -> None:
    assert "agent_node_renamed" not in values_of(
        list(AgentCollector(SystemClock(), RankTable()).collect())
    )


@pytest.mark.parametrize(
    "make",
    [DiskCollector, NetworkCollector, PressureCollector, ThermalCollector],
)
def test_node_without_the_source_is_absent_and_not_broken(
    make: Callable[[Path], Collector], tmp_path: Path
) -> None:
    with pytest.raises(NoSourceError):
        list(make(tmp_path).collect())


@pytest.mark.parametrize(
    ("make", "name", "content"),
    [
        (NetworkCollector, "net/dev", b"one\ntwo\n  eth0: 12 potatoes\n"),
        (DiskCollector, "diskstats", b"8 0 sda 1\n"),
    ],
)
def test_source_that_makes_no_sense_is_broken(
    make: Callable[[Path], Collector], name: str, content: bytes, proc: Path
) -> None:
    (proc / name).write_bytes(content)

    with pytest.raises(SourceError):
        list(make(proc).collect())


def test_host_without_its_files_is_broken_because_every_node_has_them(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        list(HostCollector(tmp_path).collect())


def test_agent_that_cannot_read_itself_is_broken(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        list(AgentCollector(SystemClock(), RankTable(), self_root=tmp_path).collect())


@PATIENT
@given(st.text())
def test_pressure_text_is_understood_or_refused(text: str) -> None:
    try:
        stalled_s = parse_pressure(text)
    except SourceError:
        return
    assert set(stalled_s) <= {"some", "full"}
    assert all(value >= 0 for value in stalled_s.values())


@PATIENT
@given(st.integers(min_value=-273_150, max_value=10_000_000))
def test_every_temperature_is_read_back(milli: int) -> None:
    assert parse_milli(str(milli)) == milli / 1000


@PATIENT
@given(st.text())
def test_sensor_text_is_a_number_or_refused(text: str) -> None:
    try:
        celsius = parse_milli(text)
    except SourceError:
        return
    assert abs(celsius) < 1e6


def test_recorded_sysfs_of_a_real_machine_is_read(tmp_path: Path) -> None:
    datasets = os.environ.get("RANKMEND_DATASETS")
    if not datasets:
        pytest.skip("RANKMEND_DATASETS is not set")
    unpack_ttar(Path(datasets) / "sysfs" / "node-exporter" / "sys.ttar", tmp_path)

    values = values_of(list(ThermalCollector(tmp_path / "sys").collect()))

    # two sockets with one sensor layout: only the device tells them apart
    assert values["thermal_temperature_celsius{coretemp-coretemp.0,temp1}"] == 55.0
    assert values["thermal_temperature_celsius{coretemp-coretemp.1,temp1}"] == 55.0
    assert len([name for name in values if name.startswith("thermal_temperature")]) == 15
    assert values["thermal_fan_rpm{nct6779-hwmon3,fan2}"] == 1098
    assert values["thermal_zone_temperature_celsius{thermal_zone0,cpu-thermal}"] == 12.376
