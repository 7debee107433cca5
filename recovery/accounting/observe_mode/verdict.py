"""Whether a decision that was not taken was right, by what happened instead. Pure.

Rules, in this order; the first that holds decides. *Later* is after the decision, *the job* also one of the same name.

1. Wrong: it would have stopped an attempt, or a rank of it was slow, and the same attempt went on by itself at full speed (its
   steps come at `FULL_SPEED` of their rate before, or faster; a slow rank was no longer slow).
2. Right: one of its nodes was drained by a person later, within `DRAIN_S`.
3. Right: the job trained again later, on none of its nodes.
4. Wrong: the job trained again later with all of its nodes for `PROVED_S`, and no incident blamed one of them meanwhile.
5. Right: it named no node, and people started the job again, which trained.
6. Unknown.

What a right decision would have saved: the time from the fault to the first new step, less what rankmend needs for that: the
median of this job's own recoveries, else of all jobs that were read. Without either there is no figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from detectors.wording import counted
from recovery.accounting.observe_mode.decision import AttemptRun, Decision, JobHistory

FULL_SPEED: Final = 0.9  # of the rate before
DRAIN_S: Final = 7 * 86_400.0
PROVED_S: Final = 3_600.0
_HOUR_S: Final = 3_600.0


class HindsightVerdict(Enum):
    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"


_OPEN: Final = (HindsightVerdict.UNKNOWN, "nothing that was seen afterwards decides it")


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """A person, or another tool, has taken a node out of use."""

    unix_s: float
    node: str
    who: str
    where: str  # "rankmend" or "Slurm"


@dataclass(frozen=True, slots=True)
class JudgedDecision:
    decision: Decision
    instead: str  # what happened, in words
    verdict: HindsightVerdict
    because: str  # the rule that held
    took_s: float | None = None  # fault to the first new step, as it was
    saved_s: float | None = None
    saved_gpu_hours: float | None = None
    basis: str = ""  # of the estimate; empty: there is none


def judge_all(
    decisions: Sequence[Decision], histories: Sequence[JobHistory], drained: Sequence[NodeDrained]
) -> list[JudgedDecision]:
    """Return each decision with its verdict, oldest first."""
    ordered = sorted(decisions, key=lambda decision: decision.at_unix_s)
    return [judge(decision, histories, drained) for decision in ordered]


def judge(
    decision: Decision, histories: Sequence[JobHistory], drained: Sequence[NodeDrained]
) -> JudgedDecision:
    own = next(
        (history for history in histories if decision.job_id and history.job_id == decision.job_id),
        None,
    )
    alike = [history for history in histories if decision.job and history.name == decision.job]
    again = _trained_again(decision, alike)
    drains = [
        item
        for item in drained
        if item.node in decision.nodes and 0 <= item.unix_s - decision.at_unix_s <= DRAIN_S
    ]
    verdict, because = _verdict(decision, own, alike, again, drains)
    instead = _instead(decision, own, again, drains)
    took_s = None
    if again is not None and again[1].verified_unix_s is not None and decision.fault_unix_s:
        took_s = max(0.0, again[1].verified_unix_s - decision.fault_unix_s)
    if verdict is not HindsightVerdict.RIGHT or took_s is None:
        return JudgedDecision(decision, instead, verdict, because, took_s)
    estimate_s, basis = _estimate(own, histories)
    if estimate_s is None:
        return JudgedDecision(decision, instead, verdict, because, took_s)
    saved_s = max(0.0, took_s - estimate_s)
    ranks = _ranks_of(decision, own)
    hours = saved_s * ranks / _HOUR_S if ranks else None
    return JudgedDecision(decision, instead, verdict, because, took_s, saved_s, hours, basis)


def _verdict(
    decision: Decision,
    own: JobHistory | None,
    alike: Sequence[JobHistory],
    again: tuple[JobHistory, AttemptRun] | None,
    drains: Sequence[NodeDrained],
) -> tuple[HindsightVerdict, str]:
    if own is not None and _went_on(decision, own):
        return HindsightVerdict.WRONG, "the job went on by itself at full speed"
    if drains:
        first = drains[0]
        return HindsightVerdict.RIGHT, f"{first.who} drained {first.node} ({first.where})"
    if again is None:
        return _OPEN
    return _by_next_attempt(decision, alike, *again)


def _by_next_attempt(
    decision: Decision, alike: Sequence[JobHistory], history: JobHistory, run: AttemptRun
) -> tuple[HindsightVerdict, str]:
    """Judge by the attempt in which the job trained again."""
    if not decision.nodes:
        return (
            HindsightVerdict.RIGHT,
            f"the job was started again, and trained (attempt {run.attempt})",
        )
    retained = set(decision.nodes) & set(run.nodes)
    if run.nodes and not retained:
        return HindsightVerdict.RIGHT, f"the job trained without {', '.join(decision.nodes[:4])}"
    is_proved = retained == set(decision.nodes) and _ran_s(history, run) >= PROVED_S
    is_blamed = any(
        node in retained and unix_s > decision.at_unix_s
        for item in alike
        for unix_s, node in item.blamed
    )
    if is_proved and not is_blamed:
        return HindsightVerdict.WRONG, f"the job trained on with {', '.join(sorted(retained)[:4])}"
    return _OPEN


def _went_on(decision: Decision, own: JobHistory) -> bool:
    """Return whether the same attempt went on at full speed, with no other started since."""
    run = next((attempt for attempt in own.attempts if attempt.attempt == decision.attempt), None)
    if run is None:
        return False
    if decision.slow_ranks:
        return any(
            attempt == decision.attempt
            and rank in decision.slow_ranks
            and unix_s > decision.at_unix_s
            for unix_s, attempt, rank in own.slow_ended
        )
    fault_unix_s = decision.fault_unix_s or decision.at_unix_s
    before = [record for record in run.progress if record[0] <= fault_unix_s]
    after = [record for record in run.progress if record[0] > decision.at_unix_s]
    rate_before, rate_after = _rate(before), _rate(after)
    if rate_before is None or rate_after is None:
        return False
    return rate_after >= FULL_SPEED * rate_before


def _rate(progress: Sequence[tuple[float, int]]) -> float | None:
    """Return steps per second; None where fewer than two moments are known."""
    if len(progress) < 2 or progress[-1][0] <= progress[0][0]:
        return None
    steps = progress[-1][1] - progress[0][1]
    return steps / (progress[-1][0] - progress[0][0]) if steps > 0 else None


def _trained_again(
    decision: Decision, alike: Sequence[JobHistory]
) -> tuple[JobHistory, AttemptRun] | None:
    """Return the first attempt of the job, or of one of its name, that trained after the decision."""
    later = [
        (history, run)
        for history in alike
        for run in history.attempts
        if run.verified_unix_s is not None
        and run.started_unix_s > decision.at_unix_s
        and (history.job_id, run.attempt) != (decision.job_id, decision.attempt)
    ]
    return min(later, key=lambda pair: pair[1].started_unix_s, default=None)


def _ran_s(history: JobHistory, run: AttemptRun) -> float:
    """Return for how long an attempt is known to have run."""
    nexts = [
        attempt.started_unix_s for attempt in history.attempts if attempt.attempt > run.attempt
    ]
    ends = [unix_s for unix_s, _how in history.ended if unix_s > run.started_unix_s]
    end = min([*nexts, *ends], default=history.newest_unix_s)
    return max(0.0, end - (run.verified_unix_s or run.started_unix_s))


def _instead(
    decision: Decision,
    own: JobHistory | None,
    again: tuple[JobHistory, AttemptRun] | None,
    drains: Sequence[NodeDrained],
) -> str:
    said = [f"{decision.rejected_by} rejected the plan"] if decision.rejected_by else []
    if own is not None:
        ended = next((how for unix_s, how in own.ended if unix_s >= decision.at_unix_s), None)
        if ended is not None:
            said.append(f"the job ended ({ended})")
        if _went_on(decision, own):
            said.append("it went on by itself")
    said += [f"{drain.who} drained {drain.node} in {drain.where}" for drain in drains[:4]]
    if again is not None:
        history, run = again
        how = "was started again" if history.job_id == decision.job_id else "was submitted again"
        said.append(
            f"it {how} and trained on {counted(len(run.nodes), 'node') if run.nodes else 'unknown nodes'}"
        )
    return "; ".join(said) or "nothing is known"


def _estimate(own: JobHistory | None, histories: Sequence[JobHistory]) -> tuple[float | None, str]:
    mine = () if own is None else own.repairs_s
    if mine:
        return median(mine), f"median of this job's {counted(len(mine), 'recovery', 'recoveries')}"
    every = [repair for history in histories for repair in history.repairs_s]
    if every:
        return median(
            every
        ), f"median of {counted(len(every), 'recovery', 'recoveries')} of all jobs"
    return None, ""


def _ranks_of(decision: Decision, own: JobHistory | None) -> int:
    if own is None:
        return 0
    return next(
        (attempt.ranks for attempt in own.attempts if attempt.attempt == decision.attempt), 0
    )
