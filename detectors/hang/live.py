"""Hung job: ranks are alive, and none of them advances.

One stuck rank stalls all its peers, so a stall alone names no culprit. How long a stall may last
before it counts as a hang depends on what is known: a stopped process stays stopped until somebody
continues it, whereas silent ranks may be evaluating. docs/reference/thresholds.md has the rules,
the figures and the reason for each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite
from statistics import median
from typing import Final

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.wording import ranks_in_words
from rankmend.errors import ConfigError
from rankmend.rank_values import ScriptEnd

GAP_MULTIPLE: Final = 2.0  # a hang lasts longer than the longest healthy pause by this factor
# Share of the timeout after which PyTorch itself ends a collective. The rest leaves time for the
# look (late by at most a twentieth of the stall) and for taking stacks.
COLLECTIVE_SHARE: Final = 0.85
STEPS_KNOWN_MIN: Final = 2  # the first step compiles and warms up, and predicts nothing
EVIDENCE_MAX: Final = 16
# So many steps a host may run ahead of a collective that another rank will never enter. Ranks that make
# more don't need that rank.
AHEAD_STEPS_MAX: Final = 8

# letters in /proc/PID/stat, proc_pid_stat(5); empty: the process vanished without an exit status
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible, waiting for the kernel",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "zombie",
    "X": "dead",
    "": "gone",
}
# A process in these states can't continue by itself. Not t: a debugger lets its process go.
_STOPPED_STATES: Final = frozenset({"T"})
_GONE_STATES: Final = frozenset({"Z", "X", ""})
_STILL_STATES: Final = _STOPPED_STATES | _GONE_STATES
SUSPENDED_STATES: Final = _STOPPED_STATES | {"t"}
_IN_STEP: Final = frozenset({"compute", "communication"})  # sections that belong to a step
_SAVING: Final = frozenset({"io", "checkpoint"})
_LEFT: Final = frozenset({ScriptEnd.EXITED, ScriptEnd.RETURNED})
_WAITING_SECTIONS: Final = frozenset({"communication", "wait"})


class HangCause(Enum):
    """The kind of suspect. The value is the detail of the finding's symptom."""

    STOPPED = "stopped"  # state T: somebody has stopped it, and its node, device and program are not at fault
    GONE = "gone"  # states Z and X, or no process and no exit status
    BLOCKED = "blocked"  # state D
    BEHIND = "behind"  # fewer sections or steps than the others
    NOBODY = "nobody"
    EXITED = (
        "exited"  # a rank ended with 0 in the middle of the training, and the others wait for it
    )
    ENDING = "ending"  # the others have finished their training, and who is left made as many steps
    FINISHED = "finished"  # every rank has finished its training, and something still runs


ENDS_OF_TRAINING: Final = frozenset({HangCause.EXITED, HangCause.ENDING, HangCause.FINISHED})


# What is gone comes first: to let a stopped one go on would not bring it back.
_STATE_SIGNS: Final = (
    (HangCause.GONE, _GONE_STATES),
    (HangCause.STOPPED, _STOPPED_STATES),
    (HangCause.BLOCKED, frozenset({"D"})),
)


class LimitRule(Enum):
    """Which limit was in force."""

    STOPPED = "stopped"  # a stopped process
    UNTOLD = "untold"  # a stopped process, and no rank reports progress
    STARTUP = "startup"
    STEP_TIME = "step_time"  # a multiple of the job's own step time
    FLOOR = "floor"
    CEIL = "ceil"
    OUTSIDE = "outside"  # some rank is not in the middle of a step
    GAP = "gap"  # the job's longest healthy pause so far
    COLLECTIVE = "collective"  # a rank waits in one, and PyTorch's own timeout would end it


@dataclass(frozen=True, slots=True)
class HungLimits:
    """How long all ranks may stall. docs/reference/thresholds.md has the reasons for the figures."""

    multiple: float = 20.0  # median step times of the job
    floor_s: float = 300.0
    ceil_s: float = 1800.0
    stopped_floor_s: float = 5.0
    startup_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("multiple", "floor_s", "ceil_s", "stopped_floor_s", "startup_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ConfigError(f"hung limit {name} is {value}, not a number above 0")
        if not self.stopped_floor_s <= self.floor_s <= self.ceil_s:
            raise ConfigError(
                "hung limits are not in ascending order: stopped_floor_s "
                f"{self.stopped_floor_s} <= floor_s {self.floor_s} <= ceil_s {self.ceil_s}"
            )


@dataclass(frozen=True, slots=True)
class RankStand:
    """Where one rank stands. Ages are seconds by the caller's clock."""

    rank: int
    process_state: str  # letter of /proc/PID/stat
    state_age_s: float  # how long it has been seen only in this state
    is_done: bool  # it ended with exit code 0
    steps_done: int  # in this attempt
    advanced_age_s: (
        float | None
    )  # since its last step or section change, or since it attached; None: never attached
    section: str = "idle"
    section_age_s: float | None = None
    sections_entered: int = 0
    step_times_s: tuple[float, ...] = ()  # its recent steps
    collectives_entered: int = 0
    collective_timeout_s: float | None = None  # set for the process group of its newest collective
    has_pairs: bool = False  # it sends to or receives from single ranks
    is_past_training: bool = (
        False  # the process that made its steps ended; what had started it runs on
    )
    script_end: ScriptEnd = ScriptEnd.RUNNING
    knows_exit: bool = True  # False: `is_done` says that it is gone, and nobody saw its exit code

    @property
    def has_trained(self) -> bool:
        """Return whether it has taken part in the training."""
        return bool(self.steps_done or self.sections_entered)

    @property
    def is_over(self) -> bool:
        """Return whether no step is expected of it any more."""
        return self.is_done or self.is_past_training


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest allowed stall of all ranks now, and the reason."""

    limit_s: float
    rule: LimitRule
    reason: str


@dataclass(frozen=True, slots=True)
class Hang:
    """All ranks have stalled for too long."""

    stalled_s: float
    limit: Limit
    cause: HangCause
    suspects: tuple[int, ...]  # empty: the job hangs, and nothing accuses a rank
    victims: tuple[int, ...]
    reason: str  # why these ranks are the suspects, or why none is
    evidence: tuple[Evidence, ...]

    @property
    def why(self) -> str:
        """Return why this is a hang, in words."""
        return (
            f"no rank advanced for {self.stalled_s:.1f} s; "
            f"limit {self.limit.limit_s:g} s ({self.limit.reason})"
        )


def detect_hung(
    stands: Sequence[RankStand],
    limits: HungLimits,
    *,
    attempt_age_s: float,
    longest_gap_s: float = 0.0,
    has_stepped_before: bool = False,
) -> Hang | None:
    """Return the visible hang, or None while any rank advances or no rank can be judged.

    ``stands`` holds every rank of the attempt; `failed.verdict.detect_failed` judges failed ones.
    ``longest_gap_s`` is the job's longest stall that ended by itself; ``has_stepped_before`` says
    whether an earlier attempt of the job reported a step.
    """
    live = sorted((stand for stand in stands if not stand.is_over), key=lambda stand: stand.rank)
    if not live:
        return None
    ages = [stand.advanced_age_s for stand in live if stand.advanced_age_s is not None]
    stalled_s = min(ages, default=attempt_age_s)
    step_s = _median_step_s(stands)
    still = [stand for stand in live if stand.process_state in _STILL_STATES]
    if still:
        limit = _stopped_limit(limits, step_s, is_told=bool(ages))
        held_s = min(stalled_s, max(stand.state_age_s for stand in still))
        if held_s >= limit.limit_s:
            return _hang(held_s, limit, live, stands, limits.stopped_floor_s)
    is_told = has_stepped_before or any(s.steps_done or s.sections_entered for s in stands)
    if not ages or not is_told:
        return None  # a program that reports no steps can't be seen to miss one
    if max(stand.steps_done for stand in stands) < STEPS_KNOWN_MIN:
        limit = Limit(limits.startup_s, LimitRule.STARTUP, "before the attempt's second step")
    else:
        limit = _running_limit(stands, limits, step_s)
    gap_s = GAP_MULTIPLE * longest_gap_s
    if gap_s > limit.limit_s:
        reason = f"{GAP_MULTIPLE:g} x the job's longest pause so far, {longest_gap_s:.1f} s"
        limit = Limit(gap_s, LimitRule.GAP, reason)
    collective = _collective_limit(live, limits)
    if collective is not None and collective.limit_s < limit.limit_s:
        limit = collective
    if stalled_s < limit.limit_s:
        return None
    return _hang(stalled_s, limit, live, stands, limits.stopped_floor_s)


def blame_of(hang: Hang) -> Blame:
    """Return who is at fault: nobody for a process that a signal has stopped, as only another process sends it (signal(7))."""
    is_rank = bool(hang.suspects) and hang.cause is not HangCause.STOPPED
    return Blame.RANK if is_rank else Blame.NOBODY


def are_suspended(stands: Sequence[RankStand]) -> bool:
    """Return whether all ranks, and more than one, are stopped: `scontrol suspend` or a person holds the whole job."""
    live = [stand for stand in stands if not stand.is_over]
    return len(live) > 1 and all(stand.process_state in SUSPENDED_STATES for stand in live)


def hang_finding(hang: Hang, *, job_id: str, attempt: int, node: str) -> Finding:
    """Return the hang as a finding."""
    is_at_end = hang.cause in ENDS_OF_TRAINING
    return Finding(
        kind=Kind.RANK_HUNG,
        severity=Severity.CRITICAL,
        blame=Blame.PROGRAM if hang.cause is HangCause.EXITED else blame_of(hang),
        summary=hang.reason if is_at_end else f"no rank advances; {hang.reason}",
        job_id=job_id,
        attempt=attempt,
        node=node,
        ranks=hang.suspects,
        victims=hang.victims,
        since_age_s=hang.stalled_s,
        symptom=Symptom(SymptomKind.HUNG, hang.cause.value),
        evidence=hang.evidence,
    )


def _median_step_s(stands: Sequence[RankStand]) -> float | None:
    times_s = [time_s for stand in stands for time_s in stand.step_times_s]
    return median(times_s) if times_s else None


def _stopped_limit(limits: HungLimits, step_s: float | None, *, is_told: bool) -> Limit:
    """Return the limit while a process is stopped."""
    if not is_told:
        reason = "a process is stopped, and no rank reports progress"
        return Limit(limits.floor_s, LimitRule.UNTOLD, reason)
    multiple_s = limits.multiple * (step_s or 0.0)
    if multiple_s <= limits.stopped_floor_s:
        reason = "a stopped process does not continue by itself"
        return Limit(limits.stopped_floor_s, LimitRule.STOPPED, reason)
    reason = f"a stopped process, and {_multiple_in_words(limits, step_s)}"
    return Limit(min(multiple_s, limits.ceil_s), LimitRule.STOPPED, reason)


def _running_limit(stands: Sequence[RankStand], limits: HungLimits, step_s: float | None) -> Limit:
    """Return the limit while processes run and the job has made steps."""
    multiple_s = limits.multiple * (step_s or 0.0)
    words = _multiple_in_words(limits, step_s)
    if multiple_s >= limits.ceil_s:
        return Limit(limits.ceil_s, LimitRule.CEIL, f"the upper limit; {words}")
    if multiple_s > limits.floor_s:
        limit = Limit(multiple_s, LimitRule.STEP_TIME, words)
    else:
        limit = Limit(limits.floor_s, LimitRule.FLOOR, f"the lower limit; {words}")
    outside = _outside_a_step(stands, limit.limit_s)
    return Limit(limits.ceil_s, LimitRule.OUTSIDE, outside) if outside else limit


def _collective_limit(live: Sequence[RankStand], limits: HungLimits) -> Limit | None:
    """Return the limit while ranks wait in a collective that PyTorch will end by itself.

    Nothing that the other ranks do, such as an evaluation or a checkpoint by one rank alone, may
    take longer than that. So a limit slightly below it stops no job that would have continued.
    """
    waiting = [stand for stand in _waiting(live) if stand.collective_timeout_s]
    if not waiting:
        return None
    timeout_s = min(stand.collective_timeout_s or 0.0 for stand in waiting)
    limit_s = max(COLLECTIVE_SHARE * timeout_s, limits.stopped_floor_s)
    who = ranks_in_words(stand.rank for stand in waiting)
    reason = f"{who} in a collective that PyTorch ends after {timeout_s:g} s"
    return Limit(limit_s, LimitRule.COLLECTIVE, reason)


def _waiting(live: Sequence[RankStand]) -> list[RankStand]:
    """Return the ranks that can only wait for others.

    With NCCL the host doesn't wait: it enqueues and goes on. Waiting ranks are then ahead in
    collectives, unless pipeline stages make unequal numbers of them by design.
    """
    visibly = [stand for stand in live if stand.section == "communication"]
    if visibly or any(stand.has_pairs for stand in live):
        return visibly
    fewest = min(stand.collectives_entered for stand in live)
    ahead = [stand for stand in live if stand.collectives_entered > fewest]
    return ahead if 2 * len(ahead) >= len(live) else []


def _outside_a_step(stands: Sequence[RankStand], limit_s: float) -> str:
    """Return which rank may be busy outside a step, in words; empty if none is.

    A rank that reported no section may be evaluating, unless the kernel has held it in state D
    all that time.
    """
    is_blocked = any(s.process_state == "D" and s.state_age_s >= limit_s for s in stands)
    for stand in sorted(stands, key=lambda stand: stand.rank):
        if stand.is_over:
            return f"rank {stand.rank} has ended, so the job may be ending"
        if stand.section in _SAVING:
            return f"rank {stand.rank} is in section {stand.section}"
        if stand.section not in _IN_STEP and not is_blocked:
            return f"rank {stand.rank} is in no section of a step and may be evaluating"
    return ""


def _multiple_in_words(limits: HungLimits, step_s: float | None) -> str:
    if step_s is None:
        return "the step time is not known"
    return f"{limits.multiple:g} x the median step of {step_s:.3g} s"


def _hang(
    stalled_s: float,
    limit: Limit,
    live: list[RankStand],
    stands: Sequence[RankStand],
    state_age_s_min: float,
) -> Hang:
    cause, suspects, reason = _suspects(live, state_age_s_min)
    if cause not in (HangCause.STOPPED, HangCause.BLOCKED):
        cause, suspects, reason = _end_of_training(live, stands) or (cause, suspects, reason)
    accused = tuple(stand.rank for stand in suspects)
    done = [stand.rank for stand in stands if stand.is_done]
    hang = Hang(
        stalled_s=stalled_s,
        limit=limit,
        cause=cause,
        suspects=accused,
        victims=tuple(stand.rank for stand in live if stand.rank not in accused),
        reason=reason,
        evidence=(),
    )
    lines = [Evidence("rankmend", hang.why), *_evidence(live, accused)]
    past = [stand.rank for stand in stands if stand.is_past_training and not stand.is_done]
    if past:
        text = f"{ranks_in_words(past)}: the training process has ended, what started it runs on"
        lines.insert(1, Evidence("/proc/PID/stat", text))
    if done:
        waiting = f"{ranks_in_words(done)} ended with exit code 0 while others are alive"
        lines.insert(1, Evidence("wait status", waiting))
    if len(lines) > EVIDENCE_MAX:
        left_out = len(lines) - EVIDENCE_MAX + 1
        lines[EVIDENCE_MAX - 1 :] = [Evidence("rankmend", f"{left_out} more lines are not shown")]
    return replace(hang, evidence=tuple(lines))


def _suspects(
    live: list[RankStand], state_age_s_min: float
) -> tuple[HangCause, list[RankStand], str]:
    """Return the ranks that the others wait for, by the strongest sign that sets ranks apart.

    A state counts once it has lasted: every process is in state D now and then.
    """
    lasting = [stand for stand in live if stand.state_age_s >= state_age_s_min]
    for cause, states in _STATE_SIGNS:
        there = [stand for stand in lasting if stand.process_state in states]
        if there:
            word = _STATES[there[0].process_state]
            if len(there) == len(live) > 1:
                return cause, [], f"all {len(live)} ranks are alike ({word})"
            return cause, there, f"{ranks_in_words(s.rank for s in there)}: {word}"
    signs: tuple[tuple[str, Callable[[RankStand], int]], ...] = (
        ("sections entered", lambda stand: stand.sections_entered),
        ("steps made", lambda stand: stand.steps_done),
    )
    for name, count in signs:
        fewest, most = min(map(count, live)), max(map(count, live))
        behind = [stand for stand in live if count(stand) == fewest]
        # If most ranks are behind, one is ahead with work of its own, and nobody is waited for.
        if fewest < most and 2 * len(behind) <= len(live):
            who = ranks_in_words(stand.rank for stand in behind)
            return HangCause.BEHIND, behind, f"{who}: {fewest} {name}, others up to {most}"
    return HangCause.NOBODY, [], "the ranks are alive, and no rank is behind the others"


def _end_of_training(
    live: list[RankStand], stands: Sequence[RankStand]
) -> tuple[HangCause, list[RankStand], str] | None:
    """Return what the ranks that have ended, or left their training, say of those that still run; None: nothing.

    A rank that ended before it trained is needed by nobody. A rank with exit code 0 is known to have finished its
    training if its script returned or destroyed its process group; by sys.exit it may have left a loop. Nobody is
    accused: the program ends early.
    """
    ended = [stand for stand in stands if stand.is_over and stand.has_trained]
    left = ranks_in_words(stand.rank for stand in live)
    verb = "still runs" if len(live) == 1 else "still run"
    is_saving = any(stand.section in _SAVING for stand in live)
    failed = [stand for stand in live if stand.script_end is ScriptEnd.FAILED]
    if failed:
        who = ranks_in_words(stand.rank for stand in failed)
        verb = "still runs" if len(failed) == 1 else "still run"
        reason = f"the script of {who} ended with an error, and {'it' if len(failed) == 1 else 'they'} {verb}"
        return HangCause.EXITED, failed, reason
    if not is_saving and all(stand.script_end in _LEFT and stand.has_trained for stand in live):
        others = f" ({ranks_in_words(s.rank for s in ended)} ended)" if ended else ""
        reason = f"every rank has finished its training{others}, and {left} {verb}"
        return HangCause.FINISHED, [], reason
    over = [stand for stand in ended if stand.is_done]
    over += [stand for stand in live if stand.script_end in _LEFT and stand.has_trained]
    return _left_behind(live, over) if over and all(stand.knows_exit for stand in over) else None


def _left_behind(
    live: list[RankStand], over: list[RankStand]
) -> tuple[HangCause, list[RankStand], str] | None:
    """Return what ranks that are ``over`` with their training say of the rest; None: nothing.

    Who waits in a collective, has entered more of them or made more steps waits for one of these.
    """
    finished = {stand.rank for stand in over}
    rest = [stand for stand in live if stand.rank not in finished]
    most = max(stand.steps_done for stand in over)
    if not all(most <= stand.steps_done <= most + AHEAD_STEPS_MAX for stand in rest):
        return None
    entered = max(stand.collectives_entered for stand in over)
    has_pairs = any(stand.has_pairs for stand in (*live, *over))
    is_waiting = any(
        stand.section in _WAITING_SECTIONS
        or stand.steps_done > most
        or (stand.collectives_entered > entered and not has_pairs)
        for stand in rest
    )
    is_known = all(stand.script_end is ScriptEnd.RETURNED for stand in over)
    is_saving = any(stand.section in _SAVING for stand in rest)
    who, others = ranks_in_words(finished), ranks_in_words(stand.rank for stand in rest)
    runs = "still runs" if len(live) == 1 else "still run"
    if is_known and not (is_waiting or is_saving):
        own = "its" if len(over) == 1 else "their"
        if len(rest) < len(live):
            runs = f"{ranks_in_words(stand.rank for stand in live)} {runs}"
        reason = f"{who} finished {own} training; {others} made as many steps and {runs}"
        return HangCause.ENDING, [], reason
    are_gone = all(stand.is_done for stand in over)
    ended = f"{who} {'ended with exit code 0' if are_gone else 'left the training'}"
    if is_waiting:
        waits = "waits" if len(rest) == 1 else "wait"
        reason = f"{ended} while {others} {waits} for {'it' if len(over) == 1 else 'them'}"
    else:
        reason = f"{ended} while {others} {'still runs' if len(rest) == 1 else 'still run'}"
    return HangCause.EXITED, [], reason


def _evidence(live: list[RankStand], accused: tuple[int, ...]) -> list[Evidence]:
    """Return where the ranks stand, the accused first, with equal ranks in one line."""
    groups: dict[tuple[bool, str, str, int, int, bool], list[RankStand]] = {}
    for stand in live:
        is_attached = stand.advanced_age_s is not None
        place = (stand.process_state, stand.section, stand.sections_entered, stand.steps_done)
        groups.setdefault((stand.rank not in accused, *place, is_attached), []).append(stand)
    return [_stand_in_words(groups[key]) for key in sorted(groups)]


def _stand_in_words(group: list[RankStand]) -> Evidence:
    first = group[0]
    state = _STATES.get(first.process_state, "unknown")
    age_s = min(stand.state_age_s for stand in group)
    text = f"{ranks_in_words(stand.rank for stand in group)}: {state} for {age_s:.1f} s"
    if first.advanced_age_s is None:
        return Evidence("/proc/PID/stat", f"{text}; never attached")
    sections = f", {first.sections_entered} sections" if first.sections_entered else ""
    where = "" if first.section == "idle" else f", in {first.section}"
    if where and first.section_age_s is not None:
        where += f" for {first.section_age_s:.1f} s"
    reported = f"{first.steps_done} steps{sections}{where}"
    return Evidence("/proc/PID/stat and progress file", f"{text}; {reported}")
