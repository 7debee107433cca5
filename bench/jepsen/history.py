"""What a run has left behind: the journals, the orders that launchers saw, and the lives of their ranks. Values only."""

from dataclasses import dataclass, field

from recovery.journal.records import Entry


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A record with what the database keeps beside it."""

    entry: Entry
    writer: str  # the controller's start that wrote it
    lease_epoch: int  # the fencing token that it wrote with
    committed_unix_s: float  # by the database's clock: no controller's clock is in it


@dataclass(frozen=True, slots=True)
class WrittenJournal:
    name: str  # "job:UUID" or "cluster"
    entries: tuple[WrittenEntry, ...]
    damage: str = ""  # why it can't be read to its end


@dataclass(frozen=True, slots=True)
class SeenOrder:
    """An order as it reached a launcher, whether the launcher followed it or not."""

    at_unix_s: (
        float  # by this machine's clock, as all times of launchers; the database has the same one
    )
    job_id: str
    node: str
    launcher_id: str
    epoch: int
    controller_id: str
    revision: int
    attempt: int
    ranks: tuple[int, ...]
    is_followed: bool


@dataclass(frozen=True, slots=True)
class RankLife:
    """The ranks of one attempt on one node, from their start until the last of them was gone."""

    job_id: str
    node: str
    attempt: int
    ranks: tuple[int, ...]
    began_unix_s: float
    ended_unix_s: float | None  # None: they still run


@dataclass(frozen=True, slots=True)
class Limits:
    """The budgets that were in force. Sources: the policy file of the run."""

    restarts_max: int
    no_progress_max: int
    no_progress_any_max: int
    stops_per_hour_max: int
    moves_per_job_day_max: int


@dataclass(frozen=True, slots=True)
class History:
    limits: Limits
    journals: tuple[WrittenJournal, ...] = ()  # of jobs
    cluster: WrittenJournal = field(default_factory=lambda: WrittenJournal("cluster", ()))
    orders: tuple[SeenOrder, ...] = ()
    lives: tuple[RankLife, ...] = ()
