"""The series of a rank that keeps its state in memory, from its progress file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ranks.series import rank_metrics
from agent.ranks.table import ShownRank, read_rank
from rankmend.hook.writer import Writer
from rankmend.progress import ProgressReader, open_owned
from tests.support.agent import JOB_ID, checked, make_progress_file, tmpfs_folder, values_of


@pytest.fixture
def shm() -> Iterator[Path]:
    with tmpfs_folder() as folder:
        yield folder


def series(shm: Path, *told: int) -> dict[str, float]:
    """Return the snapshot series of a rank that has told these numbers."""
    path = make_progress_file(shm)
    writer = Writer(str(path))
    if told:
        writer.tell_snapshots(*told)
    reader = ProgressReader(open_owned(path, path.stat().st_uid), str(path))
    try:
        sample = read_rank(ShownRank(reader, pid=0, job_name=""), 1e9, 33)
        values = values_of(checked(rank_metrics(sample, 1e9)))
    finally:
        reader.close()
    return {
        name.removesuffix(f"{{{JOB_ID},0}}"): value
        for name, value in values.items()
        if "snapshot" in name
    }


def test_rank_that_asks_for_snapshots_has_their_series(shm: Path) -> None:
    assert series(shm, 12, 3, 41, 1_000_000, 6_000_000, 500_000, 2) == {
        "rank_snapshots_total": 12,
        "rank_snapshots_refused_total": 3,
        "rank_snapshot_step": 40,
        "rank_snapshot_size_bytes": 1_000_000,
        "rank_snapshot_stall_seconds_total": 0.006,
        "rank_snapshot_files": 2,
    }


def test_rank_that_got_none_has_no_step_and_no_size(shm: Path) -> None:
    assert series(shm, 0, 3, 0, 0, 0, 0, 0) == {
        "rank_snapshots_total": 0,
        "rank_snapshots_refused_total": 3,
        "rank_snapshot_stall_seconds_total": 0,
        "rank_snapshot_files": 0,
    }


def test_rank_that_asks_for_none_has_no_series(shm: Path) -> None:
    assert series(shm) == {}
