"""Meters of one attempt: what its steps, its work and its saves take."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from rankmend.rank_values import ToldHidden
from recovery.journal.attempt_records import (
    SavesSeen,
    SavesStalled,
    SaveStall,
    StallSource,
    StepsSeen,
    WorkSeen,
    add_hidden,
    hidden_communication,
    hidden_io,
)
from recovery.messages.candidates import Candidate, CheckpointVerdict, Hindrance
from recovery.messages.exchange import RankReport, RankWork, Report, StepTiming

# A step of a rank: when it was reported, and the totals until then
_Mark = tuple[float, StepTiming, ToldHidden | None]

_TOOK_S_MIN: Final = 1.0  # reports come twice a second: in less, their dates are most of the result

_STALL_S_MIN: Final = 0.001  # a script that enters the section each step to see if a save is due
_STALL_S_MAX: Final = 86400.0  # nothing saves for a day: what a broken clock shows
_STALL_RATIO_MIN: Final = 0.1  # of the longest: less is no save, but a look at whether one is due
_STALLS_KEPT: Final = 64  # saves between two notes; usual is one
_STEPS_KEPT: Final = 1024  # of one rank: a checkpoint is noted 10 s or more after its step
_STEPS_MIN: Final = 8  # for a median
_STEPS_AROUND: Final = 3  # scripts name a checkpoint by the step just done, or by the next one
_SAVES_KEPT: Final = 64
_LOOK_S: Final = 5.0  # scan_interval_s: a change was made at most so long before it was seen
_PATHS_KEPT: Final = 256

_Marks = tuple[int, float]  # size in bytes, unix seconds of the newest change


class StepMeter:
    """Adds up what the ranks of one attempt spend their steps on, by their sections.

    The first step that a rank reports does not count: it may have begun with the start.
    """

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget all: another attempt begins."""
        self._attempt = attempt
        self._base: dict[int, _Mark] = {}  # by rank: at the newest `take`, or as first reported
        self._newest: dict[int, _Mark] = {}

    def note_report(self, report: Report, now_s: float) -> None:
        """Add the steps in a report."""
        if report.attempt != self._attempt:
            return
        base, newest = self._base, self._newest
        for rank in report.ranks:
            if not (rank.timings and rank.sections_entered):
                continue
            timing = rank.timings[-1]
            mark = newest[rank.rank] = (now_s, timing, rank.hidden)
            known = base.get(rank.rank)
            if known is None or timing.number < known[1].number:  # of another process
                base[rank.rank] = mark

    def take(self) -> StepsSeen | None:
        """Return what was spent since the last call; None where no rank with sections has made a step."""
        ranks = steps = 0
        step_s = compute_s = communication_s = waited_s = io_s = checkpoint_s = 0.0
        communication, reading = [], []
        for rank, (told_s, after, hidden) in self._newest.items():
            known_s, before, hidden_before = self._base[rank]
            if after.number <= before.number:
                continue
            ranks += 1
            steps += after.number - before.number
            step_s += max(0.0, (told_s - after.age_s) - (known_s - before.age_s))
            compute_s += max(0.0, after.compute_s - before.compute_s)
            communication_s += max(0.0, after.communication_s - before.communication_s)
            waited_s += max(0.0, after.waited_s - before.waited_s)
            io_s += max(0.0, after.io_s - before.io_s)
            checkpoint_s += max(0.0, after.checkpoint_s - before.checkpoint_s)
            if hidden is not None:
                since = (hidden_before or ToldHidden(), hidden, after.number - before.number)
                communication.append(hidden_communication(*since))
                reading.append(hidden_io(*since))
        if not steps:
            return None
        self._base = dict(self._newest)
        return StepsSeen(
            self._attempt,
            ranks,
            steps,
            step_s,
            compute_s,
            communication_s,
            waited_s,
            io_s,
            checkpoint_s,
            add_hidden(communication),
            add_hidden(reading),
        )


class WorkMeter:
    """Adds up the work of the ranks of one attempt: FLOPs, tokens, samples.

    The work in a rank's first report does not count: the first step's time is that of a start.
    """

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget all: another attempt begins."""
        self._attempt = attempt
        self._base: dict[int, RankWork] = {}  # by rank: at the newest `take`, or as first reported
        self._newest: dict[int, RankWork] = {}
        self._since_s: float | None = None
        self._changed_s = 0.0

    def note_report(self, report: Report, now_s: float) -> None:
        """Add the work in a report."""
        if report.attempt != self._attempt:
            return
        for rank in report.ranks:
            work = rank.work
            if work is None or work == self._newest.get(rank.rank):
                continue
            self._newest[rank.rank] = work
            self._changed_s = now_s
            if rank.rank not in self._base:
                self._base[rank.rank] = work
                if self._since_s is None:
                    self._since_s = now_s

    def take(self, now_s: float) -> WorkSeen | None:
        """Return the work since the last call; None where there is none, or too little time."""
        since_s = self._since_s
        if since_s is None or self._changed_s - since_s < _TOOK_S_MIN:
            return None
        newest, base = self._newest, self._base
        types = {work.data_type for work in newest.values()}
        devices = {work.device for work in newest.values()}
        seen = WorkSeen(
            attempt=self._attempt,
            took_s=self._changed_s - since_s,
            age_s=max(0.0, now_s - self._changed_s),
            ranks=len(newest),
            flops=sum(max(0.0, item.flops - base[rank].flops) for rank, item in newest.items()),
            tokens=sum(max(0.0, item.tokens - base[rank].tokens) for rank, item in newest.items()),
            samples=sum(
                max(0.0, item.samples - base[rank].samples) for rank, item in newest.items()
            ),
            data_type=types.pop() if len(types) == 1 else "",
            device=devices.pop() if len(devices) == 1 else "",
        )
        self._base, self._since_s = dict(newest), self._changed_s
        return seen


@dataclass(slots=True)
class _Stall:
    """A step in which ranks were in their checkpoint sections."""

    at_s: float
    stall_s: float  # of the slowest rank


@dataclass(slots=True)
class _Files:
    """A candidate whose files are being written, or were."""

    marks: _Marks
    began_at_s: float  # our time at which a change was first seen
    changed_at_s: float
    is_whole: bool


@dataclass(frozen=True, slots=True)
class _Save:
    """A checkpoint that is whole, and was not before."""

    step: int | None
    modified_unix_s: float
    took_s: float


class SaveMeter:
    """Measures the saves of one attempt: how often, for how long training stops, how long files take.

    For how long a save stops training comes from the checkpoint sections that the ranks report: of
    each save that of the slowest rank, since the others wait for it. A script without sections
    shows only that a step around the save took longer, which is the stall at most.

    How long the files take comes from their times, and from when they were first seen to change and
    last: the longer of both, since a writer of one file shows only its end, and one that renames a
    folder into place shows nothing before. Times of the storage's clock are compared with each
    other only.
    """

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget all: another attempt begins, and what lies in the folder is not its own."""
        self._attempt = attempt
        self._totals: dict[int, float] = {}  # rank, seconds in its checkpoint section so far
        self._stalls: OrderedDict[int, _Stall] = OrderedDict()  # by the step's record number
        self._taken_at_s = float("-inf")
        self._reported_at_s = float("-inf")
        self._lead: int | None = None  # the rank whose steps are looked at
        self._steps: deque[tuple[int, float]] = deque(maxlen=_STEPS_KEPT)  # number, duration
        self._files: dict[str, _Files] | None = None
        self._saves: deque[_Save] = deque(maxlen=_SAVES_KEPT)  # since the last `take`
        self._saved_unix_s: float | None = None  # the newest that was taken

    def note_report(self, report: Report, now_s: float) -> None:
        """Add the steps in a report."""
        if report.attempt != self._attempt:
            return
        for rank in report.ranks:
            if not rank.timings:
                continue
            total_s = rank.timings[-1].checkpoint_s
            known_s = self._totals.get(rank.rank)
            if known_s is None or total_s - known_s >= _STALL_S_MIN:
                self._note_stalls(rank, known_s, now_s)
            self._totals[rank.rank] = total_s
            if self._lead is None or rank.rank <= self._lead:
                self._note_steps(rank)

    def _note_stalls(self, rank: RankReport, known_s: float | None, now_s: float) -> None:
        for timing in rank.timings:
            # What a section took before the first step is a restore, and no save.
            stall_s = 0.0 if known_s is None else timing.checkpoint_s - known_s
            known_s = timing.checkpoint_s
            if not _STALL_S_MIN <= stall_s <= _STALL_S_MAX:
                continue
            at_s = now_s - timing.age_s
            known = self._stalls.get(timing.number)
            if known is None:
                self._stalls[timing.number] = _Stall(at_s, stall_s)
                if len(self._stalls) > _STALLS_KEPT:
                    self._stalls.popitem(last=False)
            else:
                known.stall_s = max(known.stall_s, stall_s)

    def _note_steps(self, rank: RankReport) -> None:
        if rank.rank != self._lead:
            self._lead = rank.rank
            self._steps.clear()
        if rank.is_relative:  # no checkpoint names such a step
            return
        for timing in rank.timings:
            if timing.duration_s is not None:
                self._steps.append((timing.step, timing.duration_s))

    def note_known(self, verdicts: Sequence[CheckpointVerdict], now_s: float) -> None:
        """Take in the newest look into the folder, an empty one as well."""
        is_first, files = self._files is None, self._files or {}
        self._files = files
        for verdict in verdicts:
            if verdict.hindrance in (Hindrance.ALIAS, Hindrance.MISSING):
                continue
            candidate = verdict.candidate
            marks = (candidate.size_bytes, candidate.modified_unix_s)
            known = files.get(candidate.path)
            if known is None:
                # A new one is first seen within its grace, in which it does not count as whole.
                is_old = is_first or verdict.is_valid
                known = files[candidate.path] = _Files(marks, now_s, now_s, is_old)
            elif not candidate.size_bytes or not known.marks[0]:
                # A folder that was listed and not walked, for which a newer one was enough.
                known.marks = marks if candidate.size_bytes else known.marks
            elif known.marks != marks:
                if known.is_whole:  # it is written over
                    known.began_at_s, known.is_whole = now_s, False
                known.marks, known.changed_at_s = marks, now_s
            if verdict.is_valid and not known.is_whole:
                known.is_whole = True
                before = self._saves[-1].modified_unix_s if self._saves else self._saved_unix_s
                self._saves.append(_saved(candidate, known, before or 0.0))
        while len(files) > _PATHS_KEPT:
            del files[next(iter(files))]

    def take(self) -> SavesSeen | None:
        """Return how the saves went since the last call; None where none was seen."""
        stalls = self._stalls_of_saves()
        fresh = [stall for stall in stalls if stall.at_s > self._taken_at_s]
        saves, self._saves = list(self._saves), deque(maxlen=_SAVES_KEPT)
        if not fresh and not saves:
            return None
        stall_s, source = None, StallSource.UNKNOWN
        if fresh:
            self._taken_at_s = fresh[-1].at_s
            stall_s, source = fmean(stall.stall_s for stall in fresh), StallSource.SECTION
        elif not stalls:
            stall_s = self._longer_steps(saves)
            source = StallSource.UNKNOWN if stall_s is None else StallSource.STEPS
        took_s = saves[-1].took_s if saves else 0.0
        if source is StallSource.SECTION and stall_s is not None:
            took_s = max(took_s, stall_s)
        times = sorted(save.modified_unix_s for save in saves)
        seen = SavesSeen(
            count=len(fresh) or len(saves),
            interval_s=_interval(stalls, len(fresh)) if fresh else self._file_interval(times),
            stall_s=stall_s,
            stall_source=source,
            save_s=took_s or None,
        )
        if times:
            self._saved_unix_s = times[-1]
        return seen

    def take_stalls(self, now_s: float) -> SavesStalled | None:
        """Return the saves that stopped training since the last call; None where none did."""
        fresh = [stall for stall in self._stalls_of_saves() if stall.at_s > self._reported_at_s]
        if not fresh:
            return None
        self._reported_at_s = fresh[-1].at_s
        stalls = (SaveStall(max(0.0, now_s - stall.at_s), stall.stall_s) for stall in fresh)
        return SavesStalled(self._attempt, tuple(stalls))

    def _stalls_of_saves(self) -> list[_Stall]:
        longest_s = max((stall.stall_s for stall in self._stalls.values()), default=0.0)
        stalls = [
            stall
            for stall in self._stalls.values()
            if stall.stall_s >= _STALL_RATIO_MIN * longest_s
        ]
        return sorted(stalls, key=lambda stall: stall.at_s)

    def _file_interval(self, times: list[float]) -> float | None:
        """Return the mean time between the newest saves; ``times``: theirs, oldest first."""
        before = [] if self._saved_unix_s is None else [self._saved_unix_s]
        return _mean_gap([*before, *times])

    def _longer_steps(self, saves: list[_Save]) -> float | None:
        """Return by how much the longest step around a save exceeds the median of all."""
        if len(self._steps) < _STEPS_MIN:
            return None
        usual_s = median(duration_s for _step, duration_s in self._steps)
        longest = []
        for save in saves:
            if save.step is None:
                continue
            after = range(save.step, save.step + _STEPS_AROUND)
            around = [duration_s for step, duration_s in self._steps if step in after]
            if len(around) == _STEPS_AROUND:
                longest.append(max(around))
        return max(0.0, median(longest) - usual_s) if longest else None


def _saved(candidate: Candidate, files: _Files, before_unix_s: float) -> _Save:
    """Return a save; ``before_unix_s``: end of the one before, which may have left files in this one."""
    oldest = candidate.oldest_unix_s
    span_s = candidate.modified_unix_s - oldest if oldest > before_unix_s else 0.0
    took_s = max(0.0, span_s, files.changed_at_s - files.began_at_s - _LOOK_S)
    return _Save(candidate.step, candidate.modified_unix_s, took_s)


def _interval(stalls: list[_Stall], fresh: int) -> float | None:
    """Return the mean time between the newest saves and the one before them."""
    return _mean_gap([stall.at_s for stall in stalls[-fresh - 1 :]])


def _mean_gap(times_s: list[float]) -> float | None:
    gaps = [later - earlier for earlier, later in pairwise(times_s) if later > earlier]
    return fmean(gaps) if gaps else None
