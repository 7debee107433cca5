"""Files that the installed PyTorch saves: which of them are whole, and what they hold."""

import io
import struct
import zipfile
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.content import ContentIdentity, identify
from recovery.checkpoints.files.reader import FileReader
from recovery.messages.candidates import CheckpointFormat
from tests.support.checkpoint_contents import adam, torch_file, weights
from tests.support.file_verdicts import defect, judge

pytestmark = [pytest.mark.process, pytest.mark.torch]

KIND = CheckpointFormat
MODEL = weights()


def make_torch(**options: object) -> bytes:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    state = {"w": torch.arange(300.0), "b": torch.ones(3), "step": 5}
    torch.save(state, buffer, **options)
    return buffer.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "candidate"


def test_a_file_of_torch_save_is_whole_with_every_member_checked(file: Path) -> None:
    members = len(zipfile.ZipFile(io.BytesIO(make_torch())).namelist())

    verdict = judge(file, make_torch())

    assert verdict == (KIND.TORCH, f"zip directory and CRC of {members} members")


def test_torch_files_saved_without_checksums_are_told_as_such(file: Path) -> None:
    serialization = pytest.importorskip("torch.serialization")
    serialization.set_crc32_options(False)
    try:
        content = make_torch()
    finally:
        serialization.set_crc32_options(True)

    kind, whole = judge(file, content)

    assert kind is KIND.TORCH
    assert whole.endswith("(saved without checksums)")


def test_several_saves_in_one_file_are_each_checked(file: Path) -> None:
    first, second = make_torch(), make_torch()
    damaged = bytearray(first + second)
    at = first.index(struct.pack("<f", 77.0))
    damaged[at] ^= 1

    assert judge(file, first + second)[0] is KIND.TORCH
    assert defect(file, bytes(damaged)) == "CRC of archive/data/0 does not fit"


def test_torch_files_before_1_6_need_unpickling(file: Path) -> None:
    content = make_torch(_use_new_zipfile_serialization=False)

    assert defect(file, content) == "not a zip: can't be validated without unpickling"


def identified(path: Path, content: bytes) -> ContentIdentity:
    path.write_bytes(content)
    deadline = Deadline(SystemClock(), 300)
    with FileReader(str(path), deadline) as reader:
        return identify(reader, deadline)


def test_the_stand_in_has_the_shape_of_what_torch_saves(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    real = io.BytesIO()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(content, real)
    bare = io.BytesIO()
    torch.save(model.state_dict(), bare)
    whole = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer.state_dict(), "epoch": 3}, whole)

    stand_in = torch_file({"model": MODEL, "optimizer": adam(MODEL), "epoch": 3})
    path = tmp_path / "x.pt"
    expected = identified(path, stand_in)

    assert identified(path, real.getvalue()) == expected
    assert identified(path, whole.getvalue()) == expected
    assert identified(path, bare.getvalue()) == identified(path, torch_file(MODEL))
    assert expected.shape.elements == 2 * (16 * 16 + 16)
