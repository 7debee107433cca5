"""Which node of a job is odd, from host metrics alone: for jobs whose code reports nothing.

Follows Minder (NSDI 2025), without a trained model. Each metric is smoothed by a running median and
scaled by its minimum and maximum. In each window, each node gets the sum of its distances to all
other nodes. The node with the largest sum is a candidate if it is far beyond the others' spread,
and a node that stays the candidate of one metric for the continuity time is named. Metrics have an
order of priority, and the first one that names a node decides. Additions to Minder: a node must
have changed within the record (nodes may differ by their work), each metric has a figure below
which a deviation means nothing, and further nodes are looked for without the first.

This is weaker than step records: a node may be odd because of other work, and a victim can look as
odd as its culprit. The confidence reflects that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.diagnosis import Culprit, Diagnosis, Onset, Verdict
from detectors.finding import Evidence
from detectors.slow.host_table import GAP_S_MAX, QUANTITIES, HostTable, Matrix
from detectors.wording import counted, names_in_words

KNOWN_MIN: Final = 0.5  # share of a node's samples that a metric must have to judge it


class HostReason(Enum):
    """Why a node is named, or why none is; the value is the `class` of the diagnosis."""

    ODD_NODE = "odd_node"
    STABLE_DIFFERENCES = "stable_differences"
    MANY_AT_ONCE = "many_at_once"
    ALIKE = "alike"
    TOO_LITTLE_DATA = "too_little_data"


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Defaults and the reason of each: docs/reference/thresholds.md."""

    continuity_s: float = 240.0  # Minder: over 4 minutes
    window_s: float = 60.0  # smoothed and compared as a whole
    times: float = 4.0  # multiples of the others' distances to each other
    share: float = 0.1  # share of the peers' level, for metrics without their own figure
    nodes_min: int = 3  # with two nodes, neither is the odd one
    culprits_share: float = 0.25  # share of the nodes; if more are odd, they share one cause
    held: float = 0.9  # share of the windows in the continuity time


_BY_NAME: Final = {quantity.name: quantity for quantity in QUANTITIES}


def diagnose_hosts(table: HostTable, limits: HostLimits | None = None) -> Diagnosis:
    """Return the nodes of a job that became unlike the others, or why none is named."""
    limits = limits or HostLimits()
    nodes, times = len(table.nodes), len(table.times_s)
    if nodes < limits.nodes_min:
        return _unknown(
            f"{counted(nodes, 'node')}: at least {limits.nodes_min} are needed to tell which is odd"
        )
    step_s = float(np.median(np.diff(table.times_s))) if times > 1 else 0.0
    span_s = step_s * times
    if span_s < 2 * limits.continuity_s or times < 8:
        need_s = 2 * limits.continuity_s
        return _unknown(
            f"{times} samples over {span_s:.0f} s: at least 8 over {need_s:.0f} s are needed"
        )
    notes: list[str] = []
    episodes: list[_Episode] = []
    judged = []
    for name in _in_order(table.values):
        known, matrix, left_out = _usable(table, name, step_s)
        if left_out:
            notes.append(f"{name}: too few samples of {names_in_words(left_out)}")
        if len(known) < limits.nodes_min:
            notes.append(f"{name}: only {len(known)} nodes have it, too few to compare")
            continue
        judged.append(name)
        episodes += _find(name, known, matrix, step_s, limits)
    if not judged:
        return _unknown("no metric is known for enough nodes", notes)
    return _conclude(table, episodes, judged, notes, limits)


@dataclass(frozen=True, slots=True)
class _Episode:
    """One node that stood out in one metric."""

    name: str
    row: int
    first: int  # sample
    end: int
    is_change: bool
    value: float
    usual: float
    times: float


def _in_order(values: Mapping[str, Matrix]) -> list[str]:
    known = [quantity.name for quantity in QUANTITIES if quantity.name in values]
    return known + sorted(set(values) - set(known))


def _usable(table: HostTable, name: str, step_s: float) -> tuple[list[int], Matrix, list[str]]:
    """Return the rows with enough samples, their gaps filled, and who is left out."""
    matrix = table.values[name]
    enough = np.isfinite(matrix).mean(axis=1) >= KNOWN_MIN
    rows = np.flatnonzero(enough)
    filled = _fill(matrix[rows], max(1, round(GAP_S_MAX / step_s)))
    left_out = [table.nodes[row] for row in np.flatnonzero(~enough)]
    return rows.tolist(), filled, left_out


def _fill(matrix: Matrix, reach: int) -> Matrix:
    """Return the matrix with short gaps filled by the nearest sample, others by the peers' median."""
    out = matrix.copy()
    count = matrix.shape[1]
    places = np.arange(count)
    for row in out:
        known = np.flatnonzero(np.isfinite(row))
        if 0 < len(known) < count:
            after = np.clip(np.searchsorted(known, places), 0, len(known) - 1)
            before = np.clip(after - 1, 0, None)
            is_before = np.abs(places - known[before]) <= np.abs(known[after] - places)
            nearest = np.where(is_before, known[before], known[after])
            row[:] = np.where(np.abs(nearest - places) <= reach, row[nearest], np.nan)
    if len(out) and np.isnan(out).any():
        filled = np.where(np.isfinite(out).any(axis=0), out, 0.0)
        out = np.where(np.isfinite(out), out, np.nanmedian(filled, axis=0))
    return np.asarray(out, dtype=np.float64)


def _smooth(matrix: Matrix, width: int) -> Matrix:
    """Return the running median over ``width`` samples that end at each."""
    if width < 2:
        return matrix
    padded = np.concatenate([np.repeat(matrix[:, :1], width - 1, axis=1), matrix], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
    return np.asarray(np.median(windows, axis=2), dtype=np.float64)


def _find(
    name: str, rows: Sequence[int], matrix: Matrix, step_s: float, limits: HostLimits
) -> list[_Episode]:
    """Return who stood out of one metric for the continuity time, one after another."""
    width = max(1, round(limits.window_s / step_s))
    smooth = _smooth(matrix, width)
    low, high = float(smooth.min()), float(smooth.max())
    least = _least(name, smooth, limits)
    if high - low < least:
        return []
    scaled = (smooth - low) / (high - low)
    left = list(range(len(rows)))
    found: list[_Episode] = []
    most = int(limits.culprits_share * len(rows)) + 1
    while len(left) >= limits.nodes_min and len(found) < most:
        run = _longest_run(scaled[left], least / (high - low), width, step_s, limits)
        if run is None:
            break
        place, first, end, times = run
        row = left.pop(place)
        usual = np.median(smooth[left, first:end], axis=0)
        found.append(
            _Episode(
                name,
                rows[row],
                first,
                end,
                is_change=first * step_s >= limits.continuity_s
                and _has_changed(smooth, row, left, first, end),
                value=float(np.median(smooth[row, first:end])),
                usual=float(np.median(usual)),
                times=times,
            )
        )
    return found


def _has_changed(smooth: Matrix, row: int, others: Sequence[int], first: int, end: int) -> bool:
    """Return whether a row deviated by less than half as much before; noise makes levels cross."""
    beyond = smooth[row] - np.median(smooth[others], axis=0)
    return bool(abs(np.median(beyond[:first])) < 0.5 * abs(np.median(beyond[first:end])))


def _least(name: str, matrix: Matrix, limits: HostLimits) -> float:
    """Return the deviation below which a difference means nothing."""
    quantity = _BY_NAME.get(name)
    share = limits.share if quantity is None or quantity.share is None else quantity.share
    level = abs(float(np.median(matrix)))
    return max(quantity.least if quantity else 0.0, share * level, 1e-12)


def _longest_run(
    scaled: Matrix, least: float, width: int, step_s: float, limits: HostLimits
) -> tuple[int, int, int, float] | None:
    """Return row, first sample, end and strength of the longest time in which one row stands out."""
    count = len(scaled)
    distances = _windowed(_distances(scaled), width)  # to all others, summed
    top = np.argmax(distances, axis=0)
    columns = np.arange(distances.shape[1])
    largest = distances[top, columns] / (count - 1) / width
    rest = np.empty(len(columns))
    for column in columns.tolist():  # what the others keep between themselves
        start = max(0, column - width + 1)
        to_top = np.abs(scaled[:, start : column + 1] - scaled[top[column], start : column + 1])
        others = (distances[:, column] - to_top.sum(axis=1)) / (count - 2) / width
        rest[column] = np.median(np.delete(others, top[column]))
    stands_out = (largest >= least) & (largest >= limits.times * rest)
    need = max(2, round(limits.continuity_s / step_s))
    best: tuple[int, int, int, float] | None = None
    for row in np.unique(top[stands_out]).tolist():
        is_bad = stands_out & (top == row)
        first, end = _run(is_bad, limits.held, need)
        if end - first >= need and (best is None or end - first > best[2] - best[1]):
            strength = float(np.median(largest[first:end] / np.maximum(rest[first:end], 1e-9)))
            best = (row, first, end, strength)
    return best


def _distances(scaled: Matrix) -> Matrix:
    """Return the sum of each row's distances to all others at each time, through one sort."""
    count = len(scaled)
    order = np.argsort(scaled, axis=0)
    ranked = np.take_along_axis(scaled, order, axis=0)
    before = np.cumsum(ranked, axis=0) - ranked
    place = np.arange(count)[:, None]
    sums = (2 * place - count) * ranked + ranked.sum(axis=0) - 2 * before
    out: Matrix = np.empty_like(sums)
    np.put_along_axis(out, order, sums, axis=0)
    return out


def _windowed(values: Matrix, width: int) -> Matrix:
    """Return the sum over the ``width`` samples that end at each; the first ones repeat."""
    padded = np.concatenate([np.repeat(values[:, :1], width - 1, axis=1), values], axis=1)
    sums = np.cumsum(np.concatenate([np.zeros((len(values), 1)), padded], axis=1), axis=1)
    out: Matrix = np.subtract(sums[:, width:], sums[:, :-width])
    return out


def _run(is_bad: NDArray[np.bool_], held: float, need: int) -> tuple[int, int]:
    """Return the longest run that begins and ends bad, and is bad for most of it.

    A good stretch as long as what is forgiven of the continuity time ends a run.
    """
    forgiven = max(0, int((1 - held) * need))
    bad = np.flatnonzero(is_bad)
    best, start = (0, 0), 0
    for place in range(len(bad)):
        if place and bad[place] - bad[place - 1] - 1 > forgiven:
            start = place
        first, end = int(bad[start]), int(bad[place]) + 1
        if end - first > best[1] - best[0]:
            best = (first, end)
    return best


def _conclude(
    table: HostTable,
    episodes: Sequence[_Episode],
    judged: Sequence[str],
    notes: Sequence[str],
    limits: HostLimits,
) -> Diagnosis:
    lines = [Evidence("host metrics", _line(table, episode)) for episode in episodes[:32]]
    lines += [Evidence("host metrics", note) for note in notes[:16]]
    changed = [episode for episode in episodes if episode.is_change]
    doubt = 0.9 ** min(len(notes), 3)
    if not changed:
        if episodes:
            odd = names_in_words(sorted({table.nodes[episode.row] for episode in episodes}))
            return _nobody(
                HostReason.STABLE_DIFFERENCES,
                f"{odd} differed from the other nodes throughout the record: look further back",
                doubt,
                lines,
            )
        alike = f"no node became unlike the others in {', '.join(judged)}"
        return _nobody(HostReason.ALIKE, alike, doubt, lines)
    name = changed[0].name
    culprits = sorted({episode.row for episode in changed if episode.name == name})
    if len(culprits) > max(1, limits.culprits_share * len(table.nodes)):
        many = f"{len(culprits)} of {len(table.nodes)} nodes became odd in {name}, so the cause is something they share"
        return _nobody(HostReason.MANY_AT_ONCE, many, doubt, lines)
    agreeing = {episode.name for episode in changed if episode.row in culprits}
    confidence = (0.7 if len(agreeing) > 1 else 0.6) * (0.8 if len(table.nodes) < 5 else 1.0)
    first = min(episode.first for episode in changed if episode.row in culprits)
    odd = names_in_words([table.nodes[row] for row in culprits])
    return Diagnosis(
        verdict=Verdict.CULPRITS,
        culprits=tuple(Culprit(host=table.nodes[row]) for row in culprits),
        cause=f"odd_{name}",
        reason=f"{odd}: {', '.join(sorted(agreeing))} became unlike the other nodes",
        onset=Onset(unix_s=float(table.times_s[first])),
        confidence=confidence * doubt,
        evidence=tuple(lines),
    )


def _line(table: HostTable, episode: _Episode) -> str:
    begun = "throughout the record"
    if episode.is_change:
        begun = f"{table.times_s[episode.first] - table.times_s[0]:.0f} s into the record"
    length_s = (
        table.times_s[min(episode.end, len(table.times_s)) - 1] - table.times_s[episode.first]
    )
    return (
        f"{table.nodes[episode.row]}: {episode.name} {episode.value:.4g}, the others {episode.usual:.4g} "
        f"({min(episode.times, 1_000):.3g} times their spread), {begun}, for {length_s:.0f} s"
    )


def _nobody(reason: HostReason, text: str, doubt: float, lines: Sequence[Evidence]) -> Diagnosis:
    return Diagnosis(
        Verdict.NOBODY,
        (),
        reason.value,
        f"No node is to blame: {text}.",
        None,
        0.6 * doubt,
        tuple(lines),
    )


def _unknown(why: str, notes: Sequence[str] = ()) -> Diagnosis:
    return Diagnosis(
        Verdict.UNKNOWN,
        (),
        HostReason.TOO_LITTLE_DATA.value,
        f"Too little data: {why}.",
        None,
        0.0,
        tuple(Evidence("host metrics", note) for note in notes[:16]),
    )
