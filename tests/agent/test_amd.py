"""AMD GPUs: the plugin on a stand-in for amdsmi, with the answers that AMD documents."""

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from agent.assembly.families import FAMILIES
from agent.metrics import Metric
from agent.plugins import Origin, PluginCollector, PluginContext, check_class
from agent.vendors.amd import READINGS, AmdCollector
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import ROOT, values_of

MI300X = json.loads((ROOT / "tests" / "fixtures" / "amd" / "mi300x.json").read_text())
GPU = "0,9fff74a1-0000-1000-803b-2c8c18a6a111,0000:c1:00.0"
NOT_SUPPORTED, IO = 2, 12  # amdsmi_status_t


class FakeAmdSmi:
    """Answers as amdsmi's Python interface does; a number is the status it fails with."""

    class AmdSmiException(Exception):  # noqa: N818 - the name is theirs
        pass

    class AmdSmiLibraryException(AmdSmiException):
        def __init__(self, err_code: int) -> None:
            super().__init__(err_code)
            self.err_code = err_code

    AmdSmiTemperatureType = Enum("AmdSmiTemperatureType", "EDGE HOTSPOT VRAM")
    AmdSmiTemperatureMetric = Enum("AmdSmiTemperatureMetric", "CURRENT CRITICAL")

    def __init__(self, gpus: int = 1, **changes: Any) -> None:
        self.answers = MI300X | changes
        self.gpus = gpus
        self.is_open = False

    def amdsmi_init(self) -> None:
        self._value("amdsmi_init")
        self.is_open = True

    def amdsmi_shut_down(self) -> None:
        self.is_open = False

    def amdsmi_get_processor_handles(self) -> list[object]:
        self._value("handles")
        return [object() for _ in range(self.gpus)]

    def amdsmi_get_gpu_device_uuid(self, handle: object) -> str:
        return str(self._value("uuid"))

    def amdsmi_get_gpu_device_bdf(self, handle: object) -> str:
        return str(self._value("bdf"))

    def amdsmi_get_temp_metric(self, handle: object, sensor: Enum, metric: Enum) -> object:
        sensors = self._value("temperatures")
        if sensor.name not in sensors:
            raise self.AmdSmiLibraryException(NOT_SUPPORTED)
        return sensors[sensor.name][metric.name]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)
        return lambda handle: self._value(name)

    def _value(self, name: str) -> Any:
        value = self.answers.get(name)
        if isinstance(value, int):
            raise self.AmdSmiLibraryException(value)
        return value


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    (tmp_path / "module" / "amdgpu").mkdir(parents=True)
    return tmp_path


def make_context(sysfs: Path, is_live: bool = True) -> PluginContext:
    return PluginContext(Path("/proc"), sysfs, is_live, SystemClock())


def collect(sysfs: Path, smi: FakeAmdSmi) -> dict[str, float]:
    """Return what the collector gives through the check that every plugin goes through."""
    collector = PluginCollector(
        Origin("amd", "rankmend", "1", False),
        lambda: AmdCollector(make_context(sysfs), lambda: smi),
        10.0,
        check_class("amd", AmdCollector, FAMILIES),
    )
    metrics: list[Metric] = list(collector.collect())
    assert len({(metric.name, metric.labels) for metric in metrics}) == len(metrics)
    values = values_of(metrics)
    return {name.removeprefix("amd_").replace(GPU, "GPU"): value for name, value in values.items()}


def test_answers_of_an_mi300x_become_base_units(sysfs: Path) -> None:
    found = collect(sysfs, FakeAmdSmi())

    readings = {name: value for name, value in found.items() if name.startswith("reading_")}
    assert set(readings.values()) == {1}
    assert {name: value for name, value in found.items() if name not in readings} == {
        "info{GPU,AMD Instinct MI300X,0x3B2C8C18A6A11111,6.14.14,022.040.003.042.000001}": 1,
        "success{GPU}": 1,
        "busy_ratio{GPU,gfx}": 0.87,
        "busy_ratio{GPU,memory}": 0.12,
        "memory_size_bytes{GPU}": 196592 * 1024**2,
        "memory_used_bytes{GPU}": 151203 * 1024**2,
        "temperature_celsius{GPU,hotspot}": 61,
        "temperature_celsius{GPU,vram}": 54,
        "temperature_critical_celsius{GPU,hotspot}": 100,
        "temperature_critical_celsius{GPU,vram}": 105,
        "power_watts{GPU}": 612,
        "power_cap_watts{GPU}": 750,
        "energy_joules_total{GPU}": pytest.approx(30.518),
        "throttled{GPU,prochot}": 0,
        "throttled{GPU,power}": 1,
        "throttled{GPU,socket_thermal}": 0,
        "throttled{GPU,memory_thermal}": 0,
        "ecc_errors_total{GPU,correctable}": 21,
        "ecc_errors_total{GPU,uncorrectable}": 1,
        "ecc_errors_total{GPU,deferred}": 0,
        "bad_pages{GPU,reserved}": 2,
        "bad_pages{GPU,pending}": 1,
        "bad_pages{GPU,unreservable}": 0,
        "pcie_width{GPU}": 8,
        "pcie_width_max{GPU}": 16,
        "pcie_replays_total{GPU}": 4,
    }


def test_temperatures_of_older_libraries_are_thousandths(sysfs: Path) -> None:
    older = FakeAmdSmi(temperatures={"EDGE": {"CURRENT": 48000, "CRITICAL": 100000}})

    found = collect(sysfs, older)

    assert found["temperature_celsius{GPU,edge}"] == 48
    assert found["temperature_critical_celsius{GPU,edge}"] == 100


def test_a_sensor_that_is_not_there_reads_all_ones_and_is_no_temperature(sysfs: Path) -> None:
    found = collect(sysfs, FakeAmdSmi(temperatures={"EDGE": {"CURRENT": 511, "CRITICAL": 100}}))

    assert "temperature_celsius{GPU,edge}" not in found
    assert found["temperature_critical_celsius{GPU,edge}"] == 100


def test_unsupported_reading_is_absent_and_a_refused_one_is_broken(sysfs: Path) -> None:
    smi = FakeAmdSmi(amdsmi_get_gpu_total_ecc_count=NOT_SUPPORTED, amdsmi_get_pcie_info=IO)

    found = collect(sysfs, smi)

    assert not any(name.startswith("ecc_errors") for name in found)
    assert "reading_success{GPU,ecc}" not in found
    assert found["reading_success{GPU,pcie}"] == 0
    assert found["success{GPU}"] == 1


def test_library_that_lacks_a_function_costs_one_reading(sysfs: Path) -> None:
    smi = FakeAmdSmi()
    del smi.answers["amdsmi_get_violation_status"]

    found = collect(sysfs, smi)

    assert not any(name.startswith("throttled") for name in found)
    assert found["power_watts{GPU}"] == 612


def test_gpu_that_answers_nothing_is_no_success(sysfs: Path) -> None:
    calls = [name for name in MI300X if name.startswith("amdsmi_get")]

    found = collect(sysfs, FakeAmdSmi(temperatures=IO, **dict.fromkeys(calls, IO)))

    assert found["success{GPU}"] == 0
    assert sum(name.startswith("reading_success") for name in found) == len(READINGS)


@pytest.mark.parametrize("call", ["amdsmi_init", "handles"])
def test_driver_that_refuses_is_broken(call: str, sysfs: Path) -> None:
    with pytest.raises(SourceError):
        collect(sysfs, FakeAmdSmi(**{call: IO}))


def test_node_without_gpus_or_driver_is_absent(sysfs: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSourceError, match="lists no GPU"):
        collect(sysfs, FakeAmdSmi(gpus=0))
    with pytest.raises(NoSourceError, match="driver amdgpu"):
        collect(tmp_path / "elsewhere", FakeAmdSmi())
    with pytest.raises(NoSourceError, match="recorded tree"):
        AmdCollector(make_context(sysfs, is_live=False))


def test_missing_package_is_absent(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)

    with pytest.raises(NoSourceError, match="amdsmi is not installed"):
        AmdCollector(make_context(sysfs))


def test_package_without_its_c_library_is_absent_and_keeps_standard_output_clean(
    sysfs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = "print('Unable to find libamd_smi.so')\n{}['libamd_smi.so']\n"  # as amdsmi_wrapper does
    (tmp_path / "amdsmi.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(NoSourceError, match=r"finds no libamd_smi\.so"):
        AmdCollector(make_context(sysfs))

    assert capsys.readouterr().out == ""


def test_library_is_let_go_of(sysfs: Path) -> None:
    smi = FakeAmdSmi()
    collector = AmdCollector(make_context(sysfs), lambda: smi)
    assert smi.is_open

    collector.stop()

    assert not smi.is_open
