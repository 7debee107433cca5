"""Whether a job takes in nodes that wait, although nothing has failed. Pure.

Off unless `Policy.grow_every_s` says how long an attempt trains at least until then. Nodes that join a job of MIN:MAX nodes later, or come
back, are otherwise used at the next restart (docs/use/several-nodes.md). A restart costs every rank what it trained since the
save that it begins from, so the job grows only just after a save of the running attempt was seen whole, and is requested once at each save. A snapshot
in memory does not count: it is of as many ranks as wrote it, and the larger job could not begin from it (`recovery.controller.job.restore.snapshot_choice`).

A node is taken in once it has been usable for `Policy.grow_healthy_s` without a break and its launcher has passed a pre-flight check:
one bad node would stop all others. What is not known is never a reason to grow.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.wording import counted, names_in_words
from recovery.controller.job.membership import size_for
from recovery.controller.job.settings import JobSettings
from recovery.journal.ledger import Ledger, Wish
from recovery.journal.limits import PlanStep, Policy, out_of_patience, out_of_restarts

LOOK_S: Final = 1.0  # between two looks; saves are noted at most every 10 s (`recovery.controller.job.restore.restorable`)
JUST_SAVED_S: Final = 60.0
"""How long after it was noted a save counts as just made. Our choice: a cluster that paces its restarts gets some looks, and what
the ranks train meanwhile is lost. A save is noted within some 15 s of its end: it is looked for every 5 s, and rests for 10 s
(`recovery.messages.candidates.CheckpointSettings.grace_s`)."""
_KEPT_MAX: Final = 20_000  # nodes of a job (`recovery.launcher.run.options.NODES_MAX`)


class Stays(Enum):
    """Why a job does not grow now."""

    OFF = "off"
    NOT_TRAINING = "not training"  # or something is being done about it, or a person has paused it
    EARLY = "early"  # its ranks have not trained for `Policy.grow_every_s` since their start
    NO_SAVE = "no save"  # the running attempt has just saved nothing
    ASKED = "asked"  # at this save
    NODE_AWAY = "node away"  # one that has ranks can't be used: a failure may follow, or a move
    NO_NODE = "no node"  # that waits, is healthy and has passed its check
    NO_SIZE = "no size"  # the job can't run on more nodes than it does
    FORBIDDEN = "forbidden"  # by the policy's steps for a finding about hosts, or observe mode
    SPENT = "spent"  # a restart would count against a budget that is used up


@dataclass(frozen=True, slots=True)
class JobGrowth:
    """A job that takes in nodes."""

    nodes: tuple[str, ...]  # those that may be taken, in order of their names
    before: int  # nodes
    after: int
    saved_number: int  # of the record of the save that it begins from


@dataclass(frozen=True, slots=True)
class WaitingNode:
    """A usable node without ranks."""

    fit_s: (
        float  # for so long it has been usable without a break, as far as this controller has seen
    )
    has_passed: bool  # its launcher says that it passed a pre-flight check at its start


@dataclass(frozen=True, slots=True)
class GrowthTimes:
    """For how long things have lasted, in seconds."""

    attempt_s: float  # the newest attempt has trained
    save_s: float  # its newest save is on record


class FitNodes:
    """Since when each node without ranks has been usable.

    Lost with the controller, and begun anew after a pause in which nobody looked: that only delays a job's growth.
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._looked_at_s = float("-inf")

    def look(self, fit: Collection[str], now_s: float, pause_s_max: float) -> dict[str, float]:
        """Note which nodes are fit now, and return for how long each has been."""
        known = self._since_s if now_s - self._looked_at_s <= pause_s_max else {}
        retained = sorted(fit)[:_KEPT_MAX]
        self._since_s = {node: known.get(node, now_s) for node in retained}
        self._looked_at_s = now_s
        return {node: now_s - since_s for node, since_s in self._since_s.items()}


def decide_growth(
    ledger: Ledger,
    settings: JobSettings,
    usable: Collection[str],
    waiting: Mapping[str, WaitingNode],
    times: GrowthTimes,
    asked_number: int,
) -> JobGrowth | Stays:
    """Return the growth that is due, or why the job stays as it is.

    ``usable``: the nodes that could get ranks now; ``waiting``: those of them without ranks that nothing accuses; ``asked_number``: the save
    at which the job last considered growth.
    """
    policy, saved = settings.policy, ledger.saved_number
    placed = [place.node for place in ledger.placement]
    nodes = tuple(sorted(node for node, item in waiting.items() if _may_join(item, policy)))
    after = size_for(settings, len(placed) + len(nodes)) or 0
    is_just_saved = saved > ledger.started_number and times.save_s <= JUST_SAVED_S
    is_allowed = policy.allows(Kind.HOST, PlanStep.RESTART_IN_PLACE) and not policy.observe
    spent = out_of_restarts(ledger.spent, policy) or out_of_patience(ledger.spent, policy)
    reasons = (
        (not policy.grow_every_s, Stays.OFF),
        (not _trains_undisturbed(ledger), Stays.NOT_TRAINING),
        (times.attempt_s < policy.grow_every_s, Stays.EARLY),
        (not is_just_saved, Stays.NO_SAVE),
        (saved == asked_number, Stays.ASKED),
        (not set(placed) <= set(usable), Stays.NODE_AWAY),
        (not nodes, Stays.NO_NODE),
        (after <= len(placed), Stays.NO_SIZE),
        (not is_allowed, Stays.FORBIDDEN),
        (spent is not None, Stays.SPENT),
    )
    why_not = next((why for is_so, why in reasons if is_so), None)
    return JobGrowth(nodes, len(placed), after, saved) if why_not is None else why_not


def _trains_undisturbed(ledger: Ledger) -> bool:
    trains = ledger.wish is Wish.RANKS and ledger.is_attempt_open and ledger.is_verified
    is_left_alone = ledger.incident is None and ledger.closing is None and ledger.standing is None
    return trains and is_left_alone and ledger.paused_by is None


def _may_join(node: WaitingNode, policy: Policy) -> bool:
    return node.has_passed and node.fit_s >= policy.grow_healthy_s


def growth_finding(growth: JobGrowth, ledger: Ledger, job_id: str) -> Finding:
    """Return why the job restarts; nobody is blamed, and nothing has failed."""
    saved = ledger.restorable
    step = None if saved is None else saved.step
    what = "a save" if step is None else f"the save of step {step}"
    names = names_in_words(growth.nodes)
    return Finding(
        kind=Kind.HOST,
        severity=Severity.INFO,
        blame=Blame.USER,
        summary=f"the job grows from {counted(growth.before, 'node')} to {growth.after} after {what}",
        job_id=job_id,
        attempt=ledger.attempt,
        node="",
        ranks=(),
        victims=(),
        since_age_s=0.0,
        symptom=Symptom(SymptomKind.GROWTH),
        evidence=(
            Evidence("nodes", f"healthy, pre-flight check passed, without ranks: {names}"),
            Evidence("checkpoints", what if saved is None else f"{saved.path}: {saved.reason}"),
        ),
    )
