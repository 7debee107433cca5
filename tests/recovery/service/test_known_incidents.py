"""The newest incidents of many jobs: the same as by reading every journal whole, without reading it."""

import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from recovery.api import wire
from recovery.console.views.incident_view import view_incidents
from recovery.console.views.job_incidents import JobIncidents
from recovery.journal.records import Entry
from recovery.journal.stored_journal import JournalFile
from recovery.service.jobs.known_incidents import JobPlace, KnownIncidents
from tests.support.goodput_jobs import BEGIN, FAILED, OPENED, Timed, entries_of
from tests.support.long_journals import with_progress, write
from tests.support.old_journals import JOBS, read

pytestmark = pytest.mark.process


def add(path: Path, entries: list[Entry], after: int) -> None:
    """Write the entries behind a number to a journal that holds those before."""
    folder = path.parent / "more"
    folder.mkdir(exist_ok=True)
    (folder / "journal.db").unlink(missing_ok=True)
    other = write(folder, entries)
    connection = sqlite3.connect(path)
    connection.execute("ATTACH ? AS other", (str(other),))
    connection.execute("INSERT INTO record SELECT * FROM other.record WHERE number > ?", (after,))
    connection.commit()
    connection.close()


def incident(name: str, at_s: float) -> tuple[Timed, ...]:
    return (at_s, replace(OPENED, incident_id=name)), *((at_s, one) for _at_s, one in FAILED[2:3])


def place(folder: Path, job: str, *told: Timed, written_s: float) -> JobPlace:
    (folder / job).mkdir()
    path = write(folder / job, entries_of(*BEGIN, *told))
    for name in ("journal.db", "journal.db-wal"):
        if (path.parent / name).exists():
            os.utime(path.parent / name, (written_s, written_s))
    return JobPlace(job, job, JournalFile(path.parent))


@pytest.mark.safety
@pytest.mark.parametrize("case", JOBS)
def test_a_journal_that_grows_gives_the_incidents_of_the_whole(case: str, tmp_path: Path) -> None:
    random = Random(case)
    entries = with_progress(read(case).entries(), random, 6)
    part = random.randrange(1, len(entries))
    path = write(tmp_path, entries[:part])
    incidents = JobIncidents(JournalFile(path.parent), "llama")

    assert incidents.read() == view_incidents(entries[:part], "llama")
    add(path, entries, part)
    assert incidents.read() == view_incidents(entries, "llama")


@pytest.mark.safety
def test_another_journal_in_the_place_of_one_is_read_anew(tmp_path: Path) -> None:
    told = entries_of(*BEGIN, *FAILED)
    path = write(tmp_path, told)
    incidents = JobIncidents(JournalFile(path.parent), "llama")
    incidents.read()
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    write(tmp_path, entries_of(*BEGIN, *((1.0 + at, one) for at, one in FAILED)))

    (found,) = incidents.read()

    assert found.opened_unix_s == 6001.0


def test_the_newest_come_first_and_no_more_than_asked_for(tmp_path: Path) -> None:
    one = place(tmp_path, "a", *incident("a-1", 100.0), *incident("a-2", 300.0), written_s=9000.0)
    other = place(tmp_path, "b", *incident("b-1", 200.0), *incident("b-2", 400.0), written_s=9001.0)

    found = KnownIncidents().newest([one, other], 3)

    assert [view.incident_id for view in found] == ["b-2", "a-2", "b-1"]


@pytest.mark.safety
def test_a_journal_that_was_written_before_the_last_of_them_is_not_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = place(tmp_path, "a", *incident("a-1", 100.0), *incident("a-2", 300.0), written_s=9000.0)
    old = place(tmp_path, "b", *incident("b-1", 50.0), written_s=5060.0)
    (old.journal.folder / "journal.db").write_bytes(b"no journal")
    os.utime(old.journal.folder / "journal.db", (5060.0, 5060.0))

    assert [one.incident_id for one in KnownIncidents().newest([old, new], 2)] == ["a-2", "a-1"]
    assert caplog.text == ""
    assert len(KnownIncidents().newest([old, new], 3)) == 2
    assert "cannot read the journal of a job" in caplog.text


@pytest.mark.safety
def test_journals_that_were_never_asked_come_with_the_next_looks(tmp_path: Path) -> None:
    places = [
        place(tmp_path, job, *incident(f"{job}-1", 100.0 + at), written_s=9000.0 + at)
        for at, job in enumerate("abc")
    ]
    known = KnownIncidents()

    looks = [[one.job for one in known.newest(places, 9, opens_max=1)] for _look in range(3)]

    assert looks == [["c"], ["c", "b"], ["c", "b", "a"]]


@pytest.mark.safety
def test_a_journal_that_has_not_grown_is_not_read_again(tmp_path: Path) -> None:
    one = place(tmp_path, "a", *incident("a-1", 100.0), written_s=time.time() - 60.0)
    known = KnownIncidents()
    first = known.newest([one], 9)
    status = (one.journal.folder / "journal.db").stat()
    (one.journal.folder / "journal.db").write_bytes(b"x" * status.st_size)
    os.utime(one.journal.folder / "journal.db", ns=(status.st_mtime_ns, status.st_mtime_ns))

    assert known.newest([one], 9) == first


def test_of_a_job_with_very_many_incidents_only_as_many_as_an_answer_has_are_kept(
    tmp_path: Path,
) -> None:
    many = wire.INCIDENTS_MAX + 3
    told = [one for at in range(many) for one in incident(f"a-{at}", 100.0 + at)]
    job = place(tmp_path, "a", *told, written_s=9000.0)
    incidents = JobIncidents(job.journal, "a")

    views = incidents.read()

    assert [one.incident_id for one in views] == [f"a-{at}" for at in range(3, many)]
    assert len(incidents._accounting.accounts()) == wire.INCIDENTS_MAX
