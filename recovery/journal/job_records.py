"""Records of a job as a whole: its starts, stops and end, its budgets, its journal."""

from dataclasses import dataclass
from enum import Enum

from recovery.messages.exchange import RankError, Stop, StopReason
from recovery.messages.outside import PersonCommand, Refusal


class OutcomeKind(Enum):
    DONE = "done"
    STOPPED = "stopped"
    TIME_LIMIT = "time_limit"
    ESCALATED = "escalated"


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended, and the launcher's exit code."""

    kind: OutcomeKind
    exit_code: int
    reason: str
    incident_id: str | None = None
    rank: int | None = None  # the first that failed
    error: RankError | None = None  # and its error
    is_observed: bool = False  # observe mode: a plan was there, and was not taken
    is_at_start: bool = (
        False  # the first attempt ended before any step, by an error of the program on all ranks
    )


@dataclass(frozen=True, slots=True)
class JobOpened:
    job_id: str
    name: str


@dataclass(frozen=True, slots=True)
class LauncherStarted:
    """rankmend started or resumed the job: the first time, after an end, or after its own death."""

    nodes: tuple[str, ...]
    world_size: int
    pid: int
    rankmend_version: str
    # epoch of this start, above all earlier ones; 0 from a version that did not count
    epoch: int = 0
    controller_id: str = ""
    # How long before this record the launcher before was last alive; None: not known.
    alive_age_s: float | None = None
    checkpoint_names: tuple[str, ...] = ()  # --checkpoint-name of this start


class ClaimProof(Enum):
    """Why a checkpoint folder may be taken from an owner that has not released it."""

    PROCESSES = "processes"  # same boot, and its launcher is gone
    LOCK = "lock"  # same boot, another container, and none of its processes holds its lock
    BOOT = "boot"  # its machine is this one, and was booted anew
    PERSON = "person"  # --take-over


@dataclass(frozen=True, slots=True)
class ClaimTaken:
    """The checkpoint folder was taken from an owner that had not released it."""

    owner: str  # job, process, host, since when
    proof: ClaimProof
    by: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The end of the job was requested; never an incident."""

    reason: str  # in words
    stop: Stop
    grace_s: float
    cause: StopReason = StopReason.PERSON


@dataclass(frozen=True, slots=True)
class PersonActed:
    """A person's command, and what was made of it."""

    command: PersonCommand
    result: str
    is_refused: bool = False
    refusal: Refusal | None = None  # None: obeyed, or refused by a rankmend that did not say it


@dataclass(frozen=True, slots=True)
class JobEnded:
    outcome: JobOutcome
    is_empty: bool  # every rank was proved gone


@dataclass(frozen=True, slots=True)
class BudgetsReset:
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class TailCut:
    """Opening the journal found an unfinished end and removed it."""

    first_number: int
    rows: int
    wal_frames: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordsLost:
    """The copy of the budgets knows more than the journal: the stricter of both goes on."""

    journal_number: int
    copy_number: int
    attempt: int
    restarts: int
    restarts_without_progress: int
    highest_step: int | None
    nodes: tuple[str, ...] = ()  # nodes of that attempt, by group rank
    has_lease: bool = False  # its launchers keep one
