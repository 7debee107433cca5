"""The page under dcgm-exporter's names, and beside exporters that run already."""

import re
import shutil
import subprocess

import pytest

from agent.assembly.families import FAMILIES
from agent.collectors.ranks import RanksCollector
from agent.config import Exporter, PageNames, PageSettings
from agent.metrics import Metric
from agent.page.application import make_app
from agent.page.other_names import NOT_SAMPLED
from agent.ranks.table import RankTable
from agent.sampling.collection import CollectorOutcome, CollectorView
from tests.support.agent import FakeClock, answer_of

pytestmark = pytest.mark.process

GPU = (("gpu", "3"), ("uuid", "GPU-aa"), ("pci_bus_id", "0000:1b:00.0"))
INFO = (
    *GPU,
    ("model", "NVIDIA H200"),
    ("serial", "1"),
    ("vbios", "96"),
    ("inforom", "G"),
    ("part", "2"),
    ("device", "3"),
    ("driver", "580.95.05"),
    ("cuda", "13.0"),
)
METRICS = (
    Metric("rankmend_gpu_info", 1, INFO),
    Metric("rankmend_gpu_clock_hertz", 1_980e6, (*GPU, ("clock", "sm"))),
    Metric("rankmend_gpu_clock_hertz", 3_201e6, (*GPU, ("clock", "memory"))),
    Metric("rankmend_gpu_temperature_celsius", 45, GPU),
    Metric("rankmend_gpu_memory_temperature_celsius", 58, GPU),
    Metric("rankmend_gpu_power_watts", 312.5, GPU),
    Metric("rankmend_gpu_energy_joules_total", 12.5, GPU),
    Metric("rankmend_gpu_utilization_ratio", 0.5, GPU),
    Metric("rankmend_gpu_memory_size_bytes", 100 << 20, GPU),
    Metric("rankmend_gpu_memory_used_bytes", 60 << 20, GPU),
    Metric("rankmend_gpu_memory_reserved_bytes", 10 << 20, GPU),
    Metric("rankmend_gpu_pcie_errors_total", 7, (*GPU, ("kind", "replay"))),
    Metric("rankmend_gpu_pcie_errors_total", 9, (*GPU, ("kind", "bad_tlp"))),
    Metric("rankmend_gpu_remapped_rows_total", 2, (*GPU, ("cause", "uncorrected"))),
    Metric("rankmend_gpu_last_xid_id", 79, GPU),
    Metric("rankmend_gpu_graphics_active_ratio", 0.25, GPU),
    Metric("rankmend_gpu_pipe_active_ratio", 0.125, (*GPU, ("pipe", "tensor"))),
)
LABELS = (
    'DCGM_FI_DRIVER_VERSION="580.95.05",Hostname="gpu-001",UUID="GPU-aa",device="nvidia3",gpu="3",'
    'modelName="NVIDIA H200",pci_bus_id="00000000:1B:00.0"'
)


def page(settings: PageSettings, *metrics: Metric, accept: str = "", query: str = "") -> str:
    clock = FakeClock()
    views = [
        CollectorView(
            "gpu",
            1.0,
            CollectorOutcome.MEASURED,
            "",
            0.5,
            0.1,
            None,
            0.5,
            0,
            False,
            answer_of(metrics),
        )
    ]
    app = make_app(
        "gpu-001",
        lambda: views,
        RanksCollector(RankTable(), clock),
        clock.now_s,
        FAMILIES,
        page=settings,
    )
    request = {
        "PATH_INFO": "/metrics",
        "REQUEST_METHOD": "GET",
        "HTTP_ACCEPT": accept,
        "QUERY_STRING": query,
    }
    return b"".join(app(request, lambda _status, _headers: None)).decode()


def values(text: str) -> dict[str, float]:
    """Return the values of dcgm-exporter's fields, which must all have its labels."""
    found = {}
    for name, labels, value in re.findall(r"^(DCGM_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        assert labels == LABELS
        found[name] = float(value)
    return found


DCGM = PageSettings(names=(PageNames.DCGM,))


def test_default_fields_have_their_names_units_and_labels() -> None:
    assert values(page(DCGM, *METRICS)) == {
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_MEM_CLOCK": 3201,
        "DCGM_FI_DEV_MEMORY_TEMP": 58,
        "DCGM_FI_DEV_GPU_TEMP": 45,
        "DCGM_FI_DEV_POWER_USAGE": 312.5,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 12_500,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 7,
        "DCGM_FI_DEV_GPU_UTIL": 50,
        "DCGM_FI_DEV_XID_ERRORS": 79,
        "DCGM_FI_DEV_FB_USED": 60,
        "DCGM_FI_DEV_FB_RESERVED": 10,
        "DCGM_FI_DEV_FB_FREE": 30,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 2,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.25,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.125,
    }


def test_standard_dashboard_finds_every_field_that_it_reads() -> None:
    """Grafana 12239: the fields in the expressions of its panels and variables."""
    text = page(DCGM, *METRICS)

    for field in ("DEV_GPU_TEMP", "DEV_POWER_USAGE", "DEV_SM_CLOCK", "DEV_FB_USED"):
        assert f"DCGM_FI_{field}{{" in text
    for field in ("PROF_GR_ENGINE_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE"):
        assert f"DCGM_FI_{field}{{" in text


def test_other_names_are_off_by_default_and_never_in_place_of_our_own() -> None:
    assert "DCGM" not in page(PageSettings(), *METRICS)
    assert "rankmend_gpu_power_watts{" in page(DCGM, *METRICS)


def test_counters_without_total_are_strict_openmetrics() -> None:
    text = page(DCGM, *METRICS, accept="application/openmetrics-text")

    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n" in text
    assert text.endswith("# EOF\n")


def test_query_for_one_of_the_other_names_is_answered() -> None:
    text = page(DCGM, *METRICS, query="name[]=DCGM_FI_DEV_GPU_TEMP")

    assert list(values(text)) == ["DCGM_FI_DEV_GPU_TEMP"]


def test_what_is_not_sampled_is_absent_and_never_zero() -> None:
    text = page(DCGM, METRICS[0], METRICS[3])

    assert list(values(text)) == ["DCGM_FI_DEV_GPU_TEMP"]
    assert not any(name in text for name in NOT_SAMPLED)


def test_what_other_exporters_have_is_not_shown_twice() -> None:
    metrics = (
        *METRICS,
        Metric("rankmend_host_load_processes", 1, (("window", "1m"),)),
        Metric("rankmend_gpu_recovery_action_id", 0, GPU),
    )

    beside_node = page(PageSettings(beside=(Exporter.NODE,)), *metrics)
    beside_dcgm = page(PageSettings(beside=(Exporter.DCGM,)), *metrics)

    assert "rankmend_host_load_processes" not in beside_node
    assert "rankmend_gpu_power_watts{" in beside_node
    assert "rankmend_gpu_power_watts" not in beside_dcgm
    assert "rankmend_gpu_recovery_action_id{" in beside_dcgm
    assert "rankmend_host_load_processes{" in beside_dcgm


@pytest.mark.parametrize("settings", [PageSettings(), PageSettings(beside=tuple(Exporter))])
def test_promtool_reads_the_page(settings: PageSettings) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")

    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=page(settings, *METRICS).encode(),
        capture_output=True,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
