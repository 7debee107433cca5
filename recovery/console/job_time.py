"""Where a job's time went, as bars for its page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recovery.goodput.figures import Figures, figures_of
from recovery.goodput.job_time import AttemptTime, JobTime
from recovery.goodput.time_words import in_words, moment
from recovery.goodput.timeline import TimeSpan

WIDTH: Final = 1000.0  # units of the drawings
_SPANS_MAX: Final = 1000  # rectangles of one timeline: more than a screen has pixels
_ATTEMPTS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    part: str
    title: str


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
        _timeline(time),
        tuple(row for row in parts if row[1] > 0),
        tuple(reversed(time.attempts[-_ATTEMPTS_MAX:])),
        began,
        began + time.length_s,
    )


def _timeline(time: JobTime) -> tuple[Bar, ...]:
    spans: Sequence[TimeSpan] = time.spans
    if len(spans) > _SPANS_MAX:
        kept = sorted(spans, key=lambda span: -span.length_s)[:_SPANS_MAX]
        spans = sorted(kept, key=lambda span: span.begin_s)
    scale = WIDTH / time.length_s if time.length_s else 0.0
    return tuple(
        Bar(
            (span.begin_s - time.begin_s) * scale,
            max(0.6, span.length_s * scale),
            span.part.value,
            f"{moment(time.began_unix_s + span.begin_s)}: {span.part.value.replace('_', ' ')}, "
            f"{in_words(span.length_s)}, attempt {span.attempt}",
        )
        for span in spans
    )
