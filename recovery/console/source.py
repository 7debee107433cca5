"""What the console's pages are made from, and what they can have done."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rankmend.errors import RankmendError
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.readings.reading import NodeReading
from recovery.api import wire
from recovery.console.acts import EVERYTHING, AskedAct, MayAct
from recovery.journal.records import Entry


class PageError(RankmendError):
    """A page can't be shown, or an act was refused; with the HTTP status that says so."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a page."""

    name: str
    peer: str  # address
    sees: Hashable  # what decides what the viewer may see: equal for viewers who see the same
    may_read: bool = True
    has_act: bool = False  # the right to act
    reach: MayAct = EVERYTHING  # on what, with that right
    csrf: str = ""  # goes with each form; empty: this viewer can't act
    is_signed_in: bool = False
    how: str = ""  # by which token
    subject: object = None  # for the source that made it

    @property
    def may_act(self) -> bool:
        return self.has_act and bool(self.csrf)

    @property
    def may(self) -> MayAct:
        return self.reach if self.may_act else MayAct()

    @property
    def sight(self) -> Hashable:
        """Return what a page for this viewer depends on, but for the name in its frame."""
        return self.sees, self.may


@dataclass(frozen=True, slots=True)
class JobRecords:
    """The journal of one job."""

    job_id: str
    name: str
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class PastJob:
    """What is known of an ended job without a look at its journal."""

    job_id: str
    name: str
    owner: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class RankTail:
    """The newest lines that a failed rank printed, as its launcher saved them with the incident."""

    rank: int
    stream: str  # stdout or stderr
    path: str
    lines: tuple[str, ...]


class Source(Protocol):
    """A controller or a state folder. Every method refuses with PageError what the viewer may not see."""

    @property
    def title(self) -> str:
        """Return what the pages are about, in a few words."""
        ...

    @property
    def is_controller(self) -> bool: ...
    @property
    def own_node(self) -> str:
        """Return this machine's name among the nodes; empty where people look from elsewhere."""
        ...

    async def jobs(self, viewer: Viewer) -> list[wire.JobView]:
        """Return the jobs that have not ended."""
        ...

    async def ended(self, viewer: Viewer) -> list[PastJob]:
        """Return the jobs that have ended, the newest first."""
        ...

    async def job(self, viewer: Viewer, job_id: str) -> wire.JobDetail: ...
    async def ranks(self, viewer: Viewer, job_id: str) -> wire.RankMap: ...
    async def nodes(self, viewer: Viewer) -> list[wire.NodeView]: ...
    async def known_nodes(self, viewer: Viewer) -> list[str]:
        """Return the nodes that are configured, whether a job uses them or not."""
        ...

    async def cluster(self, viewer: Viewer) -> wire.Cluster: ...
    async def plans(self, viewer: Viewer) -> list[wire.PlanView]: ...
    async def watched(self, viewer: Viewer) -> list[wire.WatchedView]: ...
    async def slurm(self, viewer: Viewer) -> wire.SlurmView | None:
        """Return what was requested of Slurm; None where there is none, or it is not for this viewer."""
        ...

    async def kubernetes(self, viewer: Viewer) -> wire.SlurmView | None:
        """Return the same of Kubernetes, with the states of nodes there."""
        ...

    async def incidents(self, viewer: Viewer) -> list[wire.IncidentView]:
        """Return the newest incidents of all jobs, newest first."""
        ...

    async def records(self, viewer: Viewer, wanted: str) -> JobRecords:
        """Return the journal of a job, named by its UUID or by one of its incidents."""
        ...

    async def readings(self, viewer: Viewer, incident: str) -> Sequence[NodeReading]:
        """Return what the agents of an incident's blamed nodes said, oldest first."""
        ...

    async def tails(self, viewer: Viewer, incident: str) -> Sequence[RankTail]:
        """Return what the failed ranks printed last, where the files lie on this machine."""
        ...

    async def cluster_records(self, viewer: Viewer) -> Sequence[Entry]: ...
    async def time(self, viewer: Viewer, job_id: str) -> JobTime | None: ...
    def revision(self) -> str:
        """Return a text that changes when anything is journaled. Costs next to nothing."""
        ...

    async def act(self, viewer: Viewer, requested: AskedAct) -> str:
        """Have it done, and return what was done in a sentence."""
        ...
