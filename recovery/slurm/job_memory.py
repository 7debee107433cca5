"""What a running controller remembers of a job that it requeues; a restart begins it anew, which only costs the pause."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery.slurm.answers import JobInSlurm


@dataclass(slots=True)
class RequeueMemory:
    pending_unix_s: float | None = None  # since when it is seen to be PENDING and held
    was_held: bool = False
    has_let_go: bool = False
    unknown_unix_s: float | None = None  # since when Slurm does not know the job

    def look(self, jobs: Sequence[JobInSlurm], now_unix_s: float, *, is_let_go: bool) -> None:
        """Take in what Slurm tells now; ``is_let_go``: we have let it start."""
        job = jobs[0] if len(jobs) == 1 else None
        if jobs:
            self.unknown_unix_s = None
        elif self.unknown_unix_s is None:
            self.unknown_unix_s = now_unix_s
        if job is None or not job.is_held or "COMPLETING" in job.flags:
            self.pending_unix_s = None
            self.has_let_go = is_let_go and job is not None
            return
        self.was_held = True
        if self.pending_unix_s is None:
            self.pending_unix_s = now_unix_s


def output_mark(path: str) -> str:
    """Return what changes once the job writes to its output; empty where that can't be seen from here."""
    if not path:
        return ""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return "absent" if Path(path).parent.is_dir() else ""
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"
