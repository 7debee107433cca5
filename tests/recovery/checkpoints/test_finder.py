"""Which candidates a folder holds, in which order, and why some are passed over."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, SourceError
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.finder import CheckpointFinder
from recovery.messages.candidates import (
    CheckpointFormat,
    CheckpointSettings,
    Hindrance,
)
from tests.support.checkpoint_contents import npz_file
from tests.support.checkpoint_saves import (
    NOW,
    date,
    find,
    make_safetensors,
    make_torch_layout,
    save_folder,
    save_npz,
    told,
    valid_names,
)

pytestmark = pytest.mark.process

# Order


def test_a_step_member_wins_over_the_name(tmp_path: Path) -> None:
    save_npz(tmp_path / "epoch-4.npz", step=100)
    save_npz(tmp_path / "epoch-3.npz", step=900)

    steps = [verdict.candidate.step for verdict in find(tmp_path)]

    assert steps == [900, 100]


def test_the_highest_number_alone_is_not_trusted(tmp_path: Path) -> None:
    whole = save_npz(tmp_path / "step-10.npz")
    torn = whole.read_bytes()[:-9]
    (tmp_path / "step-20.npz").write_bytes(torn)

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["step-10.npz"]
    assert told(verdicts)["step-20.npz"] == "truncated: no zip directory at its end"


def test_kinds_are_told_by_content_and_not_by_name(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-3.pt")
    (tmp_path / "step-2.bin").write_bytes(make_torch_layout())
    (tmp_path / "step-1").write_bytes(make_safetensors())

    verdicts = find(tmp_path, enough=9)

    assert all(verdict.is_valid for verdict in verdicts)
    formats = {verdict.candidate.tag: verdict.candidate.format for verdict in verdicts}
    assert formats == {
        "step-3.pt": CheckpointFormat.NPZ,
        "step-2.bin": CheckpointFormat.TORCH,
        "step-1": CheckpointFormat.SAFETENSORS,
    }


def test_what_is_no_checkpoint_is_not_mentioned(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 10\n")
    (tmp_path / "events").mkdir()
    (tmp_path / ".rankmend").mkdir()
    save_npz(tmp_path / ".step-5.npz")
    save_npz(tmp_path / "step-6.npz.tmp")
    save_npz(tmp_path / "step-7.tmp.npz")

    assert find(tmp_path) == []


def test_files_of_an_unknown_format_are_told_once_where_nothing_else_is_there(
    tmp_path: Path,
) -> None:
    for name in ("step_20.txt", "last.pkl", "train.log"):
        (tmp_path / name).write_text("20")
    said: list[str] = []
    finder = CheckpointFinder(tmp_path, say=said.append)

    assert [finder.find(0.0), finder.find(0.0)] == [[], []]

    assert sorted(finder.unknown) == ["last.pkl", "step_20.txt"]
    assert len(said) == 1
    assert "are named like checkpoints, but in no format" in said[0]


def test_files_of_an_unknown_format_beside_a_checkpoint_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "log_step_20.txt").write_text("20")
    save_npz(tmp_path / "step_20.npz")
    said: list[str] = []

    CheckpointFinder(tmp_path, say=said.append).find(0.0)

    assert said == []


def test_a_checkpoint_that_lies_too_deep_is_told_once_also_in_the_middle_of_a_run(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    finder = CheckpointFinder(tmp_path, say=said.append)
    (tmp_path / "pretrained").mkdir()
    save_npz(tmp_path / "pretrained" / "weights.npz")
    assert (finder.find(0.0), said) == ([], [])
    for run in ("2026-11-26/23-59-59", "2026-11-27/10-14-20"):  # what Hydra makes
        (tmp_path / run / "saved" / ".hydra").mkdir(parents=True)
        save_npz(tmp_path / run / "saved" / "step_20.npz")

    assert [finder.find(0.0), finder.find(0.0)] == [[], []]

    assert finder.deeper == "2026-11-27/10-14-20/saved/step_20.npz"
    assert len(said) == 1
    assert "2026-11-27/10-14-20/saved/step_20.npz looks like one and lies too deep" in said[0]


def test_of_models_and_optimizers_in_two_folders_the_models_are_told(tmp_path: Path) -> None:
    for name in ("models", "optimizers"):
        (tmp_path / name).mkdir()
        save_npz(tmp_path / name / "step_20.npz")
    finder = CheckpointFinder(tmp_path)

    assert finder.find(0.0) == []
    assert finder.deeper == "models/step_20.npz"


@pytest.mark.parametrize(
    "name", ["tmp-step_30.npz", "step_30_tmp.npz", "temp_step_30.npz", "step_30.npz.partial"]
)
def test_a_name_that_says_unfinished_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    save_npz(tmp_path / "step_20.npz")
    save_npz(tmp_path / "temp_0.7_step_10.npz")  # a temperature
    save_npz(tmp_path / "whole.npz").rename(tmp_path / name)

    assert told(find(tmp_path)).keys() == {"step_20.npz", "temp_0.7_step_10.npz"}


def test_nothing_deeper_is_told_beside_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "old" / "saved").mkdir(parents=True)
    save_npz(tmp_path / "old" / "saved" / "step_10.npz")
    save_npz(tmp_path / "step_20.npz")
    said: list[str] = []

    CheckpointFinder(tmp_path, say=said.append).find(0.0)

    assert said == []


def test_any_format_will_do_in_a_folder_with_the_configured_marker(tmp_path: Path) -> None:
    save = tmp_path / "step_20"
    save.mkdir()
    (save / "state.txt").write_text("20")
    (save / "COMPLETE").write_text("yes")

    assert valid_names(find(tmp_path, marker="COMPLETE")) == ["step_20"]


def test_a_name_pattern_leaves_other_files_alone(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-1.npz")
    save_npz(tmp_path / "optimizer-1.npz")

    assert valid_names(find(tmp_path, names=("step-*",))) == ["step-1.npz"]


def test_paths_are_absolute_because_ranks_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_npz(tmp_path / "step-1.npz")
    monkeypatch.chdir(tmp_path)

    assert find(Path())[0].candidate.path == str(tmp_path / "step-1.npz")


def test_files_that_are_overwritten_in_turn_are_ordered_by_time_and_have_no_step(
    tmp_path: Path,
) -> None:
    date(save_npz(tmp_path / "ckpt_0.npz"), NOW - 100)
    date(save_npz(tmp_path / "ckpt_1.npz"), NOW - 90)
    finder = CheckpointFinder(tmp_path)

    seen = []
    for slot, age_s in ((0, 80), (1, 70), (0, 60)):
        date(save_npz(tmp_path / f"ckpt_{slot}.npz"), NOW - age_s)
        seen.append([(one.candidate.tag, one.candidate.step) for one in finder.find(NOW)])

    slots = [("ckpt_0.npz", None), ("ckpt_1.npz", None)]
    assert seen == [slots, slots[::-1], slots]


def save_files(folder: Path, age_s: float, *names: str) -> None:
    """Write these files of a folder, whose own time then says nothing."""
    folder.mkdir(exist_ok=True)
    for name in names:
        date(save_npz(folder / name), NOW - age_s)
    date(folder, NOW - 1000)


@pytest.mark.parametrize(
    "slots", [("ckpt_0", "ckpt_1"), ("slot1", "slot2"), ("state_a", "state_b")]
)
def test_folders_that_are_overwritten_in_turn_are_ordered_by_their_oldest_file(
    tmp_path: Path, slots: tuple[str, str]
) -> None:
    names = ("model.npz", "optimizer.npz")
    first, second = slots
    save_files(tmp_path / first, 100, *names)
    save_files(tmp_path / second, 90, *names)
    finder = CheckpointFinder(tmp_path)
    finder.find(NOW)

    save_files(tmp_path / first, 80, *names)
    again = [one.candidate.tag for one in finder.find(NOW)]
    save_files(tmp_path / second, 70, "model.npz")  # and then the job was killed
    cut_short = finder.find(NOW)

    assert again == [first, second]
    assert [one.candidate.tag for one in cut_short] == [first, second]
    assert all(one.is_valid and one.candidate.step is None for one in cut_short)


def test_a_folder_that_is_overwritten_is_found_by_its_name_or_by_its_optimizer(
    tmp_path: Path,
) -> None:
    save_files(tmp_path / "last", 100, "model.npz")
    save_files(tmp_path / "state", 90, "model.npz", "optim.npz")
    save_files(tmp_path / "best", 80, "model.npz")  # to be used, not to go on from
    save_files(tmp_path / "data", 80, "train.npz", "test.npz")
    save_files(tmp_path / "eval", 80, "scores.npz")
    save_files(tmp_path / "last_export", 80, "model.npz")
    (tmp_path / "last_export" / "config.json").write_text("{}")

    assert valid_names(find(tmp_path)) == ["state", "last"]


def test_a_folder_whose_files_are_of_two_saves_is_not_restored(tmp_path: Path) -> None:
    for name, steps in (("last", (20, 10)), ("ckpt_a", (10, 10))):
        (tmp_path / name).mkdir()
        for file, step in zip(("model.npz", "optimizer.npz"), steps, strict=True):
            date(save_npz(tmp_path / name / file, step), NOW - 100)

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["ckpt_a"]
    assert told(verdicts)["last"] == (
        "two saves are mixed: model.npz is of step 20, optimizer.npz of step 10"
    )


def test_saves_in_a_folder_of_saves_are_found(tmp_path: Path) -> None:
    save_files(tmp_path / "ckpt", 100, "step_10.npz", "step_20.npz", "optimizer_step_20.npz")

    assert valid_names(find(tmp_path)) == ["step_20.npz"]
    assert told(find(tmp_path))["step_10.npz"].startswith("no optimizer file lies beside it")


# Pointers and links


def test_a_pointer_is_a_hint_and_never_a_proof(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-10.npz")
    (tmp_path / "step-20.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "latest").write_text("step-20.npz\n")

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["step-10.npz"]
    assert told(verdicts)["step-20.npz"].endswith("; latest points to it")


def test_a_numeric_pointer_names_a_step(tmp_path: Path) -> None:
    save_folder(tmp_path / "iter_0000010")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")

    reason = find(tmp_path)[0].reason

    assert reason.endswith("; latest_checkpointed_iteration.txt points to it")


@pytest.mark.parametrize("text", ["step-30.npz", "/somewhere/else/step-30.npz"])
def test_a_pointer_to_a_missing_one_is_said(tmp_path: Path, text: str) -> None:
    save_npz(tmp_path / "step-10.npz")
    (tmp_path / "latest").write_text(text)

    verdicts = find(tmp_path)

    assert told(verdicts)["step-30.npz"] == "missing: named by the pointer file latest"
    assert valid_names(verdicts) == ["step-10.npz"]


@pytest.mark.parametrize("content", [b"", b"\xff\x00\x1b", b"x" * 9000, b"..", b"."])
def test_a_damaged_pointer_harms_nothing(tmp_path: Path, content: bytes) -> None:
    save_npz(tmp_path / "step-10.npz")
    (tmp_path / "latest").write_bytes(content)

    assert valid_names(find(tmp_path)) == ["step-10.npz"]


def test_links_are_told_and_never_followed(tmp_path: Path) -> None:
    outside = save_npz(tmp_path / "elsewhere.npz")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    save_npz(folder / "step-1.npz")
    (folder / "step-4.npz").symlink_to(folder / "gone.npz")
    (folder / "step-3.npz").symlink_to(outside)
    (folder / "last.npz").symlink_to("step-1.npz")
    (folder / "step-5.npz").symlink_to("step-5.npz")

    verdicts = find(folder)

    assert valid_names(verdicts) == ["step-1.npz"]
    assert told(verdicts)["step-4.npz"] == f"a link that leads nowhere: {folder}/gone.npz"
    assert told(verdicts)["step-3.npz"] == f"a link that points outside the folder: {outside}"
    assert told(verdicts)["last.npz"] == "a link to step-1.npz, which is checked itself"


# Folders


@pytest.mark.parametrize("marker", ["COMMIT", "done.txt"])
def test_a_folder_with_its_configured_marker_is_whole(tmp_path: Path, marker: str) -> None:
    path = tmp_path / "step-7"
    path.mkdir()
    (path / "rank0.pt").write_bytes(make_torch_layout())
    (path / "config.yaml").write_text("a: 1")
    (path / marker).write_text("done")

    verdict = find(tmp_path, marker=marker)[0]

    assert verdict.is_valid
    assert verdict.reason.startswith(f"complete: marker {marker}, ")
    assert verdict.reason.endswith("; 1 file checked, 1 only known to be there")
    assert verdict.candidate.step == 7
    assert verdict.candidate.size_bytes > 1000


def test_a_folder_with_dcp_shards_and_a_marker_of_the_script_is_whole(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7", "COMMIT")

    verdict = find(tmp_path, marker="COMMIT")[0]

    assert verdict.reason == "complete: marker COMMIT; 2 files checked, 1 only known to be there"
    assert verdict.candidate.format is CheckpointFormat.FOLDER


def test_a_save_by_rank_says_what_each_rank_is_given(tmp_path: Path) -> None:
    for step, rank in itertools.product((10, 20), (0, 1)):
        (tmp_path / f"a_{step}.{rank}.npz").write_bytes(npz_file(step=step, w=[1.0]))

    (found, *_older) = CheckpointFinder(tmp_path).find(0.0)

    assert (found.is_valid, found.candidate.tag) == (True, "a_20.0.npz")
    own = "{checkpoint_dir}/a_20.{rank}.npz is each rank's own"
    assert found.reason.endswith(f"; with a_20.1.npz; {{checkpoint}} is rank 0's: {own}")


@pytest.mark.parametrize(
    "names",
    [
        ("step_{step}_tp0_pp0.npz", "step_{step}_tp0_pp1.npz"),
        ("{step}_mp_rank_00.npz", "{step}_mp_rank_01.npz"),
    ],
)
def test_a_save_by_places_in_a_group_says_that_every_rank_is_given_its_first_file(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for step, name in itertools.product((10, 20), names):
        (tmp_path / name.format(step=step)).write_bytes(npz_file(step=step, w=[1.0]))

    (found, *_older) = CheckpointFinder(tmp_path).find(0.0)

    first, second = (name.format(step=20) for name in names)
    assert (found.is_valid, found.candidate.tag) == (True, first)
    assert f"; with {second}; {{checkpoint}} is {first} on every rank: " in found.reason
    assert "find its own file in {checkpoint_dir} by {checkpoint_step}" in found.reason


def test_the_configured_folder_can_be_the_checkpoint_itself(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-7")

    verdicts = find(tmp_path / "step-7")

    assert valid_names(verdicts) == ["step-7"]
    assert len(verdicts) == 1


def break_marker(path: Path) -> None:
    (path / ".metadata").unlink()


def empty_marker(path: Path) -> None:
    (path / ".metadata").write_bytes(b"")


def cut_marker(path: Path) -> None:
    os.truncate(path / ".metadata", 12)


def leave_temporary(path: Path) -> None:
    (path / "__1_0.distcp.tmp").touch()


def remove_shard(path: Path) -> None:
    (path / "__1_0.distcp").unlink()


def cut_shard(path: Path) -> None:
    os.truncate(path / "__1_0.distcp", 300)


def empty_shard(path: Path) -> None:
    (path / "__1_0.distcp").write_bytes(b"")


def zero_shard(path: Path) -> None:
    (path / "__1_0.distcp").write_bytes(bytes(5000))


def flip_first_archive_of_shard(path: Path) -> None:
    content = bytearray((path / "__0_0.distcp").read_bytes())
    content[content.index(bytes(range(256))) + 5] ^= 1
    (path / "__0_0.distcp").write_bytes(content)


def flip_nested(path: Path) -> None:
    (path / "model").mkdir()
    (path / "model" / "model.safetensors").write_bytes(make_safetensors()[:-1])


def overwrite_later(path: Path) -> None:
    date(path / ".metadata", NOW - 900)
    date(path / "__0_0.distcp", NOW - 901)
    date(path / "config.json", NOW - 901)
    date(path / "__1_0.distcp", NOW - 300)


def link_shard(path: Path) -> None:
    (path / "more").symlink_to("/etc")


def nest_deeply(path: Path) -> None:
    (path / "a/b/c/d/e/f/g").mkdir(parents=True)


def put_fifo(path: Path) -> None:
    os.mkfifo(path / "pipe")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (break_marker, "marker file .metadata is missing"),
        (empty_marker, "marker file .metadata is empty"),
        (cut_marker, ".metadata: damaged: no complete pickle"),
        (leave_temporary, "a save was under way: __1_0.distcp.tmp is left in it"),
        (remove_shard, ".metadata: shard __1_0.distcp, which it names, is missing"),
        (cut_shard, "__1_0.distcp: truncated: no zip directory at its end"),
        (empty_shard, "__1_0.distcp: empty file"),
        (zero_shard, "__1_0.distcp: no checkpoint format is known that begins with 00"),
        (flip_first_archive_of_shard, "__0_0.distcp: CRC of archive/data/0 does not fit"),
        (flip_nested, "model/model.safetensors: truncated: "),
        (overwrite_later, "__1_0.distcp was written after the marker .metadata"),
        (link_shard, "more in it is a link"),
        (nest_deeply, "a/b/c/d/e/f/g lies too deep in it"),
        (put_fifo, "pipe in it is not a regular file"),
    ],
)
def test_a_torn_folder_says_what_is_wrong(tmp_path: Path, damage: object, reason: str) -> None:
    save_folder(tmp_path / "step-10")
    damage(save_folder(tmp_path / "step-20"))  # type: ignore[operator]

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["step-10"]
    assert told(verdicts)["step-20"].startswith(reason)


def test_a_scripts_marker_that_is_older_than_a_file_of_its_save_lies(tmp_path: Path) -> None:
    """As where a save goes over an older one and dies, and the older one's marker stays."""
    for name in ("step-10", "step-20"):
        path = tmp_path / name
        path.mkdir()
        for file in ("COMMIT", "model.safetensors"):
            (path / file).write_bytes(make_safetensors())
            date(path / file, NOW - 900)
    date(tmp_path / "step-20" / "model.safetensors", NOW - 300)

    verdicts = find(tmp_path, marker="COMMIT")

    assert valid_names(verdicts) == ["step-10"]
    reason = "model.safetensors was written after the marker COMMIT"
    assert told(verdicts)["step-20"] == reason


def test_a_marker_that_would_run_code_is_listed_and_not_run(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "step-1")
    command = f"touch {tmp_path}/ran"
    (path / ".metadata").write_bytes(b"\x80\x02cos\nsystem\n(S'" + command.encode() + b"'\ntR.")

    assert valid_names(find(tmp_path)) == ["step-1"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.torch
def test_a_real_distributed_checkpoint_is_whole_and_a_flipped_bit_is_found(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = {"w": torch.arange(999.0), "b": {"x": torch.ones(5)}, "extra": [1, {"lr": 0.1}]}
    dcp.save(state, checkpoint_id=tmp_path / "step-5", no_dist=True)
    dcp.save(state, checkpoint_id=tmp_path / "step-6", no_dist=True)
    shard = tmp_path / "step-6" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[content.index(np.float32(555).tobytes())] ^= 1
    shard.write_bytes(content)

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["step-5"]
    assert told(verdicts)["step-6"] == "__0_0.distcp: CRC of archive/data/0 does not fit"


def test_a_folder_without_step_and_marker_is_none(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    save_npz(tmp_path / "runs" / "x.npz")

    assert find(tmp_path) == []


# What can't be read


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """A folder in which root's privileges are not needed to get to the files."""
    folder = Path(tempfile.mkdtemp(prefix="rankmend-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def without_privileges() -> Iterator[None]:
    uid = os.geteuid()
    if uid == 0:
        os.seteuid(65534)
    yield
    os.seteuid(uid)


def test_what_may_not_be_read_is_passed_over_with_the_reason(
    foreign_folder: Path, request: pytest.FixtureRequest
) -> None:
    save_npz(foreign_folder / "step-1.npz").chmod(0o644)
    save_npz(foreign_folder / "step-2.npz").chmod(0)
    save_folder(foreign_folder / "step-3").chmod(0)
    request.getfixturevalue("without_privileges")

    verdicts = find(foreign_folder)

    assert valid_names(verdicts) == ["step-1.npz"]
    assert told(verdicts)["step-2.npz"] == "can't be read: Permission denied"
    assert told(verdicts)["step-3"] == "can't be read: Permission denied"


@pytest.mark.safety
def test_files_of_another_owner_are_named_and_the_save_before_is_used(
    foreign_folder: Path, request: pytest.FixtureRequest
) -> None:
    """As after a run under `sudo`: its folders can be listed, and its files not read."""
    save_folder(foreign_folder / "step-1")
    others = save_folder(foreign_folder / "step-2")
    for file in others.iterdir():
        file.chmod(0o600 if os.geteuid() == 0 else 0)
    request.getfixturevalue("without_privileges")

    verdicts = find(foreign_folder)

    assert valid_names(verdicts) == ["step-1"]
    assert told(verdicts)["step-2"] == ".metadata: can't be read: Permission denied"
    assert verdicts[0].hindrance is Hindrance.UNREADABLE


def test_a_folder_that_may_not_be_read_raises_and_names_it(
    foreign_folder: Path, request: pytest.FixtureRequest
) -> None:
    foreign_folder.chmod(0)
    request.getfixturevalue("without_privileges")

    with pytest.raises(SourceError, match=f"{foreign_folder} can't be read: Permission denied"):
        find(foreign_folder)


def test_a_missing_folder_raises_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="gone can't be read: No such file or directory"):
        find(tmp_path / "gone")


def test_a_file_in_place_of_the_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SourceError, match="file can't be read: Not a directory"):
        find(tmp_path / "file")


def test_what_vanishes_between_listing_and_reading_is_a_reason(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-1.npz")
    save_folder(tmp_path / "step-2")
    save_npz(tmp_path / "step-3.npz")
    look = CheckpointFinder(tmp_path).look(Deadline(SystemClock(), 30), enough=1)
    next(look)

    (tmp_path / "step-3.npz").unlink()
    shutil.rmtree(tmp_path / "step-2")
    *_, verdicts = look

    assert valid_names(verdicts) == ["step-1.npz"]
    assert told(verdicts)["step-3.npz"] == "vanished while it was checked"
    assert told(verdicts)["step-2"] == "vanished while it was checked"


def test_a_file_replaced_between_listing_and_reading_is_not_trusted_before_the_next_look(
    tmp_path: Path,
) -> None:
    save_npz(tmp_path / "step-1.npz")
    finder = CheckpointFinder(tmp_path)
    look = finder.look(Deadline(SystemClock(), 30, is_awaited=False), enough=1)
    next(look)

    (tmp_path / "step-1.npz").write_bytes(make_torch_layout())
    *_, verdicts = look

    assert told(verdicts)["step-1.npz"] == "changed while it was read"
    assert finder.find(NOW)[0].is_valid


def test_names_that_are_no_text_or_hold_control_characters_are_refused(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-1.npz")
    for name in (b"step-2-\xff.npz", b"step-3-\x1b[2J.npz", b"step-4\n.npz"):
        (tmp_path / os.fsdecode(name)).write_bytes((tmp_path / "step-1.npz").read_bytes())

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["step-1.npz"]
    assert list(told(verdicts).values()).count("its name is not printable UTF-8") == 3
    for verdict in verdicts:
        verdict.candidate.path.encode()
        assert verdict.candidate.path.isprintable()


def test_huge_names_are_harmless(tmp_path: Path) -> None:
    save_npz(tmp_path / ("step-" + "7" * 240 + ".npz"))
    save_npz(tmp_path / "step-1.npz")

    verdicts = find(tmp_path)

    assert [verdict.candidate.step for verdict in verdicts] == [1, None]
    assert all(verdict.is_valid for verdict in verdicts)


def test_devices_sockets_and_fifos_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step-1.npz")

    assert told(find(tmp_path)) == {"step-1.npz": "not a regular file"}


# Bounds


def test_older_ones_are_not_looked_at_once_enough_are_valid(tmp_path: Path) -> None:
    for step in range(1, 5):
        save_npz(tmp_path / f"step-{step}.npz")

    verdicts = find(tmp_path, enough=1)

    assert valid_names(verdicts) == ["step-4.npz"]
    reason = "not checked: older than step-4.npz, which is valid"
    assert told(verdicts)["step-3.npz"] == told(verdicts)["step-1.npz"] == reason


def test_only_so_many_are_read_in_one_look(tmp_path: Path) -> None:
    for step in range(1, 5):
        (tmp_path / f"step-{step}.npz").write_bytes(b"PK\x03\x04")

    verdicts = find(tmp_path, validate_max=3)

    assert told(verdicts)["step-1.npz"] == "not checked: 3 newer ones were checked first"


def test_a_folder_with_too_many_entries_says_so(tmp_path: Path) -> None:
    for step in range(1, 9):
        save_npz(tmp_path / f"step-{step}.npz")

    verdicts = find(tmp_path, entries_max=5)

    assert told(verdicts)[tmp_path.name] == "only 5 of its entries were checked"
    assert len(verdicts) == 6
    assert len(valid_names(verdicts)) == 2


def test_a_checkpoint_folder_with_too_many_entries_is_refused(tmp_path: Path) -> None:
    save_folder(tmp_path / "step-1")

    assert told(find(tmp_path, entries_max=3)) == {"step-1": "more than 3 entries"}
    assert valid_names(find(tmp_path, entries_max=4)) == ["step-1"]


class Clock:
    """A quarter of a second passes whenever it is asked: with every read."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_s(self) -> float:
        self.now += 0.25
        return self.now

    def unix_s(self) -> float:
        return NOW


def test_a_slow_newest_one_leaves_time_for_the_one_before(tmp_path: Path) -> None:
    with (tmp_path / "step-2.npz").open("wb") as file:
        np.savez(file, w=np.zeros(10_000_000))
    save_npz(tmp_path / "step-1.npz")

    verdicts = CheckpointFinder(tmp_path, clock=Clock()).find(NOW, timeout_s=40)

    assert valid_names(verdicts) == ["step-2.npz", "step-1.npz"]
    assert [one.is_checked for one in verdicts] == [False, True]
    assert told(verdicts)["step-2.npz"].startswith("whole in its structure; its last ")


def test_a_listing_that_does_not_end_raises_and_names_the_folder(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-1.npz")

    with pytest.raises(SourceError, match=f"listing checkpoint folder {tmp_path}: not finished"):
        CheckpointFinder(tmp_path, clock=Clock()).find(NOW, timeout_s=0.1)


# Again


def corrupt(path: Path) -> None:
    """Overwrite in place, with the same inode and size."""
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["step-1.npz", "step-2/__0_0.distcp"])
def test_files_with_an_unchanged_status_are_not_read_again(tmp_path: Path, name: str) -> None:
    save_npz(tmp_path / "step-1.npz", step=1)
    save_folder(tmp_path / "step-2")
    finder = CheckpointFinder(tmp_path)
    before = finder.find(NOW)
    status = (tmp_path / name).stat()

    corrupt(tmp_path / name)
    os.utime(tmp_path / name, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert finder.find(NOW) == before
    assert valid_names(before) == ["step-2", "step-1.npz"]


@pytest.mark.parametrize("name", ["step-1.npz", "step-2/__0_0.distcp"])
def test_a_changed_file_is_read_again(tmp_path: Path, name: str) -> None:
    save_npz(tmp_path / "step-1.npz")
    save_folder(tmp_path / "step-2")
    finder = CheckpointFinder(tmp_path)
    assert len(valid_names(finder.find(NOW))) == 2

    corrupt(tmp_path / name)

    assert len(valid_names(finder.find(NOW))) == 1


# While training runs


def test_what_changed_within_the_grace_is_still_being_written_only_while_training_runs(
    tmp_path: Path,
) -> None:
    date(save_npz(tmp_path / "step-2.npz"), NOW - 3)
    date(save_npz(tmp_path / "step-1.npz"), NOW - 300)
    finder = CheckpointFinder(tmp_path)

    training = finder.find(NOW, is_training=True)

    assert valid_names(training) == ["step-1.npz"]
    assert told(training)["step-2.npz"].startswith(
        "still being written: changed 3.0 s ago; so far "
    )
    assert valid_names(finder.find(NOW)) == ["step-2.npz", "step-1.npz"]


@pytest.mark.parametrize(
    "setting",
    [
        {"marker": "a/b"},
        {"marker": ""},
        {"enough": 0},
        {"grace_s": -1.0},
        {"grace_s": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        CheckpointSettings(**setting)  # type: ignore[arg-type]
