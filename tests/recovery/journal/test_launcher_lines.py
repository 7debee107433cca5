"""What launchers print of a job's journal, wherever its controller is."""

from dataclasses import replace

import pytest

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.journal.attempt_records import AttemptVerified
from recovery.journal.incident_machine import Event, Outcome
from recovery.journal.incident_records import (
    Decided,
    Failure,
    IncidentEvent,
    IncidentOpened,
    Plan,
    PlanStep,
    PlanWaits,
    WaitCause,
    WaitsFor,
)
from recovery.journal.job_records import JobEnded, JobOpened, JobOutcome, OutcomeKind
from recovery.journal.limits import Policy
from recovery.journal.narration.launcher_lines import LINES_MAX, LauncherLines, next_act, unprinted
from recovery.journal.narration.narrator import details
from recovery.journal.node_records import Joined, NodesJoined
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import LauncherLine

VERIFIED = AttemptVerified(2, is_comparable=True, telling_ranks=(0, 1))


def opened(node: str = "n2") -> IncidentOpened:
    finding = Finding(
        kind=Kind.RANK_FAILED,
        severity=Severity.CRITICAL,
        blame=Blame.RANK,
        summary="rank 2 failed first",
        job_id="job-1",
        attempt=1,
        node=node,
        ranks=(2,),
        victims=(),
        since_age_s=0.5,
        symptom=Symptom(SymptomKind.KILLED, "SIGKILL"),
    )
    failure = Failure(1, finding, 137, 2, None, 7, is_relative=False, telling_ranks=(0, 1))
    return IncidentOpened("ab-1", failure, 0.5, 100, Policy())


def texts(lines: LauncherLines, *records: Record) -> list[str | None]:
    kept = [
        lines.note(Entry(number, 1.0, 1.0, "boot", record))
        for number, record in enumerate(records, 1)
    ]
    return [None if line is None else line.text for line in kept]


def test_an_incident_names_its_node_and_its_end_names_the_command_that_explains_it() -> None:
    lines = LauncherLines(names_nodes=True)

    assert texts(lines, opened(), VERIFIED) == [
        "incident ab-1: rank 2 failed first (blamed: rank), on n2",
        "attempt 2 makes progress on 2 ranks; recovered: `rankmend why ab-1`",
    ]


def test_an_attempt_that_no_incident_precedes_recovers_nothing() -> None:
    first = texts(LauncherLines(), VERIFIED)
    cancel = IncidentEvent(Event("ab-1", Outcome.CANCEL, "ab-1", "a person's"))
    cancelled = texts(LauncherLines(), opened(), cancel, VERIFIED)
    again = texts(LauncherLines(), opened(), VERIFIED, VERIFIED)

    plain = "attempt 2 makes progress on 2 ranks"
    assert (first[-1], cancelled[-1], again[-1]) == (plain, plain, plain)


def test_one_machine_is_not_named_and_nobody_reads_who_joined() -> None:
    joined = NodesJoined((Joined("n1", "id", "boot", 2),))

    assert texts(LauncherLines(), joined, opened()) == [
        None,
        "incident ab-1: rank 2 failed first (blamed: rank)",
    ]


def test_giving_up_is_called_that_and_says_what_to_do_next() -> None:
    outcome = JobOutcome(OutcomeKind.ESCALATED, 1, "3 restarts without progress", "ab-1")

    (text,) = texts(LauncherLines(), JobEnded(outcome, is_empty=True))

    assert text == (
        "gave up: 3 restarts without progress\n"
        "next: remove the cause, then start the same command again (--reset-budgets allows all restarts anew); "
        "the evidence: `rankmend why ab-1`"
    )
    assert next_act(JobOutcome(OutcomeKind.DONE, 0, "all ended")) == ""


def test_a_launcher_gets_the_lines_behind_its_last_and_prints_none_twice() -> None:
    lines = LauncherLines()
    texts(lines, JobOpened("job-1", "train"), opened(), VERIFIED)

    assert [line.number for line in lines.after(0)] == [2, 3]
    assert [line.number for line in lines.after(2)] == [3]
    assert lines.after(3) == []
    assert lines.after(None) == [], "a launcher that prints none"
    late = [LauncherLine(3, "c"), LauncherLine(2, "b")]
    assert [line.text for line in unprinted(late, 1)] == ["b", "c"]
    assert [line.text for line in unprinted(late, 2)] == ["c"]


def test_only_the_newest_lines_are_kept_and_long_ones_are_cut() -> None:
    lines = LauncherLines()
    outcome = JobOutcome(OutcomeKind.STOPPED, 1, "x" * 5000)
    texts(lines, *[JobEnded(outcome, is_empty=True)] * (LINES_MAX + 1))

    assert [line.number for line in lines.newest] == list(range(2, LINES_MAX + 2))
    assert len(lines.newest[0].text) == 1004


def test_a_stall_that_points_at_no_rank_names_no_node() -> None:
    failure = opened("a").failure
    finding = replace(failure.finding, blame=Blame.NOBODY, ranks=(), summary="no rank advances")
    record = replace(opened("a"), failure=replace(failure, finding=finding))

    (text,) = texts(LauncherLines(names_nodes=True), record)

    assert text == "incident ab-1: no rank advances (blamed: nobody)"


def test_a_node_whose_launcher_ended_is_blamed_as_a_node_and_not_as_a_rank() -> None:
    failure = opened("b").failure
    finding = replace(failure.finding, kind=Kind.HOST, summary="b: its launcher ended")
    record = replace(opened("b"), failure=replace(failure, finding=finding))

    (text,) = texts(LauncherLines(names_nodes=True), record)

    assert text == "incident ab-1: b: its launcher ended (blamed: node), on b"
    assert details(record)[0] == "blamed: node = this node, and all on it"


def test_a_failed_try_says_its_next_decision_once() -> None:
    made = Plan(PlanStep.RESTART_IN_PLACE, "the ranks have stalled: restart them in place", ())
    failed = IncidentEvent(Event("ab-1", Outcome.FAILED, "ab-1/1/verifying", made.reason))
    timed_out = IncidentEvent(Event("ab-1", Outcome.FAILED, "ab-1/2/restoring", "no start in 90 s"))

    said = texts(LauncherLines(), Decided("ab-1", 2, made), failed, timed_out)

    assert said == [f"decision: {made.reason}", None, "try 2, restoring: no start in 90 s"]


@pytest.mark.parametrize(
    ("waits_for", "cause", "ends"),
    [
        (
            WaitsFor.LEAVE,
            WaitCause.APPROVAL,
            "; a person decides: `rankmend approve ab-1`, or reject",
        ),
        (WaitsFor.LEAVE, WaitCause.PAUSED, ": the job is held"),
        (WaitsFor.LEAVE, WaitCause.CHECKPOINT, ": the job is held"),  # its reason names the command
        (WaitsFor.NODES, WaitCause.NODES, ": the job is held"),
    ],
)
def test_a_plan_that_waits_for_a_person_says_what_to_type(
    waits_for: WaitsFor, cause: WaitCause, ends: str
) -> None:
    made = Plan(PlanStep.RESTART_IN_PLACE, "restart", ())

    (text,) = texts(
        LauncherLines(), PlanWaits("ab-1", 1, made, "the job is held", waits_for, cause)
    )

    assert text is not None
    assert text.endswith(ends)
