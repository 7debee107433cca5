"""The figures of a job's checkpoints that its launcher shows the node agent (`rankmend.agent_socket`).

Only a launcher that holds its job's controller sends them: those of other jobs come from the controller's own metrics.
Standard library only: the launcher loads this.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from rankmend.errors import SourceError

_VALUE_MAX: Final = 1e18  # bytes a second, and far more than any duration


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """None: not known. Costs are shares of the wall time."""

    at_s: float  # when the newest restorable checkpoint was written, by the clock of who holds this; on the wire an age
    interval_s: float | None = None
    best_interval_s: float | None = None
    stall_s: float | None = None
    save_s: float | None = None
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    stalls_ratio: float | None = None
    recomputed_ratio: float | None = None
    restarts_ratio: float | None = None


_NAMES: Final = tuple(one.name for one in fields(CheckpointFigures))[1:]


def encode_figures(job_id: str, figures: CheckpointFigures, now_s: float, version: int) -> bytes:
    """Return the message; what is not known or not a number is left out."""
    told: dict[str, float] = {"age_s": round(max(0.0, now_s - figures.at_s), 3)}
    told |= {
        name: value
        for name, value in asdict(figures).items()
        if name in _NAMES and _is_number(value)
    }
    message = {"version": version, "job_id": job_id, "checkpoint": told}
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def decode_figures(told: Any, now_s: float) -> CheckpointFigures:
    """Return the figures of an untrusted peer, or raise SourceError. Unknown names are ignored."""
    if not isinstance(told, dict) or not _is_number(told.get("age_s")):
        raise SourceError(f"checkpoint is not an object with age_s: {ascii(told)[:80]}")
    for name in _NAMES:
        if name in told and not _is_number(told[name]):
            raise SourceError(
                f"{name} is not a number from 0 to {_VALUE_MAX:g}: {ascii(told[name])[:80]}"
            )
    return CheckpointFigures(
        now_s - float(told["age_s"]), **{name: float(told[name]) for name in _NAMES if name in told}
    )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _VALUE_MAX  # not of NaN
