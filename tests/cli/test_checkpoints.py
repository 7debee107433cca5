"""`rankmend checkpoints`: what lies in a folder, for people and scripts."""

import json
import os
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from rankmend.cli import cli
from tests.recovery.checkpoints.test_finder import save_npz
from tests.recovery.checkpoints.test_formats import save_trainer, torch_file


def checkpoints(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoints", *arguments])


def test_each_checkpoint_has_its_format_step_size_and_reason(tmp_path: Path) -> None:
    whole = save_trainer(tmp_path, 10)
    with (whole / "optimizer.pt").open("wb") as file:
        np.savez(file, exp_avg=np.zeros(1 << 18))
    torn = save_trainer(tmp_path, 20)
    (torn / "trainer_state.json").unlink()

    result = checkpoints(str(tmp_path), "--json", "--replicas", "8")

    document = json.loads(result.stdout)
    newest, chosen = document["checkpoints"]
    assert result.exit_code == 0
    assert document["restores"] == chosen["path"] == str(tmp_path / "checkpoint-10")
    assert document["passed_over"] == [newest["path"]]
    assert (newest["is_valid"], newest["hindrance"]) == (False, "damaged")
    assert newest["reason"] == "trainer_state.json is missing"
    assert (chosen["format"], chosen["step"], chosen["is_step_exact"]) == ("hf_trainer", 10, True)
    assert chosen["restore_bytes"] == 8 * chosen["size_bytes"] > 0
    assert chosen["restore_s"] > 0 < document["read_bytes_per_s"]
    assert chosen["age_s"] >= 0


def test_the_table_names_the_one_that_a_restart_uses_and_what_it_passes_over(
    tmp_path: Path,
) -> None:
    save_npz(tmp_path / "step-10.npz")
    (tmp_path / "step-20.npz").write_bytes(b"PK\x03\x04")

    result = checkpoints(str(tmp_path))

    assert result.exit_code == 0
    assert f"a restart uses {tmp_path}/step-10.npz: it reads " in result.stdout
    assert f"newer, but passed over: {tmp_path}/step-20.npz: truncated" in result.stdout


def test_a_folder_of_torn_checkpoints_ends_with_1_and_counts_them(tmp_path: Path) -> None:
    for name in ("step-10.pt", "step-20.pt"):
        (tmp_path / name).write_bytes(torch_file()[:-9])

    result = checkpoints(str(tmp_path))

    assert result.exit_code == 1
    assert "none of 2 that look like a checkpoint can be restored" in result.stdout


def test_a_folder_without_any_says_so_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 10")

    result = checkpoints(str(tmp_path))

    assert result.exit_code == 1
    assert result.stdout == f"{tmp_path}: nothing in it looks like a checkpoint\n"
    document = json.loads(checkpoints(str(tmp_path), "--json").stdout)
    assert (document["restores"], document["looks_like_checkpoint"]) == (None, 0)


def test_a_missing_folder_is_named_and_ends_with_1(tmp_path: Path) -> None:
    result = checkpoints(str(tmp_path / "gone"))

    assert result.exit_code == 1
    assert "gone can't be read: No such file or directory" in result.stderr


def test_names_that_would_move_the_cursor_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    save_npz(tmp_path / "step-10.npz")
    for name in (b"step-2-\xff.npz", b"step-3-\x1b[2J.npz", b"step-4\n.npz"):
        (tmp_path / os.fsdecode(name)).write_bytes(b"PK\x03\x04")

    for arguments in ([], ["--json"]):
        result = checkpoints(str(tmp_path), *arguments)

        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        assert "step-4\n" not in result.stdout
