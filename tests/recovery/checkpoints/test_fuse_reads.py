"""A file of a FUSE file system is read right, and its read error is told."""

import errno
from pathlib import Path

import pytest

from tests.support.bulk_reads import beside_training, digests_of, read_digests, save
from tests.support.faults.unreadable_files import unreadable_files

pytestmark = pytest.mark.process


def test_a_fuse_file_is_read_right_and_its_read_error_is_told(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    path = save(tmp_path / "served" / "shard")
    save(tmp_path / "served" / "broken")

    with unreadable_files(tmp_path / "served", tmp_path) as disk:
        disk.fail_reading("broken")
        digests = read_digests(disk.point / "shard", beside_training())
        with pytest.raises(OSError) as told:
            read_digests(disk.point / "broken", beside_training())

    assert digests == digests_of(path)
    assert told.value.errno == errno.EIO
