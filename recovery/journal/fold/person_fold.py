"""What the orders of people change in the ledger. Pure."""

from typing import Final

from recovery.journal.fold.changed_copy import replace
from recovery.journal.job_records import PersonActed
from recovery.journal.ledger import Ledger
from recovery.messages.outside import PersonAct, PersonCommand, trains

_COMMANDS_MAX: Final = 1000  # keys of a person's commands; a client repeats within minutes


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
            after = replace(ledger, paused_by=None, set_aside=0)  # it is to be done: decide again
        case PersonCommand(act=PersonAct.RESUME, node=None):
            after = replace(ledger, paused_by=None, set_aside=0)
        case PersonCommand(act=PersonAct.RESUME, node=str(node)) if node in ledger.members:
            after = _taken_back(ledger, node, command.who)
        case PersonCommand(act=PersonAct.APPROVE, who=who) if ledger.incident is not None:
            after = replace(ledger, incident=replace(ledger.incident, approved_by=who))
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
        identity: replace(kept, overruled_by=who) if kept.evidence.node == node else kept
        for identity, kept in ledger.evidence.items()
    }
    return replace(
        ledger,
        members={**ledger.members, node: member},
        evidence=evidence,
        node_run=("", 0) if ledger.node_run[0] == node else ledger.node_run,
        run_before=("", 0) if ledger.run_before[0] == node else ledger.run_before,
        taken_back=ledger.taken_back | {node},
    )
