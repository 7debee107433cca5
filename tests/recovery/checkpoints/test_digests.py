"""Digests that are taken while a file is checked: of every byte, in order, each block once."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import xxhash

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import BLOCK_BYTES, blocks_of
from recovery.checkpoints.files.bulk_reads import CHUNK_BYTES
from recovery.checkpoints.files.content import check_file, identify
from recovery.checkpoints.files.reader import FileReader
from recovery.messages.candidates import CheckpointFormat

BLOCK = BLOCK_BYTES


def save_archive(path: Path, sizes: list[int]) -> Path:
    generator = np.random.default_rng(3)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        for number, size_bytes in enumerate(sizes):
            file.writestr(f"archive/data/{number}", generator.bytes(size_bytes))
    return path


def expected_digests(path: Path) -> bytes:
    data = path.read_bytes()
    blocks = (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))
    return b"".join(xxhash.xxh3_64(block).digest() for block in blocks)


@pytest.mark.parametrize(
    "sizes",
    [
        [10],
        [CHUNK_BYTES - 200, 5, CHUNK_BYTES, 3 * CHUNK_BYTES + 1, BLOCK],
        [70_000] * 100,
        [900] * 3000,
    ],
    ids=["one chunk", "across chunks", "small members", "many members"],
)
def test_checking_a_file_takes_the_digests_of_its_blocks_on_the_way(
    tmp_path: Path, sizes: list[int]
) -> None:
    path = save_archive(tmp_path / "step-1.pt", sizes)
    deadline = Deadline(SystemClock(), 60)

    with FileReader(str(path), deadline, is_whole=True) as reader:
        identify(reader)
        check_file(reader, CheckpointFormat.TORCH)
        digests = reader.digests()

    assert digests == expected_digests(path)
    read_again = deadline.read_bytes - path.stat().st_size
    assert read_again < 400_000  # the zip directory at its end, and headers across two chunks


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_the_last_block_may_be_short(tmp_path: Path, size_bytes: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(4).bytes(size_bytes))

    with FileReader(str(path), Deadline(SystemClock(), 60), is_whole=True) as reader:
        digests = reader.digests()

    assert digests == expected_digests(path)
    assert len(digests) == 8 * blocks_of(size_bytes)
