"""What readers of a journal are told wherever it is kept: they ask for a part, and get what is in the whole."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest

from rankmend.errors import JournalError
from recovery.accounting.goodput.figures import clip
from recovery.accounting.goodput.time_spent import read_time
from recovery.accounting.goodput.time_window import catch_up, read_job_time
from recovery.accounting.readings.reading_file import read_readings
from recovery.console.views.incident_view import view_incidents
from recovery.console.views.job_incidents import JobIncidents
from recovery.journal.journal_reader import JournalReader
from recovery.journal.ledger import Moment
from recovery.journal.postgres.postgres_journal import written
from recovery.journal.records import Entry
from recovery.service.jobs.known_incidents import JobPlace, KnownIncidents
from recovery.service.jobs.postgres_jobs import JournalRows
from tests.support.agent_readings import followed, honest, opened_on
from tests.support.eventually import eventually
from tests.support.goodput_jobs import BEGIN, END, FAILED, entries_of
from tests.support.journals import JournalPlace, PostgresPlace, SqlitePlace
from tests.support.long_journals import with_progress
from tests.support.old_journals import JOBS, read

pytestmark = [pytest.mark.process, pytest.mark.safety]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> JournalPlace:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "journal.db")
    return PostgresPlace.make(request.getfixturevalue("postgres"))


def long_journal(seed: int) -> list[Entry]:
    random = Random(seed)
    return with_progress(read(random.choice(sorted(JOBS))).entries(), random, 12)


@pytest.mark.parametrize("seed", range(4))
def test_time_of_a_window_is_that_of_the_whole_journal(seed: int, place: JournalPlace) -> None:
    entries = long_journal(seed)
    end = entries[-1]
    now = Moment(end.unix_s + 5.0, end.monotonic_s + 5.0, end.boot_id)
    since_unix_s = entries[len(entries) // 2].unix_s
    place.add(entries)

    with place.stored() as journal:
        found = [read_job_time(journal, now), read_job_time(journal, None, since_unix_s)]

    whole = read_time(entries)
    assert whole is not None
    assert found == [read_time(entries, now), clip(whole, since_unix_s)]


def test_account_catches_up_with_a_record_in_the_middle(place: JournalPlace) -> None:
    entries = long_journal(5)
    place.add(entries)

    def reads() -> Iterator[None]:
        with place.stored() as journal:
            result = yield from catch_up(journal, len(entries) - 3)
        assert result is not None
        for entry in entries[-3:]:
            result.take(entry)
        whole = read_time(entries)
        assert whole is not None
        assert result.so_far().spans == whole.spans

    assert all(step is None for step in reads())


def test_account_of_a_journal_that_was_set_back_is_an_error_and_has_no_gap(
    place: JournalPlace,
) -> None:
    entries = long_journal(5)
    place.add(entries[:-3])  # as a backup has it; the controller had seen three records more

    with place.stored() as journal, pytest.raises(JournalError, match="it was set back"):
        list(catch_up(journal, len(entries)))


@pytest.mark.parametrize("seed", range(3))
def test_incidents_of_a_journal_that_grows_are_those_of_the_whole(
    seed: int, place: JournalPlace
) -> None:
    entries = long_journal(seed)
    part = Random(seed).randrange(1, len(entries))
    place.add(entries[:part])

    with place.stored() as journal:
        incidents = JobIncidents(journal, "llama")
        first = incidents.read()
        place.add(entries[part:])
        second = incidents.read()

    assert first == view_incidents(entries[:part], "llama")
    assert second == view_incidents(entries, "llama")


def test_entries_are_those_that_were_asked_for(place: JournalPlace) -> None:
    entries = entries_of(*BEGIN, *FAILED, *END)
    place.add(entries)

    with place.stored() as journal, journal.reading() as reader:
        assert list(reader.entries(2, 5)) == entries[2:5]
        assert list(reader.entries()) == entries
        assert reader.last_number() == len(entries)
        assert reader.row(len(entries) + 1) is None


def test_controller_that_starts_within_an_incident_reads_the_agent_at_its_end(
    place: JournalPlace, tmp_path: Path
) -> None:
    entries = opened_on("n1", entries_of(*BEGIN, *FAILED))
    place.add(entries)

    with place.stored() as journal, journal.reading() as reader:
        opened = list(reader.entries(0, 9))
    with followed(honest) as (readings, _server):
        readings.journal_opened("job", tmp_path, opened)
        for entry in entries[9:]:
            readings.entry("job", tmp_path, entry)
        eventually(lambda: bool(read_readings(tmp_path, "inc-1")), "the reading")

    assert [one.at.value for one in read_readings(tmp_path, "inc-1")] == ["closed"]


@pytest.mark.parametrize("number", [4, 6])
def test_damaged_record_that_counts_is_an_error(number: int, place: JournalPlace) -> None:
    place.add(entries_of(*BEGIN, *FAILED, *END))
    place.change(f"UPDATE {{record}} SET unix_s = unix_s + 1 WHERE number = {number}")

    with place.stored() as journal, pytest.raises(JournalError, match=f"record {number} is dam"):
        read_job_time(journal)


def test_missing_record_is_an_error(place: JournalPlace) -> None:
    place.add(entries_of(*BEGIN, *FAILED, *END))
    place.change("DELETE FROM {record} WHERE number = 6")

    with place.stored() as journal, pytest.raises(JournalError, match="1 records are missing"):
        read_job_time(journal)


def test_end_in_a_database_is_never_torn(postgres_place: PostgresPlace) -> None:
    entries = entries_of(*BEGIN, *FAILED)
    postgres_place.add(entries)
    postgres_place.change(
        f"UPDATE {{record}} SET unix_s = unix_s + 1 WHERE number = {len(entries)}"
    )

    with postgres_place.stored() as journal, journal.reading() as reader:
        with pytest.raises(JournalError, match=f"record {len(entries)} is damaged"):
            reader.last_number()
        with pytest.raises(JournalError, match=f"record {len(entries)} is damaged"):
            list(reader.entries())


class Counted(JournalRows):
    """Counts how often it is opened."""

    times = 0

    def reading(self) -> AbstractContextManager[JournalReader]:
        Counted.times += 1
        return super().reading()


def test_list_of_incidents_reads_only_journals_that_have_grown(
    postgres_place: PostgresPlace,
) -> None:
    entries = entries_of(*BEGIN, *FAILED, *END)
    postgres_place.add(entries[:3])
    found, before = [], Counted.times

    with postgres_place.stored() as rows:
        journal = Counted(rows.database, rows.name, rows.folder)
        known = KnownIncidents(lambda _journals: written(journal.database, [journal.name]))
        for more in ([], [], entries[3:], []):
            if more:
                postgres_place.add(more)
            found.append(len(known.newest([JobPlace("job", "llama", journal)], 99)))

    assert found == [0, 0, 1, 1]
    assert Counted.times - before == 2


@pytest.fixture
def postgres_place(request: pytest.FixtureRequest) -> PostgresPlace:
    return PostgresPlace.make(request.getfixturevalue("postgres"))
