"""Which workers stand out from their peers, and for which steps."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.slow.peers import Rows, log_ratios, row_medians
from detectors.slow.rises import (
    PEERS_ASKED_MAX,
    SAMPLE_MAX,
    Episode,
    find_episode,
    held_share,
    log_rises,
    outside,
    own_rise,
    robust_noise,
    share_above,
)
from detectors.slow.work_table import Matrix, Reason, SlowLimits, Suspect

ALL_WORK: Final = "all work"
BLOCKS_MAX: Final = 24  # blocks of steps whose medians screen a large job
SCREEN: Final = 0.9  # share of the ratio, because a block's median is noisy


def find_suspects(
    seconds: Matrix,
    groups: Sequence[Rows],
    does_same_work: bool,
    kind: str = ALL_WORK,
    limits: SlowLimits | None = None,
) -> tuple[Suspect, ...]:
    """Return the workers that stand out from their peers, the slowest first."""
    limits = limits or SlowLimits()
    shifts = log_ratios(seconds, groups)
    group_of = np.empty(len(seconds), dtype=np.intp)
    for number, rows in enumerate(groups):
        group_of[rows] = number
    found: dict[int, Suspect] = {}
    episodes: dict[int, Episode | None] = {}
    for row in _screen(shifts, limits):
        suspect = _changed(
            row, seconds, shifts, groups, group_of, kind, limits, does_same_work=does_same_work
        )
        if suspect is not None and _drifts(row, shifts, groups[group_of[row]], limits, episodes):
            suspect = None
        if suspect is None and does_same_work:
            suspect = _always(row, shifts, groups, group_of, kind, limits)
        if suspect is not None:
            found[row] = suspect
    named = [
        found[row]
        for row in found
        if sum(int(peer) in found for peer in groups[group_of[row]]) * 2
        <= len(groups[group_of[row]])
    ]
    return tuple(sorted(named, key=lambda suspect: -suspect.ratio))


def _screen(shifts: Matrix, limits: SlowLimits) -> list[int]:
    """Return the rows worth a closer look: some block of steps lies high."""
    workers, steps = shifts.shape
    if workers <= limits.suspects_max:
        return list(range(workers))
    width = max(limits.steps_min, steps // BLOCKS_MAX)
    blocks = steps // width
    # the newest steps, so that a present episode fills a whole block
    recent = shifts[:, steps - blocks * width :].reshape(-1, width)
    levels = row_medians(recent).reshape(workers, blocks)
    highest, lowest = np.fmax.reduce(levels, axis=1), np.fmin.reduce(levels, axis=1)
    stands_out = np.nan_to_num(np.fmax(highest, highest - lowest))
    least = float(np.log(limits.ratio))
    # nobody waits for a worker that is never above its peers, whatever its past
    high = np.flatnonzero((stands_out >= SCREEN * least) & (highest >= 0.5 * least))
    if len(high) > limits.suspects_max:
        order = np.argpartition(-stands_out[high], limits.suspects_max)[: limits.suspects_max]
        high = high[order]
    return [int(row) for row in high]


def _changed(
    row: int,
    seconds: Matrix,
    shifts: Matrix,
    groups: Sequence[Rows],
    group_of: Rows,
    kind: str,
    limits: SlowLimits,
    *,
    does_same_work: bool,
) -> Suspect | None:
    """Return a suspect that became slower than its peers and than its own past."""
    episode = find_episode(shifts[row], limits.steps_min)
    least = float(np.log(limits.ratio))
    if episode is None or episode.rise < least:
        return None
    inside = np.zeros(shifts.shape[1], dtype=bool)
    inside[episode.first : episode.end] = True
    # Nobody waits for a worker that was ahead of its peers the rest of the time. And most of the
    # rise must be its own: the peers may have become faster.
    level = float(np.nanmedian(shifts[row][inside])) if does_same_work else least
    own = own_rise(seconds, row, inside, groups[group_of[row]])
    if level < 0.5 * least or own < 0.5 * episode.rise:
        return None
    held = held_share(shifts[row], inside, episode.rise, len(shifts), limits)
    if held is None:
        return None
    spread = _peer_variation(row, shifts, groups, group_of, inside)
    chance = limits.chance_sigmas * episode.noise * episode.sure
    if episode.rise < max(limits.sigmas * spread, chance):
        return None
    goes_on = episode.end >= shifts.shape[1]
    pair = len(groups[group_of[row]]) == 2
    confidence = 0.95 * (0.9 if pair else 1.0) * (0.9 if inside.sum() < 10 else 1.0)
    return Suspect(
        row=row,
        ratio=float(np.exp(episode.rise)),
        first=episode.first,
        end=shifts.shape[1] if goes_on else episode.end,
        reason=Reason.SLOWER_THAN_BEFORE,
        kind=kind,
        held=held,
        confidence=confidence,
    )


def _drifts(
    row: int, shifts: Matrix, peers: Rows, limits: SlowLimits, known: dict[int, Episode | None]
) -> bool:
    """Return whether a worker's best episode is no more than what its peers' best ones are, too.

    `chance_sigmas` is for noise without memory. Where times wander, everybody has an episode far
    above that, and the peers tell how far. ``known`` keeps the episodes that were looked for.
    """
    others = peers[peers != row] if len(peers) > 2 else outside(peers, len(shifts))
    sample = others[:: max(1, len(others) // PEERS_ASKED_MAX)]
    for item in (row, *sample.tolist()):
        if item not in known:
            known[item] = find_episode(shifts[item], limits.steps_min)
    mine = known[row]
    assert mine is not None, "a suspect has an episode"
    # In a small group the median is often the worker itself: its noise looks too small.
    usual = [
        episode.rise / (max(episode.noise, mine.noise) * episode.sure)
        for item in sample.tolist()
        if (episode := known[item]) is not None and max(episode.noise, mine.noise) > 0
    ]
    if not usual or not mine.noise:
        return False
    return mine.rise / (mine.noise * mine.sure) < limits.drift * float(np.median(usual))


def _peer_variation(
    row: int, shifts: Matrix, groups: Sequence[Rows], group_of: Rows, inside: NDArray[np.bool_]
) -> float:
    """Return by how much those that are not in question changed over the same steps.

    In a group of two the other one mirrors the suspect, so other groups have to tell.
    """
    rows = groups[group_of[row]]
    others = rows[rows != row][:SAMPLE_MAX] if len(rows) > 2 else outside(rows, len(shifts))
    if not len(others):
        return 0.0
    changes = log_rises(shifts[others], inside)
    changes = changes[np.isfinite(changes)]
    if not len(changes):
        return 0.0
    centre = np.median(changes) if len(rows) > 2 else 0.0
    return float(1.4826 * np.median(np.abs(changes - centre)))


def _always(
    row: int,
    shifts: Matrix,
    groups: Sequence[Rows],
    group_of: Rows,
    kind: str,
    limits: SlowLimits,
) -> Suspect | None:
    """Return a suspect that was slower than its peers throughout the record."""
    known = shifts[row][np.isfinite(shifts[row])]
    least = float(np.log(limits.ratio))
    if len(known) < limits.steps_min:
        return None
    level = float(np.median(known))
    held = share_above(known, 0.5 * least)
    if level < least or held < limits.held:
        return None
    rows = groups[group_of[row]]
    pair = len(rows) == 2
    others = outside(rows, len(shifts)) if pair else rows[rows != row][:SAMPLE_MAX]
    if len(others) < 2:
        return None  # with two workers, either may have more to do
    levels = row_medians(shifts[others])
    levels = np.abs(levels[np.isfinite(levels)])
    spread = 1.4826 * float(np.median(levels)) if len(levels) else np.inf
    if level < limits.always_sigmas * max(spread, robust_noise(known) / np.sqrt(len(known))):
        return None
    return Suspect(
        row=row,
        ratio=float(np.exp(level)),
        first=0,
        end=shifts.shape[1],
        reason=Reason.ALWAYS_SLOWER,
        kind=kind,
        held=held,
        confidence=0.6 if pair else 0.8,
    )
