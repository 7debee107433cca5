"""A job's time as rectangles of a drawing, for the report's page and the console. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detectors.wording import counted, moment
from rankmend.printable import duration
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.timeline import TimeSpan

WIDTH: Final = 1000.0  # units of the drawings
_WIDTH_MIN: Final = 0.5  # of a span: a pixel


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle."""

    x: float
    width: float
    part: str
    title: str
    y: float = 0.0


def timeline_bars(time: JobTime, spans_max: int) -> tuple[Bar, ...]:
    """Return the spans as they followed each other; where there are too many, the longest ones."""
    spans: Sequence[TimeSpan] = time.spans
    if len(spans) > spans_max:
        retained = sorted(spans, key=lambda span: -span.length_s)[:spans_max]
        spans = sorted(retained, key=lambda span: span.begin_s)
    scale = WIDTH / time.length_s if time.length_s else 0.0
    return tuple(
        Bar(
            (span.begin_s - time.begin_s) * scale,
            max(_WIDTH_MIN, span.length_s * scale),
            span.part.value,
            f"{moment(time.began_unix_s + span.begin_s)}: {span.part.value.replace('_', ' ')}, "
            f"{duration(span.length_s)}, attempt {span.attempt}, {counted(span.devices, 'rank')}",
        )
        for span in spans
    )
