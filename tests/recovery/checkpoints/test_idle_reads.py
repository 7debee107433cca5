"""A large file that was just saved is checked out of the page cache by a process that takes only what is idle."""

import os
import select
import subprocess
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.digests import BLOCK_BYTES
from recovery.checkpoints.files.bulk_reads import CHUNK_BYTES
from recovery.checkpoints.files.content import check_file
from recovery.checkpoints.files.reader import (
    FileReader,
    ReadProgress,
    ReadsBeside,
    Signature,
    SumError,
    signature_of,
)
from recovery.checkpoints.idle_reads import (
    IdleOrder,
    IdleRead,
    IdleReads,
    has_processor_quota,
    start_idle,
    state_of,
    take_over,
)
from recovery.messages.candidates import CheckpointFormat
from tests.support.bulk_reads import digests_of
from tests.support.eventually import DEADLINE_S
from tests.support.page_cache import bring_cached, drop_cached, needs_direct_reads

pytestmark = pytest.mark.process

RATE = 1e9  # so that what is left to the launcher's own thread costs a test no time
SERVE = ("-c", "from recovery.checkpoints.idle_reads import serve; serve()")


def started_at_once(order: IdleOrder) -> "subprocess.Popen[bytes]":
    """Start what reads with the priority of the test: on a full machine the idle class waits long."""
    return start_idle(order, SERVE)


def reads(start: Callable[[IdleOrder], "subprocess.Popen[bytes]"] = started_at_once) -> IdleReads:
    return IdleReads(least_bytes=1, patience_s=DEADLINE_S, has_quota=lambda: False, start=start)


class Counted(Deadline):
    """A deadline beside training that remembers which bytes this process has read itself."""

    def __init__(self, bytes_max: int = 1 << 40) -> None:
        super().__init__(SystemClock(), 600.0, is_awaited=False, rate_bytes_per_s=RATE)
        self.bytes_max = bytes_max

    def _over_at_s(self) -> float:
        return 0.0 if self.read_bytes >= self.bytes_max else super()._over_at_s()


class CutReads:
    """Reads on as another process does, and is cut there, as where somebody waits."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max

    def read_on(self, progress: ReadProgress, descriptor: int, deadline: Deadline) -> None:
        theirs = ReadProgress(progress.signature)
        path = progress.signature[0]
        with (
            suppress(UnfinishedError),
            FileReader(path, Counted(self._bytes_max), is_whole=True, progress=theirs) as reader,
        ):
            check_file(reader, CheckpointFormat.TORCH)
        take_over(progress, state_of(theirs, theirs.end, 0))
        raise UnfinishedError("somebody waits")


def save(path: Path, compression: int = zipfile.ZIP_STORED, size_bytes: int = 8 << 20) -> Path:
    """Write three members of this size as torch.save does, and have the page cache hold them."""
    numbers = np.random.default_rng(1)
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        for number in range(3):
            file.writestr(f"archive/data/{number}", numbers.bytes(size_bytes))
    bring_cached(path, [(0, path.stat().st_size)])
    return path


def signature(path: Path) -> Signature:
    return signature_of(str(path), path.stat())


def check(
    path: Path, beside: ReadsBeside, deadline: Deadline, progress: ReadProgress | None = None
) -> bytes:
    """Check the file as a launcher does beside training, and return its digests."""
    with FileReader(str(path), deadline, is_whole=True, progress=progress, beside=beside) as reader:
        check_file(reader, CheckpointFormat.TORCH)
        return reader.digests()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_is_in_the_page_cache_is_checked_by_another_process(
    tmp_path: Path, compression: int
) -> None:
    needs_direct_reads(tmp_path)
    path = save(tmp_path / "step_1.pt", compression)
    deadline = Counted()

    digests = check(path, reads(), deadline)

    assert digests == digests_of(path)
    assert deadline.read_bytes < 4 * BLOCK_BYTES  # its ends


def test_a_wrong_sum_in_the_page_cache_is_found(tmp_path: Path) -> None:
    needs_direct_reads(tmp_path)
    path = save(tmp_path / "step_1.pt")
    with path.open("r+b") as file:
        file.seek(20 << 20)
        byte = file.read(1)
        file.seek(20 << 20)
        file.write(bytes([byte[0] ^ 1]))

    with pytest.raises(SumError, match="CRC of archive/data/2"):
        check(path, reads(), Counted())


def test_a_read_that_was_cut_goes_on_where_the_other_process_was(tmp_path: Path) -> None:
    needs_direct_reads(tmp_path)
    path = save(tmp_path / "step_1.pt")
    progress = ReadProgress(signature(path))
    with pytest.raises(UnfinishedError):
        check(path, CutReads(4 * BLOCK_BYTES), Counted(), progress)
    assert progress.end == 4 * BLOCK_BYTES
    rest = Deadline(SystemClock(), 600.0)

    digests = check(path, reads(), rest, progress)

    assert digests == digests_of(path)
    assert rest.read_bytes < path.stat().st_size - 4 * BLOCK_BYTES + CHUNK_BYTES


def test_the_real_process_is_of_the_idle_class_and_reports(tmp_path: Path) -> None:
    needs_direct_reads(tmp_path)
    path = save(tmp_path / "step_1.pt", size_bytes=1 << 20)
    classes: list[int] = []

    def start(order: IdleOrder) -> "subprocess.Popen[bytes]":
        process = start_idle(order)
        assert process.stdout is not None
        select.select([process.stdout], [], [], DEADLINE_S)  # it has reported, or ended
        classes.append(os.sched_getscheduler(process.pid))
        return process

    deadline = Counted()

    digests = check(path, reads(start), deadline)

    assert classes == [os.SCHED_IDLE]
    assert digests == digests_of(path)
    assert deadline.read_bytes < 4 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, False),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, True),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, True),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/kubepods/x\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            },
            True,
        ),
        (
            {
                "proc/self/cgroup": "4:cpuset:/x\n3:cpu:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n",
            },
            False,
        ),
    ],
    ids=["no groups", "no quota", "a parent's", "in a container", "version 1", "version 1, none"],
)
def test_a_quota_of_any_group_counts(tmp_path: Path, files: dict[str, str], expected: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert has_processor_quota(tmp_path) is expected


@pytest.mark.parametrize(
    "read",
    [
        IdleRead(BLOCK_BYTES + 1, "00" * 8, 1, 0, 0),
        IdleRead(BLOCK_BYTES, "", 1, 0, 0),
        IdleRead(2 * BLOCK_BYTES, "00" * 8, 1, 0, 0),
        IdleRead(BLOCK_BYTES, "00" * 16, 1, 0, 0),
    ],
    ids=["within a block", "no digest", "a gap", "too many"],
)
def test_a_report_that_does_not_fit_changes_nothing(read: IdleRead) -> None:
    progress = ReadProgress(("/x", 1, 8 * BLOCK_BYTES, 1))

    take_over(progress, read)

    assert (progress.end, progress.digests, progress.members) == (0, [], 0)


@pytest.mark.parametrize(
    ("has_quota", "least_bytes", "is_cached", "rate"),
    [
        (True, 1, True, RATE),
        (False, 1 << 30, True, RATE),
        (False, 1, False, RATE),
        (False, 1, True, 0.0),
    ],
    ids=["a quota", "a small file", "not in the cache", "no limit"],
)
def test_no_process_is_started_where_it_would_cost_training_or_bring_nothing(
    tmp_path: Path,
    has_quota: bool,
    least_bytes: int,
    is_cached: bool,
    rate: float,
) -> None:
    path = save(tmp_path / "step_1.pt")
    if not is_cached:
        drop_cached(path)
    started: list[IdleOrder] = []

    def start(order: IdleOrder) -> "subprocess.Popen[bytes]":
        started.append(order)
        return started_at_once(order)

    beside = IdleReads(least_bytes=least_bytes, has_quota=lambda: has_quota, start=start)
    deadline = Deadline(SystemClock(), 600.0, is_awaited=False, rate_bytes_per_s=rate)

    digests = check(path, beside, deadline)

    assert digests == digests_of(path)
    assert started == []
