"""What the cluster's journal says: a pure fold of its entries, as `recovery.journal.fold` is for one job.

Ages are taken from the entries' wall clock. A reader passes a ``now`` that does not jump while it
lives (the wall clock of its start plus what has passed since), so a clock that is set changes
nothing before the next start.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import reduce, singledispatch
from itertools import zip_longest
from typing import Final, TypeVar

from detectors.node.charges import ChargeKind, PastCharge
from recovery.controller.cluster.cluster_limits import DAY_S
from recovery.controller.cluster.probe_rules import PROBES_MOST
from recovery.journal.cluster_records import (
    Acknowledged,
    BlameConfirmed,
    BlameTakenBack,
    CauseTold,
    Hold,
    LemonFound,
    NodeBlamed,
    NodeErrorNoted,
    NodeHeld,
    NodeReleased,
    NotDone,
    Paused,
    PowerOffAsked,
    Spent,
    Unpaused,
    WatchedAsked,
    WindowAdded,
    WindowRemoved,
)
from recovery.journal.observation_records import FabricProbeAsked, FabricProbeEnded
from recovery.journal.records import Entry
from recovery.journal.witnesses import Witness

_BLAMES_KEPT: Final = 100  # per node
# Nodes with a past. Launchers choose their nodes' names, so above this those go, the oldest first, that nobody else has named.
NODES_KEPT: Final = 50_000
_ACKNOWLEDGED_KEPT: Final = 10_000  # as many as ended jobs are known
_POWER_OFFS_KEPT: Final = 1_000  # an hour of them at the most that the budget allows
_WATCHED_KEPT: Final = 1_000  # a hang that is older than so many is acted on anew
_CAUSES_KEPT: Final = 1_000  # that are over
_PROBES_KEPT: Final = 10 * PROBES_MOST
SPENT_KEPT: Final = 10_000  # a day of them at the most that any budget allows
NOT_DONE_KEPT: Final = 1_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NodeBlame:
    unix_s: float
    job_id: str
    incident_id: str
    summary: str
    kind: str = ""  # value of a Kind; empty: not known
    evidence: ChargeKind = ChargeKind.UNKNOWN
    subject: str = ""
    witness: Witness = Witness.LAUNCHER
    was_there: bool = False  # the subject, by the word of the nodes' manager or the node's agent


@dataclass(frozen=True, slots=True)
class NodePast:
    blames: tuple[NodeBlame, ...] = ()
    held: NodeHeld | None = None
    held_unix_s: float | None = None  # since when
    quarantines: int = 0  # since a person last released it
    errors: tuple[PastCharge, ...] = ()  # that count nothing by themselves


@dataclass(frozen=True, slots=True)
class ClusterLedger:
    number: int = 0
    nodes: dict[str, NodePast] = field(default_factory=dict)  # never changed in place
    paused: dict[str, Paused] = field(default_factory=dict)
    windows: dict[str, WindowAdded] = field(default_factory=dict)
    spent: tuple[tuple[float, Spent], ...] = ()
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)  # by incident
    power_offs: tuple[tuple[float, PowerOffAsked], ...] = ()
    watched: tuple[tuple[float, WatchedAsked], ...] = ()
    not_done: tuple[tuple[float, NotDone], ...] = ()  # observe mode
    drains: tuple[tuple[float, NodeHeld], ...] = ()  # by people, also those that are over
    lemons: dict[str, LemonFound] = field(
        default_factory=dict
    )  # by node, until a person releases it
    # Of what people are notified: by cause, the newest record and its time. All open ones, and the newest closed ones.
    causes: dict[str, tuple[float, CauseTold]] = field(default_factory=dict)

    # Probes of the network: when each was requested, and whether it is known to have ended
    probes: tuple[tuple[float, FabricProbeAsked, bool], ...] = ()

    def nodes_of_causes(self, since_unix_s: float, most: int) -> tuple[str, ...]:
        """Return the nodes of the newest causes, each owner's in turn: no subject's jobs hide the nodes of others."""
        of_owner: dict[str, dict[str, None]] = {}
        for at_s, cause in reversed(self.causes.values()):
            if at_s > since_unix_s:
                of_owner.setdefault(cause.owner, {}).update(dict.fromkeys(cause.nodes))
        turns = zip_longest(*of_owner.values())
        nodes = dict.fromkeys(node for turn in turns for node in turn if node is not None)
        return tuple(nodes)[:most]

    def past(self, node: str) -> NodePast:
        return self.nodes.get(node, NodePast())

    def hold_of(self, node: str, now_unix_s: float) -> NodeHeld | None:
        """Return what holds the node back now, if anything does."""
        past = self.nodes.get(node)  # read for every node at every tick while a job gathers
        held = None if past is None else past.held
        if held is None or (held.until_unix_s is not None and held.until_unix_s <= now_unix_s):
            return None
        return held

    def held_by_policy(self, now_unix_s: float) -> tuple[str, ...]:
        """Return the nodes that rankmend itself holds back now."""
        held = ((node, self.hold_of(node, now_unix_s)) for node in self.nodes)
        return tuple(n for n, hold in held if hold is not None and hold.hold is Hold.QUARANTINE)

    def lemons_out(self, now_unix_s: float) -> frozenset[str]:
        """Return the lemons that are kept out of use now."""
        return frozenset(
            node
            for node, lemon in self.lemons.items()
            if not lemon.is_dry and self.hold_of(node, now_unix_s) is not None
        )

    def window_of(self, node: str, now_unix_s: float) -> WindowAdded | None:
        """Return the maintenance window that the node is in now, if any."""
        for window in self.windows.values():
            is_open = window.from_unix_s <= now_unix_s < window.until_unix_s
            if is_open and any(fnmatchcase(node, pattern) for pattern in window.nodes):
                return window
        return None

    def with_blames(self, node: str, blames: tuple[NodeBlame, ...]) -> "ClusterLedger":
        """Return the ledger in which these are all that counts against the node."""
        return _with(self, node, replace(self.past(node), blames=blames))

    def blames_of(self, node: str, since_unix_s: float) -> list[NodeBlame]:
        """Return what has counted against the node since then."""
        return [blame for blame in self.past(node).blames if blame.unix_s >= since_unix_s]

    def blames_since(self, node: str, since_unix_s: float) -> int:
        """Return how many incidents have accused the node since then."""
        return len(self.blames_of(node, since_unix_s))

    def counted_against(self, node: str) -> tuple[PastCharge, ...]:
        """Return what counts against the node, oldest first."""
        return tuple(
            PastCharge(blame.unix_s, blame.job_id, blame.incident_id, blame.evidence)
            for blame in self.past(node).blames
        )

    def compared_on(self, node: str, subject: str = "") -> tuple[PastCharge, ...]:
        """Return the errors on the node that count nothing by themselves, without those that their jobs had elsewhere, too.

        ``subject``: with whose they are compared; empty: all users are one party. What another reports who was never there proves nothing.
        """
        elsewhere = self._errors_elsewhere(node)
        return tuple(
            error
            for error in self.past(node).errors
            if (error.job_id, error.error) not in elsewhere
            if not subject or error.subject in ("", subject) or error.was_there
        )

    def has_elsewhere(self, node: str, job_id: str, error: str) -> bool:
        """Return whether the job had this class of error on another node, too."""
        return (job_id, error) in self._errors_elsewhere(node)

    def _errors_elsewhere(self, node: str) -> frozenset[tuple[str, str]]:
        return frozenset(
            (error.job_id, error.error)
            for name, past in self.nodes.items()
            if name != node
            for error in past.errors
        )

    def watched_asked(self, key: str) -> WatchedAsked | None:
        """Return what was requested of the scheduler about this hang of a watched job; the newest counts."""
        found = (item for _unix_s, item in reversed(self.watched) if item.key == key)
        return next(found, None)

    def watched_asked_since(self, since_unix_s: float) -> Counter[str]:
        """Return how often the scheduler was queried about each user's watched jobs since then, dry runs left out."""
        return Counter(
            item.user for unix_s, item in self.watched if unix_s > since_unix_s and not item.is_dry
        )

    def is_spent(self, job_id: str, incident_id: str, try_number: int) -> bool:
        """Return whether this plan was let through already."""
        return any(
            (item.job_id, item.incident_id, item.try_number) == (job_id, incident_id, try_number)
            for _unix_s, item in reversed(self.spent)
        )


def fold_cluster(entries: Iterable[Entry]) -> ClusterLedger:
    """Return what a whole journal says."""
    return reduce(fold_entry, entries, ClusterLedger())


def fold_entry(ledger: ClusterLedger, entry: Entry) -> ClusterLedger:
    """Return the ledger after ``entry``; a kind that is not the cluster's changes nothing."""
    return replace(_fold(entry.record, ledger, entry.unix_s), number=entry.number)


@singledispatch
def _fold(_record: object, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    return ledger


def _with(ledger: ClusterLedger, node: str, past: NodePast) -> ClusterLedger:
    nodes = {**ledger.nodes, node: past}
    if len(nodes) > NODES_KEPT and node not in ledger.nodes:
        forged = (name for name, known in nodes.items() if name != node and _is_named_alone(known))
        nodes.pop(next(forged, ""), None)
    return replace(ledger, nodes=nodes)


_C = TypeVar("_C", NodeBlame, PastCharge)


def _newest(items: tuple[_C, ...]) -> tuple[_C, ...]:
    """Return what is kept of a node's past: where it is too much, the subject with the most loses its oldest."""
    if len(items) <= _BLAMES_KEPT:
        return items
    ((most, _count),) = Counter(item.subject for item in items).most_common(1)
    return _without(items, next(place for place, item in enumerate(items) if item.subject == most))


def _without(items: tuple[_T, ...], place: int) -> tuple[_T, ...]:
    return (*items[:place], *items[place + 1 :])


def _is_named_alone(past: NodePast) -> bool:
    """Return whether only launchers of one subject each have named the node, and nothing is done about it."""
    return past.held is None and all(
        blame.subject and blame.witness is Witness.LAUNCHER for blame in past.blames
    )


@_fold.register
def _(record: NodeBlamed, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    past = ledger.past(record.node)
    if any(item.incident_id == record.incident_id for item in past.blames):
        return ledger
    summary, kind, evidence = record.summary, record.kind, record.evidence
    blame = NodeBlame(
        unix_s,
        record.job_id,
        record.incident_id,
        summary,
        kind,
        evidence,
        record.subject,
        record.witness,
        record.was_there,
    )
    return _with(ledger, record.node, replace(past, blames=_newest((*past.blames, blame))))


@_fold.register
def _(record: NodeErrorNoted, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    past = ledger.past(record.node)
    noted = PastCharge(
        unix_s,
        record.job_id,
        record.incident_id,
        record.evidence,
        record.error,
        record.program,
        record.is_here_alone,
        record.subject,
        record.was_there,
    )
    return _with(ledger, record.node, replace(past, errors=_newest((*past.errors, noted))))


@_fold.register
def _(record: BlameConfirmed, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    past = ledger.past(record.node)
    blames = tuple(
        replace(blame, witness=record.witness, was_there=True)
        if blame.incident_id in record.incident_ids and blame.job_id == record.job_id
        else blame
        for blame in past.blames
    )
    return _with(ledger, record.node, replace(past, blames=blames))


@_fold.register
def _(record: BlameTakenBack, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    gone = frozenset(record.incident_ids)
    for node in record.nodes:
        past = ledger.past(node)
        blames = tuple(blame for blame in past.blames if blame.incident_id not in gone)
        errors = tuple(error for error in past.errors if error.incident_id not in gone)
        ledger = _with(ledger, node, replace(past, blames=blames, errors=errors))
    for node in record.released:
        past = ledger.past(node)
        was = past.held is not None and past.held.hold is Hold.QUARANTINE
        count = max(0, past.quarantines - was)
        ledger = _with(ledger, node, replace(past, held=None, quarantines=count))
    lemons = {node: lemon for node, lemon in ledger.lemons.items() if node not in record.released}
    return replace(ledger, lemons=lemons)


@_fold.register
def _(record: NodeHeld, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    past = ledger.past(record.node)
    count = past.quarantines + (record.hold is Hold.QUARANTINE)
    if record.hold is Hold.DRAIN:
        ledger = replace(ledger, drains=(*ledger.drains, (unix_s, record))[-_WATCHED_KEPT:])
    return _with(
        ledger, record.node, replace(past, held=record, held_unix_s=unix_s, quarantines=count)
    )


@_fold.register
def _(record: NodeReleased, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    lemons = {node: lemon for node, lemon in ledger.lemons.items() if node != record.node}
    return _with(replace(ledger, lemons=lemons), record.node, NodePast())


@_fold.register
def _(record: LemonFound, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    return replace(ledger, lemons={**ledger.lemons, record.node: record})


@_fold.register
def _(record: Paused, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    return replace(ledger, paused={**ledger.paused, record.scope: record})


@_fold.register
def _(record: Unpaused, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    left = {scope: item for scope, item in ledger.paused.items() if scope != record.scope}
    return replace(ledger, paused=left)


@_fold.register
def _(record: Spent, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    retained = (*ledger.spent, (unix_s, record))
    if len(retained) > SPENT_KEPT:
        # A job that stands leaves nodes as often as its launchers like: that must not push out the stops that count.
        is_old = retained[0][0] <= unix_s - DAY_S
        others = (place for place, (_at_s, item) in enumerate(retained) if not item.stops_training)
        retained = _without(retained, 0 if is_old else next(others, 0))
    return replace(ledger, spent=retained)


@_fold.register
def _(record: WindowAdded, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    return replace(ledger, windows={**ledger.windows, record.window_id: record})


@_fold.register
def _(record: WindowRemoved, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    left = {key: window for key, window in ledger.windows.items() if key != record.window_id}
    return replace(ledger, windows=left)


@_fold.register
def _(record: Acknowledged, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    retained = {**ledger.acknowledged, record.incident_id: record}
    for key in list(retained)[:-_ACKNOWLEDGED_KEPT]:
        del retained[key]
    return replace(ledger, acknowledged=retained)


@_fold.register
def _(record: PowerOffAsked, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    retained = (*ledger.power_offs, (unix_s, record))[-_POWER_OFFS_KEPT:]
    return replace(ledger, power_offs=retained)


@_fold.register
def _(record: WatchedAsked, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    retained = (*ledger.watched, (unix_s, record))[-_WATCHED_KEPT:]
    return replace(ledger, watched=retained)


@_fold.register
def _(record: NotDone, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    retained = (*ledger.not_done, (unix_s, record))
    if len(retained) > NOT_DONE_KEPT:
        # What only launchers say goes first: a flood of forged faults pushes out nothing that people read.
        alone = (place for place, (_at_s, item) in enumerate(retained) if not item.is_observed)
        retained = _without(retained, next(alone, 0))
    return replace(ledger, not_done=retained)


@_fold.register
def _(record: CauseTold, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    retained = {key: cause for key, cause in ledger.causes.items() if key != record.cause_id}
    retained[record.cause_id] = (unix_s, record)
    over = {key: item.owner for key, (_at_s, item) in retained.items() if item.is_over}
    if (
        len(over) > _CAUSES_KEPT
    ):  # the oldest of whose jobs have the most: a flood of one pushes out nothing of others
        ((most, _count),) = Counter(over.values()).most_common(1)
        del retained[next(key for key, owner in over.items() if owner == most)]
    return replace(ledger, causes=retained)


@_fold.register
def _(record: FabricProbeAsked, ledger: ClusterLedger, unix_s: float) -> ClusterLedger:
    return replace(ledger, probes=(*ledger.probes, (unix_s, record, False))[-_PROBES_KEPT:])


@_fold.register
def _(record: FabricProbeEnded, ledger: ClusterLedger, _unix_s: float) -> ClusterLedger:
    probes = tuple(
        (at_s, item, has_ended or item.probe_id == record.probe_id)
        for at_s, item, has_ended in ledger.probes
    )
    return replace(ledger, probes=probes)
