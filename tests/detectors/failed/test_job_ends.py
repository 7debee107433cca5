"""Ends of whole jobs, labelled before they were judged: class, blame, what is done, and what counts against a node."""

from dataclasses import dataclass

import pytest

from detectors.failed.error_classes import (
    CLASSES,
    ErrorDecision,
    read_known_end,
)
from detectors.failed.error_rows import is_devices_own_word
from detectors.failed.error_text import (
    parse_error,
    parse_record,
    read_beside,
    read_exit_text,
    read_printed,
)
from detectors.failed.failed_ranks import RankEnd, detect_failed
from detectors.failed.said_error import FailureCause
from detectors.finding import Blame, Finding
from detectors.node.charges import (
    CHARGES,
    Beside,
    ChargeKind,
    Weight,
    read_crash_library,
    weigh,
)
from tests.support.error_ends import PID
from tests.support.job_ends import JOB_ENDS, JobEnd, OneEnd

NODES = ("n1", "n1", "n2", "n2")


@dataclass(frozen=True)
class Said:
    """What is said of a job's end."""

    cause: str
    blame: Blame
    decision: ErrorDecision
    counts: bool
    charge: ChargeKind
    finding: Finding


def read_rank(rank: int, end: OneEnd) -> RankEnd:
    """Return a rank's end as its launcher reports it."""
    record = parse_record(end.record, {PID})
    error = read_printed(record, end.lines) if record else parse_error(end.lines)
    text = read_exit_text(end.lines) if end.exit_code == 1 and error is None else ""
    words = read_known_end(error, end.lines[-20:], beside=read_beside(end.lines), exit_text=text)
    return RankEnd(
        rank, end.age_s, end.exit_code, end.signal, end.by_launcher, end.oom_killed, words
    )


def judge(end: JobEnd) -> Said:
    ranks = [read_rank(rank, one) for rank, one in end.ends.items()]
    finding = detect_failed(ranks, job_id="j", attempt=1, node="n", world_size=4)
    assert finding is not None
    cause = FailureCause(finding.symptom.kind.value)
    named = finding.ranks and finding.blame not in (Blame.COMMUNICATION, Blame.USER)
    said = (finding.summary, finding.symptom.detail, *(one.text for one in finding.evidence))
    beside = Beside(
        end.has_alert,
        crash_library=read_crash_library(end.kernel),
        is_own_word=any(map(is_devices_own_word, said)),
    )
    charge = weigh(finding, {NODES[rank] for rank in finding.ranks}, beside)
    counts = bool(named) and CHARGES[charge].weight is Weight.ONE
    return Said(cause.value, finding.blame, CLASSES[cause].decision, counts, charge, finding)


@pytest.mark.parametrize("end", JOB_ENDS, ids=[end.source for end in JOB_ENDS])
def test_each_jobs_end_is_judged_as_it_was_labelled(end: JobEnd) -> None:
    said = judge(end)

    assert said.cause in {cause.value for cause in end.causes}, said.finding.summary
    assert said.blame in end.blames
    assert said.counts is end.counts
    decisions = {end.decision, *(CLASSES[cause].decision for cause in end.causes[1:])}
    assert said.decision in decisions
    assert end.ranks in (None, said.finding.ranks)


def test_no_node_is_charged_for_an_error_of_code_data_or_a_service() -> None:
    charged = [end.source for end in JOB_ENDS if judge(end).counts]

    assert charged == [end.source for end in JOB_ENDS if end.culprit == "device"]
