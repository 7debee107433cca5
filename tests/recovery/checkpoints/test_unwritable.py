"""A checkpoint folder that takes no more writes is told apart by what it lacks, on real file systems."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from recovery.checkpoints.marks import FenceFile
from recovery.checkpoints.unwritable import (
    Unwritable,
    UnwritableError,
    explain_unwritable,
    short_of_room,
)
from tests.support.faults.mounts import tmpfs
from tests.support.faults.storage import fill

pytestmark = [pytest.mark.process, pytest.mark.safety]


def fill_inodes(folder: Path) -> None:
    for number in range(1000):
        try:
            (folder / f"empty-{number}").touch()
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
            return


def refused(fence: FenceFile) -> UnwritableError:
    with pytest.raises(UnwritableError) as advancing:
        fence.advance(2)
    with pytest.raises(UnwritableError) as probing:
        fence.check_room()
    assert (probing.value.why, str(probing.value)) == (advancing.value.why, str(advancing.value))
    return advancing.value


def test_full_file_system_is_named_with_what_is_free_until_there_is_room(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "size=1m,nr_inodes=64") as folder:
        fence = FenceFile(folder / ".rankmend" / "attempt")
        fence.advance(1)
        full = fill(folder)

        error = refused(fence)

        assert error.why is Unwritable.FULL
        assert f"the file system at {folder} is full: 0 bytes of 1.05 MB free" in str(error)
        assert fence.read() == 1
        full.end()
        fence.check_room()
        fence.advance(2)
        assert [one.name for one in fence.path.parent.iterdir()] == ["attempt"]


def test_file_system_without_inodes_is_not_called_full(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "many", "size=1m,nr_inodes=16") as folder:
        fence = FenceFile(folder / ".rankmend" / "attempt")
        fence.advance(1)
        fill_inodes(folder)

        error = refused(fence)

    assert error.why is Unwritable.NO_INODES
    assert "has no inode left for another file, though 1.0" in str(error)


def test_read_only_file_system_is_named_as_such(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "ro", "size=1m") as folder:
        fence = FenceFile(folder / ".rankmend" / "attempt")
        fence.advance(1)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)

        error = refused(fence)

    assert error.why is Unwritable.READ_ONLY
    assert "is mounted read-only" in str(error)


def test_quota_names_whose_it_is_and_that_the_file_system_has_room(tmp_path: Path) -> None:
    failure = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    error = explain_unwritable(tmp_path / "not" / "yet", failure)

    assert error is not None
    assert error.why is Unwritable.QUOTA
    assert f"has no quota left for uid {os.getuid()}" in str(error)
    assert str(error).startswith(f"{tmp_path}/not/yet can't be written: the file system at /")


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "I/O error"), OSError("odd"), None])
def test_other_trouble_is_none_of_these(tmp_path: Path, failure: OSError | None) -> None:
    assert explain_unwritable(tmp_path, failure) is None


def test_save_that_does_not_fit_is_refused_where_the_fence_fits(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=1m") as folder:
        fence = FenceFile(folder / ".rankmend" / "fence")
        fence.advance(1)

        with pytest.raises(UnwritableError, match="are free, and a save takes 5 MB") as refusal:
            fence.refuse_short(5_000_000)
        fence.refuse_short(100_000)

    assert refusal.value.why is Unwritable.FULL
    assert str(folder) in str(refusal.value)


def test_room_that_is_just_enough_or_not_known_refuses_nothing() -> None:
    assert short_of_room("/c", 100, 100) is None
    assert short_of_room("/c", None, 100) is None
    assert short_of_room("/c", 99, 100) is not None


def test_fence_that_lies_elsewhere_knows_of_no_room(tmp_path: Path) -> None:
    assert FenceFile(tmp_path / "fence", is_beside=False).free_bytes() is None
