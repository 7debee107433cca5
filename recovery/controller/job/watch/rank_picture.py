"""Where the ranks of the newest attempt stand, as columns: for pages and programs that look at all of them.

For any thread: a picture is taken from values that the deciding thread replaces as a whole, or only adds to, so that it
costs that thread nothing. Two ranks of one picture may be a moment apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from recovery.controller.job.observation import ObservedRank

if TYPE_CHECKING:
    from detectors.slow.live import Pace

_STEPS_MEASURED: Final = 8  # a mean over the newest ones: single steps vary

_STANDS_STEPS: Final = (
    10.0  # stands still: so many usual steps without a sign, and at least STANDS_S_MIN
)
_STANDS_S_MIN: Final = 10.0  # reports come once a second, and a step of milliseconds proves nothing


class RankState(Enum):
    """What a rank does."""

    STARTING = "starting"  # it has not ended a step yet
    TRAINING = "training"
    STANDING = "standing"  # no step, section or mark for far longer than a step takes
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # by its launcher


@dataclass(frozen=True, slots=True)
class RankPicture:
    """The ranks of one attempt, a column for each thing that is known, in the order of ``ranks``."""

    attempt: int
    step_s: float | None  # usual time of a step; None: not known
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    steps: tuple[int | None, ...]
    ages_s: tuple[float | None, ...]  # since the rank last advanced
    states: tuple[RankState, ...]
    factors: tuple[float | None, ...]  # own work in a step over its peers'; None: not known
    losses: tuple[tuple[int, float], ...] = ()  # step and loss, thinned; empty: no rank reports any


def take_picture(
    attempt: int,
    views: Sequence[ObservedRank],
    pace: "Pace | None",
    now_s: float,
    losses: tuple[tuple[int, float], ...] = (),
) -> RankPicture:
    """Return the picture of the ranks ``views``, sorted by rank; 16,000 take 30 ms."""
    views = sorted(views, key=lambda view: view.rank)
    step_s = pace.step_s if pace is not None else _usual_step_s(views)
    limit_s = max(_STANDS_S_MIN, _STANDS_STEPS * (step_s or 0.0))
    ages_s = [
        None if (at_s := view.advanced_at_s) is None else max(0.0, now_s - at_s) for view in views
    ]
    return RankPicture(
        attempt=attempt,
        step_s=step_s,
        ranks=tuple(view.rank for view in views),
        nodes=tuple(view.node for view in views),
        steps=tuple(view.step for view in views),
        ages_s=tuple(ages_s),
        states=tuple(
            _state(view, age_s, limit_s) for view, age_s in zip(views, ages_s, strict=True)
        ),
        factors=_factors(views, pace),
        losses=losses,
    )


def _state(view: ObservedRank, age_s: float | None, limit_s: float) -> RankState:
    end = view.exit
    if end is not None:
        if end.by_launcher:
            return RankState.STOPPED
        return RankState.DONE if end.exit_code == 0 else RankState.FAILED
    if not view.steps_done:
        return RankState.STARTING
    return RankState.STANDING if age_s is not None and age_s > limit_s else RankState.TRAINING


def _factors(views: Sequence[ObservedRank], pace: "Pace | None") -> tuple[float | None, ...]:
    if pace is None:
        return (None,) * len(views)
    factors = pace.factors.tolist()
    count = len(factors)
    return tuple(
        # NaN is not equal to itself
        factor if view.rank < count and (factor := factors[view.rank]) == factor else None
        for view in views
    )


def _usual_step_s(views: Sequence[ObservedRank]) -> float | None:
    """Return the newest steps' mean time, by the median rank of a few."""
    times = []
    for view in views[:: max(1, len(views) // 64)]:
        ends = list(view.step_ends)[-_STEPS_MEASURED:]
        if len(ends) > 1 and ends[-1][0] > ends[0][0]:
            times.append((ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0]))
    return sorted(times)[len(times) // 2] if times else None
