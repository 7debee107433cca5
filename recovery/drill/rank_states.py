"""What each rank of a drilled job was at, over time: what the job was, and where it was itself broken. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recovery.api.wire import IncidentView
from recovery.goodput.job_time import JobTime

BLAMED: Final = "blamed"
LOST_ANOTHER: Final = "lost_another"  # it failed because another rank had
_DETECT: Final = "detect_s"


@dataclass(frozen=True, slots=True)
class RankStretch:
    """A stretch of a rank's time; seconds since the job's time begins."""

    state: str  # a part of the job's time (recovery.goodput.timeline), `blamed` or `lost_another`
    begin_s: float
    end_s: float


def rank_states(
    time: JobTime, incidents: Sequence[IncidentView], ranks: int
) -> list[list[RankStretch]]:
    """Return the states of each rank, one after the other without gap."""
    job = [
        RankStretch(span.part.value, span.begin_s - time.begin_s, span.end_s - time.begin_s)
        for span in time.spans
    ]
    told = []
    for rank in range(ranks):
        states = job
        for one in incidents:
            if rank in one.ranks:
                states = _paint(states, BLAMED, *_stretch(time, one))
            elif rank in one.victims:
                states = _paint(states, LOST_ANOTHER, *_stretch(time, one))
        told.append(states)
    return told


def _stretch(time: JobTime, incident: IncidentView) -> tuple[float, float]:
    """Return from when to when an incident lasted: from the fault until the job had recovered, or to its end."""
    detect_s = incident.phases.get(_DETECT) or 0.0
    fault_s = incident.opened_unix_s - detect_s - time.began_unix_s - time.begin_s
    return fault_s, time.length_s if incident.total_s is None else fault_s + incident.total_s


def _paint(
    states: Sequence[RankStretch], state: str, begin_s: float, end_s: float
) -> list[RankStretch]:
    """Return the states with one stretch of them in another state."""
    painted: list[RankStretch] = []
    for one in states:
        cuts = (
            (one.state, one.begin_s, min(one.end_s, begin_s)),
            (state, max(one.begin_s, begin_s), min(one.end_s, end_s)),
            (one.state, max(one.begin_s, end_s), one.end_s),
        )
        for name, from_s, to_s in cuts:
            if from_s < to_s:
                is_same = name == state and painted and painted[-1].state == state
                earlier_s = painted.pop().begin_s if is_same else from_s
                painted.append(RankStretch(name, earlier_s, to_s))
    return painted
