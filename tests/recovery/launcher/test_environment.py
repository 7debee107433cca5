from dataclasses import replace
from pathlib import Path

import pytest

from rankmend.errors import LaunchError
from rankmend.hook import layout
from recovery.launcher.ranks.environment import RankFiles, Rendezvous, rank_environment
from recovery.launcher.ranks.standbys import waiting_environment
from recovery.messages.exchange import VERSION, Order, Restore, Stop

FILES = RankFiles(Path("/run/r1.progress"), Path("/run/r1.error.json"))


def make_order(restore: Restore | None = None) -> Order:
    return Order(
        version=VERSION,
        job_id="00000000-0000-0000-0000-000000000007",
        revision=3,
        attempt=2,
        ranks=(4, 5),
        world_size=6,
        group_rank=1,
        group_count=2,
        stop=Stop.KILL,
        grace_s=0,
        restore=restore,
        restarts=1,
        restarts_max=9,
    )


def make_environment(
    base: dict[str, str],
    restore: Restore | None = None,
    *,
    is_virtual_local_rank: bool = False,
    **changes: int,
) -> dict[str, str]:
    return rank_environment(
        base,
        replace(make_order(restore), **changes),
        1,
        Rendezvous("127.0.0.1", 20007, True, "true"),
        FILES,
        run_id="run",
        role="default",
        site_folder=Path("/run/site"),
        fence_file=Path("/ckpt/.rankmend/attempt"),
        is_auto=True,
        is_virtual_local_rank=is_virtual_local_rank,
    )


def test_a_rank_is_counted_among_those_of_its_role() -> None:
    environment = make_environment({}, role_rank=2, role_world_size=4)

    assert (environment["ROLE_RANK"], environment["ROLE_WORLD_SIZE"]) == ("3", "4")
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("5", "6")


def test_a_rank_gets_what_torchrun_sets() -> None:
    environment = make_environment({"HOME": "/root"})

    assert environment["HOME"] == "/root"
    expected = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20007",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "9",
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": "true",
        "TORCHELASTIC_ERROR_FILE": "/run/r1.error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }
    assert {name: environment[name] for name in expected} == expected


def test_a_waiting_process_has_all_variables_but_those_that_only_a_rank_has() -> None:
    environment = make_environment({"HOME": "/root", "RANK": "3", "MASTER_ADDR": "pod-0"})

    waiting = waiting_environment(environment, Path("/run/site"), "job", None, 2)

    own = {name for name in environment if not name.startswith("RANKMEND_")}
    assert own - set(waiting) == set(layout.RANK_VARIABLES)


def test_the_users_own_settings_stay() -> None:
    base = {"PYTHONPATH": "/mine", "OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}

    environment = make_environment(base)

    assert environment["PYTHONPATH"] == "/run/site:/mine"
    assert environment["OMP_NUM_THREADS"] == "8"
    assert environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_nothing_of_an_outer_rankmend_leaks_into_a_rank() -> None:
    environment = make_environment({"RANKMEND_RESUME_PATH": "/old", "RANKMEND_ATTEMPT": "9"})

    assert "RANKMEND_RESUME_PATH" not in environment
    assert environment["RANKMEND_ATTEMPT"] == "2"


def test_the_chosen_checkpoint_is_told() -> None:
    environment = make_environment({}, Restore("/ckpt/step-5.pt", 5))

    assert environment["RANKMEND_RESUME_PATH"] == "/ckpt/step-5.pt"
    assert environment["RANKMEND_RESUME_STEP"] == "5"


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, "1"), ("4, 6", "6"), ("GPU-a,GPU-b", "GPU-b")]
)
def test_a_virtual_local_rank_is_0_and_sees_its_gpu_only(
    visible: str | None, expected: str
) -> None:
    base = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    environment = make_environment(base, is_virtual_local_rank=True)

    assert environment["LOCAL_RANK"] == "0"
    assert environment["CUDA_VISIBLE_DEVICES"] == expected


def test_a_virtual_local_rank_without_a_gpu_is_an_error() -> None:
    with pytest.raises(LaunchError, match=r"no GPU for local rank 1.*CUDA_VISIBLE_DEVICES=4"):
        make_environment({"CUDA_VISIBLE_DEVICES": "4"}, is_virtual_local_rank=True)
