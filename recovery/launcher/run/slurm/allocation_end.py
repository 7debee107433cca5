"""Stops a job ahead of the end of its Slurm allocation, so that the ranks can save.

At the time limit Slurm sends SIGTERM to every process of a step, also to the workers of data loaders, whose death ends their rank
before it has saved (slurm.conf(5), KillWait; `--signal` without `B:` does the same, sbatch(1)). So the launcher stops the job by
itself, as at `--time-limit`, a grace before that.

Only the first node of a step asks Slurm: a stop there stops the whole job. A limit can be changed while the job runs, so it is read
again before it is believed. Where no answer comes, as in a container without Slurm's commands, the end that Slurm foresaw as the job
began counts (SLURM_JOB_END_TIME, srun(1)).
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import ConfigError, RankmendError
from recovery.launcher.run.slurm.step import read_step
from recovery.schedulers.slurm.answers import JobInSlurm, duration_s
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmCommands

COMMAND_S_MAX: Final = 10.0
MARGIN_S: Final = (
    10.0  # for the controller's order, and Slurm's own clock: it looks every 30 s, and late
)
LEAD_SHARE: Final = 0.1  # of what was left at the start: a short job isn't stopped as it begins
LOOK_S: Final = 600.0  # between two looks at least so often: a limit can be made shorter
SOON_S: Final = 30.0  # between two looks where Slurm does not answer


def left_s(job: JobInSlurm) -> float | None:
    """Return for how long a job may still run; None: without a limit, or not known."""
    limit_s = duration_s(job.fields.get("TimeLimit", ""))
    return None if not limit_s or not job.is_live else float(limit_s - job.run_s)


def lead_s(grace_s: float, left_at_start_s: float) -> float:
    """Return how long before the end to stop the job."""
    return min(grace_s + MARGIN_S, LEAD_SHARE * left_at_start_s)


class AllocationEnd:
    """Watches the end of the allocation, and asks for the stop once."""

    def __init__(
        self,
        client: SlurmClient,
        number: str,
        grace_s: float,
        clock: Clock,
        stop: Callable[[], None],
        foreseen: str = "",
    ) -> None:
        """``stop`` is called from another thread. ``foreseen``: the end by the environment, in Unix seconds."""
        self._client = client
        self._number = number
        self._grace_s = grace_s
        self._clock = clock
        self._stop = stop
        self._foreseen_unix_s = float(foreseen) if foreseen.isdecimal() else None
        self._lead_s: float | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="allocation end")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the watch; a command to Slurm that hangs is left behind."""
        self._is_closed.set()

    def _watch(self) -> None:
        while not self._is_closed.is_set():
            pause_s = self.look()
            if pause_s is None:
                self._stop()
                return
            self._is_closed.wait(pause_s)

    def look(self) -> float | None:
        """Look at the time left, and return when to look again; None: it is time to stop."""
        try:
            jobs = self._client.jobs(self._number)
            left = None if len(jobs) != 1 else left_s(jobs[0])
        except RankmendError:
            if self._foreseen_unix_s is None:
                return SOON_S
            left = self._foreseen_unix_s - self._clock.unix_s()
        if left is None:
            return LOOK_S
        if self._lead_s is None:
            self._lead_s = lead_s(self._grace_s, left)
        due_s = left - self._lead_s
        return None if due_s <= 0 else min(due_s, LOOK_S)


def job_to_watch(environment: Mapping[str, str]) -> str | None:
    """Return the number of the Slurm job whose end this process watches; None: none, or another node does."""
    number = environment.get("SLURM_JOB_ID", "")
    try:
        step = read_step(environment)
    except ConfigError:
        return None
    is_other = step is not None and not step.is_first
    return number if number.isdecimal() and not is_other else None


def watch_end(
    environment: Mapping[str, str], grace_s: float, clock: Clock, stop: Callable[[], None]
) -> AllocationEnd | None:
    """Start the watch where this process is to keep it; ``stop`` is called from its thread."""
    number = job_to_watch(environment)
    if number is None:
        return None
    client = SlurmClient(SlurmCommands(COMMAND_S_MAX, environment))
    foreseen = environment.get("SLURM_JOB_END_TIME", "")
    watch = AllocationEnd(client, number, grace_s, clock, stop, foreseen)
    watch.start()
    return watch
