"""A process of a real Slurm job is known by the job's number, name and user, as the agent looks for them."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.agent import ROOT
from tests.support.slurm import missing, slurm_cluster

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(missing()), reason=missing())]
LOOK = """
import sys
from pathlib import Path
from agent.jobs.processes import read_process
job, uid = read_process(Path("/proc"), int(sys.argv[1]))
print(job.slurm_job, job.job_name, uid)
"""


def test_process_of_a_slurm_job_is_known_by_number_name_and_user(tmp_path: Path) -> None:
    with slurm_cluster(tmp_path, 1) as cluster:
        # Looked at from outside its environment. The exit keeps bash from turning into the one that looks.
        told = cluster.run(
            *("srun", "--job-name=llama", "--chdir=/", "bash", "-c"),
            'echo $SLURM_JOB_ID; cd "$2"; env -i PATH="$PATH" "$0" -c "$1" $$; exit $?',
            *(sys.executable, LOOK, str(ROOT)),
        )

    assert told.returncode == 0, told.stderr
    number, seen = told.stdout.splitlines()
    assert seen == f"{number} llama {os.getuid()}"
