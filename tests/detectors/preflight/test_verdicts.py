"""What figures and comparisons say of a node."""

import pytest

from detectors.preflight.baseline import Baseline, BaselineSample
from detectors.preflight.figures import LoadFigure
from detectors.preflight.health import judge_health
from detectors.preflight.verdicts import (
    BitCheck,
    CheckStanding,
    FlightOutcome,
    judge_bits,
    judge_figures,
    outcome_of,
)

GEMM = "gpu_gemm_bfloat16_flops_per_s"
CPU = "cpu_hash_bytes_per_s"


def fleet(name: str, value: float) -> Baseline:
    return Baseline({(name, "M"): tuple(BaselineSample(n, 0.0, value) for n in "abcde")})


def test_a_slow_node_is_failed_with_figure_baseline_limit_and_cause() -> None:
    figures = [LoadFigure(CPU, 3e8, "cpu", "M")]

    (verdict,) = judge_figures(figures, "me", fleet(CPU, 1e9), {"cpu_throttled_s": 1.5})

    assert verdict.standing is CheckStanding.FAILED
    assert (verdict.value, verdict.baseline, verdict.limit) == (3e8, 1e9, 8e8)
    assert verdict.reason == (
        "300 MB/s; 5 nodes (5 samples): median 1 GB/s, limit 800 MB/s; "
        "a CPU quota held it back for 1.5 s"
    )


def test_without_a_baseline_the_verdict_abstains_and_says_what_is_missing() -> None:
    (verdict,) = judge_figures([LoadFigure(CPU, 3e8, "cpu", "M")], "me", Baseline({}), {})

    assert verdict.standing is CheckStanding.ABSTAINED
    assert "0 other nodes and 0 samples of its own: too few to judge" in verdict.reason
    assert outcome_of([verdict]) is FlightOutcome.PASSED


def test_the_slow_gpu_of_a_node_is_named_by_its_neighbours_alone() -> None:
    figures = [LoadFigure(GEMM, 100.0 - 30 * (n == 3), f"cuda:{n}", "M") for n in range(8)]

    verdicts = judge_figures(figures, "me", Baseline({}), {})

    assert [one.part for one in verdicts if one.standing is CheckStanding.FAILED] == ["cuda:3"]
    assert verdicts[3].reason.endswith(
        "7 like parts of this node: median 100 FLOP/s, limit 90 FLOP/s"
    )


def test_of_two_gpus_neither_is_the_odd_one() -> None:
    figures = [LoadFigure(GEMM, value, f"cuda:{n}", "M") for n, value in enumerate((100.0, 10.0))]

    verdicts = judge_figures(figures, "me", Baseline({}), {})

    assert {one.standing for one in verdicts} == {CheckStanding.ABSTAINED}


def test_one_wrong_result_fails_the_node_whatever_its_speed() -> None:
    (verdict,) = judge_bits(
        [BitCheck("gemm_bits", "cuda:1", 1, "of 9 products differ", "bfloat16")]
    )

    assert verdict.standing is CheckStanding.FAILED
    assert verdict.action == "replace"


def test_the_device_whose_bits_differ_from_the_others_is_named() -> None:
    checks = [
        BitCheck("gemm_bits", f"cuda:{n}", 0, "", "float32", "ffff" if n == 2 else "aaaa")
        for n in range(4)
    ]

    failed = [one for one in judge_bits(checks) if one.standing is CheckStanding.FAILED]

    assert [one.part for one in failed] == ["cuda:2 float32"]


def test_two_devices_that_disagree_accuse_the_node_and_neither_device() -> None:
    checks = [BitCheck("gemm_bits", f"cuda:{n}", 0, "", "float32", f"{n}") for n in range(2)]

    failed = [one for one in judge_bits(checks) if one.standing is CheckStanding.FAILED]

    assert len(failed) == 1
    assert "no majority" in failed[0].reason


def finding(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "id": "xid/GPU-1",
        "severity": "critical",
        "action": "reset_gpu",
        "is_silenced": False,
        "summary": "XID 95 on GPU 0",
        "reason": "",
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("found", "standing"),
    [
        (finding(), CheckStanding.FAILED),
        (finding(severity="warning"), CheckStanding.PASSED),
        (finding(action="watch"), CheckStanding.PASSED),
        (finding(is_silenced=True), CheckStanding.PASSED),
    ],
)
def test_a_finding_counts_as_it_does_in_slurms_prolog(
    found: dict[str, object], standing: CheckStanding
) -> None:
    page = {"findings": [found], "silent": [], "checks": 114, "asked": "a scan"}

    (verdict,) = judge_health(page, before=())

    assert verdict.standing is standing


def test_a_source_that_is_closed_to_the_user_is_skipped_and_one_that_is_stuck_is_not() -> None:
    closed = finding(check="collector_broken", device="kernel_log", severity="warning")
    page = {"findings": [closed], "silent": ["gpu", "kernel_log"], "checks": 114, "asked": "a scan"}

    user = judge_health(page, before=(), may_read_all=False)
    alone = judge_health({**page, "silent": ["kernel_log"]}, before=(), may_read_all=False)
    (root,) = judge_health(page, before=())

    assert [one.standing for one in user] == [CheckStanding.SKIPPED, CheckStanding.SILENT]
    assert [one.standing for one in alone] == [CheckStanding.SKIPPED, CheckStanding.PASSED]
    assert root.reason == "no answer from gpu, kernel_log"


def test_a_finding_that_came_with_the_load_says_so() -> None:
    page = {"findings": [finding()], "silent": ["gpu"], "checks": 114, "asked": "a scan"}

    new, silent = judge_health(page, before=())
    (old, _silent) = judge_health(page, before=("xid/GPU-1",))

    assert new.reason == "XID 95 on GPU 0, appeared under load"
    assert old.reason == "XID 95 on GPU 0"
    assert silent.standing is CheckStanding.SILENT
