"""Records of the journal of watched jobs: what a job of another launcher does from when on, as agents report it."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from recovery.journal.attempt_records import StepsSeen, WorkSeen


@dataclass(frozen=True, slots=True)
class WatchedSeen:
    """A job of another launcher; again at the beginning of each file of the journal."""

    job_id: str
    name: str
    user: str
    launcher: str
    slurm_job: str


@dataclass(frozen=True, slots=True)
class WatchedStood:
    """What a job does; written on a change, and now and then for its step. Ages are those at the look."""

    job_id: str
    look_age_s: float  # the look at the job was so long before the record
    state: str  # value of recovery.controller.watched.verdict.WatchedState
    age_s: float  # it has done this for so long
    devices: int  # its ranks
    run: int  # counts the sets of processes that the controller has seen since its start
    step: int | None = None  # the highest of these processes
    highest_before: int | None = None  # of processes before them; None: not known
    is_relative: bool = False  # its steps count from the start of the process
    step_s: float | None = None  # the usual step time
    youngest_age_s: float | None = None  # since its youngest process attached
    fault_age_s: float = 0.0  # of a job that hangs: since no rank has made a step
    ranks: tuple[int, ...] = ()  # that it waits for
    node: str = ""
    section: str = ""  # that is slow
    step_factor: float = 0.0  # by which every step is longer; 0: not known


@dataclass(frozen=True, slots=True)
class WatchedWorked:
    """What a job's ranks have reported of their work, and what they spent their steps on, since the record before."""

    job_id: str
    look_age_s: float  # the look at the job was so long before the record
    run: int
    work: WorkSeen | None = None  # None: they reported none
    steps: StepsSeen | None = None  # None: they tell no sections


@dataclass(frozen=True, slots=True)
class WatchedResumed:
    """A controller follows watched jobs again."""

    alive_age_s: float | None  # the one before was alive so long ago; None: not known


WatchedTimeRecord: TypeAlias = WatchedSeen | WatchedStood | WatchedWorked | WatchedResumed

WATCHED_KINDS: Final[dict[str, type[WatchedTimeRecord]]] = {
    "watched_seen": WatchedSeen,
    "watched_stood": WatchedStood,
    "watched_worked": WatchedWorked,
    "watched_resumed": WatchedResumed,
}
