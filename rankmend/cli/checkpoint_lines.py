"""What `rankmend status` says of a job's newest checkpoint, its saves, and what they cost."""

from typing import TYPE_CHECKING, Final

from rankmend.cli.options import hours, seconds, size

if TYPE_CHECKING:
    from recovery.api import wire

_SOURCES: Final = {
    "section": "",
    "steps": "at most ",  # the longest step around a save, less the median
}
_MEASURED_MIN: Final = 3  # failures; fewer leave the published rate with more than a quarter
_EQUAL: Final = 0.001  # of the wall time: intervals that cost the same


def say_checkpoint(view: "wire.CheckpointView") -> list[str]:
    """Return lines for people."""
    lines = [f"newest restorable checkpoint: {_which(view)}"]
    if how_long := _how_long(view):
        lines.append(how_long)
    lines.append(_cost(view))
    return lines


def _which(view: "wire.CheckpointView") -> str:
    parts = [view.path]
    if view.step is not None:
        since = "" if view.steps_since is None else f" ({view.steps_since} steps ago)"
        parts.append(f"step {view.step}{since}")
    parts.append(f"{hours(view.age_s)} old")
    if view.size_bytes:
        parts.append(size(view.size_bytes))
    return ", ".join(parts)


def _how_long(view: "wire.CheckpointView") -> str:
    parts = []
    if view.save_s is not None:
        rate = f" ({size(view.write_bytes_per_s)}/s)" if view.write_bytes_per_s else ""
        parts.append(f"a save takes {seconds(view.save_s)}{rate}")
    if view.stall_s is not None:
        bound = _SOURCES.get(view.stall_source, "")
        parts.append(f"a save stops training for {bound}{seconds(view.stall_s)}")
    if view.restore_s is not None:
        rate = f" ({size(view.read_bytes_per_s)}/s)" if view.read_bytes_per_s else ""
        parts.append(f"the last restore took {seconds(view.restore_s)}{rate}")
    return "; ".join(parts)


def _cost(view: "wire.CheckpointView") -> str:
    present, best = view.present, view.best
    if present is None or best is None:
        return f"what saving costs is not known: {view.missing}"
    line = (
        f"checkpoints every {seconds(present.interval_s)} cost {_share(present.total)} of goodput "
        f"({_share(present.stalls)} stalls, {_share(present.recomputed)} recomputed steps, "
        f"{_share(present.restarts)} restarts, at {_failures(view)}); "
    )
    if present.total - best.total < _EQUAL:
        return f"{line}the best interval, {seconds(best.interval_s)}, would cost no less ({view.formula})"
    return (
        f"{line}every {seconds(best.interval_s)} would cost {_share(best.total)} ({view.formula})"
    )


def _failures(view: "wire.CheckpointView") -> str:
    """Return how often the job fails, and by which measure."""
    rate = f"one failure per {hours(view.failure_interval_s)}"
    ran = hours(view.ran_s)
    if view.failures < 0.5:  # half of one: it is a week of running ago
        return f"{rate}, as published: this job had none in {ran}"
    measured = f"{rate}, by {view.failures:.0f} in {ran}"
    return measured if view.failures >= _MEASURED_MIN else f"{measured} and the published rate"


def _share(share: float) -> str:
    return "under 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"
