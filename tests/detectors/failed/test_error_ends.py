"""Ends by an error, from public reports: each has its class, and no node is blamed for what isn't a node's."""

import pytest

from detectors.failed.error_classes import classify, read_known_end
from detectors.failed.error_text import (
    parse_error,
    parse_record,
    read_beside,
    read_exit_text,
    read_printed,
)
from detectors.failed.failed_ranks import RankEnd, detect_failed
from detectors.finding import Blame, Finding
from tests.support.error_ends import ENDS as BY_LIBRARIES
from tests.support.error_ends import PID, End
from tests.support.tool_ends import TOOL_ENDS

ENDS = (*BY_LIBRARIES, *TOOL_ENDS)
NODES_OWN = {"device", "killer"}


def judged(end: End) -> Finding:
    """Return the finding about rank 1 of 4, as launcher and controller judge it."""
    record = parse_record(end.record, {PID})
    error = read_printed(record, end.lines) if record else parse_error(end.lines)
    is_by_text = end.exit_code == 1 and error is None
    text = read_exit_text(end.lines) if is_by_text else ""
    words = read_known_end(error, end.lines[-20:], beside=read_beside(end.lines), exit_text=text)
    ends = [RankEnd(1, 1.0, end.exit_code, None, words=words)]
    finding = detect_failed(ends, job_id="j", attempt=1, node="n", world_size=4)
    assert finding is not None
    return finding


@pytest.mark.parametrize("end", ENDS, ids=[end.source for end in ENDS])
def test_each_end_has_its_class_and_blame(end: End) -> None:
    finding = judged(end)

    told = (finding.symptom.kind.value, finding.blame)
    assert told == (end.cause.value, end.blame), finding.summary
    assert end.line in finding.summary


PRINTED = [end for end in ENDS if any(line.endswith("last):") for line in end.lines)]


@pytest.mark.parametrize("end", PRINTED, ids=[end.source for end in PRINTED])
def test_nothing_printed_behind_an_error_changes_its_class(end: End) -> None:
    noise = ["Exception in thread T-1:", "Traceback (most recent call last):",
             '  File "t.py", line 3, in run', "RuntimeError: CUDA error: driver shutting down"]  # fmt: skip
    plain, noisy = parse_error(end.lines), parse_error([*end.lines, *noise])

    assert (plain and classify(plain)) == (noisy and classify(noisy))


def test_no_node_is_blamed_for_an_error_of_code_data_or_a_service() -> None:
    blamed = [end.source for end in ENDS if judged(end).blame is Blame.RANK]

    assert set(blamed) <= {end.source for end in ENDS if end.culprit in NODES_OWN}


def test_corpus_holds_150_ends_of_every_kind() -> None:
    assert len(ENDS) >= 150
    assert len({end.source for end in ENDS}) == len(ENDS)
    kinds = {"code", "data", "service", "storage", "device", "memory", "peer", "person"}
    assert kinds <= {end.culprit for end in ENDS}
