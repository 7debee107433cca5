"""What records of a job's starts, stops and end, and of people's commands, change in the ledger. Pure."""

from typing import Final

from recovery.journal.attempt_records import RanksDone
from recovery.journal.fold.budget_fold import replace, without_spent
from recovery.journal.job_records import (
    JobEnded,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    OutcomeKind,
    PersonActed,
    StopRequested,
)
from recovery.journal.ledger import Closing, Ledger, Wish
from recovery.messages.exchange import Stop, StopReason
from recovery.messages.outside import PersonAct, PersonCommand, trains

_PLANNED: Final = (OutcomeKind.STOPPED, OutcomeKind.TIME_LIMIT)

_COMMANDS_MAX: Final = 1000  # keys of a person's commands; a client repeats within minutes


def fold_job_opened(record: JobOpened, ledger: Ledger) -> Ledger:
    return replace(ledger, job_id=record.job_id, name=record.name)


def fold_launcher_started(record: LauncherStarted, ledger: Ledger) -> Ledger:
    after = replace(
        ledger,
        nodes=record.nodes or ledger.nodes,
        world_size=record.world_size or ledger.world_size,
        epoch=max(ledger.epoch + 1, record.epoch),
        controller_id=record.controller_id,
        fault=None,  # it would be reported anew as if it had just come
        slow={},  # the detector starts anew, too
        has_ordered=False,
        start_waits=None,
        start_approved_by=None,
    )
    if ledger.ended is not None and ledger.ended.kind is OutcomeKind.DONE:
        after = without_spent(after)  # it came to its end: what it took is nobody's fault now
    closing = ledger.closing
    # A stop can outlive its launcher (a scheduler's SIGKILL behind its SIGTERM): a person who starts
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
    is_person = record.cause is StopReason.PERSON  # the reason is then "by NAME: WHY"
    reason = f"stop requested{' ' if is_person else ': '}{record.reason}"
    outcome = JobOutcome(kind, record.cause.exit_code, reason)
    return close(ledger, Closing(outcome, record.stop, record.grace_s))


def close(ledger: Ledger, closing: Closing) -> Ledger:
    """Return the ledger of a job that is on its way out."""
    return replace(ledger, closing=closing, wish=Wish.NOTHING, revision=ledger.number)


def fold_job_ended(record: JobEnded, ledger: Ledger) -> Ledger:
    return replace(ledger, ended=record.outcome, closing=None, incident=None)


def fold_person_acted(record: PersonActed, ledger: Ledger) -> Ledger:
    command = record.command
    commands = dict(ledger.commands)
    if command.key:
        commands[command.key] = record
        for key in list(commands)[:-_COMMANDS_MAX]:
            del commands[key]
    after = replace(ledger, commands=commands)
    return after if record.is_refused else _with_command(after, command)


def _with_command(ledger: Ledger, command: PersonCommand) -> Ledger:
    after = ledger
    match command:
        case PersonCommand(act=PersonAct.PAUSE, who=who):
            after = replace(ledger, paused_by=who)
        case PersonCommand(act=PersonAct.CANCEL, who=who):
            after = replace(ledger, paused_by=who, set_aside=_set_aside(ledger))
        case PersonCommand(act=PersonAct.RESTART | PersonAct.LEAVE_NODE):
            after = replace(ledger, paused_by=None, set_aside=0)  # the plan is due: decide again
        case PersonCommand(act=PersonAct.RESUME, node=None):
            after = replace(ledger, paused_by=None, set_aside=0)
        case PersonCommand(act=PersonAct.RESUME, node=str(node)) if node in ledger.members:
            after = _taken_back(ledger, node, command.who)
        case PersonCommand(act=PersonAct.APPROVE, who=who) if ledger.incident is not None:
            within = command.is_of_jobs
            incident = replace(ledger.incident, approved_by=who, is_approved_within=within)
            after = replace(ledger, incident=incident)
        case PersonCommand(act=PersonAct.APPROVE, who=who) if ledger.start_waits is not None:
            after = replace(ledger, start_approved_by=who)
        case PersonCommand(act=PersonAct.CONFIRM_GONE, node=str(node)):
            after = replace(ledger, confirmed={**ledger.confirmed, node: ledger.attempt})
    return after


def _set_aside(ledger: Ledger) -> int:
    """Return the attempt that is left as it is when the open incident is cancelled; 0 for none."""
    incident = ledger.incident
    if incident is None or trains(incident.last_failure.finding):
        return 0
    return incident.last_failure.attempt


def _taken_back(ledger: Ledger, node: str, who: str) -> Ledger:
    """Return the ledger once a person has cleared the node of all that was held against it."""
    member = replace(ledger.members[node], left=None, left_cause=None, is_lost=False)
    evidence = {
        identity: replace(retained, overruled_by=who)
        if retained.evidence.node == node
        else retained
        for identity, retained in ledger.evidence.items()
    }
    return replace(
        ledger,
        members={**ledger.members, node: member},
        evidence=evidence,
        node_run=("", 0) if ledger.node_run[0] == node else ledger.node_run,
        run_before=("", 0) if ledger.run_before[0] == node else ledger.run_before,
        taken_back=ledger.taken_back | {node},
    )
