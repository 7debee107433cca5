"""What the journal says of our requests to Slurm: a pure fold, as `recovery.controller.cluster.cluster_ledger` is for the cluster."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce, singledispatch
from typing import Final

from recovery.journal.records import Entry
from recovery.journal.slurm_records import (
    PodEnded,
    PodProved,
    PodsSeen,
    ReturnStep,
    SlurmAct,
    SlurmActs,
    SlurmAsked,
    SlurmDrainOver,
    SlurmDrainSeen,
    SlurmEnded,
    SlurmJobSeen,
    SlurmNodeChecked,
    SlurmNodeEmpty,
    SlurmNodeEnded,
    SlurmOutcome,
    SlurmReturnAllowed,
    SlurmSubmitted,
    SlurmVouched,
)
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest, mark_of

# An agent's word counts as long (`rankmend.watched_report.LEFT_S`); a drain ends within the minute if the manager answers.
SEEN_S: Final = 600.0
_PODS_KEPT: Final = 5_000  # launchers of all jobs
_ENDED_KEPT: Final = 10_000
_DRAINS_KEPT: Final = 100  # per node
_ACTS_KEPT: Final = 1_000
_EVENTS_KEPT: Final = 200  # per node
_REQUEUES: Final = frozenset({SlurmAct.HOLD, SlurmAct.REQUEUE_HOLD})  # the first act of a requeue


@dataclass(frozen=True, slots=True)
class Act:
    unix_s: float
    act: SlurmAct
    about: str
    output_mark: str


@dataclass(frozen=True, slots=True)
class Work:
    """One request and what was done about it."""

    request: SchedulerRequest
    asked_unix_s: float
    acts: tuple[Act, ...] = ()
    before: SlurmJobSeen | None = None
    nodes: dict[str, SlurmNodeEnded] = field(default_factory=dict)  # never changed in place
    nodes_unix_s: dict[str, float] = field(default_factory=dict)  # when that was; likewise
    pods: tuple[str, ...] | None = None  # of EVICT, once seen
    pods_ended: dict[str, PodEnded] = field(default_factory=dict)  # never changed in place
    copy: str = ""  # the number under which the job goes on
    ended: SlurmEnded | None = None
    ended_unix_s: float = 0.0

    def did(self, act: SlurmAct, about: str = "") -> tuple[Act, ...]:
        return tuple(
            item for item in self.acts if item.act is act and (not about or item.about == about)
        )


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain of a node by us."""

    unix_s: float
    key: str
    reason: str
    is_forgiven: bool = False  # a person has returned the node since


class NodeEventKind(Enum):
    DRAINED = "drained"
    CHECKED = "checked"
    ALLOWED = "allowed"  # a person returns it
    OVER = "over"  # it is not drained by us any more


@dataclass(frozen=True, slots=True)
class NodeEvent:
    unix_s: float
    kind: NodeEventKind
    text: str


@dataclass(frozen=True, slots=True)
class NodeHistory:
    drains: tuple[Drain, ...] = ()  # all of them, the newest last
    is_ours: bool = False  # the newest one holds
    events: tuple[NodeEvent, ...] = ()  # of all drains, the newest last
    checked: SlurmNodeChecked | None = None  # since then
    checked_unix_s: float = 0.0
    empty_unix_s: float | None = None  # since when it is seen drained and empty
    check_count: int = 0  # since then; a burn-in is part of its check
    allowed: SlurmReturnAllowed | None = None  # since then
    over: str = ""  # how the newest drain ended


@dataclass(frozen=True, slots=True)
class SlurmLedger:
    number: int = 0
    works: dict[str, Work] = field(default_factory=dict)  # by key; never changed in place
    nodes: dict[str, NodeHistory] = field(default_factory=dict)
    drained_unix_s: tuple[float, ...] = ()  # when we drained a node
    requeued: tuple[tuple[float, str], ...] = ()  # when we requeued which job
    drains_seen: tuple[tuple[float, SlurmDrainSeen], ...] = ()  # by others; the newest last
    # Launchers and their pods, by job and node: the newest launcher there.
    pods_proved: dict[tuple[str, str], PodProved] = field(default_factory=dict)

    @property
    def open(self) -> list[Work]:
        return [work for work in self.works.values() if work.ended is None]

    @property
    def ours(self) -> list[str]:
        """Return the nodes that are drained by us."""
        return [node for node, past in self.nodes.items() if past.is_ours]

    def has_seen(self, node: str, subject: str, at_unix_s: float) -> bool:
        """Return whether the manager, asked within ten minutes of that time, has had something of this subject's on the node.

        Who was there once has others after him: it says nothing of what he reports a day later.
        """
        return any(
            (ended := work.nodes.get(node)) is not None
            and ended.subject == subject
            and abs(work.nodes_unix_s[node] - at_unix_s) <= SEEN_S
            for work in self.works.values()
            if subject and work.request.subject == subject
        )

    def drains_of(self, subject: str, since_unix_s: float) -> int:
        """Return how many nodes were drained since then of the share of a subject."""
        return sum(
            drain.unix_s > since_unix_s and self._sharer_of(drain) == subject
            for past in self.nodes.values()
            for drain in past.drains
        )

    def held_of(self, subject: str) -> int:
        """Return how many nodes are drained by us now of the share of a subject."""
        return sum(self._sharer_of(self.nodes[node].drains[-1]) == subject for node in self.ours)

    def requeues_of(self, subject: str, since_unix_s: float) -> int:
        """Return how many jobs were requeued since then of the share of a subject."""
        return sum(
            any(act.act in _REQUEUES and act.unix_s > since_unix_s for act in work.acts)
            for work in self.works.values()
            if work.request.sharer == subject
        )

    def _sharer_of(self, drain: Drain) -> str:
        work = self.works.get(drain.key)
        return "" if work is None else work.request.sharer

    def proved_pod(self, job_id: str, node: str, launcher_id: str = "") -> str:
        """Return the pod in which this launcher runs (without ``launcher_id`` the newest one of the job there); empty: it is not proved."""
        proved = self.pods_proved.get((job_id, node))
        if proved is None or (launcher_id and proved.launcher_id != launcher_id):
            return ""
        return proved.pod

    def history(self, node: str) -> NodeHistory:
        return self.nodes.get(node, NodeHistory())

    def is_our_mark(self, node: str, mark: str | None) -> bool:
        """Return whether we drained the node with this mark, and have not ended that drain."""
        past = self.history(node)
        return past.is_ours and mark is not None and mark == mark_of(past.drains[-1].key)


def fold_slurm(entries: Iterable[Entry]) -> SlurmLedger:
    """Return what a whole journal says."""
    return reduce(fold_slurm_entry, entries, SlurmLedger())


def fold_slurm_entry(ledger: SlurmLedger, entry: Entry) -> SlurmLedger:
    """Return the ledger after ``entry``; a kind that is not of Slurm changes nothing."""
    return replace(_fold(entry.record, ledger, entry.unix_s), number=entry.number)


@singledispatch
def _fold(_record: object, ledger: SlurmLedger, _unix_s: float) -> SlurmLedger:
    return ledger


def _with(ledger: SlurmLedger, work: Work) -> SlurmLedger:
    return replace(ledger, works={**ledger.works, work.request.key: work})


def _at(ledger: SlurmLedger, node: str, past: NodeHistory) -> SlurmLedger:
    return replace(ledger, nodes={**ledger.nodes, node: past})


def _more(
    past: NodeHistory, unix_s: float, kind: NodeEventKind, text: str
) -> tuple[NodeEvent, ...]:
    return (*past.events, NodeEvent(unix_s, kind, text))[-_EVENTS_KEPT:]


@_fold.register
def _(record: SlurmAsked, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    if record.key in ledger.works:
        return ledger
    action = SchedulerAction(record.action)
    request = SchedulerRequest(
        record.key,
        action,
        record.nodes,
        record.slurm_job,
        record.reason,
        record.owner,
        record.seen_on,
        record.slurm_step,
        record.shared_by,
        record.pods_of,
        record.subject,
        record.vouched,
        record.pods,
        record.job_id,
        record.sharer,
    )
    retained = dict(ledger.works)
    over = len(retained) - _ENDED_KEPT
    for key in [key for key, work in retained.items() if work.ended is not None][: max(0, over)]:
        del retained[key]
    return replace(ledger, works={**retained, record.key: Work(request, unix_s)})


@_fold.register
def _(record: SlurmVouched, ledger: SlurmLedger, _unix_s: float) -> SlurmLedger:
    work = ledger.works.get(record.key)
    if work is None or record.node in work.request.vouched:
        return ledger
    vouched = (*work.request.vouched, record.node)
    return _with(ledger, replace(work, request=replace(work.request, vouched=vouched)))


@_fold.register
def _(record: SlurmJobSeen, ledger: SlurmLedger, _unix_s: float) -> SlurmLedger:
    return _with(ledger, replace(ledger.works[record.key], before=record))


@_fold.register
def _(record: SlurmActs, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    work = ledger.works[record.key]
    act = Act(unix_s, record.act, record.about, record.output_mark)
    is_first = not work.did(record.act, record.about)
    ledger = _with(ledger, replace(work, acts=(*work.acts, act)[-_ACTS_KEPT:]))
    if record.act is SlurmAct.DRAIN:
        # From here on the drain may be there: it must be known as ours even if nobody reads back.
        past = ledger.history(record.about)
        drain = Drain(unix_s, record.key, work.request.reason)
        if not is_first:
            ledger = _at(ledger, record.about, replace(past, is_ours=True))
        else:
            drains = (*past.drains, drain)[-_DRAINS_KEPT:]
            events = _more(past, unix_s, NodeEventKind.DRAINED, drain.reason)
            ledger = _at(ledger, record.about, NodeHistory(drains, is_ours=True, events=events))
            ledger = replace(ledger, drained_unix_s=(*ledger.drained_unix_s, unix_s)[-_ACTS_KEPT:])
    if record.act in _REQUEUES and is_first:
        requeued = (*ledger.requeued, (unix_s, work.request.slurm_job))
        ledger = replace(ledger, requeued=requeued[-_ENDED_KEPT:])
    return ledger


@_fold.register
def _(record: SlurmNodeEnded, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    work = ledger.works[record.key]
    nodes, times = {**work.nodes, record.node: record}, {**work.nodes_unix_s, record.node: unix_s}
    ledger = _with(ledger, replace(work, nodes=nodes, nodes_unix_s=times))
    past = ledger.history(record.node)
    is_drain = work.request.action is SchedulerAction.DRAIN
    if is_drain and record.outcome is SlurmOutcome.FAILED and work.did(SlurmAct.DRAIN, record.node):
        ledger = _at(ledger, record.node, replace(past, is_ours=False, over=record.text))
    return ledger


@_fold.register
def _(record: PodsSeen, ledger: SlurmLedger, _unix_s: float) -> SlurmLedger:
    return _with(ledger, replace(ledger.works[record.key], pods=record.pods))


@_fold.register
def _(record: PodEnded, ledger: SlurmLedger, _unix_s: float) -> SlurmLedger:
    work = ledger.works[record.key]
    return _with(ledger, replace(work, pods_ended={**work.pods_ended, record.pod: record}))


@_fold.register
def _(record: PodProved, ledger: SlurmLedger, _unix_s: float) -> SlurmLedger:
    key = record.job_id, record.node
    retained = {known: proved for known, proved in ledger.pods_proved.items() if known != key}
    retained[key] = record
    for old in list(retained)[:-_PODS_KEPT]:
        del retained[old]
    return replace(ledger, pods_proved=retained)


@_fold.register
def _(record: SlurmSubmitted, ledger: SlurmLedger, _unix_s: float) -> SlurmLedger:
    return _with(ledger, replace(ledger.works[record.key], copy=record.slurm_job))


@_fold.register
def _(record: SlurmEnded, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    work = replace(ledger.works[record.key], ended=record, ended_unix_s=unix_s)
    return _with(ledger, work)


@_fold.register
def _(record: SlurmDrainOver, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    past = ledger.history(record.node)
    events = _more(past, unix_s, NodeEventKind.OVER, record.text)
    return _at(ledger, record.node, replace(past, is_ours=False, over=record.text, events=events))


@_fold.register
def _(record: SlurmDrainSeen, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    seen = (*ledger.drains_seen, (unix_s, record))
    return replace(ledger, drains_seen=seen[-_ACTS_KEPT:])


@_fold.register
def _(record: SlurmNodeChecked, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    past = ledger.history(record.node)
    events = _more(past, unix_s, NodeEventKind.CHECKED, say_check(record))
    count = past.check_count + (record.step is ReturnStep.CHECK)
    past = replace(past, checked=record, checked_unix_s=unix_s, check_count=count, events=events)
    return _at(ledger, record.node, past)


@_fold.register
def _(record: SlurmNodeEmpty, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    past = ledger.history(record.node)
    since_s = unix_s if record.is_empty else None
    return _at(ledger, record.node, replace(past, empty_unix_s=since_s))


@_fold.register
def _(record: SlurmReturnAllowed, ledger: SlurmLedger, unix_s: float) -> SlurmLedger:
    past = ledger.history(record.node)
    text = f"{record.who}: {record.reason}"
    drains = tuple(replace(drain, is_forgiven=True) for drain in past.drains)
    events = _more(past, unix_s, NodeEventKind.ALLOWED, text)
    past = replace(past, allowed=record, drains=drains, events=events)
    return _at(ledger, record.node, past)


def say_check(record: SlurmNodeChecked) -> str:
    """Return one line about a check."""
    end = "no exit code" if record.exit_code is None else f"exit code {record.exit_code}"
    result = "passed" if record.is_passed else f"failed ({end})"
    text = f": {record.text}" if record.text else ""
    return f"{record.step.value} {result}{text}"
