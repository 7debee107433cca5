"""Orbax: its database is read to the last CRC, and what lies in the data files is what it says."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.ocdbt import FileRange, UnknownOcdbtError, read_entries
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.folder import survey_folder
from recovery.messages.candidates import CheckpointSettings, CheckpointVerdict, Hindrance
from tests.support.checkpoint_saves import find
from tests.support.eventually import DEADLINE_S
from tests.support.framework_saves import require
from tests.support.ocdbt_files import (
    MANIFEST_MAGIC,
    NODE_MAGIC,
    NODES,
    VALUES,
    leaf,
    manifest,
    numbers,
    wrap,
    write_ocdbt,
    zarray,
    zstd_frame,
)

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
CHUNK = zstd_frame(os.urandom(400_000))  # of four blocks


def save_orbax(root: Path, step: int, chunk: bytes = CHUNK) -> Path:
    """Save an array of two chunks in the data file, and one of one chunk in the node."""
    path = root / str(step)
    write_ocdbt(
        path,
        {"w/.zarray": zarray([200_000], [100_000]), "b/.zarray": zarray([1], [1]), "b/0": b"\0"},
        {"w/0": CHUNK, "w/1": chunk},
    )
    (path / "_CHECKPOINT_METADATA").write_text('{"commit_timestamp_nsecs": 5}')
    metadata = {"use_ocdbt": True, "store_array_data_equal_to_fill_value": True}
    (path / "_METADATA").write_text(json.dumps(metadata))
    return path


def entries_in(folder: Path) -> dict[str, bytes | FileRange]:
    deadline = Deadline(SystemClock(), 30)
    survey = survey_folder(str(folder), CheckpointSettings(), deadline)
    return read_entries(survey.tree(str(folder), frozenset(), deadline), "")[0]


def judge(root: Path, step: int = 10) -> CheckpointVerdict:
    return next(verdict for verdict in find(root) if verdict.candidate.tag == str(step))


def test_the_verdict_counts_arrays_and_says_which_files_were_only_seen(tmp_path: Path) -> None:
    path = save_orbax(tmp_path, 10)
    (path / "_sharding").write_text("{}")

    verdict = judge(tmp_path)

    assert verdict.is_valid
    assert verdict.reason == (
        "complete: _CHECKPOINT_METADATA with its commit time, 1 item, 2 arrays by manifest.ocdbt and "
        "its tree; 5 files checked, 1 only known to be there"
    )


@pytest.mark.parametrize("name", ["manifest.ocdbt", NODES])
def test_a_flipped_bit_in_any_byte_of_manifest_and_tree_is_found(tmp_path: Path, name: str) -> None:
    path = save_orbax(tmp_path, 10)
    whole = (path / name).read_bytes()

    for number in range(len(whole)):
        torn = bytearray(whole)
        torn[number] ^= 1 << number % 8
        (path / name).write_bytes(torn)
        with pytest.raises(DefectError, match=name):
            entries_in(path)


@pytest.mark.parametrize("name", ["manifest.ocdbt", NODES, VALUES])
def test_a_file_that_is_cut_or_missing_is_named(tmp_path: Path, name: str) -> None:
    path = save_orbax(tmp_path, 10)

    os.truncate(path / name, (path / name).stat().st_size - 1)
    cut = judge(tmp_path)
    (path / name).unlink()
    missing = judge(tmp_path)

    assert (cut.hindrance, missing.hindrance) == (Hindrance.DAMAGED, Hindrance.DAMAGED)
    assert cut.reason.startswith(f"{name}: ")
    assert f"{name}" in missing.reason
    assert "is missing" in missing.reason


ZEROED = CHUNK[:150_000] + bytes(len(CHUNK) - 150_000)  # pages that never reached the disk
OTHER = zstd_frame(os.urandom(400_004))


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (bytes(1000), f"{VALUES}: no zstd frame begins at {len(CHUNK)}"),
        (ZEROED, f"{VALUES}: "),
        (CHUNK[:-1], f"{VALUES}: a zstd frame in it is cut off"),
        (CHUNK + b"\0", f"{VALUES}: no zstd frame begins at {2 * len(CHUNK)}"),
        (OTHER, f"{VALUES}: the zstd frame at {len(CHUNK)} holds 400004 bytes instead of 400000"),
    ],
)
def test_a_chunk_that_is_not_what_was_written_is_torn(
    tmp_path: Path, chunk: bytes, reason: str
) -> None:
    save_orbax(tmp_path, 10, chunk)

    verdict = judge(tmp_path)

    assert verdict.hindrance is Hindrance.DAMAGED
    assert verdict.reason.startswith(reason)


def test_an_array_that_lacks_a_chunk_is_torn_where_all_are_written(tmp_path: Path) -> None:
    path = save_orbax(tmp_path, 10)
    shutil.rmtree(path / "d")
    write_ocdbt(path, {"w/.zarray": zarray([200_000], [100_000])}, {"w/0": CHUNK})
    all_written = judge(tmp_path)
    (path / "_METADATA").write_text('{"use_ocdbt": true}')

    without_zeros = judge(tmp_path)

    assert all_written.reason == "w: 1 of its 2 chunks are there"
    assert without_zeros.is_valid, without_zeros.reason


def test_chunks_of_another_compression_are_only_known_to_be_there(tmp_path: Path) -> None:
    path = save_orbax(tmp_path, 10)
    shutil.rmtree(path / "d")
    write_ocdbt(path, {"w/.zarray": zarray([9], [9], compressor="blosc")}, {"w/0": b"any"})

    verdict = judge(tmp_path)

    assert verdict.is_valid
    assert verdict.reason.endswith("4 files checked, 1 only known to be there")


def test_a_database_of_a_later_version_is_no_damage(tmp_path: Path) -> None:
    path = save_orbax(tmp_path, 10)
    later = wrap(MANIFEST_MAGIC, b"", version=1)
    (path / "manifest.ocdbt").write_bytes(later)

    verdict = judge(tmp_path)

    assert verdict.is_valid
    assert "its arrays only known to be there (version 1, compression 0)" in verdict.reason


@given(body=st.binary(max_size=200), height=st.integers(0, 3))
def test_nothing_in_a_node_leads_astray(
    body: bytes, height: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("node")
    (path / "d").mkdir()
    node = wrap(NODE_MAGIC, bytes([height]) + body)
    (path / NODES).write_bytes(node)
    (path / "manifest.ocdbt").write_bytes(manifest(len(node), 1, height))

    with contextlib.suppress(DefectError, UnknownOcdbtError):
        entries_in(path)


def test_a_node_that_claims_more_than_it_holds_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    node = wrap(NODE_MAGIC, b"\0" + numbers(0, 1 << 60))
    (tmp_path / NODES).write_bytes(node)
    (tmp_path / "manifest.ocdbt").write_bytes(manifest(len(node), 1))

    with pytest.raises(UnknownOcdbtError, match="numbers in"):
        entries_in(tmp_path)


def test_a_tree_that_names_a_file_outside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    node = leaf({}, {"w/0": (0, 1)}).replace(VALUES.encode(), b"../b")
    node = wrap(NODE_MAGIC, node[14:-4])
    (tmp_path / NODES).write_bytes(node)
    (tmp_path / "manifest.ocdbt").write_bytes(manifest(len(node), 1))

    with pytest.raises(UnknownOcdbtError, match="lies elsewhere"):
        entries_in(tmp_path)


# What Orbax and TensorStore themselves write


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    require("orbax", "tensorstore")
    folder = tmp_path_factory.mktemp("orbax")
    subprocess.run(
        [sys.executable, "-m", "tests.support.framework_saves", "orbax_arrays", str(folder)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    yield folder
    shutil.rmtree(folder)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["ocdbt/10", "ocdbt/20/default", "deep"])
def test_the_tree_is_read_as_tensorstore_reads_it(real: Path, name: str) -> None:
    expected = json.loads((real / f"{name.replace('/', '-')}.json").read_text())

    found = entries_in(real / name)

    assert expected == {
        key: len(value) if isinstance(value, bytes) else [value.name, value.offset, value.length]
        for key, value in found.items()
    }


@pytest.mark.torch
@pytest.mark.parametrize("step", ["10", "20", "30", "40"])
def test_every_file_that_orbax_restores_is_found_damaged(
    real: Path, tmp_path: Path, step: str
) -> None:
    """10 and 20: by OCDBT, without and with a manager; 30: in files; 40: Zarr version 3."""
    path = tmp_path / step
    shutil.copytree(real / "ocdbt" / step, path)
    assert judge(tmp_path, int(step)).is_valid, judge(tmp_path, int(step)).reason
    needed = [
        file
        for file in path.rglob("*")
        if file.is_file()
        and file.name not in {"_sharding", "process_0", "commit_success.txt"}
        and file.relative_to(path).as_posix() not in _intermediate(path)
    ]
    assert len(needed) >= 5

    for file in needed:
        content = file.read_bytes()
        os.truncate(file, len(content) // 2)
        assert not judge(tmp_path, int(step)).is_valid, f"{file.name} was cut in half"
        file.unlink()
        assert not judge(tmp_path, int(step)).is_valid, f"{file.name} was removed"
        file.write_bytes(content)
    assert judge(tmp_path, int(step)).is_valid


def _intermediate(path: Path) -> set[str]:
    """Return the files of each process's own database that the merged one does not name."""
    item = next(file.parent for file in path.rglob("_METADATA"))
    folders = [folder for folder in item.glob("ocdbt.process_*") if folder.is_dir()]
    if not folders:
        return set()
    named = {value.name for value in entries_in(item).values() if isinstance(value, FileRange)}
    return {
        file.relative_to(path).as_posix()
        for folder in folders
        for file in folder.rglob("*")
        if file.relative_to(item).as_posix() not in named
    }
