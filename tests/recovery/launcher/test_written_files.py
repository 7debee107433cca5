"""What ranks write is seen while it is open, and in no other process's name."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.launcher.processes.written_files import LARGE_BYTES, WrittenFiles, written_by
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

HOLDS = """
import os, sys
files = [os.open(path, int(flags)) for flags, path in zip(sys.argv[1::2], sys.argv[2::2])]
for file in files:
    os.lseek(file, int(os.environ.get("AT", "0")), os.SEEK_SET)
print("open", flush=True)
sys.stdin.read()
"""
READ, WRITE, BOTH = "0", "65", "66"  # O_RDONLY; O_WRONLY, O_RDWR with O_CREAT


@contextmanager
def holding(*files: str, **environment: str) -> Iterator[int]:
    """Run a process that has the files open, each after its flags."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLDS, *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"open\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(DEADLINE_S)


def test_files_that_a_process_writes_below_the_folder_are_seen(tmp_path: Path) -> None:
    folder, beside = tmp_path / "ckpt", tmp_path / "ckpt-2"
    (folder / "step_1").mkdir(parents=True)
    beside.mkdir()
    (folder / "read").touch()
    written = [str(folder / "last.pt"), str(folder / "step_1" / "model.bin")]
    others = (READ, str(folder / "read"), WRITE, str(beside / "x.pt"))

    with holding(WRITE, written[0], BOTH, written[1], *others) as pid:
        assert sorted(written_by(pid, str(folder))) == [(path, 0) for path in written]

    assert list(written_by(pid, str(folder))) == []


def test_ranks_of_the_job_are_found_and_what_they_wrote_is_remembered(tmp_path: Path) -> None:
    folder, linked = tmp_path / "ckpt", tmp_path / "link"
    folder.mkdir()
    linked.symlink_to(folder)
    job_id = str(uuid.uuid4())
    seen = WrittenFiles(str(linked), job_id, look_s=0.01)
    seen.start()

    with (
        holding(WRITE, str(folder / "a_1.pt"), RANKMEND_JOB_ID=job_id, RANKMEND_ATTEMPT="1"),
        holding(WRITE, str(folder / "b_1.pt"), RANKMEND_JOB_ID=str(uuid.uuid4())),
    ):
        eventually(lambda: seen.paths, "the file is seen")
    with holding(WRITE, str(folder / "a_2.pt"), RANKMEND_JOB_ID=job_id, RANKMEND_ATTEMPT="2"):
        eventually(lambda: len(seen.paths) == 2, "that of the next attempt")

    seen.stop()
    assert seen.paths == {str(linked / "a_1.pt"), str(linked / "a_2.pt")}


def test_the_end_of_a_large_save_is_reported_and_that_of_a_small_one_is_not(tmp_path: Path) -> None:
    seen = WrittenFiles(str(tmp_path), "job", ranks=lambda: (), look_s=DEADLINE_S)
    ends: list[int] = []
    seen.start(lambda: ends.append(1))

    with holding(WRITE, str(tmp_path / "small.pt"), AT=str(LARGE_BYTES - 1)) as pid:
        seen.look([pid])
    seen.look([pid])
    small = len(ends)
    with holding(WRITE, str(tmp_path / "large.tmp"), AT=str(LARGE_BYTES)) as pid:
        seen.look([pid])
        open_still = len(ends)
    counts = []
    for _look in range(3):
        seen.look([pid])
        counts.append(len(ends))

    seen.stop()
    assert (small, open_still) == (0, 0)
    assert counts == [1, 2, 2]  # once more, after the script has renamed it
