"""How much a counter grew within a window, across resets, with bounded memory."""

from dataclasses import dataclass
from typing import Final

BUCKETS: Final = 30  # growth is dated too late by at most 1/30 of the window
POINTS_MAX: Final = 2 * BUCKETS + 4


@dataclass(frozen=True, slots=True)
class Growth:
    """One counter. ``total`` is its growth since it was first seen."""

    value: float
    total: float
    points: tuple[
        tuple[float, float], ...
    ]  # (time in s, total then), oldest first; the last is now's


def grow(
    growth: Growth | None, value: float, at_s: float, window_s: float, *, from_zero: bool = False
) -> Growth:
    """Return the counter after one more reading.

    ``from_zero``: what stands there at first sight has happened within our sight, as for a
    counter of events whose series begins with the first event.
    """
    if growth is None:
        return Growth(value, value if from_zero else 0.0, ((at_s, 0.0),))
    if value == growth.value:
        return growth  # as nearly always
    step = value - growth.value if value >= growth.value else value  # it was reset to 0
    total = growth.total + step
    points = growth.points
    if len(points) > 1 and at_s - points[-2][0] <= window_s / BUCKETS:
        points = points[:-1]  # one point for all growth in one bucket
    points = (*points, (at_s, total))
    begin_s = at_s - window_s
    while len(points) > 2 and points[1][0] <= begin_s:
        points = points[1:]
    return Growth(value, total, points[-POINTS_MAX:])


def increase(growth: Growth, at_s: float, window_s: float) -> float:
    """Return how much the counter grew in the window that ends at ``at_s``."""
    begin_s = at_s - window_s
    before = growth.points[0][1]
    for point_s, total in growth.points:
        if point_s > begin_s:
            break
        before = total
    return growth.total - before
