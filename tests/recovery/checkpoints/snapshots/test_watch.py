"""A launcher knows which snapshots are whole, and notices those that change by themselves."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.snapshots.watch import SnapshotWatch
from tests.support.eventually import DEADLINE_S
from tests.support.snapshot_files import JOB_ID, write_snapshot

pytestmark = pytest.mark.process


class Launcher:
    """Hears of news as the launcher's loop does."""

    def __init__(self, folder: Path) -> None:
        self.news = threading.Semaphore(0)
        self.watch = SnapshotWatch(folder, JOB_ID, SystemClock(), self.news.release)

    def settle(self, through: int) -> None:
        self.watch.settle(through)
        while self.watch.settled_through < through:
            assert self.news.acquire(timeout=DEADLINE_S)

    @property
    def points(self) -> list[tuple[int, int, int]]:
        return [(one.head.rank, one.head.attempt, one.head.step) for one in self.watch.known]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.watch.close()


def test_empty_folder_is_settled_at_once_without_a_thread(launcher: Launcher) -> None:
    before = threading.active_count()

    launcher.watch.tick()
    launcher.watch.settle(3)

    assert launcher.watch.settled_through == 3
    assert threading.active_count() == before


def test_all_whole_snapshots_are_known_once_settled(launcher: Launcher, tmp_path: Path) -> None:
    write_snapshot(tmp_path, rank=0, buffer=0, step=10)
    write_snapshot(tmp_path, rank=0, buffer=1, step=11, sequence=2)
    write_snapshot(tmp_path, rank=1, buffer=0, step=10)
    write_snapshot(tmp_path, rank=1, buffer=1, step=11, sequence=2, is_whole=False)

    launcher.settle(1)

    assert launcher.points == [(0, 1, 10), (0, 1, 11), (1, 1, 10)]


def test_bit_that_flips_after_the_first_reading_is_damage(
    launcher: Launcher, tmp_path: Path
) -> None:
    path = write_snapshot(tmp_path, b"weights")
    write_snapshot(tmp_path, b"weights", rank=1)
    launcher.settle(1)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"v")

    launcher.settle(2)

    assert [one.is_damaged for one in launcher.watch.known] == [True, False]
    launcher.settle(3)
    assert [one.is_damaged for one in launcher.watch.known] == [True, False]


def test_snapshot_written_anew_is_no_damage(launcher: Launcher, tmp_path: Path) -> None:
    write_snapshot(tmp_path, b"weights", step=10)
    launcher.settle(1)

    write_snapshot(tmp_path, b"WEIGHTS", step=12, sequence=3)
    launcher.settle(2)

    assert launcher.points == [(0, 1, 12)]
    assert not launcher.watch.known[0].is_damaged


def test_snapshots_written_beside_training_are_digested(launcher: Launcher, tmp_path: Path) -> None:
    write_snapshot(tmp_path, step=10)

    launcher.watch.tick()

    assert launcher.news.acquire(timeout=DEADLINE_S)
    assert launcher.points == [(0, 1, 10)]


def test_damaged_head_is_said_once(
    launcher: Launcher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_snapshot(tmp_path)
    with path.open("r+b") as file:
        file.seek(30)
        file.write(b"x")

    launcher.settle(1)
    launcher.settle(2)

    assert launcher.points == []
    (said,) = [one.getMessage() for one in caplog.records]
    assert "wrong checksum of the header" in said


def test_memory_of_a_rank_that_has_left_is_freed_once_the_others_have_written(
    launcher: Launcher, tmp_path: Path
) -> None:
    stays = write_snapshot(tmp_path, rank=0, step=10)
    leaves = write_snapshot(tmp_path, rank=1, step=10)
    launcher.settle(1)

    launcher.watch.expect(2, [0])
    launcher.settle(2)
    assert launcher.points == [(0, 1, 10), (1, 1, 10)]

    write_snapshot(tmp_path, rank=0, buffer=1, attempt=2, step=11, sequence=2)
    launcher.settle(3)

    assert launcher.points == [(0, 1, 10), (0, 2, 11)]
    assert stays.exists()
    assert not leaves.exists()
