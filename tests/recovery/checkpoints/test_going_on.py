"""Reads that are cut short: they go on at the next look, and nobody is held for want of time."""

import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import BLOCK_BYTES
from recovery.checkpoints.finder import CheckpointFinder
from recovery.messages.candidates import CheckpointSettings, CheckpointVerdict, Hindrance
from tests.support.checkpoint_contents import npz_file
from tests.support.eventually import eventually

pytestmark = pytest.mark.process

CHUNK_BYTES = 1 << 20  # of a read that somebody waits for
SIZE_BYTES = 24 * CHUNK_BYTES
NO_WAIT = CheckpointSettings(check_wait_s=0.0, scan_interval_s=0.01, grace_s=0.0)


class BytesDeadline(Deadline):
    """Is over once so many bytes were read, however long that takes."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(SystemClock(), 3600.0)
        self._bytes_max = bytes_max

    def _over_at_s(self) -> float:
        return 0.0 if self.read_bytes >= self._bytes_max else super()._over_at_s()


def save_torch(path: Path, seed: int = 1) -> Path:
    """Write what torch.save writes: stored members with their CRC-32."""
    numbers = np.random.default_rng(seed)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        for number in range(3):
            file.writestr(f"archive/data/{number}", numbers.bytes(SIZE_BYTES // 3))
    return path


def save_deflated(path: Path) -> Path:
    with path.open("wb") as file:
        np.savez_compressed(
            file, w=np.frombuffer(np.random.default_rng(1).bytes(SIZE_BYTES), np.uint8)
        )
    return path


def look(
    finder: CheckpointFinder, bytes_max: int = 6 * CHUNK_BYTES
) -> tuple[CheckpointVerdict, int]:
    """Return the verdict on the newest, and how many bytes this look has read."""
    deadline = BytesDeadline(bytes_max)
    *_others, verdicts = finder.look(deadline, 1, 3600.0)
    return verdicts[0], deadline.read_bytes


def flip(path: Path, offset: int) -> None:
    """Change one byte behind everybody's back: the status stays as it was."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("save", [save_torch, save_deflated], ids=["stored", "deflated"])
def test_a_read_that_was_cut_short_goes_on_at_the_next_look(
    tmp_path: Path, save: Callable[[Path], Path]
) -> None:
    size_bytes = save(tmp_path / "step_1.pt").stat().st_size
    finder = CheckpointFinder(tmp_path)

    looks = [look(finder)]
    while not looks[-1][0].is_checked:
        assert len(looks) < 50, "it comes no further"
        looks.append(look(finder))

    left = [verdict.unchecked_bytes for verdict, _read in looks]
    assert len(looks) > 2
    assert left == sorted(left, reverse=True)
    assert all(verdict.is_valid for verdict, _read in looks)
    assert sum(read for _verdict, read in looks) < size_bytes + len(looks) * 2 * CHUNK_BYTES


def test_what_was_read_before_the_cut_is_not_read_again(tmp_path: Path) -> None:
    path = save_torch(tmp_path / "step_1.pt")
    finder = CheckpointFinder(tmp_path)
    first, _read = look(finder)
    assert 0 < first.unchecked_bytes < SIZE_BYTES - CHUNK_BYTES

    flip(path, 1000)

    verdict, _read = look(finder, 2 * SIZE_BYTES)
    assert verdict.is_checked


def test_a_wrong_sum_is_found_although_its_first_half_was_read_a_look_before(
    tmp_path: Path,
) -> None:
    path = save_torch(tmp_path / "step_1.pt")
    finder = CheckpointFinder(tmp_path)
    first, _read = look(finder)

    flip(path, SIZE_BYTES - first.unchecked_bytes + 2 * CHUNK_BYTES)

    verdict, _read = look(finder, 2 * SIZE_BYTES)
    assert first.is_valid
    assert (verdict.is_valid, verdict.hindrance) == (False, Hindrance.DAMAGED)
    assert verdict.has_wrong_sum


def replace_by_copy(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def touch(path: Path) -> None:
    os.utime(path, (1e9, 1e9))


def lengthen(path: Path) -> None:
    status = path.stat()
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/version", b"3\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "change", [replace_by_copy, touch, lengthen], ids=["inode", "time", "size"]
)
def test_a_file_that_changed_since_the_cut_is_read_from_its_beginning(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = save_torch(tmp_path / "step_1.pt")
    finder = CheckpointFinder(tmp_path)
    first, _read = look(finder)
    flip(path, 1000)

    change(path)

    verdict, read_bytes = look(finder, 2 * SIZE_BYTES)
    assert first.is_valid
    assert verdict.hindrance is Hindrance.DAMAGED
    assert verdict.reason == "CRC of archive/data/0 does not fit"
    assert read_bytes > SIZE_BYTES // 3


def test_a_look_without_time_for_content_finds_what_is_whole_and_says_what_was_not_checked(
    tmp_path: Path,
) -> None:
    save_torch(tmp_path / "step_2.pt")
    torn = save_torch(tmp_path / "step_3.pt")
    torn.write_bytes(torn.read_bytes()[:-CHUNK_BYTES])

    deadline = Deadline(SystemClock(), 300.0)
    *_others, (torn_one, whole_one) = CheckpointFinder(tmp_path, NO_WAIT).look(deadline, 1)

    assert torn_one.hindrance is Hindrance.DAMAGED
    assert (whole_one.is_valid, whole_one.is_checked) == (True, False)
    assert whole_one.unchecked_bytes == (tmp_path / "step_2.pt").stat().st_size
    assert whole_one.reason == "whole in its structure; its last 25.2 MB were not checked yet"


def test_safetensors_have_no_checksum_and_so_nothing_is_left_to_check(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"U8","shape":[4096],"data_offsets":[0,4096]}}'
    content = struct.pack("<Q", len(header)) + header + bytes(4096)
    (tmp_path / "step_1.safetensors").write_bytes(content)

    with_manifests = CheckpointWatch(CheckpointFinder(tmp_path, NO_WAIT), SystemClock())
    try:
        (verdict,) = with_manifests.candidates()
    finally:
        with_manifests.stop()

    assert verdict.is_valid


def test_of_a_folder_every_file_is_looked_at_although_no_content_is_read(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step_{step}").mkdir()
        for name in ("model.pt", "optimizer.pt"):
            save_torch(tmp_path / f"step_{step}" / name)
    last = tmp_path / "step_2" / "optimizer.pt"
    last.write_bytes(last.read_bytes()[:-9])

    deadline = Deadline(SystemClock(), 300.0)
    *_others, (torn, whole) = CheckpointFinder(tmp_path, NO_WAIT).look(deadline, 1)

    assert torn.reason == "optimizer.pt: truncated: no zip directory at its end"
    assert whole.is_valid
    assert whole.unchecked_bytes == whole.candidate.size_bytes


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[CheckpointWatch]:
    made = CheckpointWatch(CheckpointFinder(tmp_path, NO_WAIT), SystemClock())
    yield made
    made.stop()


def test_what_is_restored_unchecked_is_checked_on_although_newer_ones_are_there(
    tmp_path: Path, watch: CheckpointWatch
) -> None:
    path = save_torch(tmp_path / "step_1.pt")
    flip(path, SIZE_BYTES // 2)
    for step in (2, 3, 4):
        save_torch(tmp_path / f"step_{step}.pt", seed=step)
    assert [one.is_valid for one in watch.candidates()] == [True] * 4

    watch.check_on(str(path))

    def known() -> CheckpointVerdict | None:
        found = [one for one in watch.known() if one.candidate.path == str(path)]
        return found[0] if found else None

    eventually(lambda: (one := known()) is not None and one.has_wrong_sum)
    eventually(lambda: sum(one.is_checked for one in watch.known()) >= 2)


def test_kind_that_ranks_have_restored_is_looked_at_before_another(
    tmp_path: Path, watch: CheckpointWatch
) -> None:
    def save(name: str, at_unix_s: float) -> Path:
        path = tmp_path / name
        path.write_bytes(
            npz_file(step=np.int64(at_unix_s), w=np.ones(10 + len(name)), exp_avg=np.ones(10))
        )
        os.utime(path, (at_unix_s, at_unix_s))
        return path

    first = save("a_10.npz", 10.0)
    assert [one.candidate.tag for one in watch.candidates()] == ["a_10.npz"]
    watch.check_on(str(first))
    for step in (20, 30):
        save(f"a_{step}.npz", float(step))
        save(f"other_{step + 5}.npz", step + 5.0)

    newest, *_others = watch.candidates()
    assert newest.candidate.tag == "a_30.npz"
    assert newest.is_valid

    unaware = CheckpointFinder(tmp_path, NO_WAIT)
    *_looks, (newest, *_others) = unaware.look(Deadline(SystemClock(), 300.0), 1)
    assert newest.candidate.tag == "other_35.npz"


def test_a_question_cuts_the_look_beside_training_and_loses_nothing_of_it(tmp_path: Path) -> None:
    path = save_torch(tmp_path / "step_1.pt")
    slow = CheckpointSettings(check_rate_bytes_per_s=1e7, grace_s=0.0)  # 2.5 s for the file
    finder = CheckpointFinder(tmp_path, slow)
    watch = CheckpointWatch(finder, SystemClock())
    try:
        watch.start()
        eventually(
            lambda: (
                (deadline := watch._deadline) is not None and deadline.read_bytes > 2 * BLOCK_BYTES
            )
        )
        flip(path, 1000)  # in what the look beside training has read already

        (verdict,) = watch.candidates()
    finally:
        watch.stop()

    assert verdict.is_checked


def test_a_look_ends_early_where_its_rate_shows_that_the_time_cannot_suffice() -> None:
    clock = SteppedClock()
    deadline = Deadline(clock, 100.0)
    deadline.expect(1000)

    clock.now = 1.0
    deadline.count(20)  # 980 bytes more would take 49 s, and 99 s are left
    is_left = deadline.left_s() > 0
    clock.now = 2.0
    deadline.count(1)  # 979 bytes more would take 93 s, and 98 s are left
    is_still_left = deadline.left_s() > 0
    clock.now = 10.0
    deadline.count(0)

    assert (is_left, is_still_left, deadline.left_s()) == (True, True, 0.0)


class SteppedClock:
    def __init__(self) -> None:
        self.now = 0.0

    def now_s(self) -> float:
        return self.now

    def unix_s(self) -> float:
        return 1e9
