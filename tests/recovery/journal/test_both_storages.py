"""What holds for a journal wherever it is kept: in a file of SQLite, and in PostgreSQL."""

import signal
import threading
from pathlib import Path

import pytest

from rankmend.errors import JournalError
from recovery.journal import records
from recovery.journal.attempt_records import Milestone
from recovery.journal.job_records import BudgetsReset, JobOpened
from recovery.journal.node_records import NodeLeft
from tests.support.journals import JournalPlace, PostgresPlace, SqlitePlace

pytestmark = [pytest.mark.process, pytest.mark.safety]

JOB = JobOpened("6f1c0a5e-0000-4000-8000-000000000001", "digits")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> JournalPlace:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "journal.db")
    return PostgresPlace.make(request.getfixturevalue("postgres"))


def write(place: JournalPlace, steps: int) -> None:
    with place.opened() as journal:
        journal.append_many([JOB, *(Milestone(1, step) for step in range(1, steps + 1))])


def test_records_come_back_numbered_from_one_in_order(place: JournalPlace) -> None:
    write(place, steps=3)

    with place.opened() as journal:
        assert journal.warnings == ()
        assert [(entry.number, entry.record) for entry in journal.opened] == [
            (1, JOB),
            (2, Milestone(1, 1)),
            (3, Milestone(1, 2)),
            (4, Milestone(1, 3)),
        ]
        assert journal.append(Milestone(1, 4)).number == 5
        assert journal.last_number == 5


def test_append_many_writes_all_under_consecutive_numbers(place: JournalPlace) -> None:
    with place.opened() as journal:
        entries = journal.append_many([JOB, Milestone(1, 1), Milestone(1, 2)])

    assert [entry.number for entry in entries] == [1, 2, 3]
    assert place.read() == entries


def test_ten_thousand_nodes_that_are_left_at_once_are_one_write(place: JournalPlace) -> None:
    left = [NodeLeft(f"n{number}", "silent", is_lost=True) for number in range(10_000)]

    with place.opened() as journal:
        entries = journal.append_many(left)

    assert [entry.number for entry in entries] == list(range(1, 10_001))


def test_many_threads_that_append_get_each_its_own_number(place: JournalPlace) -> None:
    numbers: list[int] = []

    def append_ten(attempt: int) -> None:
        for step in range(10):
            numbers.append(journal.append(Milestone(attempt, step)).number)

    with place.opened() as journal:
        threads = [threading.Thread(target=append_ten, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)

    assert sorted(numbers) == list(range(1, 81))
    assert len(place.read()) == 80


def test_a_reader_sees_acknowledged_records_while_the_writer_works(place: JournalPlace) -> None:
    with place.opened() as journal:
        journal.append(JOB)

        first = place.read()
        journal.append(Milestone(1, 1))
        second = place.read()

    assert [len(first), len(second)] == [1, 2]
    assert len(place.read()) == 2  # and after it has gone


@pytest.mark.parametrize(
    "damage",
    [
        "unix_s = unix_s + 1",
        "boot_id = 'another'",
        "kind = 'caught_up'",
    ],
)
def test_a_changed_record_in_the_middle_is_refused_by_its_number(
    place: JournalPlace, damage: str
) -> None:
    write(place, steps=4)
    place.change(f"UPDATE {{record}} SET {damage} WHERE number = 3")

    with pytest.raises(JournalError, match="record 3 is damaged"), place.opened():
        pass


def test_a_gap_in_the_numbers_is_refused(place: JournalPlace) -> None:
    write(place, steps=4)
    place.change("DELETE FROM {record} WHERE number = 3")

    with pytest.raises(JournalError, match="record 3 is missing"), place.opened():
        pass


def test_kill_9_of_the_writer_loses_nothing_that_was_acknowledged(place: JournalPlace) -> None:
    with place.start_writer() as writer:
        acknowledged = 0
        assert writer.stdout is not None
        while acknowledged < 50:
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout:  # what it had said before it died
            if line.endswith("\n"):
                acknowledged = int(line)

    assert len(place.read()) - acknowledged in (0, 1)


def test_a_record_that_is_too_large_is_refused_and_the_journal_goes_on(
    place: JournalPlace,
) -> None:
    with place.opened() as journal:
        with pytest.raises(JournalError, match="over the limit"):
            journal.append(BudgetsReset("me", "x" * records.BODY_BYTES_MAX))

        assert journal.append(JOB).number == 1


def test_a_closed_journal_says_so(place: JournalPlace) -> None:
    with place.opened() as journal:
        pass

    with pytest.raises(JournalError, match="is closed"):
        journal.append(JOB)
