"""How far the ranks of attempts have come, in steps. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """How far attempts have come."""

    highest: int | None = None  # step of the foremost rank
    floor: int | None = None  # that every rank has made


def farther(known: Reach, highest: int, floor: int | None) -> Reach:
    """Return how far attempts have come with one that is at ``highest`` and ``floor``."""
    return Reach(_greater(known.highest, highest), _greater(known.floor, floor))


def is_farther(known: Reach, reached: Reach) -> bool:
    """Return whether the foremost rank or the hindmost one has made a step that is new."""
    is_highest = known.highest is None or known.highest != reached.highest
    return is_highest or (known.floor is not None and known.floor != reached.floor)


def _greater(one: int | None, other: int | None) -> int | None:
    if one is None:
        return other
    return one if other is None or one >= other else other
