"""What a snapshot file says is believed only where all of it fits."""

import os
import uuid
from pathlib import Path

import pytest
import xxhash

from rankmend.errors import SourceError
from rankmend.hook.snapshots import layout
from recovery.checkpoints.snapshots.files import OpenSnapshot, SnapshotHead, snapshot_paths
from tests.support.snapshot_files import EMPTY, JOB_ID, write_snapshot


def head_of(path: Path) -> SnapshotHead | None:
    with OpenSnapshot(path, JOB_ID) as file:
        return file.read_head()


def digest_of(path: Path) -> str:
    with OpenSnapshot(path, JOB_ID) as file:
        return file.digest().whole


def test_head_of_a_whole_snapshot_is_read_field_by_field(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, b"12345", rank=1, attempt=3, step=40, sequence=7)

    assert head_of(path) == SnapshotHead(
        rank=1,
        attempt=3,
        step=40,
        world_size=2,
        sequence=7,
        size_bytes=5 + len(EMPTY),
        written_ns=1_000_000_000,
        inode=path.stat().st_ino,
    )


def test_snapshot_that_is_being_written_is_none(tmp_path: Path) -> None:
    whole = write_snapshot(tmp_path, is_whole=False)
    fresh = tmp_path / layout.file_name(1, 0)
    fresh.write_bytes(bytes(8192))
    (tmp_path / layout.file_name(1, 1)).touch()

    assert [head_of(path) for path in (whole, fresh, tmp_path / layout.file_name(1, 1))] == [
        None,
        None,
        None,
    ]


def test_equal_content_of_two_ranks_has_one_digest(tmp_path: Path) -> None:
    first = write_snapshot(tmp_path, b"same", rank=0, step=3)
    second = write_snapshot(tmp_path, b"same", rank=1, step=3)
    other = write_snapshot(tmp_path, b"samf", rank=1, buffer=1, step=3)

    assert digest_of(first) == digest_of(second) != digest_of(other)


def test_content_larger_than_a_read_is_digested_to_its_last_byte(tmp_path: Path) -> None:
    data = bytes(3 << 20) + b"0"

    first = digest_of(write_snapshot(tmp_path, data))
    second = digest_of(write_snapshot(tmp_path, data[:-1] + b"1"))

    assert first != second


@pytest.mark.parametrize("at", [0, 9, 20, 60, 100, 104])
def test_flipped_bit_in_the_head_is_refused(tmp_path: Path, at: int) -> None:
    path = write_snapshot(tmp_path)
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 16]))

    with pytest.raises(SourceError, match=r"rank-0\.0\.snapshot: "):
        head_of(path)


def test_snapshot_of_another_job_or_rank_is_refused(tmp_path: Path) -> None:
    foreign = write_snapshot(tmp_path, job_id=uuid.UUID(int=5))
    moved = write_snapshot(tmp_path, rank=1).rename(tmp_path / layout.file_name(3, 0))

    with pytest.raises(SourceError, match="of job 00000000-0000-0000-0000-000000000005"):
        head_of(foreign)
    with pytest.raises(SourceError, match="of rank 1"):
        head_of(moved)


def test_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, bytes(100_000))
    os.truncate(path, 50_000)

    with pytest.raises(SourceError, match="impossible header"):
        head_of(path)


def test_links_pipes_and_other_names_are_no_snapshots(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path)
    link = tmp_path / layout.file_name(1, 0)
    link.symlink_to(path)
    pipe = tmp_path / layout.file_name(1, 1)
    os.mkfifo(pipe)
    (tmp_path / "rank-x.0.snapshot").touch()

    assert snapshot_paths(tmp_path) == [path, link, pipe]
    with pytest.raises(OSError, match="symbolic link"):
        head_of(link)
    with pytest.raises(SourceError, match="not a regular file"):
        head_of(pipe)
    assert snapshot_paths(tmp_path / "nowhere") == []


def parts_in(path: Path) -> dict[str, str]:
    with OpenSnapshot(path, JOB_ID) as file:
        return {part.name: part.digest for part in file.digest().parts}


def tensor(at: int, size: int, dtype: str = "float32") -> str:
    return f'["torch",{layout.DATA_AT + at},{size},"{dtype}",[],null,null]'


def document(tensors: list[str], state: str) -> bytes:
    return f'{{"version":1,"tensors":[{",".join(tensors)}],"blobs":[],"state":{state}}}'.encode()


STATE = '{"m":{"model":{"m":{"w":{"T":0},"b":{"T":2}}},"optimizer":{"d":[0,{"t":[{"T":1},7]}]},"seed":{"T":3},"n":5}}'
DTYPES = ("float32", "bfloat16", "float32", "uint8")


def test_parts_of_a_state_are_digested_apart(tmp_path: Path) -> None:
    size = 700_000  # so that tensors lie across the ends of reads
    rows = [tensor(at * size, size, dtype) for at, dtype in enumerate(DTYPES)]
    data = bytearray(b"a" * size + b"b" * size + b"c" * size + b"d" * size)
    first = parts_in(write_snapshot(tmp_path, bytes(data), structure=document(rows, STATE)))

    changed = {}
    for number, name in enumerate(("w", "moment", "b", "seed")):
        one = bytearray(data)
        one[(number + 1) * size - 1] ^= 1
        changed[name] = parts_in(
            write_snapshot(tmp_path, bytes(one), structure=document(rows, STATE))
        )

    assert list(first) == ["model", "optimizer"]
    assert {name: told == first for name, told in changed.items()} == {
        "w": False,
        "moment": False,
        "b": False,
        "seed": True,
    }
    assert changed["moment"]["model"] == first["model"]
    assert changed["w"]["optimizer"] == first["optimizer"]


def test_tensors_that_parts_share_are_digested_in_each_whole(tmp_path: Path) -> None:
    mebibyte = 1 << 20
    rows = [tensor(mebibyte - 100, 200), tensor(mebibyte - 50, 100)]  # over the end of a read
    state = '{"m":{"model":{"T":0},"ema":{"T":0},"view":{"T":1}}}'
    data = os.urandom(2 * mebibyte)

    parts = parts_in(write_snapshot(tmp_path, data, structure=document(rows, state)))

    shared = xxhash.xxh3_64_hexdigest(data[mebibyte - 100 : mebibyte + 100])
    inner = xxhash.xxh3_64_hexdigest(data[mebibyte - 50 : mebibyte + 50])
    assert parts == {"model": shared, "ema": shared, "view": inner}


@pytest.mark.parametrize(
    "structure",
    [
        b"{",
        b"[]",
        document([], '{"m":{"model":{"T":0}}}'),
        document(['["torch",-5,4,"float32"]'], '{"m":{"model":{"T":0}}}'),
        document(['["torch",4096]'], '{"m":{"model":{"T":0}}}'),
        document(["7"], '{"m":{"model":{"T":0}}}'),
        document([], '{"m":' + "[" * 5000 + "]" * 5000 + "}"),
    ],
)
def test_structure_of_another_form_is_refused(tmp_path: Path, structure: bytes) -> None:
    with pytest.raises(SourceError, match=r"rank-0\.0\.snapshot: a malformed structure"):
        parts_in(write_snapshot(tmp_path, structure=structure))
