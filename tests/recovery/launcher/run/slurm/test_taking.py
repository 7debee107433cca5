"""What `rankmend run` takes from Slurm, and what the command line says instead."""

import pytest

from rankmend.errors import ConfigError
from recovery.launcher.run.options import Mode, RunOptions, choose_mode, node_range, parse_meeting
from recovery.launcher.run.slurm.step import count_gpus, read_step
from recovery.launcher.run.slurm.taking import take_from_slurm

pytestmark = pytest.mark.process

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NAME": "llama",
    "SLURM_JOB_NODELIST": "localhost,node[2-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "localhost,node[2-4]",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODEID": "2",
    "SLURMD_NODENAME": "node3",
}
FIRST = {**STEP, "SLURM_NODEID": "0", "SLURMD_NODENAME": "localhost"}
ALONE = {
    **STEP,
    "SLURM_STEP_NODELIST": "node3",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_NODEID": "0",
}
BATCH = {name: value for name, value in STEP.items() if not name.startswith("SLURM_STEP_")}


def take(
    environment: dict[str, str], said: list[str] | None = None, **options: object
) -> RunOptions:
    asked = RunOptions("train.py", **options)  # type: ignore[arg-type]
    say = (said if said is not None else []).append
    return take_from_slurm(asked, set(options), environment, say)


def test_step_says_how_many_nodes_there_are_and_where_they_meet() -> None:
    taken = take(STEP, spares=1)

    assert node_range(taken) == (3, 4)
    assert choose_mode(taken) is Mode.MEETING
    assert (parse_meeting(taken).host, parse_meeting(taken).is_host) == ("localhost", False)
    assert taken.slurm_run == "12:0:3"


def test_first_node_hosts_and_says_once_what_was_taken() -> None:
    said: list[str] = []
    first = {**FIRST, "SLURM_STEP_NODELIST": "localhost,localhost", "CUDA_VISIBLE_DEVICES": "0,1"}
    first |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_STEP_NUM_TASKS": "2"}

    taken = take(first, said)

    assert parse_meeting(taken).is_host is True
    assert taken.nproc_per_node == "2"
    (line,) = said
    assert line.startswith("from Slurm job 12, step 3: 2 nodes, ")
    assert "they meet at localhost" in line
    assert "--no-slurm" in line
    assert take(STEP, said).nnodes == "4"
    assert len(said) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"rdzv_endpoint": "other:1234"},
        {"master_addr": "other"},
        {"controller": "https://controller.example:9477"},
        {"standalone": True},
    ],
)
def test_where_the_nodes_meet_is_as_the_command_line_says(options: dict[str, object]) -> None:
    taken = take(STEP, **options)

    assert all(getattr(taken, name) == value for name, value in options.items())
    assert taken.slurm_run == ""
    assert taken.local_addr is None


def test_number_of_nodes_and_ranks_is_as_the_command_line_says() -> None:
    taken = take({**STEP, "SLURM_GPUS_ON_NODE": "8"}, nnodes="2:4", nproc_per_node="3")

    assert (taken.nnodes, taken.nproc_per_node) == ("2:4", "3")


def test_step_of_one_node_is_a_job_of_this_node() -> None:
    taken = take({**ALONE, "SLURM_GPUS_ON_NODE": "8"})

    assert choose_mode(taken) is Mode.STANDALONE
    assert taken.nproc_per_node == "8"
    assert taken.rdzv_endpoint is None


def test_batch_script_without_srun_uses_its_node_alone_and_is_told_of_the_others() -> None:
    said: list[str] = []

    taken = take(BATCH, said)

    assert taken == RunOptions("train.py")
    assert said == [
        "this Slurm job has 4 nodes, and this launcher uses one: srun starts one on each"
    ]


def test_variables_of_another_step_count_for_nothing() -> None:
    other_job = {**STEP, "SLURM_JOB_NODELIST": "node[3-4]"}
    other_node = {**STEP, "SLURMD_NODENAME": "node9", "SLURM_JOB_NODELIST": "localhost,node[2-9]"}

    assert read_step(other_job) is None
    assert read_step(other_node) is None


def test_several_tasks_on_each_of_several_nodes_are_refused() -> None:
    tasks = {**STEP, "SLURM_STEP_NUM_TASKS": "32"}

    with pytest.raises(ConfigError, match=r"32 tasks on 4 nodes.*--ntasks-per-node=1"):
        take(tasks)


def test_several_tasks_on_one_node_stay_jobs_of_their_own() -> None:
    said: list[str] = []

    taken = take({**ALONE, "SLURM_STEP_NUM_TASKS": "8", "SLURM_GPUS_ON_NODE": "8"}, said)

    assert taken == RunOptions("train.py")
    assert "each is a separate job" in said[0]


def test_restart_of_the_job_is_another_start_of_the_step() -> None:
    requeued = read_step({**STEP, "SLURM_RESTART_COUNT": "1"})

    assert requeued is not None
    assert requeued.run == "12:1:3"


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, None),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"SLURM_GPUS_ON_NODE": "gpu:4"}, None),
        ({"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "3"}, 1),
        ({"SLURM_GPUS_ON_NODE": "8", "ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None),
    ],
)
def test_ranks_are_as_many_as_the_gpus_that_the_task_sees(
    environment: dict[str, str], count: int | None
) -> None:
    assert count_gpus(environment) == count


@pytest.mark.parametrize("name", ["SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"])
def test_variable_that_is_no_number_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='x'"):
        read_step({**STEP, name: "x"})


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"nnodes": "3:4", "spares": 2}, "give at most 1"),
        ({"nnodes": "4", "spares": 4}, "at most 3"),
        ({"spares": 1}, "at most 0"),
    ],
)
def test_spares_leave_a_node_to_train_on(options: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        choose_mode(RunOptions("train.py", **options))  # type: ignore[arg-type]
