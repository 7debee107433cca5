"""Memory that a killed launcher has left is freed, and nobody else's."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from recovery.checkpoints.snapshots.leftovers import KEPT_S, LOCK_PAUSE_S, lock, remove_leftovers
from tests.support.snapshot_files import write_snapshot

pytestmark = pytest.mark.process

WRITTEN_S = 1.0  # by `write_snapshot`


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job" / "snapshots"
    made.mkdir(parents=True)
    write_snapshot(made, bytes(10_000))
    return made


def test_snapshots_without_a_launcher_are_removed_after_an_hour(
    folder: Path, tmp_path: Path
) -> None:
    assert remove_leftovers(tmp_path, WRITTEN_S + KEPT_S - 1) == 0
    assert folder.exists()

    assert remove_leftovers(tmp_path, WRITTEN_S + KEPT_S) >= 10_000
    assert list(folder.iterdir()) == []


def test_snapshots_of_a_living_launcher_stay(folder: Path, tmp_path: Path) -> None:
    descriptor = lock(folder)

    assert remove_leftovers(tmp_path, WRITTEN_S + 9 * KEPT_S) == 0

    os.close(descriptor)
    assert remove_leftovers(tmp_path, WRITTEN_S + 9 * KEPT_S) > 0


def test_launcher_that_begins_while_another_removes_has_its_lock_in_the_end(
    folder: Path, tmp_path: Path
) -> None:
    remover = os.open(folder, os.O_RDONLY)
    fcntl.flock(remover, fcntl.LOCK_EX)
    ended = threading.Timer(2 * LOCK_PAUSE_S, os.close, [remover])
    ended.start()

    descriptor = lock(folder)

    ended.join()
    assert remove_leftovers(tmp_path, WRITTEN_S + 9 * KEPT_S) == 0
    os.close(descriptor)


def test_folders_without_snapshots_and_links_elsewhere_stay(tmp_path: Path) -> None:
    (tmp_path / "job" / "snapshots").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_snapshot(elsewhere)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "snapshots").symlink_to(elsewhere)

    assert remove_leftovers(tmp_path, 9 * KEPT_S) == 0
    assert (tmp_path / "job" / "snapshots").exists()
    assert list(elsewhere.iterdir())
