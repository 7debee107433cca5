"""Jobs that no controller manages are taken many at once, and each as safely as if it were alone."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from rankmend.clock import SystemClock
from recovery.journal.attempt_records import Milestone
from recovery.journal.job_records import JobOpened
from recovery.journal.postgres.database import Database, LeaseLostError
from recovery.journal.postgres.leases import HeldByOtherError, Leases
from recovery.journal.postgres.postgres_journal import AppendGroup, PostgresJournal, read_entries
from recovery.journal.stored_journal import JournalFile
from recovery.service.jobs.job_store import FoundJobs, StoredJob
from recovery.service.jobs.job_takeover import JobTakeover, TakenJob
from tests.support.controllers import configure
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.postgres import PostgresServer, connected
from tests.support.service import join_of, running

pytestmark = [pytest.mark.site, pytest.mark.safety]
LEASE_S = 30.0  # a controller loses no lease because the machine is busy
RECORDS = 3  # of each job


class Cluster:
    """A database with jobs that nobody manages, and one controller."""

    def __init__(
        self, server: PostgresServer, name: str, database: Database, leases: Leases, jobs: int
    ) -> None:
        self.server, self.name, self.database, self.leases = server, name, database, leases
        self.found = [self._add(number) for number in range(jobs)]
        self.takeover = JobTakeover(database, leases)

    def _add(self, number: int) -> FoundJobs:
        job_id = str(uuid.UUID(int=number + 1))
        self.server.ask(
            self.name, "SELECT rankmend.add_job(%s, 'alice', %s, '')", job_id, f"k{number}"
        )
        lease = self.leases.take(f"job:{job_id}")
        journal = PostgresJournal(self.database, self.leases, lease, SystemClock(), "boot")
        journal.append(JobOpened(job_id, f"job-{number}"))
        journal.append_many([Milestone(1, step) for step in range(1, RECORDS)])
        self.leases.release(lease)
        stored = StoredJob("alice", "secret", join_of("n1", key=f"k{number}"))
        return FoundJobs(JournalFile(Path("/nowhere")), job_id, stored, None)

    def open(self, one: FoundJobs) -> TakenJob:
        with self.takeover.opening(uuid.UUID(one.job_id)) as taken:
            return taken

    def journal(self, taken: TakenJob, group: AppendGroup | None = None) -> PostgresJournal:
        journal = PostgresJournal(
            self.database, self.leases, taken.lease, SystemClock(), "boot", read=taken.read
        )
        journal.hold_back(None if group is None else group.add)
        return journal

    def holder(self, one: FoundJobs) -> object:
        ((holder,),) = self.server.ask(
            self.name, "SELECT holder FROM rankmend.journal WHERE name = %s", f"job:{one.job_id}"
        )
        return holder


@contextmanager
def cluster_of(server: PostgresServer, jobs: int) -> Iterator[Cluster]:
    name = server.make_database()
    with connected(server.url(name, "controller")) as (database, leases):
        yield Cluster(server, name, database, leases, jobs)


@pytest.fixture
def cluster(postgres: PostgresServer) -> Iterator[Cluster]:
    with cluster_of(postgres, 3) as made:
        yield made


def test_jobs_are_taken_and_read_at_once_and_can_be_written_from_there(cluster: Cluster) -> None:
    assert cluster.takeover.prepare(cluster.found) is False
    assert cluster.takeover.ready() == cluster.found
    assert cluster.takeover.ready() == []

    for one in cluster.found:
        taken = cluster.open(one)
        assert taken.read is not None
        assert taken.read.entries == read_entries(cluster.database, f"job:{one.job_id}")
        assert cluster.journal(taken).append(Milestone(1, 9)).number == RECORDS + 1


def test_the_deciding_thread_hears_at_once_that_nothing_is_ready_while_the_database_makes_wait(
    cluster: Cluster,
) -> None:
    taking = threading.Thread(target=lambda: cluster.takeover.prepare(cluster.found))
    url = cluster.server.url(cluster.name)
    with psycopg.connect(url) as holding:
        holding.execute("SELECT FROM rankmend.journal FOR UPDATE")
        taking.start()
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        )
        eventually(
            lambda: cluster.server.ask(cluster.name, waits, cluster.name) == [(1,)], "it waits"
        )

        assert cluster.takeover.ready() == []
        assert taking.is_alive()
    taking.join()


def test_a_job_of_another_controller_is_not_taken_with_the_others(cluster: Cluster) -> None:
    mine, other, last = cluster.found
    with connected(cluster.server.url(cluster.name, "controller")) as (_database, leases):
        leases.take(f"job:{other.job_id}")

        cluster.takeover.prepare(cluster.found)

        assert cluster.takeover.ready() == [mine, last]
        with pytest.raises(HeldByOtherError):
            cluster.open(other)


def test_a_damaged_journal_is_told_where_it_is_opened_and_keeps_no_other_job_back(
    cluster: Cluster,
) -> None:
    damaged = cluster.found[1]
    cluster.server.ask(
        cluster.name,
        "UPDATE rankmend.record SET unix_s = 1 WHERE journal = %s AND number = 2",
        f"job:{damaged.job_id}",
    )

    cluster.takeover.prepare(cluster.found)

    read = [cluster.open(one).read for one in cluster.found]
    assert [one is None for one in read] == [False, True, False]


def test_a_job_that_is_opened_already_keeps_its_lease(cluster: Cluster) -> None:
    first = cluster.found[0]
    journal = cluster.journal(cluster.open(first))

    cluster.takeover.prepare(cluster.found)

    assert cluster.takeover.ready() == cluster.found[1:]
    assert journal.append(Milestone(1, 9)).number == RECORDS + 1


def test_a_prepared_job_that_is_not_opened_is_left_to_others(cluster: Cluster) -> None:
    cluster.takeover.prepare(cluster.found)
    first = cluster.found[0]
    assert cluster.holder(first) == cluster.leases.controller_id

    cluster.takeover.give_up(first.job_id)

    assert cluster.holder(first) is None


def test_records_of_several_journals_are_written_together(cluster: Cluster) -> None:
    group = AppendGroup(cluster.database, cluster.leases)
    cluster.takeover.prepare(cluster.found)
    journals = [cluster.journal(cluster.open(one), group) for one in cluster.found]

    for journal in journals:
        journal.append(Milestone(1, 9))
        journal.append_many([Milestone(1, 10), Milestone(1, 11)])
    before = [len(read_entries(cluster.database, f"job:{one.job_id}")) for one in cluster.found]
    failed = group.write()

    assert failed == {}
    assert before == [RECORDS] * 3
    for one, journal in zip(cluster.found, journals, strict=True):
        assert len(read_entries(cluster.database, f"job:{one.job_id}")) == RECORDS + 3
        journal.hold_back(None)
        assert journal.append(Milestone(1, 12)).number == RECORDS + 4


def test_a_lost_lease_keeps_the_records_of_no_other_job_back(cluster: Cluster) -> None:
    group = AppendGroup(cluster.database, cluster.leases)
    cluster.takeover.prepare(cluster.found)
    for one in cluster.found:
        cluster.journal(cluster.open(one), group).append(Milestone(1, 9))
    lost = f"job:{cluster.found[1].job_id}"
    cluster.leases.take(lost)  # a newer epoch

    failed = group.write()

    assert list(failed) == [lost]
    assert isinstance(failed[lost], LeaseLostError)
    written = [len(read_entries(cluster.database, f"job:{one.job_id}")) for one in cluster.found]
    assert written == [RECORDS + 1, RECORDS, RECORDS + 1]


@pytest.mark.parametrize("jobs", [70])
def test_all_jobs_of_a_controller_that_ended_are_managed_by_the_next_one(
    tmp_path: Path, postgres: PostgresServer, jobs: int
) -> None:
    url = postgres.url(postgres.make_database(), "controller")
    with running(configure(tmp_path / "a", url, lease_s=LEASE_S)) as first:
        worker = first.service.worker
        for number in range(jobs):
            one = join_of("n1", key=f"job:{number}", name=f"job-{number}")
            worker.call(lambda one=one: worker.jobs.join("alice", one)).result(DEADLINE_S)  # type: ignore[misc]
        with running(configure(tmp_path / "b", url, lease_s=LEASE_S)) as second:
            there = second.service.worker.jobs
            first.thread.stop()

            eventually(lambda: len(there.running) == jobs, "all are taken over")
            eventually(
                lambda: all(one.controller is not None for one in there.running.values()),
                "each has a controller",
            )

            epochs = {
                one.controller.ledger.epoch  # type: ignore[union-attr]
                for one in there.running.values()
            }
            assert epochs == {2}
