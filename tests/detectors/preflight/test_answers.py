"""What the lines and the end of a step's process say."""

from typing import Any

import pytest

from detectors.preflight.answers import StepEndKind, judge_end, read_answers
from detectors.preflight.figures import LoadFigure
from detectors.preflight.verdicts import CheckStanding


def test_figures_of_hosts_are_bound_to_the_host_and_those_of_gpus_are_not() -> None:
    lines: list[dict[str, Any]] = [
        {"figure": "memory_copy_bytes_per_s", "value": 2, "part": "memory", "model": "numpy 2"},
        {"figure": "gpu_memory_size_bytes", "value": 3, "part": "cuda:0", "model": "H100"},
        {"model": "ext4 at /", "part": "disk"},
        {"figure": "disk_sync_s", "value": 1, "part": "disk", "model": ""},
    ]

    assert read_answers(lines, "host A").figures == [
        LoadFigure("memory_copy_bytes_per_s", 2.0, "memory", "host A, numpy 2"),
        LoadFigure("gpu_memory_size_bytes", 3.0, "cuda:0", "H100"),
        LoadFigure("disk_sync_s", 1.0, "disk", "host A, ext4 at /"),
    ]


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), -1.0])
def test_a_figure_that_is_no_number_is_left_out(value: object) -> None:
    lines = [{"figure": "disk_sync_s", "value": value, "part": "disk"}]

    assert read_answers(lines, "").figures == []


def test_a_missing_package_accuses_nobody() -> None:
    lines = [{"error": "No module named 'torch'", "type": "ModuleNotFoundError", "load": "gemm"}]

    assert read_answers(lines, "").verdicts[0].standing is CheckStanding.SKIPPED


def test_a_load_that_is_called_as_its_part_is_named_once() -> None:
    lines = [{"begin": "memory", "part": "memory"}]

    verdict = judge_end("host", StepEndKind.KILLED, -9, lines, "", "", 15)

    assert verdict is not None
    assert verdict.reason == "memory gave no answer within 15 s"


def test_a_process_that_can_not_be_killed_is_reported_with_what_it_did_and_where_it_waits() -> None:
    lines = [{"begin": "disk", "part": "checkpoints"}]

    verdict = judge_end("checkpoints", StepEndKind.HUNG, None, lines, "D in fuse_wait", "", 9)

    assert verdict is not None
    assert verdict.standing is CheckStanding.HUNG
    assert (
        verdict.reason
        == "disk checkpoints can't be killed: it waits in the kernel (D in fuse_wait)"
    )


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        (StepEndKind.KILLED, -9, "gemm cuda:0 gave no answer within 9 s"),
        (StepEndKind.ENDED, -7, "gemm cuda:0 ended with signal 7: Bus error"),
        (StepEndKind.ENDED, 3, "gemm cuda:0 ended with exit code 3: Bus error"),
    ],
)
def test_another_bad_end_says_that_nobody_knows(
    kind: StepEndKind, status: int, reason: str
) -> None:
    lines = [{"begin": "memory"}, {"end": "memory"}, {"begin": "gemm", "part": "cuda:0"}]

    verdict = judge_end("cuda:0", kind, status, lines, "", "a\nBus error\n", 9)

    assert verdict is not None
    assert (verdict.standing, verdict.reason) == (CheckStanding.SILENT, reason)


@pytest.mark.parametrize(
    ("standing", "action"), [("failed", "drain"), ("passed", "none"), ("silent", "none")]
)
def test_a_probe_that_judges_by_itself_is_believed(standing: str, action: str) -> None:
    line = {"verdict": standing, "name": "network", "part": "network", "text": "t", "advice": "a"}

    (verdict,) = read_answers([line, {"verdict": "glorious"}], "host").verdicts

    assert (verdict.standing.value, verdict.action) == (standing, action)
    assert (verdict.name, verdict.part, verdict.reason, verdict.advice) == ("network", "network", "t", "a")  # fmt: skip
