from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.finding import Blame, Finding, Kind, Severity
from rankmend.errors import IllegalEventError, JournalError
from recovery.journal.attempt_records import (
    AttemptAbandoned,
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    CheckpointSeen,
    Choice,
    Milestone,
    RanksDone,
    RelativeMilestone,
    SavesStalled,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.cluster_records import CLUSTER_KINDS
from recovery.journal.fold.entry_fold import FOLDS, fold, fold_all
from recovery.journal.incident_machine import Event, Outcome, Phase
from recovery.journal.incident_records import (
    CaughtUp,
    Failure,
    IncidentEvent,
    IncidentOpened,
    TryFailed,
)
from recovery.journal.job_records import (
    BudgetsReset,
    ClaimTaken,
    JobEnded,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    OutcomeKind,
    RecordsLost,
    StopRequested,
    TailCut,
)
from recovery.journal.ledger import Ledger, Wish
from recovery.journal.limits import Policy
from recovery.journal.node_records import EvidenceTaken
from recovery.journal.records import KINDS, Entry, Record, UnknownRecord, decode_record
from recovery.journal.slurm_records import SLURM_KINDS
from recovery.journal.watched_records import WATCHED_KINDS
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import RankError, Restore, SnapshotPoint, Stop, StopReason

OPENING = (JobOpened("job-1", "digits"), LauncherStarted(("n1",), 2, 1, "0.1"))
NOTHING = Choice(True, None, "nothing found")
STOP = StopRequested("SIGTERM", Stop.GRACE, 30.0, StopReason.SIGTERM)


def choice(step: int, modified_unix_s: float = 1.0) -> Choice:
    return Choice(True, Restore(f"/c/{step}", step), "whole", (), modified_unix_s)


def started(attempt: int, cause: Cause = Cause.INCIDENT, chosen: Choice = NOTHING) -> Record:
    is_incident = cause is Cause.INCIDENT
    return AttemptStarted(attempt, cause, chosen, "inc-1" if is_incident else None, 1)


def failure(signature: str = "exception:x", step: int | None = 7, attempt: int = 1) -> Failure:
    finding = Finding(
        kind=Kind.RANK_FAILED,
        severity=Severity.CRITICAL,
        blame=Blame.PROGRAM,
        summary="rank 0 failed",
        job_id="job-1",
        attempt=attempt,
        node="n1",
        ranks=(0,),
        victims=(),
        since_age_s=0.5,
        symptom=symptom_of(signature),
    )
    error = RankError("ValueError", "bad", "")
    return Failure(attempt, finding, 3, 0, error, step, False, (0, 1))


def opened(**changes: object) -> IncidentOpened:
    return IncidentOpened("inc-1", failure(**changes), 0.5, 100, Policy())


def event(outcome: Outcome, answers: str) -> IncidentEvent:
    return IncidentEvent(Event("inc-1", outcome, answers, "because"))


RESTARTED = (
    event(Outcome.ACCEPTED, "inc-1"),
    AttemptEnded(1, AttemptResult.FAILED),
    event(Outcome.SUCCEEDED, "inc-1/1/fencing"),
    started(2),
)
RECOVERED = (
    *RESTARTED,
    event(Outcome.SUCCEEDED, "inc-1/1/restoring"),
    event(Outcome.SUCCEEDED, "inc-1/1/verifying"),
)


def ledger_of(*records: Record) -> Ledger:
    entries = [
        Entry(number, 0.0, 0.0, "boot", record)
        for number, record in enumerate((*OPENING, *records), start=1)
    ]
    return fold_all(entries)


def test_a_gap_in_the_numbers_is_refused() -> None:
    with pytest.raises(JournalError, match="record 3 follows record 1"):
        fold(replace(Ledger(), number=1), Entry(3, 0.0, 0.0, "boot", OPENING[0]))


def test_before_the_first_attempt_nothing_is_wished_for() -> None:
    ledger = ledger_of()

    assert (ledger.wish, ledger.attempt, ledger.revision) == (Wish.NOTHING_YET, 0, 0)
    assert (ledger.job_id, ledger.world_size) == ("job-1", 2)


def test_the_revision_is_the_number_of_the_record_that_changed_the_wish() -> None:
    ledger = ledger_of(started(1, Cause.FIRST), Milestone(1, 5))

    assert (ledger.wish, ledger.revision, ledger.number) == (Wish.RANKS, 3, 4)


def test_only_takeovers_and_incidents_count_as_restarts() -> None:
    causes = [Cause.FIRST, Cause.RESUMED, Cause.TAKEOVER, Cause.INCIDENT]
    ledger = ledger_of(*(started(number, cause) for number, cause in enumerate(causes, start=1)))

    assert (ledger.restarts, ledger.restarts_without_progress) == (2, 2)


def test_a_new_highest_step_gives_the_progress_budget_back_and_an_equal_one_does_not() -> None:
    records = (started(1, Cause.FIRST), Milestone(1, 10), started(2), Milestone(2, 10))

    assert ledger_of(*records).restarts_without_progress == 1
    assert ledger_of(*records, Milestone(2, 11)).restarts_without_progress == 0
    assert ledger_of(*records, Milestone(2, 11)).restarts == 1


def test_the_highest_step_is_at_least_the_one_restored() -> None:
    assert ledger_of(started(1, Cause.RESUMED, choice(40))).highest_step == 40


def test_restores_of_a_checkpoint_that_ended_alike_are_counted_until_there_is_progress() -> None:
    def failed(attempt: int, **changes: object) -> Record:
        return TryFailed("inc-1", 1, "again", failure(attempt=attempt, **changes))

    identity = choice(40).identity
    first = (started(1, Cause.FIRST), Milestone(1, 50), opened(), *RESTARTED[:-1])
    again = (started(2, chosen=choice(40)), failed(2), started(3, chosen=choice(40)), failed(3))
    other = (*again[:3], failed(3, signature="hung:unknown"))

    assert ledger_of(*first, *again).restores_of(identity) == 2
    assert ledger_of(*first, *other).restores_of(identity) == 1, "not the checkpoint's fault"
    assert (
        ledger_of(*first, *again).restores_of(choice(40, 2.0).identity) == 0
    )  # written over since
    going_on = (started(4, chosen=choice(40)), Milestone(4, 101))
    assert ledger_of(*first, *again, *going_on).restores_of(identity) == 0
    assert ledger_of(*first, *again, *going_on, failed(4)).restores_of(identity) == 0


def test_a_planned_stop_is_not_held_against_the_checkpoint() -> None:
    records = (
        started(1, Cause.FIRST, choice(40)),
        STOP,
        AttemptEnded(1, AttemptResult.STOPPED),
    )

    assert ledger_of(*records).restores_of(choice(40).identity) == 0


def test_the_same_error_at_the_same_step_is_counted_in_a_row() -> None:
    def count(*failures: Failure) -> int:
        tries = [TryFailed("inc-1", 1, "again", one) for one in failures[1:]]
        first = IncidentOpened("inc-1", failures[0], 0.5, 100, Policy())
        run = ledger_of(started(1, Cause.FIRST), first, *tries).errors
        return run.count if run else 0

    same, elsewhere, other = failure(), failure(step=8), failure("exception:y")
    assert count(same) == 1
    assert count(same, same) == 2
    assert count(same, same, same) == 3
    assert count(same, elsewhere) == 1
    assert count(same, other, same) == 1


def test_own_errors_of_one_cause_are_counted_while_attempts_begin_from_memory() -> None:
    def count(*tries: tuple[int | None, Failure], seen: tuple[Record, ...] = ()) -> int:
        records: list[Record] = [started(1, Cause.FIRST, choice(40))]
        for number, (step, failed) in enumerate(tries, 1):
            kept = None if step is None else SnapshotPoint(number, step)
            records.append(started(number + 1, chosen=replace(choice(40), snapshot=kept)))
            first = IncidentOpened("inc-1", failed, 0.5, 100, Policy())
            records.append(first if number == 1 else TryFailed("inc-1", 1, "again", failed))
            records += seen if number == 2 else ()
        return ledger_of(*records).memory_errors

    at_50, at_53, killed = failure(step=50), failure(step=53), failure("killed:SIGKILL")
    saved = CheckpointSeen("/c/52", 52, "npz", "npz file", 1000.0, "whole")
    assert count((49, at_50)) == 1
    assert count((49, at_50), (52, at_53), (55, failure(step=56))) == 3
    assert count((None, at_50)) == 0
    assert count((49, at_50), (None, at_53), (55, at_50)) == 1
    assert count((49, killed), (52, killed), (55, killed)) == 0
    assert count((49, at_50), (52, at_53), (55, at_50), seen=(saved,)) == 1


def test_relative_steps_are_equal_only_from_the_same_checkpoint() -> None:
    relative = replace(failure(), is_relative=True)
    first = IncidentOpened("inc-1", relative, 0.5, None, Policy())
    again = TryFailed("inc-1", 1, "again", relative)

    from_one = (started(1, Cause.FIRST, choice(40)), first)
    assert ledger_of(*from_one, started(2, chosen=choice(40)), again).errors.count == 2
    assert ledger_of(*from_one, started(2, chosen=choice(50)), again).errors.count == 1


def test_a_verified_attempt_is_progress_only_where_nothing_else_can_be_seen() -> None:
    first = (started(1, Cause.FIRST), started(2, Cause.TAKEOVER))
    saved = (started(1, Cause.FIRST, choice(40)), started(2, Cause.TAKEOVER, choice(40)))

    comparable = ledger_of(*first, AttemptVerified(2, True, (0, 1)))
    relative = ledger_of(*first, AttemptVerified(2, False, (0, 1)))
    blind = ledger_of(*first, AttemptVerified(2, False, ()))
    blind_with_checkpoints = ledger_of(*saved, AttemptVerified(2, False, ()))

    assert comparable.restarts_without_progress == 1
    assert relative.restarts_without_progress == 1
    assert relative.telling_ranks == {0, 1}
    assert blind.restarts_without_progress == 0
    assert len(blind.stepless) == 1, "bounded by the day all the same"
    assert blind_with_checkpoints.restarts_without_progress == 1


def test_relative_steps_are_progress_where_an_attempt_comes_farther_from_the_same_checkpoint() -> (
    None
):
    first = (started(1, Cause.FIRST), RelativeMilestone(1, 50, 50))
    again = (*first, started(2))
    older = (*again, started(3, chosen=choice(9)), RelativeMilestone(3, 70, 70))

    assert ledger_of(*again, RelativeMilestone(2, 50, 50)).restarts_without_progress == 1
    assert ledger_of(*again, RelativeMilestone(2, 51, 51)).restarts_without_progress == 0
    assert ledger_of(*older).restarts_without_progress == 2, "from elsewhere: it does not compare"
    assert ledger_of(*older, started(4), RelativeMilestone(4, 51, 51)).barren == ()


def test_a_step_that_every_rank_has_made_is_progress_below_the_highest() -> None:
    """One rank was stopped at step 20, and the others, which do not wait for it, ran ahead."""
    records = (started(1, Cause.FIRST), Milestone(1, 300, 20), started(2))

    assert ledger_of(*records, Milestone(2, 200, 20)).restarts_without_progress == 1
    assert ledger_of(*records, Milestone(2, 200, 21)).restarts_without_progress == 0
    assert ledger_of(*records, Milestone(2, 200, 21)).highest_step == 300


def test_a_newer_checkpoint_is_progress_and_gives_the_days_restart_back_by_its_step() -> None:
    def begun(chosen: Choice) -> Record:
        return replace(started(3, chosen=chosen), is_progress=True)

    records = (started(1, Cause.FIRST), Milestone(1, 300), started(2, chosen=choice(10)))
    stepless = Choice(True, Restore("/c/latest", None), "whole", (), 9.0)

    assert len(ledger_of(*records, started(3, chosen=choice(10))).stepless) == 2
    assert len(ledger_of(*records, begun(choice(20))).barren) == 1
    assert [attempt for attempt, _at in ledger_of(*records, begun(choice(20))).stepless] == [3]
    assert len(ledger_of(*records, begun(stepless)).barren) == 1
    assert len(ledger_of(*records, begun(stepless)).stepless) == 2


def test_restarts_of_yesterday_are_forgotten() -> None:
    records = (*OPENING, started(1, Cause.FIRST), started(2), started(3))
    times = (0.0, 0.0, 0.0, 100.0, 100.0 + 86400.0)

    ledger = fold_all(
        Entry(number, at, at, "boot", record)
        for number, (at, record) in enumerate(zip(times, records, strict=True), start=1)
    )

    assert [attempt for attempt, _at in ledger.stepless] == [3]
    assert ledger.restarts == 2


def test_a_persons_restart_and_the_move_of_a_slow_rank_are_counted_and_not_held_against_the_job() -> (
    None
):
    wish = failure(signature="person:restart")
    slow = replace(
        wish, finding=replace(wish.finding, kind=Kind.RANK_SLOW, symptom=symptom_of("slow:x"))
    )

    for asked in (wish, slow):
        incident = IncidentOpened("inc-1", asked, 0.0, None, Policy())
        ledger = ledger_of(started(1, Cause.FIRST), incident, *RESTARTED)
        assert (ledger.restarts, ledger.barren, ledger.stepless) == (1, (), ())


def test_a_new_run_begins_with_nothing_of_the_one_before() -> None:
    fresh = replace(NOTHING, is_new_run=True)
    before = (started(1, Cause.FIRST, choice(40)), Milestone(1, 900, 900), opened(), *RESTARTED)

    ledger = ledger_of(*before, started(3, Cause.RESUMED, fresh))

    assert (ledger.highest_step, ledger.floor_step, ledger.last_restore_path) == (None, None, None)
    assert (ledger.restarts, ledger.barren, ledger.errors) == (0, (), None)
    assert (ledger.base_step, ledger.restores, ledger.telling_ranks) == (None, (), frozenset())
    assert ledger.attempt == 3
    kept = ledger_of(*before, started(3, Cause.TAKEOVER, fresh))
    assert (kept.restarts, kept.restarts_without_progress) == (2, 2), "rankmend itself had died"


def test_a_job_that_came_to_its_end_begins_with_its_budgets_when_it_is_started_again() -> None:
    done = JobOutcome(OutcomeKind.DONE, 0, "every rank ended with exit code 0")
    failed = replace(done, kind=OutcomeKind.ESCALATED, exit_code=3)
    before = (started(1, Cause.FIRST), Milestone(1, 10), started(2))

    assert ledger_of(*before, JobEnded(done, True)).restarts == 1, "for `rankmend status`"
    assert ledger_of(*before, JobEnded(done, True), OPENING[1]).restarts == 0
    assert ledger_of(*before, JobEnded(done, True), OPENING[1]).highest_step == 10
    assert ledger_of(*before, JobEnded(failed, True), OPENING[1]).restarts == 1


def test_an_incident_goes_from_opened_to_recovered_and_stays_behind_until_caught_up() -> None:
    ledger = ledger_of(started(1, Cause.FIRST), opened(), *RECOVERED)

    assert ledger.incident is None
    assert ledger.behind.state.phase is Phase.RECOVERED
    assert ledger.behind.highest_before == 100
    caught_up = ledger_of(started(1, Cause.FIRST), opened(), *RECOVERED, CaughtUp("inc-1", 2, 101))
    assert caught_up.behind is None


def test_while_an_incident_is_fenced_nothing_is_wished_for() -> None:
    ledger = ledger_of(started(1, Cause.FIRST), opened(), RESTARTED[0])

    assert ledger.wish is Wish.NOTHING
    assert ledger.incident.state.phase is Phase.FENCING


def test_an_event_that_does_not_fit_is_refused() -> None:
    with pytest.raises(IllegalEventError):
        ledger_of(started(1, Cause.FIRST), opened(), event(Outcome.SUCCEEDED, "inc-1/1/fencing"))
    with pytest.raises(JournalError, match="belongs to no incident"):
        ledger_of(started(1, Cause.FIRST), event(Outcome.ACCEPTED, "inc-1"))


def test_an_escalated_incident_closes_the_job_with_the_ranks_exit_code_and_error() -> None:
    ledger = ledger_of(started(1, Cause.FIRST), opened(), event(Outcome.ESCALATE, "inc-1"))

    assert ledger.wish is Wish.NOTHING
    outcome = ledger.closing.outcome
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.ESCALATED, 3)
    assert (outcome.rank, outcome.error.message, outcome.reason) == (0, "bad", "because")


@pytest.mark.parametrize(
    ("cause", "kind", "exit_code"),
    [
        (StopReason.SIGTERM, OutcomeKind.STOPPED, 143),
        (StopReason.SIGINT, OutcomeKind.STOPPED, 130),
        (StopReason.TIME_LIMIT, OutcomeKind.TIME_LIMIT, 124),
        (StopReason.PERSON, OutcomeKind.STOPPED, 143),
    ],
)
def test_a_stop_has_its_exit_code_whatever_its_words(
    cause: StopReason, kind: OutcomeKind, exit_code: int
) -> None:
    stop = StopRequested("time limit", Stop.GRACE, 5.0, cause)
    ledger = ledger_of(started(1, Cause.FIRST), stop)

    assert (ledger.closing.outcome.kind, ledger.closing.outcome.exit_code) == (kind, exit_code)
    assert (ledger.closing.stop, ledger.closing.grace_s) == (Stop.GRACE, 5.0)


def test_ranks_that_are_done_are_not_ordered_to_stop() -> None:
    ledger = ledger_of(started(1, Cause.FIRST), RanksDone(1))

    assert (ledger.wish, ledger.revision) == (Wish.RANKS, 3)
    assert ledger.closing.outcome.exit_code == 0


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("", "every rank ended with exit code 0"), ("rank 0 still runs", "rank 0 still runs")],
)
def test_job_that_is_done_says_what_still_ran(reason: str, shown: str) -> None:
    ledger = ledger_of(started(1, Cause.FIRST), RanksDone(1, reason))

    assert (ledger.closing.outcome.kind, ledger.closing.outcome.reason) == (OutcomeKind.DONE, shown)


def test_a_job_that_had_ended_is_resumed_and_not_taken_over() -> None:
    outcome = JobOutcome(OutcomeKind.STOPPED, 143, "stop")
    records = (
        started(1, Cause.FIRST),
        STOP,
        AttemptEnded(1, AttemptResult.STOPPED),
        JobEnded(outcome, True),
    )

    assert ledger_of(*records).ended == outcome
    again = ledger_of(*records, OPENING[1])
    assert (again.ended, again.closing, again.is_resumed) == (None, None, True)
    assert again.wish is Wish.NOTHING_YET
    assert not ledger_of(*records, OPENING[1], started(2, Cause.RESUMED)).is_resumed


def test_a_stop_that_outlived_its_launcher_is_fenced_and_resumed() -> None:
    again = ledger_of(started(1, Cause.FIRST), STOP, OPENING[1])

    assert (again.closing, again.is_resumed, again.wish) == (None, True, Wish.NOTHING)


def test_an_escalation_that_outlived_its_launcher_still_ends_the_job() -> None:
    escalated = (started(1, Cause.FIRST), opened(), event(Outcome.ESCALATE, "inc-1"))

    again = ledger_of(*escalated, OPENING[1])

    assert again.closing.outcome.kind is OutcomeKind.ESCALATED


def test_an_abandoned_attempt_is_wished_away() -> None:
    ledger = ledger_of(started(1, Cause.FIRST), AttemptAbandoned(1, "not found"))

    assert (ledger.wish, ledger.revision, ledger.is_attempt_open) == (Wish.NOTHING, 4, True)


def test_a_reset_gives_all_budgets_back_and_keeps_what_is_true() -> None:
    records = (started(1, Cause.FIRST), Milestone(1, 5), started(2, chosen=choice(4)), opened())

    ledger = ledger_of(*records, BudgetsReset("a person", "fixed"))

    assert (ledger.restarts, ledger.restarts_without_progress, ledger.restores) == (0, 0, ())
    assert ledger.errors is None
    assert (ledger.attempt, ledger.highest_step) == (2, 100)


def test_lost_records_leave_the_stricter_of_both_budgets() -> None:
    ledger = ledger_of(started(1, Cause.FIRST), RecordsLost(3, 90, 7, 5, 2, 500))

    assert (ledger.attempt, ledger.restarts, ledger.restarts_without_progress) == (7, 5, 2)
    assert (ledger.highest_step, ledger.wish) == (500, Wish.NOTHING)
    assert ledger.is_attempt_open
    kept = ledger_of(started(1, Cause.FIRST), started(2), RecordsLost(4, 90, 1, 0, 0, None))
    assert (kept.attempt, kept.restarts, kept.wish) == (2, 1, Wish.RANKS)


def test_each_kind_of_record_of_a_job_is_folded_or_known_to_change_nothing() -> None:
    folded = {kind_of_first_parameter(change) for change in FOLDS}
    dated_only = {EvidenceTaken}  # what it changes needs the time of its entry

    assert len(folded) == len(FOLDS)
    of_others = {*CLUSTER_KINDS.values(), *SLURM_KINDS.values(), *WATCHED_KINDS.values()}
    left = set(KINDS.values()) - folded - dated_only - of_others
    assert left == {ClaimTaken, SavesStalled, StepsSeen, TailCut, WorkSeen}


def kind_of_first_parameter(change: Callable[..., Ledger]) -> object:
    return next(iter(get_type_hints(change).values()))


def test_a_record_of_a_newer_version_changes_nothing_but_the_number() -> None:
    before = ledger_of(started(1, Cause.FIRST))

    after = ledger_of(started(1, Cause.FIRST), UnknownRecord("heartbeat", b"{}"))

    assert after == replace(before, number=before.number + 1)


@given(
    st.lists(
        st.sampled_from(
            [
                started(1, Cause.FIRST),
                started(2, Cause.TAKEOVER, choice(4)),
                Milestone(1, 3),
                Milestone(1, 9),
                AttemptVerified(1, True, (0,)),
                AttemptVerified(1, False, ()),
                AttemptEnded(1, AttemptResult.FAILED),
                AttemptAbandoned(1, "gone"),
                STOP,
                RanksDone(1),
                OPENING[1],
                opened(),
                event(Outcome.ACCEPTED, "inc-1"),
                event(Outcome.SUCCEEDED, "inc-1/1/fencing"),
                event(Outcome.CANCEL, "inc-1"),
                RecordsLost(1, 5, 3, 4, 1, 8),
            ]
        ),
        max_size=25,
    )
)
def test_folding_any_records_either_refuses_or_never_lowers_attempt_step_and_revision(
    records: Sequence[Record],
) -> None:
    ledger = ledger_of()
    for record in records:
        before = ledger
        try:
            ledger = fold(before, Entry(before.number + 1, 0.0, 0.0, "boot", record))
        except (IllegalEventError, JournalError):
            continue
        assert (ledger.highest_step or 0) >= (before.highest_step or 0)
        assert ledger.revision >= before.revision
        assert ledger.number == before.number + 1


def test_journal_of_an_older_version_folds_and_its_restarts_count() -> None:
    """Bodies as version 1.1 wrote them: no floor, no new run, no fault but what the failure says."""
    chosen = b'{"is_possible":true,"restore":{"path":"/c/40","step":40},"reason":"whole"}'
    first = b'{"attempt":1,"cause":"first","choice":' + chosen + b"}"
    takeover = b'{"attempt":2,"cause":"takeover","choice":' + chosen + b',"is_progress":false}'
    bodies = (
        ("attempt_started", first),
        ("milestone", b'{"attempt":1,"step":50}'),
        ("attempt_started", takeover),
        ("attempt_verified", b'{"attempt":2,"is_comparable":true,"telling_ranks":[0,1]}'),
    )

    ledger = ledger_of(*(decode_record(kind, 1, 1, body) for kind, body in bodies))

    assert (ledger.highest_step, ledger.floor_step, ledger.base_step) == (50, None, 40)
    assert (ledger.restarts, ledger.restarts_without_progress) == (1, 1)
