"""Keeps the journal of a job that torchrun runs (`recovery.launcher.torchrun.handler`), in a process of its own.

One line of JSON a `BookEvent` on stdin, dated by its arrival. The journal is the usual one of a job on this machine,
so `rankmend incidents`, `why` and `report` read it as any other. It says what torchrun shows, and no more:

- a fault is dated by the last time that torchrun saw all its workers run;
- "fenced" means that torchrun has stopped this node's workers. Nothing is known of other nodes;
- an incident has recovered once torchrun sees all workers of this node run again. torchrun knows no steps.

Each torchrun writes a journal on its own machine. A second one of the same job there writes none.
"""

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, Final

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from rankmend.clock import Clock, SystemClock, read_boot_id
from rankmend.errors import JobHeldError, RankmendError
from recovery.journal.attempt_records import (
    AttemptAbandoned,
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    Choice,
)
from recovery.journal.folder.job_folder import open_job
from recovery.journal.folder.job_key import key_of_meeting
from recovery.journal.folder.network_storage import refuse_network_file_system
from recovery.journal.folder.state_folder import default_state_folder
from recovery.journal.incident_machine import (
    ENDED,
    IncidentState,
    Outcome,
    answer,
    step,
)
from recovery.journal.incident_records import Decided, Failure, IncidentEvent, IncidentOpened, Plan
from recovery.journal.job_records import (
    JobEnded,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    OutcomeKind,
)
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.records import Entry, Record
from recovery.journal.store import Journal
from recovery.launcher.torchrun.handler import BookEvent
from recovery.messages.exchange import Restore

log = logging.getLogger(__name__)

LINE_BYTES_MAX: Final = 8192
_FAILED: Final = 1  # torchrun's exit code
_SIGNALS: Final = frozenset({"SignalException", "KeyboardInterrupt"})
_LEFT: Final = frozenset({"RendezvousGracefulExitError", "RendezvousClosedError", "SystemExit"})


class IncidentBook:
    """Turns events into records. ``journal``: open, of this job."""

    def __init__(self, journal: Journal, job_id: str, name: str, node: str) -> None:
        self._journal = journal
        self._job_id = job_id
        self._name = name
        self._node = node
        self._attempt, self._incidents = _last_numbers(journal.opened)
        self._is_new = not journal.opened
        self._is_open = False  # an attempt
        self._incident: IncidentState | None = None
        # The first meeting: checkpoint and number of nodes, until the number of ranks is known.
        self._pending: tuple[str, int] | None = None
        self._has_begun = False

    def take(self, event: BookEvent, fields: dict[str, Any]) -> None:
        """Journal what an event means."""
        if self._pending is not None and event is not BookEvent.MET:
            (checkpoint, groups), self._pending = self._pending, None
            self._begin(int(fields.get("world_size") or groups))
            self._start_attempt(checkpoint)
        match event:
            case BookEvent.MEET if not fields.get("is_first"):
                self._open_incident(fields.get("fault_age_s"))
            case BookEvent.MET if not self._has_begun:
                self._pending = (str(fields.get("checkpoint") or ""), int(fields["groups"]))
            case BookEvent.MET:
                self._start_attempt(str(fields.get("checkpoint") or ""))
            case BookEvent.RUNNING:
                self._note_running()
            case BookEvent.END:
                self._end(str(fields.get("outcome") or ""))
            case _:
                pass

    def _open_incident(self, fault_age_s: float | None) -> None:
        if self._incident is not None:  # the attempt before never ran
            self._answer(Outcome.ESCALATE, "the workers failed again before torchrun saw them run")
        if not self._is_open:
            return
        self._incidents += 1
        incident_id = f"{self._job_id[:8]}-{self._incidents}"
        finding = Finding(
            kind=Kind.RANK_FAILED,
            severity=Severity.CRITICAL,
            blame=Blame.NOBODY,
            summary="torchrun stopped its workers: one failed, or the nodes of the job changed",
            job_id=self._job_id,
            attempt=self._attempt,
            node="",
            ranks=(),
            victims=(),
            since_age_s=fault_age_s or 0.0,
            evidence=(Evidence("torchrun", "it meets the other nodes again"),),
            symptom=Symptom(SymptomKind.UNKNOWN),
        )
        failure = Failure(self._attempt, finding, _FAILED, None, None, None, False, ())
        policy = Policy()
        plan = Plan(PlanStep.RESTART_IN_PLACE, "torchrun restarts its workers", ())
        self._incident = IncidentState(incident_id, policy.tries_max)
        self._write(
            IncidentOpened(incident_id, failure, fault_age_s or 0.0, None, policy),
            Decided(incident_id, 1, plan),
        )
        self._answer(Outcome.ACCEPTED, "torchrun decides for itself")
        self._write(AttemptEnded(self._attempt, AttemptResult.FAILED))
        self._is_open = False
        self._answer(Outcome.SUCCEEDED, "torchrun has stopped the workers of this node")

    def _begin(self, world_size: int) -> None:
        self._has_begun = True
        records: list[Record] = []
        if self._is_new:
            records.append(JobOpened(self._job_id, self._name))
        elif self._attempt:
            records.append(AttemptAbandoned(self._attempt, "torchrun was started again"))
        records.append(LauncherStarted((self._node,), world_size, os.getppid(), _own_version()))
        self._write(*records)

    def _start_attempt(self, checkpoint: str) -> None:
        cause = Cause.INCIDENT if self._incident is not None else Cause.RESUMED
        if self._is_new and not self._attempt:
            cause = Cause.FIRST
        self._attempt += 1
        restore = Restore(checkpoint, None) if checkpoint else None
        reason = "the newest that is whole" if checkpoint else "rankmend handed over no checkpoint"
        incident = self._incident
        self._write(
            AttemptStarted(
                self._attempt,
                cause,
                Choice(True, restore, reason),
                None if incident is None else incident.incident_id,
                None if incident is None else incident.try_number,
            )
        )
        self._is_open = True
        if incident is not None:
            self._answer(Outcome.SUCCEEDED, "the nodes have met")

    def _note_running(self) -> None:
        if not self._is_open:
            return
        self._write(AttemptVerified(self._attempt, False, ()))
        if self._incident is not None:
            self._answer(Outcome.SUCCEEDED, "torchrun sees all workers of this node run")

    def _end(self, outcome: str) -> None:
        if not self._has_begun or outcome in _LEFT:
            return
        is_stop = outcome in _SIGNALS
        is_failed = bool(outcome) and not is_stop
        if not outcome:  # workers may end well before torchrun looks at them for the first time
            self._note_running()
        if self._incident is not None:
            last = Outcome.ESCALATE if is_failed else Outcome.CANCEL
            self._answer(last, "torchrun has ended")
        result = AttemptResult.FAILED if is_failed else AttemptResult.STOPPED
        kind = OutcomeKind.ESCALATED if is_failed else OutcomeKind.STOPPED
        if not outcome:
            result, kind = AttemptResult.DONE, OutcomeKind.DONE
        reason = f"torchrun has ended with {outcome}" if outcome else "torchrun has ended well"
        records: list[Record] = []
        if self._is_open:
            records.append(AttemptEnded(self._attempt, result))
        records.append(JobEnded(JobOutcome(kind, _FAILED if outcome else 0, reason), False))
        self._write(*records)
        self._is_open = False

    def _answer(self, outcome: Outcome, reason: str) -> None:
        assert self._incident is not None, "there is an incident"
        event = answer(self._incident, outcome, reason)
        after = step(self._incident, event)
        self._write(IncidentEvent(event))
        self._incident = None if after.phase in ENDED else after

    def _write(self, *records: Record) -> None:
        self._journal.append_many(records)


def _own_version() -> str:
    try:
        return version("rankmend")
    except PackageNotFoundError:
        return ""


def _last_numbers(entries: tuple[Entry, ...]) -> tuple[int, int]:
    """Return the newest attempt, and how many incidents there were."""
    attempts = [
        entry.record.attempt for entry in entries if isinstance(entry.record, AttemptStarted)
    ]
    incidents = sum(isinstance(entry.record, IncidentOpened) for entry in entries)
    return max(attempts, default=0), incidents


def open_book(state: Path, begin: dict[str, Any], clock: Clock) -> tuple[IncidentBook, Journal]:
    """Open the journal of this job on this machine; raise `JobHeldError` where another torchrun has it."""
    name = str(begin["job"])
    folder_name = str(begin.get("checkpoint_dir") or "")
    checkpoints = Path(folder_name) if folder_name else None
    key = key_of_meeting(None, name, {}, checkpoints)
    job = open_job(state, key, None, clock.unix_s())
    job.write_run({"pid": os.getppid(), "node": socket.gethostname(), "launcher": "torchrun"})
    journal = Journal(job.journal, clock, read_boot_id())
    return IncidentBook(journal, str(job.job_id), key.name, socket.gethostname()), journal


def read_events(stream: IO[bytes]) -> Iterator[tuple[BookEvent, dict[str, Any]]]:
    """Return the events that torchrun's process reports, until it ends."""
    while line := stream.readline(LINE_BYTES_MAX):
        fields = json.loads(line)
        yield BookEvent(fields.pop("do")), fields


def main(_arguments: Sequence[str] = ()) -> None:
    """Write the journal until torchrun has ended; whatever fails here ends this process alone."""
    clock = SystemClock()
    events = read_events(sys.stdin.buffer)
    try:
        _event, begin = next(events)
        state = default_state_folder(os.environ, refuse_network_file_system)
        book, journal = open_book(state, begin, clock)
        for event, fields in events:
            book.take(event, fields)
        journal.close()
    except JobHeldError as error:
        log.info("%s", error)
    except (RankmendError, OSError, ValueError, StopIteration) as error:
        sys.stderr.write(f"rankmend: this job's incidents are not journaled: {error}\n")
    for _line in events:  # a pipe that nobody reads would fill
        pass
