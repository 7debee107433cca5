"""What the reports show of one attempt: each rank's newest known state. Pure.

Reports come late, twice and out of order. Counters only grow, an end stays an end, and the report
that makes an event earliest dates it, so that an old report changes nothing. All times are the
controller's own monotonic seconds: what travels is an age.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from detectors.failed.error_classes import read_end
from detectors.failed.error_text import ErrorText
from detectors.failed.failed_ranks import RankEnd
from detectors.failed.said_error import NOTHING_SAID
from detectors.hang.live import RankStand
from detectors.node.job_libraries import LibraryShare, RankLibrary, find_mixed_jobs
from rankmend.rank_values import ScriptEnd
from recovery.journal.limits import Policy
from recovery.messages.exchange import RankExit, RankReport, RankStart, Report

KEPT: Final = 33  # 32 step times a rank for the median
_ROOM: Final = KEPT + 1  # another thread never reads the entry that is being written
_NONE: Final = bytes(2 * _ROOM * 8)
_TRIES: Final = 3  # of another thread, while this one adds

_STEPS_SETTLED: Final = 2  # pauses before that are start-up, not the job's own


class StepEnds:
    """When the last steps of a rank ended: a ring of numbers and times. One thread appends.

    33 pairs of objects for each of 80,000 ranks took 300 MB, which grew for minutes after each
    start of ranks; each growth by half of the memory made the service look for cycles of dead
    objects, for 0.7 s.
    """

    __slots__ = ("_count", "_ring")

    def __init__(self) -> None:
        self._count = 0
        self._ring = array("d", _NONE)  # number, time, number, time; numbers are exact up to 2**53

    def append(self, number: int, at_s: float) -> None:
        place = 2 * (self._count % _ROOM)
        self._ring[place] = number
        self._ring[place + 1] = at_s
        self._count += 1

    @property
    def newest_number(self) -> int:
        """Return the number of the newest; 0: there is none."""
        return int(self._ring[2 * ((self._count - 1) % _ROOM)]) if self._count else 0

    @property
    def newest_at_s(self) -> float | None:
        return self._ring[2 * ((self._count - 1) % _ROOM) + 1] if self._count else None

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Go through number and time, the oldest first. For any thread."""
        for _try in range(_TRIES):
            count, ring = self._count, self._ring[:]
            if count == self._count:
                break
        for at in range(max(0, count - KEPT), count):
            place = 2 * (at % _ROOM)
            yield int(ring[place]), ring[place + 1]


def exit_of_today(end: RankExit) -> RankExit:
    """Return the end with what its words mean.

    A launcher of the version before sent the rank's words alone. Launchers of today read the words
    and report what they mean; nothing else here reads them.
    """
    if end.words is not None or end.exit_code == 0:
        return end
    said = end.error
    error = ErrorText(said.type_name, said.message, said.traceback) if said is not None else None
    return replace(end, words=read_end(error, end.last_lines))


@dataclass(slots=True)
class ObservedRank:
    rank: int
    node: str
    pid: int = 0
    process_state: str = ""
    state_since_s: float = 0.0
    attached_at_s: float | None = None
    resumed_at_s: float | None = None
    first_section_at_s: float | None = None
    rendezvous_began_at_s: float | None = None
    rendezvous_ended_at_s: float | None = None
    first_step_at_s: float | None = None
    first_step: int | None = None
    advanced_at_s: float | None = None  # last step, section change, mark
    step: int | None = None
    steps_done: int = 0
    is_relative: bool = False
    section: str = "idle"
    section_since_s: float | None = None
    sections_entered: int = 0
    collectives_entered: int = 0
    collective_timeout_s: float | None = None
    has_pairs: bool = False
    step_ends: StepEnds = field(default_factory=StepEnds)
    exit: RankExit | None = None
    exited_at_s: float = 0.0
    exit_reported_at_s: float = 0.0
    start: RankStart | None = None
    nccl: tuple[str, ...] = ()
    is_past_training: bool = False
    _script_end: ScriptEnd = ScriptEnd.RUNNING
    _ended_at_step: int = 0

    @property
    def script_end(self) -> ScriptEnd:
        """How its script has ended, if it has made no step since: a process group can be made again."""
        is_so = self._ended_at_step == self.steps_done
        return self._script_end if is_so else ScriptEnd.RUNNING

    @property
    def is_started(self) -> bool:
        return self.pid > 0 or self.exit is not None

    @property
    def is_done(self) -> bool:
        return self.exit is not None and self.exit.exit_code == 0

    @property
    def has_failed(self) -> bool:
        return self.exit is not None and self.exit.exit_code != 0 and not self.exit.by_launcher

    def observe(self, reported: RankReport, now_s: float) -> None:
        if reported.pid > 0:
            self.pid = reported.pid
        if reported.start is not None:
            self.start = reported.start.bounded()
        if reported.nccl:
            self.nccl = reported.nccl
        self.is_past_training = self.is_past_training or reported.is_past_training
        if self.exit is not None:
            return  # whatever comes now was sent before its end
        self._take_progress(reported, now_s)
        if reported.process_state != self.process_state or not self.state_since_s:
            self.process_state, self.state_since_s = reported.process_state, now_s
        if reported.exit is not None:
            self.exit = exit_of_today(reported.exit)
            self.exited_at_s = now_s - reported.exit.age_s
            self.exit_reported_at_s = now_s

    def _take_progress(self, reported: RankReport, now_s: float) -> None:
        self._take_marks(reported, now_s)
        newest = self.step_ends.newest_number if reported.timings else 0
        for timing in reported.timings:
            number = timing.number
            if number == 1:
                self.first_step_at_s = _earlier(self.first_step_at_s, timing.age_s, now_s)
                self.first_step = timing.step
            if number > newest:
                newest = number
                self.step_ends.append(number, now_s - timing.age_s)
        if reported.steps_done == 1 and reported.step_age_s is not None:
            self.first_step_at_s = _earlier(self.first_step_at_s, reported.step_age_s, now_s)
            self.first_step = reported.step
        if reported.collectives_entered >= self.collectives_entered:
            self.collectives_entered = reported.collectives_entered
            self.collective_timeout_s = reported.collective_timeout_s
        self.has_pairs = self.has_pairs or reported.has_pairs
        steps, sections = reported.steps_done, reported.sections_entered
        if steps < self.steps_done or sections < self.sections_entered:
            return  # an old report
        is_same = steps == self.steps_done and sections == self.sections_entered
        if reported.script_end is not self._script_end:
            self._script_end, self._ended_at_step = reported.script_end, steps
        if is_same and reported.section == self.section and self.advanced_at_s is not None:
            return
        self.steps_done, self.sections_entered = steps, sections
        self.step, self.is_relative = reported.step, reported.is_relative
        self.section = reported.section
        if reported.section_age_s is not None:
            self.section_since_s = now_s - reported.section_age_s
        self._note_advance(reported, now_s)

    def _take_marks(self, reported: RankReport, now_s: float) -> None:
        # A call for each, reported or not, took a tenth of the deciding thread.
        if (age_s := reported.attached_age_s) is not None:
            self.attached_at_s = _earlier(self.attached_at_s, age_s, now_s)
        if (age_s := reported.resumed_age_s) is not None:
            self.resumed_at_s = _earlier(self.resumed_at_s, age_s, now_s)
        if (age_s := reported.first_section_age_s) is not None:
            self.first_section_at_s = _earlier(self.first_section_at_s, age_s, now_s)
        if (age_s := reported.rendezvous_began_age_s) is not None:
            self.rendezvous_began_at_s = _earlier(self.rendezvous_began_at_s, age_s, now_s)
        if (age_s := reported.rendezvous_ended_age_s) is not None:
            self.rendezvous_ended_at_s = _earlier(self.rendezvous_ended_at_s, age_s, now_s)

    def _note_advance(self, reported: RankReport, now_s: float) -> None:
        newest_s: float | None = None
        for age_s in (
            reported.step_age_s,
            reported.section_age_s,
            reported.resumed_age_s,
            reported.attached_age_s,
        ):
            if age_s is not None and (newest_s is None or age_s < newest_s):
                newest_s = age_s
        if newest_s is not None:
            self.advanced_at_s = max(now_s - newest_s, self.advanced_at_s or 0.0)


def _earlier(known_at_s: float | None, age_s: float, now_s: float) -> float:
    at_s = now_s - age_s
    return at_s if known_at_s is None or at_s < known_at_s else known_at_s


@dataclass(frozen=True, slots=True)
class Marks:
    """Ages of the start-up marks of the slowest rank; None where some rank never reported one."""

    attached_age_s: float | None
    resumed_age_s: float | None
    first_section_age_s: float | None
    first_step_age_s: float | None
    first_step: int | None
    rendezvous_began_age_s: float | None
    rendezvous_ended_age_s: float | None


class Observation:
    """One attempt, by the reports so far. Counts are updated as reports come in."""

    def __init__(
        self,
        attempt: int,
        world_size: int,
        longest_gap_s: float = 0.0,
        places: Mapping[str, frozenset[int]] | None = None,
        *,
        ran_before: bool = False,
        former_step: int | None = None,
    ) -> None:
        """``ran_before``: its ranks had started before the first report, also those that never report.

        ``former_step``: the highest step that an attempt had reached when the job last failed.
        """
        self.attempt = attempt
        self._world_size = world_size
        self._ran_before = ran_before
        self._places = places  # node -> its ranks; a node speaks for no other. None: one node
        self.ranks: dict[int, ObservedRank] = {}
        self.launch_error: str | None = None
        self.launch_fault = ""
        self.started_at_s: float | None = None  # since when every rank is known to have started
        self.longest_gap_s = longest_gap_s  # the job's longest pause that ended by itself
        # The same of those that a step followed. One that ends with the ranks (a survivor leaves its
        # section as it dies) is none: else each hang would double the limit for the next one.
        self.proved_gap_s = longest_gap_s
        self.advanced_at_s: float | None = None  # when a rank last advanced
        self.is_relative = False
        self.newest_step: int | None = None
        # Up to here the job was held from outside, by a stop that is none of its own: no stall, and no pause.
        self.held_at_s: float | None = None
        self._former_step = former_step
        self._first_new: tuple[float, int] | None = None  # when a rank made which step beyond it
        self._is_settled = False
        self._has_stepped = False  # any rank, by the report that is being taken in
        self._started = 0
        self._ended = 0
        self._done = 0
        self._failed: list[ObservedRank] = []
        self._telling: set[int] = set()
        self._unverified: int | None = None  # a rank that had not shown yet that it trains

    def observe(self, report: Report, now_s: float) -> None:
        """Take in a report; one of another attempt changes nothing."""
        if report.attempt != self.attempt:
            return
        before_s, self._has_stepped = self.advanced_at_s, False
        if report.launch_error is not None:
            self.launch_error, self.launch_fault = report.launch_error, report.launch_fault
        own = None if self._places is None else self._places.get(report.node, frozenset())
        for reported in report.ranks:
            if own is not None and reported.rank not in own:
                continue
            if 0 <= reported.rank < self._world_size:
                self._take_rank(reported, report.node, now_s)
        if self.started_at_s is None and (self.is_started or self._runs_on):
            self.started_at_s = now_s
        if before_s is not None and self.held_at_s is not None:
            before_s = max(before_s, self.held_at_s)
        if before_s is not None and self.advanced_at_s is not None and self._is_settled:
            self.longest_gap_s = max(self.longest_gap_s, self.advanced_at_s - before_s)
        if self._has_stepped:
            self.proved_gap_s = self.longest_gap_s

    def _take_rank(self, reported: RankReport, node: str, now_s: float) -> None:
        view = self.ranks.get(reported.rank)
        if view is None:
            view = self.ranks[reported.rank] = ObservedRank(reported.rank, node)
        was_started, had_ended, steps = view.is_started, view.exit is not None, view.steps_done
        view.observe(reported, now_s)
        if not was_started:
            self._started += view.is_started
        if view.exit is not None and not had_ended:
            self._ended += 1
            self._done += view.is_done
            if view.has_failed:
                self._failed.append(view)
        if view.steps_done > steps:
            self._has_stepped = True
            self._telling.add(view.rank)
            self._is_settled = self._is_settled or view.steps_done > _STEPS_SETTLED
        self.is_relative = self.is_relative or view.is_relative
        if view.step is not None and (self.newest_step is None or view.step > self.newest_step):
            self.newest_step = view.step
        if self._former_step is not None:
            self._note_first_new(reported, now_s)
        at_s = view.advanced_at_s
        if at_s is not None and (self.advanced_at_s is None or at_s > self.advanced_at_s):
            self.advanced_at_s = at_s

    def _note_first_new(self, reported: RankReport, now_s: float) -> None:
        """Note the earliest step beyond the former highest; reports carry each step with its age."""
        former = self._former_step
        if (
            former is None
            or reported.step is None
            or reported.step <= former
            or reported.is_relative
        ):
            return
        if self._first_new is not None and self._first_new[1] == former + 1:
            return
        ends = [
            (now_s - timing.age_s, timing.step)
            for timing in reported.timings
            if timing.step > former
        ]
        if reported.step_age_s is not None:
            ends.append((now_s - reported.step_age_s, reported.step))
        known = [] if self._first_new is None else [self._first_new]
        self._first_new = min([*known, *ends], default=None)

    def first_new(self, now_s: float) -> tuple[int, float] | None:
        """Return the first step beyond the former highest and how long ago it was made."""
        if self._first_new is None:
            return None
        at_s, step = self._first_new
        return step, max(0.0, now_s - at_s)

    @property
    def is_whole(self) -> bool:
        """Every rank has been reported."""
        return len(self.ranks) == self._world_size > 0

    @property
    def is_started(self) -> bool:
        return self.is_whole and self._started == self._world_size

    @property
    def _runs_on(self) -> bool:
        """Every reported rank of an attempt that ran before has a process: the others need not report."""
        return self._ran_before and 0 < len(self.ranks) == self._started

    @property
    def has_ended(self) -> bool:
        return self.is_whole and self._ended == self._world_size

    @property
    def is_done(self) -> bool:
        """Every rank ended with exit code 0."""
        return self.is_whole and self._done == self._world_size

    @property
    def stopped(self) -> int:
        """Return how many ranks were ended by their launchers."""
        return self._ended - self._done - len(self._failed)

    @property
    def failed(self) -> list[ObservedRank]:
        """Ranks that failed, the earliest first."""
        return sorted(self._failed, key=lambda view: (view.exited_at_s, view.rank))

    @property
    def highest_step(self) -> int | None:
        """Return the highest step that compares with those of other attempts."""
        return None if self.is_relative else self.newest_step

    def stepped_age_s(self, now_s: float) -> float | None:
        """Return how long ago a rank last ended a step; None: not known. Looks at every rank."""
        newest = [view.step_ends.newest_at_s for view in self.ranks.values()]
        return _age(max((at_s for at_s in newest if at_s is not None), default=None), now_s)

    def floor_step(self, telling: frozenset[int]) -> int | None:
        """Return the step that every rank has made; None until each of ``telling`` has reported one.

        Looks at every rank: 16,000 cost 2 ms.
        """
        if not self._telling or not telling <= self._telling:
            return None
        steps = [self.ranks[rank].step for rank in self._telling]
        return min((step for step in steps if step is not None), default=None)

    def starts(self) -> dict[str, dict[RankStart, list[int]]]:
        """Return the ranks of each node by how their processes came to be. For any thread."""
        found: dict[str, dict[RankStart, list[int]]] = {}
        # copy() is one step for the interpreter: no rank can be added meanwhile.
        for rank, view in sorted(self.ranks.copy().items()):
            if view.start is not None:
                found.setdefault(view.node, {}).setdefault(view.start, []).append(rank)
        return found

    def nccl_shares(self) -> tuple[LibraryShare, ...]:
        """Return who has loaded which NCCL, where ranks differ; empty: all alike. For any thread."""
        views = [rank for rank in self.ranks.copy().values() if rank.nccl]
        if len({view.nccl for view in views}) < 2:
            return ()
        reported = (RankLibrary(view.node, "", "", 0, view.rank, view.nccl) for view in views)
        return next((job.shares for job in find_mixed_jobs(reported)), ())

    @property
    def telling_ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._telling))

    def ends(self, now_s: float) -> list[RankEnd]:
        """Return how ranks ended so far, for `detect_failed`."""
        return [
            RankEnd(
                rank=view.rank,
                age_s=now_s - view.exited_at_s,
                exit_code=view.exit.exit_code,
                signal=view.exit.signal,
                by_launcher=view.exit.by_launcher,
                oom_killed=view.exit.oom_killed,
                words=view.exit.words or NOTHING_SAID,
                step=view.step,
            )
            for view in self.ranks.values()
            if view.exit is not None
        ]

    def stands(self, now_s: float, without: Collection[str] = ()) -> list[RankStand]:
        """Return where the ranks stand, for `detect_hung`; not those of the nodes ``without``."""
        return [
            RankStand(
                rank=view.rank,
                process_state=view.process_state,
                state_age_s=max(0.0, now_s - view.state_since_s),
                is_done=view.is_done,
                steps_done=view.steps_done,
                advanced_age_s=self._still_s(view, now_s),
                section=view.section,
                section_age_s=_age(view.section_since_s, now_s),
                sections_entered=view.sections_entered,
                step_times_s=_step_times(view),
                collectives_entered=view.collectives_entered,
                collective_timeout_s=view.collective_timeout_s,
                has_pairs=view.has_pairs,
                is_past_training=view.is_past_training,
                script_end=view.script_end,
            )
            for view in self.ranks.values()
            if not without or view.node not in without
        ]

    def _still_s(self, view: ObservedRank, now_s: float) -> float | None:
        if view.advanced_at_s is None or self.held_at_s is None:
            return _age(view.advanced_at_s, now_s)
        return _age(max(view.advanced_at_s, self.held_at_s), now_s)

    def is_verified(self, policy: Policy, telling: frozenset[int], now_s: float) -> bool:
        """Return whether every rank has shown that it trains.

        ``telling`` are the ranks that have reported a step in any attempt of the job: these must
        make steps again. A rank that never did must live for a while; a rank that ended with 0 is done.
        """
        if not self.is_started or self.started_at_s is None:
            return False
        age_s = now_s - self.started_at_s
        if self._unverified is not None:  # the rank that was not ready is checked first
            view = self.ranks[self._unverified]
            if not _trains(view, policy, telling, age_s):
                return False
        for view in self.ranks.values():
            if not _trains(view, policy, telling, age_s):
                self._unverified = view.rank
                return False
        return True

    def marks(self, now_s: float) -> Marks:
        """Return the start-up marks of the slowest rank among those that report steps."""
        views = [view for view in self.ranks.values() if view.steps_done]
        first_steps = [view.first_step for view in views if view.first_step is not None]
        return Marks(
            _slowest([view.attached_at_s for view in views], now_s),
            _slowest([view.resumed_at_s for view in views], now_s),
            _slowest([view.first_section_at_s for view in views], now_s),
            _slowest([view.first_step_at_s for view in views], now_s),
            min(first_steps, default=None),
            _slowest([view.rendezvous_began_at_s for view in views], now_s),
            _slowest([view.rendezvous_ended_at_s for view in views], now_s),
        )


def _trains(view: ObservedRank, policy: Policy, telling: frozenset[int], age_s: float) -> bool:
    if view.is_done or view.is_past_training or view.steps_done >= policy.verify_steps:
        return True
    is_silent = view.rank not in telling and not view.steps_done and view.exit is None
    due_s = policy.verify_attached_s if view.attached_at_s is not None else policy.verify_alive_s
    return is_silent and age_s >= due_s


def _slowest(times_s: list[float | None], now_s: float) -> float | None:
    known = [at_s for at_s in times_s if at_s is not None]
    if not known or len(known) < len(times_s):
        return None
    return now_s - max(known)


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else max(0.0, now_s - at_s)


def _step_times(view: ObservedRank) -> tuple[float, ...]:
    """Return the times of steps whose neighbour before is known, too."""
    ends = list(view.step_ends)
    return tuple(
        max(0.0, after[1] - before[1])
        for before, after in pairwise(ends)
        if after[0] == before[0] + 1
    )
