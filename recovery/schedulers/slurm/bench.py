"""The state that the parts of the scheduler service share: journal, ledger, settings, and what each request waits for.

It serves Slurm as well as other managers of nodes.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import JournalError
from recovery.journal.open_journal import JournalMovedError
from recovery.journal.records import Entry
from recovery.journal.slurm_records import SlurmActs, SlurmEnded, SlurmOutcome, SlurmRecord
from recovery.schedulers.slurm.answers import JobInSlurm
from recovery.schedulers.slurm.desk_lease import LeaseShortError, act_timeout_s
from recovery.schedulers.slurm.ledger import SlurmLedger, Work, fold_slurm, fold_slurm_entry
from recovery.schedulers.slurm.limits import NodeLimits
from recovery.schedulers.slurm.managed_node import NodeManager
from recovery.schedulers.slurm.requests import MoveEnd, SchedulerRequest

log = logging.getLogger(__name__)

SETTLE_S: Final = 3.0  # beyond the timeout of a command, until it can have no late effect
_TRIES_MAX: Final = 20  # of one record, while other controllers write
LOOK_S: Final = 0.5  # at a request that is under way
LOOK_S_MAX: Final = 15.0  # at one that has waited for long


@dataclass(slots=True)
class RequeueMemory:
    """What a running controller remembers of a job that it requeues. A restart begins it anew, which only costs the pause."""

    pending_unix_s: float | None = None  # since when it is seen to be PENDING and held
    was_held: bool = False
    has_let_go: bool = False
    unknown_unix_s: float | None = None  # since when Slurm does not know the job

    def look(self, jobs: Sequence[JobInSlurm], now_unix_s: float, *, is_let_go: bool) -> None:
        """Take in what Slurm reports now; ``is_let_go``: we have let it start."""
        job = jobs[0] if len(jobs) == 1 else None
        if jobs:
            self.unknown_unix_s = None
        elif self.unknown_unix_s is None:
            self.unknown_unix_s = now_unix_s
        if job is None or not job.is_held or "COMPLETING" in job.flags:
            self.pending_unix_s = None
            self.has_let_go = is_let_go and job is not None
            return
        self.was_held = True
        if self.pending_unix_s is None:
            self.pending_unix_s = now_unix_s


def output_mark(path: str) -> str:
    """Return what changes once the job writes to its output; empty where that can't be seen from here."""
    if not path:
        return ""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return "absent" if Path(path).parent.is_dir() else ""
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


class SlurmJournal(Protocol):
    @property
    def opened(self) -> tuple[Entry, ...]: ...

    def append_many(self, records: Sequence[SlurmRecord], /) -> tuple[Entry, ...]: ...
    def read_newer(self) -> tuple[Entry, ...]: ...


@dataclass(slots=True)
class Memory:
    due_s: float = 0.0
    text: str = ""  # what it waits for
    since_s: float = 0.0  # for how long
    error: str = ""  # of the newest command
    denied_since_s: float = 0.0  # since when the manager denies us what the request needs
    denied_last_s: float = float("-inf")
    job: RequeueMemory = field(default_factory=RequeueMemory)


class Bench:
    """``ledger`` and ``write`` are for any thread, the rest for the one that works."""

    def __init__(
        self,
        journal: SlurmJournal,
        client: NodeManager,
        limits: NodeLimits,
        clock: Clock,
        settle_s: float = SETTLE_S,
        look_s: float = LOOK_S,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``left_s``: of the lease under which we act."""
        self._left_s = left_s
        self._journal = journal
        self.client = client
        self.limits = limits
        self.clock = clock
        self.settle_s = settle_s
        self.settled_s = limits.timeout_s + settle_s
        self.look_s = look_s
        self.lock = threading.RLock()
        self.ledger: SlurmLedger = fold_slurm(journal.opened)
        self.is_answering: bool | None = None  # None: not asked yet
        self.problem = ""  # why the manager does not answer

    def write(self, record: SlurmRecord) -> None:
        """Make the record durable, or raise JournalError, or LeaseLostError: another controller works here now.

        What others have handed in meanwhile goes before it: new requests, and a person's word on a node, which may
        as well have come a moment later. Raises LeaseShortError for an act that could not be begun in time.
        """
        if isinstance(record, SlurmActs):  # an act that is in the journal counts as a try
            left_s = self._left_s()
            if act_timeout_s(self.limits.timeout_s, left_s) is None:
                raise LeaseShortError(left_s)
        with self.lock:
            for _try in range(_TRIES_MAX):
                try:
                    written = self._journal.append_many([record])
                except JournalMovedError:
                    self.catch_up()
                    continue
                self._fold(written)
                return
        raise JournalError(
            f"{_TRIES_MAX} times others wrote first to the journal of {self.limits.manager}"
        )

    def catch_up(self) -> None:
        """Take in what other controllers have written, or raise JournalError."""
        with self.lock:
            self._fold(self._journal.read_newer())

    def _fold(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.ledger = fold_slurm_entry(self.ledger, entry)

    def note_away(self, error: Exception) -> None:
        """Remember that the manager gave no answer."""
        if self.is_answering is not False:
            log.warning("%s does not answer", self.limits.manager, extra={"error": str(error)})
        self.is_answering, self.problem = False, str(error)

    def note_answer(self) -> None:
        if self.is_answering is False:
            log.info("%s answers again", self.limits.manager)
        self.is_answering, self.problem = True, ""

    def wait(self, work: Work, memory: Memory, text: str) -> None:
        now_s = self.clock.now_s()
        if memory.text != text:
            memory.text, memory.since_s = text, now_s
            fields = {**fields_of(work.request), "waits": text}
            log.info("%s request waits", self.limits.manager, extra=fields)
        waited_s = now_s - memory.since_s
        memory.due_s = now_s + min(LOOK_S_MAX, max(self.look_s, waited_s / 10))

    def end(self, work: Work, outcome: SlurmOutcome, text: str) -> None:
        self.write(SlurmEnded(work.request.key, outcome, text[:2000]))
        level = logging.INFO if outcome is SlurmOutcome.DONE else logging.WARNING
        fields = {**fields_of(work.request), "outcome": outcome.value, "result": text}
        log.log(level, "%s request ended", self.limits.manager, extra=fields)


def text_of(move: MoveEnd, memory: Memory) -> str:
    """Return what is told of an end: with the manager's own words, where it failed."""
    if move.outcome is SlurmOutcome.FAILED and memory.error:
        return f"{move.text}: {memory.error}"
    return move.text


def fields_of(request: SchedulerRequest) -> dict[str, str]:
    """Return what a log line says of a request."""
    nodes = ", ".join(request.nodes)
    fields = {"key": request.key, "action": request.action.value, "nodes": nodes}
    return {**fields, "slurm_job": request.slurm_job, "reason": request.reason}
