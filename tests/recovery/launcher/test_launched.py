import os
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest

from detectors.failed.said_error import FailureCause
from rankmend.hook import layout
from rankmend.hook.writer import Writer
from rankmend.progress import ProgressReader, RankIdentity, create
from recovery.launcher.ranks.launched import LaunchedRank
from recovery.messages.exchange import BadNumber, NotFinite, StepNumbers

ANY: Any = None
ECC = "NCCL WARN Cuda failure 'uncorrectable ECC error encountered'"
TRACEBACK = ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: x")


class Files:
    def __init__(self, error: Path) -> None:
        self.error = error
        self.raised = error.with_name("raised")


def ended(
    tmp_path: Path,
    code: int,
    out: tuple[str, ...] = (),
    err: tuple[str, ...] = (),
    pid: int = 0,
) -> LaunchedRank:
    files: Any = Files(tmp_path / "error.json")
    rank = LaunchedRank(0, 0, files, ANY, pid=pid)
    rank.note_exit(code, None, (out, err), 5.0, oom_killed=False)
    return rank


def test_a_launcher_reports_what_the_error_of_a_rank_means(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"message": {"message": "MemoryError: no room"}}')

    end = ended(tmp_path, 1, err=TRACEBACK).exit

    assert end is not None
    assert end.error is not None
    assert end.error.type_name == "MemoryError"
    assert end.words is not None
    assert end.words.error is not None
    assert end.words.error.cause is FailureCause.HOST_MEMORY


def test_a_launcher_reports_the_device_error_in_the_output_of_a_rank_that_left_no_error(
    tmp_path: Path,
) -> None:
    end = ended(tmp_path, 3, out=("step 1", ECC)).exit

    assert end is not None
    assert end.error is None
    assert end.words is not None
    assert end.words.error is None
    assert end.words.device is not None
    assert end.words.device.cause is FailureCause.DEVICE


RECORD = (
    '{"attached": true, "pid": %d, "chain": [{"type": "ValueError", "text": "bad sample 7", '
    '"frames": [["t.py", 12, "<module>", "__main__"]], "link": "context"}]}'
)
NOISE = (
    "Exception ignored in: <function W.__del__ at 0x7f>",
    "Traceback (most recent call last):",
    '  File "t.py", line 3, in __del__',
    "TypeError: 'NoneType' object is not callable",
)


@pytest.mark.parametrize(("pid", "expected"), [(7318, "ValueError"), (99, None)])
def test_a_launcher_believes_the_record_of_the_ranks_own_process_only(
    tmp_path: Path, pid: int, expected: str | None
) -> None:
    (tmp_path / "raised").write_text(RECORD % pid)

    end = ended(tmp_path, 1, err=NOISE, pid=7318).exit

    assert end is not None
    assert end.words is not None
    assert (end.error.type_name if end.error else None) == expected
    assert end.words.beside == ("TypeError: 'NoneType' object is not callable",)


def test_a_launcher_reports_the_text_of_an_exit(tmp_path: Path) -> None:
    end = ended(tmp_path, 1, err=("step 7", "config error: no such split")).exit

    assert end is not None
    assert end.words is not None
    assert (end.error, end.words.exit_text) == (None, "config error: no such split")


def test_a_launcher_reads_nothing_in_the_output_of_a_rank_that_ended_well(tmp_path: Path) -> None:
    end = ended(tmp_path, 0, err=TRACEBACK).exit

    assert end is not None
    assert (end.error, end.last_lines, end.words) == (None, (), None)


def test_numbers_are_reported_once_and_the_first_bad_one_always(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    identity = RankIdentity(uuid.UUID(int=7), attempt=1, rank=0, local_rank=0, world_size=1)
    reader = ProgressReader(create(path, identity), "rank")
    files: Any = Files(tmp_path / "error.json")
    rank = LaunchedRank(0, 0, files, reader)
    writer = Writer(str(path))
    writer.step(5, loss=1.5, grad_norm=float("inf"))
    writer.step(6, loss=float("nan"))

    first = rank.report(time.monotonic)
    writer.step(7, loss=2.5)
    second = rank.report(time.monotonic)
    third = rank.report(time.monotonic)
    reader.close()

    assert first.numbers == (
        StepNumbers(1, 5, 1.5, NotFinite.INFINITE),
        StepNumbers(2, 6, NotFinite.NAN),
    )
    assert second.numbers == (StepNumbers(3, 7, 2.5),)
    assert third.numbers == ()
    assert third.first_bad_loss == BadNumber(6, NotFinite.NAN)
    assert third.first_bad_grad_norm == BadNumber(5, NotFinite.INFINITE)


@pytest.mark.parametrize(("pid", "expected"), [(0, False), (2**22 + 1, True)])
def test_training_has_ended_where_a_process_had_attached_and_is_gone(
    tmp_path: Path, pid: int, expected: bool
) -> None:
    path = tmp_path / "rank0"
    reader = ProgressReader(create(path, RankIdentity(uuid.UUID(int=7), 1, 0, 0, 1)), "rank0")
    with Writer(str(path)).section("compute"):
        pass
    body = layout.ATTACHMENT.pack(pid, 0, 7, 1, 0, 0)
    with path.open("r+b") as file:
        file.seek(layout.ATTACHMENT_AT)
        file.write(body + layout.CRC.pack(zlib.crc32(body)))

    report = LaunchedRank(0, 0, ANY, reader, pid=os.getpid()).report(time.monotonic)

    assert report.sections_entered == 1
    assert report.is_past_training is expected
