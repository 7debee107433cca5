"""Which plans of a journal count as not taken, from the records that a job's controller writes."""

from collections.abc import Sequence

import pytest

from detectors.finding import Severity
from recovery.accounting.observe_mode.decision import JobHistory, read_history
from recovery.journal.attempt_records import (
    AttemptStarted,
    AttemptVerified,
    Cause,
    Choice,
    Placement,
)
from recovery.journal.incident_machine import Event, IncidentState, Outcome, Phase, answer
from recovery.journal.incident_records import (
    Decided,
    Failure,
    IncidentEvent,
    IncidentOpened,
    Plan,
    PlanWaits,
    WaitCause,
    WaitsFor,
)
from recovery.journal.job_records import JobOpened, PersonActed
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.records import Entry, Record
from recovery.messages.outside import PersonAct, PersonCommand
from tests.support.troubles import FINDING, JOB

CHOICE = Choice(True, None, "from the beginning")
PLAN = Plan(PlanStep.MOVE, "leave n1: GPU lost", FINDING.evidence, without=("n1",))
STATE = IncidentState("6f1c1b52-1", 3)
OPENED = IncidentOpened(
    "6f1c1b52-1", Failure(1, FINDING, 1, 0, None, None, False, ()), 5.0, None, Policy()
)
START: tuple[Record, ...] = (
    JobOpened(JOB, "llama"),
    AttemptStarted(
        1, Cause.FIRST, CHOICE, placement=(Placement("n1", (0, 1)), Placement("n2", (2, 3)))
    ),
    AttemptVerified(1, True, (0,)),
    OPENED,
)


def waits(cause: WaitCause, waits_for: WaitsFor = WaitsFor.LEAVE) -> PlanWaits:
    return PlanWaits("6f1c1b52-1", 1, PLAN, "why", waits_for, cause)


def event(outcome: Outcome) -> IncidentEvent:
    made: Event = answer(STATE, outcome, "because")
    return IncidentEvent(made)


def history(*records: Record) -> JobHistory:
    written: Sequence[Record] = (*START, *records)
    return read_history(
        [Entry(n, 1000.0 + n, float(n), "boot", one) for n, one in enumerate(written, 1)]
    )


@pytest.mark.parametrize("outcome", [Outcome.ESCALATE, Outcome.CANCEL])
@pytest.mark.parametrize(
    "cause", [WaitCause.OBSERVE, WaitCause.DRY_RUN, WaitCause.APPROVAL, WaitCause.PAUSED]
)
def test_a_plan_that_waited_for_leave_until_its_end_was_not_taken(
    cause: WaitCause, outcome: Outcome
) -> None:
    (one,) = history(waits(cause), event(outcome)).decisions

    assert (one.action, one.why_not, one.nodes) == ("move", cause.value, ("n1",))
    assert (one.job, one.job_id, one.incident_id, one.attempt) == ("llama", JOB, "6f1c1b52-1", 1)
    assert one.fault_unix_s == 1004.0 - 5.0


def test_one_that_still_waits_counts_as_not_taken_so_far() -> None:
    assert len(history(waits(WaitCause.OBSERVE)).decisions) == 1


def test_one_that_was_approved_or_waited_for_nodes_was_taken_or_could_not_be() -> None:
    approved = history(
        waits(WaitCause.APPROVAL), Decided("6f1c1b52-1", 1, PLAN), event(Outcome.ACCEPTED)
    )

    assert approved.decisions == ()
    short = history(waits(WaitCause.NODES, WaitsFor.NODES), event(Outcome.ESCALATE))
    assert short.decisions == ()


def test_who_rejected_a_plan_is_said() -> None:
    command = PersonCommand(PersonAct.REJECT, "ann", "the node is fine")
    (one,) = history(
        waits(WaitCause.APPROVAL), PersonActed(command, "rejected"), event(Outcome.ESCALATE)
    ).decisions

    assert one.rejected_by == "ann"


def test_attempts_are_known_with_their_nodes_and_ranks() -> None:
    (run,) = history().attempts

    assert (run.nodes, run.ranks, run.verified_unix_s) == (("n1", "n2"), 4, 1003.0)
    assert Severity(FINDING.severity) is Severity.CRITICAL
    assert STATE.phase is Phase.OPENED
