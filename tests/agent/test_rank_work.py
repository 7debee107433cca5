"""The series of the work that a rank tells, from its progress file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ranks.series import rank_metrics
from agent.ranks.table import ShownRank, read_rank
from rankmend.hook.writer import Writer
from rankmend.progress import ProgressReader, open_owned
from tests.support.agent import checked, make_progress_file, tmpfs_folder


@pytest.fixture
def shm() -> Iterator[Path]:
    with tmpfs_folder() as folder:
        yield folder


def series(shm: Path, **told: float) -> dict[str, tuple[float, dict[str, str]]]:
    """Return the series of a rank that has told this work, with the labels that only they have."""
    path = make_progress_file(shm)
    writer = Writer(str(path))
    if told:
        writer.work(**told)
    reader = ProgressReader(open_owned(path, path.stat().st_uid), str(path))
    try:
        sample = read_rank(ShownRank(reader, pid=0, job_name=""), 1e9, 33)
        metrics = list(checked(rank_metrics(sample, 1e9)))
    finally:
        reader.close()
    return {
        one.name: (one.value, dict(one.labels[2:]))
        for one in metrics
        if one.name.endswith(("_flops_total", "_tokens_total", "_samples_total"))
    }


def test_rank_that_tells_work_has_its_series(shm: Path) -> None:
    assert series(shm, flops=2e15, tokens=4096) == {
        "rankmend_rank_flops_total": (2e15, {"dtype": "bf16", "device": ""}),
        "rankmend_rank_tokens_total": (4096, {}),
    }


def test_rank_that_tells_none_has_no_series(shm: Path) -> None:
    assert series(shm) == {}
