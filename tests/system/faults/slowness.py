"""Jobs whose ranks become slow when a test says so, and what their journal says of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recovery.journal.observation_records import SlowEnded, SlowExplained, SlowFound
from tests.support import forked_cli
from tests.support.eventually import eventually
from tests.system.faults.harness import JOBS, Job

LONGER_AFTER_S = 25.0  # a rank is named after four looks of 2 s
SLOWER_S = 0.2  # on a busy machine the steps of 30 ms take 100 ms, and vary by as much
_KINDS = (SlowFound, SlowExplained, SlowEnded)


@contextmanager
def running(folder: Path, script: str, world_size: int, *more: str, **flags: str) -> Iterator[Job]:
    """Run a job that `slow_down` makes slow, until the end of the block."""
    faults = folder / "faults"
    faults.mkdir(parents=True)
    is_own = script == "uneven.py"
    arguments = [f"--faults={faults}", *more] if is_own else [str(faults)]
    job = Job(folder, JOBS / script, arguments, world_size)
    job.flags = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    job.start()
    try:
        yield job
    finally:
        job.close()


def slow_down(job: Job, rank: object, section: str, seconds: float = SLOWER_S) -> None:
    """Lengthen this section of a rank's steps from now on; ``rank`` may be "all"."""
    (job.folder / "faults" / str(rank)).write_text(f"{section} {seconds}")


def _lengthen(job: Job, rank: int) -> None:
    """Double what a rank's section takes longer, where a test has made it slow so."""
    fault = job.folder / "faults" / str(rank)
    if fault.exists():
        section, _space, seconds = fault.read_text().partition(" ")
        slow_down(job, rank, section, 2 * float(seconds))


def make_well(job: Job) -> None:
    for path in (job.folder / "faults").iterdir():
        path.unlink()


@dataclass(frozen=True)
class Past:
    """How often a rank was named and explained before a test made it slow: load of the machine does that, too."""

    named: int = 0
    explained: int = 0


def past(job: Job, rank: int) -> Past:
    """Wait until a rank is not slow, and return what its journal already says of it."""

    def look() -> Past | None:
        of_rank = [sum(one.rank == rank for one in job.records(kind)) for kind in _KINDS]
        named, told, ended = of_rank
        return Past(named, told) if named == ended else None

    return eventually(look, f"rank {rank} is as fast as the others")


def found(job: Job, rank: int, section: str, since: Past = Past()) -> SlowFound:
    """Wait until a rank is named as slow in this section, and return the record.

    On a machine whose own noise hides it, the rank becomes slower again and again.
    """
    longer_at_s = time.monotonic() + LONGER_AFTER_S

    def look() -> SlowFound | None:
        nonlocal longer_at_s
        assert job.process is not None
        assert job.process.poll() is None, job.output
        if time.monotonic() >= longer_at_s:
            longer_at_s += LONGER_AFTER_S
            _lengthen(job, rank)
        named = [one for one in job.records(SlowFound) if one.rank == rank][since.named :]
        return next((one for one in named if one.section == section), None)

    return eventually(look, f"rank {rank} is named for its {section}")


def explained(job: Job, rank: int, since: Past = Past()) -> SlowExplained:
    """Wait until the journal says why a rank is slow, and return the record."""

    def look() -> SlowExplained | None:
        told = [one for one in job.records(SlowExplained) if one.rank == rank]
        return next(iter(told[since.explained :]), None)

    return eventually(look, f"why rank {rank} is slow is known")


def why(job: Job) -> str:
    """Return what `rankmend why` prints for the job."""
    return forked_cli.run("why", job.name, f"--state-dir={job.state}", check=True).stdout
