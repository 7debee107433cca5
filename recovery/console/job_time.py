"""Where a job's time went, as bars for its page. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.printable import duration
from recovery.accounting.goodput.figures import Figures, figures_of
from recovery.accounting.goodput.job_time import AttemptTime, JobTime
from recovery.accounting.goodput.time_bars import Bar, timeline_bars
from recovery.accounting.goodput.time_words import hours_name, share
from recovery.accounting.goodput.timeline import TimePart

_SPANS_MAX: Final = 1000  # rectangles of one timeline: more than a screen has pixels
_ATTEMPTS_MAX: Final = 50
SPARK_SLICES: Final = 60  # of the job's time: a curve has at most so many points
SPARK_WIDTH, SPARK_HEIGHT = 240.0, 36.0
_NOT_COUNTED: Final = frozenset({TimePart.ENDED, TimePart.UNDIVIDED, TimePart.UNACCOUNTED})


@dataclass(frozen=True, slots=True)
class Spark:
    """A small curve of one figure over the job's time."""

    name: str
    points: str  # of an SVG polyline, in `SPARK_WIDTH` by `SPARK_HEIGHT`
    newest: str  # in words
    span: str  # least and most, in words


@dataclass(frozen=True, slots=True)
class TimeOfJob:
    figures: Figures
    bars: tuple[Bar, ...]
    parts: tuple[tuple[str, float, float], ...]  # part, seconds, share; the largest first
    attempts: tuple[AttemptTime, ...]  # the newest first
    began_unix_s: float
    ends_unix_s: float
    hours_name: str  # of what its ranks took
    sparks: tuple[Spark, ...]


def view_time(time: JobTime | None) -> TimeOfJob | None:
    """Return the drawing of a job's time; None where its journal tells of none."""
    if time is None or not time.spans:
        return None
    figures = figures_of([time])
    whole_s = max(figures.wall_s, 1e-9)
    parts = sorted(
        (
            (part.value, item.seconds, item.seconds / whole_s)
            for part, item in figures.parts.items()
        ),
        key=lambda row: -row[1],
    )
    began = time.began_unix_s + time.begin_s
    return TimeOfJob(
        figures,
        timeline_bars(time, _SPANS_MAX),
        tuple(row for row in parts if row[1] > 0),
        tuple(reversed(time.attempts[-_ATTEMPTS_MAX:])),
        began,
        began + time.length_s,
        hours_name([time]),
        sparks_of(time),
    )


def sparks_of(time: JobTime) -> tuple[Spark, ...]:
    """Return the curves of step time and goodput; one of which fewer than two values are recorded is left out."""
    found = (
        _spark("Step time", step_times(time), duration, from_zero=False),
        _spark("Goodput", goodput_shares(time), share, from_zero=True),
    )
    return tuple(item for item in found if item is not None)


def loss_spark(losses: Sequence[tuple[int, float]]) -> Spark | None:
    """Return the curve of the loss by step; None where fewer than two steps have a loss, or all have the same step."""
    if len(losses) < 2 or losses[-1][0] <= losses[0][0]:
        return None
    first, last = losses[0][0], losses[-1][0]
    places = [((step - first) / (last - first), loss) for step, loss in losses]
    return _curve("Loss", places, "{:.4g}".format, floor=None, about=f", steps {first} to {last}")


def step_times(time: JobTime) -> list[float | None]:
    """Return the mean time of a step in each slice of the job's time; None: no steps are recorded of it."""
    sums = [[0.0, 0.0] for _slice in range(SPARK_SLICES)]
    for step in time.steps:
        at = _slice_of(time, step.end_s)
        if at is not None and step.steps > 0:
            sums[at][0] += step.step_s
            sums[at][1] += step.steps
    return [took_s / steps if steps else None for took_s, steps in sums]


def goodput_shares(time: JobTime) -> list[float | None]:
    """Return the share of each slice that was productive; None: the job had ended, or the slice is not divided."""
    if time.length_s <= 0:
        return []
    slice_s = time.length_s / SPARK_SLICES
    good, whole = [0.0] * SPARK_SLICES, [0.0] * SPARK_SLICES
    for span in time.spans:
        if span.part in _NOT_COUNTED:
            continue
        begin, end = span.begin_s - time.begin_s, span.end_s - time.begin_s
        for at in range(int(begin / slice_s), min(SPARK_SLICES, int(end / slice_s) + 1)):
            part_s = min(end, (at + 1) * slice_s) - max(begin, at * slice_s)
            if part_s > 0:
                whole[at] += part_s
                good[at] += part_s if span.part is TimePart.PRODUCTIVE else 0.0
    return [item / of if of > 0 else None for item, of in zip(good, whole, strict=True)]


def _slice_of(time: JobTime, at_s: float) -> int | None:
    if time.length_s <= 0 or not time.begin_s <= at_s <= time.begin_s + time.length_s:
        return None
    return min(SPARK_SLICES - 1, int((at_s - time.begin_s) / time.length_s * SPARK_SLICES))


def _spark(
    name: str, values: list[float | None], say: Callable[[float], str], *, from_zero: bool
) -> Spark | None:
    known = [
        (at / (SPARK_SLICES - 1), value) for at, value in enumerate(values) if value is not None
    ]
    if len(known) < 2:
        return None
    return _curve(name, known, say, floor=0.0 if from_zero else None)


def _curve(
    name: str,
    places: Sequence[tuple[float, float]],
    say: Callable[[float], str],
    *,
    floor: float | None,
    about: str = "",
) -> Spark:
    """Return the curve through places from 0 to 1 and their values; ``floor`` None: the least value."""
    least, most = min(v for _at, v in places), max(v for _at, v in places)
    floor = least if floor is None else floor
    height = (most - floor) or 1.0
    points = " ".join(
        f"{SPARK_WIDTH * at:.1f},"
        f"{SPARK_HEIGHT - 1 - (SPARK_HEIGHT - 2) * (value - floor) / height:.1f}"
        for at, value in places
    )
    return Spark(name, points, say(places[-1][1]), f"{say(least)} to {say(most)}{about}")
