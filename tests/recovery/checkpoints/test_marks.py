"""What lies beside the checkpoints: the fence, the copy of the budgets, the proof of writing."""

import errno
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rankmend
from rankmend.errors import ConfigError, JobHeldError, SourceError, StorageError
from recovery.checkpoints.marks import BUDGETS_BYTES_MAX, BudgetCopy, FenceFile, check_writable

pytestmark = [pytest.mark.process, pytest.mark.safety]


@pytest.fixture
def fence(tmp_path: Path) -> FenceFile:
    return FenceFile(tmp_path / ".rankmend" / "attempt")


def test_a_fence_moves_up_and_is_read_back(fence: FenceFile) -> None:
    assert fence.read() is None

    fence.advance(3)
    fence.advance(3)
    fence.advance(12)

    assert fence.read() == 12
    assert [path.name for path in fence.path.parent.iterdir()] == ["attempt"]


def test_a_fence_never_moves_back(fence: FenceFile) -> None:
    fence.advance(7)

    with pytest.raises(JobHeldError, match="is at attempt 7: another launcher went beyond 6"):
        fence.advance(6)
    assert fence.read() == 7


def test_only_the_attempt_at_the_fence_may_publish(
    fence: FenceFile, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fence.advance(4)
    monkeypatch.setenv("RANKMEND_FENCE_FILE", str(fence.path))
    monkeypatch.setenv("RANKMEND_ATTEMPT", "4")
    assert rankmend.may_publish("step-1.npz")

    fence.advance(5)

    assert not rankmend.may_publish("step-1.npz")
    assert "attempt 5 is current" in capfd.readouterr().err


def test_a_fence_that_was_removed_is_made_again_for_the_newest_attempt(fence: FenceFile) -> None:
    assert not fence.restore(), "nothing was let publish yet"
    fence.advance(3)
    assert not fence.restore()
    shutil.rmtree(fence.path.parent)

    assert fence.restore()

    assert fence.read() == 3
    assert [entry.name for entry in fence.path.parent.iterdir()] == [fence.path.name]


def test_a_fence_that_is_there_is_never_made_again(fence: FenceFile) -> None:
    fence.advance(3)
    FenceFile(fence.path).advance(4)

    assert not fence.restore()
    fence.path.write_bytes(b"seven")
    assert not fence.restore()

    assert fence.path.read_bytes() == b"seven"


@pytest.mark.parametrize("content", [b"", b"seven", b"-1", b"\xff\xfe", b"1 2"])
def test_a_damaged_fence_is_told_and_the_journal_is_the_authority(
    fence: FenceFile, content: bytes
) -> None:
    fence.advance(1)
    fence.path.write_bytes(content)

    with pytest.raises(SourceError, match="does not hold an attempt number"):
        fence.read()
    fence.advance(8)
    assert fence.read() == 8


def test_a_fence_that_is_no_file_of_ours_is_refused(fence: FenceFile, tmp_path: Path) -> None:
    fence.path.parent.mkdir()
    fence.path.write_bytes(b"1" * 1000)

    with pytest.raises(SourceError, match="more than 64 bytes"):
        fence.advance(2)
    fence.path.unlink()
    fence.path.symlink_to("/etc/hostname")
    with pytest.raises(SourceError, match="cannot read"):
        fence.advance(2)


def test_budgets_come_back_as_they_were_saved(tmp_path: Path) -> None:
    copy = BudgetCopy(tmp_path / ".rankmend" / "budgets.json")
    assert copy.load() is None

    copy.save(b'{"restarts": 1}')
    copy.save(b'{"restarts": 2}')

    assert copy.load() == b'{"restarts": 2}'


def test_budgets_have_a_size_limit_both_ways(tmp_path: Path) -> None:
    copy = BudgetCopy(tmp_path / "budgets.json")
    copy.save(b" " * BUDGETS_BYTES_MAX)
    assert copy.load() == b" " * BUDGETS_BYTES_MAX

    with pytest.raises(StorageError, match="more than 1048576"):
        copy.save(b" " * (BUDGETS_BYTES_MAX + 1))
    copy.path.write_bytes(b" " * (BUDGETS_BYTES_MAX + 1))
    with pytest.raises(SourceError, match="more than 1048576 bytes"):
        copy.load()


def test_a_folder_is_created_and_proved_writable_without_a_trace(tmp_path: Path) -> None:
    check_writable(tmp_path / "checkpoints")
    check_writable(tmp_path / "checkpoints")

    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_launchers_of_one_process_id_prove_a_shared_folder_at_the_same_time() -> None:
    # As PID 1 of a container each, on as many nodes: threads have one process id, too.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # no disk, so that many meet
        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(check_writable, Path(name)) for _number in range(3000)]:
                done.result()

        assert list(Path(name).iterdir()) == []


def test_folders_above_a_relative_path_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    check_writable(Path("runs/one/ckpt"))

    assert (tmp_path / "runs/one/ckpt").is_dir()


def test_folders_above_an_absolute_path_are_not_made_and_the_missing_one_is_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as raised:
        check_writable(tmp_path / "a" / "b" / "c d")

    assert f"can't be made: {tmp_path}/a does not exist" in str(raised.value)
    assert f"mkdir -p '{tmp_path}/a/b/c d'" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_nowhere_above_a_relative_path_is_no_folder_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").symlink_to(tmp_path / "not mounted")

    with pytest.raises(ConfigError, match="shared"):
        check_writable(Path("shared/one/ckpt"))

    assert not (tmp_path / "not mounted").exists()


def test_a_file_in_place_of_the_folder_is_named_with_its_errno(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    with pytest.raises(ConfigError, match=errno.errorcode[errno.EEXIST]):
        check_writable(tmp_path / "a")


@pytest.mark.parametrize("named", [b"run-\xff", b"link"])
def test_a_folder_whose_path_is_no_utf_8_is_refused_before_anything_is_written(
    tmp_path: Path, named: bytes
) -> None:
    folder = tmp_path / os.fsdecode(b"run-\xff")
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)

    with pytest.raises(ConfigError, match=r"run-\\udcff can't be used: its path is not UTF-8"):
        check_writable(tmp_path / os.fsdecode(named))

    assert list(folder.iterdir()) == []


def test_a_folder_that_takes_no_file_is_named_with_its_errno() -> None:
    with pytest.raises(ConfigError, match=r"/proc/self can't be written: E"):
        check_writable(Path("/proc/self"))
