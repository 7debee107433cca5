"""Reading to the end: right bytes from every file system, and past the page cache while nobody waits."""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.files.bulk_reads import BUFFER_BYTES, CHUNK_BYTES, BulkReads, take_buffer
from recovery.checkpoints.files.content import check_file, identify
from recovery.checkpoints.files.reader import ChangedError, DefectError, FileReader
from recovery.messages.candidates import CheckpointFormat
from tests.support.bulk_reads import (
    BLOCK,
    SIZE_BYTES,
    beside_training,
    digests_of,
    read_digests,
    save,
)
from tests.support.page_cache import bring_cached, cached_bytes, drop_cached, needs_direct_reads

FEW_BYTES = 200_000  # what looks into the cache and at the ends of a file leave in it


def storage_read_bytes() -> int:
    """Return what this thread has had from storage so far."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def test_beside_training_a_file_that_is_not_cached_does_not_go_into_the_page_cache(
    tmp_path: Path,
) -> None:
    needs_direct_reads(tmp_path)
    path = save(tmp_path / "shard")
    expected = digests_of(path)
    drop_cached(path)
    deadline = beside_training()

    digests = read_digests(path, deadline)

    assert cached_bytes(path) == 0, "a look into the cache starts no read"
    assert digests == expected
    assert deadline.read_bytes == SIZE_BYTES


def test_while_somebody_waits_what_was_read_stays_cached_for_the_ranks(tmp_path: Path) -> None:
    path = save(tmp_path / "shard")
    drop_cached(path)

    read_digests(path, Deadline(SystemClock(), 600))

    assert cached_bytes(path) > SIZE_BYTES / 2


def test_once_somebody_waits_the_rest_of_the_file_goes_through_the_page_cache(
    tmp_path: Path,
) -> None:
    path = save(tmp_path / "shard")
    expected = digests_of(path)
    drop_cached(path)
    deadline = beside_training()

    with FileReader(str(path), deadline, is_whole=True) as reader:
        reader.expect_all()
        reader.read(0, 10)
        deadline.shorten(600)
        digests = reader.digests()

    assert digests == expected
    assert cached_bytes(path) > SIZE_BYTES / 4


def test_what_the_page_cache_holds_is_not_read_from_storage_again(tmp_path: Path) -> None:
    path = save(tmp_path / "shard")
    bring_cached(path, [(0, SIZE_BYTES)])
    before = storage_read_bytes()

    digests = read_digests(path, beside_training())

    assert storage_read_bytes() - before < FEW_BYTES
    assert digests == digests_of(path)


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 1)],
        [(0, CHUNK_BYTES + 5)],
        [(CHUNK_BYTES, 70_000)],
        [(BLOCK - 4096, 8192)],
        [(SIZE_BYTES - 3, 3)],
        [(at, 300_000) for at in range(0, SIZE_BYTES, 700_000)],
    ],
    ids=["a page", "the beginning", "a middle", "across blocks", "the end", "every other piece"],
)
def test_a_file_that_is_cached_in_parts_is_read_right(
    tmp_path: Path, parts: list[tuple[int, int]]
) -> None:
    path = save(tmp_path / "shard")
    expected = digests_of(path)
    drop_cached(path)
    bring_cached(path, parts)

    assert read_digests(path, beside_training()) == expected


@pytest.mark.parametrize(
    "size_bytes", [0, 1, 511, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]
)
def test_a_file_of_any_size_is_read_to_its_last_byte(tmp_path: Path, size_bytes: int) -> None:
    path = save(tmp_path / "shard", size_bytes)
    expected = digests_of(path)
    drop_cached(path)

    assert read_digests(path, beside_training()) == expected


def test_a_file_that_was_just_written_is_read_right(tmp_path: Path) -> None:
    path = save(tmp_path / "shard")

    assert read_digests(path, beside_training()) == digests_of(path)


@pytest.mark.parametrize("left_bytes", [BLOCK, BLOCK + 100, BLOCK + 4096])
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_file_that_shrinks_while_it_is_read_has_changed(
    tmp_path: Path, left_bytes: int, is_cached: bool
) -> None:
    path = save(tmp_path / "shard")
    if not is_cached:
        drop_cached(path)

    with FileReader(str(path), beside_training(), is_whole=True) as reader:
        reader.read(0, 10)
        os.truncate(path, left_bytes)

        with pytest.raises(ChangedError, match="changed while it was read"):
            reader.digests()


def test_a_file_that_grows_while_it_is_read_is_read_as_far_as_it_was_listed(
    tmp_path: Path,
) -> None:
    path = save(tmp_path / "shard")
    expected = digests_of(path)
    drop_cached(path)

    with FileReader(str(path), beside_training(), is_whole=True) as reader:
        reader.read(0, 10)
        with path.open("ab") as file:
            file.write(bytes(BLOCK))
        digests = reader.digests()

    assert digests == expected


def test_an_address_that_direct_reads_refuse_is_read_through_the_page_cache(
    tmp_path: Path,
) -> None:
    path = save(tmp_path / "shard")
    drop_cached(path)
    buffer = take_buffer()

    with path.open("rb", buffering=0) as file:
        reads = BulkReads(file.fileno(), SIZE_BYTES, beside_training())
        count = reads.read(buffer[1:], 0, CHUNK_BYTES)

    assert bytes(buffer[1 : 1 + count]) == path.read_bytes()[:count]
    assert count > 0


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    path = Path(f"/dev/shm/rankmend-test-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def test_a_file_in_shared_memory_is_read_right(shared_memory: Path) -> None:
    save(shared_memory)

    assert read_digests(shared_memory, beside_training()) == digests_of(shared_memory)


def save_archive(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        for number in range(2):  # the end lies in the second of two reads
            data = np.random.default_rng(number).bytes(3_000_001)
            file.writestr(f"archive/data/{number}", data)
    return path


def check_archive(path: Path, deadline: Deadline) -> None:
    with FileReader(str(path), deadline, is_whole=True) as reader:
        identify(reader)
        check_file(reader, CheckpointFormat.TORCH)


def test_an_archive_that_is_not_cached_is_read_once(tmp_path: Path) -> None:
    path = save_archive(tmp_path / "step-1.pt")
    drop_cached(path)
    deadline = beside_training()

    check_archive(path, deadline)

    assert deadline.read_bytes - path.stat().st_size < FEW_BYTES


@pytest.mark.parametrize("is_cut", [False, True], ids=["flipped", "cut"])
def test_a_damaged_archive_that_is_not_cached_is_refused(tmp_path: Path, is_cut: bool) -> None:
    path = save_archive(tmp_path / "step-1.pt")
    if is_cut:
        os.truncate(path, BLOCK + 1234)
    else:
        with path.open("r+b") as file:
            file.seek(BLOCK + 1_000_000)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
    drop_cached(path)

    with pytest.raises(DefectError, match="no zip directory" if is_cut else "CRC of archive/data/"):
        check_archive(path, beside_training())


def test_reading_ends_with_the_deadline(tmp_path: Path) -> None:
    path = save(tmp_path / "shard")
    drop_cached(path)
    deadline = beside_training()

    with FileReader(str(path), deadline, is_whole=True) as reader:
        reader.read(0, 10)
        deadline.shorten(0)

        with pytest.raises(UnfinishedError):
            reader.digests()

    assert 0 < deadline.read_bytes <= BUFFER_BYTES


def test_two_files_that_are_read_at_the_same_time_don_t_mix(tmp_path: Path) -> None:
    one, other = save(tmp_path / "one"), save(tmp_path / "other", BLOCK + 7)
    deadline = beside_training()

    with (
        FileReader(str(one), deadline, is_whole=True) as first,
        FileReader(str(other), deadline, is_whole=True) as second,
    ):
        head = first.read(0, 100)
        second.read(0, 100)
        again = first.read(0, 100)
        found = (first.digests(), second.digests())

    assert head == again == one.read_bytes()[:100]
    assert found == (digests_of(one), digests_of(other))
