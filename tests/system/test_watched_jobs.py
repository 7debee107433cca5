"""Jobs of real launchers are watched without any change to their script: under Slurm's TaskProlog, and under mpirun."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.watch.hook_folder import make_hook_folder
from rankmend.watch.lines import WatchPlace, lines_for
from tests.support.eventually import DEADLINE_S
from tests.support.slurm import SlurmCluster, missing, slurm_cluster
from tests.support.torch_here import needs_torch

pytestmark = [pytest.mark.site, pytest.mark.torch]
ROOT = Path(__file__).resolve().parents[2]
DESCENT = ROOT / "tests/system/faults/jobs/descent.py"
# Trains, and then looks as an agent does, beside the other ranks: what it prints is what an agent sees.
SCRIPT = """
import datetime, json, os, subprocess, sys, time
import torch, torch.distributed as dist
from descent import Descent
rank, size = (int(os.environ[name]) for name in sys.argv[1:3])
meet = sys.argv[3] + os.environ.get("SLURM_RESTART_COUNT", "")
patience = datetime.timedelta(seconds=100)
dist.init_process_group("gloo", f"file://{meet}", patience, rank=rank, world_size=size)
model = torch.nn.Linear(4, 1)
optimizer = Descent(model.parameters())
for _step in range(6):
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.barrier()
if rank == 0:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": sys.argv[4]}
    subprocess.run([sys.executable, "-c", sys.argv[5]], env=environment, check=True, timeout=300)
dist.barrier()
time.sleep(0.5)  # gloo's threads let go of the last collective, else this may hang (pytorch#56297)
dist.destroy_process_group()
"""
LOOK = """
import json
from agent.ranks.watched import WatchedRanks
found = WatchedRanks().look()
told = [[job.name, job.user, job.launcher, job.slurm_job] for job in found.jobs]
steps = [[one.identity.rank, one.identity.world_size, one.job_name,
          one.reader.read(1e9, 8).step_count] for one in found.ranks]
print(json.dumps([told, steps]))
"""


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hook") / "hook"
    make_hook_folder(folder)
    return folder


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    needs_torch()
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    shutil.copy(DESCENT, tmp_path)
    return [sys.executable, str(path)]


def seen(out: str, name: str) -> tuple[list[list[str]], list[list[object]]]:
    """Return this job, and its ranks, of all that the agent saw."""
    jobs, ranks = json.loads(next(line for line in out.splitlines() if line.startswith("[[")))
    return [job for job in jobs if job[0] == name], [rank for rank in ranks if rank[2] == name]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, hook: Path) -> Iterator[SlurmCluster]:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cluster")
    prolog = folder / "task_prolog.sh"
    prolog.write_text(lines_for(WatchPlace.TASKPROLOG, str(hook)))
    prolog.chmod(0o755)
    (folder / "slurm").mkdir()
    with slurm_cluster(folder / "slurm", 2, TaskProlog=str(prolog)) as cluster:
        yield cluster


def test_each_job_of_a_slurm_cluster_is_watched_by_its_task_prolog(
    slurm: SlurmCluster, script: list[str], tmp_path: Path
) -> None:
    names = ["SLURM_PROCID", "SLURM_NTASKS", str(tmp_path / "meet"), str(ROOT), LOOK]

    done = slurm.run(
        "srun", "--nodes=2", "--ntasks-per-node=1", "--job-name=watched-by-prolog", *script, *names,
        OMP_NUM_THREADS="1",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr + slurm.logs()
    jobs, ranks = seen(done.stdout, "watched-by-prolog")
    ((_name, user, launcher, number),) = jobs
    assert (user, launcher) == ("root", "srun")
    assert int(number) > 0
    assert [rank[:2] for rank in ranks] == [[0, 2], [1, 2]]
    assert {rank[3] for rank in ranks} <= {5, 6}


def test_torchrun_in_an_sbatch_script_is_watched_and_the_batch_script_itself_is_not(
    slurm: SlurmCluster, script: list[str], tmp_path: Path
) -> None:
    names = ["RANK", "WORLD_SIZE", str(tmp_path / "meet"), str(ROOT), LOOK]
    words = " ".join(f"'{one}'" for one in [script[1], *names])
    (slurm.folder / "job.sh").write_text(
        "#!/bin/sh\n#SBATCH --nodes=1 --job-name=watched-torchrun --output=job.out\n"
        f"export OMP_NUM_THREADS=1\n{sys.executable} -c 'import torch.optim.optimizer'\n"
        f"srun {sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 {words}\n"
    )

    done = slurm.run("sbatch", "job.sh")

    submitted = done.stdout.split()[-1]
    state = slurm.wait_job(submitted)
    out = (slurm.folder / "job.out").read_text()
    assert state == "COMPLETED", out + slurm.logs()
    jobs, ranks = seen(out, "watched-torchrun")
    ((_name, user, launcher, number),) = jobs
    assert (user, launcher) == ("root", "torchrun")
    assert number == submitted
    assert [rank[:2] for rank in ranks] == [[0, 2], [1, 2]]


def test_job_of_open_mpi_is_watched(hook: Path, script: list[str], tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun (openmpi-bin)")
    names = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        str(tmp_path / "meet"),
        str(ROOT),
        LOOK,
    ]
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", *script, *names],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(hook),
            "RANKMEND_WATCH": "1",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    jobs, ranks = seen(done.stdout, "train.py")
    assert ["train.py", "root", "mpirun", ""] in jobs
    assert [rank[:2] for rank in ranks if rank[1] == 3] == [[0, 3], [1, 3], [2, 3]]
