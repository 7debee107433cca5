"""One writer for each journal: the database refuses whoever has lost the lease, whatever that one believes."""

import os
import signal
import threading
import uuid

import pytest

from rankmend.clock import SystemClock
from rankmend.errors import JournalError
from recovery.journal.attempt_records import Milestone
from recovery.journal.open_journal import JournalMovedError
from recovery.journal.postgres.database import LeaseLostError, StatementRefusedError
from recovery.journal.postgres.leases import HeldByOtherError, JournalLease
from recovery.journal.postgres.postgres_journal import PostgresJournal
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, connected

pytestmark = [pytest.mark.site, pytest.mark.safety]


@pytest.fixture
def place(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace.make(postgres)


def age(place: PostgresPlace, controller_id: object, seconds: float) -> None:
    """Move the end of a controller's leases, as time does."""
    place.server.ask(
        place.database,
        "UPDATE rankmend.controller SET expires_at = expires_at - make_interval(secs => %s)"
        " WHERE controller_id = %s",
        seconds,
        controller_id,
    )


def test_a_writer_that_was_stopped_beyond_its_lease_writes_nothing_once_another_has_the_job(
    place: PostgresPlace,
) -> None:
    """The stopped one has not noticed, and believes that the job is its own."""
    with place.start_writer(lease_s=3600) as stopped:
        assert stopped.stdout is not None
        acknowledged = 0
        while acknowledged < 5:
            acknowledged = int(stopped.stdout.readline())
        stopped.send_signal(signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)  # it renews nothing now
            holder = "SELECT holder FROM rankmend.journal WHERE name = %s"
            ((writer,),) = place.server.ask(place.database, holder, place.name)
            age(place, writer, 3600)
            with place.opened(waits=True) as journal:
                taken_at = journal.last_number
                journal.append(Milestone(2, 1))
                stopped.send_signal(signal.SIGCONT)
                said = [int(line) for line in stopped.stdout if line.endswith("\n")]
                assert stopped.wait(DEADLINE_S) != 0  # LeaseLostError
                entry = journal.append(Milestone(2, 2))
        finally:
            stopped.kill()

    assert (
        max([acknowledged, *said]) <= taken_at
    )  # of what it wrote nothing is lost, and nothing came after
    assert entry.number == taken_at + 2
    assert [one.record for one in place.read()][taken_at:] == [Milestone(2, 1), Milestone(2, 2)]


def test_two_controllers_never_hold_one_job_and_the_second_is_told_who_has_it(
    place: PostgresPlace,
) -> None:
    url = place.server.url(place.database, "controller")
    with connected(url) as (_first, leases), connected(url) as (_second, others):
        leases.take(place.name)

        with pytest.raises(HeldByOtherError, match=f"{place.name} is managed by the controller on"):
            others.take(place.name)


def test_a_lease_that_expired_is_taken_over_under_the_next_epoch_and_the_old_one_is_refused(
    place: PostgresPlace,
) -> None:
    url = place.server.url(place.database, "controller")
    with connected(url, lease_s=3600) as (first, leases), connected(url) as (second, others):
        old = leases.take(place.name)
        journal = PostgresJournal(first, leases, old, SystemClock(), "boot-1")
        journal.append(Milestone(1, 1))
        age(place, leases.controller_id, 3600)

        new = others.take(place.name)

        assert new.epoch == old.epoch + 1
        with pytest.raises(LeaseLostError, match=f"with epoch {old.epoch} is over"):
            journal.append(Milestone(1, 2))
        after = PostgresJournal(second, others, new, SystemClock(), "boot-1")
        assert after.append(Milestone(2, 1)).number == 2


def test_nothing_is_written_under_a_lease_that_has_expired_even_if_nobody_took_it(
    place: PostgresPlace,
) -> None:
    url = place.server.url(place.database, "controller")
    with connected(url, lease_s=3600) as (database, leases):
        journal = PostgresJournal(
            database, leases, leases.take(place.name), SystemClock(), "boot-1"
        )
        age(place, leases.controller_id, 3600)

        with pytest.raises(LeaseLostError, match="has expired"):
            journal.append(Milestone(1, 1))
        assert not leases.renew()  # what was held is to be taken anew
        with pytest.raises(LeaseLostError, match="is over"):
            journal.append(Milestone(1, 1))
        assert leases.take(place.name).epoch == 2


def test_an_expiry_from_a_clock_that_ran_ahead_does_not_keep_a_job_from_others(
    place: PostgresPlace,
) -> None:
    """Such as that of a primary that is gone."""
    url = place.server.url(place.database, "controller")
    with connected(url, lease_s=3600) as (_first, leases), connected(url) as (_second, others):
        leases.take(place.name)
        age(place, leases.controller_id, -86400.0)

        assert others.take(place.name).epoch == 2


def test_a_lease_that_is_given_back_is_free_at_once(place: PostgresPlace) -> None:
    url = place.server.url(place.database, "controller")
    with place.opened() as journal:
        journal.append(Milestone(1, 1))

    with connected(url) as (_database, others):
        assert others.take(place.name).epoch == 2


def test_one_who_takes_its_own_job_again_fences_what_it_sent_before(place: PostgresPlace) -> None:
    url = place.server.url(place.database, "controller")
    with connected(url) as (database, leases):
        before = PostgresJournal(database, leases, leases.take(place.name), SystemClock(), "b")
        leases.take(place.name)

        with pytest.raises(LeaseLostError):
            before.append(Milestone(1, 1))


def test_a_taker_waits_for_a_write_that_is_under_way_and_reads_it(place: PostgresPlace) -> None:
    """The write is held up between its row and its commit; its lease ends meanwhile."""
    import psycopg

    url = place.server.url(place.database, "controller")
    taken: list[JournalLease] = []
    with connected(url, lease_s=3600) as (_first, leases), connected(url) as (database, others):
        lease = leases.take(place.name)
        with psycopg.connect(place.server.url(place.database)) as slow:
            slow.execute(
                "SELECT rankmend.append(%s, %s, %s, 0, '', '{milestone}', '{1}', '{0}', '{1}', '{1}', '{b}',"
                " '{x}', ARRAY[decode(repeat('00', 16), 'hex')])",
                (place.name, leases.controller_id, lease.epoch),
            )
            age(place, leases.controller_id, 3600)
            taker = threading.Thread(target=lambda: taken.append(others.take(place.name)))
            taker.start()
            eventually(
                lambda: (
                    place.server.ask(
                        "postgres",
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND query LIKE '%%rankmend.take%%'",
                    )[0][0]
                    == 1
                ),
                "the taker waits",
            )
            assert taken == []
            slow.commit()
        taker.join(DEADLINE_S)

        assert [one.epoch for one in taken] == [lease.epoch + 1]
        found = database.read(
            "SELECT number FROM rankmend.record WHERE journal = %s", (place.name,)
        )
        assert found == [(1,)]


def test_of_two_controllers_that_write_the_clusters_journal_at_once_one_must_read_the_others_first(
    place: PostgresPlace,
) -> None:
    url = place.server.url(place.database, "controller")
    shared = JournalLease("cluster", 0)
    with connected(url) as (first, leases), connected(url) as (second, others):
        one = PostgresJournal(first, leases, shared, SystemClock(), "b", is_shared=True)
        other = PostgresJournal(second, others, shared, SystemClock(), "b", is_shared=True)
        one.append(Milestone(1, 1))

        with pytest.raises(JournalMovedError):
            other.append(Milestone(2, 1))
        assert [entry.record for entry in other.read_newer()] == [Milestone(1, 1)]
        assert other.append(Milestone(2, 1)).number == 2
        assert [entry.record for entry in one.read_newer()] == [Milestone(2, 1)]


def test_many_writers_of_the_clusters_journal_make_one_chain(place: PostgresPlace) -> None:
    url = place.server.url(place.database, "controller")
    shared = JournalLease("cluster", 0)

    def write_ten(attempt: int) -> None:
        with connected(url) as (database, leases):
            journal = PostgresJournal(database, leases, shared, SystemClock(), "b", is_shared=True)
            for step in range(10):
                while True:
                    try:
                        journal.append(Milestone(attempt, step))
                        break
                    except JournalMovedError:
                        journal.read_newer()

    writers = [threading.Thread(target=write_ten, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(DEADLINE_S)

    with connected(url) as (database, leases):
        journal = PostgresJournal(database, leases, shared, SystemClock(), "b", is_shared=True)
        entries = journal.opened
    assert [entry.number for entry in entries] == list(range(1, 41))
    for attempt in range(4):
        steps = [one.record.step for one in entries if one.record.attempt == attempt]  # type: ignore[union-attr]
        assert steps == list(range(10))


def test_a_stopped_controller_is_not_alive_and_cannot_write_the_clusters_journal(
    place: PostgresPlace,
) -> None:
    url = place.server.url(place.database, "controller")
    with connected(url, lease_s=3600) as (database, leases):
        journal = PostgresJournal(
            database, leases, JournalLease("cluster", 0), SystemClock(), "b", is_shared=True
        )
        age(place, leases.controller_id, 3600)

        with pytest.raises(JournalError, match=r"can't be written: .*has expired"):
            journal.append(Milestone(1, 1))


def test_a_journal_that_does_not_exist_is_named(place: PostgresPlace) -> None:
    missing = f"job:{uuid.uuid4()}"
    with connected(place.server.url(place.database, "controller")) as (_database, leases):
        with pytest.raises(StatementRefusedError, match=f"there is no journal {missing}"):
            leases.take(missing)
