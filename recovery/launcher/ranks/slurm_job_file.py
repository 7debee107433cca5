"""Ties a run's folder in shared memory to the Slurm job that its launcher runs in, for `rankmend cleanup`."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankmend.errors import LaunchError
from rankmend.files import replace_file

NAME: Final = "slurm-job"


def write_slurm_job(folder: Path, environment: Mapping[str, str]) -> None:
    """Write the job's number. A run that goes on outside of Slurm is no longer tied to the job before it."""
    job = environment.get("SLURM_JOB_ID", "")
    with contextlib.suppress(LaunchError, OSError):  # full: only the clean-up misses it
        if job.isdecimal():
            replace_file(folder / NAME, f"{job}\n".encode(), LaunchError, durable=False)
        else:
            (folder / NAME).unlink(missing_ok=True)
