"""Slow rank in a running job: whose own work takes longer, judged as step records arrive.

A rank's own work in a step is the step's time less the time in which it could only wait for others.
In a synchronous job every rank's step gets longer with the slowest, but only the others' waiting
grows. Each look judges the steps since the last look, so looks are independent of each other;
`detectors.persistence` decides when looks begin and end a finding.

Rules, in this order (docs/reference/thresholds.md gives the figures' reasons):
1. Only peers are compared. Steps with a checkpoint, start-up steps and steps far longer than the
   others (evaluation, compiling) are left out.
2. A rank is slow if its own work is longer than its peers' *and* than in its own past, costs the
   step enough to matter, in most steps, far beyond noise.
3. Without a past it must be much slower than peers that do the same work.
4. If more than half of a group is slow, the group is, and no rank is named.
The section says what grew: compute (everything that is not one of the others), communication
(sending, without the waiting) or io.

Memory: 20 bytes per rank and step kept, 110 MB for 100,000 ranks. bench/slow_live.py times a look.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.slow.live_look import SECTIONS, STEPS_JUDGED, LiveLimits, SlowLook, SlowRank, StepRow
from detectors.slow.peers import Rows
from detectors.slow.rises import find_episode, robust_noise

STEPS_KEPT: Final = 64
PAST_LOOKS: Final = 8
SAMPLE_MAX: Final = 1_024  # peers that are asked how much they vary
SUSPECTS_MAX: Final = 256  # if there are more, single ranks are not at fault

Floats = NDArray[Any]  # 32 bits, to save memory with 100,000 ranks
Column = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Finished steps of some ranks, sorted by rank, then number. Totals since attachment."""

    ranks: Numbers
    numbers: Numbers  # record numbers: without a gap, two totals differ by one step
    steps: Numbers
    durations_s: Column  # NaN where it is not known
    totals_s: NDArray[np.float64]  # rows x (communication, waited, io, checkpoint)


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """How every rank compares with its peers."""

    last_step: int
    step_s: float  # median step
    factors: Floats  # a rank's own work in a step over its peers'; NaN where it is not known


@dataclass(frozen=True, slots=True, eq=False)
class _Peers:
    """What a look has of ranks that are compared with each other. The last axis of an array is their place."""

    rows: Rows
    slots: Rows
    step_s: float  # median step of all ranks
    work: Floats  # sections x steps x ranks
    own: Floats  # steps x ranks: of all sections together
    shifts: Floats  # steps x ranks: logarithm of own work over the peers'
    levels: Floats  # what is usual of these shifts, by rank
    changes: Floats  # the level less what was normal for the rank, as far as that is known
    is_new: NDArray[np.bool_]  # nothing is known to be normal for the rank
    easing: Column  # what limits are multiplied by: less than 1 for ranks that are called slow now
    noise: float
    spread: float


class SlowLive:
    """The newest steps of one attempt, and what was normal for each rank."""

    def __init__(
        self,
        world_size: int,
        limits: LiveLimits | None = None,
        groups: Sequence[Rows] = (),
    ) -> None:
        self._limits = limits or LiveLimits()
        self._groups = tuple(groups) or (np.arange(world_size, dtype=np.intp),)
        self.does_same_work = True  # assumed of peers; False once ranks are seen to pair up
        self._numbers = np.zeros(world_size, dtype=np.int64)
        self._totals = np.zeros((world_size, 4))
        self._work: Floats = np.full(
            (len(SECTIONS), STEPS_KEPT, world_size), np.nan, dtype=np.float32
        )
        self._durations: Floats = np.full((STEPS_KEPT, world_size), np.nan, dtype=np.float32)
        self._step_of = np.full(STEPS_KEPT, -1, dtype=np.int64)
        self._is_saving = np.zeros(STEPS_KEPT, dtype=np.bool_)
        self._tells_waiting = False
        self._first_step: int | None = None
        self._looked_through = -1
        self._looked_at_s: float | None = None
        self._tried_at_s = -1.0
        self._past: Floats = np.full((PAST_LOOKS, world_size), np.nan, dtype=np.float32)
        self._looks = 0
        self.pace: Pace | None = None  # by the newest look; replaced as a whole
        self._onsets: dict[
            int, tuple[int, bool]
        ] = {}  # for ranks that were slow in the newest look

    def set_groups(self, groups: Sequence[Rows]) -> None:
        """Compare within these groups of rows from now on; what was normal against others no longer counts."""
        self._groups = tuple(groups)
        self._past[:] = np.nan
        self._onsets.clear()

    def add_rows(self, rows: Sequence[StepRow]) -> None:
        """Take in finished steps in any order; see `add_steps`."""
        if rows:
            self.add_steps(_steps_of(rows))

    def add_steps(self, reported: Steps) -> None:
        """Take in finished steps; skip repeats and those older than the ring."""
        if not len(reported.ranks):
            return
        ranks, numbers = reported.ranks, reported.numbers
        is_first = np.ones(len(ranks), dtype=np.bool_)
        is_first[1:] = ranks[1:] != ranks[:-1]
        before = np.where(is_first, self._numbers[ranks], np.roll(numbers, 1))
        totals_before = np.where(
            is_first[:, None], self._totals[ranks], np.roll(reported.totals_s, 1, axis=0)
        )
        spent = reported.totals_s - totals_before
        is_known = (numbers == before + 1) & (reported.durations_s > 0) & (spent >= 0).all(axis=1)
        is_known &= reported.steps >= 0
        is_last = np.ones(len(ranks), dtype=np.bool_)
        is_last[:-1] = is_first[1:]
        is_newer = is_last & (numbers > self._numbers[ranks])
        self._numbers[ranks[is_newer]] = numbers[is_newer]
        self._totals[ranks[is_newer]] = reported.totals_s[is_newer]
        self._tells_waiting = self._tells_waiting or bool((spent[is_known, 1] > 0).any())
        self._put(reported, spent, np.flatnonzero(is_known))

    def _put(self, reported: Steps, spent: NDArray[np.float64], rows: Rows) -> None:
        """Keep these rows; of two steps for one slot the later one stays."""
        slots = reported.steps[rows] % STEPS_KEPT
        is_kept = reported.steps[rows] >= self._step_of[slots]
        rows, slots = rows[is_kept], slots[is_kept]
        if not len(rows):
            return
        steps = reported.steps[rows]
        first = int(steps.min())
        self._first_step = first if self._first_step is None else min(self._first_step, first)
        before = self._step_of.copy()
        np.maximum.at(self._step_of, slots, steps)
        begun = np.flatnonzero(self._step_of > before)
        self._work[:, begun] = np.nan
        self._durations[begun] = np.nan
        self._is_saving[begun] = False
        is_kept = self._step_of[slots] == steps
        rows, slots = rows[is_kept], slots[is_kept]
        ranks, durations = reported.ranks[rows], reported.durations_s[rows]
        communication, waited, io, saving = spent[rows].T
        sending = communication - waited if self._tells_waiting else np.zeros(len(rows))
        self._durations[slots, ranks] = durations
        self._work[0, slots, ranks] = np.maximum(durations - communication - io - saving, 0.0)
        self._work[1, slots, ranks] = np.maximum(sending, 0.0)
        self._work[2, slots, ranks] = io
        self._is_saving[slots[saving > 0]] = True

    def look(self, now_s: float, active: frozenset[int] = frozenset()) -> SlowLook | None:
        """Return what the steps since the last look say, or None if it is too early for a look.

        ``active``: ranks that are called slow now; they stay so down to half of the limits.
        """
        limits = self._limits
        if self._looked_at_s is None:
            self._looked_at_s = now_s
        is_early = now_s - self._looked_at_s < limits.look_s
        if is_early or 0 <= now_s - self._tried_at_s < limits.look_s / 4:
            return None
        self._tried_at_s = now_s
        slots = self._slots_to_judge()
        if len(slots) < limits.steps_min:
            return None
        self._looked_at_s = now_s
        self._looked_through = int(self._step_of[slots[-1]])
        return self._judge(slots[-STEPS_JUDGED:], active)

    def _slots_to_judge(self) -> Rows:
        """Return the slots of whole, ordinary steps since the last look, the oldest first."""
        limits = self._limits
        if self._first_step is None:
            return np.empty(0, dtype=np.intp)
        telling = int((self._numbers > 0).sum())
        start = max(self._looked_through, self._first_step + limits.startup_steps - 1)
        newest = int(self._step_of.max())
        present = np.isfinite(self._durations).sum(axis=1)
        # One silent rank must not keep the others from being judged.
        is_whole = (present == telling) | (
            (present * 2 >= telling) & (self._step_of < newest - STEPS_KEPT // 4)
        )
        is_open = (self._step_of > start) & is_whole & (present >= 2) & ~self._is_saving
        slots = np.flatnonzero(is_open)
        if not len(slots):
            return slots
        longest = np.nanmax(self._durations[slots], axis=1)
        slots = slots[longest <= limits.long_step * np.median(longest)]
        ordered: Rows = slots[np.argsort(self._step_of[slots])]
        return ordered

    def _judge(self, slots: Rows, active: frozenset[int]) -> SlowLook:
        work = self._work[:, slots]
        total = work.sum(axis=0)
        step_s = float(np.nanmedian(self._durations[slots]))
        slow: list[SlowRank] = []
        levels = np.full(total.shape[1], np.nan, dtype=np.float32)
        abstention = ""
        for rows in self._groups:
            if len(rows) < 2:
                continue
            found, group_levels = self._judge_group(slots, work, total, rows, step_s, active)
            levels[rows] = group_levels
            if 2 * len(found) > len(rows) or len(found) > SUSPECTS_MAX:
                abstention = f"{len(found)} of {len(rows)} peers are slower than the others"
                continue
            slow += found
        self.pace = Pace(int(self._step_of[slots[-1]]), step_s, np.exp(levels))
        ranks = int(np.isfinite(levels).sum())
        self._remember(levels, slow, active)
        return SlowLook(
            first_step=int(self._step_of[slots[0]]),
            last_step=int(self._step_of[slots[-1]]),
            steps=len(slots),
            ranks=ranks,
            slow=tuple(sorted(slow, key=lambda rank: -rank.factor)),
            abstention=abstention,
        )

    def _judge_group(
        self,
        slots: Rows,
        work: Floats,
        total: Floats,
        rows: Rows,
        step_s: float,
        active: frozenset[int],
    ) -> tuple[list[SlowRank], Floats]:
        """Return which ranks of these rows are slow, and by how much each differs from the others."""
        limits = self._limits
        shifts = _shifts(total[:, rows])
        levels = _medians(shifts)
        past = self._past_levels(rows)
        is_new = ~np.isfinite(past)
        changes = np.where(is_new, levels, levels - np.nan_to_num(past))
        # One threshold for all comes first: it leaves a few of 100,000 ranks for a closer look.
        is_active = np.isin(rows, np.fromiter(active, dtype=np.intp, count=len(active)))
        easing = np.where(is_active, 0.5, 1.0)
        needed = np.log(limits.ratio) * easing
        candidates = np.flatnonzero((levels >= needed) & (changes >= needed))
        if not len(candidates):
            return [], levels
        peers = _Peers(
            rows, slots, step_s, work[:, :, rows], total[:, rows], shifts, levels, changes, is_new, easing,
            *_noise(shifts, changes),
        )  # fmt: skip
        strongest = candidates[np.argsort(-levels[candidates])][: len(rows) // 2 + 1]
        judged = (self._judge_rank(peers, int(place)) for place in strongest)
        return [slow for slow in judged if slow is not None], levels

    def _judge_rank(self, peers: _Peers, place: int) -> SlowRank | None:
        """Return the rank at this place if it is slow in most steps, far beyond noise, and costs enough."""
        limits, ease = self._limits, float(peers.easing[place])
        is_always = bool(peers.is_new[place])
        level, change = float(peers.levels[place]), float(peers.changes[place])
        needed_always = np.log(limits.always_ratio) * ease
        if is_always and not (self.does_same_work and level >= needed_always):
            return None
        series = peers.shifts[:, place]
        held = float(np.mean(series >= np.log(limits.ratio) * ease * 0.5))
        error = 1.25 * max(peers.noise, robust_noise(series)) / np.sqrt(len(series))
        sigmas = change / float(np.hypot(max(error, 1e-4), peers.spread))
        others = _middle(peers.own, place)
        excess_s = max(float(np.nanmedian(peers.own[:, place] - others)), 0.0)
        impact = excess_s / peers.step_s
        # A figure that is no number accuses nobody.
        is_enough = sigmas >= limits.sigmas * ease and impact >= limits.impact * ease
        if held < limits.held or not is_enough:
            return None
        row = int(peers.rows[place])
        onset = self._onsets.get(row) or self._find_onset(
            row, peers.rows, peers.slots, is_always=is_always
        )
        self._onsets[row] = onset
        peers_s = float(np.nanmedian(others))
        excess = _excess(peers.work, place)
        return SlowRank(
            rank=row,
            section=SECTIONS[int(np.argmax(excess))],
            factor=float(np.exp(level)),
            step_factor=peers.step_s / max(peers.step_s - excess_s, 1e-9),
            onset_step=onset[0],
            is_always=onset[1],
            own_s=peers_s + excess_s,
            peers_s=peers_s,
            excess_s=excess,
            held=held,
            sigmas=sigmas,
        )

    def _past_levels(self, rows: Rows) -> Floats:
        """Return each rank's normal level, NaN with fewer than two looks to take it from."""
        past = self._past[:, rows]
        known = np.isfinite(past).sum(axis=0)
        levels = _medians(past)
        return np.where(known >= 2, levels, np.float32(np.nan))

    def _remember(self, levels: Floats, slow: Sequence[SlowRank], active: frozenset[int]) -> None:
        """Take the levels of this look into each rank's past, without those that are slow."""
        named = {item.rank for item in slow}
        self._onsets = {
            rank: onset for rank, onset in self._onsets.items() if rank in named | active
        }
        for rank in named | active:
            levels[rank] = np.nan
        slot = self._looks % PAST_LOOKS
        is_known = np.isfinite(levels)
        self._past[slot, is_known] = levels[is_known]
        self._looks += 1

    def _find_onset(
        self, row: int, rows: Rows, slots: Rows, *, is_always: bool
    ) -> tuple[int, bool]:
        """Return the step at which the rank became slow, and whether it always was."""
        if is_always:
            assert self._first_step is not None, "there were steps to judge"
            return self._first_step, True
        through = int(self._step_of[slots[-1]])
        order = np.flatnonzero((self._step_of >= 0) & (self._step_of <= through))
        order = order[np.argsort(self._step_of[order])]
        own = self._work[:, order][:, :, rows].sum(axis=0)
        place = int(np.flatnonzero(rows == row)[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            series = np.log(own[:, place]) - np.log(_middle(own, place))
        episode = find_episode(series.astype(np.float64), self._limits.steps_min)
        if episode is None or episode.rise <= 0:
            return int(self._step_of[slots[0]]), False
        return int(self._step_of[order[episode.first]]), False


def _middle(own: Floats, place: int) -> Floats:
    """Return, for each step, what the peers of the rank at ``place`` take: their median."""
    if own.shape[1] == 2:
        other: Floats = own[:, 1 - place]
        return other
    return _medians(own.T)


def _shifts(own: Floats) -> Floats:
    """Return the logarithm of each rank's own work over its peers', steps x ranks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(own, np.float32(1e-6)))
    if own.shape[1] == 2:
        reference: Floats = logs[:, ::-1]
    else:
        reference = _medians(logs.T)[:, None]
    shifts: Floats = logs - reference
    return shifts


def _medians(values: Floats) -> Floats:
    """Return the lower median of each column over its known values, NaN where there is none."""
    if np.isfinite(values).all():
        middle = (len(values) - 1) // 2
        picked: Floats = np.partition(values, middle, axis=0)[middle]
        return picked
    ordered = np.sort(values, axis=0)  # NaN last
    known = np.isfinite(values).sum(axis=0)
    picked = np.take_along_axis(ordered, np.maximum(known - 1, 0)[None] // 2, axis=0)[0]
    return np.where(known > 0, picked, np.float32(np.nan))


def _noise(shifts: Floats, changes: Floats) -> tuple[float, float]:
    """Return how much a step varies for an ordinary rank, and one rank's look from another's."""
    stride = max(1, shifts.shape[1] // SAMPLE_MAX)
    noises = [robust_noise(shifts[:, place]) for place in range(0, shifts.shape[1], stride)]
    noise = float(np.median(noises))
    if shifts.shape[1] < 4:
        return noise, 0.0
    known = changes[np.isfinite(changes)]
    spread = 1.4826 * float(np.median(np.abs(known - np.median(known)))) if len(known) else 0.0
    return noise, spread


def _excess(work: Floats, place: int) -> tuple[float, ...]:
    """Return by how much each section of the rank at ``place`` is longer than its peers'."""
    return tuple(float(np.nanmedian(part[:, place] - _middle(part, place))) for part in work)


def _steps_of(rows: Sequence[StepRow]) -> Steps:
    """Return steps of some ranks as arrays, sorted by rank and number."""
    # Column by column: an array of rows that are sorted and cut in Python takes three times as long.
    columns = list(zip(*rows, strict=True))
    numbers = np.array(columns[:3], dtype=np.int64)
    seconds = np.array(columns[3:], dtype=np.float64)
    order = np.lexsort((numbers[1], numbers[0]))
    numbers, seconds = numbers[:, order], seconds[:, order]
    totals_s = np.ascontiguousarray(seconds[1:].T)
    return Steps(numbers[0], numbers[1], numbers[2], seconds[0], totals_s)
