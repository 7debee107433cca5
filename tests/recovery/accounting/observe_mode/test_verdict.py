"""Whether a decision that was not taken was right: each rule, at its edge."""

import csv
import io
from dataclasses import replace

import pytest

from recovery.accounting.observe_mode.decision import AttemptRun, Decision, JobHistory
from recovery.accounting.observe_mode.rows import CSV_HEAD, csv_rows, plain
from recovery.accounting.observe_mode.verdict import (
    DRAIN_S,
    PROVED_S,
    HindsightVerdict,
    JudgedDecision,
    NodeDrained,
    judge,
)
from recovery.local.report.time_page import render_page

AT = 10_000.0
JOB = "6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10"
MOVE = Decision(
    AT, "job", "move", "observe", "GPU lost", JOB, "llama", "6f1c1b52-1", ("n1",), attempt=1,
    fault_unix_s=AT - 10,
)  # fmt: skip
FIRST = AttemptRun(1, ("n1", "n2"), 0.0, 100.0, 16)
HISTORY = JobHistory(JOB, "llama", (FIRST,), newest_unix_s=AT)


def next_run(*nodes: str, at_s: float = AT + 600) -> AttemptRun:
    return AttemptRun(2, nodes, at_s, at_s + 60, 16)


def judged(
    history: JobHistory,
    *drained: NodeDrained,
    decision: Decision = MOVE,
    others: tuple[JobHistory, ...] = (),
) -> JudgedDecision:
    return judge(decision, [history, *others], drained)


def test_right_if_a_person_drained_the_node_within_a_week() -> None:
    def drained(after_s: float, node: str = "n1") -> HindsightVerdict:
        return judged(HISTORY, NodeDrained(AT + after_s, node, "ann", "Slurm")).verdict

    assert drained(DRAIN_S) is HindsightVerdict.RIGHT
    assert drained(DRAIN_S + 1) is HindsightVerdict.UNKNOWN
    assert drained(-1) is HindsightVerdict.UNKNOWN, "it was drained before"
    assert drained(1, "n2") is HindsightVerdict.UNKNOWN


def test_right_if_the_job_then_trained_without_the_node_under_whatever_id() -> None:
    again = replace(HISTORY, attempts=(FIRST, next_run("n2", "n3")))
    resubmitted = JobHistory("other", "llama", (next_run("n2", "n3"),))
    never_trained = replace(next_run("n2", "n3"), verified_unix_s=None)

    assert judged(again).verdict is HindsightVerdict.RIGHT
    other = judged(HISTORY, others=(resubmitted,))
    assert other.verdict is HindsightVerdict.RIGHT
    assert "submitted again" in other.instead
    namesake = replace(resubmitted, name="else")
    assert judged(HISTORY, others=(namesake,)).verdict is HindsightVerdict.UNKNOWN
    failed = replace(HISTORY, attempts=(FIRST, never_trained))
    assert judged(failed).verdict is HindsightVerdict.UNKNOWN


def test_wrong_if_the_job_trained_on_with_the_node_for_an_hour_and_nothing_blamed_it() -> None:
    run = next_run("n1", "n2")
    began_s = run.verified_unix_s or 0.0

    def with_end(end_s: float, *blamed: tuple[float, str]) -> HindsightVerdict:
        history = replace(HISTORY, attempts=(FIRST, run), newest_unix_s=end_s, blamed=blamed)
        return judged(history).verdict

    assert with_end(began_s + PROVED_S) is HindsightVerdict.WRONG
    assert with_end(began_s + PROVED_S - 1) is HindsightVerdict.UNKNOWN
    assert with_end(began_s + PROVED_S, (began_s + 9, "n1")) is HindsightVerdict.UNKNOWN
    assert with_end(began_s + PROVED_S, (AT - 1, "n1")) is HindsightVerdict.WRONG


@pytest.mark.parametrize(
    ("steps_after", "verdict"),
    [(90, HindsightVerdict.WRONG), (89, HindsightVerdict.UNKNOWN)],
)
def test_wrong_if_the_same_attempt_went_on_at_full_speed(
    steps_after: int, verdict: HindsightVerdict
) -> None:
    progress = ((AT - 110, 0), (AT - 10, 100), (AT + 100, 101), (AT + 200, 101 + steps_after))
    run = replace(FIRST, progress=progress)

    assert judged(replace(HISTORY, attempts=(run,))).verdict is verdict


def test_a_slow_rank_that_was_no_longer_slow_was_no_ground_to_move_it() -> None:
    slow = replace(MOVE, slow_ranks=(3,))

    def ended(attempt: int, rank: int) -> HindsightVerdict:
        history = replace(HISTORY, slow_ended=((AT + 5, attempt, rank),))
        return judged(history, decision=slow).verdict

    assert ended(1, 3) is HindsightVerdict.WRONG
    assert ended(1, 4) is HindsightVerdict.UNKNOWN
    assert ended(2, 3) is HindsightVerdict.UNKNOWN


def test_a_restart_in_place_was_right_if_people_started_the_job_again() -> None:
    restart = replace(MOVE, action="restart_in_place", nodes=())

    assert judged(HISTORY, decision=restart).verdict is HindsightVerdict.UNKNOWN
    again = replace(HISTORY, attempts=(FIRST, next_run("n1", "n2")))
    assert judged(again, decision=restart).verdict is HindsightVerdict.RIGHT


def test_what_would_have_been_saved_is_from_own_recoveries_else_from_all_else_absent() -> None:
    again = replace(HISTORY, attempts=(FIRST, next_run("n2", "n3")))
    other = JobHistory("other", "else", repairs_s=(100.0,))

    assert judged(again).saved_s is None
    assert judged(again).took_s == 670.0
    by_all = judged(again, others=(other,))
    assert (by_all.saved_s, by_all.basis) == (570.0, "median of 1 recovery of all jobs")
    own = judged(replace(again, repairs_s=(30.0, 70.0, 50.0)), others=(other,))
    assert (own.saved_s, own.basis) == (620.0, "median of this job's 3 recoveries")
    assert own.saved_gpu_hours == pytest.approx(16 * 620 / 3600)
    slower = judged(replace(again, repairs_s=(9_999.0,)))
    assert slower.saved_s == 0.0, "never less than nothing"
    wrong = judged(replace(HISTORY, repairs_s=(30.0,)))
    assert wrong.saved_s is None, "only of what was right"


def test_a_job_with_a_hostile_name_harms_neither_a_spreadsheet_nor_the_page() -> None:
    name = '=HYPERLINK("http://x")<script>alert(1)</script>\x1b[2J'
    one = judged(replace(HISTORY, name=name), decision=replace(MOVE, job=name))

    rows = list(
        csv.reader(io.StringIO("\n".join(",".join(map(repr, row)) for row in csv_rows([one]))))
    )
    page = render_page([], AT, "1.0", [one])

    assert len(rows) == 2
    cells = dict(zip(CSV_HEAD, list(csv_rows([one]))[1], strict=True))
    assert cells["job"].startswith("'=")
    assert "\x1b" not in cells["job"]
    assert "<script>" not in page
    assert "\x1b" not in page
    assert plain([one])["total"]["unknown"] == 1
