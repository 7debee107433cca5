"""A call to the storage that does not return holds up nothing else."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.finder import CheckpointFinder
from recovery.checkpoints.storage_calls import HUNG_MAX, HungError, StorageCalls
from recovery.messages.candidates import CheckpointSettings, Hindrance
from tests.support.checkpoint_saves import save_npz, save_trainer, told, valid_names
from tests.support.clocks import FakeClock
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.unreadable_files import unreadable_files

pytestmark = pytest.mark.process

CLOCK = SystemClock()


def deadline(timeout_s: float = 0.0) -> Deadline:
    return Deadline(CLOCK, timeout_s)


class WatchedClock(FakeClock):
    """Stands still until a test moves it on, and counts the looks at it."""

    looks = 0

    def now_s(self) -> float:
        self.looks += 1
        return super().now_s()


@pytest.fixture
def server() -> Iterator[threading.Event]:
    """A server that answers no read until it is set."""
    answers = threading.Event()
    yield answers
    answers.set()


def test_what_a_call_returns_or_raises_comes_back() -> None:
    calls = StorageCalls(CLOCK)

    assert calls.run("a", lambda: 7, deadline(30)) == 7
    with pytest.raises(ZeroDivisionError):
        calls.run("a", lambda: 1 / 0, deadline(30))


def test_a_call_that_hangs_is_left_and_not_made_again_until_it_returns(
    server: threading.Event,
) -> None:
    calls = StorageCalls(CLOCK, late_s=0.01)
    asked, is_asked = [], threading.Event()

    def read() -> int:
        asked.append(1)
        is_asked.set()
        server.wait(DEADLINE_S)
        return 7

    with pytest.raises(HungError, match="the storage has not answered for"):
        calls.run("a", read, deadline())
    with pytest.raises(HungError, match="the storage has not answered for"):
        calls.run("a", read, deadline(30))
    assert calls.run("b", lambda: 8, deadline(30)) == 8
    assert is_asked.wait(DEADLINE_S)
    assert len(asked) == 1

    server.set()

    def ask_again() -> int | None:
        with contextlib.suppress(HungError):  # until that thread has seen it
            return calls.run("a", read, deadline(30))
        return None

    assert eventually(ask_again, "it is asked again") == 7


def test_a_read_that_stalls_is_left_long_before_the_deadline(server: threading.Event) -> None:
    calls = StorageCalls(CLOCK, stalled_s=0.05)

    with pytest.raises(HungError):
        calls.run("a", lambda: server.wait(DEADLINE_S), deadline(3600))


def test_a_read_that_goes_on_is_not_left_however_long_it_takes() -> None:
    clock = WatchedClock()
    calls = StorageCalls(clock, stalled_s=10.0)
    long = Deadline(clock, 3600)

    def read() -> int:
        for _piece in range(4):
            long.check()
            clock.time_s += 8.0
            seen = clock.looks
            eventually(lambda seen=seen: clock.looks > seen, "the caller looks how it goes")
        return 7

    assert calls.run("a", read, long) == 7


def test_only_so_many_threads_are_left_behind(server: threading.Event) -> None:
    calls = StorageCalls(CLOCK, late_s=0.0)
    for number in range(HUNG_MAX):
        with pytest.raises(HungError):
            calls.run(str(number), lambda: server.wait(DEADLINE_S), deadline())

    with pytest.raises(HungError, match=f"does not answer {HUNG_MAX} earlier reads"):
        calls.run("another", lambda: 7, deadline(30))


@pytest.mark.parametrize(
    ("hanging", "is_folder"),
    [
        ("more.pt", True),
        pytest.param("trainer_state.json", True),
        pytest.param("step-20", False),
    ],
)
def test_a_checkpoint_whose_storage_hangs_keeps_no_older_one_from_being_chosen(
    tmp_path: Path, hanging: str, is_folder: bool
) -> None:
    save_npz(tmp_path / "step-10")
    if is_folder:
        shutil.copy(tmp_path / "step-10", save_trainer(tmp_path, 20) / "more.pt")
    else:
        save_npz(tmp_path / "step-20")
    with unreadable_files(tmp_path, tmp_path / ".fuse") as disk:
        disk.hang_reading(hanging)
        finder = CheckpointFinder(disk.point, CheckpointSettings(validate_timeout_s=10))

        first = finder.find(0, enough=1)
        again = finder.find(0, enough=1)

        for verdicts in (first, again):
            assert valid_names(verdicts) == ["step-10"]
            (late,) = [one for one in verdicts if one.candidate.step == 20]
            assert late.hindrance is Hindrance.UNREADABLE
            assert late.reason.startswith("the storage has not answered for")


def test_a_checkpoint_that_is_deleted_while_older_ones_are_read_is_not_chosen(
    tmp_path: Path,
) -> None:
    for step in (10, 20, 30):
        save_npz(tmp_path / f"step-{step}.npz")
    (tmp_path / "step-30.npz").unlink()
    folder = save_trainer(tmp_path, 40)
    verdicts: tuple = ()

    for verdicts in CheckpointFinder(tmp_path).look(deadline(30), 1):
        if valid_names(verdicts) == ["checkpoint-40"] and folder.exists():
            shutil.rmtree(folder)

    assert valid_names(verdicts) == ["step-20.npz"]
    assert "checkpoint-40" not in told(verdicts)
