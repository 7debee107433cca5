"""Snapshots of folds in PostgreSQL: whoever takes a job over folds what follows, and rests on none that does not fit."""

import logging
from collections.abc import Callable

import pytest

from recovery.journal import fold_snapshot, journal_reader
from recovery.journal.attempt_records import Milestone
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.fold_snapshot import Foundation, decode, encode
from recovery.journal.job_records import JobOpened
from recovery.journal.journal_reader import READ_ROWS_MAX
from recovery.journal.ledger import Ledger
from recovery.journal.postgres import postgres_journal
from recovery.journal.postgres.postgres_journal import PostgresJournal, read_journals
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, connected

pytestmark = [pytest.mark.site, pytest.mark.safety]

JOB = JobOpened("6f1c0a5e-0000-4000-8000-000000000001", "digits")


@pytest.fixture
def place(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace.make(postgres)


def ledger_of(journal: PostgresJournal) -> Ledger:
    known = journal.foundation
    return fold_all(journal.opened, None if known is None else known.ledger)


def write(place: PostgresPlace, steps: range, *, keeps: bool = True) -> Ledger:
    """Write milestones, and keep the fold; return it."""
    with place.opened(uses_snapshot=True) as journal:
        ledger = ledger_of(journal)
        first = [] if ledger.number else [JOB]
        entries = journal.append_many([*first, *(Milestone(0, step) for step in steps)])
        ledger = fold_all(entries, ledger)
        if keeps:
            journal.hold_fold(ledger)
            journal.save_fold()
    return ledger


def kept(place: PostgresPlace) -> tuple[int, bytes]:
    ((number, body),) = place.server.ask(place.database, "SELECT number, body FROM rankmend.fold")
    return number, bytes(body)


def spoil(place: PostgresPlace, body: bytes) -> None:
    place.server.ask(place.database, "UPDATE rankmend.fold SET body = %s", body)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.reason  # type: ignore[attr-defined]
        for record in caplog.records
        if record.getMessage() == "snapshot of the fold not used"
    ]


def test_a_start_and_a_takeover_read_only_what_follows_the_snapshot(place: PostgresPlace) -> None:
    write(place, range(1, 50))
    expected = write(place, range(50, 60), keeps=False)

    with place.opened(uses_snapshot=True) as journal:
        assert [entry.number for entry in journal.opened] == list(range(51, 61))
        assert ledger_of(journal) == expected
        assert journal.append(Milestone(0, 61)).number == 61
    with place.opened() as whole:
        assert whole.foundation is None
        assert len(whole.opened) == 61
    with connected(place.server.url(place.database, "controller")) as (database, leases):
        lease = place.take(leases)
        read = read_journals(database, [place.name])[place.name]
        assert [entry.number for entry in read.entries] == list(range(51, 62))
        options = (database, leases, lease, leases.clock, "boot-1")
        taken = PostgresJournal(*options, read=read, uses_snapshot=True)
        not_asked = PostgresJournal(*options, read=read)

        assert ledger_of(taken) == ledger_of(not_asked)
        assert (taken.foundation is None, not_asked.foundation is None) == (False, True)
        assert taken.append(Milestone(0, 62)).number == 62


Spoil = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        (lambda body: b"", "can't be read"),
        (lambda body: body[: len(body) // 2], "can't be read"),
        (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "it is damaged"),
        (lambda body: body.replace(fold_snapshot.maker().encode(), b"0" * len(fold_snapshot.maker())), "it was made by"),
        (lambda body: encode(Foundation(decode(body).ledger, b"x" * 16, 1.7e9)), "no such record"),
    ],
    ids=["empty", "cut off", "one bit", "other code", "another past"],
)  # fmt: skip
def test_a_snapshot_that_can_not_be_used_is_reported_and_all_is_folded(
    place: PostgresPlace, caplog: pytest.LogCaptureFixture, spoiled: Spoil, reason: str
) -> None:
    expected = write(place, range(1, 20))
    spoil(place, spoiled(kept(place)[1]))

    with caplog.at_level(logging.WARNING), place.opened(uses_snapshot=True) as journal:
        assert journal.foundation is None
        assert ledger_of(journal) == expected
    with connected(place.server.url(place.database, "controller")) as (database, _leases):
        read = read_journals(database, [place.name])[place.name]

    assert (read.foundation, len(read.entries)) == (None, 20)
    assert [reason in refusal for refusal in refusals(caplog)] == [True, True]


@pytest.mark.parametrize("part", [1, 2, 19, 20, 21])
def test_a_journal_is_read_in_parts_whichever_record_one_ends_with(
    place: PostgresPlace, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """A million records at once take longer than a statement may."""
    expected = write(place, range(1, 20), keeps=False)
    limited = postgres_journal._ROWS.replace(str(READ_ROWS_MAX), str(part))
    monkeypatch.setattr(postgres_journal, "_ROWS", limited)
    monkeypatch.setattr(postgres_journal, "READ_ROWS_MAX", part)
    monkeypatch.setattr(journal_reader, "READ_ROWS_MAX", part)

    with place.opened(uses_snapshot=True) as journal, place.stored() as stored:
        with stored.reading() as reader:
            assert list(reader.entries()) == list(journal.opened)
            assert list(reader.entries(3, 18)) == list(journal.opened[3:18])
        assert ledger_of(journal) == expected
        assert journal.read_newer() == ()
        assert len(read_journals(journal._database, [place.name])[place.name].entries) == 20


def test_a_snapshot_newer_than_the_journal_is_left_aside(
    place: PostgresPlace, caplog: pytest.LogCaptureFixture
) -> None:
    write(place, range(1, 20))
    place.change("DELETE FROM {record} WHERE number > 10")

    with caplog.at_level(logging.WARNING), place.opened(uses_snapshot=True) as journal:
        assert (journal.foundation, len(journal.opened)) == (None, 10)

    assert ["no such record 20" in refusal for refusal in refusals(caplog)] == [True]


def test_only_the_holder_of_the_lease_replaces_a_snapshot(
    place: PostgresPlace, caplog: pytest.LogCaptureFixture
) -> None:
    with place.opened(uses_snapshot=True) as journal:
        journal.hold_fold(fold_all(journal.append_many([JOB, Milestone(0, 1)])))
        with connected(place.server.url(place.database, "controller")) as (_database, others):
            place.server.ask(
                place.database,
                "UPDATE rankmend.journal SET holder = %s, epoch = epoch + 1 WHERE name = %s",
                others.controller_id,
                place.name,
            )
            with caplog.at_level(logging.WARNING):
                journal.save_fold()

    assert place.server.ask(place.database, "SELECT count(*) FROM rankmend.fold") == [(0,)]
    assert [record.getMessage() for record in caplog.records] == [
        "snapshot of the fold not written"
    ]


def test_a_snapshot_goes_with_its_job(place: PostgresPlace) -> None:
    write(place, range(1, 20))

    place.server.ask(place.database, "DELETE FROM rankmend.job")

    assert place.server.ask(place.database, "SELECT count(*) FROM rankmend.fold") == [(0,)]
