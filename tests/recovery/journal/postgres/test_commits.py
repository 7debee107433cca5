"""Writes whose answers were lost: read back before anything is done, written once."""

import threading
from collections.abc import Iterator

import pytest

from rankmend.errors import JournalError
from recovery.journal.attempt_records import Milestone
from recovery.journal.postgres.database import CommitUnknownError, DatabaseAwayError
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, Wire

pytestmark = [pytest.mark.site, pytest.mark.safety]


@pytest.fixture
def place(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace.make(postgres)


@pytest.fixture
def wire(postgres: PostgresServer) -> Iterator[Wire]:
    wire = Wire(postgres.port)
    yield wire
    wire.close()


@pytest.mark.component("PostgreSQL")
def test_a_commit_whose_answer_was_cut_off_is_read_back_and_counts_once(
    place: PostgresPlace, wire: Wire
) -> None:
    with place.opened(port=wire.port) as journal:
        journal.append(Milestone(1, 1))
        wire.lose_answer(to=b"rankmend.append")

        entries = journal.append_many([Milestone(1, 2), Milestone(1, 3)])

        assert wire.cuts == 1
        assert [entry.number for entry in entries] == [2, 3]
        assert journal.append(Milestone(1, 4)).number == 4
    assert [entry.record for entry in place.read()] == [Milestone(1, step) for step in range(1, 5)]


def test_a_statement_that_was_lost_on_its_way_is_sent_again(
    place: PostgresPlace, wire: Wire
) -> None:
    with place.opened(port=wire.port) as journal:
        journal.append(Milestone(1, 1))
        wire.lose_statement(b"rankmend.append")

        entry = journal.append(Milestone(1, 2))

        assert wire.cuts == 1
        assert entry.number == 2
    assert len(place.read()) == 2


def test_a_write_of_which_nothing_is_heard_stays_unknown_and_the_journal_writes_no_more(
    place: PostgresPlace, wire: Wire
) -> None:
    with place.opened(port=wire.port, doubt_s_max=0.5) as journal:
        journal.append(Milestone(1, 1))
        wire.lose_answer(to=b"rankmend.append")
        wire.cut_for_good = True

        with pytest.raises(CommitUnknownError, match="record 2"):
            journal.append(Milestone(1, 2))
        wire.cut_for_good = False
        wire.is_open = True
        with pytest.raises(CommitUnknownError):  # also once the server is there again
            journal.append(Milestone(1, 3))

    end_leases = "UPDATE rankmend.controller SET expires_at = clock_timestamp()"
    place.server.ask(place.database, end_leases)  # as time does
    with place.opened(waits=True) as again:
        assert [entry.record for entry in again.opened] == [Milestone(1, 1), Milestone(1, 2)]


def test_a_server_that_is_away_fails_writes_at_once_and_they_are_not_unknown(
    place: PostgresPlace, wire: Wire
) -> None:
    with place.opened(port=wire.port) as journal:
        journal.append(Milestone(1, 1))
        wire.close_all()
        database = journal._database
        with pytest.raises(JournalError):
            database.probe()

        assert database.away_s is not None
        with pytest.raises(DatabaseAwayError):
            journal.append(Milestone(1, 2))

        wire.is_open = True
        eventually(lambda: database.away_s is None, "the leases' thread has found it again")
        assert journal.append(Milestone(1, 3)).number == 2
    assert [entry.record for entry in place.read()] == [Milestone(1, 1), Milestone(1, 3)]


def test_a_commit_that_waits_for_a_standby_when_its_backend_is_ended_is_unknown_until_a_standby_has_it(
    postgres: PostgresServer, place: PostgresPlace
) -> None:
    """The backend has committed when it is told to end; the answer is a warning, and then nothing."""
    done: list[object] = []
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%append%'"
    with place.opened() as journal:
        journal.append(Milestone(1, 1))
        try:
            postgres.want_standby("nobody")
            writer = threading.Thread(target=lambda: done.append(journal.append(Milestone(1, 2))))
            writer.start()
            eventually(lambda: postgres.ask("postgres", waiting)[0][0] == 1, "a waiting commit")
            postgres.ask(
                "postgres",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE wait_event = 'SyncRep' AND query LIKE '%append%'",
            )
            confirming = waiting.replace("append", "confirm")
            eventually(
                lambda: postgres.ask("postgres", confirming)[0][0] == 1, "it is read back and waits"
            )
            assert done == []  # the row can be seen by now, and no standby has it
            assert len(postgres.ask(place.database, "SELECT number FROM rankmend.record")) == 2
        finally:
            postgres.ask("postgres", "ALTER SYSTEM RESET synchronous_standby_names")
            postgres.ask("postgres", "SELECT pg_reload_conf()")
        writer.join(DEADLINE_S)

    assert [entry.number for entry in done] == [2]  # type: ignore[attr-defined]
    assert len(place.read()) == 2


def test_a_commit_that_came_back_with_a_warning_is_confirmed_before_it_counts(
    postgres: PostgresServer, place: PostgresPlace
) -> None:
    done: list[object] = []
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE "
    waiting, confirming = f"{waits}'%append%'", f"{waits}'%confirm%'"
    with place.opened() as journal:
        journal.append(Milestone(1, 1))
        try:
            postgres.want_standby("nobody")
            writer = threading.Thread(target=lambda: done.append(journal.append(Milestone(1, 2))))
            writer.start()
            eventually(lambda: bool(postgres.ask("postgres", waiting)), "a waiting commit")
            # The commit returns as if it were done, with a warning that no standby may have it.
            postgres.ask("postgres", f"SELECT pg_cancel_backend(pid) FROM ({waiting}) AS waiting")
            eventually(lambda: bool(postgres.ask("postgres", confirming)), "it is confirmed")
            assert done == []
        finally:
            postgres.ask("postgres", "ALTER SYSTEM RESET synchronous_standby_names")
            postgres.ask("postgres", "SELECT pg_reload_conf()")
        writer.join(DEADLINE_S)

    assert [entry.number for entry in done] == [2]  # type: ignore[attr-defined]
