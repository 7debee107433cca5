"""Snapshots of the job that saves to a checkpoint folder, as `rankmend checkpoints` finds them."""

import os
import shutil
import uuid
from pathlib import Path

import pytest

from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.local.report.held_snapshots import (
    HeldVerdict,
    SnapshotRow,
    find_snapshots,
    newest_whole,
)
from tests.support.snapshot_files import EMPTY, JOB_ID, claim, write_snapshot

NOW_S = 3.5  # the files were written at 1 s
SIZE = len(b"weights") + len(EMPTY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints"
    claim(path)
    return path


@pytest.fixture
def held(tmp_path: Path) -> Path:
    return RuntimeFolder(tmp_path, JOB_ID).snapshots


def find(folder: Path, tmp_path: Path) -> tuple[SnapshotRow, ...]:
    return find_snapshots(folder, tmp_path, NOW_S)


def test_each_step_is_one_row_with_the_ranks_that_have_it(
    folder: Path, held: Path, tmp_path: Path
) -> None:
    write_snapshot(held, rank=0, buffer=0, step=10, attempt=2)
    write_snapshot(held, rank=0, buffer=1, step=20, attempt=2, sequence=2)
    write_snapshot(held, rank=1, buffer=0, step=10, attempt=2)

    rows = find(folder, tmp_path)

    assert rows == (
        SnapshotRow("llama", 2, 20, 2, (0,), SIZE, 2.5, HeldVerdict.PARTIAL),
        SnapshotRow("llama", 2, 10, 2, (0, 1), 2 * SIZE, 2.5, HeldVerdict.WHOLE),
    )
    assert newest_whole(rows) == rows[1]


def test_snapshot_of_an_older_world_size_is_called_that(
    folder: Path, held: Path, tmp_path: Path
) -> None:
    write_snapshot(held, rank=0, buffer=0, step=30, attempt=1, world_size=1)
    write_snapshot(held, rank=1, buffer=0, step=20, attempt=2)

    verdicts = [row.verdict for row in find(folder, tmp_path)]

    assert verdicts == [HeldVerdict.OTHER_WORLD_SIZE, HeldVerdict.PARTIAL]


def test_parts_of_several_nodes_of_one_machine_are_one_step(folder: Path, tmp_path: Path) -> None:
    for rank, node in enumerate(("a", "b")):
        write_snapshot(RuntimeFolder(tmp_path, JOB_ID, node).snapshots, rank=rank)

    (row,) = find(folder, tmp_path)

    assert (row.ranks, row.verdict) == ((0, 1), HeldVerdict.WHOLE)


def test_half_written_foreign_and_broken_files_are_no_snapshots(
    folder: Path, held: Path, tmp_path: Path
) -> None:
    write_snapshot(held, rank=0, is_whole=False)
    write_snapshot(held, rank=1, job_id=uuid.uuid4())
    (held / "rank-2.0.snapshot").write_bytes(b"x" * 5000)
    os.mkfifo(held / "rank-3.0.snapshot")

    assert find(folder, tmp_path) == ()


def test_folder_without_a_job_here_has_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    claim(tmp_path / "named", job_id="")

    assert find(empty, tmp_path) == ()
    assert find(tmp_path / "named", tmp_path) == ()
    assert find(tmp_path / "gone", tmp_path) == ()


def test_copy_of_a_checkpoint_folder_does_not_show_the_memory_of_the_originals_job(
    folder: Path, held: Path, tmp_path: Path
) -> None:
    write_snapshot(held)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)

    assert find(copy, tmp_path) == ()
    assert len(find(folder, tmp_path)) == 1
