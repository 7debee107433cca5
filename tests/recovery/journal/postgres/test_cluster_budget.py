"""Two controllers, one cluster: what they share is one truth, and neither spends what the other has spent."""

import threading
from dataclasses import replace

import pytest

from detectors.finding import Blame, Finding, Kind, Severity
from rankmend.clock import SystemClock
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import Budgets, ClusterPolicy
from recovery.controller.cluster.gate import Judgement, PlanRequest
from recovery.journal.cluster_records import Spent
from recovery.journal.limits import PlanStep
from recovery.journal.postgres.leases import JournalLease
from recovery.journal.postgres.postgres_journal import PostgresJournal, read_entries
from recovery.messages.codec import symptom_of
from tests.support.eventually import DEADLINE_S
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, connected

pytestmark = [pytest.mark.site, pytest.mark.safety]
JOB = "0c1d6a52-0000-4000-8000-000000000001"
FINDING = Finding(
    kind=Kind.RANK_SLOW,
    severity=Severity.WARNING,
    blame=Blame.RANK,
    summary="rank 3 is slow",
    job_id=JOB,
    attempt=1,
    node="n2",
    ranks=(3,),
    victims=(),
    since_age_s=0.0,
    symptom=symptom_of("slow"),
)
# Stops a job that trains: what the budget is for.
STOPPING = replace(PlanRequest(JOB, "i", 1, PlanStep.MOVE, FINDING, ("n2",), 4), is_standing=False)
POLICY = ClusterPolicy(budgets=Budgets(stops_per_hour_max=5, moves_per_job_day_max=100))


def test_two_controllers_that_decide_at_once_never_spend_more_than_the_budget(
    postgres: PostgresServer,
) -> None:
    place = PostgresPlace.make(postgres)
    url = postgres.url(place.database, "controller")
    told: list[Judgement] = []

    def decide(name: str) -> None:
        with connected(url) as (database, leases):
            clock = SystemClock()
            journal = PostgresJournal(
                database, leases, JournalLease("cluster", 0), clock, "boot", is_shared=True
            )
            desk = ClusterController(journal, POLICY, clock, lambda job_id: job_id)
            ready.wait(DEADLINE_S)
            for number in range(6):
                request = replace(
                    STOPPING, incident_id=f"{name}-{number}", job_id=f"{name}{number}"
                )
                told.append(desk.judge(request).judgement)

    ready = threading.Barrier(3)
    deciders = [threading.Thread(target=decide, args=(name,)) for name in "abc"]
    for one in deciders:
        one.start()
    for one in deciders:
        one.join(DEADLINE_S)

    with connected(url) as (database, _leases):
        entries = read_entries(database, "cluster")
    spent = [entry.record for entry in entries if isinstance(entry.record, Spent)]
    assert len(spent) == 5
    assert told.count(Judgement.ALLOWED) == 5
    assert told.count(Judgement.REFUSED) == 13


class ShiftedClock(SystemClock):
    """A host's clock whose wall time is wrong."""

    def __init__(self, shift_s: float) -> None:
        self._shift_s = shift_s

    def unix_s(self) -> float:
        return super().unix_s() + self._shift_s


@pytest.mark.parametrize("shift_s", [-90_000.0, 90_000.0])
def test_a_controller_whose_clock_is_wrong_spends_by_the_databases_clock(
    postgres: PostgresServer, shift_s: float
) -> None:
    """A day behind, it would date what it spends out of the hour of the others; a day ahead, the others' out of its own."""
    place = PostgresPlace.make(postgres)
    url = postgres.url(place.database, "controller")
    told = []
    with (
        connected(url, clock=ShiftedClock(shift_s)) as (first, leases),
        connected(url) as (second, others),
    ):
        desks = [
            ClusterController(
                PostgresJournal(
                    database, held, JournalLease("cluster", 0), held.clock, "boot", is_shared=True
                ),
                POLICY,
                held.clock,
                lambda job_id: job_id,
            )
            for database, held in ((first, leases), (second, others))
        ]
        for number in range(8):
            request = replace(STOPPING, incident_id=f"i{number}", job_id=f"j{number}")
            told.append(desks[number % 2].judge(request).judgement)

    assert told.count(Judgement.ALLOWED) == 5
    assert told[5:] == [Judgement.REFUSED] * 3


def test_a_plan_that_another_controller_let_through_is_not_counted_again(
    postgres: PostgresServer,
) -> None:
    place = PostgresPlace.make(postgres)
    url = postgres.url(place.database, "controller")
    with connected(url) as (first, leases), connected(url) as (second, others):
        clock = SystemClock()
        desks = [
            ClusterController(
                PostgresJournal(
                    database, held, JournalLease("cluster", 0), clock, "boot", is_shared=True
                ),
                POLICY,
                clock,
                lambda job_id: job_id,
            )
            for database, held in ((first, leases), (second, others))
        ]

        answers = [desk.judge(STOPPING).judgement for desk in desks]

        assert answers == [Judgement.ALLOWED, Judgement.ALLOWED]
        assert len(read_entries(first, "cluster")) == 1


def test_a_hold_and_its_end_by_two_controllers_are_one_history(postgres: PostgresServer) -> None:
    place = PostgresPlace.make(postgres)
    url = postgres.url(place.database, "controller")
    with connected(url) as (first, leases), connected(url) as (second, others):
        clock = SystemClock()
        one, other = (
            ClusterController(
                PostgresJournal(
                    database, held, JournalLease("cluster", 0), clock, "boot", is_shared=True
                ),
                POLICY,
                clock,
                lambda job_id: job_id,
            )
            for database, held in ((first, leases), (second, others))
        )
        one.drain("n1", "alice", "broken")
        other.drain("n2", "bob", "broken, too")
        one.release("n1", "alice", "mended")
        other.catch_up()

        for desk in (one, other):
            assert desk.unusable("n1") is None
            assert desk.unusable("n2") is not None
        assert one.ledger == other.ledger
