"""One incident as a pure state machine. Rule: no I/O, no clock, no logging here.

Only `step` changes a State, and it reads nothing but its arguments, so folding the journal
gives the same State again on any machine. docs/operate/incidents.md shows the table as a diagram.

Ranks are never started before the older attempt is provably gone: a fence that fails ends in
ESCALATED. A try that fails goes back to FENCING, at most `tries_max` times. ESCALATE (the
planner sees no sense in another try) and CANCEL (a person's stop) end it from any phase.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from rankmend.errors import IllegalEventError


class Phase(Enum):
    OPENED = "opened"
    FENCING = "fencing"
    RESTORING = "restoring"
    VERIFYING = "verifying"
    RECOVERED = "recovered"
    ESCALATED = "escalated"
    CANCELLED = "cancelled"


class Outcome(Enum):
    ACCEPTED = "accepted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ESCALATE = "escalate"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Event:
    incident_id: str
    outcome: Outcome
    answers: str  # key of the command answered; the incident id before the first command
    reason: str  # one sentence for `rankmend why`


@dataclass(frozen=True, slots=True)
class IncidentState:
    incident_id: str
    tries_max: int  # journaled when opened: a later configuration can't rewrite it
    try_number: int = 1
    phase: Phase = Phase.OPENED


@dataclass(frozen=True, slots=True)
class Command:
    phase: Phase
    key: str  # idempotency key: equal keys mean the same side effect


ACTING: Final = (Phase.FENCING, Phase.RESTORING, Phase.VERIFYING)
ENDED: Final = (Phase.RECOVERED, Phase.ESCALATED, Phase.CANCELLED)

NEXT: Final = {
    (Phase.OPENED, Outcome.ACCEPTED): Phase.FENCING,
    (Phase.FENCING, Outcome.SUCCEEDED): Phase.RESTORING,
    (Phase.FENCING, Outcome.FAILED): Phase.ESCALATED,  # never restore unfenced
    (Phase.RESTORING, Outcome.SUCCEEDED): Phase.VERIFYING,
    (Phase.RESTORING, Outcome.FAILED): Phase.FENCING,
    (Phase.VERIFYING, Outcome.SUCCEEDED): Phase.RECOVERED,
    (Phase.VERIFYING, Outcome.FAILED): Phase.FENCING,
    **{(phase, Outcome.ESCALATE): Phase.ESCALATED for phase in (Phase.OPENED, *ACTING)},
    **{(phase, Outcome.CANCEL): Phase.CANCELLED for phase in (Phase.OPENED, *ACTING)},
}


def step(state: IncidentState, event: Event) -> IncidentState:
    """Return the state after ``event``, or raise and change nothing."""
    phase = NEXT.get((state.phase, event.outcome))
    if phase is None or event.answers != expected_answer(state):  # illegal, late or repeated
        raise IllegalEventError(f"{event} does not fit {state}")
    if event.incident_id != state.incident_id:
        raise IllegalEventError(f"{event} belongs to another incident than {state}")
    if event.outcome is not Outcome.FAILED or phase is Phase.ESCALATED:
        return replace(state, phase=phase)
    if state.try_number >= state.tries_max:
        return replace(state, phase=Phase.ESCALATED)
    return replace(state, phase=phase, try_number=state.try_number + 1)


def command_for(state: IncidentState) -> Command | None:
    """Return the one side effect this state owes the world, if any."""
    if state.phase not in ACTING:
        return None
    return Command(state.phase, f"{state.incident_id}/{state.try_number}/{state.phase.value}")


def expected_answer(state: IncidentState) -> str:
    """Return what the next event must answer: the command owed, else the incident itself."""
    owed = command_for(state)
    return owed.key if owed else state.incident_id


def answer(state: IncidentState, outcome: Outcome, reason: str) -> Event:
    """Return the event that reports the outcome of the command that this state owes."""
    return Event(state.incident_id, outcome, expected_answer(state), reason)


def transitions_table() -> str:
    """Return the transitions as a Markdown table, a row for each phase that acts."""
    lines = ["| from | when it succeeds | when it fails |", "| --- | --- | --- |"]
    for phase in (Phase.OPENED, *ACTING):
        done = NEXT.get((phase, Outcome.SUCCEEDED)) or NEXT[phase, Outcome.ACCEPTED]
        failed = NEXT.get((phase, Outcome.FAILED), Phase.ESCALATED)
        last = Phase.ESCALATED.name
        otherwise = (
            last if failed is Phase.ESCALATED else f"{failed.name}; after the last try {last}"
        )
        lines.append(f"| {phase.name} | {done.name} | {otherwise} |")
    return "\n".join(lines)
