"""Whatever lies in the folder: the right candidate, a reason for each other one, and no exception."""

import contextlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankmend.clock import SystemClock
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.files.pickle_stream import read_plain
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.finder import CheckpointFinder
from recovery.messages.candidates import CheckpointFormat, CheckpointSettings, Hindrance
from tests.support.checkpoint_saves import (
    FORMATS,
    find,
    save_deepspeed,
    save_npz,
    save_trainer,
    told,
    torch_file,
    valid_names,
    write,
)
from tests.support.faults.unreadable_files import unreadable_files

pytestmark = pytest.mark.process

SMALL = [st.just(b""), st.binary(max_size=40), st.just(b"\x00" * 600)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=8,
)


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.value)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_content_of_any_file_breaks_the_look_or_the_save_before(
    tmp_path_factory: pytest.TempPathFactory, kind: CheckpointFormat, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("bad")
    if kind is not CheckpointFormat.NVRX_LOCAL:  # which has one candidate for all
        FORMATS[kind](folder, 10)
    bad = FORMATS[kind](folder, 20)
    files = sorted(file for file in bad.rglob("*") if file.is_file())
    file = data.draw(st.sampled_from(files))
    whole = file.read_bytes()
    changed = data.draw(
        st.one_of(
            *SMALL,
            st.integers(0, len(whole)).map(lambda end: whole[:end]),
            st.integers(0, max(0, len(whole) - 1)).map(lambda at: _flipped(whole, at)),
            VALUES.map(lambda value: json.dumps(value).encode()),
            VALUES.map(lambda value: pickle.dumps(value, protocol=4)),
            VALUES.map(torch_file),
        )
    )
    file.write_bytes(changed)

    verdicts = find(folder, enough=9)

    is_before_whole = [verdict.is_valid for verdict in verdicts if verdict.candidate.step == 10]
    assert all(verdict.reason for verdict in verdicts)
    assert all(is_before_whole)
    shutil.rmtree(folder)


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :] if content else content


@given(st.binary(max_size=200))
def test_any_bytes_are_a_plain_value_or_a_defect(data: bytes) -> None:
    with contextlib.suppress(DefectError):
        read_plain(data, Deadline(SystemClock(), 30))


@given(VALUES)
def test_plain_values_come_out_of_a_pickle_as_they_went_in(value: object) -> None:
    for protocol in range(2, 6):
        data = pickle.dumps(value, protocol=protocol)

        assert repr(read_plain(data, Deadline(SystemClock(), 30))) == repr(value)


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (self.path,))


def test_a_pickle_that_would_run_code_is_read_and_not_run(tmp_path: Path) -> None:
    content = {"global_step": 30, "bomb": Bomb(str(tmp_path / "ran"))}
    write(tmp_path / "last.pt", torch_file(content))
    path = save_deepspeed(tmp_path, 40)
    state = {"global_steps": Bomb(str(tmp_path / "ran")), "dp_world_size": 4}
    write(path / "mp_rank_00_model_states.pt", torch_file(state))

    steps = {verdict.candidate.tag: verdict.candidate.step for verdict in find(tmp_path, enough=9)}

    assert steps == {"last.pt": 30, "global_step40": 40}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("trainer_state.json", "[1]", "trainer_state.json: its JSON is not an object"),
        ("trainer_state.json", "{", "trainer_state.json: damaged: no complete JSON"),
        ("trainer_state.json", "[" * 99_999, "trainer_state.json: damaged: no complete JSON"),
        ("trainer_state.json", '{"global_step": true}', "it holds no global_step"),
        ("model.safetensors.index.json", '{"weight_map": []}', "it has no weight_map"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../x"}}', "shard ../x, which"),
    ],
)
def test_json_that_lies_is_a_reason(tmp_path: Path, name: str, content: str, reason: str) -> None:
    save_trainer(tmp_path, 10)
    write(save_trainer(tmp_path, 20) / name, content)

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["checkpoint-10"]
    assert reason in told(verdicts)["checkpoint-20"]


def test_names_inside_a_checkpoint_that_would_move_the_cursor_are_made_visible(
    tmp_path: Path,
) -> None:
    path = save_trainer(tmp_path, 20)
    (path / "a\n\x1b[2J.pt").write_bytes(b"PK\x03\x04")

    (reason,) = told(find(tmp_path)).values()

    assert reason.isprintable()
    assert reason.startswith("a\\n\\x1b[2J.pt: truncated")


def test_a_name_inside_a_checkpoint_that_is_no_utf_8_is_made_visible(tmp_path: Path) -> None:
    path = save_trainer(tmp_path, 20)
    (path / os.fsdecode(b"a-\xff.pt")).write_bytes(b"PK\x03\x04")

    (verdict,) = find(tmp_path)

    assert not verdict.is_valid
    assert verdict.reason.startswith("a-\\udcff.pt: truncated")
    verdict.reason.encode()  # fit for the journal


def test_a_folder_that_links_to_itself_or_its_parent_ends(tmp_path: Path) -> None:
    save_trainer(tmp_path, 10)
    (tmp_path / "checkpoint-20").symlink_to(tmp_path)
    (tmp_path / "checkpoint-30").symlink_to("checkpoint-30")
    looped = save_trainer(tmp_path, 40)
    (looped / "again").symlink_to(looped)
    (tmp_path / "checkpoints").symlink_to(tmp_path)

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["checkpoint-10"]
    assert told(verdicts)["checkpoint-40"] == "again in it is a link"


def test_half_of_a_checkpoint_that_rotation_deletes_is_passed_over(tmp_path: Path) -> None:
    """rmtree goes in the order of the folder: whatever is gone first, the rest is no checkpoint."""
    for gone in ("model-00001-of-00002.safetensors", "optimizer.pt", "trainer_state.json"):
        folder = tmp_path / gone
        oldest = save_trainer(folder, 10)
        save_trainer(folder, 20)
        (oldest / gone).unlink()

        verdicts = find(folder, enough=9)

        assert valid_names(verdicts) == ["checkpoint-20"]
        assert len(verdicts) == 2


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.value)
def test_a_checkpoint_that_vanishes_in_mid_look_is_a_reason(
    tmp_path: Path, kind: CheckpointFormat
) -> None:
    path = FORMATS[kind](tmp_path, 20)
    save_npz(tmp_path / "step-10.npz", step=10)
    look = CheckpointFinder(tmp_path).look(Deadline(SystemClock(), 30), enough=2)
    next(look)

    shutil.rmtree(path)
    *_, verdicts = look

    assert valid_names(verdicts) == ["step-10.npz"]
    gone = next(one for one in verdicts if one.candidate.path == str(path))
    assert gone.hindrance in {Hindrance.UNREADABLE, Hindrance.DAMAGED}
    assert "vanished" in gone.reason or "missing" in gone.reason


def test_a_checkpoint_among_as_many_other_entries_as_are_listed_is_found(tmp_path: Path) -> None:
    for number in range(1_999):
        (tmp_path / f"events.{number}").touch()
    save_trainer(tmp_path, 10)

    assert valid_names(find(tmp_path, entries_max=2_000)) == ["checkpoint-10"]
    assert CheckpointSettings().entries_max == 100_000


def test_a_file_with_read_errors_is_named_and_the_save_before_is_used(tmp_path: Path) -> None:
    served = tmp_path / "served"
    for step in (10, 20):
        path = save_trainer(served, step)
        (path / "optimizer.pt").rename(path / f"optimizer_{step}.bin")
        write(path / "optimizer.pt", torch_file())
    with unreadable_files(served, tmp_path / "fuse") as disk:
        disk.fail_reading("optimizer_20.bin")

        verdicts = find(disk.point)

        assert valid_names(verdicts) == ["checkpoint-10"]
        assert told(verdicts)["checkpoint-20"] == (
            "optimizer_20.bin: can't be read: Input/output error"
        )
        assert verdicts[0].hindrance is Hindrance.UNREADABLE
        disk.heal()
        assert valid_names(find(disk.point, enough=1)) == ["checkpoint-20"]


def test_a_stale_handle_costs_a_second_look_and_not_the_newest_checkpoint(tmp_path: Path) -> None:
    served = tmp_path / "served"
    for step in (10, 20):
        save_trainer(served, step)
    with unreadable_files(served, tmp_path / "fuse") as disk:
        finder = CheckpointFinder(disk.point)
        disk.lose_once("optimizer.pt")

        verdicts = finder.find(0.0, enough=1)

        assert valid_names(verdicts) == ["checkpoint-20"]
        assert not list(disk.faults.iterdir())  # the handle was stale


def test_a_file_that_is_replaced_after_the_listing_is_looked_at_again(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-1.npz")
    save_npz(tmp_path / "last.npz")
    finder = CheckpointFinder(tmp_path)
    looks = finder.look(Deadline(SystemClock(), 30), enough=1)

    pending = next(looks)
    save_npz(tmp_path / "new.npz", 7).replace(tmp_path / "last.npz")
    *_others, verdicts = looks

    assert [one.candidate.tag for one in pending] == ["last.npz", "step-1.npz"]
    assert valid_names(verdicts) == ["last.npz", "step-1.npz"]
    assert verdicts[0].candidate.step == 7


def test_what_changes_in_every_look_is_looked_at_twice(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "last.npz")
    finder = CheckpointFinder(tmp_path)
    looks = 0

    for verdicts in finder.look(Deadline(SystemClock(), 30), enough=1):
        if verdicts[0].hindrance is Hindrance.PENDING:
            looks += 1
            save_npz(tmp_path / "new.npz", looks).replace(path)

    assert looks == 2
    assert verdicts[0].reason == "changed while it was read"
    assert verdicts[0].hindrance is Hindrance.WRITING


def test_a_read_that_hangs_is_left_behind_and_named(tmp_path: Path) -> None:
    served = tmp_path / "served"
    save_trainer(served, 20)
    with unreadable_files(served, tmp_path / "fuse") as disk:
        disk.hang_reading("scheduler.pt")
        watch = CheckpointWatch(CheckpointFinder(disk.point), SystemClock())

        (verdict,) = watch.candidates(timeout_s=15.0)

        assert not verdict.is_valid
        assert verdict.reason.startswith("the storage has not answered for ")
        assert verdict.hindrance is Hindrance.UNREADABLE
        disk.heal()
        assert watch.stop(timeout_s=60.0)
