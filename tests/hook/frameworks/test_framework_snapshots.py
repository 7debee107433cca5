"""`rankmend.keep_snapshots`: what a Trainer killed at any step comes to equals an undisturbed run, bit by bit.

Real trainers of transformers and Lightning, with dropout, batch norm, shuffled data and learning rates that change. A job
imports its framework once, and forks a child for each run (`jobs.forked`).
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rankmend.hook import layout
from tests.support.framework_saves import require
from tests.support.hook import JOB_ID, ROOT, Rank

pytestmark = [pytest.mark.process, pytest.mark.torch]

RUN_ALL_S_MAX = 560.0  # about 20 CPU-seconds
# Of epochs of seven steps: for each case how often snapshots are taken, and the steps of the kills.
TRANSFORMERS = {
    "plain": (1, (1, 4, 7, 8, 14, 20)),
    "evaluated": (1, (1, 7, 14)),
    "epochs": (1, (7, 10, 14)),  # evaluates after each epoch, and loads with a worker
    "accumulated": (2, (3, 4, 9)),
    "tied": (3, (3, 8)),
    "adapter": (3, (3, 8)),
}
# And the step that is restored: what comes after an epoch's last batch, and a validation, is not repeated by Lightning.
LIGHTNING = {
    "plain": (1, {1: 1, 4: 4, 7: 6, 8: 8, 14: 13, 20: 20}),
    "validated": (1, {1: 1, 3: 2, 7: 5, 8: 8, 14: 12}),
    "workers": (1, {4: 4, 7: 6, 8: 8}),
    "accumulated": (2, {2: 2, 4: 2, 5: 5, 8: 6}),
}


def make_rank(folder: Path) -> Rank:
    snapshots = folder / "snapshots"
    snapshots.mkdir()
    rank = Rank(
        folder,
        environment={
            **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
            **{"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"},
            "RANKMEND_JOB_ID": str(JOB_ID),
            layout.ENV_SNAPSHOTS: str(snapshots),
        },
    )
    rank.environment["PYTHONPATH"] = f"{rank.site}:{ROOT}"
    return rank


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return make_rank(tmp_path)


def run_job(
    folder: Path, job: str, cases: Mapping[str, tuple[int, Iterable[int]]]
) -> dict[str, Any]:
    """Run all cases of a framework in one process, which imports it once."""
    given = json.dumps({case: (every, list(kills)) for case, (every, kills) in cases.items()})
    command = [sys.executable, "-m", f"tests.hook.frameworks.jobs.{job}", given]
    done = make_rank(folder).run_command(command, timeout_s=RUN_ALL_S_MAX)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    require("transformers")
    return run_job(tmp_path_factory.mktemp("transformers"), "hf_job", TRANSFORMERS)


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    require("lightning")
    return run_job(tmp_path_factory.mktemp("lightning"), "lightning_job", LIGHTNING)


def restored_of(told: dict[str, Any]) -> dict[int, int]:
    """Check how each killed training ended; return the step that was restored for each kill."""
    assert told["undisturbed"]
    restored = {}
    for kill, (step, digest) in told["kills"].items():
        assert digest == told["undisturbed"], f"killed after step {kill}, restored step {step}"
        restored[int(kill)] = step
    return restored


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_killed_trainer_of_transformers_ends_as_if_nothing_had_happened(
    transformers: dict[str, Any], case: str
) -> None:
    every, kills = TRANSFORMERS[case]

    assert restored_of(transformers[case]) == {kill: kill // every * every for kill in kills}


@pytest.mark.parametrize("case", LIGHTNING)
def test_killed_trainer_of_lightning_ends_as_if_nothing_had_happened(
    lightning: dict[str, Any], case: str
) -> None:
    assert restored_of(lightning[case]) == LIGHTNING[case][1]


def test_snapshot_of_another_model_ends_the_run(transformers: dict[str, Any]) -> None:
    trained, error = transformers["another_model"]

    assert trained == "trained"
    assert "cannot continue from the snapshot: RuntimeError" in error
    assert "size mismatch for layer.weight" in error


def test_trainer_that_holds_its_state_itself_keeps_none_and_trains(
    transformers: dict[str, Any],
) -> None:
    said, files = transformers["holds_its_state"]

    assert "no snapshot of this trainer is kept: UnsupportedTrainerError: " in said
    assert "this Trainer uses FSDP, which holds its state itself\nFalse\n" in said
    assert files == []


def test_what_is_no_trainer_is_refused_and_named(rank: Rank) -> None:
    code = """
    import sys, rankmend
    print(rankmend.keep_snapshots(object()), rankmend.keep_snapshots(object(), every=0))
    """

    done = rank.run_command(rank.command(sys.executable, code))

    assert done.stdout == "False False\n"
    assert "builtins.object is not a Trainer of transformers or Lightning" in done.stderr
    assert "every=0: at least 1" in done.stderr


def test_without_rankmend_a_trainer_stays_as_it_is(rank: Rank) -> None:
    rank.environment[layout.ENV_SNAPSHOTS] = ""

    out = rank.run(sys.executable, "import rankmend; print(rankmend.keep_snapshots(object()))")

    assert out == "False\n"


def test_random_states_are_given_back(rank: Rank) -> None:
    code = """
    import random, numpy, torch, rankmend
    def draw():
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))
    states = rankmend.random_states()
    first = draw()
    assert draw() != first
    rankmend.set_random_states(states)
    assert draw() == first
    for states in ({"other": 1}, None, {"torch": 3}):
        try:
            rankmend.set_random_states(states)
        except rankmend.RestoreError as error:
            print(error)
    """

    said = rank.run(sys.executable, code).splitlines()

    assert said[0] == "cannot set the random states: no random state is named 'other'"
    assert said[1] == "cannot set the random states: random states are a dict, not NoneType"
    assert len(said) == 3
