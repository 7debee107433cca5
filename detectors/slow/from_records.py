"""Slow job: which worker the others wait for, or why no machine is to blame.

Rules, in this order (docs/use/diagnose-slow.md explains them, docs/reference/thresholds.md has the
sources):
1. Only a worker's own work counts, and only peers are compared: same stage and place in another
   replica.
2. A worker is named if its work took at least 10 % longer than its peers' *and* than in its own
   past, in most steps of one episode, far beyond its peers' variation.
3. Without a past, it is named if it was always slower than peers known to do the same work.
4. Peers that change at the same step are one verdict: something that they share. If more than half
   of a group changes, the group is slow; if everybody changes, no machine is to blame.
5. Otherwise the costliest reason is given: stage balance, sequence lengths, garbage collection.

The verdict that names slow workers, in words.

The verdict that names no worker: what made steps slow instead.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from detectors.diagnosis import Verdict
from detectors.parts.fleet_parts import NO_PARTS, FleetParts
from detectors.slow.peers import Rows, column_medians, group_rows, log_ratios, row_medians
from detectors.slow.placement import locate
from detectors.slow.rises import find_episode, log_rises, share_above
from detectors.slow.suspects import ALL_WORK, find_suspects
from detectors.slow.together import JointChange, find_joint_changes
from detectors.slow.work_table import (
    Matrix,
    Reason,
    SlowDiagnosis,
    SlowLimits,
    Span,
    Suspect,
    TracedWorker,
    WorkTable,
    total_work,
)
from detectors.wording import names_in_words

NAMES_TOLD_MAX: Final = 8  # in a headline
SPANS_TOLD_MAX: Final = 4
# These don't say what was slow; a rank that comes late to communication was slow before it.
WHOLE_STEPS: Final = frozenset({"mini-batch", "step", "arrival at communication"})


def accuse(
    table: WorkTable,
    suspects: tuple[Suspect, ...],
    changes: Sequence[JointChange],
    fleet: FleetParts,
    limits: SlowLimits,
) -> SlowDiagnosis:
    suspects = tuple(sorted(suspects, key=lambda suspect: -suspect.ratio))
    spans = _spans(suspects, changes, limits)
    culprits = tuple(table.workers[suspect.row] for suspect in suspects)
    worst = spans[0]
    found = locate(table.workers, [suspect.row for suspect in suspects], fleet)
    parts = tuple(f"{part.kind} {part.name}" for part in found if part.kind != "rank")
    lines = [_headline(table, span, parts if len(spans) == 1 else ()) for span in spans]
    where = f" All of {', '.join(parts)} is slow." if parts and len(spans) > 1 else ""
    more = (
        f" {len(lines) - SPANS_TOLD_MAX} more follow below." if len(lines) > SPANS_TOLD_MAX else ""
    )
    return SlowDiagnosis(
        verdict=Verdict.CULPRITS,
        reason=worst.reason,
        explanation=" ".join(lines[:SPANS_TOLD_MAX]) + where + more,
        class_name=_class_of(worst.suspects[0].kind),
        culprits=culprits,
        suspects=suspects,
        spans=spans,
        onset=table.steps[worst.first],
        end=None if worst.end >= len(table.steps) else table.steps[worst.end - 1],
        parts=parts,
        confidence=worst.suspects[0].confidence * 0.9 ** len(table.notes),
        evidence=(*(_line(table, suspect) for suspect in suspects[:16]), *table.notes),
    )


def _spans(
    suspects: Sequence[Suspect], changes: Sequence[JointChange], limits: SlowLimits
) -> tuple[Span, ...]:
    """Return the suspects by when they were slow; noise moves both ends of a span by a few steps."""
    peers_of = {item.row: change.peers for change in changes for item in change.suspects}
    spans: list[list[Suspect]] = []
    for suspect in suspects:
        for span in spans:
            if _is_same_span(span[0], suspect, peers_of, limits.steps_min):
                span.append(suspect)
                break
        else:
            spans.append([suspect])
    return tuple(
        Span(
            suspects=tuple(span),
            first=min(item.first for item in span),
            end=max(item.end for item in span),
            reason=span[0].reason,
            peers=peers_of.get(span[0].row),
        )
        for span in spans
    )


def _is_same_span(
    suspect: Suspect, other: Suspect, peers_of: Mapping[int, int], tolerance: int
) -> bool:
    return (
        suspect.reason is other.reason
        and peers_of.get(suspect.row) == peers_of.get(other.row)
        and abs(suspect.first - other.first) <= tolerance
        and abs(suspect.end - other.end) <= tolerance
    )


def _headline(table: WorkTable, span: Span, parts: Sequence[str]) -> str:
    workers = [table.workers[suspect.row] for suspect in span.suspects]
    names = names_in_words([worker.name() for worker in workers], NAMES_TOLD_MAX)
    goes_on = span.end >= len(table.steps)
    first, last = table.steps[span.first], table.steps[span.end - 1]
    if span.reason is Reason.SLOWER_TOGETHER:
        until = "" if goes_on else f", until step {last}"
        shared = ", ".join(parts) or "what they share"
        return (
            f"{len(workers)} of {span.peers} became slower at step {first}{until}: {names},"
            f" up to {span.ratio:.2f} times as slow as before. Look at {shared}."
        )
    since = f"since step {first}" if goes_on else f"from step {first} to step {last}"
    if span.reason is Reason.ALWAYS_SLOWER:
        since = "throughout the record"
    where = f" (all of {', '.join(parts)})" if parts else ""
    return f"{names}{where}: {span.ratio:.2f} times as slow as the peers, {since}."


def _class_of(kind: str) -> str:
    if kind in WHOLE_STEPS:
        return "slow_rank"
    if "communication" in kind:
        return "slow_communication"
    return "slow_io" if kind == "io" else "slow_compute"


def _line(table: WorkTable, suspect: Suspect) -> str:
    against = "its peers"
    if suspect.reason is not Reason.ALWAYS_SLOWER:
        against = "its peers and its own past"
    return (
        f"{table.workers[suspect.row].name()}: {suspect.kind} took {suspect.ratio:.2f} x {against}"
        f" in {suspect.held:.0%} of {suspect.end - suspect.first} recorded steps"
        f" ({table.steps[suspect.first]} to {table.steps[suspect.end - 1]})"
    )


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
    cost, reason, line = max(costs, key=lambda cost: cost[0])
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
    risen, requested = 0, 0
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
            requested += len(rows)
    if not slower:
        return None
    first = min(column for _number, column, _rise in slower)
    ratio = float(np.exp(np.median([rise for _number, _column, rise in slower])))
    stages = sorted({str(table.workers[int(groups[number][0])].stage) for number, *_ in slower})
    is_all = len(slower) * 2 > len(groups)
    count = "all" if risen == requested else f"{risen} of {requested}"
    who = f"{count} workers" if is_all else f"{count} workers of stage {', '.join(stages)}"
    line = f"{'everyone' if risen == requested else 'most'} shifted together: {who} became {ratio:.2f} times as slow at step {table.steps[first]}"
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


def diagnose_slow(
    table: WorkTable,
    limits: SlowLimits | None = None,
    parts: FleetParts = NO_PARTS,
) -> SlowDiagnosis:
    """Return who is slow in a work table, or the reason why nobody is named.

    ``parts``: what each host hangs on, if the topology is known.
    """
    limits = limits or SlowLimits()
    total = total_work(table)
    refusal = _refuse(table, total, limits)
    if refusal is not None:
        return refusal
    groups = group_rows([worker.peers for worker in table.workers])
    freed = _free_of_data(table, groups)
    suspects: tuple[Suspect, ...] = ()
    for kind, matrix in _matrices(table, total, limits):
        seconds = matrix * freed
        changes = find_joint_changes(seconds, groups, kind, limits)
        alone = find_suspects(seconds, groups, table.does_same_work, kind, limits)
        together = {suspect.row: suspect for change in changes for suspect in change.suspects}
        suspects = _without_replicas(
            table.workers, (*together.values(), *(s for s in alone if s.row not in together))
        )
        if suspects:
            return accuse(table, suspects, changes, parts, limits)
    return abstain(table, total, groups, limits)


def _matrices(table: WorkTable, total: Matrix, limits: SlowLimits) -> list[tuple[str, Matrix]]:
    if len(table.kinds) == 1:
        return [(table.kinds[0], total)]
    everything = np.nansum(total)
    return [(ALL_WORK, total)] + [
        (kind, table.seconds[number])
        for number, kind in enumerate(table.kinds)
        if np.nansum(table.seconds[number]) >= limits.kind_share * everything
    ]


def _refuse(table: WorkTable, total: Matrix, limits: SlowLimits) -> SlowDiagnosis | None:
    """Return the verdict "unknown" where the table is too small for any other."""
    workers, steps = total.shape
    if workers < 2:
        return _unknown(f"{workers} worker: there is no peer to compare with")
    if steps < limits.steps_min:
        return _unknown(f"{steps} steps: at least {limits.steps_min} are needed")
    if np.isfinite(total).sum(axis=0).max() < 2:
        return _unknown("no step has a record of two workers")
    if len({worker.peers for worker in table.workers}) == workers:
        return _unknown("no two workers do the same work: there is no peer to compare with")
    return None


def _unknown(why: str) -> SlowDiagnosis:
    return SlowDiagnosis(
        Verdict.UNKNOWN, Reason.TOO_LITTLE_DATA, f"Too little data: {why}.", evidence=(why,)
    )


def _free_of_data(table: WorkTable, groups: Sequence[Rows]) -> Matrix:
    """Return factors that take unequal input out of each worker's time.

    Tokens where they are known. Otherwise, with three stages or more: what all stages of one
    replica show in a step is its input (a long sequence passes through all of them), but only as
    far as it changes from step to step; what stays is kept, since it may be a slow host.
    """
    workers, steps = len(table.workers), len(table.steps)
    factors = np.ones((workers, steps))
    if table.tokens is not None:
        ratios = log_ratios(table.tokens, groups)
        halves = [2.0 if len(rows) == 2 else 1.0 for rows in groups]
        for rows, half in zip(groups, halves, strict=True):
            factors[rows] = np.exp(-np.nan_to_num(ratios[rows]) / half)
        return factors
    replicas = group_rows([worker.dp_rank for worker in table.workers])
    stages = {worker.stage for worker in table.workers}
    if None in stages or len(stages) < 3 or len(replicas) < 2:
        return factors
    shifts = log_ratios(total_work(table), groups)
    for rows in replicas:
        common = np.nan_to_num(column_medians(shifts[rows]))
        factors[rows] = np.exp(-(common - np.median(common)) / (2 if len(replicas) == 2 else 1))
    return factors


def _without_replicas(
    workers: Sequence[TracedWorker], suspects: tuple[Suspect, ...]
) -> tuple[Suspect, ...]:
    """Leave out replicas that are slow in every stage: that is their input, or their host.

    Where all of a replica is known to stand on one host, the host is the likelier.
    """
    stages = {worker.stage for worker in workers}
    if None in stages or len(stages) < 2:
        return suspects
    slow: dict[int | None, set[int | None]] = {}
    hosts: dict[int | None, set[str | None]] = {}
    for suspect in suspects:
        worker = workers[suspect.row]
        slow.setdefault(worker.dp_rank, set()).add(worker.stage)
        hosts.setdefault(worker.dp_rank, set()).add(worker.host)
    return tuple(
        suspect
        for suspect in suspects
        if slow[(replica := workers[suspect.row].dp_rank)] != stages
        or (len(hosts[replica]) == 1 and None not in hosts[replica])
    )
