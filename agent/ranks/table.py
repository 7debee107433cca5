"""The ranks that launchers have shown to this agent, by connection.

Rules: a connection shows files of its own user only. A job belongs to the user who showed it
first, for as long as he shows it, so no user can speak for another's job. Of two attempts of a
rank the newer one counts. Everything is bounded, by connection, by user and in all.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from rankmend.agent_socket import ShownCheckpoint, Told
from rankmend.errors import SourceError
from rankmend.progress import ProgressReader, RankIdentity, RankProgress, StepRecord

RANKS_MAX: Final = 512  # per node: one descriptor each, below the usual limit of 1,024
RANKS_OF_USER_MAX: Final = 384  # a 384-thread node with a rank a thread; leaves room for others
CONNECTIONS_MAX: Final = 64
CONNECTIONS_OF_USER_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class ShownRank:
    """One rank with its open progress file."""

    reader: ProgressReader
    pid: int
    job_name: str
    known: list[StepRecord] = field(default_factory=list)  # steps that were read, oldest first

    @property
    def identity(self) -> RankIdentity:
        return self.reader.identity


@dataclass(frozen=True, slots=True)
class RankSample:
    """What one rank reported, or why that can't be read. Exactly one of the two is set."""

    identity: RankIdentity
    pid: int
    job_name: str
    progress: RankProgress | None
    error: str | None


@dataclass(slots=True)
class _Connection:
    uid: int
    ranks: list[ShownRank] = field(default_factory=list)
    job_id: uuid.UUID | None = None  # as in the newest offer
    told: Told | None = None
    checkpoint: ShownCheckpoint | None = None


class RankTable:
    def __init__(self) -> None:
        self._lock = Lock()  # held while reading: files on tmpfs, so never for long
        self._connections: dict[int, _Connection] = {}
        self._refused_total = 0

    @property
    def connection_count(self) -> int:
        with self._lock:
            return len(self._connections)

    @property
    def refused_total(self) -> int:
        with self._lock:
            return self._refused_total

    def count_refusal(self) -> None:
        with self._lock:
            self._refused_total += 1

    def open(self, number: int, uid: int) -> None:
        """Note a new connection of a user, or raise SourceError when there are too many."""
        with self._lock:
            if len(self._connections) >= CONNECTIONS_MAX:
                raise SourceError(f"already {CONNECTIONS_MAX} connections")
            of_user = sum(other.uid == uid for other in self._connections.values())
            if of_user >= CONNECTIONS_OF_USER_MAX:
                raise SourceError(f"already {CONNECTIONS_OF_USER_MAX} connections of uid {uid}")
            self._connections[number] = _Connection(uid)

    def show(self, number: int, ranks: list[ShownRank]) -> None:
        """Replace the ranks of a connection, or raise SourceError and take none of them."""
        with self._lock:
            connection = self._connections[number]
            others = [other for key, other in self._connections.items() if key != number]
            job_id = ranks[0].identity.job_id if ranks else connection.job_id
            self._check(connection.uid, ranks, job_id, others)
            before, connection.ranks = connection.ranks, ranks
            if connection.job_id != job_id:
                connection.job_id, connection.told, connection.checkpoint = job_id, None, None
            _close(before)

    def tell(self, number: int, reported: Told) -> None:
        """Replace what is found about the job of a connection, or raise SourceError."""
        with self._lock:
            connection = self._connections[number]
            if connection.job_id != reported.job_id:
                raise SourceError(
                    f"findings of job {reported.job_id}, whose ranks were not offered"
                )
            connection.told = reported

    def show_checkpoint(self, number: int, shown: ShownCheckpoint) -> None:
        """Replace the checkpoint figures of a connection's job, or raise SourceError."""
        with self._lock:
            connection = self._connections[number]
            if connection.job_id != shown.job_id:
                raise SourceError(f"figures of job {shown.job_id}, whose ranks were not offered")
            connection.checkpoint = shown

    def checkpoints(self) -> list[ShownCheckpoint]:
        """Return the checkpoint figures, one a job: of two the newest connection's count."""
        with self._lock:
            connections = [self._connections[number] for number in sorted(self._connections)]
            newest = {
                connection.checkpoint.job_id: connection.checkpoint
                for connection in connections
                if connection.checkpoint is not None
            }
            return [newest[job_id] for job_id in sorted(newest)]

    def told(self) -> list[Told]:
        """Return what launchers have found, one a job: of two the newest connection's counts."""
        with self._lock:
            connections = [self._connections[number] for number in sorted(self._connections)]
            newest = {
                connection.told.job_id: connection.told
                for connection in connections
                if connection.told is not None
            }
            return [newest[job_id] for job_id in sorted(newest)]

    def drop(self, number: int) -> None:
        """Forget a connection and its ranks."""
        with self._lock:
            if connection := self._connections.pop(number, None):
                _close(connection.ranks)

    def owners(self) -> list[tuple[uuid.UUID, int]]:
        """Return the jobs whose launchers show ranks now, each with the user to whom it belongs."""
        with self._lock:
            shown = {
                connection.job_id: connection.uid
                for connection in self._connections.values()
                if connection.ranks and connection.job_id is not None
            }
        return sorted(shown.items())

    def read(self, now_s: float, records_max: int) -> list[RankSample]:
        """Return every rank's progress, one sample a rank of a job."""
        with self._lock:
            ranks = [rank for connection in self._connections.values() for rank in connection.ranks]
            return [read_rank(rank, now_s, records_max) for rank in newest_attempts(ranks)]

    @staticmethod
    def _check(
        uid: int, ranks: list[ShownRank], job_id: uuid.UUID | None, others: list[_Connection]
    ) -> None:
        count_of_user = sum(len(other.ranks) for other in others if other.uid == uid)
        if count_of_user + len(ranks) > RANKS_OF_USER_MAX:
            raise SourceError(f"more than {RANKS_OF_USER_MAX} ranks of uid {uid}")
        if sum(len(other.ranks) for other in others) + len(ranks) > RANKS_MAX:
            raise SourceError(f"more than {RANKS_MAX} ranks on this node")
        for other in others:
            if other.uid != uid and other.job_id == job_id is not None:
                raise SourceError(f"job {job_id} belongs to uid {other.uid}")


def newest_attempts(ranks: Iterable[ShownRank]) -> Iterator[ShownRank]:
    """Return each rank of each job once, of its newest attempt, ordered by job and rank."""
    newest: dict[tuple[uuid.UUID, int], ShownRank] = {}
    for rank in ranks:
        key = (rank.identity.job_id, rank.identity.rank)
        if key not in newest or newest[key].identity.attempt < rank.identity.attempt:
            newest[key] = rank
    return iter(newest[key] for key in sorted(newest))


def read_rank(rank: ShownRank, now_s: float, records_max: int) -> RankSample:
    """Return what one rank tells; a file that can't be read harms no other rank."""
    try:
        progress = _read_on(rank, now_s, records_max)
    except SourceError as error:
        rank.known.clear()
        return RankSample(rank.identity, rank.pid, rank.job_name, None, str(error))
    return RankSample(rank.identity, rank.pid, rank.job_name, progress, None)


def _read_on(rank: ShownRank, now_s: float, records_max: int) -> RankProgress:
    """Return the progress with its newest steps, of which those that are known are not read again."""
    known = rank.known
    is_enough = known and len(known) >= min(records_max, known[-1].count)
    after = known[-1].count if is_enough else 0
    progress = rank.reader.read(now_s, records_max, after)
    if after == 0:
        known[:] = progress.records
    elif progress.step_count > after:
        known += progress.records
    elif progress.records != tuple(known[-1:]):  # the file began anew
        progress = rank.reader.read(now_s, records_max)
        known[:] = progress.records
    del known[:-records_max]
    return replace(progress, records=tuple(known))


def _close(ranks: list[ShownRank]) -> None:
    for rank in ranks:
        rank.reader.close()
