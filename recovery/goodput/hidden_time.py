"""What of the mean step's communication and reading was hidden behind the ranks' own work. Pure."""

from dataclasses import dataclass

from recovery.journal.hidden_seen import HiddenSeen


@dataclass(frozen=True, slots=True)
class HiddenTime:
    """Hidden seconds of the mean step of a rank, and their share of all of that kind. None: not known."""

    least_s: float | None
    most_s: float | None
    least_ratio: float | None  # hidden / (hidden + not hidden), 0 to 1
    most_ratio: float | None
    sources: tuple[str, ...]  # values of `HiddenSource`, or those of a newer version
    gaps: tuple[str, ...]  # values of `HiddenGap`


def mean_hidden(told: HiddenSeen | None, shown_s: float | None, own_s: float) -> HiddenTime | None:
    """Return the mean of a step; ``shown_s``: what of the kind was not hidden, ``own_s``: the rank's own work."""
    if told is None:
        return None
    if not told.steps:
        return HiddenTime(None, None, None, None, told.sources, told.gaps)
    least_s = min(told.least_s / told.steps, own_s)
    most_s = None if told.most_s is None else min(told.most_s / told.steps, own_s)
    return HiddenTime(
        least_s,
        most_s,
        _ratio(least_s, shown_s or 0.0),
        None if most_s is None else _ratio(most_s, shown_s or 0.0),
        told.sources,
        told.gaps,
    )


def _ratio(hidden_s: float, shown_s: float) -> float | None:
    return hidden_s / (hidden_s + shown_s) if hidden_s + shown_s > 0 else None
