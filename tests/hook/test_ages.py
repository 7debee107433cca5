"""Ages of what happens while somebody looks: never below zero, and measured after the look."""

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from rankmend.hook.writer import Writer
from rankmend.progress import ProgressReader, RankIdentity, create
from recovery.launcher.ranks.launched import LaunchedRank
from recovery.local.report.overview import view_ranks

IDENTITY = RankIdentity(uuid.UUID(int=7), attempt=1, rank=0, local_rank=0, world_size=1)
ANY: Any = None


class SteppingClock:
    """A clock whose reader is slow: a step ends right after it was read for the first time."""

    def __init__(self, path: Path) -> None:
        self.writer = Writer(str(path))
        self.readings: list[float] = []

    def __call__(self) -> float:
        self.readings.append(time.monotonic())
        if len(self.readings) == 1:
            self.writer.step(4)
        return self.readings[-1]


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    (tmp_path / "attempt-1").mkdir()
    os.close(create(tmp_path / "attempt-1" / "rank-0.progress", IDENTITY))
    told = {"attempt": 1, "ranks": [{"rank": 0, "local_rank": 0, "pid": os.getpid()}]}
    (tmp_path / "ranks.json").write_text(json.dumps(told))
    return tmp_path


def test_status_shows_no_negative_age_of_a_step_that_ends_while_it_looks(runtime: Path) -> None:
    clock = SteppingClock(runtime / "attempt-1" / "rank-0.progress")

    (view,) = view_ranks(runtime, clock)

    assert view.step == 4
    assert view.step_age_s is not None
    assert 0.0 < view.step_age_s <= clock.readings[-1] - clock.readings[0]


def test_launcher_reports_no_negative_age_of_a_step_that_ends_while_it_looks(runtime: Path) -> None:
    path = runtime / "attempt-1" / "rank-0.progress"
    reader = ProgressReader(os.open(path, os.O_RDONLY), path.name)
    rank = LaunchedRank(0, 0, ANY, reader, pid=os.getpid())
    clock = SteppingClock(path)

    report = rank.report(clock)
    reader.close()

    (timing,) = report.timings
    lasted_s = clock.readings[-1] - clock.readings[0]
    assert report.step_age_s is not None
    assert 0.0 < timing.age_s == report.step_age_s <= lasted_s
