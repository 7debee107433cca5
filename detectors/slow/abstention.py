"""The verdict that names no worker: what made steps slow instead."""

from collections.abc import Sequence

import numpy as np

from detectors.diagnosis import Verdict
from detectors.slow.change_point import find_episode
from detectors.slow.peers import Rows, column_medians, log_ratios, row_medians
from detectors.slow.rises import (
    log_rises,
    share_above,
)
from detectors.slow.slow_verdict import Reason, SlowDiagnosis, SlowLimits
from detectors.slow.work_table import Matrix, WorkTable


def abstain(
    table: WorkTable, total: Matrix, groups: Sequence[Rows], limits: SlowLimits
) -> SlowDiagnosis:
    """Return why nobody is named: whatever costs most, if it costs enough to mention."""
    shifted = _shifted(table, total, groups, limits)
    if shifted is not None:
        return shifted
    costs = [
        _stage_cost(table, total, groups),
        _length_cost(table, total, groups, limits),
        _pause_cost(table, total),
    ]
    cost, reason, line = max(costs, key=lambda one: one[0])
    evidence = tuple(text for price, _reason, text in costs if price >= limits.imbalance)
    if cost < limits.imbalance:
        reason, line = Reason.BALANCED, "no worker differs from its peers for long"
        if not table.does_same_work and _differ(total, groups, limits):
            reason = Reason.STABLE_DIFFERENCES
            line = "workers differ all the time, and none became slower than before"
        evidence = (line,)
    return SlowDiagnosis(
        verdict=Verdict.NOBODY,
        reason=reason,
        explanation=f"No machine is to blame: {line}.",
        confidence=0.9 * 0.9 ** len(table.notes),
        evidence=(*evidence, *table.notes),
    )


def _shifted(
    table: WorkTable, total: Matrix, groups: Sequence[Rows], limits: SlowLimits
) -> SlowDiagnosis | None:
    """Return the abstention for groups of which every member became slower at one time."""
    slower: list[tuple[int, int, float]] = []
    risen, asked = 0, 0
    for number, rows in enumerate(groups[:4096]):
        if len(rows) < 2:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(total[rows])
        episode = find_episode(column_medians(logs), limits.steps_min)
        if episode is None or episode.rise < np.log(limits.ratio):
            continue
        if episode.rise < limits.chance_sigmas * episode.noise * episode.sure:
            continue  # the best of all episodes of unequal steps is high by chance
        inside = np.zeros(total.shape[1], dtype=bool)
        inside[episode.first : episode.end] = True
        share = share_above(log_rises(logs, inside), 0.5 * float(np.log(limits.ratio)))
        held = column_medians(logs)[inside] - np.nanmedian(column_medians(logs)[~inside])
        if share > 0.5 and share_above(held, 0.5 * float(np.log(limits.ratio))) >= limits.held:
            slower.append((number, episode.first, episode.rise))
            risen += round(share * len(rows))
            asked += len(rows)
    if not slower:
        return None
    first = min(column for _number, column, _rise in slower)
    ratio = float(np.exp(np.median([rise for _number, _column, rise in slower])))
    stages = sorted({str(table.workers[int(groups[number][0])].stage) for number, *_ in slower})
    is_all = len(slower) * 2 > len(groups)
    count = "all" if risen == asked else f"{risen} of {asked}"
    who = f"{count} workers" if is_all else f"{count} workers of stage {', '.join(stages)}"
    line = f"{'everyone' if risen == asked else 'most'} shifted together: {who} became {ratio:.2f} times as slow at step {table.steps[first]}"
    return SlowDiagnosis(
        verdict=Verdict.NOBODY,
        reason=Reason.SHIFTED_TOGETHER,
        explanation=f"No machine is to blame: {line}.",
        onset=table.steps[first],
        confidence=0.9 * 0.9 ** len(table.notes),
        evidence=(line, *table.notes),
    )


def _stage_cost(
    table: WorkTable, total: Matrix, groups: Sequence[Rows]
) -> tuple[float, Reason, str]:
    """Return how much longer the heaviest stage works than the mean of all."""
    levels: dict[int, list[float]] = {}
    for rows in groups:
        stage = table.workers[int(rows[0])].stage
        if stage is not None:
            levels.setdefault(stage, []).append(float(np.nanmedian(total[rows])))
    if len(levels) < 2:
        return 1.0, Reason.STAGE_BALANCE, ""
    medians = {stage: float(np.median(values)) for stage, values in levels.items()}
    heaviest = max(medians, key=lambda stage: medians[stage])
    cost = medians[heaviest] / float(np.mean(list(medians.values())))
    line = f"stage balance: stage {heaviest} works {cost:.2f} times the mean of all stages"
    return cost, Reason.STAGE_BALANCE, f"{line}, in every replica alike"


def _length_cost(
    table: WorkTable, total: Matrix, groups: Sequence[Rows], limits: SlowLimits
) -> tuple[float, Reason, str]:
    """Return what unequal input costs: the slowest peer of each step over the mean of all."""
    nothing = (1.0, Reason.SEQUENCE_LENGTHS, "")
    correlation = _kind_correlation(table)
    if correlation is None or correlation < limits.correlation:
        return nothing
    costs = [
        float(np.nanmedian(np.nanmax(total[rows], axis=0) / np.nanmean(total[rows], axis=0)))
        for rows in groups
        if len(rows) > 1 and np.isfinite(total[rows]).all()
    ]
    if not costs:
        return nothing
    cost = float(np.median(costs))
    line = (
        f"sequence lengths: the slowest replica changes from step to step ({cost:.2f} times the"
        f" mean), and forward and backward time correlate ({correlation:.2f})"
    )
    return cost, Reason.SEQUENCE_LENGTHS, line


def _kind_correlation(table: WorkTable) -> float | None:
    """Return how forward and backward time of the same micro-batches go together.

    Each worker's own mean is taken out, so that stages of unequal weight do not count.
    """
    if table.microbatches is None or len(table.microbatches) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        forward, backward = np.log(table.microbatches[0]), np.log(table.microbatches[1])
    known = np.isfinite(forward) & np.isfinite(backward)
    if known.sum() < 20:
        return None
    centred = []
    for values in (forward, backward):
        values = np.where(known, values, np.nan)  # noqa: PLW2901
        counts = np.maximum(known.sum(axis=(1, 2), keepdims=True), 1)
        centred.append((values - np.nansum(values, axis=(1, 2), keepdims=True) / counts)[known])
    if min(centred[0].std(), centred[1].std()) < 1e-9:
        return None
    return float(np.corrcoef(centred[0], centred[1])[0, 1])


def _pause_cost(table: WorkTable, total: Matrix) -> tuple[float, Reason, str]:
    """Return what pauses of the collector cost: each step waits for the longest."""
    if table.pauses is None or not np.nansum(table.pauses):
        return 1.0, Reason.GARBAGE_COLLECTION, ""
    longest = np.nanmax(np.nan_to_num(table.pauses), axis=0)
    cost = 1.0 + float(np.mean(longest) / np.nanmedian(total))
    line = f"garbage collection: the longest pause in a step adds {cost - 1:.0%} to its work"
    return cost, Reason.GARBAGE_COLLECTION, line


def _differ(total: Matrix, groups: Sequence[Rows], limits: SlowLimits) -> bool:
    shifts = log_ratios(total, groups)
    levels = row_medians(shifts)
    return bool(np.nanmax(levels) - np.nanmin(levels) >= np.log(limits.ratio))
