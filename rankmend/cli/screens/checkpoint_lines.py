"""What `rankmend status` says of a job's newest checkpoint, its saves and its snapshots, and `report` and `checkpoints` of their cost."""

from typing import TYPE_CHECKING, Final

from detectors.wording import counted
from rankmend.cli.options import size
from rankmend.printable import duration

if TYPE_CHECKING:
    from recovery.api import wire

_SOURCES: Final = {
    "section": "",
    "steps": "at most ",  # the longest step around a save, less the median
}
_MEASURED_MIN: Final = 3  # failures; fewer leave the published rate with more than a quarter
_EQUAL: Final = 0.001  # of the wall time: intervals that cost the same


def say_checkpoint(view: "wire.CheckpointView") -> list[str]:
    """Return lines for people about the newest checkpoint and how long saves take."""
    lines = [f"newest checked checkpoint: {_which(view)}"]
    if how_long := _how_long(view):
        lines.append(how_long)
    return lines


def say_saving(
    checkpoint: "wire.CheckpointView | None", snapshots: "wire.SnapshotView | None"
) -> list[str]:
    """Return lines about what checkpoints and snapshots of a running job cost, and which intervals would be best."""
    lines = [] if checkpoint is None else [_cost(checkpoint)]
    in_memory = "" if snapshots is None else _snapshot_cost(snapshots)
    return [*lines, in_memory] if in_memory else lines


def _which(view: "wire.CheckpointView") -> str:
    parts = [view.path]
    if view.step is not None:
        since = "" if view.steps_since is None else f" ({counted(view.steps_since, 'step')} ago)"
        parts.append(f"step {view.step}{since}")
    parts.append(f"{duration(view.age_s)} old")
    if view.size_bytes:
        parts.append(size(view.size_bytes))
    return ", ".join(parts)


def _how_long(view: "wire.CheckpointView") -> str:
    parts = []
    if view.save_s is not None:
        rate = f" ({size(view.write_bytes_per_s)}/s)" if view.write_bytes_per_s else ""
        parts.append(f"a save takes {duration(view.save_s)}{rate}")
    if view.stall_s is not None:
        bound = _SOURCES.get(view.stall_source, "")
        parts.append(f"a save stops training for {bound}{duration(view.stall_s)}")
    if view.restore_s is not None:
        rate = f" ({size(view.read_bytes_per_s)}/s)" if view.read_bytes_per_s else ""
        parts.append(f"the last restore took {duration(view.restore_s)}{rate}")
    return "; ".join(parts)


def say_snapshots(view: "wire.SnapshotView", world_size: int) -> list[str]:
    """Return lines about what the ranks keep in memory."""
    of = (
        ""
        if view.ranks == world_size
        else f" (ranks of this machine: {view.ranks} of {world_size})"
    )
    lines = [f"in memory: {_what(view)}{of}"]
    if copied := _copied(view):
        lines.append(copied)
    if how := _how_kept(view):
        lines.append(how)
    return lines


def _what(view: "wire.SnapshotView") -> str:
    if view.step is None:
        return "no step that every rank has"
    since = "" if view.steps_since is None else f" ({counted(view.steps_since, 'step')} ago)"
    parts = [f"step {view.step}{since}"]
    if view.age_s is not None:
        parts.append(f"{duration(view.age_s)} old")
    if view.size_bytes:
        parts.append(size(view.size_bytes))
    return ", ".join(parts)


def _copied(view: "wire.SnapshotView") -> str:
    """Return what other nodes have copies of; empty where they have none."""
    if not view.copied_bytes:
        return ""
    if view.copied_step is None or view.copied_age_s is None:
        return f"copies on other nodes: no step of every rank yet, {size(view.copied_bytes)}"
    since = (
        ""
        if view.copied_steps_since is None
        else f" ({counted(view.copied_steps_since, 'step')} ago)"
    )
    age = duration(view.copied_age_s)
    return f"copies on other nodes: step {view.copied_step}{since}, {age} old, {size(view.copied_bytes)}"


def _how_kept(view: "wire.SnapshotView") -> str:
    parts = []
    if view.stall_s is not None:
        parts.append(f"a snapshot stops training for {duration(view.stall_s)}")
    if view.held_bytes:
        most = (
            ""
            if view.node_bytes == view.held_bytes
            else f", at most {size(view.node_bytes)} a node"
        )
        parts.append(f"all hold {size(view.held_bytes)}{most}")
    if view.without_count:
        more = ", ..." if view.without_count > len(view.without) else ""
        named = ", ".join(str(rank) for rank in view.without)
        parts.append(
            f"{counted(view.without_count, 'rank')} {'has' if view.without_count == 1 else 'have'} none ({named}{more})"
        )
    if view.damaged:
        parts.append(f"{view.damaged} have changed in memory and are not restored")
    if view.refused:
        room = " (no room)" if view.files == 0 else ""
        parts.append(f"{view.refused} were requested and not stored{room}")
    return "; ".join(parts)


def _snapshot_cost(view: "wire.SnapshotView") -> str:
    present, best = view.present, view.best
    if best is None:
        return f"what snapshots cost is not known: {view.missing}" if view.held_bytes else ""
    rate = (
        f"at one failure per {duration(view.failure_interval_s)} that leaves the nodes "
        f"({100 * view.stayed_ratio:.0f} % of all)"
    )
    if present is None:
        return f"snapshots every {duration(best.interval_s)} would cost {_share(best.total)} of goodput, {rate} ({view.formula})"
    line = (
        f"snapshots every {duration(present.interval_s)} cost {_share(present.total)} of goodput "
        f"({_parts(present)}, {rate}); "
    )
    return line + _better(present, best, view.formula)


def _cost(view: "wire.CheckpointView") -> str:
    present, best = view.present, view.best
    if present is None or best is None:
        return f"what saving costs is not known: {view.missing}"
    line = (
        f"checkpoints every {duration(present.interval_s)} cost {_share(present.total)} of goodput "
        f"({_parts(present)}, at {_failures(view)}); "
    )
    return line + _better(present, best, view.formula)


def _parts(cost: "wire.CostView") -> str:
    return (
        f"{_share(cost.stalls)} stalls, {_share(cost.recomputed)} recomputed steps, "
        f"{_share(cost.restarts)} restarts"
    )


def _better(present: "wire.CostView", best: "wire.CostView", formula: str) -> str:
    every = duration(best.interval_s)
    if present.total - best.total < _EQUAL:
        return f"the best interval, {every}, would cost no less ({formula})"
    return f"every {every} would cost {_share(best.total)} ({formula})"


def _failures(view: "wire.CheckpointView") -> str:
    """Return how often the job fails, and by which measure."""
    rate = f"one failure per {duration(view.failure_interval_s)}"
    ran = duration(view.ran_s)
    if view.failures < 0.5:  # half of one: it is a week of running ago
        return f"{rate}, as published: this job had none in {ran}"
    measured = f"{rate}, by {view.failures:.0f} in {ran}"
    return measured if view.failures >= _MEASURED_MIN else f"{measured} and the published rate"


def _share(share: float) -> str:
    return "under 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"
