"""One word for one state of a job, an incident and a node's use: console, commands and messages take it from here. Pure."""

from enum import Enum
from typing import Final

from recovery.api import wire
from recovery.journal.cluster_records import Hold
from recovery.journal.incident_machine import Phase
from recovery.journal.job_records import OutcomeKind

# States of a job that has not ended: of one that trains, as `recovery.console.views.job_view.state_of` returns it, ...
TRAINS: Final = "running"
STANDING: Final = "standing"  # ... that a pause has left stopped, ...
STOPPING: Final = "stopping"  # ... that is on its way out, ...
INTERRUPTED: Final = (
    "interrupted"  # ... and whose launcher died: the same command takes it up again
)


class IncidentStanding(Enum):
    """How an incident stands, in the one word that console, commands and messages use."""

    RECOVERING = "recovering"
    WAITING = "waiting"  # its plan waits for a person, for nodes or for storage
    RECOVERED = "recovered"
    GAVE_UP = "gave up"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        return self in (IncidentStanding.RECOVERING, IncidentStanding.WAITING)


_ENDS: Final = {
    Phase.RECOVERED: IncidentStanding.RECOVERED,
    Phase.ESCALATED: IncidentStanding.GAVE_UP,
    Phase.CANCELLED: IncidentStanding.CANCELLED,
}
# Values that the journal and the API keep, where people read another word.
_WORDS: Final = {
    OutcomeKind.ESCALATED.value: IncidentStanding.GAVE_UP.value,
    OutcomeKind.TIME_LIMIT.value: "time limit",
    Hold.DRAIN.value: "drained",
    Hold.QUARANTINE.value: "quarantined",
    **{
        phase.name.lower(): IncidentStanding.RECOVERING.value
        for phase in Phase
        if phase not in _ENDS
    },
}


def standing_of(phase: Phase, *, waits: bool) -> IncidentStanding:
    """Return how an incident stands; ``waits``: its plan does."""
    if (end := _ENDS.get(phase)) is not None:
        return end
    return IncidentStanding.WAITING if waits else IncidentStanding.RECOVERING


def word_of(state: str) -> str:
    """Return the word that people read for the state of a job or node, or the outcome of an incident, on every surface."""
    return _WORDS.get(state, state)


def standing_word(view: wire.IncidentView) -> str:
    """Return the word for an incident; an older controller reports its phase alone."""
    return view.standing or word_of(view.outcome)


def is_unread(view: wire.JobView) -> bool:
    """Return whether the job's journal could not be read: its counts are not known then, and not zero."""
    return view.problem is not None and not view.attempt and not view.world_size


def use_of(view: wire.NodeView, job_state: str) -> str:
    """Return what a job uses a node for, in a word: it trains only while the job does."""
    if view.held and not view.ranks:
        return "held back"  # no spare: the job gives it no rank
    if view.is_spare:
        return "spare"
    return "training" if job_state == TRAINS else word_of(job_state)
