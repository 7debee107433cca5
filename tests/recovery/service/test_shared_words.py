"""What agents say reaches the other controllers of a database: what is written when, what is read, and what a failure costs."""

from pathlib import Path

import pytest

from rankmend.errors import JournalError
from rankmend.watched_report import PresentJob, WatchedReport
from recovery.controller.watched.present_jobs import (
    PRESENT_KEPT_S,
    AgentWordsFile,
    PresentJobs,
    SavedWord,
    encode_words,
)
from recovery.service.shared_words import SharedWords
from tests.support.simulation import SimClock

JOB = "0c1d6a52-0000-4000-8000-000000000001"
PRESENT = PresentJob(job_id=JOB, uid=1001, user="alice")


class FakeStore:
    """A database with rows of others; it can be away."""

    def __init__(self) -> None:
        self.saved: list[tuple[bytes, float]] = []
        self.others: list[tuple[float, bytes]] = []
        self.is_away = False
        self.was_read = False

    def save(self, words: bytes, age_s: float) -> None:
        self._answer()
        self.saved.append((words, age_s))

    def load(self) -> list[tuple[float, bytes]]:
        self._answer()
        found, self.was_read = ([] if self.was_read else self.others), True
        return found

    def load_again(self) -> None:
        self.was_read = False

    def _answer(self) -> None:
        if self.is_away:
            raise JournalError("PostgreSQL does not answer")


class Controller:
    def __init__(self, path: Path) -> None:
        self.clock, self.store = SimClock(), FakeStore()
        self.is_full = False
        self.nodes: list[str] = []
        file = AgentWordsFile(path / "words.json", self.clock, "boot-1")
        self.shared = SharedWords(file, self.store, self.clock, self.take)
        self.present = PresentJobs(self.shared, self.clock.now_s)

    def take(self, words: tuple[SavedWord, ...]) -> None:
        if self.is_full:
            raise JournalError("the queue is full")
        self.nodes += self.present.merge(words, self.clock.now_s())

    def hear(self, node: str = "n1") -> None:
        report = WatchedReport(node=node, present=(PRESENT,))
        self.present.take(report, self.clock.now_s())
        self.present.save(self.clock.now_s())

    def knows(self, node: str = "n1") -> bool:
        return self.present.is_on(node, JOB, "alice", self.clock.now_s())


@pytest.fixture
def here(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def words_of(age_s: float, node: str = "n1") -> bytes:
    return encode_words([SavedWord(node, age_s, PRESENT)])


def test_word_that_another_controller_received_counts_here(here: Controller) -> None:
    here.store.others = [(30.0, words_of(60.0))]

    here.shared.exchange(reads=True)

    assert here.knows()
    assert here.nodes == ["n1"]
    here.clock.time_s += PRESENT_KEPT_S - 90.5
    assert here.knows()
    here.clock.time_s += 1.0
    assert not here.knows(), "it becomes no younger"


def test_own_newer_word_stays(here: Controller) -> None:
    here.hear()
    here.store.others = [(0.0, words_of(500.0))]

    here.shared.exchange(reads=True)
    here.clock.time_s += 500.0

    assert here.nodes == []
    assert here.knows()


def test_word_is_written_once_with_the_time_that_it_waited(here: Controller) -> None:
    here.hear()
    here.store.is_away = True
    here.shared.exchange(reads=False)
    here.clock.time_s += 45.0
    here.store.is_away = False

    here.shared.exchange(reads=False)
    here.shared.exchange(reads=False)

    ((words, age_s),) = here.store.saved
    assert (words, age_s) == (words_of(0.0), 45.0)


def test_words_that_could_not_be_handed_over_are_read_again(here: Controller) -> None:
    here.store.others = [(0.0, words_of(1.0))]
    here.is_full = True
    here.shared.exchange(reads=True)
    here.is_full = False

    here.shared.exchange(reads=True)

    assert here.knows()


@pytest.mark.parametrize("body", [b"", b"\xff", b"[[1, 2, 3]]", b"{}", b"[" * 1000])
def test_broken_words_say_nothing_and_the_others_count(here: Controller, body: bytes) -> None:
    here.store.others = [(0.0, body), (0.0, words_of(1.0))]

    here.shared.exchange(reads=True)

    assert here.knows()


@pytest.mark.parametrize(("age_s", "older_s"), [(1.0, PRESENT_KEPT_S), (-5.0, 0.0)])
def test_words_of_no_age_that_counts_are_left_out(
    here: Controller, age_s: float, older_s: float
) -> None:
    here.store.others = [(older_s, words_of(age_s))]

    here.shared.exchange(reads=True)

    assert not here.knows()
