"""The jobs of each GPU by NVIDIA's job-mapping folder, which a site's prolog and epilog write.

Source: dcgm-exporter, `--hpc-job-mapping-dir` (internal/pkg/transformation/hpc.go): a file for each GPU, named by
        its index, with one job a line. A GPU's or MIG instance's UUID is taken as a name, too.

A line of digits is Slurm's number of a job; another scheduler's id goes to `job_id`.
"""

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from agent.jobs.gpu_job import JOBS_OF_GPU_MAX, GpuJob
from agent.sources.regular_file import read_regular
from rankmend.errors import NoSourceError, SourceError

DEFAULT: Final = Path("/var/run/nvidia/job-mapping")
FILES_MAX: Final = 1024  # 64 GPUs with 7 MIG instances each, and room
_BYTES_MAX: Final = 4096
_FILE: Final = re.compile(r"[0-9]{1,3}|(?:GPU|MIG)-[0-9A-Za-z_-]{1,100}")
_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@\[\]-]{0,99}")
_SLURM_JOB: Final = re.compile(r"[1-9][0-9]{0,9}")


def parse(data: bytes) -> tuple[GpuJob, ...]:
    """Return the jobs in one file, or raise SourceError for a line that names none."""
    jobs = []
    for line in data.decode("utf-8", errors="replace").splitlines():
        text = line.strip()
        if not text:
            continue
        if not _JOB.fullmatch(text):
            raise SourceError(f"not a job id: {text[:100]!r}")
        jobs.append(GpuJob(slurm_job=text) if _SLURM_JOB.fullmatch(text) else GpuJob(job_id=text))
    return tuple(jobs[:JOBS_OF_GPU_MAX])


def read_job_map(folder: Path) -> tuple[Mapping[str, tuple[GpuJob, ...]], str]:
    """Return the jobs by GPU index or UUID, and what is wrong with a file (empty: nothing).

    Raise NoSourceError where there is no such folder, SourceError where it can't be read.
    """
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in islice(entries, FILES_MAX) if _FILE.fullmatch(e.name)]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoSourceError(f"no folder {folder}") from error
    except OSError as error:
        raise SourceError(f"cannot read {folder}: {error.strerror}") from error
    jobs: dict[str, tuple[GpuJob, ...]] = {}
    problem = ""
    for name in sorted(names):
        try:
            jobs[name] = parse(read_regular(folder / name, _BYTES_MAX))
        except NoSourceError:  # the epilog has just removed it
            continue
        except SourceError as error:
            problem = f"{folder / name}: {error}"
    return jobs, problem
