"""The newest restorable checkpoint of a job, its saves and their cost, as the API and commands show it. Pure."""

from typing import Final

from rankmend.rank_values import Unsaved
from recovery.api import wire
from recovery.journal.checkpoint_cost import (
    FORMULA,
    PRIOR_RANK_S,
    Costs,
    best_interval_s,
    cost_of,
    failure_interval_s,
)
from recovery.journal.fold.observation_fold import trains
from recovery.journal.ledger import Ledger, SaveHistory
from recovery.journal.narration.narrator import describe_unsaved

SAVES_MIN: Final = 2  # measured ones: the first save of a process is often slower
_STALL_UNKNOWN: Final = (
    "for how long a save stops training is unknown: the script marks no checkpoint section, and no step "
    'could be matched with a save; put saves into `with rankmend.section("checkpoint")`'
)
_NO_FOLDER: Final = (
    "no checkpoints are looked for (no --checkpoint-dir): a restart begins at step 0, unless the ranks keep "
    "snapshots in memory"
)
_RATE_S_MIN: Final = 0.1  # a shorter save says how long files take to open, and no rate


def view_checkpoint(ledger: Ledger, now_unix_s: float) -> wire.CheckpointView | None:
    """Return how the job's checkpoints stand; None where none that can be restored was seen.

    Ages compare this machine's clock with that of the storage.
    """
    seen, history = ledger.restorable, ledger.history
    if seen is None:
        return None
    ranks = max(1, ledger.world_size)
    mean_s = failure_interval_s(history.failures, history.ran_s, ranks)
    size_bytes, restored = seen.size_bytes or None, history.restored
    present, best, missing = _costs(history, mean_s)
    return wire.CheckpointView(
        path=seen.path,
        format_name=seen.label,
        step=seen.step,
        steps_since=_steps_since(ledger),
        age_s=max(0.0, now_unix_s - seen.modified_unix_s),
        size_bytes=size_bytes,
        saves=sum(save.count for save in history.saves),
        interval_s=history.interval_s,
        stall_s=history.stall_s,
        stall_source=history.stall_source.value,
        save_s=history.save_s,
        write_bytes_per_s=_rate(size_bytes, history.save_s),
        restore_s=restored.took_s if restored else None,
        read_bytes_per_s=_rate(restored.size_bytes, restored.took_s) if restored else None,
        failures=history.failures,
        ran_s=history.ran_s,
        failure_interval_s=mean_s,
        prior_failure_interval_s=PRIOR_RANK_S / ranks,
        repair_s=history.repair_s,
        present=present,
        best=best,
        formula=FORMULA,
        missing=missing,
    )


def view_unsaved(ledger: Ledger, now_unix_s: float) -> wire.UnsavedView | None:
    """Return why a restart would lose what the job has trained; None where there is no such reason."""
    if ledger.ended is not None:
        return None
    if ledger.unsaved is not None:
        reported, at = ledger.unsaved.record, ledger.unsaved.at
        since_s = reported.trained_s
        # Only what the same attempt has trained since then is known to have been training.
        trains_on = trains(ledger) and reported.attempt == ledger.attempt
        if trains_on:
            since_s += max(0.0, now_unix_s - at.unix_s)
        text = describe_unsaved(reported, since_s, is_least=not trains_on)
        return wire.UnsavedView(
            reported.cause.value, since_s, reported.folder, reported.example, text
        )
    if ledger.started is None or ledger.started.choice.has_folder:
        return None
    return wire.UnsavedView(Unsaved.NO_FOLDER.value, None, "", "", _NO_FOLDER)


def _costs(
    history: SaveHistory, mean_s: float
) -> tuple[wire.CostView | None, wire.CostView | None, str]:
    """Return what the present interval costs and the best one, or what is missing for that."""
    interval_s, stall_s = history.interval_s, history.stall_s
    count = sum(save.count for save in history.saves if save.stall_s is not None)
    if not history.saves:
        return None, None, "no save has been measured yet"
    if stall_s is None:
        return None, None, _STALL_UNKNOWN
    if interval_s is None or count < SAVES_MIN:
        return None, None, f"saves measured: {count}; {SAVES_MIN} of one attempt are needed"
    if stall_s <= 0:
        return None, None, "saves make no step longer, so there is no stall to weigh"
    costs = Costs(stall_s, max(stall_s, history.save_s or 0.0), mean_s, history.repair_s or 0.0)
    return _cost(interval_s, costs), _cost(best_interval_s(costs), costs), ""


def _cost(interval_s: float, costs: Costs) -> wire.CostView:
    cost = cost_of(interval_s, costs)
    return wire.CostView(interval_s, cost.stalls, cost.recomputed, cost.restarts, cost.total)


def _steps_since(ledger: Ledger) -> int | None:
    seen, highest = ledger.restorable, ledger.highest_step
    if seen is None or seen.step is None or highest is None or not ledger.is_comparable:
        return None
    return max(0, highest - seen.step)


def _rate(size_bytes: int | None, took_s: float | None) -> float | None:
    if not size_bytes or took_s is None or took_s < _RATE_S_MIN:
        return None
    return size_bytes / took_s
