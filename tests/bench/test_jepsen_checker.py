"""The checker of `bench.jepsen`: a good history passes, and each planted violation is found under its rule."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.jepsen.checker import Rule, check
from bench.jepsen.faults import Kind, draw_faults
from bench.jepsen.history import History, Limits, RankLife, SeenOrder, WrittenEntry, WrittenJournal
from detectors.finding import Blame, Finding, Severity, Symptom, SymptomKind
from detectors.finding import Kind as FindingKind
from recovery.journal.attempt_records import AttemptStarted, Cause, Choice, Placement
from recovery.journal.cluster_records import Spent
from recovery.journal.incident_machine import Event, Outcome
from recovery.journal.incident_records import Failure, IncidentEvent, IncidentOpened
from recovery.journal.job_records import LauncherStarted
from recovery.journal.limits import Policy
from recovery.journal.records import Entry, Record

pytestmark = pytest.mark.safety

JOB = "0c1d6a52-0000-4000-8000-000000000001"
LIMITS = Limits(
    restarts_max=3,
    no_progress_max=5,
    no_progress_any_max=5,
    stops_per_hour_max=2,
    moves_per_job_day_max=2,
)
FINDING = Finding(
    FindingKind.RANK_FAILED, Severity.CRITICAL, Blame.RANK, "rank 0 died", JOB, 1, "n1", (0,), (), 0.0
)  # fmt: skip
OPENED = IncidentOpened("i1", Failure(1, FINDING, 137, 0, None, 5, False, ()), 0.1, 5, Policy())
PLACED = (Placement("n1", (0,)), Placement("n2", (1,)))


def start(number: int) -> LauncherStarted:
    return LauncherStarted((), 2, 1, "0", number, f"controller-{number}")


def attempt(number: int) -> AttemptStarted:
    cause = Cause.FIRST if number == 1 else Cause.INCIDENT
    return AttemptStarted(number, cause, Choice(True, None, "r"), placement=PLACED)


def event(outcome: Outcome, answers: str) -> IncidentEvent:
    return IncidentEvent(Event("i1", outcome, answers, "r"))


RECOVERY: tuple[Record, ...] = (
    OPENED,
    event(Outcome.ACCEPTED, "i1"),
    event(Outcome.SUCCEEDED, "i1/1/fencing"),
    attempt(2),
    event(Outcome.SUCCEEDED, "i1/1/restoring"),
    event(Outcome.SUCCEEDED, "i1/1/verifying"),
)


def journal(
    *written: tuple[Record, str, int], name: str = f"job:{JOB}", every_s: float = 1.0
) -> WrittenJournal:
    """Return a journal of records with their writers and epochs, one committed each second."""
    return WrittenJournal(
        name,
        tuple(
            WrittenEntry(Entry(number, 0.0, 0.0, "boot", record), writer, epoch, 1000.0 + number * every_s)
            for number, (record, writer, epoch) in enumerate(written, 1)
        ),
    )  # fmt: skip


def by(writer: str, epoch: int, *records: Record) -> list[tuple[Record, str, int]]:
    return [(record, writer, epoch) for record in records]


# A controller starts attempt 1 and dies; the next one recovers the job from a rank's death.
GOOD_ROWS = [*by("a", 1, start(1), attempt(1)), *by("b", 2, start(2), *RECOVERY)]
FIRST = SeenOrder(1003.0, JOB, "n1", "l1", 1, "controller-1", 2, 1, (0,), True)
GOOD = History(
    LIMITS,
    (journal(*GOOD_ROWS),),
    orders=(
        FIRST,
        replace(FIRST, node="n2", ranks=(1,)),
        replace(FIRST, at_unix_s=1010.0, epoch=2, controller_id="controller-2", revision=7, attempt=2),
    ),
    lives=(
        RankLife(JOB, "n1", 1, (0,), 1003.0, 1006.0),
        RankLife(JOB, "n2", 1, (1,), 1003.5, 1007.0),
        RankLife(JOB, "n1", 2, (0,), 1010.0, None),
        RankLife(JOB, "n2", 2, (1,), 1010.0, None),
    ),
)  # fmt: skip


def with_rows(rows: Sequence[tuple[Record, str, int]], history: History = GOOD) -> History:
    return replace(history, journals=(journal(*rows),), orders=(), lives=())


def spent(number: int, job_id: str = JOB, *, stops: bool = True) -> Spent:
    return Spent(job_id, f"i{number}", 1, "move", ("n1",), stops)


def cluster(*records: Record, every_s: float) -> History:
    rows = by("a", 0, *records)
    return replace(GOOD, cluster=journal(*rows, name="cluster", every_s=every_s))


def rules(history: History) -> set[Rule]:
    return {one.rule for one in check(history)}


def test_a_good_history_has_no_violation() -> None:
    assert check(GOOD) == ()


def test_a_job_that_is_given_up_is_a_good_end() -> None:
    given_up = [*GOOD_ROWS[:5], (event(Outcome.ESCALATE, "i1/1/fencing"), "b", 2)]

    assert check(with_rows(given_up)) == ()


@pytest.mark.parametrize(
    "rows",
    [
        [*GOOD_ROWS[:2], (start(2), "b", 1)],  # two writers with one fencing token
        [*GOOD_ROWS, (start(3), "a", 1)],  # one that had lost its lease writes once more
        [*GOOD_ROWS[:2], (replace(start(1), epoch=0), "a", 1), (start(2), "a", 1)],
    ],
    ids=["shared epoch", "late writer", "sound"],
)
def test_a_journal_with_two_writers_of_an_epoch_is_found(
    rows: list[tuple[Record, str, int]], request: pytest.FixtureRequest
) -> None:
    is_sound = "sound" in request.node.name

    assert (Rule.ONE_OWNER in rules(with_rows(rows))) is not is_sound


def test_damaged_records_and_gaps_are_found() -> None:
    whole = journal(*GOOD_ROWS)
    damaged = replace(
        whole, entries=whole.entries[:2], damage="6 records don't have their checksums"
    )
    short = replace(whole, entries=whole.entries[1:])

    for one in (damaged, short):
        assert Rule.SOUND in rules(replace(GOOD, journals=(one,)))


def test_an_attempt_number_that_is_used_twice_is_found() -> None:
    rows = [*GOOD_ROWS, (attempt(2), "b", 2)]

    assert Rule.MONOTONE in rules(with_rows(rows))


def test_orders_whose_attempts_fall_are_found() -> None:
    older = replace(GOOD.orders[2], revision=8, attempt=1)

    assert Rule.MONOTONE in rules(replace(GOOD, orders=(*GOOD.orders, older)))


def test_two_controllers_that_order_in_one_epoch_are_found() -> None:
    other = replace(FIRST, controller_id="controller-9")

    assert Rule.ONE_OWNER in rules(replace(GOOD, orders=(*GOOD.orders, other)))


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": 3, "epoch": 2, "controller_id": "controller-2", "revision": 7},
        {"revision": 99},
        {"ranks": (0, 1)},
        {"at_unix_s": 1001.5},  # the attempt's record was committed at 1002
        {"job_id": "0c1d6a52-0000-4000-8000-000000000009"},
    ],
    ids=["other attempt", "unknown revision", "other ranks", "before its commit", "unknown job"],
)
def test_an_order_that_the_journal_does_not_have_is_found(changes: dict[str, object]) -> None:
    wrong = replace(FIRST, **changes)  # type: ignore[arg-type]

    assert Rule.JOURNALED in rules(replace(GOOD, orders=(*GOOD.orders, wrong)))


def test_an_attempt_that_runs_and_was_lost_from_the_journal_is_found() -> None:
    assert Rule.JOURNALED in rules(replace(GOOD, journals=(journal(*GOOD_ROWS[:5]),)))


def test_an_attempt_that_a_node_starts_twice_is_found() -> None:
    again = RankLife(JOB, "n1", 1, (0,), 1008.0, 1009.0)

    assert Rule.STARTED_ONCE in rules(replace(GOOD, lives=(*GOOD.lives, again)))


def test_ranks_that_start_beside_an_older_attempt_are_found() -> None:
    lives = (replace(GOOD.lives[0], ended_unix_s=1010.5), *GOOD.lives[1:])

    assert rules(replace(GOOD, lives=lives)) == {Rule.ALONE}


def test_a_rank_that_runs_on_two_nodes_is_found() -> None:
    lives = (*GOOD.lives[:3], replace(GOOD.lives[3], ranks=(0,)))

    assert rules(replace(GOOD, lives=lives)) == {Rule.ALONE}


def test_more_restarts_than_the_job_may_have_are_found() -> None:
    assert Rule.BUDGET in rules(replace(GOOD, limits=replace(LIMITS, restarts_max=0)))


def test_the_clusters_budget_counts_in_every_hour_by_the_databases_clock() -> None:
    three = [spent(number, f"job {number}") for number in range(3)]

    assert rules(cluster(*three, every_s=1200.0)) == {Rule.BUDGET}
    assert rules(cluster(*three, every_s=1801.0)) == set()
    assert rules(cluster(*[replace(one, stops_training=False) for one in three], every_s=1.0)) == set()  # fmt: skip


def test_what_a_person_asks_for_is_beyond_no_budget() -> None:
    by_ada = replace(FINDING, symptom=Symptom(SymptomKind.PERSON))
    asked = replace(OPENED, incident_id="i2", failure=replace(OPENED.failure, finding=by_ada))
    rows = [*GOOD_ROWS, *by("b", 2, asked, IncidentEvent(Event("i2", Outcome.CANCEL, "i2", "r")))]
    three = [spent(number) for number in range(3)]

    history = replace(with_rows(rows), cluster=cluster(*three, every_s=600.0).cluster)

    assert by_ada.is_persons
    assert rules(history) == set()
    beside = cluster(*three[1:], spent(3, "another"), every_s=600.0).cluster
    assert rules(replace(history, cluster=beside)) == set(), "ada's takes nothing from others"
    more = cluster(*three, spent(3, "another"), every_s=600.0).cluster
    assert rules(replace(history, cluster=more)) == {Rule.BUDGET}


def test_more_moves_of_a_job_in_a_day_than_it_may_make_are_found() -> None:
    assert rules(cluster(*[spent(number) for number in range(3)], every_s=4000.0)) == {Rule.BUDGET}


def test_a_plan_that_is_counted_twice_is_found() -> None:
    assert rules(cluster(spent(1), spent(1), every_s=4000.0)) == {Rule.BUDGET}


def test_an_incident_that_never_ends_is_found() -> None:
    assert rules(with_rows(GOOD_ROWS[:-1])) == {Rule.ENDED}


def test_faults_are_drawn_from_the_seed_alone_and_none_is_left_out() -> None:
    planned = draw_faults(7, 180.0, 3, 3.0)

    assert planned == draw_faults(7, 180.0, 3, 3.0)
    assert planned != draw_faults(8, 180.0, 3, 3.0)
    assert {one.kind for one in planned} == set(Kind)
    assert all(one.lasts_s > 3.0 for one in planned if one.kind is Kind.STOP and one.at_s < 170)
