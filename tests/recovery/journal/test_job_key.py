"""Which starts of `rankmend run` are one job, and which are not."""

import os
from pathlib import Path

import pytest

from rankmend.errors import JobHeldError
from recovery.journal.folder.job_folder import open_job
from recovery.journal.folder.job_key import (
    JobKey,
    default_title,
    key_at_service,
    key_of_meeting,
    key_of_one_node,
)

pytestmark = pytest.mark.safety

SLURM = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "red", "SLURM_PROCID": "0"}
REQUEUED = {**SLURM, "SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "4"}


def test_job_option_outranks_everything(tmp_path: Path) -> None:
    for key in (key_of_one_node, key_of_meeting, key_at_service):
        assert key("mine", "rdzv", SLURM, tmp_path).text == "job:mine"


def test_eight_lines_of_one_allocation_with_their_own_checkpoints_are_eight_jobs(
    tmp_path: Path,
) -> None:
    for key in (key_of_one_node, key_of_meeting, key_at_service):
        texts = {key(None, "100", SLURM, tmp_path / str(number)).text for number in range(8)}

        assert len(texts) == 8


def test_runs_of_a_sweep_without_checkpoints_are_told_apart_by_their_arguments() -> None:
    lines = [("/home/me", "train.py", "--lr", rate) for rate in ("0.1", "0.2")]

    one, other = (key_of_one_node(None, None, SLURM, None, line) for line in lines)
    copied = [key_of_one_node(None, "100", {}, None, line).text for line in lines]

    assert one.text != other.text
    assert len(set(copied)) == 2


def test_tasks_that_one_srun_started_are_jobs_of_their_own() -> None:
    texts = {
        key_of_one_node(None, None, {**SLURM, "SLURM_PROCID": str(task)}, None, ("a",)).text
        for task in range(3)
    }

    assert len(texts) == 3


def test_elements_of_a_job_array_are_jobs_of_their_own() -> None:
    texts = {
        key_of_one_node(None, None, {**SLURM, "SLURM_JOB_ID": number}, None, ("a",)).text
        for number in ("12", "13")
    }

    assert len(texts) == 2


@pytest.mark.parametrize("rdzv_id", [None, "12"])
@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_requeue_is_the_same_job(
    tmp_path: Path, rdzv_id: str | None, has_checkpoints: bool
) -> None:
    folder = tmp_path if has_checkpoints else None

    for key in (key_of_meeting, key_at_service):
        assert key(None, rdzv_id, SLURM, folder).text == key(None, rdzv_id, REQUEUED, folder).text
    before = key_of_one_node(None, rdzv_id, SLURM, folder, ("train.py",))
    assert before.text == key_of_one_node(None, rdzv_id, REQUEUED, folder, ("train.py",)).text


def test_next_allocation_with_the_same_checkpoints_is_the_same_job_without_a_service(
    tmp_path: Path,
) -> None:
    later = {**SLURM, "SLURM_JOB_ID": "13"}

    for key in (key_of_one_node, key_of_meeting):
        one, next_one = key(None, "12", SLURM, tmp_path), key(None, "13", later, tmp_path)
        assert one.text == next_one.text
        assert one.folder_name == next_one.folder_name


def test_nodes_of_one_srun_are_one_job() -> None:
    tasks = [{**SLURM, "SLURM_PROCID": str(task), "SLURM_NODEID": str(task)} for task in range(2)]

    for key in (key_of_meeting, key_at_service):
        assert len({key(None, "12", task, None).text for task in tasks}) == 1
        assert len({key(None, None, task, None).text for task in tasks}) == 1


def test_path_that_containers_share_by_name_is_not_one_job_at_a_service() -> None:
    texts = {key_at_service(None, rdzv_id, {}, Path("/checkpoints")).text for rdzv_id in ("a", "b")}

    assert len(texts) == 2


def test_two_paths_to_one_checkpoint_folder_are_one_job(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert (
        key_of_one_node(None, None, {}, tmp_path / "link").text
        == key_of_one_node(None, None, {}, tmp_path / "real").text
    )


def test_long_path_still_makes_a_key_that_a_service_takes() -> None:
    deep = Path("/" + "/".join(["folder" * 20] * 10))

    key = key_at_service(None, None, {}, deep)

    assert len(key.text) <= 512
    assert key.text != key_at_service(None, None, {}, deep / "other").text


def test_without_any_name_each_start_is_a_new_job() -> None:
    first, second = (key_of_one_node(None, None, {}, None, ("a",)) for _ in range(2))

    assert first.is_anonymous
    assert first.text != second.text


@pytest.mark.parametrize(
    ("target", "is_module", "name"),
    [
        ("train.py", False, "gpt2-train"),
        ("/opt/llama/pre train.v2.py", False, "llama-pre-train.v2"),
        ("src/run.py", False, "src-run"),
        ("bash", False, "gpt2-bash"),
        ("/train.py", False, "train"),
        ("axolotl.cli.train", True, "cli-train"),
        ("train", True, "train"),
        ("\u00e9" * 99 + "/" + "y" * 99 + ".py", False, "y" * 28),
    ],
)
def test_a_job_that_nobody_names_is_called_as_its_script_and_folder(
    target: str, is_module: bool, name: str
) -> None:
    assert default_title(Path("/home/me/gpt2"), target, is_module=is_module) == name


def test_a_default_name_stands_for_the_folder_and_for_no_name_and_for_nothing_that_was_chosen(
    tmp_path: Path,
) -> None:
    def named(job: str | None, rdzv_id: str | None, folder: Path | None) -> set[str]:
        kinds = (key_of_one_node, key_of_meeting, key_at_service)
        return {key(job, rdzv_id, {}, folder, ("c",), "gpt2-train").name for key in kinds}

    assert named(None, None, tmp_path / "ckpt") == {"gpt2-train"}
    assert named(None, None, None) == {"gpt2-train"}
    assert named("mine", None, tmp_path / "ckpt") == {"mine"}
    assert named(None, "run7", tmp_path / "ckpt") == {"run7"}
    key = key_of_one_node(None, None, {}, tmp_path / "ckpt", ("c",), "gpt2-train")
    assert key.folder_name.startswith("ckpt-"), "a job of an older version keeps its folder"


def test_a_default_name_gets_a_number_only_where_another_job_has_it_and_keeps_it(
    tmp_path: Path,
) -> None:
    def start(folder: str) -> str:
        key = key_of_one_node(None, None, {}, tmp_path / folder, (), "gpt2-train")
        held = open_job(tmp_path / "state", key, None, 1.0)
        os.close(held.lock_descriptor)
        return held.key.name

    names = [start(folder) for folder in "abacb"]

    assert names == ["gpt2-train", "gpt2-train-2", "gpt2-train", "gpt2-train-3", "gpt2-train-2"]


def test_names_that_look_alike_as_folders_stay_apart() -> None:
    names = ("a/b", "a-b", "../a-b", "..")
    folders = {key_of_one_node(name, None, {}, None).folder_name for name in names}

    assert len(folders) == 4
    assert not any("/" in folder or folder.startswith(".") for folder in folders)


def test_same_line_started_beside_itself_is_another_job_where_nobody_named_it(
    tmp_path: Path,
) -> None:
    key = key_of_one_node(None, None, SLURM, None, ("train.py",))

    first, second = (open_job(tmp_path, key, None, 1.0) for _ in range(2))
    os.close(first.lock_descriptor)
    again = open_job(tmp_path, key, None, 2.0)

    assert first.job_id != second.job_id
    assert again.job_id == first.job_id
    for folder in (second, again):
        os.close(folder.lock_descriptor)


def test_refusal_says_which_option_to_change(tmp_path: Path) -> None:
    for key, option in (
        (key_of_one_node("mine", None, {}, None), "--job"),
        (key_of_one_node(None, None, {}, tmp_path / "ckpt"), "--checkpoint-dir"),
    ):
        assert refusal(tmp_path, key).endswith(option) or f"a {option} of its own" in refusal(
            tmp_path, key
        )


def refusal(state: Path, key: JobKey) -> str:
    first = open_job(state, key, None, 1.0)
    try:
        with pytest.raises(JobHeldError) as caught:
            open_job(state, key, None, 1.0)
    finally:
        os.close(first.lock_descriptor)
    return str(caught.value)


def test_runs_of_a_sweep_at_a_service_and_where_slurm_says_where_to_meet_are_jobs_of_their_own() -> (
    None
):
    lines = [("/home/me", "train.py", "--lr", str(number)) for number in range(8)]

    for key in (key_of_meeting, key_at_service):
        texts = {key(None, None, SLURM, None, line).text for line in lines}
        again = {key(None, None, REQUEUED, None, line).text for line in lines}

        assert len(texts) == 8
        assert again == texts


def test_job_is_shown_by_its_slurm_name_and_its_folder_outlives_a_change_of_that() -> None:
    named = {**SLURM, "SLURM_JOB_NAME": "llama"}
    element = {**named, "SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "3"}
    line = ("train.py",)

    one, other = (key_of_one_node(None, None, env, None, line) for env in (named, SLURM))

    assert (one.name, other.name) == ("llama-12", "red-12")
    assert one.folder_name == other.folder_name
    assert key_of_one_node(None, None, element, None, line).name == "llama-11_3"
