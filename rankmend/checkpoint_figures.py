"""The figures of a job's checkpoints and snapshots that its launcher shows the node agent (`rankmend.agent_socket`).

Only a launcher that holds its job's controller sends them: those of other jobs come from the controller's own metrics.
Standard library only: the launcher loads this.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from rankmend.errors import SourceError
from rankmend.rank_values import Unsaved

_NEWS_S: Final = 1.0
_VALUE_MAX: Final = 1e18  # bytes a second, and far more than any duration

_TIMES: Final = {  # and what they travel as
    "at_s": "age_s",
    "snapshot_at_s": "snapshot_age_s",
    "unsaved_at_s": "unsaved_age_s",
}
_CAUSE: Final = "unsaved"

_CAUSES: Final = {unsaved.value: unsaved for unsaved in Unsaved}


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """None: not known. Costs are shares of the wall time."""

    # When the newest restorable checkpoint was written, by the clock of who holds this; on the wire an age. None: there is none.
    at_s: float | None
    interval_s: float | None = None
    best_interval_s: float | None = None
    stall_s: float | None = None
    save_s: float | None = None
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    stalls_ratio: float | None = None
    recomputed_ratio: float | None = None
    restarts_ratio: float | None = None
    # The same of what the ranks keep in memory.
    snapshot_at_s: float | None = None
    snapshot_held_bytes: float | None = None
    snapshot_stall_s: float | None = None
    snapshot_interval_s: float | None = None
    snapshot_best_interval_s: float | None = None
    # Since when nothing was saved that a restart could use, and why; None: it saves, or not for long.
    unsaved_at_s: float | None = None
    unsaved: Unsaved | None = None

    def is_news(self, known: "CheckpointFigures") -> bool:
        """Return whether this says something that ``known`` doesn't; a time that differs by less than a second is the same."""
        if replace(self, **{name: getattr(known, name) for name in _TIMES}) != known:
            return True
        return any(_differ(getattr(self, name), getattr(known, name)) for name in _TIMES)


_NAMES: Final = tuple(
    field.name for field in fields(CheckpointFigures) if field.name not in {*_TIMES, _CAUSE}
)

_OF_SNAPSHOTS: Final = (
    "snapshot_age_s",
    *(name for name in _NAMES if name.startswith("snapshot_")),
)
_NEEDED: Final = frozenset({"age_s", "unsaved_age_s", *_OF_SNAPSHOTS})  # one of them


def encode_figures(job_id: str, figures: CheckpointFigures, now_s: float, version: int) -> bytes:
    """Return the message; what is not known or not a number is left out."""
    reported: dict[str, float | str] = {
        sent: round(max(0.0, now_s - at_s), 3)
        for name, sent in _TIMES.items()
        if (at_s := getattr(figures, name)) is not None
    }
    reported |= {
        name: value
        for name, value in asdict(figures).items()
        if name in _NAMES and _is_number(value)
    }
    if figures.unsaved is not None:
        reported[_CAUSE] = figures.unsaved.value
    message = {"version": version, "job_id": job_id, "checkpoint": reported}
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def decode_figures(reported: Any, now_s: float) -> CheckpointFigures:
    """Return the figures of an untrusted peer, or raise SourceError. Unknown names are ignored."""
    if not isinstance(reported, dict) or not reported.keys() & _NEEDED:
        raise SourceError(f"checkpoint is not an object with age_s: {ascii(reported)[:80]}")
    for name in (*_NAMES, *_TIMES.values()):
        if name in reported and not _is_number(reported[name]):
            raise SourceError(
                f"{name} is not a number from 0 to {_VALUE_MAX:g}: {ascii(reported[name])[:80]}"
            )
    times = {
        name: now_s - float(reported[sent]) if sent in reported else None
        for name, sent in _TIMES.items()
    }
    cause = reported.get(_CAUSE)
    return CheckpointFigures(
        **times,
        **{name: float(reported[name]) for name in _NAMES if name in reported},
        unsaved=_CAUSES.get(cause) if isinstance(cause, str) else None,  # a newer launcher's other
    )


def _differ(one_s: float | None, other_s: float | None) -> bool:
    if one_s is None or other_s is None:
        return one_s is not other_s
    return abs(one_s - other_s) >= _NEWS_S


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _VALUE_MAX  # not of NaN
