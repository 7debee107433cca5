"""Workers of one peer group that became slower together: something that they share is slow.

The group's median is no reference here: four slow workers out of ten move it, and if the workers
never did equal work, it jumps to another worker. So each worker is compared first with its own past
and then with those that did not change. docs/use/diagnose-slow.md explains the rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.slow.peers import Rows, column_medians, row_medians
from detectors.slow.rises import (
    PEERS_ASKED_MAX,
    Episode,
    find_episode,
    held_share,
    log_rises,
    outside,
    share_above,
)
from detectors.slow.work_table import Matrix, Reason, SlowLimits, Suspect

GROUP_MIN: Final = 4  # two that changed and two that did not
REST_MIN: Final = 2  # workers that did not change: they are the reference
HIGH_MAX: Final = 256  # workers of a group in which an episode is searched
GROUPS_MAX: Final = 16  # groups in which one is searched: the search takes 1 ms a worker and round
BLOCKS_MAX: Final = 24  # blocks of steps by whose medians a group is screened
SCREEN: Final = 0.9  # share of the ratio: the median of a block is noisy
ROUNDS_MAX: Final = 4  # until the workers that changed stay the same
QUANTILE: Final = (
    1 / 3
)  # quantile of a step's times that lies below the changed workers, at most half of all
ONSET_TOLERANCE: Final = 0.03  # share of the record by which noise moves a worker's onset
HELD_BY_EACH: Final = 0.6  # share of the steps; the members together hold `SlowLimits.held`


@dataclass(frozen=True, slots=True)
class JointChange:
    """Several workers of one peer group that became slower at the same step."""

    suspects: tuple[Suspect, ...]
    peers: int  # size of the peer group, with those that changed


def find_joint_changes(
    seconds: Matrix, groups: Sequence[Rows], kind: str, limits: SlowLimits
) -> tuple[JointChange, ...]:
    """Return the groups of workers that became slower together, at most one for each peer group.

    ``seconds``: workers x steps. At least two workers and at most half of their peers.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(seconds > 0, np.log(seconds), np.nan)
    candidates = [_candidate(logs, rows, limits) for rows in groups if len(rows) >= GROUP_MIN]
    candidates = [candidate for candidate in candidates if 2 <= len(candidate.high) <= HIGH_MAX]
    candidates.sort(key=lambda candidate: -len(candidate.high))
    found = (_joint_change(logs, candidate, kind, limits) for candidate in candidates[:GROUPS_MAX])
    return tuple(change for change in found if change is not None)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One peer group, with the logarithm of each worker's time over its own median."""

    rows: Rows
    own: Matrix
    high: Rows  # the workers worth a closer look: some block of their steps lies high


def _candidate(logs: Matrix, rows: Rows, limits: SlowLimits) -> _Candidate:
    own = logs[rows] - row_medians(logs[rows])[:, None]
    shifts = own - _low_quantile(own)
    width = max(limits.steps_min, own.shape[1] // BLOCKS_MAX)
    blocks = own.shape[1] // width
    recent = shifts[:, own.shape[1] - blocks * width :].reshape(-1, width)
    levels = row_medians(recent).reshape(len(rows), blocks)
    stands_out = np.fmax.reduce(levels, axis=1) - np.fmin.reduce(levels, axis=1)
    high = np.flatnonzero(np.nan_to_num(stands_out) >= SCREEN * np.log(limits.ratio))
    return _Candidate(rows, own, high)


def _joint_change(
    logs: Matrix, group: _Candidate, kind: str, limits: SlowLimits
) -> JointChange | None:
    onsets = _onsets(group, limits)
    changed = onsets >= 0
    if changed.sum() < 2 or (~changed).sum() < REST_MIN:
        return None
    shifts = group.own - column_medians(group.own[~changed])
    pooled = column_medians(shifts[_largest_cluster(onsets, _tolerance(shifts, limits))])
    episode = _common_episode(pooled, len(group.rows), limits)
    if episode is None:
        return None
    inside = _columns(episode, len(pooled))
    members = (log_rises(shifts, inside) >= np.log(limits.ratio)) & _begins(
        onsets, shifts, episode.first, limits
    )
    rest = ~members & ~changed
    if not (
        _is_a_part(members, changed)
        and _is_clear(logs, group, shifts, members, rest, inside, limits)
        and _is_unlike_the_rest(shifts[rest], episode, limits)
    ):
        return None
    suspects = [
        _suspect(group, shifts, place, episode, inside, kind, limits)
        for place in np.flatnonzero(members).tolist()
    ]
    if min(suspect.held for suspect in suspects) < HELD_BY_EACH:
        return None
    return JointChange(tuple(sorted(suspects, key=lambda suspect: -suspect.ratio)), len(group.rows))


def _common_episode(
    pooled: NDArray[np.float64], workers: int, limits: SlowLimits
) -> Episode | None:
    """Return the episode of the members' median, or None where it is faint, patchy or gradual."""
    episode = find_episode(pooled, limits.steps_min)
    if episode is None or not _stands_out(episode, limits):
        return None
    inside = _columns(episode, len(pooled))
    if held_share(pooled, inside, episode.rise, workers, limits) is None:
        return None
    return episode if _is_sudden(pooled, episode, limits) else None


def _is_a_part(members: NDArray[np.bool_], changed: NDArray[np.bool_]) -> bool:
    """Return whether two or more, at most half, and most of those that changed at all are members."""
    count = int(members.sum())
    return 2 <= count <= len(members) // 2 and int((changed & ~members).sum()) * 2 <= count


def _suspect(
    group: _Candidate,
    shifts: Matrix,
    place: int,
    episode: Episode,
    inside: NDArray[np.bool_],
    kind: str,
    limits: SlowLimits,
) -> Suspect:
    series = shifts[place]
    rise = float(log_rises(series[None], inside)[0])
    above = series[inside] - float(np.nanmedian(series[~inside]))
    return Suspect(
        row=int(group.rows[place]),
        ratio=float(np.exp(rise)),
        first=episode.first,
        end=episode.end,
        reason=Reason.SLOWER_TOGETHER,
        kind=kind,
        held=share_above(above, min(float(np.log(limits.ratio)), 0.5 * rise)),
        confidence=0.9 * (0.9 if inside.sum() < 10 else 1.0),
    )


def _columns(episode: Episode, steps: int) -> NDArray[np.bool_]:
    inside = np.zeros(steps, dtype=bool)
    inside[episode.first : episode.end] = True
    return inside


def _onsets(group: _Candidate, limits: SlowLimits) -> Rows:
    """Return the column at which each worker rose above the rest, -1 where it did not.

    Found in rounds: each takes those that rose out of the reference.
    """
    own = group.own
    onsets = np.full(len(own), -1)
    reference = _low_quantile(own)
    for _round in range(ROUNDS_MAX):
        now = np.full(len(own), -1)
        for place in group.high.tolist():
            now[place] = _onset(own[place] - reference, own[place], limits)
        is_settled = bool(((now >= 0) == (onsets >= 0)).all())
        onsets = now
        if is_settled or (onsets < 0).sum() < REST_MIN:
            break
        reference = column_medians(own[onsets < 0])
    return onsets


def _onset(shifts: NDArray[np.float64], own: NDArray[np.float64], limits: SlowLimits) -> int:
    """Return where a worker's episode above the reference and its own past begins, else -1."""
    episode = find_episode(shifts, limits.steps_min)
    if episode is None or not _stands_out(episode, limits):
        return -1
    rise = log_rises(own[None], _columns(episode, len(own)))[0]
    return episode.first if rise >= 0.5 * episode.rise else -1


def _tolerance(shifts: Matrix, limits: SlowLimits) -> float:
    return float(max(limits.steps_min, ONSET_TOLERANCE * shifts.shape[1]))


def _largest_cluster(onsets: Rows, tolerance: float) -> NDArray[np.bool_]:
    """Return the most workers whose onsets lie within the tolerance of one of them."""
    near = [(onsets >= 0) & (np.abs(onsets - onset) <= tolerance) for onset in onsets[onsets >= 0]]
    return max(near, key=lambda cluster: int(cluster.sum()))


def _begins(onsets: Rows, shifts: Matrix, first: int, limits: SlowLimits) -> NDArray[np.bool_]:
    """Return whose own episode begins where that of all does, as far as noise lets it."""
    tolerance = _tolerance(shifts, limits)
    begins = (onsets >= 0) & (np.abs(onsets - first) <= tolerance)
    level = log_rises(shifts, np.arange(shifts.shape[1]) >= first)
    faint = (onsets < 0) & (level >= 0.5 * np.log(limits.ratio))  # too faint to be seen alone
    for place in np.flatnonzero(faint).tolist():
        episode = find_episode(shifts[place], limits.steps_min)
        begins[place] = episode is not None and abs(episode.first - first) <= tolerance
    return begins


def _is_clear(
    logs: Matrix,
    group: _Candidate,
    shifts: Matrix,
    members: NDArray[np.bool_],
    rest: NDArray[np.bool_],
    inside: NDArray[np.bool_],
    limits: SlowLimits,
) -> bool:
    """Return whether the members rose by their own past, and nobody of the rest nearly as much."""
    risen = log_rises(shifts, inside)
    others = risen[rest & np.isfinite(risen)]
    if len(others) < REST_MIN:
        return False
    spread = 1.4826 * float(np.median(np.abs(others - np.median(others))))
    smallest = float(risen[members].min())
    if smallest < max(limits.sigmas * spread, 2.0 * float(others.max())):
        return False
    elsewhere = log_rises(logs[outside(group.rows, len(logs))], inside)
    elsewhere = elsewhere[np.isfinite(elsewhere)]
    common = max(0.0, float(np.median(elsewhere))) if len(elsewhere) else 0.0
    own = log_rises(group.own, inside)[members] - common
    return bool((own >= 0.5 * risen[members]).all())


def _low_quantile(own: Matrix) -> NDArray[np.float64]:
    ordered = np.sort(own, axis=0)  # NaN last
    known = np.isfinite(own).sum(axis=0)
    places = np.maximum((known * QUANTILE).astype(np.intp), 0)
    return np.asarray(ordered[places, np.arange(own.shape[1])])


def _stands_out(episode: Episode, limits: SlowLimits) -> bool:
    chance = limits.chance_sigmas * episode.noise * episode.sure
    return episode.rise >= max(float(np.log(limits.ratio)), chance)


def _is_sudden(pooled: NDArray[np.float64], episode: Episode, limits: SlowLimits) -> bool:
    """Return whether most of the rise came at the first step: a cause that workers share comes at once.

    What was so from the first steps of the record on is no change.
    """
    if episode.first < limits.steps_min:
        return False
    width = max(limits.steps_min, (episode.end - episode.first) // 10)
    before = pooled[max(0, episode.first - width) : episode.first]
    after = pooled[episode.first : min(episode.first + width, episode.end)]
    jump = float(np.nanmedian(after) - np.nanmedian(before))
    return jump >= 0.5 * episode.rise


def _is_unlike_the_rest(rest: Matrix, episode: Episode, limits: SlowLimits) -> bool:
    """Return whether the rise is far above the best episodes of those that did not change.

    Where times wander everybody has an episode, and it proves nothing.
    """
    usual = [
        best.rise / (max(best.noise, episode.noise) * best.sure)
        for series in rest[:: max(1, len(rest) // PEERS_ASKED_MAX)]
        if (best := find_episode(series, limits.steps_min)) is not None
        and max(best.noise, episode.noise) > 0
    ]
    if not usual or not episode.noise:
        return True
    mine = episode.rise / (episode.noise * episode.sure)
    return mine >= limits.drift * float(np.median(usual))
