"""Jobs by their journals, from their first record to their last, and where their time went."""

from dataclasses import replace
from itertools import pairwise

from detectors.finding import Blame, Finding, Kind, Severity
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_spent import read_time
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    Choice,
    Milestone,
    Placement,
)
from recovery.journal.incident_machine import Event, Outcome
from recovery.journal.incident_records import (
    CaughtUp,
    Decided,
    Failure,
    IncidentEvent,
    IncidentOpened,
    Plan,
)
from recovery.journal.job_records import (
    JobEnded,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    OutcomeKind,
    StopRequested,
)
from recovery.journal.ledger import Moment
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.records import Entry, Record
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import Restore, Stop

FINDING = Finding(
    kind=Kind.RANK_FAILED,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="rank 2 failed: SIGKILL",
    job_id="job-1",
    attempt=1,
    node="n1",
    ranks=(2,),
    victims=(),
    since_age_s=0.5,
    symptom=symptom_of("killed:SIGKILL"),
)
FAILURE = Failure(1, FINDING, 137, 2, None, 120, False, (0, 1, 2, 3))
OPENED = IncidentOpened("inc-1", FAILURE, 0.5, 120, Policy())
PLAN = Decided("inc-1", 1, Plan(PlanStep.RESTART_IN_PLACE, "because", ()))
VERIFIED = AttemptVerified(
    2,
    is_comparable=True,
    telling_ranks=(0, 1, 2, 3),
    attached_age_s=5.0,
    resumed_age_s=4.5,
    first_section_age_s=3.0,
    first_step_age_s=1.0,
    first_step=101,
)
Timed = tuple[float, Record]
PLACED = (Placement("n1", (0, 1, 2, 3)),)
LAUNCHED = LauncherStarted(("n1",), 4, 1, "0")
FIRST = AttemptStarted(1, Cause.FIRST, Choice(True, None, "none there"), placement=PLACED)
BEGIN: tuple[Timed, ...] = (
    (0.0, JobOpened("job-1", "llama")),
    (0.0, LAUNCHED),
    (1.0, FIRST),
    (10.0, replace(VERIFIED, attempt=1, first_step=1, first_step_age_s=2.0)),
)
STOPPED = JobEnded(JobOutcome(OutcomeKind.STOPPED, 0, "stop"), True)
END: tuple[Timed, ...] = (
    (2000.0, StopRequested("person", Stop.GRACE, 30.0)),
    (2010.0, AttemptEnded(2, AttemptResult.STOPPED)),
    (2010.0, STOPPED),
)


def event(outcome: Outcome, answers: str) -> IncidentEvent:
    return IncidentEvent(Event("inc-1", outcome, answers, outcome.value))


def started(attempt: int, try_number: int) -> AttemptStarted:
    choice = Choice(True, Restore("/c/step-100", 100), "complete", (), 1.0)
    return AttemptStarted(attempt, Cause.INCIDENT, choice, "inc-1", try_number)


RECOVERY: tuple[tuple[float, Record], ...] = (
    (100.0, OPENED),
    (100.0, PLAN),
    (100.25, event(Outcome.ACCEPTED, "inc-1")),
    (101.0, event(Outcome.SUCCEEDED, "inc-1/1/fencing")),
    (101.125, started(2, 1)),
    (102.0, event(Outcome.SUCCEEDED, "inc-1/1/restoring")),
    (108.0, VERIFIED),
    (108.5, event(Outcome.SUCCEEDED, "inc-1/1/verifying")),
    (122.0, CaughtUp("inc-1", 2, 121, age_s=2.0)),
)
SECOND = replace(started(2, 1), placement=PLACED)
# A rank dies at 999.5 s; the second attempt makes its first step at 1007 s and passes step 120 at 1020 s.
FAILED: tuple[Timed, ...] = (
    (999.0, Milestone(1, 120, 120)),
    (1000.0, replace(OPENED, step_age_s=1.0)),
    (1000.0, PLAN),
    (1000.25, event(Outcome.ACCEPTED, "inc-1")),
    (1001.0, AttemptEnded(1, AttemptResult.FAILED)),
    (1001.0, event(Outcome.SUCCEEDED, "inc-1/1/fencing")),
    (1001.125, SECOND),
    (1002.0, event(Outcome.SUCCEEDED, "inc-1/1/restoring")),
    (1008.0, VERIFIED),
    (1008.5, event(Outcome.SUCCEEDED, "inc-1/1/verifying")),
    (1022.0, CaughtUp("inc-1", 2, 121, age_s=2.0)),
)


def entries_of(*records: Timed, boot: str = "boot-1") -> list[Entry]:
    return [
        Entry(number, 5000.0 + at_s, at_s, boot, record)
        for number, (at_s, record) in enumerate(records, start=1)
    ]


def time_of(*records: Timed, now_s: float | None = None) -> JobTime:
    now = None if now_s is None else Moment(5000.0 + now_s, now_s, "boot-1")
    found = read_time(entries_of(*records), now)
    assert found is not None
    check_partition(found)
    return found


def check_partition(time: JobTime) -> None:
    assert all(span.length_s > 0 for span in time.spans)
    assert all(one.end_s == two.begin_s for one, two in pairwise(time.spans))
