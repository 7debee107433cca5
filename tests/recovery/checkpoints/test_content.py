"""Validation of single files: what is whole, what is not, and that no bytes make it raise."""

import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline, UnfinishedError
from recovery.checkpoints.files.archive import read_archives
from recovery.checkpoints.files.content import check_file, identify, parse_npy_integer
from recovery.checkpoints.files.reader import DefectError, FileReader
from recovery.checkpoints.names import is_ignored, shown, step_of
from recovery.messages.candidates import CheckpointFormat
from tests.support.checkpoint_saves import make_safetensors, make_torch_layout
from tests.support.file_verdicts import defect, judge

KIND = CheckpointFormat


def make_npz(compressed: bool = False, **arrays: object) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


WRITERS: dict[str, Callable[[], bytes]] = {
    "torch": make_torch_layout,
    "npz": lambda: make_npz(step=7, w=np.arange(90.0)),
    "npz deflated": lambda: make_npz(compressed=True, step=7, w=np.zeros(9000)),
    "safetensors": make_safetensors,
}


def reason_of(path: Path, content: bytes) -> str:
    """Return what is whole or why it is not; any other exception is a failure."""
    try:
        return judge(path, content)[1]
    except DefectError as error:
        return str(error)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "candidate"


# What is whole


def test_tar_files_need_unpickling(file: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("storages"))

    assert defect(file, buffer.getvalue()) == "not a zip: can't be validated without unpickling"


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_files_are_whole(file: Path, compressed: bool) -> None:
    content = make_npz(compressed, step=7, w=np.zeros(2_000_000))

    assert judge(file, content) == (KIND.NPZ, "zip directory and CRC of 2 members")


def test_a_member_larger_than_any_read_is_checked_to_its_end(file: Path) -> None:
    content = bytearray(make_npz(w=np.arange(500_000)))
    content[content.index(struct.pack("<q", 499_990))] ^= 16

    assert defect(file, bytes(content)) == "CRC of w.npy does not fit"


@pytest.mark.parametrize("metadata", [None, {"format": "pt", "shape": "no tensor"}])
def test_safetensors_files_are_whole(file: Path, metadata: object) -> None:
    verdict = judge(file, make_safetensors(3, metadata))

    reason = "header and size of 3 tensors (the format has no checksum)"
    assert verdict == (KIND.SAFETENSORS, reason)


# What is not


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_cut_off_anywhere_is_not_whole(file: Path, writer: str) -> None:
    content = WRITERS[writer]()
    lengths = range(0, len(content), max(1, len(content) // 400))

    for length in [*lengths, len(content) - 1]:
        defect(file, content[:length])


@pytest.mark.parametrize("writer", WRITERS)
def test_a_cut_off_file_keeps_its_kind_and_says_what_is_missing(file: Path, writer: str) -> None:
    content = WRITERS[writer]()
    file.write_bytes(content[:-5])

    with FileReader(str(file), Deadline(SystemClock(), 30)) as reader:
        kind = identify(reader).format

    assert kind.value == writer.split(maxsplit=1)[0]
    assert defect(file, content[:-5]).startswith("truncated: ")


def members_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.parametrize("writer", ["torch", "npz", "npz deflated"])
def test_a_flipped_bit_is_found_or_changes_no_content(file: Path, writer: str) -> None:
    content = WRITERS[writer]()
    whole = members_of(content)
    passed = 0

    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        try:
            judge(file, bytes(flipped))
        except DefectError:
            continue
        passed += 1
        assert members_of(bytes(flipped)) == whole, f"byte {at}"

    assert passed < len(content) / 2  # dates, versions and attributes alone are free


def test_a_flipped_bit_in_a_safetensors_header_is_found_where_it_changes_the_layout(
    file: Path,
) -> None:
    content = make_safetensors(1)

    for old, new in [(b'"F32"', b'"F16"'), (b"[2, 2]", b"[2, 6]"), (b"[0, 16]", b"[8, 16]")]:
        assert old in content
        assert "does not fit its place" in defect(file, content.replace(old, new))


def test_safetensors_tensors_that_share_bytes_are_refused(file: Path) -> None:
    content = make_safetensors(2)

    overlapping = content.replace(b"[16, 32]", b"[0, 16] ")[:-16]

    assert defect(file, overlapping) == "tensor t1 does not fit its place"


def test_a_zip_whose_end_record_counts_fewer_members_is_damaged(file: Path) -> None:
    content = make_npz(a=1, b=2)
    end = content.index(b"PK\x05\x06")

    fewer = content[: end + 8] + struct.pack("<HH", 1, 1) + content[end + 12 :]

    assert defect(file, fewer) == "its zip directory is damaged"


def test_a_safetensors_header_with_bytes_that_no_tensor_has_is_refused(file: Path) -> None:
    assert defect(file, make_safetensors() + b"\0").startswith("truncated: ")


def test_zeroes_are_no_checkpoint(file: Path) -> None:
    reason = "no checkpoint format is known that begins with 00 00 00 00 00 00 00 00"

    assert defect(file, bytes(4096)) == reason
    assert defect(file, b"") == "empty file"


def test_a_hole_of_zeroes_in_the_middle_is_found(file: Path) -> None:
    content = make_torch_layout()
    at = content.index(bytes(range(256)))

    holed = content[:at] + bytes(512) + content[at + 512 :]

    assert defect(file, holed) == "CRC of archive/data/0 does not fit"


# Hostile files


def test_a_zip_of_something_else_is_no_torch_file(file: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("photo.jpg", b"x")

    assert "without data.pkl" in defect(file, buffer.getvalue())


def test_an_npz_with_another_file_in_it_is_refused(file: Path) -> None:
    buffer = io.BytesIO(make_npz(w=np.ones(3)))
    with zipfile.ZipFile(buffer, "a") as zipped:
        zipped.writestr("evil\x1b[2J.sh", b"x")

    assert defect(file, buffer.getvalue()) == r"evil\x1b[2J.sh in it is not an .npy file"


def test_a_member_that_claims_to_grow_beyond_what_deflate_can_is_refused(file: Path) -> None:
    content = bytearray(make_npz(compressed=True, w=np.zeros(9000)))
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 0xFFFFFFF0)

    assert defect(file, bytes(content)).startswith("w.npy claims to grow from ")


def test_a_member_that_unpacks_to_more_than_it_claims_is_left_at_once(file: Path) -> None:
    content = bytearray(make_npz(compressed=True, w=np.zeros(9_000_000)))
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 1000)

    assert defect(file, bytes(content)) == "w.npy unpacks to more than it claims"


@pytest.mark.parametrize("size_bytes", [1000, 5_000_000])
def test_a_packed_member_without_a_checksum_is_not_taken_for_a_save_without_checksums(
    file: Path, size_bytes: int
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("archive/data.pkl", b"\x80\x02}.")
        zipped.writestr("archive/data/0", bytes(size_bytes))
    content = bytearray(buffer.getvalue())
    for member in zipfile.ZipFile(buffer).infolist():
        crc = struct.pack("<I", member.CRC)
        while crc in content:
            at = content.index(crc)
            content[at : at + 4] = bytes(4)

    assert defect(file, bytes(content)) == "CRC of archive/data.pkl does not fit"


def test_members_that_overlap_are_refused(file: Path) -> None:
    content = bytearray(make_npz(a=np.arange(1000), b=np.arange(1000)))
    second = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4)
    for field in (20, 24):
        size = struct.unpack_from("<I", content, second + field)[0]
        struct.pack_into("<I", content, second + field, size + 2000)

    assert defect(file, bytes(content)) == "its zip members overlap"


def test_a_directory_with_too_many_entries_is_not_even_read(file: Path) -> None:
    content = make_npz(a=1)
    end = content.index(b"PK\x05\x06")
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**9, 10**9, 1, 1)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)

    reason = defect(file, content[:end] + record + locator + content[end:])

    assert reason == "its zip directory claims 1000000000 members, too many"


def test_a_file_of_empty_archives_is_bounded(file: Path) -> None:
    file.write_bytes(make_torch_layout() + (b"PK\x05\x06" + bytes(18)) * 30)

    with FileReader(str(file), Deadline(SystemClock(), 30)) as reader:
        assert len(read_archives(reader)) == 31
        with pytest.raises(DefectError, match="more than 20 zip members"):
            read_archives(reader, members_max=20)


def test_an_encrypted_member_is_refused(file: Path) -> None:
    content = bytearray(make_npz(w=np.ones(3)))
    content[content.index(b"PK\x01\x02") + 8] |= 1

    assert defect(file, bytes(content)) == "w.npy is packed in an unknown way"


def test_a_deeply_nested_safetensors_header_is_refused(file: Path) -> None:
    header = b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    content = struct.pack("<Q", len(header)) + header

    assert defect(file, content) == "its header is not safetensors JSON"


def test_a_safetensors_header_beyond_the_limit_is_not_read(file: Path) -> None:
    with file.open("wb") as sparse:
        sparse.write(struct.pack("<Q", 90_000_000) + b"{")
        sparse.truncate(100_000_000)

    with FileReader(str(file), Deadline(SystemClock(), 30)) as reader:
        with pytest.raises(DefectError, match="its header claims 90000000 bytes"):
            check_file(reader, identify(reader).format)


PIECES = st.sampled_from(
    [
        *(b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06" + bytes(18), b"PK\x06\x06", b"PK\x06\x07"),
        *(b"{", b"\x80\x02", b"step.npy", b"a/data.pkl", b"\xff" * 8, bytes(8)),
        b'{"t":{"dtype":"F32"}}',
    ]
)
MIXED = st.lists(PIECES | st.binary(max_size=60), max_size=12).map(b"".join)


@given(content=MIXED)
def test_no_bytes_make_validation_raise(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"

    assert reason_of(path, content).isprintable()


@given(data=st.data(), writer=st.sampled_from(sorted(WRITERS)))
def test_no_damage_to_a_real_file_makes_validation_raise(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, writer: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    content = bytearray(WRITERS[writer]())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))

    assert reason_of(path, bytes(content)).isprintable()


# Bounds and access


class SteppingClock:
    """Moves on by a second whenever it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_s(self) -> float:
        self.now += 1
        return self.now

    def unix_s(self) -> float:
        return 0.0


def test_reading_stops_at_the_deadline_in_the_middle_of_a_member(file: Path) -> None:
    file.write_bytes(make_npz(w=np.zeros(8_000_000)))

    with FileReader(str(file), Deadline(SteppingClock(), 30)) as reader:
        with pytest.raises(UnfinishedError, match="not finished within"):
            check_file(reader, KIND.NPZ)


def test_a_share_of_a_deadline_ends_when_the_deadline_is_shortened() -> None:
    whole = Deadline(SystemClock(), 1000)
    share = whole.share(0.5)
    share.check()

    whole.shorten(0)

    with pytest.raises(UnfinishedError):
        share.check()


def test_a_fifo_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step-1.pt")

    with pytest.raises(DefectError, match="not a regular file"):
        FileReader(str(tmp_path / "step-1.pt"), Deadline(SystemClock(), 30))


def test_a_file_that_shrinks_while_it_is_read_is_not_whole(file: Path) -> None:
    file.write_bytes(make_npz(w=np.zeros(1_000_000)))

    with FileReader(str(file), Deadline(SystemClock(), 30)) as reader:
        os.truncate(file, 100)
        with pytest.raises(DefectError, match="changed while it was read"):
            check_file(reader, KIND.NPZ)


# Steps


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=100.ckpt", 100),
        ("step-00000010.pt", 10),
        ("step_7", 7),
        ("global_step250", 250),
        ("iter_0000010", 10),
        ("checkpoint-500", 500),
        ("ckpt_12.npz", 12),
        ("epoch_4.pth", 4),
        ("1000", 1000),
        ("1000.npz", 1000),
        ("step-0", 0),
        ("model.pt", None),
        ("footstep-4.pt", None),
        ("sha1-77.pt", None),
        ("step-" + "9" * 200, None),
        ("step-٣.pt", None),
        ("ep1-ba900-rank0.pt", 900),
        ("checkpoint_3_2000.pt", 2000),
        ("checkpoint_2026-11-28.pt", None),
        ("rl_model_10000_steps.zip", 10000),
        ("step_10k.pt", 10000),
        ("model-10k.pth", 10000),
        ("gpt2-350M-step-5k.pt", 5000),
        ("name_e100_s2000.pth", 2000),
        ("1epoch.pth", 1),
        ("ckpt_rank2_step200.pt", 200),
        ("ckpt-3of8.pt", None),
        ("tmpv2ao9ep0", None),
    ],
)
def test_the_step_is_the_number_after_the_best_word(name: str, step: int | None) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize(
    ("name", "ignored"),
    [(".hidden", True), (".tmp-3", True), ("a.pt.tmp", True), ("a.tmp.npz", True), ("a.pt", False)],
)
def test_hidden_and_temporary_names_are_ignored(name: str, ignored: bool) -> None:
    assert is_ignored(name) is ignored


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<i4", "<u2", "|u1"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_step_member_is_read_in_every_integer_type(dtype: str, shape: tuple[int, ...]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.full(shape, 77, dtype=dtype))

    assert parse_npy_integer(buffer.getvalue()) == 77


@pytest.mark.parametrize(
    "array", [np.array(1.5), np.array([1, 2]), np.array(-3), np.array("7"), np.array(True)]
)
def test_a_step_member_that_is_no_step_is_no_step(array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)

    assert parse_npy_integer(buffer.getvalue()) is None


@given(data=st.binary(max_size=300).map(lambda tail: b"\x93NUMPY\x01\x00" + tail) | st.binary())
def test_no_bytes_make_the_step_parser_raise(data: bytes) -> None:
    assert parse_npy_integer(data) is None or len(data) > 10


@given(text=st.text(max_size=200))
def test_a_foreign_text_is_shown_short_and_printable(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) <= 80


def test_a_zip_of_a_model_and_its_optimizer_is_checked_to_its_last_byte(file: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("data", "policy.pth", "policy.optimizer.pth"):
            archive.writestr(name, bytes(range(200)))
    content = buffer.getvalue()
    flipped = bytearray(content)
    flipped[content.index(bytes(range(200))) + 9] ^= 1

    assert "CRC of 3 members" in judge(file, content)[1]
    assert "CRC" in defect(file, bytes(flipped))


def test_a_zip_of_a_model_alone_is_no_state(file: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("policy.pth", bytes(200))

    assert "not written by torch.save" in defect(file, buffer.getvalue())
