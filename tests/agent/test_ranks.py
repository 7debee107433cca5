"""The collector of ranks: their pace, and the progress files that a path pattern names."""

import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.ranks import RanksCollector
from agent.ranks.progress_paths import PathSource
from agent.ranks.step_times import measure_steps
from agent.ranks.table import RankTable
from rankmend.clock import SystemClock
from rankmend.errors import SourceError
from rankmend.hook.writer import Writer
from rankmend.progress import Section, StepRecord
from tests.support.agent import JOB_ID, checked, make_progress_file, tmpfs_folder, values_of


@pytest.fixture
def shm() -> Iterator[Path]:
    with tmpfs_folder() as folder:
        yield folder


def record(count: int, ended_at_s: float, compute_s: float = 0.0, io_s: float = 0.0) -> StepRecord:
    return StepRecord(count, 100 + count, ended_at_s, compute_s, 0.0, io_s, 0.0)


def test_pace_is_the_median_of_the_steps_and_the_shares_of_their_time() -> None:
    records = (
        record(1, 10.0),
        record(2, 11.0, 0.5),
        record(3, 12.0, 1.0),
        record(4, 16.0, 4.0, 1.0),
    )

    times = measure_steps(records)

    assert times is not None
    assert (times.last_s, times.median_s) == (4.0, 1.0)
    assert times.share_by_section[Section.COMPUTE] == pytest.approx(4 / 6)
    assert times.share_by_section[Section.IO] == pytest.approx(1 / 6)
    assert times.share_by_section[Section.IDLE] == pytest.approx(1 / 6)
    assert sum(times.share_by_section.values()) == pytest.approx(1)


def test_step_that_was_overtaken_by_the_writer_is_no_interval() -> None:
    times = measure_steps((record(1, 10.0), record(3, 14.0), record(4, 15.0)))

    assert times is not None
    assert (times.last_s, times.median_s) == (1.0, 1.0)
    assert measure_steps((record(1, 10.0), record(3, 14.0))) is None
    assert measure_steps(()) is None


@pytest.mark.parametrize(
    "later", [record(2, 9.0), record(2, 11.0, compute_s=-1.0), record(2, 11.0, io_s=-0.1)]
)
def test_time_that_runs_backwards_is_corrupt(later: StepRecord) -> None:
    with pytest.raises(SourceError, match="run backwards"):
        measure_steps((record(1, 10.0), later))


def test_progress_files_are_found_by_path_and_forgotten_when_removed(tmp_path: Path) -> None:
    clock = SystemClock()
    path = make_progress_file(tmp_path, rank=5)
    collector = RanksCollector(RankTable(), clock, f"{tmp_path}/*.progress")

    found = values_of(list(collector.collect()))
    path.unlink()

    assert found[f"rank_progress_success{{{JOB_ID},5}}"] == 1
    assert list(collector.collect()) == []


def test_versions_of_nccl_that_a_rank_has_loaded_are_shown(tmp_path: Path) -> None:
    writer = Writer(str(make_progress_file(tmp_path, rank=5)))
    writer.tell_nccl([22105, 22703])
    collector = RanksCollector(RankTable(), SystemClock(), f"{tmp_path}/*.progress")

    found = values_of(checked(collector.collect()))

    assert {name for name in found if "nccl" in name} == {
        f"rank_nccl_info{{{JOB_ID},5,2.21.5}}",
        f"rank_nccl_info{{{JOB_ID},5,2.27.3}}",
    }


def test_path_that_is_no_progress_file_of_its_folders_owner_is_passed_over_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real = make_progress_file(tmp_path, rank=5)
    (tmp_path / "link.progress").symlink_to(real)
    (tmp_path / "noise.progress").write_bytes(b"noise")
    os.mkfifo(tmp_path / "pipe.progress")
    if os.geteuid() == 0:
        os.chown(make_progress_file(tmp_path, rank=6), 12345, 12345)
    source = PathSource(f"{tmp_path}/*.progress")

    with caplog.at_level(logging.WARNING):
        found = [rank.identity.rank for _pass in range(3) for rank in source.ranks()]

    assert found == [5, 5, 5]
    assert len(caplog.records) == (4 if os.geteuid() == 0 else 3)


def test_rank_that_its_launcher_shows_is_not_taken_from_the_path_as_well(shm: Path) -> None:
    table, other_job_id = RankTable(), uuid.uuid4()
    path = make_progress_file(shm, rank=0)
    make_progress_file(shm, rank=0, job_id=other_job_id)
    source = PathSource(f"{path}")
    table.open(1, os.geteuid())
    table.show(1, source.ranks())
    collector = RanksCollector(table, SystemClock(), f"{shm}/*.progress")

    values = values_of(list(collector.collect()))

    shown = [name for name in values if name.startswith("rank_progress_success")]
    assert sorted(shown) == sorted(
        f"rank_progress_success{{{job_id},0}}" for job_id in (JOB_ID, other_job_id)
    )


def test_a_job_that_a_launcher_shows_has_the_user_of_its_connection(shm: Path) -> None:
    table = RankTable()
    source = PathSource(f"{make_progress_file(shm, rank=0)}")
    table.open(1, 1001)
    table.open(2, 1002)
    assert table.owners() == []

    table.show(1, source.ranks())
    assert table.owners() == [(JOB_ID, 1001)]

    table.show(1, [])
    assert table.owners() == []
