"""Jobs of each framework, as the README's table starts them, killed at the worst moments.

One job a framework, each of whose attempts but the last is killed at another point. No attempt
begins at zero that need not, each begins from the newest checkpoint that was whole, and the trained
parameters are those of an undisturbed run. docs/use/frameworks.md has the table of points.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from recovery.journal.attempt_records import AttemptStarted
from recovery.report.overview import list_folders, read_entries
from tests.support.framework_saves import require

pytestmark = [pytest.mark.real, pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
KILLS = ROOT / "tests" / "support" / "faults" / "checkpoint_kills.py"
TIMEOUT_S = 600


@dataclass(frozen=True)
class Framework:
    """A row of the README's table, and the point at which each attempt is killed."""

    script: str
    folder: str
    resume: str
    kills: tuple[tuple[object, ...], ...]  # at most one an attempt, the first first
    restored: tuple[int | None, ...]  # steps that attempts begin from, one after the other
    needs: str = "torch"
    is_deterministic: bool = True


# Killed: at the start, in the middle of a file, between two files, before the last file of a save,
# while an old checkpoint is removed, while the checkpoint is loaded.
WHOLE_SAVES = (None, 10, 20, 30, 40)

FRAMEWORKS = {
    "ddp": Framework(
        "ddp.py",
        "ckpt",
        "--resume",
        (
            ("start",),
            (r"^save .*step_20", 1, "half"),
            (r"^save .*step_30",),
            (r"^os.rename .*step_40",),
            (r"^os.remove .*step_20",),
            (r"^read .*step_40",),
        ),
        WHOLE_SAVES,
    ),
    "fsdp2": Framework(
        "fsdp2.py",
        "ckpt",
        "--resume",
        (
            ("start",),
            (r"^write .*step_20/__0_0",),
            (r"^write .*step_30/.metadata",),
            (r"^os.rename .*step_40/.metadata",),
            (r"^os.remove __",),
            (r"^read .*step_40",),
        ),
        WHOLE_SAVES,
    ),
    "hf_trainer": Framework(
        "hf_trainer.py",
        "out",
        "--resume_from_checkpoint",
        (
            ("start",),
            (r"^save .*checkpoint-20/optimizer.pt", 1, "half"),
            (r"^save .*checkpoint-30/scheduler.pt",),
            (r"^write .*checkpoint-40/trainer_state.json",),
            (r"^os.remove optimizer.pt",),
            (r"^read .*checkpoint-40/optimizer.pt",),
        ),
        WHOLE_SAVES,
        "transformers",
    ),
    "accelerate": Framework(
        "accelerate_loop.py",
        "out",
        "--resume_from_checkpoint",
        (
            (r"^save .*step_20/model", 1, "half"),
            (r"^save .*step_30/custom_checkpoint",),
            (r"^os.remove optimizer.bin",),
            (r"^read .*step_30/optimizer",),
        ),
        (None, 10, 20, 30),
        "accelerate",
    ),
    "lightning": Framework(
        "lightning_fit.py",
        "ckpt",
        "--ckpt_path",
        (
            (r"^os.rename .*step=20",),
            (r"^os.rename .*last", 2),  # step=30 is whole, and last.ckpt still is of step 20
            (r"^os.remove .*step=",),
            (r"^read .*step=",),
        ),
        (None, 10, 30, 40),
        "lightning",
        is_deterministic=False,  # within an epoch it begins the data loader anew
    ),
}


def run(folder: Path, framework: Framework, kills: Sequence[Sequence[object]]) -> str:
    """Run the job as the README does; return the last word of rank 0."""
    folder.mkdir()
    (folder / framework.folder).mkdir()
    command = [sys.executable, "-m", "rankmend.cli", "run", "--standalone", "--nproc-per-node", "2"]
    command += ["--checkpoint-dir", framework.folder, str(KILLS), json.dumps(kills)]
    command += [str(ROOT / "examples" / "frameworks" / framework.script)]
    command += [framework.resume, "{checkpoint}"]
    environment = {
        **os.environ,
        "RANKMEND_STATE_DIR": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (final,) = [line for line in done.stdout.splitlines() if "final " in line]
    return final.rpartition("final ")[2]


def started(folder: Path) -> list[AttemptStarted]:
    (job,) = list_folders(folder / "state")
    records = [entry.record for entry in read_entries(job)]
    return [record for record in records if isinstance(record, AttemptStarted)]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_job_killed_at_each_point_goes_on_from_the_newest_whole_checkpoint(
    name: str, tmp_path: Path
) -> None:
    framework = FRAMEWORKS[name]
    require(framework.needs)
    final = run(tmp_path / "killed", framework, framework.kills)

    attempts = started(tmp_path / "killed")
    begun = [one.choice.restore and one.choice.restore.step for one in attempts]
    assert len(begun) > len(framework.kills)
    assert tuple(step for step, _same in groupby(begun)) == framework.restored, attempts
    if framework.is_deterministic:
        assert final == run(tmp_path / "undisturbed", framework, ())
