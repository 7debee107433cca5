"""The account of a part of a journal is that of the whole journal, cut: to a microsecond."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmend.errors import JournalError
from recovery.accounting.goodput.figures import clip
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_spent import read_time
from recovery.accounting.goodput.time_window import (
    CLOCK_SET_S_MAX,
    catch_up,
    read_job_time,
    read_window,
)
from recovery.journal.attempt_records import (
    AttemptAbandoned,
    Cause,
    Milestone,
    RelativeMilestone,
    WorkSeen,
)
from recovery.journal.incident_machine import Outcome
from recovery.journal.job_records import JobOpened, LauncherStarted, PersonActed
from recovery.journal.journal_reader import JournalReader
from recovery.journal.ledger import Moment
from recovery.journal.records import Entry
from recovery.journal.store import open_readonly
from recovery.journal.stored_journal import JournalFile, StoredJournal
from recovery.messages.outside import PersonAct, PersonCommand
from tests.support.goodput_jobs import (
    BEGIN,
    END,
    FAILED,
    SECOND,
    VERIFIED,
    Timed,
    entries_of,
    event,
)
from tests.support.long_journals import with_progress, write
from tests.support.old_journals import JOBS, read

pytestmark = pytest.mark.process

# Each writes a journal and reads it six times.
FEW = settings(max_examples=min(60, settings().max_examples))
WORK = WorkSeen(1, 1.0, 0.0, 4, 1e12, 8.0, 2.0)
AGAIN = LauncherStarted(("n1",), 4, 2, "0", alive_age_s=20.0)
TAKEOVER: tuple[Timed, ...] = (
    (1100.0, AGAIN),
    (1200.0, AttemptAbandoned(2, "its ranks are gone")),
    (1300.0, SECOND),
)


def whole(path: Path, now: Moment | None, since_unix_s: float | None) -> JobTime | None:
    """Return the account by all that is in the journal."""
    return cut(read_time(open_readonly(path).entries, now), since_unix_s)


def cut(time: JobTime | None, since_unix_s: float | None) -> JobTime | None:
    return time if time is None or since_unix_s is None else clip(time, since_unix_s)


def rounded(value: Any) -> Any:
    """Return the value with its times to a microsecond: two orders of additions differ in the last bit."""
    match value:
        case float():
            return round(value, 6)
        case list() | tuple():
            return [rounded(one) for one in value]
        case dict():
            return {rounded(key): rounded(one) for key, one in value.items()}
    if is_dataclass(value):
        return {field.name: rounded(getattr(value, field.name)) for field in fields(value)}
    return value


def check(entries: Sequence[Entry], random: Random, torn: int = 0) -> None:
    end = entries[-1]
    now = random.choice((None, Moment(end.unix_s + 5.0, end.monotonic_s + 5.0, end.boot_id)))
    with TemporaryDirectory() as folder:
        path = write(Path(folder), entries, min(torn, len(entries)))
        # Two clocks put a record at two times that differ in the last bit: no window may begin just there.
        beside_s = 0.013 if len({entry.boot_id for entry in entries}) > 1 else 0.0
        moments = [
            random.choice(entries).unix_s + random.choice((-0.5, 0.0, 0.5)) + beside_s
            for _ in range(3)
        ]
        entire = whole(path, now, None)
        as_passed_on = random.choice((*moments, end.unix_s + 100.0))
        for since_unix_s in (None, *moments, end.unix_s + 100.0):
            expected = rounded(cut(entire, since_unix_s))
            read = read_job_time(JournalFile(path.parent), now, since_unix_s)
            assert rounded(read) == expected
            if since_unix_s == as_passed_on:  # as a controller passes it on
                window = read_window(JournalFile(path.parent), since_unix_s)
                assert rounded(cut(read_time(window, now), since_unix_s)) == expected


@dataclass(frozen=True)
class CountedJournal:
    """A journal in a file that counts the records which are read of it."""

    file: JournalFile
    numbers: set[int] = field(default_factory=set)

    @contextmanager
    def reading(self) -> Iterator[JournalReader]:
        with self.file.reading() as reader:
            ask = reader.ask

            def counted(question: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
                for row in ask(question, values):
                    if question.startswith("SELECT r."):
                        self.numbers.add(row[0])
                    yield row

            reader.ask = counted  # type: ignore[method-assign]
            yield reader


def counted_reads(path: Path, since_unix_s: float | None) -> int:
    journal = CountedJournal(JournalFile(path))
    read_job_time(cast(StoredJournal, journal), None, since_unix_s)
    return len(journal.numbers)


def test_a_report_reads_by_time_and_nothing_of_a_job_that_had_ended(tmp_path: Path) -> None:
    hour_s = 3600.0
    works = tuple((1000.0 + minute * 60.0, WORK) for minute in range(1, 6000))
    entries = entries_of(*BEGIN, *works)
    write(tmp_path, entries)
    end_unix_s = entries[-1].unix_s

    whole_job = counted_reads(tmp_path, None)
    last_hour = counted_reads(tmp_path, end_unix_s - hour_s)
    day_after = counted_reads(tmp_path, end_unix_s + CLOCK_SET_S_MAX + 1.0)

    assert whole_job == len(entries)
    assert last_hour < 60 + 3 * len(BEGIN) + 20
    assert day_after == 0


@pytest.mark.safety
@pytest.mark.thorough
@FEW
@given(case=st.sampled_from(JOBS), seed=st.integers(0, 2**32), torn=st.integers(0, 30))
def test_of_a_journal_of_an_old_version_also_with_a_torn_end(
    case: str, seed: int, torn: int
) -> None:
    random = Random(seed)
    check(with_progress(read(case).entries(), random, random.choice((3, 40))), random, torn)


@FEW
@given(seed=st.integers(0, 2**32), end=st.integers(1, 2000), torn=st.integers(0, 30))
def test_of_a_job_with_incidents_and_times_in_which_nobody_wrote(
    seed: int, end: int, torn: int
) -> None:
    random = Random(seed)
    told = random.choice(((*BEGIN, *FAILED, *END), (*BEGIN, *FAILED, *TAKEOVER), BEGIN))
    entries = entries_of(*told)
    if random.random() < 0.3:  # the node was booted meanwhile
        place = random.randrange(1, len(entries))
        entries[place:] = entries_of(*told, boot="boot-2")[place:]
    check(with_progress(entries, random, 120)[:end], random, torn)


def steps(attempt: int, begin_s: int, first: int, count: int = 60) -> tuple[Timed, ...]:
    """Return progress and work of each second."""
    told = (
        ((at_s, Milestone(attempt, step, step - 1)), (at_s, WORK))
        for at_s, step in ((float(begin_s + at), first + at) for at in range(count))
    )
    return tuple(one for pair in told for one in pair)


def relative(attempt: int, begin_s: int, first: int, count: int = 60) -> tuple[Timed, ...]:
    return tuple(
        (float(begin_s + at), RelativeMilestone(attempt, first + at, None)) for at in range(count)
    )


TRAINED = (*BEGIN, *steps(1, 20, 60))
CANCEL = PersonActed(PersonCommand(PersonAct.CANCEL, "ann", "", "key"), "cancelled")
CASES = {
    "it passes the highest step from before, and no other record tells it": (
        *TRAINED,
        *FAILED[:-1],
        *steps(2, 1010, 100),
    ),
    "it passes the highest relative step from before": (
        *BEGIN[:3],
        (10.0, replace(BEGIN[3][1], is_comparable=False)),
        *relative(1, 20, 60),
        *FAILED[:8],
        (1008.0, replace(VERIFIED, is_comparable=False)),
        (1008.5, FAILED[9][1]),
        *relative(2, 1010, 100),
    ),
    "an older record tells a higher step than the newest": (
        *TRAINED,
        (90.0, Milestone(1, 900, 3)),
        *steps(1, 100, 90),
        *FAILED,
        *steps(2, 1030, 100),
    ),
    "a controller begins to write, and the last record before tells since when none wrote": (
        *TRAINED,
        (200.0, WORK),
        (500.0, replace(AGAIN, nodes=(), alive_age_s=None)),
        (600.0, AttemptAbandoned(1, "gone")),
        (700.0, replace(SECOND, cause=Cause.TAKEOVER, incident_id=None)),
    ),
    "ranks show life after a controller began to write": (
        *TRAINED,
        (500.0, replace(AGAIN, nodes=(), alive_age_s=None)),
        *steps(1, 510, 200),
        *FAILED[1:],
    ),
    "a step ends what a person had set aside": (
        *TRAINED,
        *FAILED[:3],
        (1000.25, CANCEL),
        (1000.5, event(Outcome.CANCEL, "inc-1")),
        *steps(1, 1100, 20),
        *steps(1, 1200, 200),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_moment_of_a_job_in_which(name: str, tmp_path: Path) -> None:
    entries = entries_of(*CASES[name])
    path, end = write(tmp_path, entries, torn=0), entries[-1]
    now = Moment(end.unix_s + 5.0, end.monotonic_s + 5.0, end.boot_id)
    entire = whole(path, now, None)
    assert read_job_time(JournalFile(path.parent), now) == entire

    for place in {*range(0, len(entries), 7), *range(max(0, len(entries) - 8), len(entries))}:
        since_unix_s = entries[place].unix_s + 0.5
        found = read_job_time(JournalFile(path.parent), now, since_unix_s)
        assert found == cut(entire, since_unix_s)


def test_the_time_of_a_boot_counts_from_the_last_record_before_it(tmp_path: Path) -> None:
    entries = entries_of(*TRAINED, (200.0, WORK), (600.0, AttemptAbandoned(1, "gone")))
    entries[-2] = replace(entries[-2], unix_s=5250.0)  # the clock was set meanwhile
    entries[-1] = replace(entries[-1], boot_id="boot-2", monotonic_s=7.0, unix_s=7000.0)
    path = write(tmp_path, entries)

    assert read_job_time(JournalFile(path.parent)) == whole(path, None, None)
    assert read_job_time(JournalFile(path.parent), None, 5400.0) == whole(path, None, 5400.0)


def test_who_follows_a_job_catches_up_to_the_same_account_but_for_what_it_was_told(
    tmp_path: Path,
) -> None:
    entries = entries_of(
        *CASES["it passes the highest step from before, and no other record tells it"]
    )
    path, through = write(tmp_path, entries), len(entries) - 40
    read = catch_up(JournalFile(path.parent), through)
    while True:
        try:
            next(read)
        except StopIteration as end:
            reading = end.value
            break
    for entry in entries[through:]:
        reading.take(entry)

    found, expected = reading.so_far(), whole(path, None, None)
    assert found == replace(expected, work=expected.work[-1:], steps=expected.steps[-1:])


def test_a_job_goes_on_from_its_last_record_whatever_that_is(tmp_path: Path) -> None:
    entries = entries_of(*TRAINED, (200.0, WORK))
    entries[-1] = replace(entries[-1], unix_s=5250.0)
    path, now = write(tmp_path, entries), Moment(6000.0, 3.0, "boot-2")

    assert read_job_time(JournalFile(path.parent), now, 5600.0) == whole(path, now, 5600.0)


def test_records_of_progress_and_work_from_before_are_not_read(tmp_path: Path) -> None:
    progress: list[Timed] = []
    for at in range(1000):
        progress += [(20.0 + at, Milestone(1, at + 2, at)), (20.0 + at, WORK)]
    path = write(tmp_path, entries_of(*BEGIN, *progress))
    expected = whole(path, None, 5000.0 + 900.0)
    _damage(path, "number BETWEEN 100 AND 200 AND kind = 'work_seen'")

    assert read_job_time(JournalFile(path.parent), None, 5000.0 + 900.0) == expected
    with pytest.raises(JournalError, match=r"record 1\d\d is damaged"):
        read_job_time(JournalFile(path.parent))


def test_a_damaged_record_that_counts_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, entries_of(*BEGIN, *FAILED, *END))
    _damage(path, "number = 4")

    with pytest.raises(JournalError, match="record 4 is damaged"):
        read_job_time(JournalFile(path.parent), None, 5000.0 + 1500.0)


def test_a_missing_record_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, entries_of(*BEGIN, *((20.0 + at, Milestone(1, at)) for at in range(50))))
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM record WHERE number = 20")
    connection.commit()
    connection.close()

    with pytest.raises(JournalError, match="1 records are missing"):
        read_job_time(JournalFile(path.parent), None, 5000.0 + 60.0)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\\xff\\xfe", b'{"step": "x"}', b"null"])
def test_progress_that_is_damaged_is_an_error_or_left_out_and_nothing_else(
    tmp_path: Path, body: bytes
) -> None:
    steps = [(20.0 + at, Milestone(1, at)) for at in range(50)]
    path = write(tmp_path, entries_of(*BEGIN, *steps, (100.0, JobOpened("job-1", "llama"))))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE record SET body = ? WHERE number = 20", (body,))
    connection.commit()
    connection.close()

    try:
        found = read_job_time(JournalFile(path.parent))
    except JournalError:
        return
    assert found is not None
    assert found.attempts[-1].highest_step == 49


def _damage(path: Path, where: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE record SET body = body || ' ' WHERE {where}")
    connection.commit()
    connection.close()
