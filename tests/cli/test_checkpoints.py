"""`rankmend checkpoints`: what lies in a folder, for people and scripts."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rankmend.cli import cli
from recovery.launcher.ranks.runtime_folder import RuntimeFolder, default_root
from tests.support.checkpoint_contents import adam, npz_file, weights
from tests.support.checkpoint_contents import torch_file as whole_file
from tests.support.checkpoint_saves import save_npz, save_trainer, torch_file
from tests.support.snapshot_files import claim, write_snapshot

pytestmark = pytest.mark.process


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


def test_files_named_like_checkpoints_in_an_unknown_format_are_named_with_what_to_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "step_20.txt").write_text("20")

    result = checkpoints(str(tmp_path))

    assert result.exit_code == 1
    assert "step_20.txt is named like a checkpoint, but in no format" in result.stdout
    assert "--checkpoint-marker" in result.stdout
    assert json.loads(checkpoints(str(tmp_path), "--json").stdout)["unknown_files"] == [
        "step_20.txt"
    ]


def test_a_checkpoint_that_lies_too_deep_is_named_with_what_to_do(tmp_path: Path) -> None:
    run = tmp_path / "2026-11-27" / "10-14-20" / "saved"
    run.mkdir(parents=True)
    (run / "step_20.pt").write_bytes(b"")

    result = checkpoints(str(tmp_path))

    assert result.exit_code == 1
    assert "2026-11-27/10-14-20/saved/step_20.pt looks like one" in result.stdout
    assert "hydra.run.dir=FOLDER" in result.stdout
    document = json.loads(checkpoints(str(tmp_path), "--json").stdout)
    assert document["deeper"] == "2026-11-27/10-14-20/saved/step_20.pt"


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


@pytest.fixture
def job_id() -> Iterator[uuid.UUID]:
    """Return the id of a job that has a folder of snapshots in this machine's memory."""
    made = uuid.uuid4()
    runtime = RuntimeFolder(default_root(), made)
    for rank in (0, 1):
        write_snapshot(runtime.snapshots, rank=rank, step=15, attempt=3, job_id=made)
    write_snapshot(runtime.snapshots, rank=0, buffer=1, step=20, attempt=3, sequence=2, job_id=made)
    yield made
    runtime.remove()


def test_snapshots_of_the_folders_job_are_listed_beside_its_checkpoints(
    tmp_path: Path, job_id: uuid.UUID
) -> None:
    save_npz(tmp_path / "step-10.npz")
    claim(tmp_path, str(job_id))

    shown = checkpoints(str(tmp_path))
    document = json.loads(checkpoints(str(tmp_path), "--json").stdout)

    rows = [line.split() for line in shown.stdout.splitlines()]
    assert [row[:4] for row in rows[1:3]] == [
        ["attempt", "3", "memory", str(at)] for at in (20, 15)
    ]
    assert "partial" in rows[1]
    assert "whole" in rows[2]
    assert (
        "a restart of job 'llama' continues from memory at step 15 if its ranks stay on their nodes; "
        "a new run never does\n"
        f"without these snapshots it uses {tmp_path}/step-10.npz: it reads "
    ) in shown.stdout
    assert [(one["step"], one["ranks"], one["verdict"]) for one in document["snapshots"]] == [
        (20, [0], "partial"),
        (15, [0, 1], "whole"),
    ]
    assert document["restores_snapshot"] == document["snapshots"][1]
    assert document["restores"] == str(tmp_path / "step-10.npz")


def test_newer_checkpoint_is_what_a_restart_uses(tmp_path: Path, job_id: uuid.UUID) -> None:
    save_npz(tmp_path / "step-16.npz")
    claim(tmp_path, str(job_id))

    shown = checkpoints(str(tmp_path))

    assert f"a restart uses {tmp_path}/step-16.npz" in shown.stdout
    assert "continues from memory" not in shown.stdout
    document = json.loads(checkpoints(str(tmp_path), "--json").stdout)
    assert document["restores_snapshot"] is None


def test_snapshots_without_any_checkpoint_are_shown_and_no_checkpoint_is_still_an_error(
    tmp_path: Path, job_id: uuid.UUID
) -> None:
    claim(tmp_path, str(job_id))

    shown = checkpoints(str(tmp_path))

    assert shown.exit_code == 1
    assert "continues from memory at step 15" in shown.stdout
    assert f"{tmp_path}: nothing in it looks like a checkpoint" in shown.stdout


def save_with_metrics(folder: Path) -> None:
    for at, step in enumerate((10, 20)):
        (folder / f"step_{step}.pt").write_bytes(
            whole_file({"model": weights(), "optimizer": adam(weights()), "step": step})
        )
        os.utime(folder / f"step_{step}.pt", (1e9 + at, 1e9 + at))
    (folder / "metrics.npz").write_bytes(npz_file(loss=[0.5]))


def save_with_best(folder: Path) -> None:
    save_with_metrics(folder)
    (folder / "best.pt").write_bytes(whole_file(weights()))


def test_explain_shows_what_speaks_for_and_against_each_and_what_to_type(tmp_path: Path) -> None:
    save_with_best(tmp_path)

    result = checkpoints(str(tmp_path), "--explain")

    text = " ".join(result.stdout.split())
    assert "model and optimizer, step from its content, 2 are alike" in text
    assert (
        "model alone, no step, named as a copy or a side file; against it: no optimizer's state is in it"
        in text
    )
    assert f"newer, but passed over: {tmp_path}/best.pt: no optimizer's state is in it" in text
    assert "to restore it all the same: --checkpoint-name best.pt" in text


def test_the_evidence_is_in_the_document(tmp_path: Path) -> None:
    save_with_best(tmp_path)

    document = json.loads(checkpoints(str(tmp_path), "--json").stdout)

    chosen, _older, side = (one["evidence"] for one in document["checkpoints"])
    assert (chosen["step"], chosen["holds"], chosen["reason"]) == ("content", "state", "first")
    assert (chosen["tensors"], chosen["elements"]) == (4, 544)
    assert (side["step"], side["holds"], side["reason"]) == ("none", "model", "no_optimizer")


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (("metrics*",), "metrics.npz"),
        (("!step_20.pt",), "step_10.pt"),
        (("step_*", "!*20*"), "step_10.pt"),
    ],
)
def test_a_person_can_say_which_names_count(
    tmp_path: Path, patterns: tuple[str, ...], chosen: str
) -> None:
    save_with_metrics(tmp_path)
    options = [word for one in patterns for word in ("--checkpoint-name", one)]

    document = json.loads(checkpoints(str(tmp_path), "--json", *options).stdout)

    assert document["restores"] == str(tmp_path / chosen)


@pytest.mark.parametrize("pattern", ["a/b", "!", ""])
def test_what_is_no_pattern_of_a_name_is_refused(tmp_path: Path, pattern: str) -> None:
    assert checkpoints(str(tmp_path), "--checkpoint-name", pattern).exit_code == 2


@pytest.mark.parametrize("url", ["s3://bucket/ckpt", "gs://bucket/ckpt", "hf://org/model"])
def test_a_url_is_refused_with_what_to_do(url: str) -> None:
    result = checkpoints(url)

    assert result.exit_code != 0
    assert "is a URL" in result.output
    assert "mount the storage" in result.output
