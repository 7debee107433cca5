"""What many jobs hand in is one commit, and none suffers for another."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from rankmend.clock import SystemClock
from recovery.journal.attempt_records import AttemptAbandoned, Milestone
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.job_records import JobOpened
from recovery.journal.pen import AheadPen
from recovery.journal.postgres.database import ANSWER_S_MAX, Database, LeaseLostError
from recovery.journal.postgres.group_commit import GroupCommit
from recovery.journal.postgres.leases import Leases
from recovery.journal.postgres.postgres_journal import PostgresJournal, read_entries
from recovery.journal.records import Entry
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.postgres import PostgresServer, Wire, connected

pytestmark = [pytest.mark.site, pytest.mark.safety]


@dataclass
class Jobs:
    database: Database
    leases: Leases
    group: GroupCommit
    pens: list[AheadPen]
    took: list[float]

    def read(self, place: int) -> tuple[Entry, ...]:
        journal = self.pens[place].journal
        assert isinstance(journal, PostgresJournal)
        return read_entries(self.database, journal.name.partition(" in ")[0])


@contextlib.contextmanager
def jobs_of(
    server: PostgresServer,
    count: int,
    port: int | None = None,
    doubt_s_max: float = 8.0,
    answer_s_max: float = ANSWER_S_MAX,
) -> Iterator[Jobs]:
    name = server.make_database()
    url = server.url(name, "controller", port)
    with connected(url, lease_s=30.0, answer_s_max=answer_s_max) as (database, leases):
        took: list[float] = []
        group = GroupCommit(database, SystemClock(), took.append)
        pens = []
        for number in range(count):
            job_id = str(uuid.uuid4())
            server.ask(name, f"SELECT rankmend.add_job(%s, 'a', 'k{number}', '')", job_id)
            lease = leases.take(f"job:{job_id}")
            journal = PostgresJournal(
                database, leases, lease, SystemClock(), "boot-1", doubt_s_max=doubt_s_max
            )
            pen = AheadPen(journal, group, SystemClock(), "boot-1", journal)
            pen.go_ahead()
            pens.append(pen)
        yield Jobs(database, leases, group, pens, took)
        group.close()


def test_what_many_jobs_hand_in_is_one_commit(postgres: PostgresServer) -> None:
    with jobs_of(postgres, 120) as jobs:
        made = [pen.write([Milestone(1, 1), Milestone(1, 2)]) for pen in jobs.pens]
        jobs.group._later |= dict.fromkeys(jobs.pens)  # as if a commit were under way meanwhile

        assert jobs.group.commit_next(is_bookkeeping=True) == []
        after_first = [pen.durable_number() for pen in jobs.pens]
        jobs.group.commit_next(is_bookkeeping=True)

        assert after_first == [2] * 100 + [0] * 20
        assert [jobs.read(place) for place in range(120)] == made
        assert len(jobs.took) == 2


def test_a_decision_is_in_the_next_commit_however_much_waits(postgres: PostgresServer) -> None:
    with jobs_of(postgres, 120) as jobs:
        for pen in jobs.pens:
            pen.write([Milestone(1, 1)])
        jobs.group._later |= dict.fromkeys(jobs.pens)
        jobs.pens[-1].write([AttemptAbandoned(1, "gone")])
        jobs.group._urgent[jobs.pens[-1]] = None

        jobs.group.commit_next(is_bookkeeping=False)

        assert jobs.pens[-1].durable_number() == 2


def test_a_job_whose_lease_is_lost_keeps_no_other_from_its_commit(postgres: PostgresServer) -> None:
    with jobs_of(postgres, 3) as jobs:
        lost = jobs.pens[1].journal
        assert isinstance(lost, PostgresJournal)
        jobs.leases.take(lost.name.partition(" in ")[0])  # under another epoch: the old one is over
        for pen in jobs.pens:
            pen.write([AttemptAbandoned(1, "gone")])
        jobs.group._urgent |= dict.fromkeys(jobs.pens)

        jobs.group.commit_next(is_bookkeeping=False)

        assert [len(jobs.read(place)) for place in range(3)] == [1, 0, 1]
        assert jobs.pens[0].durable_number() == jobs.pens[2].durable_number() == 1
        with pytest.raises(LeaseLostError):
            jobs.pens[1].durable_number()


@pytest.mark.parametrize("loses", ["answer", "statement"])
def test_a_commit_of_many_of_which_nothing_is_heard_is_read_back_and_counts_once(
    postgres: PostgresServer, loses: str
) -> None:
    wire = Wire(postgres.port)
    try:
        with jobs_of(postgres, 3, wire.port) as jobs:
            made = [pen.write([AttemptAbandoned(1, "gone")]) for pen in jobs.pens]
            jobs.group._urgent |= dict.fromkeys(jobs.pens)
            if loses == "answer":
                wire.lose_answer(to=b"rankmend.append")
            else:
                wire.lose_statement(b"rankmend.append")

            jobs.group.commit_next(is_bookkeeping=False)

            assert wire.cuts == 1
            assert [pen.durable_number() for pen in jobs.pens] == [1, 1, 1]
            assert [jobs.read(place) for place in range(3)] == made
    finally:
        wire.close()


def test_what_a_server_that_is_away_does_not_take_is_written_once_it_is_there(
    postgres: PostgresServer,
) -> None:
    wire = Wire(postgres.port)
    try:
        with jobs_of(postgres, 2, wire.port) as jobs:
            wire.close_all()
            made = [pen.write([AttemptAbandoned(1, "gone")]) for pen in jobs.pens]
            for pen in jobs.pens:
                pen.push()
            eventually(lambda: jobs.database.away_s is not None or jobs.took, "it is away")

            wire.is_open = True

            eventually(lambda: not any(pen.has_pending for pen in jobs.pens), "all is written")
            for pen in jobs.pens:
                pen.wait(DEADLINE_S)
            assert [jobs.read(place) for place in range(2)] == made
    finally:
        wire.close()


def newest_in_folds(jobs: Jobs) -> list[int]:
    return [number for (number,) in jobs.database.read("SELECT number FROM rankmend.fold")]


def offer_folds(jobs: Jobs) -> None:
    """Have each job begin, and offer its fold to be kept with the next commit."""
    for pen in jobs.pens:
        pen.push()
        opened = pen.write([JobOpened("6f1c0a5e-0000-4000-8000-000000000001", "digits")])
        pen.wait(DEADLINE_S)
        pen.offer_fold(fold_all(opened))
        pen.write([AttemptAbandoned(1, "gone")])


@pytest.mark.parametrize("count", [1, 3])
def test_the_thread_for_bookkeeping_keeps_folds_that_a_commit_of_decisions_has_passed(
    postgres: PostgresServer, count: int
) -> None:
    with jobs_of(postgres, count) as jobs:
        offer_folds(jobs)
        jobs.group._urgent |= dict.fromkeys(jobs.pens)

        jobs.group.commit_next(is_bookkeeping=False)

        assert [pen.durable_number() for pen in jobs.pens] == [2] * count
        eventually(lambda: newest_in_folds(jobs) == [1] * count, "the folds as of before it")


def test_no_decision_waits_for_a_fold_that_is_being_written(postgres: PostgresServer) -> None:
    with jobs_of(postgres, 1, answer_s_max=2 * DEADLINE_S) as jobs:
        (pen,) = jobs.pens
        name = jobs.database.url.text.rpartition("/")[2]
        with psycopg.connect(postgres.url(name)) as holding:
            holding.execute("LOCK TABLE rankmend.fold IN ACCESS EXCLUSIVE MODE")
            offer_folds(jobs)
            pen.wait(DEADLINE_S)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%save_fold%' AND wait_event_type = 'Lock'"
            eventually(lambda: postgres.ask(name, waits) == [(1,)], "the fold waits")

            pen.write([AttemptAbandoned(2, "gone")])
            pen.wait(DEADLINE_S)
            still = postgres.ask(name, waits)

        assert still == [(1,)]
        assert pen.durable_number() == 3
