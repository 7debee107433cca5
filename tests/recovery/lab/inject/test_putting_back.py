"""What is put back, by the files and records that there are at that moment."""

import fcntl
import os
import struct
from pathlib import Path

import msgspec
import pytest

from rankmend.clock import read_boot_id
from rankmend.errors import ConfigError, SourceError, StorageError
from recovery.lab.inject.marks_file import read_marks
from recovery.lab.inject.mending import mend_orphans, own_namespaces
from recovery.lab.inject.system_calls import without_kernels
from recovery.lab.inject.undo import (
    Injection,
    LeaveGroup,
    PutBackFile,
    RemoveFile,
    ResumeProcess,
    Unmount,
    is_in_the_way,
)
from recovery.lab.inject.undo_journal import UndoFolder
from recovery.lab.inject.undoing import carry_out, digest_of


@pytest.fixture
def folder(tmp_path: Path) -> UndoFolder:
    made = UndoFolder(tmp_path / "undo")
    made.make()
    return made


def damaged(tmp_path: Path) -> tuple[Path, PutBackFile]:
    path, copy, other = tmp_path / "model.pt", tmp_path / "copy", tmp_path / "other"
    copy.write_bytes(b"good")
    other.write_bytes(b"bad")
    path.write_bytes(b"bad")
    return path, PutBackFile(str(path), str(copy), digest_of(copy), digest_of(other))


def injection(*undo: object, boot_id: str | None = None, **changed: object) -> Injection:
    net, mount = own_namespaces()
    fields: dict[str, object] = {
        "injection_id": "0123456789abcdef",
        "fault": "bit-flip",
        "target": "path:/x",
        "made_unix_s": 0.0,
        "for_s": 1.0,
        "until_boot_s": 0.0,
        "boot_id": boot_id or read_boot_id(),
        "net_namespace": net,
        "mount_namespace": mount,
        "undo": undo,
    }
    return Injection(**(fields | changed))  # type: ignore[arg-type]


def test_damaged_file_is_put_back_however_often_that_is_done(tmp_path: Path) -> None:
    path, undo = damaged(tmp_path)

    carry_out(undo)
    carry_out(undo)

    assert path.read_bytes() == b"good"


def test_file_that_was_written_anew_stays(tmp_path: Path) -> None:
    path, undo = damaged(tmp_path)
    path.write_bytes(b"newer")

    carry_out(undo)

    assert path.read_bytes() == b"newer"


def test_file_whose_copy_is_lost_is_told(tmp_path: Path) -> None:
    _path, undo = damaged(tmp_path)
    Path(undo.copy).unlink()

    with pytest.raises(StorageError, match="is gone or has changed"):
        carry_out(undo)


def test_copy_waits_until_the_damage_is_made(tmp_path: Path) -> None:
    """The time of a fault may be over before it is made; it is undone once more after that."""
    path, undo = damaged(tmp_path)
    path.write_bytes(b"good")

    carry_out(undo)
    path.write_bytes(b"bad")
    carry_out(undo)

    assert path.read_bytes() == b"good"


def test_orphan_is_undone_and_forgotten(tmp_path: Path, folder: UndoFolder) -> None:
    path, undo = damaged(tmp_path)
    os.close(folder.write(injection(undo)))

    mended = mend_orphans(folder)

    assert [one.problems for one in mended] == [()]
    assert path.read_bytes() == b"good"
    assert folder.standing() == []


def test_injection_whose_supervisor_lives_is_left_to_it(tmp_path: Path, folder: UndoFolder) -> None:
    path, undo = damaged(tmp_path)
    lock = folder.write(injection(undo))
    try:
        assert mend_orphans(folder) == []
    finally:
        os.close(lock)

    assert path.read_bytes() == b"bad"


def test_orphan_of_other_namespaces_is_kept_and_told(folder: UndoFolder) -> None:
    os.close(folder.write(injection(RemoveFile(path="/nowhere"), net_namespace=1)))

    mended = mend_orphans(folder)

    assert "made in other namespaces" in mended[0].problems[0]
    assert folder.standing() == ["0123456789abcdef"]


def test_after_a_reboot_only_files_are_put_back(tmp_path: Path, folder: UndoFolder) -> None:
    path, undo = damaged(tmp_path)
    of_this_boot = tmp_path / "order"
    of_this_boot.touch()
    gone = (ResumeProcess(os.getpid(), 1), RemoveFile(path=str(of_this_boot)), undo)
    os.close(folder.write(injection(*gone, boot_id="another", net_namespace=1)))

    mend_orphans(folder)

    assert path.read_bytes() == b"good"
    assert of_this_boot.exists()


def test_broken_record_is_told_and_hides_no_other(tmp_path: Path, folder: UndoFolder) -> None:
    path, undo = damaged(tmp_path)
    os.close(folder.write(injection(undo)))
    (folder.path / "00000000000000aa.json").write_bytes(b'{"format": 1')
    (folder.path / "00000000000000aa.json").chmod(0o600)

    mended = mend_orphans(folder)

    assert "is not a record of an injection" in mended[0].problems[0]
    assert path.read_bytes() == b"good"


def test_copy_without_a_record_is_removed_as_nothing_was_damaged(folder: UndoFolder) -> None:
    stray = folder.path / "00000000000000bb.copy"
    stray.touch()

    mend_orphans(folder)

    assert not stray.exists()


def test_record_survives_its_encoding() -> None:
    made = injection(ResumeProcess(7, 8), RemoveFile(path="/a", must_hold="b", outlives_boot=True))

    assert msgspec.json.decode(msgspec.json.encode(made), type=Injection) == made


def test_lock_is_held_by_every_process_that_has_the_descriptor(folder: UndoFolder) -> None:
    lock = folder.write(injection())
    again = os.dup(lock)
    os.close(lock)

    with (folder.path / "0123456789abcdef.json").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


def _route(protocol: int, payload: bytes = b"") -> bytes:
    body = bytes((2, 24, 0, 0, 254, protocol, 0, 1)) + bytes(4) + payload
    return struct.pack("=IHHII", 16 + len(body), 24, 2, 0, 0) + body


def test_routes_of_the_kernel_are_left_out() -> None:
    magic = struct.pack("=I", 0x45311224)

    assert without_kernels(magic + _route(2) + _route(3, b"abcd") + _route(2)) == magic + _route(
        3, b"abcd"
    )
    assert without_kernels(magic + _route(2)) == b""


def test_torn_routes_are_an_error() -> None:
    with pytest.raises(SourceError, match="wrote a route of"):
        without_kernels(struct.pack("=I", 0x45311224) + _route(3)[:-4])
    with pytest.raises(SourceError, match="wrote no routes"):
        without_kernels(b"Dump terminated")


@pytest.mark.skipif(os.geteuid() != 0, reason="the mark must belong to root")
def test_mark_that_others_may_write_is_no_mark(tmp_path: Path) -> None:
    path = tmp_path / "drills.toml"
    path.write_text('[drills]\nallow = ["network"]\n')
    tmp_path.chmod(0o755)

    path.chmod(0o666)
    with pytest.raises(ConfigError, match="only where root alone may write it"):
        read_marks(path)
    path.chmod(0o644)
    marks = read_marks(path)

    assert marks is not None
    assert [one.value for one in marks.allow] == ["network"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the mark must belong to root")
def test_unknown_key_of_the_mark_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "drills.toml"
    path.write_text('[drills]\nallow = []\ninterface = "eth1"\n')
    tmp_path.chmod(0o755)

    with pytest.raises(ConfigError, match=r"line 3.*unknown key 'interface'"):
        read_marks(path)


COVER = injection(Unmount("/scratch/a", 0), fault="read-only", target="path:/scratch/a")


@pytest.mark.parametrize(
    "other",
    [
        injection(Unmount("/scratch/a/b", 0), target="path:/scratch/a/b"),
        injection(Unmount("/scratch", 0), target="path:/scratch"),
        injection(RemoveFile(path="/scratch/a/fill"), target="path:/scratch/a"),
        injection(PutBackFile("/scratch/a/b/model", "/c", "", ""), target="path:/scratch/a/b"),
    ],
)
def test_fault_in_a_covered_folder_or_over_it_is_in_the_way(other: Injection) -> None:
    assert is_in_the_way(COVER, other)
    assert is_in_the_way(other, COVER)


def test_fault_beside_a_covered_folder_is_not_in_the_way() -> None:
    assert not is_in_the_way(COVER, injection(Unmount("/scratch/ab", 0), target="path:/scratch/ab"))


def test_two_names_of_one_rank_are_the_same_thing() -> None:
    group = LeaveGroup("/sys/fs/cgroup/ours", "/sys/fs/cgroup")
    first = injection(group, fault="cpu-quota", target="rank:llama/3", pid=7)

    assert is_in_the_way(first, injection(group, fault="cpu-quota", target="pid:7", pid=7))
    assert not is_in_the_way(first, injection(fault="cpu-quota", target="rank:llama/4", pid=8))
    assert not is_in_the_way(first, injection(fault="core-load", target="rank:llama/3", pid=7))
