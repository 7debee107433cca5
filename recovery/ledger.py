"""What the journal says about a job: a pure fold of its entries.

Nothing here reads a clock or a file, so that the same journal gives the same ledger after a
crash, in `rankmend status` and in the simulation. A revision is the number of the record that
an order follows from: it grows with every change of the desired state, and a change is durable
before its revision exists.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce, singledispatch
from typing import Final

import msgspec

from rankmend.errors import JournalError
from recovery import records
from recovery.machine import Phase, State, step
from recovery.messages import Stop
from recovery.policy import Policy, Spent
from recovery.records import AttemptStarted, Cause, Entry, Failure, JobOutcome, OutcomeKind, Record

COPY_BYTES_MAX: Final = 64 * 1024


class Wish(Enum):
    """What the nodes ought to be running."""

    NOTHING_YET = "nothing_yet"  # before the first attempt of this start: not touched
    RANKS = "ranks"  # those of the newest attempt
    NOTHING = "nothing"  # no process of any attempt


@dataclass(frozen=True, slots=True)
class ErrorRun:
    """The same failure, in attempts that followed each other."""

    signature: str
    step: int | None
    base: str | None  # checkpoint the attempt began from, where steps count from there
    count: int


@dataclass(frozen=True, slots=True)
class OpenIncident:
    state: State
    failure: Failure
    highest_before: int | None
    last_failure: Failure  # of the newest try
    policy: Policy  # the limits in force when it was opened


@dataclass(frozen=True, slots=True)
class Closing:
    """The job is on its way out: nothing is to run, and then it has ended so."""

    outcome: JobOutcome
    stop: Stop
    grace_s: float


@dataclass(frozen=True, slots=True)
class Ledger:
    number: int = 0  # of the newest entry
    job_id: str | None = None
    name: str = ""
    nodes: tuple[str, ...] = ()
    world_size: int = 0
    wish: Wish = Wish.NOTHING_YET
    revision: int = 0  # number of the record that last changed the wish
    attempt: int = 0  # the newest; 0 before the first
    started: AttemptStarted | None = None  # the newest attempt's record
    is_attempt_open: bool = False  # started, and not proved gone
    is_verified: bool = False  # the newest attempt
    is_comparable: bool = True  # false once the job's steps count from the process's start
    telling_ranks: frozenset[int] = frozenset()  # ranks that have ever told a step
    highest_step: int | None = None
    restarts: int = 0
    restarts_without_progress: int = 0
    restores: tuple[tuple[str, int], ...] = ()  # checkpoint identity, restores without progress
    last_restore_path: str | None = None  # of any attempt
    errors: ErrorRun | None = None
    incidents: int = 0
    incident: OpenIncident | None = None  # not ended
    behind: OpenIncident | None = None  # recovered, and not caught up
    closing: Closing | None = None
    ended: JobOutcome | None = None
    is_resumed: bool = False  # the job had ended, or was ending by a stop, before this start

    @property
    def spent(self) -> Spent:
        return Spent(self.restarts, self.restarts_without_progress)

    def restores_of(self, identity: str) -> int:
        """Return how often the checkpoint was restored without progress."""
        return dict(self.restores).get(identity, 0)


def fold_all(entries: Iterable[Entry]) -> Ledger:
    """Return the ledger of a whole journal."""
    return reduce(fold, entries, Ledger())


def fold(ledger: Ledger, entry: Entry) -> Ledger:
    """Return the ledger after ``entry``."""
    if entry.number != ledger.number + 1:
        raise JournalError(f"record {entry.number} follows record {ledger.number}")
    return _fold(entry.record, replace(ledger, number=entry.number))


@singledispatch
def _fold(_record: Record, ledger: Ledger) -> Ledger:
    """Fold a record that changes no decision (unknown, Decided, TailCut)."""
    return ledger


@_fold.register
def _(record: records.JobOpened, ledger: Ledger) -> Ledger:
    return replace(ledger, job_id=record.job_id, name=record.name)


@_fold.register
def _(record: records.LauncherStarted, ledger: Ledger) -> Ledger:
    after = replace(ledger, nodes=record.nodes, world_size=record.world_size)
    closing = ledger.closing
    # A stop can outlive its launcher (a scheduler's SIGKILL behind its SIGTERM): whoever starts
    # the job again wants it to run.
    was_stopping = closing is not None and closing.outcome.kind in _PLANNED
    if ledger.ended is None and not was_stopping:
        return after
    wish = Wish.NOTHING if ledger.is_attempt_open else Wish.NOTHING_YET
    return replace(
        after, ended=None, closing=None, is_resumed=True, wish=wish, revision=ledger.number
    )


_PLANNED: Final = (OutcomeKind.STOPPED, OutcomeKind.TIME_LIMIT)


@_fold.register
def _(record: records.AttemptStarted, ledger: Ledger) -> Ledger:
    restore = record.choice.restore
    is_restart = record.cause in (Cause.TAKEOVER, Cause.INCIDENT)
    without = 0 if record.is_progress else ledger.restarts_without_progress
    highest = ledger.highest_step
    if restore is not None and restore.step is not None and ledger.is_comparable:
        highest = max(restore.step, -1 if highest is None else highest)
    after = replace(
        ledger,
        attempt=record.attempt,
        started=record,
        is_attempt_open=True,
        is_verified=False,
        is_resumed=False,
        highest_step=highest,
        restarts=ledger.restarts + is_restart,
        restarts_without_progress=without + is_restart,
        errors=None if record.is_progress else ledger.errors,
        wish=Wish.RANKS,
        revision=ledger.number,
    )
    if restore is None:
        return after
    counts = dict(ledger.restores)
    identity = record.choice.identity
    counts[identity] = counts.get(identity, 0) + 1
    return replace(after, restores=tuple(counts.items()), last_restore_path=restore.path)


@_fold.register
def _(record: records.AttemptVerified, ledger: Ledger) -> Ledger:
    after = replace(
        ledger,
        is_verified=True,
        is_comparable=record.is_comparable,
        telling_ranks=ledger.telling_ranks | frozenset(record.telling_ranks),
    )
    return after if record.is_comparable else _with_progress(after)


@_fold.register
def _(record: records.Milestone, ledger: Ledger) -> Ledger:
    if ledger.highest_step is not None and record.step <= ledger.highest_step:
        return ledger
    return replace(_with_progress(ledger), highest_step=record.step)


def _with_progress(ledger: Ledger) -> Ledger:
    return _without_restore(replace(ledger, restarts_without_progress=0))


def _without_restore(ledger: Ledger) -> Ledger:
    """Forget what is held against the checkpoint that the newest attempt began from."""
    if ledger.started is None or ledger.started.choice.restore is None:
        return ledger
    identity = ledger.started.choice.identity
    return replace(ledger, restores=tuple(pair for pair in ledger.restores if pair[0] != identity))


@_fold.register
def _(_record: records.RanksDone, ledger: Ledger) -> Ledger:
    outcome = JobOutcome(OutcomeKind.DONE, 0, "every rank ended with exit code 0")
    # The wish stays: the launcher itself gives children that outlive their ranks a moment.
    return replace(ledger, closing=Closing(outcome, Stop.KILL, 0.0))


@_fold.register
def _(_record: records.AttemptAbandoned, ledger: Ledger) -> Ledger:
    return replace(ledger, wish=Wish.NOTHING, revision=ledger.number)


@_fold.register
def _(record: records.AttemptEnded, ledger: Ledger) -> Ledger:
    after = replace(ledger, is_attempt_open=False)
    if record.result in (records.AttemptResult.DONE, records.AttemptResult.STOPPED):
        return _without_restore(after)
    return after


@_fold.register
def _(record: records.IncidentOpened, ledger: Ledger) -> Ledger:
    state = State(record.incident_id, record.policy.tries_max)
    opened = OpenIncident(state, record.failure, record.highest_step, record.failure, record.policy)
    after = replace(ledger, incidents=ledger.incidents + 1, incident=opened, behind=None)
    return _with_failure(_with_highest(after, record.highest_step), record.failure)


@_fold.register
def _(record: records.TryFailed, ledger: Ledger) -> Ledger:
    if record.failure is None or ledger.incident is None:
        return ledger
    incident = replace(ledger.incident, last_failure=record.failure)
    return _with_failure(replace(ledger, incident=incident), record.failure)


def _with_highest(ledger: Ledger, highest: int | None) -> Ledger:
    if highest is None or (ledger.highest_step is not None and highest <= ledger.highest_step):
        return ledger
    return replace(_with_progress(ledger), highest_step=highest)


def _with_failure(ledger: Ledger, failure: Failure) -> Ledger:
    base = None
    if failure.is_relative and ledger.started and ledger.started.choice.restore:
        base = ledger.started.choice.restore.path
    key = (failure.finding.signature, failure.step, base)
    before = ledger.errors
    is_same = before is not None and (before.signature, before.step, before.base) == key
    count = before.count + 1 if before is not None and is_same else 1
    return replace(
        ledger,
        errors=ErrorRun(*key, count),
        telling_ranks=ledger.telling_ranks | frozenset(failure.telling_ranks),
        is_comparable=ledger.is_comparable and not failure.is_relative,
    )


@_fold.register
def _(record: records.IncidentEvent, ledger: Ledger) -> Ledger:
    if ledger.incident is None:
        raise JournalError(f"record {ledger.number} belongs to no incident: {record.event}")
    state = step(ledger.incident.state, record.event)
    incident = replace(ledger.incident, state=state)
    if state.phase is Phase.FENCING:
        return replace(ledger, incident=incident, wish=Wish.NOTHING, revision=ledger.number)
    if state.phase is Phase.RECOVERED:
        is_behind = incident.highest_before is not None and ledger.is_comparable
        return replace(ledger, incident=None, behind=incident if is_behind else None)
    if state.phase is Phase.CANCELLED:
        return replace(ledger, incident=None)
    if state.phase is Phase.ESCALATED:
        failure = incident.last_failure
        outcome = JobOutcome(
            OutcomeKind.ESCALATED,
            failure.exit_code,
            record.event.reason,
            state.incident_id,
            failure.rank,
            failure.error,
        )
        return _close(replace(ledger, incident=None), Closing(outcome, Stop.KILL, 0.0))
    return replace(ledger, incident=incident)


@_fold.register
def _(_record: records.CaughtUp, ledger: Ledger) -> Ledger:
    return replace(ledger, behind=None)


EXIT_CODES: Final = {"SIGTERM": 143, "SIGINT": 130, "time limit": 124}
"""128 + signal as a shell says it; 124 as timeout(1) says it."""


@_fold.register
def _(record: records.StopRequested, ledger: Ledger) -> Ledger:
    kind = OutcomeKind.TIME_LIMIT if record.reason == "time limit" else OutcomeKind.STOPPED
    outcome = JobOutcome(
        kind, EXIT_CODES.get(record.reason, 143), f"stop asked for: {record.reason}"
    )
    return _close(ledger, Closing(outcome, record.stop, record.grace_s))


def _close(ledger: Ledger, closing: Closing) -> Ledger:
    return replace(ledger, closing=closing, wish=Wish.NOTHING, revision=ledger.number)


@_fold.register
def _(record: records.JobEnded, ledger: Ledger) -> Ledger:
    return replace(ledger, ended=record.outcome, closing=None, incident=None)


@_fold.register
def _(_record: records.BudgetsReset, ledger: Ledger) -> Ledger:
    return replace(
        ledger,
        restarts=0,
        restarts_without_progress=0,
        restores=(),
        last_restore_path=None,
        errors=None,
    )


@_fold.register
def _(record: records.RecordsLost, ledger: Ledger) -> Ledger:
    highest = [at for at in (ledger.highest_step, record.highest_step) if at is not None]
    is_ahead = record.attempt > ledger.attempt
    return replace(
        ledger,
        wish=Wish.NOTHING if is_ahead else ledger.wish,
        revision=ledger.number if is_ahead else ledger.revision,
        attempt=max(ledger.attempt, record.attempt),
        restarts=max(ledger.restarts, record.restarts),
        restarts_without_progress=max(
            ledger.restarts_without_progress, record.restarts_without_progress
        ),
        highest_step=max(highest, default=None),
        is_attempt_open=ledger.is_attempt_open or is_ahead,
    )


@dataclass(frozen=True, slots=True)
class Copy:
    """The budgets as they lie beside the checkpoints, for a job whose state folder is lost."""

    version: int
    job_id: str
    record_number: int
    attempt: int
    restarts: int
    restarts_without_progress: int
    highest_step: int | None


_COPY_VERSION: Final = 1


def encode_copy(ledger: Ledger) -> bytes:
    """Return the budgets of ``ledger`` in the form of the copy."""
    assert ledger.job_id is not None, "a job without an identity has no budgets"
    return msgspec.json.encode(
        Copy(
            _COPY_VERSION,
            ledger.job_id,
            ledger.number,
            ledger.attempt,
            ledger.restarts,
            ledger.restarts_without_progress,
            ledger.highest_step,
        )
    )


def decode_copy(body: bytes) -> Copy:
    """Return the budgets of a copy, or raise JournalError with what is wrong."""
    if len(body) > COPY_BYTES_MAX:
        raise JournalError(f"the copy of the budgets has {len(body)} bytes, over {COPY_BYTES_MAX}")
    try:
        copy = msgspec.json.decode(body, type=Copy, strict=True)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JournalError(f"the copy of the budgets can't be read: {error}") from error
    numbers = (copy.record_number, copy.attempt, copy.restarts, copy.restarts_without_progress)
    if copy.version != _COPY_VERSION or min(numbers) < 0:
        raise JournalError(f"the copy of the budgets is impossible: {copy}")
    return copy
