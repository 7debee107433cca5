"""The thread that looks at checkpoints beside training: fresh answers, bounded waits."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankmend.clock import SystemClock
from rankmend.errors import SourceError
from recovery.checkpoints.background import CheckpointWatch, Finder
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.finder import CheckpointFinder
from recovery.messages.candidates import (
    Candidate,
    CheckpointFormat,
    CheckpointSettings,
    CheckpointVerdict,
    Hindrance,
    Share,
)
from tests.support.checkpoint_saves import date, save_npz, told, valid_names
from tests.support.clocks import FakeClock
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

LONG_AGO = 1_000_000.0
SETTINGS = CheckpointSettings(scan_interval_s=0.01, grace_s=3600)


@pytest.fixture
def watching() -> Iterator[Callable[[Finder], CheckpointWatch]]:
    watches = []

    def watch(finder: Finder) -> CheckpointWatch:
        watches.append(CheckpointWatch(finder, SystemClock()))
        return watches[-1]

    yield watch
    for one in watches:
        one.stop()


Watching = Callable[[Finder], CheckpointWatch]


def test_new_checkpoints_are_read_beside_training_and_not_when_they_are_needed(
    tmp_path: Path, watching: Watching
) -> None:
    watch = watching(CheckpointFinder(tmp_path, SETTINGS))
    watch.start()
    date(save_npz(tmp_path / "step-1.npz"), LONG_AGO)
    status = (tmp_path / "step-1.npz").stat()
    seen_at = watch.looks_total
    eventually(lambda: watch.looks_total >= seen_at + 2, "two more looks")

    # damaged behind our back with an unchanged status: only who reads it again can tell
    (tmp_path / "step-1.npz").write_bytes(bytes(status.st_size))
    os.utime(tmp_path / "step-1.npz", ns=(status.st_atime_ns, status.st_mtime_ns))

    assert valid_names(watch.candidates()) == ["step-1.npz"]


def test_an_answer_is_never_older_than_the_question(tmp_path: Path, watching: Watching) -> None:
    watch = watching(CheckpointFinder(tmp_path, CheckpointSettings(scan_interval_s=3600)))

    for step in range(30):
        save_npz(tmp_path / f"step-{step}.npz")
        assert valid_names(watch.candidates())[0] == f"step-{step}.npz"
    with (tmp_path / "step-29.npz").open("r+b") as file:
        file.truncate(100)

    assert valid_names(watch.candidates())[0] == "step-28.npz"


def test_what_changes_while_training_runs_is_still_being_written_and_judged_for_good_after(
    tmp_path: Path, watching: Watching
) -> None:
    date(save_npz(tmp_path / "step-1.npz"), LONG_AGO)
    watch = watching(CheckpointFinder(tmp_path, SETTINGS))
    watch.candidates()
    whole = save_npz(tmp_path / "step-2.npz")
    (tmp_path / "step-3.npz").write_bytes(whole.read_bytes()[:-9])

    training = watch.candidates(is_training=True)
    stopped = watch.candidates(is_training=False)

    assert valid_names(training) == ["step-1.npz"]
    assert told(training)["step-3.npz"].startswith("still being written: changed ")
    assert told(training)["step-3.npz"].endswith("so far truncated: no zip directory at its end")
    assert valid_names(stopped) == ["step-2.npz", "step-1.npz"]
    assert told(stopped)["step-3.npz"] == "truncated: no zip directory at its end"


def test_a_storage_clock_that_is_far_off_hides_no_write(tmp_path: Path, watching: Watching) -> None:
    watch = watching(CheckpointFinder(tmp_path, SETTINGS))
    watch.candidates()

    date(save_npz(tmp_path / "step-2.npz"), LONG_AGO)

    assert valid_names(watch.candidates(is_training=True)) == []


def test_a_folder_that_nobody_changes_counts_as_whole_after_its_grace(
    tmp_path: Path, watching: Watching
) -> None:
    settings = CheckpointSettings(marker="DONE", scan_interval_s=0.01, grace_s=0.3)
    watch = watching(CheckpointFinder(tmp_path, settings))
    watch.start()
    eventually(lambda: watch.looks_total >= 1, "a look")

    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "DONE").write_text("done")
    for path in (save_npz(folder / "a.npz"), folder / "DONE"):
        date(path, LONG_AGO)

    # Each look first lists the folder, whose size and time it knows only after it has read it.
    eventually(lambda: valid_names(watch.known()) == ["step-1"], "it counts as whole")


def test_a_failing_look_is_kept_and_told_and_the_next_one_works(
    tmp_path: Path, watching: Watching
) -> None:
    folder = tmp_path / "later"
    watch = watching(CheckpointFinder(folder, SETTINGS))
    watch.start()
    eventually(lambda: watch.last_error is not None, "a look that failed")

    assert "later can't be read: No such file or directory" in (watch.last_error or "")
    with pytest.raises(SourceError, match="later can't be read"):
        watch.candidates()
    folder.mkdir()
    save_npz(folder / "step-1.npz")
    assert valid_names(watch.candidates()) == ["step-1.npz"]
    assert watch.last_error is None
    assert watch.errors_total >= 2


def verdict(name: str, is_valid: bool, reason: str) -> CheckpointVerdict:
    candidate = Candidate(name, None, CheckpointFormat.NPZ, 1, LONG_AGO)
    return CheckpointVerdict(candidate, is_valid, reason)


def pending(name: str) -> CheckpointVerdict:
    return replace(verdict(name, False, "not checked yet"), hindrance=Hindrance.PENDING)


class ScriptedFinder:
    """Lists at once where told to, and then reads for as long as the test holds it."""

    def __init__(self, lists_first: bool) -> None:
        self.settings = CheckpointSettings(scan_interval_s=0.01)
        self.share = Share()
        self.owed: frozenset[str] = frozenset()
        self.restored: Mapping[str, float] = {}
        self.lists_first = lists_first
        self.is_reading = threading.Event()
        self.release = threading.Event()
        self.looks = 0

    def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
        self.looks += 1
        older = verdict("old", True, "complete")
        if self.lists_first:
            yield (pending("new"), older)
        self.is_reading.set()
        self.release.wait(DEADLINE_S)
        yield (verdict("new", True, "complete"), older)


def test_storage_that_hangs_in_a_read_leaves_the_older_ones(watching: Watching) -> None:
    def ask() -> tuple[ScriptedFinder, CheckpointWatch, tuple[CheckpointVerdict, ...]] | None:
        finder = ScriptedFinder(lists_first=True)
        watch = watching(finder)
        try:
            return finder, watch, watch.candidates(timeout_s=0.5)
        except SourceError:
            finder.release.set()
            return None

    finder, watch, verdicts = eventually(ask, "a folder is listed within 0.5 s")

    assert told(verdicts)["new"] == "not finished within 0.5 s"
    assert valid_names(verdicts) == ["old"]
    finder.release.set()
    assert valid_names(watch.candidates()) == ["new", "old"]


def test_storage_that_hangs_in_a_listing_raises_and_one_thread_alone_is_stuck(
    watching: Watching,
) -> None:
    finder = ScriptedFinder(lists_first=False)
    watch = watching(finder)

    for _ in range(3):
        with pytest.raises(SourceError, match=r"did not answer within 0\.05 s"):
            watch.candidates(timeout_s=0.05)

    assert finder.is_reading.wait(DEADLINE_S)
    assert finder.looks == 1
    assert not watch.stop(timeout_s=0.05)
    finder.release.set()
    assert watch.stop(timeout_s=DEADLINE_S)


class LateFinder(ScriptedFinder):
    """Publishes an old listing once somebody has asked, and then hangs."""

    def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
        self.looks += 1
        self.is_reading.set()
        eventually(lambda: deadline.left_s() < 10 or self.release.is_set(), "somebody asks")
        yield (verdict("old", True, "complete"),)
        self.release.wait(DEADLINE_S)


def test_a_look_that_began_before_the_question_is_no_answer(watching: Watching) -> None:
    finder = LateFinder(lists_first=True)
    watch = watching(finder)
    watch.start()
    assert finder.is_reading.wait(DEADLINE_S)

    with pytest.raises(SourceError, match=r"did not answer within 0\.5 s"):
        watch.candidates(timeout_s=0.5)

    assert finder.looks == 1
    finder.release.set()


def test_a_bug_in_a_look_is_told_and_the_thread_lives_on(watching: Watching) -> None:
    class FailingOnce(ScriptedFinder):
        def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
            self.looks += 1
            if self.looks == 1:
                raise ZeroDivisionError("a bug")
            yield (verdict("new", True, "complete"),)

    watch = watching(FailingOnce(lists_first=True))

    with pytest.raises(SourceError, match=r"ZeroDivisionError\('a bug'\)"):
        watch.candidates()

    assert valid_names(watch.candidates()) == ["new"]
    assert watch.errors_total == 1


def read_to_the_end(deadline: Deadline) -> None:
    """Read until the deadline ends, as a finder does with a very large file."""

    def read() -> bool:
        deadline.check()
        return False

    with pytest.raises(UnfinishedError):
        eventually(read, "the deadline ends")


class ReadingFinder(ScriptedFinder):
    """Its first look reads until its deadline ends."""

    def __init__(self, has_valid: bool) -> None:
        super().__init__(lists_first=True)
        self.has_valid = has_valid
        self.deadlines: list[Deadline] = []
        self.first_ended = False

    def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
        self.looks += 1
        self.deadlines.append(deadline)
        yield (verdict("new", True, "complete") if self.has_valid else pending("new"),)
        if self.looks > 1:
            return
        self.is_reading.set()
        read_to_the_end(deadline)
        self.first_ended = True


@pytest.mark.parametrize("has_valid", [True, False])
def test_a_caller_does_not_wait_for_the_background_to_finish(has_valid: bool) -> None:
    clock, finder = FakeClock(), ReadingFinder(has_valid)
    watch = CheckpointWatch(finder, clock)
    watch.start()
    assert finder.is_reading.wait(DEADLINE_S)
    with ThreadPoolExecutor(1) as callers:
        asked = callers.submit(watch.candidates, timeout_s=DEADLINE_S)
        eventually(lambda: finder.deadlines[0].left_s() <= DEADLINE_S, "the look is shortened")

        granted_s = finder.deadlines[0].left_s()
        clock.time_s += DEADLINE_S
        verdicts = asked.result()
    assert watch.stop(DEADLINE_S)
    assert granted_s == 0.0
    assert [one.candidate.path for one in verdicts] == ["new"]
    assert finder.looks >= 2
    assert finder.first_ended


class CutFinder(ScriptedFinder):
    """Its first look finds a checkpoint, and then reads until its time is over."""

    def __init__(self) -> None:
        super().__init__(lists_first=True)
        self.reads = threading.Event()
        self.looks = 0

    def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
        del enough
        self.looks += 1
        yield (verdict("step-1", True, "complete"),)
        if self.looks > 1:
            return
        self.reads.set()
        read_to_the_end(deadline)
        raise SourceError("not finished")


def test_a_look_that_is_ended_for_a_caller_is_no_error(watching: Watching) -> None:
    finder = CutFinder()
    watch = watching(finder)
    watch.start()
    assert finder.reads.wait(DEADLINE_S)

    assert valid_names(watch.candidates()) == ["step-1"]

    assert (watch.errors_total, watch.last_error) == (0, None)


def test_several_callers_each_get_an_answer(tmp_path: Path, watching: Watching) -> None:
    save_npz(tmp_path / "step-1.npz")
    save_npz(tmp_path / "step-2.npz")
    watch = watching(CheckpointFinder(tmp_path, SETTINGS))
    answers: list[list[str]] = []

    def ask(enough: int) -> None:
        for _ in range(20):
            answers.append(valid_names(watch.candidates(enough=enough))[:enough])

    threads = [threading.Thread(target=ask, args=(enough,)) for enough in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert len(answers) == 40
    assert all(answer in (["step-2.npz"], ["step-2.npz", "step-1.npz"]) for answer in answers)


def test_stopping_ends_a_read_that_is_under_way_and_warns_of_nothing(
    tmp_path: Path, watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    with (tmp_path / "step-1.npz").open("wb") as file:
        np.savez(file, w=np.zeros(4_000_000))
    watch = watching(CheckpointFinder(tmp_path, SETTINGS))
    watch.start()

    assert watch.stop()
    assert watch.stop()
    assert not caplog.records
    assert valid_names(watch.candidates()) == ["step-1.npz"]  # and it can be started again


def test_stopping_what_never_started_is_no_error() -> None:
    assert CheckpointWatch(ScriptedFinder(lists_first=True), SystemClock()).stop()
