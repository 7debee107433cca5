"""Where the time of a simulated job went. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

SAVES = "checkpoints"  # what is lost to saves has no cause that is a fault


class RunPart(Enum):
    """The parts of the wall time; those of a recovery are the phases of MTTR (docs/operate/mttr.md)."""

    PRODUCTIVE = "productive"
    RECOMPUTED = "recomputed"
    CHECKPOINT = "checkpoint"
    SLOW = "slow"  # by how much steps took longer for a slow node
    SHRUNK = "shrunk"  # by how much steps took longer on fewer nodes
    STARTUP = "startup"
    DETECT = "detect"
    DECIDE = "decide"
    FENCE = "fence"
    RETRIES = "retries"
    PREPARE = "prepare"
    START = "start"
    RENDEZVOUS = "rendezvous"
    RESTORE = "restore"
    FIRST_STEP = "first_step"
    WAIT_NODES = "wait_nodes"
    WAIT_PERSON = "wait_person"


PHASES = (
    RunPart.DETECT,
    RunPart.DECIDE,
    RunPart.FENCE,
    RunPart.RETRIES,
    RunPart.PREPARE,
    RunPart.START,
    RunPart.RENDEZVOUS,
    RunPart.RESTORE,
    RunPart.FIRST_STEP,
)


@dataclass
class RunAccount:
    """What is added up while a job runs. Seconds of the whole job."""

    parts: dict[RunPart, float] = field(default_factory=lambda: defaultdict(float))
    losses: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by cause
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by cause
    mttr_s: list[float] = field(default_factory=list)  # of incidents that were recovered from
    moves: int = 0  # nodes left
    escalations: int = 0
    refusals: int = 0  # plans about training ranks that a budget refused
    spares_missing_s: float = 0.0  # with fewer usable nodes than the job needs
    spares_used_max: int = 0
    # for how long so many nodes could not be used
    out_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def spend(self, part: RunPart, seconds: float, cause: str) -> None:
        if seconds == 0:
            return
        self.parts[part] += seconds
        if part is not RunPart.PRODUCTIVE:
            self.losses[cause] += seconds


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One simulated run. Ratios are 0 to 1."""

    seed: int
    wall_s: float
    gpus: int
    parts_s: Mapping[str, float]
    lost_gpu_hours: Mapping[str, float]  # by cause
    failures: Mapping[str, int]  # incidents by cause
    mttr_s: float | None  # mean, fault to first step, waits included
    moves: int
    escalations: int
    refusals: int
    availability_ratio: float  # share of the time with as many usable nodes as the job needs
    spares_used_max: int
    out_s: Mapping[int, float]  # for how long so many nodes could not be used

    @property
    def ettr_ratio(self) -> float:
        """Effective training time ratio: productive time by wall time (docs/reference/goodput.md).

        The job never ends in a simulation, so goodput is the same.
        """
        return self.parts_s.get(RunPart.PRODUCTIVE.value, 0.0) / self.wall_s

    @property
    def incidents(self) -> int:
        return sum(self.failures.values())

    @property
    def lost_gpu_hours_total(self) -> float:
        return sum(self.lost_gpu_hours.values())


def outcome_of(account: RunAccount, seed: int, wall_s: float, gpus: int) -> RunOutcome:
    hours = gpus / 3600.0
    mean_s = sum(account.mttr_s) / len(account.mttr_s) if account.mttr_s else None
    return RunOutcome(
        seed,
        wall_s,
        gpus,
        {part.value: account.parts[part] for part in RunPart if account.parts.get(part)},
        {cause: lost_s * hours for cause, lost_s in sorted(account.losses.items())},
        dict(sorted(account.failures.items())),
        mean_s,
        account.moves,
        account.escalations,
        account.refusals,
        1.0 - account.spares_missing_s / wall_s,
        account.spares_used_max,
        dict(sorted(account.out_s.items())),
    )
