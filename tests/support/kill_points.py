"""The points at which `tests/system/test_framework_recovery.py` kills a job of each framework, and the job that is killed.

docs/use/frameworks.md has the table, which `make docs` writes from here. Every job saves at steps 10, 20, 30
and so on up to 80 and keeps two checkpoints; its attempts are killed in the order of `Point`. The first attempt
trains to the end undisturbed, in a folder of its own, and is killed once the fork server has its list. All others are forked, and the
first, too, where the server can import what stands at the head of the script, as in the example, without trials.
"""

import ast
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.folder.job_folder import list_folders
from recovery.local.report.overview import read_entries
from tests.support import forked_cli

STEPS: Final = 80
ROOT: Final = Path(__file__).resolve().parents[2]
KILLS: Final = ROOT / "tests" / "support" / "faults" / "checkpoint_kills.py"
RUN_S_MAX: Final = 600


class Point(Enum):
    """What rank 0 was about when it was killed, and what the next attempt has to begin from."""

    START = ("before the first line of the script", "zero", None)
    TRAINING = ("in a step before the first save", "zero", None)
    FIRST_FILE = ("in the middle of the first file of a save", "the save before", 10)
    LOADING = ("while the checkpoint is loaded", "the same again", 10)
    BETWEEN = ("between two files of a save", "the save before", 20)
    LOADED = ("after the load, in the first step", "the same again", 20)
    LAST_FILE = ("before the last file of a save is there", "the save before", 30)
    ROTATION = ("after a save, before the oldest is removed", "the new one", 50)
    HALF_ROTATED = ("while the oldest is removed", "the new one", 60)
    END = ("after the last save, at the script's end", "the new one", 80)

    def __init__(self, when: str, begins: str, step: int | None) -> None:
        self.when = when
        self.begins = begins
        self.step = step


@dataclass(frozen=True)
class Kill:
    """A rank's death at an event of `tests/support/faults/checkpoint_kills.py`."""

    event: str  # regular expression
    count: int = 1  # the how-many-th such event
    rank: int = 0
    cut: str = ""  # files that lose their end, as a shell pattern: a write that did not get further
    kept_ratio: float = 0.5
    behind: str = ""  # a path, as a shell pattern, that another process writes: this one dies once it is there
    apart: str = ""  # a folder of its own for this attempt, whose saves the job doesn't see
    snapshot_every: int = 0  # steps between this attempt's snapshots; it begins from the newest one
    note: str = ""  # for the table, where the point is another one in this format
    step: int | None = None  # that the next attempt begins from, if not the point's


@dataclass(frozen=True)
class Framework:
    """A row of the table of frameworks, and its kills."""

    label: str
    script: str
    folder: str
    resume: tuple[str, ...]
    saves: tuple[str, ...]  # paths of a save of a step, which a restart may be given
    kills: Mapping[Point, Kill]
    needs: str
    modules: str = "torch"  # whose saves are heard
    ranks: int = 2
    arguments: tuple[str, ...] = ()
    is_deterministic: bool = True
    is_parallel: bool = False  # its library is from `make .venv/.parallel`
    forks_first: bool = True  # the fork server can import it without having tried each package
    keeps_snapshots: bool = False  # in the attempts before the last save, two of which are killed

    def kill(self, point: Point) -> Kill:
        return self.kills.get(point, _EVERYWHERE.get(point, Kill("never")))

    def plan(self) -> list[tuple[Point | None, Kill]]:
        """Return the kills in order, each with its point, if it is at one."""
        *points, end = ((point, self.kill(point)) for point in Point)
        if not self.keeps_snapshots:
            return [(None, UNDISTURBED), *points, end]
        last = (
            end[0],
            replace(end[1], snapshot_every=STEPS + 1),
        )  # begins from one, and keeps none
        snapshots = [(None, kill) for kill in KILLED_WITH_SNAPSHOTS]
        return [(None, UNDISTURBED), *points, *snapshots, last]

    def step_after(self, point: Point) -> int | None:
        """Return the step of the checkpoint that the attempt after this kill begins from."""
        step = self.kill(point).step
        return point.step if step is None else step


UNDISTURBED: Final = Kill("^end$", behind="state/imports/*.json", apart="undisturbed")
# Between the saves of steps 60 and 70. Counted in one attempt; Accelerate's optimizer tells each step twice.
KILLED_WITH_SNAPSHOTS: Final = (
    Kill("^step$", 5, rank=1, snapshot_every=2),
    Kill("^step$", 5, rank=0, snapshot_every=2),
)
_RENAMED: Final = "before it gets its name"
_LAST_IS_OLD: Final = "`last.ckpt` still is the save before; the new one, which is whole, is used"
_EVERYWHERE: Final = {
    Point.START: Kill("^start$"),
    Point.TRAINING: Kill("^step$", 5),
    Point.LOADED: Kill("^step$"),
    Point.END: Kill("^end$"),
}

FRAMEWORKS: Final = {
    "npz": Framework(
        "npz",
        "numpy_loop.py",
        "ckpt",
        ("--resume", "{checkpoint}"),
        ("step_{step}.npz",),
        {
            Point.FIRST_FILE: Kill(
                "^saved .*step_20", cut="ckpt/step_20.npz", kept_ratio=0, note="the file is empty"
            ),
            Point.LOADING: Kill("^read .*step_10"),
            Point.BETWEEN: Kill(
                "^saved .*step_30", cut="ckpt/step_30.npz", note="half of the file is written"
            ),
            Point.LAST_FILE: Kill(
                "^saved .*step_40",
                cut="ckpt/step_40.npz",
                kept_ratio=0.99,
                note="the end of the file is missing",
            ),
            Point.ROTATION: Kill("^os.remove .*step_30"),
            Point.HALF_ROTATED: Kill("^os.remove .*step_40", note="of two, one is removed"),
        },
        "numpy",
        "numpy",
        ranks=1,
    ),
    "safetensors": Framework(
        "safetensors",
        "numpy_loop.py",
        "ckpt",
        ("--resume", "{checkpoint}"),
        ("step_{step}",),
        {
            Point.FIRST_FILE: Kill("^saved .*step_20/model", cut="ckpt/step_20/model.safetensors"),
            Point.LOADING: Kill("^read .*step_10/optimizer"),
            Point.BETWEEN: Kill("^save .*step_30/optimizer"),
            Point.LAST_FILE: Kill("^save .*step_40/progress"),
            Point.ROTATION: Kill("^shutil.rmtree .*step_30"),
            Point.HALF_ROTATED: Kill("^os.remove", 2),
        },
        "safetensors",
        "safetensors.numpy",
        ranks=1,
        arguments=("--kind", "safetensors"),
    ),
    "ddp": Framework(
        "DDP, `torch.save`",
        "ddp.py",
        "ckpt",
        ("--resume", "{checkpoint}"),
        ("step_{step}.pt",),
        {
            Point.FIRST_FILE: Kill(
                "^saved .*step_20", cut="ckpt/step_20.tmp", kept_ratio=0, note="the file is empty"
            ),
            Point.LOADING: Kill("^read .*step_10"),
            Point.BETWEEN: Kill(
                "^saved .*step_30", cut="ckpt/step_30.tmp", note="half of the file is written"
            ),
            Point.LAST_FILE: Kill("^os.rename .*step_40", note=_RENAMED),
            Point.ROTATION: Kill("^os.remove .*step_30"),
            Point.HALF_ROTATED: Kill("^os.remove .*step_40", note="of two, one is removed"),
        },
        "torch",
        keeps_snapshots=True,
    ),
    "fsdp2": Framework(
        "FSDP2, DCP",
        "fsdp2.py",
        "ckpt",
        ("--resume", "{checkpoint}"),
        ("step_{step}",),
        {
            Point.FIRST_FILE: Kill("^write .*step_20/.metadata", cut="ckpt/step_20/__0_0.distcp"),
            Point.LOADING: Kill("^read .*step_10/__0_0"),
            Point.BETWEEN: Kill("^write .*step_30/__1_0", rank=1),
            Point.LOADED: Kill("^step$", 2),  # the first is made by get_state_dict, before the load
            Point.LAST_FILE: Kill("^os.rename .*step_40/.metadata"),
            Point.ROTATION: Kill("^shutil.rmtree .*step_30"),
            Point.HALF_ROTATED: Kill("^os.remove __"),
        },
        "torch",
        keeps_snapshots=True,
    ),
    "hf_trainer": Framework(
        "Trainer",
        "hf_trainer.py",
        "out",
        ("--resume_from_checkpoint", "{checkpoint}"),
        ("checkpoint-{step}",),
        {
            Point.FIRST_FILE: Kill(
                "^saved .*checkpoint-20/model", cut="out/checkpoint-20/model.safetensors"
            ),
            Point.LOADING: Kill("^read .*checkpoint-10/optimizer.pt"),
            Point.BETWEEN: Kill("^write .*checkpoint-30/trainer_state.json"),
            Point.LAST_FILE: Kill(
                "^save .*checkpoint-40/rng_state_1",
                rank=1,
                behind="out/checkpoint-40/trainer_state.json",  # rank 0's last file of a save
                note="the second rank dies, its file is missing",
            ),
            Point.ROTATION: Kill("^shutil.rmtree .*checkpoint-30"),
            Point.HALF_ROTATED: Kill("^os.remove optimizer.pt"),
        },
        "transformers",
        "torch,safetensors.torch",
        keeps_snapshots=True,
    ),
    "accelerate": Framework(
        "Accelerate",
        "accelerate_loop.py",
        "out",
        ("--resume_from_checkpoint", "{checkpoint}"),
        ("step_{step}",),
        {
            Point.FIRST_FILE: Kill("^saved .*step_20/model", cut="out/step_20/model.safetensors"),
            Point.LOADING: Kill("^read .*step_10/optimizer"),
            Point.BETWEEN: Kill("^save .*step_30/optimizer"),
            Point.LAST_FILE: Kill("^save .*step_40/custom_checkpoint"),
            Point.ROTATION: Kill("^shutil.rmtree .*step_30"),
            Point.HALF_ROTATED: Kill("^os.remove optimizer.bin"),
        },
        "accelerate",
        "torch,safetensors.torch",
        ranks=1,
    ),
    "lightning": Framework(
        "Lightning",
        "lightning_fit.py",
        "ckpt",
        ("--ckpt_path", "{checkpoint}"),
        ("epoch=0-step={step}.ckpt", "last.ckpt"),
        {
            Point.FIRST_FILE: Kill("^os.rename .*step=20", cut="ckpt/tmp*"),
            Point.LOADING: Kill("^read .*(step=10|last)"),
            Point.BETWEEN: Kill(
                "^os.rename .*last",
                2,
                step=30,
                note=_LAST_IS_OLD,
            ),
            Point.LOADED: Kill("^step$", step=30),
            Point.LAST_FILE: Kill("^os.rename .*step=40", note=_RENAMED),
            Point.ROTATION: Kill("^os.remove .*step=", step=40),
            Point.HALF_ROTATED: Kill("^os.rename .*last", step=50, note=_LAST_IS_OLD),
        },
        "lightning",
        ranks=1,
        forks_first=False,
        is_deterministic=False,  # within an epoch it begins the data loader anew
    ),
    "deepspeed": Framework(
        "DeepSpeed",
        "deepspeed_loop.py",
        "ckpt",
        ("--load", "{checkpoint_dir}", "--tag", "{checkpoint_tag}"),
        ("global_step{step}",),
        {
            Point.FIRST_FILE: Kill(
                "^saved .*step20/mp_rank", cut="ckpt/global_step20/mp_rank_00_model_states.pt"
            ),
            Point.LOADING: Kill("^read .*step10/.*optim"),
            Point.BETWEEN: Kill("^save .*step30/zero_pp_rank_0"),
            Point.LOADED: Kill("^step$", 2),  # the first is made by DeepSpeed, before the load
            Point.LAST_FILE: Kill("^save .*step40/zero_pp_rank_1", rank=1),
            Point.ROTATION: Kill("^shutil.rmtree .*step30"),
            Point.HALF_ROTATED: Kill("^os.remove zero"),
        },
        "deepspeed",
        is_parallel=True,
    ),
    "orbax": Framework(
        "JAX, Orbax",
        "orbax_loop.py",
        "ckpt",
        ("--restore_step", "{checkpoint_step}"),
        ("{step}",),
        {
            Point.FIRST_FILE: Kill(r"^write .*/20\..*/array_metadatas/"),
            Point.LOADING: Kill("^read .*/10/default/"),
            Point.BETWEEN: Kill(r"^write .*/30\..*/_METADATA"),
            Point.LAST_FILE: Kill(r"^os.rename .*/40\.[^ /]* [^ ]*/40$", note=_RENAMED),
            Point.ROTATION: Kill("^shutil.rmtree .*/30 "),
            Point.HALF_ROTATED: Kill("^os.remove [^/ ]+ ", 2),
        },
        "orbax",
        "",
        ranks=1,
        forks_first=False,
    ),
}


def markdown_table() -> str:
    """Return the table of points and frameworks, with the notes below it."""
    heads = ("killed", "next attempt begins from", *(one.label for one in FRAMEWORKS.values()))
    notes: list[str] = []
    rows = [heads, ("---",) * len(heads)]
    for point in Point:
        cells = []
        for framework in FRAMEWORKS.values():
            note = framework.kill(point).note
            if note and note not in notes:
                notes.append(note)
            cells.append(f"yes ({notes.index(note) + 1})" if note else "yes")
        rows.append((point.when, point.begins, *cells))
    equal = ("yes" if one.is_deterministic else "not compared" for one in FRAMEWORKS.values())
    rows.append(("never again", "parameters at the end equal those of an undisturbed run", *equal))
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    listed = "; ".join(f"({number}) {note}" for number, note in enumerate(notes, 1))
    return f"{table}\n{listed}.\n"


def run(
    folder: Path, framework: Framework, kills: Sequence[Kill], found_by: Mapping[str, str]
) -> list[str]:
    """Run the job as the README does; return the last words of rank 0, one for each time it ended."""
    folder.mkdir()
    (folder / framework.folder).mkdir()
    plan = json.dumps([asdict(kill) for kill in kills])
    ranks = str(framework.ranks)
    command = ["run", "--standalone", "--nproc-per-node", ranks]
    script = _write_script(folder, framework)
    command += ["--checkpoint-dir", framework.folder, str(script), framework.modules, plan]
    command += [str(ROOT / "examples" / "frameworks" / framework.script), "--steps", str(STEPS)]
    command += [*framework.arguments, *framework.resume]
    places = {
        "RANKMEND_STATE_DIR": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
        # Else transformers and DeepSpeed set these, and the fork server shares less or nothing: DeepSpeed sets its own before it
        # imports PyTorch, which only the rank that is killed has imported already (`checkpoint_kills.py`).
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TORCHDYNAMO_DISABLE": "1",  # DeepSpeed imports the compiler to decorate an optimizer: 6 CPU-s in each process
    }
    environment = {**os.environ, **found_by, **places}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as error:
        job = forked_cli.start(
            command, cwd=folder, environment=environment, stdout=out, stderr=error
        )
    try:
        code = job.wait(RUN_S_MAX)
    finally:
        job.kill()
    assert code == 0, (folder / "stderr").read_text()[-4000:]
    shown = (folder / "stdout").read_text().splitlines()
    return [line.rpartition("final ")[2] for line in shown if "final " in line]


def _write_script(folder: Path, framework: Framework) -> Path:
    """Return a script that kills as `KILLS` does, with the example's imports at its head."""
    script, kills = folder / "killed.py", KILLS.read_text()
    example = (ROOT / "examples" / "frameworks" / framework.script).read_text()
    imports = [
        ast.unparse(statement)
        for statement in ast.parse(example).body
        if isinstance(statement, (ast.Import, ast.ImportFrom))
    ]
    script.write_text("\n".join([*imports, kills]) if framework.forks_first else kills)
    return script


def started(folder: Path) -> dict[int, AttemptStarted]:
    (job,) = list_folders(folder / "state")
    records = [entry.record for entry in read_entries(job)]
    return {record.attempt: record for record in records if isinstance(record, AttemptStarted)}
