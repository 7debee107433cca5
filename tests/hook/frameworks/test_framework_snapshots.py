"""`rankmend.keep_snapshots`: what a Trainer killed at any step comes to equals an undisturbed run, bit by bit.

Real trainers of transformers and Lightning, with dropout, batch norm, shuffled data and learning rates that change. The jobs
fork a child for each run (`jobs.forked`).
"""

import json
import sys
from pathlib import Path

import pytest

from rankmend.hook import layout
from tests.support.framework_saves import require
from tests.support.free_port import free_port
from tests.support.hook import JOB_ID, ROOT, Rank

pytestmark = [pytest.mark.process, pytest.mark.torch]

STEPS = ("1", "4", "7", "8", "13", "14", "15", "20")  # of epochs of seven


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    rank = Rank(
        tmp_path,
        environment={
            **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
            **{"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"},
            "RANKMEND_JOB_ID": str(JOB_ID),
            layout.ENV_SNAPSHOTS: str(folder),
        },
    )
    rank.environment["PYTHONPATH"] = f"{rank.site}:{ROOT}"
    return rank


def train(rank: Rank, job: str, case: str, every: str, *kills: str) -> dict[int, int]:
    """Kill a job at each of these steps and check how it ends; return the step that was restored for each."""
    command = [sys.executable, "-m", f"tests.hook.frameworks.jobs.{job}", case, every, *kills]
    told = json.loads(rank.run_command(command).stdout.splitlines()[-1])
    assert told["undisturbed"]
    restored = {}
    for kill, (step, digest) in told["kills"].items():
        assert digest == told["undisturbed"], f"killed after step {kill}, restored step {step}"
        restored[int(kill)] = step
    return restored


@pytest.mark.parametrize(
    ("case", "every", "kills"),
    [
        ("plain", "1", STEPS),
        ("evaluated", "1", STEPS),
        ("epochs", "1", ("7", "10", "14")),  # evaluates after each epoch, and loads with a worker
        ("accumulated", "2", ("3", "4", "6", "9", "11")),
        ("tied", "3", ("3", "8")),
        ("adapter", "3", ("3", "8")),
    ],
)
def test_killed_trainer_of_transformers_ends_as_if_nothing_had_happened(
    rank: Rank, case: str, every: str, kills: tuple[str, ...]
) -> None:
    require("transformers")

    restored = train(rank, "hf_job", case, every, *kills)

    assert restored == {int(one): int(one) // int(every) * int(every) for one in kills}


@pytest.mark.parametrize(
    ("case", "every", "restored"),
    [
        # What comes after an epoch's last batch, and a validation, is not repeated by Lightning.
        ("plain", "1", {1: 1, 4: 4, 7: 6, 8: 8, 13: 13, 14: 13, 15: 15, 20: 20}),
        ("validated", "1", {1: 1, 3: 2, 4: 4, 7: 5, 8: 8, 14: 12, 20: 19}),
        ("workers", "1", {4: 4, 7: 6, 8: 8, 20: 20}),
        ("accumulated", "2", {2: 2, 4: 2, 5: 5, 8: 6, 11: 10}),
    ],
)
def test_killed_trainer_of_lightning_ends_as_if_nothing_had_happened(
    rank: Rank, case: str, every: str, restored: dict[int, int]
) -> None:
    require("lightning")

    assert train(rank, "lightning_job", case, every, *map(str, restored)) == restored


MODEL = """
    import atexit, sys, torch, rankmend
    from transformers import Trainer, TrainingArguments

    @atexit.register
    def leave_group():  # else a thread of gloo's aborts the process at its end, now and then
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    class Model(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = torch.nn.Linear(4, width)

        def forward(self, x, labels=None):
            return {"loss": (self.layer(x) - labels).pow(2).mean()}

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"x": torch.ones(4), "labels": torch.ones(1)}

    def make(width):
        arguments = TrainingArguments(
            "out", max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
        )
        return Trainer(model=Model(width), args=arguments, train_dataset=Rows())
"""


@pytest.fixture
def alone(rank: Rank) -> Rank:
    rank.environment["MASTER_PORT"] = str(free_port())
    return rank


def test_snapshot_of_another_model_ends_the_run(alone: Rank) -> None:
    require("transformers")
    alone.run(sys.executable, MODEL + "    rankmend.keep_snapshots(t := make(2), 1); t.train()")
    alone.environment[layout.ENV_SNAPSHOT] = "3:3"

    out = alone.run(
        sys.executable,
        MODEL
        + """
    trainer = make(3)
    assert rankmend.keep_snapshots(trainer)
    try:
        trainer.train()
    except rankmend.RestoreError as error:
        print(error)
    """,
    )

    assert "cannot continue from the snapshot: RuntimeError" in out
    assert "size mismatch for layer.weight" in out


def test_trainer_that_holds_its_state_itself_keeps_none_and_trains(alone: Rank) -> None:
    require("transformers")
    code = """
    trainer = make(1)
    trainer.is_fsdp_enabled = True
    print(rankmend.keep_snapshots(trainer), file=sys.stderr)
    trainer.is_fsdp_enabled = False
    trainer.train()
    """

    said = alone.run_command(alone.command(sys.executable, MODEL + code)).stderr

    assert "no snapshot of this trainer is kept: UnsupportedTrainerError: " in said
    assert "this Trainer uses FSDP, which holds its state itself\nFalse\n" in said
    assert not list((alone.folder / "snapshots").iterdir())


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
    pytest.importorskip("torch")
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
