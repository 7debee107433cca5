"""Hugging Face Trainer and Lightning on the GPU, unchanged: killed in mid-training, they go on and end as if undisturbed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.rows import NotTriedError, Telling, Trial

LIMIT_S = 100.0
CLAIMS = {
    "trainer_checkpoint": "Hugging Face Trainer, killed, goes on from its own checkpoint and ends with the same parameters.",
    "trainer_snapshot": "Hugging Face Trainer, killed, goes on from the snapshot in memory and ends with the same parameters.",
    "lightning_checkpoint": "Lightning, killed, goes on from its own checkpoint and ends.",
    "lightning_snapshot": "Lightning, killed, goes on from the snapshot in memory and ends with the same parameters.",
}
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "frameworks"
STEPS = 150
EVERY = 2  # steps between snapshots: none of the checkpoints, of steps 10, 20 and so on, is newer
RUN_S_MAX = 80.0
POLL_S = 0.01
MARK = "BENCH_GPU_FOLDER"


@dataclass(frozen=True, slots=True)
class Framework:
    script: str
    arguments: tuple[str, ...]
    needs: str
    saved: str  # what its checkpoints are called
    is_exact: bool = True  # its checkpoints say which batches were trained on


FRAMEWORKS = {
    "trainer": Framework(
        "hf_trainer.py",
        ("--resume_from_checkpoint", "{checkpoint}"),
        "transformers",
        "checkpoint-*",
    ),
    "lightning": Framework(
        "lightning_fit.py",
        ("--ckpt_path", "{checkpoint}"),
        "lightning",
        "*step=*.ckpt",
        is_exact=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Ended:
    finals: tuple[str, ...]
    incidents: Sequence[dict[str, object]]
    output: str


def run(telling: Telling) -> None:
    """Try the rows of this area; the runs of a framework share the GPU."""
    for name, framework in FRAMEWORKS.items():
        with telling.rows(f"{name}_checkpoint", f"{name}_snapshot") as (checkpoint, snapshot):
            try_framework(framework, checkpoint, snapshot)


def try_framework(framework: Framework, checkpoint: Trial, snapshot: Trial) -> None:
    missing = subprocess.run(
        [sys.executable, "-c", f"import {framework.needs}"], capture_output=True, check=False
    )
    if missing.returncode:
        raise NotTriedError(f"{framework.needs} is not installed")
    folder = Path(tempfile.mkdtemp(prefix="rankmend-gpu-"))
    try:
        with ThreadPoolExecutor(3) as pool:
            runs = [
                pool.submit(run_job, framework, folder / "undisturbed", kills=False),
                pool.submit(run_job, framework, folder / "checkpoint", kills=True),
                pool.submit(run_job, framework, folder / "snapshot", kills=True, every=EVERY),
            ]
            undisturbed, *killed = (one.result() for one in runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not undisturbed.finals:
        raise RuntimeError(f"the undisturbed run did not end: {undisturbed.output[-300:]}")
    for row, ended, tier in zip(
        (checkpoint, snapshot), killed, ("checkpoint", "memory"), strict=True
    ):
        row.check(ended.finals, "it did not end")
        if framework.is_exact or row is snapshot:
            equal = ended.finals == undisturbed.finals
            row.check(equal, f"{ended.finals} for {undisturbed.finals}")
        row.check(len(ended.incidents) == 1, f"{len(ended.incidents)} incidents")
        if not ended.finals:
            row.note(ended.output[-300:])
        for one in ended.incidents:
            row.figure("restored from", one["restored_from"])
            row.figure("restored step", one["restored_step"])
            row.figure("steps recomputed", one["steps_recomputed"])
            row.figure("kill to progress, s", one["total_s"])
            row.check(tier in str(one["restored_from"]), f"not from {tier}")


def run_job(framework: Framework, folder: Path, *, kills: bool, every: int = 0) -> Ended:
    """Run the example to its end, killing its rank once where asked."""
    folder.mkdir(parents=True)
    saves = folder / "saves"
    state = f"--state-dir={folder / 'state'}"
    start = [sys.executable, "-c", "from rankmend.cli import main; main()"]
    command = [*start, "run", "--standalone", "--job=gpu", state, f"--checkpoint-dir={saves}"]
    command += [str(EXAMPLES / framework.script), f"--steps={STEPS}", f"--folder={saves}"]
    command += [*framework.arguments, *([f"--snapshot-every={every}"] if every else [])]
    output = folder / "output"
    environment = {
        **os.environ,
        MARK: str(folder),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HF_HUB_OFFLINE": "1",
    }
    with output.open("wb") as file:
        launcher = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
        end_s = time.monotonic() + RUN_S_MAX
        try:
            while kills and launcher.poll() is None and time.monotonic() < end_s:
                if len(list(saves.glob(framework.saved))) >= 2:  # of which the first is whole
                    kill_rank(folder)
                    break
                time.sleep(POLL_S)
            launcher.wait(max(1.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            launcher.terminate()
            launcher.wait(20)
        finally:
            launcher.kill()
    told = subprocess.run(
        [*start, "incidents", state, "--json"], capture_output=True, text=True, check=False
    )
    text = output.read_text(errors="replace")
    finals = tuple(line.partition("final ")[2] for line in text.splitlines() if "final " in line)
    incidents = json.loads(told.stdout)["incidents"] if told.returncode == 0 else []
    return Ended(finals, incidents, text)


def kill_rank(folder: Path) -> None:
    """Kill rank 0, by what its environment says."""
    wanted = {f"{MARK}={folder}".encode(), b"RANK=0"}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted <= set(path.read_bytes().split(b"\0")):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue  # gone, or another user's
