"""What the agent shows of the newest pre-flight check."""

from pathlib import Path

import pytest

from agent.collectors.preflight import PreflightCollector
from agent.preflight.result_file import NEWEST, FlightResult, save_result
from detectors.preflight.verdicts import CheckStanding, CheckVerdict, FlightOutcome
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, SourceError


def save(folder: Path, outcome: FlightOutcome, *checks: CheckVerdict) -> None:
    now_s = SystemClock().unix_s()
    save_result(folder, FlightResult("me", "quick", outcome, now_s, 9.5, 60.0, 1, checks))


def values(collector: PreflightCollector) -> dict[str, float]:
    found = {}
    for metric in collector.collect():
        labels = ",".join(value for _name, value in metric.labels)
        found[f"{metric.name.removeprefix('rankmend_preflight_')} {labels}"] = metric.value
    return found


def test_what_failed_is_shown_until_a_check_passes(tmp_path: Path) -> None:
    collector = PreflightCollector(tmp_path, SystemClock())
    bad = CheckVerdict("gemm_bits float32", "cuda:1", CheckStanding.FAILED, "1 wrong")
    known = CheckVerdict("health", "xid/GPU-1", CheckStanding.FAILED, "a finding already")
    save(tmp_path, FlightOutcome.FAILED, bad, known)

    found = values(collector)
    assert found["passed quick"] == 0
    assert found["duration_seconds quick"] == 9.5
    assert [name for name in found if name.startswith("check_failed")] == [
        "check_failed gemm_bits float32,cuda:1"
    ]
    save(tmp_path, FlightOutcome.PASSED)

    found = values(collector)
    assert found["passed quick"] == 1
    assert not [name for name in found if name.startswith("check_failed")]


def test_a_node_that_was_never_checked_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        values(PreflightCollector(tmp_path, SystemClock()))


@pytest.mark.parametrize("content", ["", "[]", '{"rankmend_preflight": 1}'])
def test_a_broken_result_is_an_error_and_not_a_pass(tmp_path: Path, content: str) -> None:
    (tmp_path / NEWEST).write_text(content)

    with pytest.raises(SourceError, match=r"last\.json is not a result"):
        values(PreflightCollector(tmp_path, SystemClock()))
