"""Losses and gradient norms that a script tells: on real files, and by a real rank."""

import math
import os
import sys
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rankmend
from rankmend.errors import SourceError
from rankmend.hook import layout
from rankmend.hook.writer import Writer
from rankmend.progress import (
    FirstBad,
    NumbersRecord,
    ProgressReader,
    RankIdentity,
    RankNumbers,
    create,
)
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process

IDENTITY = RankIdentity(uuid.UUID(int=7), attempt=2, rank=5, local_rank=1, world_size=8)
NAN, INFINITY = float("nan"), float("inf")


def numbers_of(reader: ProgressReader, after: int = 0) -> RankNumbers | None:
    return reader.read(time.monotonic(), numbers_after=after).numbers


class File:
    def __init__(self, path: Path) -> None:
        self.path = path
        os.close(create(path, IDENTITY))
        self.writer = Writer(str(path))
        self._reader = ProgressReader(os.open(path, os.O_RDONLY), path.name)

    def read(self, after: int = 0) -> RankNumbers | None:
        return numbers_of(self._reader, after)

    def step_count(self) -> int:
        return self._reader.read(time.monotonic()).step_count

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = File(tmp_path / "rank5")
    yield made
    made.close()


def test_numbers_that_were_told_are_read_with_their_steps(file: File) -> None:
    file.writer.step(7, loss=2.5)
    file.writer.step(8)
    file.writer.step(9, loss=2.25, grad_norm=0.5)
    file.writer.step(10, grad_norm=0.25)

    assert file.read() == RankNumbers(
        3,
        (
            NumbersRecord(1, 7, 2.5, None),
            NumbersRecord(2, 9, 2.25, 0.5),
            NumbersRecord(3, 10, None, 0.25),
        ),
        None,
    )
    assert file.read(after=2) == RankNumbers(3, (NumbersRecord(3, 10, None, 0.25),), None)


def test_script_that_tells_none_has_none(file: File) -> None:
    file.writer.step(1)

    assert file.read() is None


def test_file_of_a_hook_that_knows_no_numbers_has_none(tmp_path: Path) -> None:
    path = tmp_path / "rank5"
    os.close(create(path, IDENTITY))  # where the numbers lie are zeros

    reader = ProgressReader(os.open(path, os.O_RDONLY), path.name)
    assert numbers_of(reader) is None
    reader.close()


def test_ring_keeps_the_newest_and_the_first_bad_value_stays(file: File) -> None:
    file.writer.step(3, loss=1.0, grad_norm=INFINITY)
    file.writer.step(4, loss=NAN, grad_norm=NAN)
    for step in range(5, 1000):
        file.writer.step(step, loss=NAN, grad_norm=float(step))

    told = file.read()
    assert told is not None
    assert told.count == 997
    assert [one.step for one in told.records] == list(range(1000 - 63, 1000))
    first = told.first_bad
    assert first is not None
    assert (first.loss_step, first.grad_norm_step, first.grad_norm) == (4, 3, INFINITY)
    assert math.isnan(first.loss)


def test_value_of_step_0_can_be_the_first_bad_one(file: File) -> None:
    file.writer.step(0, loss=-INFINITY)

    told = file.read()
    assert told is not None
    assert told.first_bad == FirstBad(0, -INFINITY, None, 0.0)


@pytest.mark.parametrize(
    ("value", "read"),
    [(3, 3.0), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(4), 4.0), (np.array(1.5), 1.5)],
)
def test_numbers_of_other_types_are_read_as_floats(file: File, value: object, read: float) -> None:
    file.writer.step(1, loss=value)

    told = file.read()
    assert told is not None
    assert told.records[0].loss == read


class _Raises:
    @property
    def device(self) -> str:
        raise ZeroDivisionError("from the script's class")

    def __float__(self) -> float:
        raise ZeroDivisionError("from the script's class")


@pytest.mark.parametrize(
    "value",
    ["1.0", b"1", [1.0], np.zeros(2), np.array("x"), 10**400, object(), _Raises(), 1j, np.complex64(1)],
)  # fmt: skip
def test_what_is_no_number_is_refused_once_and_the_step_counts(
    file: File, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    file.writer.step(1, loss=value, grad_norm=value)
    file.writer.step(2, loss=value, grad_norm=0.5)

    told = file.read()
    assert told == RankNumbers(1, (NumbersRecord(1, 2, None, 0.5),), None)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "step() takes loss as a float, not as " in lines[0]
    assert file.step_count() == 2


def test_step_that_is_no_number_tells_no_numbers(file: File) -> None:
    for step in ("1", None, -1, -5, 2**63, 1.5):
        file.writer.step(step, loss=NAN)

    assert file.read() is None


def test_process_that_attaches_after_another_begins_with_no_numbers(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    code = "import rankmend\nfor step in range(5):\n    rankmend.step(step, loss=float('nan'))\n"
    rank.run(sys.executable, code)

    writer = Writer(str(rank.path))
    reader = ProgressReader(os.open(rank.path, os.O_RDONLY), "rank")
    assert numbers_of(reader) is None
    writer.step(9, loss=1.0)
    told = numbers_of(reader)
    reader.close()
    assert told == RankNumbers(1, (NumbersRecord(1, 9, 1.0, None),), None)


def test_record_that_is_not_its_checksums_is_an_error(file: File) -> None:
    file.writer.step(1, loss=1.0)
    with file.path.open("r+b") as raw:
        raw.seek(layout.NUMBERS_SLOTS_AT[1] + 20)
        raw.write(b"\xff")

    with pytest.raises(SourceError, match="wrong checksum of the numbers record 1 block"):
        file.read()


def test_blocks_lie_apart() -> None:
    ends = [
        (layout.HEAD_AT, layout.HEAD_AT + 8),
        (layout.NUMBERS_HEAD_AT, layout.NUMBERS_HEAD_AT + 8),
        (layout.FIRST_BAD_AT, layout.FIRST_BAD_AT + layout.FIRST_BAD.size + 4),
        (layout.NUMBERS_AT, layout.NUMBERS_SLOTS_AT[-1] + layout.NUMBERS.size + 4),
        (layout.SNAPSHOTS_AT, layout.SNAPSHOTS_AT + layout.SNAPSHOTS.size + 4),
        (layout.RING_AT, layout.FILE_SIZE),
    ]
    assert ends == sorted(ends)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    assert layout.NUMBERS.size + layout.CRC.size <= layout.NUMBERS_SIZE


@each_python
def test_script_tells_numbers_in_each_python(tmp_path: Path, python: str) -> None:
    rank = Rank(tmp_path)

    code = "from rankmend import step\nstep(1, loss=2.0)\nstep(2, loss=1, grad_norm=float('inf'))\n"
    rank.run(python, code)

    reader = ProgressReader(os.open(rank.path, os.O_RDONLY), "rank")
    told = numbers_of(reader)
    reader.close()
    assert told is not None
    assert [(one.step, one.loss, one.grad_norm) for one in told.records] == [
        (1, 2.0, None),
        (2, 1.0, INFINITY),
    ]


def test_process_without_rankmend_takes_numbers_and_tells_nothing() -> None:
    assert rankmend.step(1, loss=1.0, grad_norm=2.0) is None  # type: ignore[func-returns-value]


@pytest.mark.torch
def test_tensor_is_read_from_the_cpu_alone(file: File, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    file.writer.step(1, loss=torch.tensor(0.5, requires_grad=True), grad_norm=torch.ones(1))
    file.writer.step(2, loss=torch.ones((), device="meta"), grad_norm=torch.ones(2))

    told = file.read()
    assert told is not None
    assert [(one.step, one.loss, one.grad_norm) for one in told.records] == [(1, 0.5, 1.0)]
    assert "not as torch.Tensor on meta" in capsys.readouterr().err


def test_tensor_on_an_accelerator_is_never_asked_for_its_value(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Tensor:
        device = SimpleNamespace(type="cuda")

        def numel(self) -> int:
            return 1

        def item(self) -> float:
            asked.append(self)
            return 1.0

    fake = SimpleNamespace(Tensor=Tensor, nn=SimpleNamespace(Parameter=Tensor))
    monkeypatch.setitem(sys.modules, "torch", fake)
    file.writer.step(1, loss=Tensor())

    assert file.read() is None
    assert asked == []
