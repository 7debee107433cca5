"""Several processes that each read a part of a checkpoint's files."""

from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.finder import CheckpointFinder
from recovery.messages.candidates import CheckpointSettings, CheckpointVerdict, Share
from tests.support.checkpoint_saves import (
    NOW,
    flip_last_member,
    save_folder,
    save_npz,
    told,
    valid_names,
)

pytestmark = pytest.mark.process


def look(folder: Path, share: Share) -> CheckpointVerdict:
    finder = CheckpointFinder(folder)
    finder.share = share
    return finder.find(NOW)[0]


def test_shares_are_contiguous_pieces_in_natural_order() -> None:
    names = [f"__{rank}_0.distcp" for rank in range(12)]

    pieces = [Share(number, 4).pick(reversed(names)) for number in range(4)]

    assert pieces[3] == {"__9_0.distcp", "__10_0.distcp", "__11_0.distcp"}
    assert sorted(name for piece in pieces for name in piece) == sorted(names)


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "c"]])
def test_every_file_is_in_one_share_however_few_there_are(names: list[str]) -> None:
    pieces = [Share(number, 5).pick(names) for number in range(5)]

    assert sorted(name for piece in pieces for name in piece) == names


@pytest.mark.parametrize(("number", "count"), [(1, 1), (-1, 2), (0, 0)])
def test_a_share_that_does_not_exist_is_refused(number: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"no share {number} of {count}"):
        Share(number, count)


def test_each_share_sees_the_damage_in_its_own_files_and_the_whole_look_all_of_it(
    tmp_path: Path,
) -> None:
    path = save_folder(tmp_path / "step-7")  # .metadata and __0_0 | __1_0 and config.json
    flip_last_member(path / "__1_0.distcp")

    first, second, whole = (look(tmp_path, one) for one in (Share(0, 2), Share(1, 2), Share()))

    assert (first.is_valid, first.share) == (True, Share(0, 2))
    assert first.reason.endswith("1 file checked, share 1 of 2")
    assert not second.is_valid
    assert second.reason == whole.reason
    assert second.reason.startswith("__1_0.distcp: CRC of ")


def test_every_share_sees_that_a_file_is_missing(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-7")
    (path / "__0_0.distcp").unlink()

    reasons = {look(tmp_path, Share(number, 3)).reason for number in range(3)}

    assert len(reasons) == 1
    assert "__0_0.distcp, which it names, is missing" in reasons.pop()


def test_a_single_file_belongs_to_the_first_share(tmp_path: Path) -> None:
    torn = save_npz(tmp_path / "step-20.npz")
    torn.write_bytes(torn.read_bytes()[:-9])

    first, second = look(tmp_path, Share(0, 2)), look(tmp_path, Share(1, 2))

    assert not first.is_valid
    assert (second.is_valid, second.share) == (True, Share(1, 2))
    assert second.reason == "share 1 of 2 reads it"


def test_a_watch_takes_another_share_for_its_next_look(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-7")
    flip_last_member(path / "__1_0.distcp")
    watch = CheckpointWatch(
        CheckpointFinder(tmp_path, CheckpointSettings(scan_interval_s=3600)), SystemClock()
    )
    try:
        watch.take_share(Share(0, 2))
        assert valid_names(watch.candidates()) == ["step-7"]
        watch.take_share(Share(1, 2))
        assert told(watch.candidates())["step-7"].startswith("__1_0.distcp: CRC of ")
    finally:
        watch.stop()
