"""What the records of a job's starts, stops and end change in the ledger. Pure."""

from typing import Final

from recovery.journal.attempt_records import RanksDone
from recovery.journal.fold.budget_fold import without_spent
from recovery.journal.fold.changed_copy import replace
from recovery.journal.job_records import (
    JobEnded,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    OutcomeKind,
    StopRequested,
)
from recovery.journal.ledger import Closing, Ledger, Wish
from recovery.messages.exchange import Stop, StopReason

_PLANNED: Final = (OutcomeKind.STOPPED, OutcomeKind.TIME_LIMIT)


def fold_job_opened(record: JobOpened, ledger: Ledger) -> Ledger:
    return replace(ledger, job_id=record.job_id, name=record.name)


def fold_launcher_started(record: LauncherStarted, ledger: Ledger) -> Ledger:
    after = replace(
        ledger,
        nodes=record.nodes or ledger.nodes,
        world_size=record.world_size or ledger.world_size,
        epoch=max(ledger.epoch + 1, record.epoch),
        controller_id=record.controller_id,
        fault=None,  # it would be told anew as if it had just come
        slow={},  # the detector starts anew, too
        has_ordered=False,
        start_waits=None,
        start_approved_by=None,
    )
    if ledger.ended is not None and ledger.ended.kind is OutcomeKind.DONE:
        after = without_spent(after)  # it came to its end: what it took is nobody's fault now
    closing = ledger.closing
    # A stop can outlive its launcher (a scheduler's SIGKILL behind its SIGTERM): whoever starts
    # the job again wants it to run.
    was_stopping = closing is not None and closing.outcome.kind in _PLANNED
    if ledger.ended is None and not was_stopping:
        return after
    wish = Wish.NOTHING if ledger.is_attempt_open else Wish.NOTHING_YET
    return replace(
        after,
        ended=None,
        closing=None,
        is_resumed=True,
        was_given_up=ledger.ended is not None and ledger.ended.kind is OutcomeKind.ESCALATED,
        wish=wish,
        revision=ledger.number,
        paused_by=None,
        set_aside=0,
        adopted=None,
        finder=None,
        finders=(),
        # Who starts the job again has chosen its nodes; what holds a node back for all jobs is
        # the cluster's affair.
        members={
            node: replace(member, left=None, left_cause=None, is_lost=False)
            for node, member in ledger.members.items()
        },
    )


def fold_ranks_done(record: RanksDone, ledger: Ledger) -> Ledger:
    reason = record.reason or "every rank ended with exit code 0"
    outcome = JobOutcome(OutcomeKind.DONE, 0, reason)
    # The wish stays: the launcher itself gives children that outlive their ranks a moment.
    return replace(ledger, closing=Closing(outcome, Stop.KILL, 0.0))


def fold_stop_requested(record: StopRequested, ledger: Ledger) -> Ledger:
    is_limit = record.cause is StopReason.TIME_LIMIT
    kind = OutcomeKind.TIME_LIMIT if is_limit else OutcomeKind.STOPPED
    outcome = JobOutcome(kind, record.cause.exit_code, f"stop asked for: {record.reason}")
    return close(ledger, Closing(outcome, record.stop, record.grace_s))


def close(ledger: Ledger, closing: Closing) -> Ledger:
    """Return the ledger of a job that is on its way out."""
    return replace(ledger, closing=closing, wish=Wish.NOTHING, revision=ledger.number)


def fold_job_ended(record: JobEnded, ledger: Ledger) -> Ledger:
    return replace(ledger, ended=record.outcome, closing=None, incident=None)
