"""The threads that write what jobs hand in, on real journals."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from rankmend.errors import JournalError
from recovery.journal.attempt_records import AttemptAbandoned, Milestone
from recovery.journal.committer import BOOKKEEPING_MAX, CommitThreads
from recovery.journal.pen import AheadPen
from recovery.journal.records import Entry
from recovery.journal.store import Journal, open_readonly
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [pytest.mark.process, pytest.mark.safety]


class StuckJournal(Journal):
    """A journal whose disk answers only once it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SystemClock(), "boot-1")
        self.may_write = threading.Event()
        self.may_write.set()
        self.failures: list[JournalError] = []
        self.is_waiting = threading.Event()

    def append_entries(self, entries: Sequence[Entry]) -> None:
        self.is_waiting.set()
        assert self.may_write.wait(DEADLINE_S)
        if self.failures:
            raise self.failures.pop()
        super().append_entries(entries)


def make(folder: Path, count: int) -> tuple[CommitThreads, list[AheadPen], list[float]]:
    took: list[float] = []
    threads = CommitThreads(SystemClock(), took.append)
    pens = []
    for number in range(count):
        pen = AheadPen(StuckJournal(folder / f"{number}.db"), threads, SystemClock(), "boot-1")
        pen.go_ahead()
        pens.append(pen)
    return threads, pens, took


def journal_of(pen: AheadPen) -> StuckJournal:
    assert isinstance(pen.journal, StuckJournal)
    return pen.journal


def test_a_decision_passes_the_bookkeeping_of_jobs_whose_disk_does_not_answer(
    tmp_path: Path,
) -> None:
    threads, pens, took = make(tmp_path, BOOKKEEPING_MAX + 2)
    *noting, deciding = pens
    for pen in noting:
        journal_of(pen).may_write.clear()
        pen.write([Milestone(1, 1)])
        pen.push()
    eventually(
        lambda: sum(journal_of(pen).is_waiting.is_set() for pen in noting) == BOOKKEEPING_MAX,
        "commits under way",
    )

    deciding.write([Milestone(1, 1), AttemptAbandoned(1, "gone")])
    deciding.push()
    deciding.wait(DEADLINE_S)

    assert len(open_readonly(tmp_path / f"{len(noting)}.db").entries) == 2
    assert sum(journal_of(pen).is_waiting.is_set() for pen in noting) == BOOKKEEPING_MAX
    for pen in noting:
        journal_of(pen).may_write.set()
    for pen in pens:
        pen.close()
    assert [len(open_readonly(tmp_path / f"{n}.db").entries) for n in range(len(noting))] == [
        1
    ] * len(noting)
    eventually(lambda: len(took) == len(pens), "each commit is counted")
    threads.close()


def test_what_comes_during_a_commit_is_written_by_the_next(tmp_path: Path) -> None:
    threads, (pen,), took = make(tmp_path, 1)
    journal_of(pen).may_write.clear()
    first = pen.write([Milestone(1, 1)])
    pen.push()
    eventually(journal_of(pen).is_waiting.is_set, "the first commit")
    rest = [*pen.write([Milestone(1, 2)]), *pen.write([AttemptAbandoned(1, "gone")])]
    pen.push()

    journal_of(pen).may_write.set()
    pen.wait(DEADLINE_S)

    assert open_readonly(tmp_path / "0.db").entries == (*first, *rest)
    eventually(lambda: len(took) == 2, "two commits")
    pen.close()
    threads.close()


def test_a_failed_commit_is_tried_again_without_being_asked(tmp_path: Path) -> None:
    threads, (pen,), _took = make(tmp_path, 1)
    journal_of(pen).failures = [JournalError("the disk is full")] * 2
    made = pen.write([AttemptAbandoned(1, "gone")])
    pen.push()

    eventually(lambda: open_readonly(tmp_path / "0.db").entries == made, "written after all")

    eventually(lambda: not pen.has_pending, "known to be written")
    assert pen.durable_number() == 1
    pen.close()
    threads.close()
