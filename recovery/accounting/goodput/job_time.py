"""A job's time as its journal tells it: spans, attempts, incidents, slow ranks. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from recovery.accounting.goodput.timeline import TimePart, TimeSpan
from recovery.journal.accounting import Account
from recovery.journal.attempt_records import AttemptResult, Cause, HiddenSeen
from recovery.messages.exchange import NodeKinds


@dataclass(frozen=True, slots=True)
class AttemptTime:
    """One attempt. Seconds since the job's first record; None: not reached, or not known."""

    attempt: int
    cause: Cause
    ordered_s: float
    devices: int
    nodes: tuple[str, ...]
    begins_at_step: int | None
    first_step_s: float | None = None  # its slowest rank ended its first step
    highest_step: int | None = None
    ended_s: float | None = None
    result: AttemptResult | None = None


@dataclass(frozen=True, slots=True)
class IncidentTime:
    """One incident: its account, and when the fault happened."""

    account: Account
    fault_s: float
    opened_s: float


@dataclass(frozen=True, slots=True)
class StallTime:
    """A failure of a watched job: it hung, or its ranks ended and were started again."""

    stall_id: str
    kind: str  # hung, restarted
    ranks: tuple[int, ...]  # that it waited for
    node: str
    begin_s: float
    recovered_s: float | None = None  # when it trained again; None: it never did


class StallOutcome(Enum):
    OPEN = "open"
    RECOVERED = "recovered"
    ENDED = "ended"  # with the job, of which nobody saw that it trained again


def stall_outcome(recovered_s: float | None, *, has_ended: bool) -> StallOutcome:
    """Return what came of a failure. ``recovered_s``: when the job trained again; ``has_ended``: the job has."""
    if recovered_s is not None:
        return StallOutcome.RECOVERED
    return StallOutcome.ENDED if has_ended else StallOutcome.OPEN


@dataclass(frozen=True, slots=True)
class SlowTime:
    """A rank that made every step of the job longer for a while."""

    attempt: int
    rank: int
    node: str
    section: str
    step_factor: float
    begin_s: float
    end_s: float
    cause: str = ""  # from detectors.slow.cause_table; empty: not known


@dataclass(frozen=True, slots=True)
class WorkTime:
    """Work that ranks reported, and in which time."""

    begin_s: float
    end_s: float
    ranks: int
    flops: float
    tokens: float
    samples: float
    data_type: str
    device: str

    @property
    def device_s(self) -> float:
        return (self.end_s - self.begin_s) * self.ranks


@dataclass(frozen=True, slots=True)
class StepsTime:
    """What ranks spent steps on. Seconds, of all these ranks together."""

    end_s: float
    attempt: int
    ranks: int
    steps: int  # of all ranks together
    step_s: float
    compute_s: float
    communication_s: float
    waited_s: float
    io_s: float
    checkpoint_s: float
    hidden_communication: HiddenSeen | None = None
    hidden_io: HiddenSeen | None = None


@dataclass(frozen=True, slots=True)
class JobTime:
    job_id: str
    name: str
    began_unix_s: float  # of the first record
    spans: tuple[TimeSpan, ...]  # without gap or overlap
    attempts: tuple[AttemptTime, ...]
    incidents: tuple[IncidentTime, ...]
    slow: tuple[SlowTime, ...]
    work: tuple[WorkTime, ...] = ()
    steps: tuple[StepsTime, ...] = ()
    kinds: Mapping[str, NodeKinds] = field(default_factory=dict)  # hardware by node
    is_watched: bool = False  # another launcher has started it
    stalls: tuple[StallTime, ...] = ()  # of a watched job
    has_ended: bool = False  # of a watched job

    @property
    def begin_s(self) -> float:
        """Return when its time begins; above 0 where only the newest part of it was requested."""
        return self.spans[0].begin_s if self.spans else 0.0

    @property
    def length_s(self) -> float:
        return self.spans[-1].end_s - self.spans[0].begin_s if self.spans else 0.0

    def seconds_of(self, part: TimePart) -> float:
        return sum(span.length_s for span in self.spans if span.part is part)
