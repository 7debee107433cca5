"""What the service asks of the place where its jobs are kept: a folder (`stored_jobs`) or PostgreSQL (`postgres_jobs`)."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from rankmend.clock import Clock
from recovery.api.wire import Join
from recovery.journal.job_records import JobOutcome
from recovery.journal.open_journal import OpenJournal
from recovery.journal.pen import Committer
from recovery.journal.records import Entry
from recovery.journal.stored_journal import StoredJournal, Written
from recovery.schedulers.slurm.desk_lease import DeskLease

if TYPE_CHECKING:
    from recovery.service.controller_config import Config
    from recovery.service.shared_words import WordStore
    from recovery.service.sign_in.console_sessions import SessionStore

FILE_BYTES_MAX: Final = 1024 * 1024
SLURM: Final = "slurm"
KUBERNETES: Final = "kubernetes"
DESKS: Final = (SLURM, KUBERNETES)  # by the names of their journals


class StoredJob(msgspec.Struct, frozen=True):
    """What the controller stores about a job beside its journal."""

    owner: str  # subject of the token
    secret: str
    join: Join  # by the first launcher of the newest run
    # prefix of its incidents' ids; empty from older controllers: the UUID's first block
    incident_prefix: str = ""


class Ended(msgspec.Struct, frozen=True):
    unix_s: float
    outcome: JobOutcome
    runs: list[str]  # that have ended with it
    launchers: list[str]  # that took part: one that joins again does not start the job again


def encode_over(stored: StoredJob, before: bytes) -> bytes:
    """Return the stored form, with the fields of the form before that only a newer rankmend knows."""
    try:
        known = msgspec.json.decode(before, type=dict[str, msgspec.Raw]) if before else {}
    except msgspec.DecodeError:
        known = {}
    newer = {name: item for name, item in known.items() if name not in StoredJob.__struct_fields__}
    made = msgspec.json.decode(msgspec.json.encode(stored), type=dict[str, msgspec.Raw])
    return msgspec.json.encode(newer | made)


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """A job as it was found at the start."""

    journal: StoredJournal
    job_id: str
    stored: StoredJob
    ended: Ended | None


# The other controllers of one database. Values only: each picture is replaced as a whole.


@dataclass(frozen=True, slots=True)
class OtherController:
    """Another controller whose leases hold."""

    controller_id: str
    name: str  # of its host
    url: str
    secret: str = field(
        default="", repr=False
    )  # that it asks of peers; empty: an older one, which answers none
    certificate: str = ""  # SHA-256 of it, in hexadecimal; empty: no TLS

    @property
    def title(self) -> str:
        return f"{self.name} ({self.url})" if self.url else self.name


@dataclass(frozen=True, slots=True)
class JobElsewhere:
    """A job that has not ended and that this controller does not manage."""

    found: FoundJobs
    holder: str  # controller_id; empty: no controller that lives has it


@dataclass(frozen=True, slots=True)
class ControllerFleet:
    peers: Mapping[str, OtherController] = field(default_factory=dict)  # by controller_id
    jobs: Mapping[str, JobElsewhere] = field(default_factory=dict)  # by job id
    ended: Mapping[str, FoundJobs] = field(
        default_factory=dict
    )  # that others have ended since the start
    desks: Mapping[str, str] = field(
        default_factory=dict
    )  # name of a desk -> controller_id of who works on it


ALONE: Final = ControllerFleet()


class JobHold(Protocol):
    """A job that this controller alone manages, until it is closed."""

    @property
    def job_id(self) -> uuid.UUID: ...

    @property
    def stored_journal(self) -> StoredJournal: ...

    def open_journal(self, clock: Clock, *, uses_snapshot: bool = False) -> OpenJournal:
        """Open the journal for writing; JobHeldError: another controller has the job by now.

        ``uses_snapshot``: it may give only what follows a snapshot of its fold (`recovery.journal.fold_snapshot`).
        """
        ...

    def save(self, stored: StoredJob) -> None:
        """Keep what is known of the job; it is running from now on."""
        ...

    def save_end(self, ended: Ended) -> None: ...

    def close(self) -> None:
        """Let go of the job."""
        ...


class StoreCommitter(Committer, Protocol):
    def close(self) -> None:
        """End its threads; no pen is written any more."""
        ...


class JobStore(Protocol):
    """All jobs, and what they share. For the deciding thread, but where it says so."""

    @property
    def path(self) -> Path:
        """Return the folder for what is this controller's own."""
        ...

    def dating(self, clock: Clock) -> Clock:
        """Return the clock that dates records: the same for all controllers that share them. ``clock``: this host's."""
        ...

    def find(self) -> tuple[list[FoundJobs], list[str]]:
        """Return the jobs that are kept and that no other controller manages, and what is wrong with others."""
        ...

    def find_one(self, owner: str, join: Join) -> FoundJobs | None:
        """Return a job that may have come by another controller; None where there is no other."""
        ...

    def refuse_held(self, found: FoundJobs) -> None:
        """Raise HeldByOtherError where another controller manages the job."""
        ...

    def freed(self) -> Iterable[FoundJobs]:
        """Return running jobs that no controller managed any more and that are this one's now, each once."""
        ...

    def give_up(self, found: FoundJobs) -> None:
        """Leave a freed job that is not opened to whoever takes it next."""
        ...

    @property
    def leaving(self) -> frozenset[str]:
        """Return the jobs of this controller that it is to let go, so that others have their share."""
        ...

    def note_silence(self, silent_s: float | None) -> None:
        """Record how long ago the newest report of any job here came; None: there is no job here."""
        ...

    def note_join(self) -> None:
        """Record that a launcher has got through with a join."""
        ...

    @property
    def generation(self) -> int:
        """Return a number that changes when this controller may have lost its jobs to others."""
        ...

    @property
    def fleet(self) -> ControllerFleet:
        """Return what is known of the other controllers. For any thread."""
        ...

    @property
    def peer_secret(self) -> str:
        """Return what another controller must know to speak for people here; empty where there is none."""
        ...

    def tell_peers(self, config: "Config") -> None:
        """Let other controllers know by which certificate this one answers. Not for the event loop."""
        ...

    def open(self, owner: str, join: Join, unix_s: float, *, is_together: bool = False) -> JobHold:
        """Make or open a job and hold it.

        Together with others: what its journal gets may be durable only after `write_held`.
        """
        ...

    def write_held(self) -> Mapping[str, Exception]:
        """Make all durable that jobs opened together have in their journals; return those that must be opened again, and why."""
        ...

    def remove(self, found: FoundJobs) -> None:
        """Remove an ended job for good."""
        ...

    def committer(self, clock: Clock, note_commit: Callable[[float], None]) -> StoreCommitter:
        """Return what writes the jobs' journals beside the deciding thread. ``note_commit`` receives how long each commit took."""
        ...

    def open_cluster(self, clock: Clock) -> OpenJournal: ...

    def read_cluster(self) -> tuple[Entry, ...]:
        """Return the cluster's journal. For any thread."""
        ...

    def open_desk(self, name: str, clock: Clock) -> tuple[OpenJournal, DeskLease | None]:
        """Open the journal of requests to what gives out nodes, SLURM or KUBERNETES, and the lease of who works on it; None: it is this one's own."""
        ...

    def lease_left_s(self) -> float:
        """Return for how long this controller may act at least, if it hears nothing more. For any thread."""
        ...

    def written(self, journals: Sequence[StoredJournal]) -> list[Written]:
        """Return how far each of these journals of jobs was written. For any thread."""
        ...

    @property
    def words(self) -> "WordStore | None":
        """Return where agents' words on jobs are kept for all controllers; None: there is no other controller."""
        ...

    @property
    def sessions(self) -> "SessionStore | None":
        """Return where the sessions of people are kept for all controllers; None: there is no other controller."""
        ...

    def away_s(self) -> float | None:
        """Return for how long the database has not answered; None: it does, or there is none. For any thread."""
        ...

    def close(self) -> None: ...
