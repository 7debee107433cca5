"""NVIDIA's own tools: their output formats, and what it says of a node.

No output here was recorded on a GPU. The texts were written after the source code that prints them: NVIDIA/DCGM dcgmi/Diag.cpp
(3.3 and 4.x) and nvvs/include/NvvsCommon.h (2.x), NVIDIA/nvbandwidth json_output.cpp, NVIDIA/nccl-tests src/common.cu.
"""

import json
from typing import Any

import pytest

from detectors.formats.dcgm_diag import DiagStatus, parse_dcgm_diag
from detectors.formats.nccl_tests import parse_nccl_tests
from detectors.formats.nvbandwidth import parse_nvbandwidth
from detectors.preflight import levels
from detectors.preflight.levels import FlightLevel, FlightStep, NodeParts, plan_round
from detectors.preflight.tools import NvidiaTool, read_tool, runs_of
from detectors.preflight.verdicts import CheckStanding
from rankmend.errors import SourceError

ALL = {tool: f"/usr/bin/{tool.value}" for tool in NvidiaTool}
FOLDERS = (
    levels.TestedStorage("/var/tmp", "disk", 1),
    levels.TestedStorage("/c", "checkpoints", 1),
)


def dcgm(root: str, results: list[dict[str, Any]], **more: Any) -> str:
    tests = [{"name": "Memory", "results": results}]
    table = {"version": "3.3.5", "test_categories": [{"category": "Hardware", "tests": tests}]}
    return "Successfully ran diagnostic.\n" + json.dumps({root: {**table, **more}})


def test_results_of_dcgm_3_name_the_gpu_and_the_severity() -> None:
    warning = {"warning": "GPU 1: 3 errors", "error_id": 5, "error_severity": 2}
    rows = [
        {"gpu_id": "0", "status": "Pass"},
        {"gpu_id": "1", "status": "Fail", "warnings": [warning]},
    ]

    one, two = parse_dcgm_diag(dcgm("DCGM GPU Diagnostic", rows))

    assert (one.device, one.status) == ("gpu 0", DiagStatus.PASS)
    assert (two.device, two.status, two.severities) == ("gpu 1", DiagStatus.FAIL, (2,))
    assert two.texts == ("GPU 1: 3 errors",)


@pytest.mark.parametrize(
    ("row", "device", "status"),
    [
        ({"gpu_ids": "0,1", "status": "PASS"}, "gpu 0,1", DiagStatus.PASS),  # DCGM 2
        ({"gpu_ids": "0", "status": "SKIPPED"}, "gpu 0", DiagStatus.SKIP),
        ({"entity_group": "GPU", "entity_id": 3, "status": "Warn"}, "gpu 3", DiagStatus.WARN),  # 4
        ({"cpu_id": "1", "status": "Fail"}, "cpu 1", DiagStatus.FAIL),
        ({"status": "Skip"}, "node", DiagStatus.SKIP),
    ],
)
def test_results_of_other_versions_are_read(
    row: dict[str, Any], device: str, status: DiagStatus
) -> None:
    (result,) = parse_dcgm_diag(dcgm("DCGM Diagnostic", [row]))

    assert (result.device, result.status) == (device, status)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Error: unable to establish a connection", "printed no JSON"),
        ('{"a": 1}', "no table of results in"),
        ('{"DCGM GPU Diagnostic": {"runtime_error": "busy"}}', "busy"),
        ('{"DCGM GPU Diagnostic": {"version": "4"}}', "it ran no test"),
    ],
)
def test_output_that_is_no_diagnosis_is_silence_and_accuses_nobody(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_dcgm_diag(text)
    (verdict,) = read_tool(NvidiaTool.DCGM, text, "H100").verdicts
    assert verdict.standing is CheckStanding.SILENT


def test_a_failed_diagnosis_fails_the_node_with_dcgms_words() -> None:
    warning = {"warning": "row remap failed", "error_severity": 2}
    text = dcgm(
        "DCGM Diagnostic",
        [{"entity_id": 1, "entity_group": "GPU", "status": "Fail", "warnings": [warning]}],
    )

    (verdict,) = read_tool(NvidiaTool.DCGM, text, "H100").verdicts

    assert (verdict.standing, verdict.part) == (CheckStanding.FAILED, "gpu 1")
    assert (verdict.reason, verdict.action) == ("Memory: row remap failed", "replace")


def test_a_diagnosis_that_skipped_everything_is_no_pass() -> None:
    text = dcgm("DCGM Diagnostic", [{"gpu_id": "0", "status": "Skip"}])

    assert read_tool(NvidiaTool.DCGM, text, "").verdicts[0].standing is CheckStanding.SKIPPED


BANDWIDTH = {
    "nvbandwidth": {
        "CUDA Runtime Version": 12040,
        "Driver Version": "550.54.15",
        "version": "v0.5",
        "testcases": [
            {
                "name": "host_to_device_memcpy_ce",
                "status": "Passed",
                "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
                "bandwidth_matrix": [["55.12", "55.3"]],
                "sum": 110.42,
            },
            {
                "name": "device_to_device_memcpy_read_ce",
                "status": "Passed",
                "bandwidth_matrix": [["N/A", "370.5"], ["371.25", "N/A"]],
                "sum": 741.75,
            },
            {"name": "device_to_device_memcpy_write_sm", "status": "Waived"},
            {"name": "host_to_device_memcpy_sm", "status": "Error", "error": "an illegal address"},
        ],
    }
}


def test_bandwidths_of_nvbandwidth_become_figures_by_test_and_device() -> None:
    found = read_tool(NvidiaTool.NVBANDWIDTH, json.dumps(BANDWIDTH), "H100")

    assert [(one.part, one.value) for one in found.figures] == [
        ("cuda:0", 55.12e9),
        ("cuda:1", 55.3e9),
        ("cuda:0-cuda:1", 370.5e9),
        ("cuda:1-cuda:0", 371.25e9),
    ]
    assert found.figures[0].model == "H100, host_to_device_memcpy_ce"
    (silent,) = found.verdicts
    assert silent.reason == "host_to_device_memcpy_sm: an illegal address"


@pytest.mark.parametrize(
    "text", ["", "CUDA error", "[]", '{"nvbandwidth": 3}', '{"nvbandwidth": {}}']
)
def test_what_nvbandwidth_never_prints_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="nvbandwidth"):
        parse_nvbandwidth(text)


NCCL = """# nThread 1 nGpus 8 minBytes 1073741824 maxBytes 2147483648 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  41 on    gpu-1 device  0 [0x18] NVIDIA H100 80GB HBM3
gpu-1:41:41 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   4012.7  267.58  468.27      {wrong}   4009.9  267.77  468.60      0
  2147483648     536870912     float     sum      -1   7845.1  273.74  479.04    N/A   7850.2  273.56  478.73    N/A
# Out of bounds values : {bounds}
# Avg bus bandwidth    : 473.66
#
"""


def test_rows_of_nccl_tests_are_read_between_ncclss_own_log() -> None:
    found = parse_nccl_tests(NCCL.format(wrong=0, bounds="0 OK"))

    assert [row.size_bytes for row in found.rows] == [1 << 30, 2 << 30]
    assert [row.wrong for row in found.rows] == [0, None]
    assert found.best_bus_bytes_per_s == 479.04e9
    assert found.wrong == 0


@pytest.mark.parametrize(("wrong", "bounds"), [(3, "3 FAILED"), (0, "3 FAILED"), (3, "0 OK")])
def test_a_wrong_element_fails_the_node(wrong: int, bounds: str) -> None:
    found = read_tool(NvidiaTool.NCCL_TESTS, NCCL.format(wrong=wrong, bounds=bounds), "H100")

    assert found.bits[0].bad == 3


def test_a_run_of_nccl_tests_that_failed_is_silence() -> None:
    text = "gpu-1: Test NCCL failure common.cu:958 'unhandled cuda error'\n"

    (verdict,) = read_tool(NvidiaTool.NCCL_TESTS, text, "H100").verdicts

    assert verdict.standing is CheckStanding.SILENT


def test_a_rowless_gather_without_an_operation_is_read() -> None:
    row = "  1048576  32768  float  none  -1  61.2  17.12  14.98  0  60.9  17.21  15.06  0"

    assert parse_nccl_tests(row).rows[0].bus_bytes_per_s == 15.06e9


@pytest.mark.parametrize("level", FlightLevel)
@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_all_tools_at_their_deadlines_fit_the_bound(level: FlightLevel, gpus: int) -> None:
    steps = [
        FlightStep(tool.value, (), run.limit_s, 0.0, run.words, tool.value)
        for tool, run in runs_of(level, ALL, gpus).items()
    ]

    plan_round(level, NodeParts(gpus, FOLDERS, True), tools=steps)


def test_a_tool_that_is_not_there_is_not_run() -> None:
    assert runs_of(FlightLevel.JOB, {}, 8) == {}
    assert runs_of(FlightLevel.QUICK, ALL, 8) == {}
    words = runs_of(FlightLevel.JOB, ALL, 8)[NvidiaTool.NCCL_TESTS].words
    assert words[0] == "/usr/bin/all_reduce_perf"
    assert words[-2:] == ("-g", "8")
