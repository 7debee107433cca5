"""Work that a script tells: on real files, and by a real rank."""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankmend
from rankmend.errors import SourceError
from rankmend.hook import layout
from rankmend.hook.writer import Writer
from rankmend.progress import ProgressReader, RankIdentity, ToldWork, create
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process

IDENTITY = RankIdentity(uuid.UUID(int=7), attempt=2, rank=5, local_rank=1, world_size=8)


class File:
    def __init__(self, path: Path) -> None:
        self.path = path
        os.close(create(path, IDENTITY))
        self.writer = Writer(str(path))
        self._reader = ProgressReader(os.open(path, os.O_RDONLY), path.name)

    def read(self) -> ToldWork | None:
        return self._reader.read(time.monotonic()).work

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = File(tmp_path / "rank5")
    yield made
    made.close()


def test_work_that_was_told_adds_up(file: File) -> None:
    file.writer.work(flops=1e15, tokens=4096)
    file.writer.work(flops=2e15, tokens=4096, samples=8, dtype="fp8")

    assert file.read() == ToldWork(2, 3e15, 8192.0, 8.0, "fp8", "")


def test_script_that_tells_none_has_none(file: File) -> None:
    file.writer.step(1)

    assert file.read() is None


def test_work_without_flops_has_no_data_type(file: File) -> None:
    file.writer.work(samples=np.int64(32))

    assert file.read() == ToldWork(1, 0.0, 0.0, 32.0, "", "")


@pytest.mark.parametrize(
    "told",
    [
        {"flops": float("nan")},
        {"flops": float("inf")},
        {"flops": -1.0},
        {"tokens": "many"},
        {"tokens": 10**400},
        {"samples": object()},
        {"flops": 1.0, "dtype": "int3"},
        {"flops": 1.0, "dtype": []},
        {"flops": 1e308, "tokens": -5},
    ],
)
def test_what_is_no_amount_is_refused_once_and_changes_nothing(
    file: File, told: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    file.writer.work(flops=5.0, dtype="bf16")

    file.writer.work(**told)
    file.writer.work(**told)

    assert file.read() == ToldWork(1, 5.0, 0.0, 0.0, "bf16", "")
    assert capfd.readouterr().err.count("work() takes") == 1


def test_code_of_the_scripts_own_classes_is_never_run(file: File) -> None:
    class Loud:
        @property
        def __class__(self) -> type:
            raise RuntimeError("from the script")

    file.writer.work(flops=Loud())

    assert file.read() is None


@pytest.mark.parametrize("body", [(1, float("nan"), 0.0, 0.0, 5, b""), (1, 0.0, 0.0, 0.0, 99, b"")])
def test_impossible_work_in_a_file_is_refused(file: File, body: tuple[Any, ...]) -> None:
    file.writer._put(layout.WORK_AT, layout.WORK.pack(*body))

    with pytest.raises(SourceError, match="impossible work"):
        file.read()


def test_blocks_lie_apart() -> None:
    end = layout.SNAPSHOTS_AT + layout.SNAPSHOTS.size + layout.CRC.size
    assert end <= layout.WORK_AT
    assert layout.WORK_AT + layout.WORK.size + layout.CRC.size <= layout.RING_AT


def test_without_rankmend_work_does_nothing() -> None:
    assert rankmend.work(flops=1.0, tokens=2, samples=3, dtype="bf16") is None


@each_python
def test_rank_tells_its_work(python: str, tmp_path: Path) -> None:
    code = "import rankmend\nfor step in range(3):\n    rankmend.step(step)\n    rankmend.work(flops=2.0, tokens=7)\n"

    rank = Rank(tmp_path)
    rank.run(python, code)

    assert rank.read().work == ToldWork(3, 6.0, 21.0, 0.0, "bf16", "")
