"""The checkpoint that is being restored survives whoever deletes it, and nothing else does."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.finder import CheckpointFinder
from recovery.checkpoints.pinned_files import Pin, PinError
from recovery.checkpoints.pins import CheckpointPins, PinSettings
from recovery.messages.candidates import PutBack
from tests.support.checkpoint_saves import find, save_npz, save_trainer, valid_names
from tests.support.eventually import eventually
from tests.support.faults.checkpoint_disk import checkpoint_disk

pytestmark = pytest.mark.process

QUICK = PinSettings(poll_s=0.01, still_looks=2)


class Pins:
    """Pins that are closed at the end of the test, and what they said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._made: list[CheckpointPins] = []

    def make(self, folder: Path, settings: PinSettings = QUICK) -> CheckpointPins:
        self._made.append(CheckpointPins(folder, SystemClock(), self.said.append, settings))
        return self._made[-1]

    def holding(
        self, folder: Path, path: Path, settings: PinSettings = QUICK, attempt: int = 1
    ) -> CheckpointPins:
        pins = self.make(folder, settings)
        pins.hold(attempt, str(path))
        eventually(lambda: pins.pinned == str(path), "pinned")
        return pins

    def close(self) -> None:
        for one in self._made:
            one.close()


@pytest.fixture
def pins() -> Iterator[Pins]:
    made = Pins()
    yield made
    made.close()


def links(folder: Path) -> list[str]:
    """Return what is pinned in a checkpoint folder."""
    pinned = folder / ".rankmend" / "pinned"
    return sorted(str(path.relative_to(pinned)) for path in pinned.glob("*/*"))


def content(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def test_a_folder_that_a_rotation_deletes_comes_back_whole_and_as_old_as_it_was(
    tmp_path: Path, pins: Pins
) -> None:
    path = save_trainer(tmp_path, 40)
    (path / "global_step40").mkdir()
    (path / "global_step40" / "shard.pt").write_bytes(b"1")
    before, changed_ns = content(path), path.stat().st_mtime_ns
    held = pins.holding(tmp_path, path)

    shutil.rmtree(path)
    eventually(path.exists, "put back")

    assert content(path) == before  # by a rename: at no moment a part of it
    assert path.stat().st_mtime_ns == changed_ns
    eventually(lambda: bool(pins.said), "told")
    assert pins.said == [
        "checkpoint-40 was deleted while it was being restored: put back. Does save_total_limit or a "
        "clean-up job keep too few checkpoints?"
    ]
    assert held.put_back == PutBack(1, str(path))


def test_what_was_validated_before_is_not_read_again_when_it_came_back(
    tmp_path: Path, pins: Pins
) -> None:
    finder = CheckpointFinder(tmp_path)
    path = save_trainer(tmp_path, 40)
    verdict = finder.find(time.time())[0]
    pins.holding(tmp_path, path)
    shutil.rmtree(path)
    eventually(path.exists, "put back")

    deadline = Deadline(SystemClock(), 30)
    *_, verdicts = finder.look(deadline, 1)

    assert verdicts == (verdict,)
    assert deadline.read_bytes < sum(len(data) for data in content(path).values())


def test_files_that_vanish_from_a_folder_come_back_once_nothing_else_vanishes(
    tmp_path: Path, pins: Pins
) -> None:
    path = save_trainer(tmp_path, 40)
    before = content(path)
    pins.holding(tmp_path, path)

    (path / "optimizer.pt").unlink()
    (path / "trainer_state.json").unlink()
    eventually(lambda: content(path) == before, "put back")

    assert valid_names(find(tmp_path)) == ["checkpoint-40"]


def test_all_files_of_one_save_come_back(tmp_path: Path, pins: Pins) -> None:
    files = [save_npz(tmp_path / f"{name}_10.npz") for name in ("model", "optimizer")]
    other = save_npz(tmp_path / "model_5.npz")
    pins.holding(tmp_path, files[0])

    for file in (*files, other):
        file.unlink()
    eventually(lambda: all(file.exists() for file in files), "put back")

    assert not other.exists()


def test_nothing_is_put_back_once_the_ranks_train(tmp_path: Path, pins: Pins) -> None:
    path = save_trainer(tmp_path, 40)
    one = pins.holding(tmp_path, path)

    one.release(1)
    eventually(lambda: one.pinned is None and not links(tmp_path), "released")
    shutil.rmtree(path)
    one.mend()

    assert not path.exists()
    assert not pins.said


def test_the_next_attempt_holds_its_own_checkpoint_and_no_longer_the_former(
    tmp_path: Path, pins: Pins
) -> None:
    older, newer = save_trainer(tmp_path, 30), save_trainer(tmp_path, 40)
    one = pins.holding(tmp_path, newer)

    one.hold(2, str(older))
    eventually(lambda: one.pinned == str(older), "pinned")

    eventually(lambda: links(tmp_path) == ["2/checkpoint-30"], "the former let go")


def test_a_checkpoint_that_vanished_while_it_failed_to_load_is_there_for_the_next_look(
    tmp_path: Path, pins: Pins
) -> None:
    path = save_trainer(tmp_path, 40)
    one = pins.holding(tmp_path, path, PinSettings(poll_s=3600))

    shutil.rmtree(path)
    one.mend(30)

    assert valid_names(find(tmp_path)) == ["checkpoint-40"]


def test_what_a_killed_launcher_left_goes_with_the_next_attempt(tmp_path: Path, pins: Pins) -> None:
    path = save_trainer(tmp_path, 40)
    assert Pin(tmp_path, 1, str(path), 100, 6).make(Deadline(SystemClock(), 30))
    one = pins.make(tmp_path)

    one.hold(2, None)
    eventually(lambda: not links(tmp_path), "cleaned")

    assert valid_names(find(tmp_path)) == ["checkpoint-40"]


def test_of_launchers_that_share_the_folder_one_pins(tmp_path: Path, pins: Pins) -> None:
    path = save_trainer(tmp_path, 40)
    one = pins.holding(tmp_path, path)

    is_others = Pin(tmp_path, 1, str(path), 100, 6).make(Deadline(SystemClock(), 30))

    assert not is_others
    assert one.pinned == str(path)
    assert links(tmp_path) == ["1/checkpoint-40"]


def test_who_deletes_it_again_and_again_has_his_way(tmp_path: Path, pins: Pins) -> None:
    path = save_trainer(tmp_path, 40)
    one = pins.holding(tmp_path, path)

    for _time in range(4):
        eventually(path.exists, "put back")
        shutil.rmtree(path)
    eventually(lambda: one.pinned is None, "left alone")

    assert not path.exists()
    assert "deleted 4 times while it was being restored, and is left so" in pins.said[-1]


class DeletingClock(SystemClock):
    """A clock that deletes a file when it is read: in the middle of whatever asks for the time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now_s(self) -> float:
        self._file.unlink(missing_ok=True)
        return super().now_s()


def test_what_is_deleted_again_while_the_rest_is_put_back_is_seen_missing(tmp_path: Path) -> None:
    """No time of a file that is read afterwards may pass for that of the file that was put back."""
    first, second = (save_npz(tmp_path / f"{name}_10.npz") for name in ("model", "optimizer"))
    pin = Pin(tmp_path, 1, str(first), 100, 6)
    assert pin.make(Deadline(SystemClock(), 30))
    first.unlink()
    second.unlink()

    # The clock is read before each: the first is there, and gone again, by the time of the second.
    assert pin.put_back(Deadline(DeletingClock(first), 30)) == 2

    assert pin.missing() == {str(first)}


def test_a_file_deleted_in_the_same_tick_as_the_last_look_is_seen_missing(tmp_path: Path) -> None:
    """The time of its folder then stays as it was."""
    path = save_trainer(tmp_path, 40)
    pin = Pin(tmp_path, 1, str(path), 100, 6)
    assert pin.make(Deadline(SystemClock(), 30))
    assert not pin.missing()
    status = path.stat()

    (path / "optimizer.pt").unlink()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert str(path / "optimizer.pt") in pin.missing()


def test_a_rotation_after_the_next_save_is_none_of_our_business(tmp_path: Path, pins: Pins) -> None:
    """For ranks that tell of no steps: a later checkpoint says that they have read this one."""
    torn = save_trainer(tmp_path, 50)
    path = save_trainer(tmp_path, 40)
    one = pins.holding(tmp_path, path)

    shutil.rmtree(torn)
    save_trainer(tmp_path, 50)
    shutil.rmtree(path)
    eventually(lambda: one.pinned is None, "released")

    assert not path.exists()
    assert not pins.said


@pytest.mark.parametrize("gone", ["", ".rankmend"])
def test_a_folder_that_a_person_removes_stays_removed(
    tmp_path: Path, pins: Pins, gone: str
) -> None:
    folder = tmp_path / "ckpt"
    path = save_trainer(folder, 40)
    one = pins.holding(folder, path)

    (folder / gone).rename(tmp_path / "elsewhere")
    shutil.rmtree(path, ignore_errors=True)
    eventually(lambda: one.pinned is None, "released")

    assert not path.exists()
    assert not (folder / ".rankmend").exists()


def test_pins_are_no_checkpoints_and_take_no_space(tmp_path: Path, pins: Pins) -> None:
    path = save_trainer(tmp_path, 40)
    before = find(tmp_path)
    pins.holding(tmp_path, path)

    assert find(tmp_path) == before
    for file in path.iterdir():
        assert (tmp_path / ".rankmend/pinned/1/checkpoint-40" / file.name).samefile(file)


def test_the_checkpoint_folder_itself_is_pinned_without_what_is_ours(
    tmp_path: Path, pins: Pins
) -> None:
    path = save_trainer(tmp_path, 40)
    (path / ".rankmend").mkdir()
    (path / ".rankmend" / "attempt").write_text("1\n")
    before = content(path)
    pins.holding(path, path)

    (path / "optimizer.pt").unlink()
    eventually((path / "optimizer.pt").exists, "put back")

    assert links(path) == ["1/checkpoint-40"]
    assert {name: data for name, data in content(path).items() if "pinned" not in name} == before


def test_names_that_are_not_utf8_come_back(tmp_path: Path, pins: Pins) -> None:
    path = save_trainer(tmp_path, 40)
    odd = path / os.fsdecode(b"rank\xff\n.pt")
    odd.write_bytes(b"1")
    pins.holding(tmp_path, path)

    shutil.rmtree(path)
    eventually(odd.exists, "put back")


def test_a_link_that_another_user_made_is_not_followed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("makes another user's link: needs root")
    path = save_trainer(tmp_path / "ckpt", 40)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ckpt" / ".rankmend").mkdir()
    foreign = tmp_path / "ckpt" / ".rankmend" / "pinned"
    foreign.symlink_to(tmp_path / "elsewhere")
    os.lchown(foreign, 65534, 65534)

    with pytest.raises(PinError, match="symbolic link made by uid 65534"):
        Pin(tmp_path / "ckpt", 1, str(path), 100, 6).make(Deadline(SystemClock(), 30))

    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (PinSettings(entries_max=5), "it has more than 5 entries"),
        (PinSettings(depth_max=0), "it has more than 0 levels of folders"),
        (PinSettings(link_s_max=0), "not finished within"),
    ],
)
def test_a_pin_that_would_be_too_much_work_is_not_made(
    tmp_path: Path, pins: Pins, settings: PinSettings, why: str
) -> None:
    path = save_trainer(tmp_path, 40)
    one = pins.make(tmp_path, settings)

    (path / "inner").mkdir()
    (path / "inner" / "a.pt").touch()

    one.hold(1, str(path))
    eventually(lambda: bool(pins.said), "told")
    one.hold(2, str(path))
    one.close()

    (said,) = pins.said
    assert why in said
    assert "It is still restored" in said
    assert not links(tmp_path)


def test_a_file_system_without_hard_links_is_told_once(tmp_path: Path, pins: Pins) -> None:
    with checkpoint_disk(tmp_path) as disk:
        path = save_trainer(disk.served, 40)
        path = disk.point / path.name
        disk.refuse_links()
        one = pins.make(disk.point)

        one.hold(1, str(path))
        eventually(lambda: bool(pins.said), "told")
        one.hold(2, str(path))
        one.close()

        (said,) = pins.said
        assert "the file system makes no hard link (Operation not permitted)" in said
        assert not links(disk.point)


def test_storage_that_hangs_holds_nobody_up(tmp_path: Path, pins: Pins) -> None:
    with checkpoint_disk(tmp_path) as disk:
        path = disk.point / save_trainer(disk.served, 40).name
        disk.hang()
        one = pins.make(disk.point)

        one.hold(1, str(path))
        eventually(lambda: disk.is_waiting, "its thread waits")
        one.mend(0.01)
        one.release(1)
        one.close(0.01)  # and nobody waits for the thread

        assert one.pinned is None


def test_pins_work_on_a_network_file_system_as_on_a_disk(tmp_path: Path, pins: Pins) -> None:
    with checkpoint_disk(tmp_path) as disk:
        path = disk.point / save_trainer(disk.served, 40).name
        before = content(path)
        one = pins.holding(disk.point, path)

        shutil.rmtree(path)
        eventually(path.exists, "put back")
        assert content(path) == before

        one.close()
        assert not links(disk.point)
