"""Where a job's time went, as bars for its page. Pure."""

from dataclasses import dataclass
from typing import Final

from recovery.goodput.figures import Figures, figures_of
from recovery.goodput.job_time import AttemptTime, JobTime
from recovery.goodput.time_bars import Bar, timeline_bars

_SPANS_MAX: Final = 1000  # rectangles of one timeline: more than a screen has pixels
_ATTEMPTS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class TimeOfJob:
    figures: Figures
    bars: tuple[Bar, ...]
    parts: tuple[tuple[str, float, float], ...]  # part, seconds, share; the largest first
    attempts: tuple[AttemptTime, ...]  # the newest first
    began_unix_s: float
    ends_unix_s: float


def view_time(time: JobTime | None) -> TimeOfJob | None:
    """Return the drawing of a job's time; None where its journal tells of none."""
    if time is None or not time.spans:
        return None
    figures = figures_of([time])
    whole_s = max(figures.wall_s, 1e-9)
    parts = sorted(
        ((part.value, one.seconds, one.seconds / whole_s) for part, one in figures.parts.items()),
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
    )
