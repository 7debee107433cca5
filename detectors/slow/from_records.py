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
"""

from collections.abc import Sequence

import numpy as np

from detectors.diagnosis import Verdict
from detectors.parts.fleet_parts import NO_PARTS, FleetParts
from detectors.slow.abstention import abstain
from detectors.slow.accusation import accuse
from detectors.slow.peers import Rows, column_medians, group_rows, log_ratios
from detectors.slow.slow_verdict import Reason, SlowDiagnosis, SlowLimits, Suspect
from detectors.slow.suspects import ALL_WORK, find_suspects
from detectors.slow.together import find_joint_changes
from detectors.slow.work_table import Matrix, TracedWorker, WorkTable, total_work


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
