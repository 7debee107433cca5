"""The oldest time of a job that goes on, added up: so the account of a running job stays as small as it is. Pure.

A fault, a save or an attempt is dated back by seconds or minutes, and what is kept apart is longer than that. A record that dates back
further changes only what is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from recovery.goodput.job_time import IncidentTime, JobTime
from recovery.goodput.timeline import TRAINING, TimeSpan
from recovery.goodput.totals import TimeTotals, add_up, classes_of, totals_of

# Of stretches of time, of incidents, and of spells of slow ranks. A failure makes some 12 stretches and a save two.
KEPT_MAX: Final = 1_000
_KEPT: Final = KEPT_MAX // 2  # once there are more


@dataclass(frozen=True, slots=True)
class SettledTime:
    """The time before a moment, in totals."""

    until_s: float = 0.0
    totals: TimeTotals = field(default_factory=TimeTotals)

    def trained_since(self, since_s: float) -> float:
        """Return for how long ranks trained in the time after a moment, as if they had trained evenly."""
        length_s = self.until_s - max(0.0, since_s)
        return 0.0 if length_s <= 0 else length_s / self.until_s * self.totals.seconds(*TRAINING)

    def with_rest(self, rest: TimeTotals) -> TimeTotals:
        """Return the totals of the whole job; ``rest``: of the time that is not settled."""
        whole = add_up((self.totals, rest))
        return replace(whole, last=rest.last, last_cause=rest.last_cause)


def settle(before: SettledTime, time: JobTime) -> tuple[SettledTime, frozenset[str]]:
    """Return the settled time with the oldest of ``time``, and which incidents are in it with all that they cost.

    Keeps the newest stretches, incidents and spells apart, half of what there may be of each.
    """
    cut_s = max(
        time.begin_s,
        _kept_from([one.begin_s for one in time.spans]),
        _kept_from([one.opened_s for one in time.incidents]),
        _kept_from([one.end_s for one in time.slow]),
    )
    old = _spans_until(time.spans, cut_s)
    cost_now = {span.incident_id for span in time.spans if span.end_s > cut_s}
    over = tuple(one for one in time.incidents[:-1] if _is_over(one, cut_s, cost_now))
    part = replace(
        time,
        spans=old,
        attempts=tuple(one for one in time.attempts if one.ordered_s < cut_s),
        incidents=over,
    )
    totals = add_up((before.totals, totals_of(part, classes_of(time))))
    return SettledTime(cut_s, totals), frozenset(one.account.incident_id for one in over)


def _kept_from(moments_s: Sequence[float]) -> float:
    """Return from which moment on few enough are left, of moments in order; 0 where there are."""
    return moments_s[-_KEPT] if len(moments_s) > KEPT_MAX else 0.0


def _spans_until(spans: Sequence[TimeSpan], end_s: float) -> tuple[TimeSpan, ...]:
    return tuple(
        one.between(one.begin_s, min(one.end_s, end_s)) for one in spans if one.begin_s < end_s
    )


def _is_over(incident: IncidentTime, cut_s: float, cost_now: set[str]) -> bool:
    """Return whether all that an older incident has cost lies before a moment."""
    return incident.opened_s < cut_s and incident.account.incident_id not in cost_now
