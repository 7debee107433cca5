"""Errors that hardware reports through the kernel: memory (EDAC) and PCI Express (AER)."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.assembly.host import HostSettings, make_collectors
from agent.collectors.edac import EdacCollector
from agent.collectors.pcie_aer import PcieAerCollector, parse_errors
from agent.sampling.collection import CollectorOutcome, Slot
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, FakeClock, values_of
from tests.support.collectors import SYS, unpack_ttar


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SYS, tmp_path / "sys"))


def test_memory_errors_are_told_by_module_and_slot() -> None:
    values = values_of(list(EdacCollector(SYS).collect()))

    assert values["edac_controller_corrected_total{mc0}"] == 7
    assert values["edac_controller_corrected_unplaced_total{mc0}"] == 2
    assert values["edac_module_corrected_total{mc0,dimm0}"] == 5
    assert values["edac_module_uncorrected_total{mc0,dimm3}"] == 1
    assert "edac_module_info{mc0,dimm3,CPU_SrcID#0_MC#0_Chan#1_DIMM#0,channel 1 slot 0}" in values


def test_older_drivers_tell_by_row_and_channel() -> None:
    values = values_of(list(EdacCollector(SYS).collect()))

    assert values["edac_module_corrected_total{mc1,csrow0-ch0}"] == 3
    assert values["edac_module_corrected_total{mc1,csrow0-ch1}"] == 0
    assert values["edac_module_uncorrected_total{mc1,csrow0}"] == 0
    assert "edac_module_info{mc1,csrow0-ch0,DIMM_B1,csrow0 ch0}" in values


def test_module_that_a_kernel_shows_in_both_ways_is_counted_once(sys_root: Path) -> None:
    root = sys_root / "devices" / "system" / "edac" / "mc"
    shutil.copytree(root / "mc1" / "csrow0", root / "mc0" / "csrow0")

    values = values_of(list(EdacCollector(sys_root).collect()))

    modules = [name for name in values if name.startswith("edac_module_corrected_total{mc0")]
    assert modules == [
        "edac_module_corrected_total{mc0,dimm0}",
        "edac_module_corrected_total{mc0,dimm3}",
    ]


def test_count_that_makes_no_sense_takes_no_other_with_it(sys_root: Path) -> None:
    dimm = sys_root / "devices" / "system" / "edac" / "mc" / "mc0" / "dimm0"
    (dimm / "dimm_ce_count").write_text("N/A\n")

    values = values_of(list(EdacCollector(sys_root).collect()))

    assert values["edac_file_success{mc0,dimm0/dimm_ce_count}"] == 0
    assert "edac_module_corrected_total{mc0,dimm0}" not in values
    assert values["edac_module_corrected_total{mc0,dimm3}"] == 0


def test_pcie_errors_are_told_by_device_and_severity() -> None:
    values = values_of(list(PcieAerCollector(SYS).collect()))

    assert values["pcie_aer_errors_total{0000:3b:00.0,correctable}"] == 5
    assert values["pcie_aer_errors_total{0000:3b:00.0,nonfatal}"] == 2
    assert values["pcie_aer_errors_total{0000:3b:00.0,fatal}"] == 0
    assert values["pcie_aer_messages_total{0000:3a:00.0,correctable}"] == 5


def test_kind_of_pcie_error_has_a_series_once_it_has_happened() -> None:
    values = values_of(list(PcieAerCollector(SYS).collect()))

    kinds = {name: value for name, value in values.items() if "_kind_" in name}
    assert kinds == {
        "pcie_aer_kind_errors_total{0000:3b:00.0,correctable,RxErr}": 4,
        "pcie_aer_kind_errors_total{0000:3b:00.0,correctable,BadDLLP}": 1,
        "pcie_aer_kind_errors_total{0000:3b:00.0,nonfatal,CmpltTO}": 2,
    }


def test_pcie_file_that_makes_no_sense_takes_no_other_with_it() -> None:
    values = values_of(list(PcieAerCollector(SYS).collect()))

    assert values["pcie_aer_success{0000:3a:00.0,nonfatal}"] == 0
    assert "pcie_aer_errors_total{0000:3a:00.0,nonfatal}" not in values
    assert values["pcie_aer_success{0000:3a:00.0,fatal}"] == 1


def test_device_without_error_reporting_has_no_series() -> None:
    values = values_of(list(PcieAerCollector(SYS).collect()))

    assert not [name for name in values if "0000:00:1f.0" in name]


@pytest.mark.parametrize("make", [EdacCollector, PcieAerCollector])
def test_node_without_the_source_is_absent(make: type, tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        list(make(tmp_path).collect())


def test_no_file_of_the_host_can_break_more_than_its_own_collector(tmp_path: Path) -> None:
    """Every file in turn holds noise; no collector may raise what it does not expect."""
    copy = Path(shutil.copytree(SYS.parent, tmp_path / "tree", symlinks=True))
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        recorded = path.read_bytes()
        path.write_bytes(b"\xff\x00 noise\n-1 x\n" * 3)
        for collector in make_collectors(
            HostSettings(modules=("nvidia",)), copy / "proc", copy / "sys", FakeClock(), list
        ):
            slot = Slot(collector, 1.0, FakeClock(), FAMILIES)
            slot.run()
            view = slot.view(1000.0)
            assert "Error: " not in view.error or view.outcome is not CollectorOutcome.BROKEN, (
                f"{path}: {collector.name}: {view.error}"
            )
        path.write_bytes(recorded)


def test_recorded_sysfs_of_a_real_machine_is_read(tmp_path: Path) -> None:
    datasets = os.environ.get("RANKMEND_DATASETS")
    if not datasets:
        pytest.skip("RANKMEND_DATASETS is not set")
    unpack_ttar(Path(datasets) / "sysfs" / "node-exporter" / "sys.ttar", tmp_path)

    edac = values_of(list(EdacCollector(tmp_path / "sys").collect()))
    aer_root = tmp_path / "sys" / "devices" / "pci0000:40" / "0000:40:01.3" / "0000:45:00.0"
    total, kinds = parse_errors((aer_root / "aer_dev_correctable").read_text())

    assert edac["edac_controller_corrected_total{mc0}"] == 1
    assert edac["edac_controller_uncorrected_total{mc0}"] == 5
    assert edac["edac_module_uncorrected_total{mc0,csrow0}"] == 4
    assert total == sum(kinds.values())
    assert "RxErr" in kinds


@PATIENT
@given(st.text())
def test_any_aer_file_is_understood_or_refused(text: str) -> None:
    try:
        total, kinds = parse_errors(text)
    except SourceError:
        return
    assert total >= 0
    assert all(count >= 0 for count in kinds.values())
