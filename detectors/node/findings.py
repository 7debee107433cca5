"""Findings of one node: the policy table held against the newest answers of the collectors.

`observe` turns answers into looks, `judge` lets looks become findings (detectors/persistence.py),
`list_findings` adds what only all of them together tell: the driver's verdict, which wins over the
action of every row on the same device, and the ranks that stand on it. All three are pure; the
state between two calls is a value that can be saved and restored.

What is missing is never healthy: a check whose collector is silent looks at nothing and ends
nothing. A series that a working collector no longer names is gone, and so is its finding in time.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from operator import is_
from typing import Final, NamedTuple, Protocol

from detectors.finding import Action, Severity
from detectors.kernel.verdict import KernelAccount
from detectors.node.checks import Check, CheckGuard, Combine, Component, Measure
from detectors.node.counter_growth import Growth, grow, increase
from detectors.persistence import (
    Persistence,
    Track,
    after_reboot,
    is_forgotten,
    look,
    released,
    shifted,
    vanished,
)

HELD_MAX: Final = 2_000  # subjects; a node of 8 GPUs and 10 NICs has about 2,000 series in all
GROWTHS_MAX: Final = 20_000
EVIDENCE_MAX: Final = 8
ABSENT_S: Final = 600.0  # as long as gpud keeps a port's state (sticky window, 10 min)
RANK_INFO: Final = "rankmend_rank_info"
RANK_GPU_INFO: Final = "rankmend_rank_gpu_info"
AFFINITY_INFO: Final = "rankmend_topology_affinity_info"

Labels = tuple[tuple[str, str], ...]


class Series(Protocol):
    """One sample of a metric, as a collector gives it."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def labels(self) -> Labels: ...


@dataclass(frozen=True, slots=True)
class MetricAnswer:
    """All series of one metric in the newest answer of its collector."""

    collector: str
    at_s: float
    series: Sequence[Series]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest answers of all collectors."""

    readings: Mapping[str, MetricAnswer]  # by metric
    silent: AbstractSet[str] = frozenset()  # collectors that are broken, stale or not yet heard


@dataclass(frozen=True, slots=True)
class CheckLook:
    """One look at one subject, and what it would mean."""

    check: str
    component: Component
    labels: Labels
    collector: str
    at_s: float
    is_bad: bool
    persistence: Persistence
    severity: Severity
    action: Action
    summary: str
    evidence: tuple[str, ...]
    source: str
    reboots_max: int | None = None
    overrules: bool = False  # the driver's own verdict: its action wins on this device
    mark: str = ""  # of what was seen, where only something new is a bad look
    beside: tuple[str, ...] = ()  # checks that make it worse where one is active on this node
    beside_action: Action = Action.NONE
    kernel: KernelAccount | None = None  # of the log's findings: which lines, and when
    is_withdrawn: bool = False  # it turned out to be nothing: no latch holds it


@dataclass(frozen=True, slots=True)
class HeldFinding:
    """One subject that was bad at least once, with its newest bad look."""

    seen: CheckLook
    track: Track
    started_unix_s: float | None = None  # for people and alerts; None while not active


@dataclass(frozen=True, slots=True)
class NodeState:
    held: dict[str, HeldFinding] = field(default_factory=dict)  # by finding id
    growths: dict[str, Growth] = field(default_factory=dict)  # by check and series
    looked_at_s: dict[str, float] = field(default_factory=dict)  # by check
    collectors: dict[str, str] = field(default_factory=dict)  # metric -> who gives it
    dropped: int = 0  # subjects beyond HELD_MAX: counted, never silently lost


@dataclass(frozen=True, slots=True)
class HitRank:
    job_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What is wrong with this node, where, since when, whom it hits and what to do."""

    id: str
    check: str
    component: Component
    device: str  # empty: the node itself
    labels: Labels
    severity: Severity
    action: Action
    reason: str  # why this action, where it is not the row's own
    summary: str
    evidence: tuple[str, ...]
    source: str
    since_age_s: float
    started_unix_s: float
    ranks: tuple[HitRank, ...]
    is_flapping: bool
    is_latched: bool
    raises: int
    boots: int
    kernel: KernelAccount | None = None  # where the kernel's log told of it


def finding_id(check: str, labels: Labels) -> str:
    """Return the name of a subject, by which people silence and release it."""
    device = "/".join(part for part in (_uuid_of(labels), device_of(labels)) if part)
    return f"{check}/{device}" if device else check


def device_of(labels: Labels) -> str:
    """Return the device in a check's labels without what the GPU's UUID says already."""
    is_gpu = any(name == "uuid" for name, _value in labels)
    skipped = ("uuid", "gpu", "pci_bus_id") if is_gpu else ()
    return "/".join(value for name, value in labels if name not in skipped and value)


def _uuid_of(labels: Labels) -> str:
    return next((value for name, value in labels if name == "uuid"), "")


class _Join:
    """Finds the series of another metric that belongs to the same device."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._names: dict[str, tuple[str, ...]] = {}  # metric -> labels
        self._indexes: dict[tuple[str, tuple[str, ...]], dict[Labels, list[float]]] = {}

    def values(self, metric: str, labels: Labels) -> Sequence[float]:
        reading = self._snapshot.readings.get(metric)
        if reading is None or not reading.series:
            return ()
        named = self._names.get(metric)
        if named is None:
            named = tuple([name for name, _value in reading.series[0].labels])
            self._names[metric] = named
        shared = tuple([pair for pair in labels if pair[0] in named])
        names = tuple([name for name, _value in shared])
        index = self._indexes.get((metric, names))
        if index is None:
            index = self._indexes[metric, names] = {}
            for series in reading.series:
                key = series.labels
                if names != named:
                    own = dict(key)
                    key = tuple([(name, own[name]) for name in names])
                index.setdefault(key, []).append(series.value)
        return index.get(shared, ())

    def value(self, metric: str, labels: Labels) -> float | None:
        found = self.values(metric, labels)
        return found[0] if len(found) == 1 else None


class _Judged(NamedTuple):  # thousands a second: four times cheaper to make than a dataclass
    """One series held against its check's condition."""

    is_bad: bool
    value: float
    limit: float
    labels: Labels


_Read = tuple[Sequence[Series] | None, ...]  # the series of each metric that a check reads
StillByCheck = dict[str, _Read]


def observe(
    state: NodeState,
    checks: Iterable[Check],
    snapshot: Snapshot,
    still: StillByCheck | None = None,
) -> tuple[NodeState, list[CheckLook]]:
    """Return the looks that new answers allow: every bad one, and the good ones of what is held.

    ``still`` is the caller's to keep from look to look of one state and one table: what the checks
    read that were well. As long as those are the same lists, the check is well and passed over.
    """
    still = {} if still is None else still
    growths, looked_at_s = dict(state.growths), dict(state.looked_at_s)
    collectors = dict(state.collectors)
    held_checks = {subject.seen.check for subject in state.held.values()}
    join, observations = _Join(snapshot), []
    for check in checks:
        reading = snapshot.readings.get(check.metric)
        if reading is None:
            continue
        collectors[check.metric] = reading.collector
        if reading.at_s <= looked_at_s.get(check.name, -math.inf):
            continue  # the same answer again
        looked_at_s[check.name] = reading.at_s
        is_held = check.name in held_checks
        may_stand_still = not is_held and _may_stand_still(check)
        read = _read_by(check, snapshot) if may_stand_still else ()
        before = still.pop(check.name, ())
        if read and before and all(map(is_, read, before)):
            still[check.name] = before
            continue
        if not is_held and _is_plainly_well(check, reading.series):
            still[check.name] = read
            continue
        judged = [
            verdict
            for series in reading.series
            if _is_meant(check, series.labels)
            and (verdict := _judge_series(check, series, reading.at_s, growths, join)) is not None
        ]
        if not is_held and not any(verdict.is_bad for verdict in judged):
            is_value = check.condition.measure is Measure.VALUE
            if may_stand_still and (is_value or not any(verdict.value for verdict in judged)):
                still[check.name] = read
            continue  # all is well, as nearly always
        groups: dict[Labels, list[_Judged]] = {}
        for verdict in judged:
            groups.setdefault(_group(check.by, verdict.labels), []).append(verdict)
        for labels, members in groups.items():
            is_bad = any(member.is_bad for member in members)
            if is_bad or finding_id(check.name, labels) in state.held:
                observations.append(_observation(check, labels, members, reading, is_bad=is_bad))
    if len(growths) > GROWTHS_MAX:  # series that come and go: the first ones are forgotten
        growths = dict(list(growths.items())[-GROWTHS_MAX:])
        still.clear()
    state = replace(state, growths=growths, looked_at_s=looked_at_s, collectors=collectors)
    return state, observations


def _may_stand_still(check: Check) -> bool:
    """Tell whether time alone can't make this check bad.

    Where it goes by growth: none in the window stays none, and nothing else is compared.
    """
    return check.condition.measure is Measure.VALUE or len(check.metrics) == 1


def _read_by(check: Check, snapshot: Snapshot) -> _Read:
    readings = [snapshot.readings.get(metric) for metric in check.metrics]
    return tuple([None if reading is None else reading.series for reading in readings])


def _is_plainly_well(check: Check, series: Sequence[Series]) -> bool:
    """Tell whether no value can be bad, whichever series are meant and whatever else is known."""
    condition = check.condition
    if condition.measure is not Measure.VALUE or condition.other is not None:
        return False
    limit, holds = condition.limit, condition.comparison.holds
    values = [one.value for one in series]
    return not isinstance(limit, str) and not any(map(holds, values, repeat(limit)))


def _is_meant(check: Check, labels: Labels) -> bool:
    for label, pattern in check.where:
        for name, value in labels:
            if name == label and pattern.fullmatch(value) is None:
                return False
    return True


def _group(by: tuple[str, ...], labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] in by)


def _judge_series(
    check: Check, series: Series, at_s: float, growths: dict[str, Growth], join: _Join
) -> _Judged | None:
    """Return the verdict on one series, or None where it can't be told."""
    condition, value = check.condition, series.value
    if math.isnan(value):
        return None
    if condition.measure is not Measure.VALUE:
        key = "\x1f".join([check.name, *[text for _name, text in series.labels]])
        growth = grow(
            growths.get(key), value, at_s, check.window_s, from_zero=check.counts_from_zero
        )
        growths[key] = growth
        value = increase(growth, at_s, check.window_s)
        if condition.measure is Measure.RATE:
            value /= check.window_s
    if condition.other is not None:
        other = join.value(condition.other, series.labels)
        if other is None or math.isnan(other):
            return None
        if condition.combine is Combine.DIFFERENCE:
            value -= other
        elif other == 0:
            return None
        else:
            value /= other
    limit = condition.limit
    if isinstance(limit, str):
        found = join.value(limit, series.labels)
        if found is None:
            return None
        limit = found
    if check.guards and not _are_met(check.guards, series.labels, join):
        return None
    return _Judged(condition.comparison.holds(value, limit), value, limit, series.labels)


def _are_met(guards: tuple[CheckGuard, ...], labels: Labels, join: _Join) -> bool:
    return all(
        any(
            guard.comparison.holds(value, guard.limit)
            for value in join.values(guard.metric, labels)
        )
        for guard in guards
    )


def _observation(
    check: Check, labels: Labels, members: list[_Judged], reading: MetricAnswer, *, is_bad: bool
) -> CheckLook:
    shown = [member for member in members if member.is_bad is is_bad]
    first = shown[0]
    evidence = [_evidence_line(check, member) for member in shown[:EVIDENCE_MAX]] if is_bad else []
    if len(shown) > EVIDENCE_MAX and is_bad:
        evidence.append(f"and {len(shown) - EVIDENCE_MAX} more series")
    return CheckLook(
        check=check.name,
        component=check.component,
        labels=labels,
        collector=reading.collector,
        at_s=reading.at_s,
        is_bad=is_bad,
        persistence=check.persistence,
        severity=check.severity,
        action=check.action,
        summary=_summary(check, labels, first) if is_bad else "",
        evidence=tuple(evidence),
        source=check.source,
        reboots_max=check.reboots_max,
        overrules=check.overrules,
        beside=check.beside,
        beside_action=check.beside_action,
    )


def _summary(check: Check, labels: Labels, judged: _Judged) -> str:
    fields: dict[str, object] = {name: value or "?" for name, value in labels}
    return check.summary.format(**fields, value=judged.value, limit=judged.limit)


def _evidence_line(check: Check, judged: _Judged) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in judged.labels)
    over = f" over {check.window_s:g} s" if check.window_s else ""
    limit = f", limit {judged.limit:g}" if isinstance(check.condition.limit, str) else ""
    return f"{check.metric}{{{labels}}}: {judged.value:.6g}{over} ({check.condition.text}{limit})"


def judge(
    state: NodeState,
    observations: Iterable[CheckLook],
    snapshot: Snapshot,
    now_s: float,
    unix_s: float,
) -> NodeState:
    """Return the state after these looks; what has none is gone or waits, by its collector."""
    held, dropped, seen = dict(state.held), state.dropped, set()
    for observation in observations:
        key = finding_id(observation.check, observation.labels)
        seen.add(key)
        before = held.get(key)
        if before is None and len(held) >= HELD_MAX:
            dropped += 1
            continue
        track = look(
            before.track if before else None,
            observation.persistence,
            is_bad=observation.is_bad,
            at_s=observation.at_s,
        )
        if track is None:
            continue
        if observation.is_withdrawn:
            track = released(track)
        newest = observation if before is None or observation.is_bad else before.seen
        held[key] = _dated(
            HeldFinding(newest, track, before.started_unix_s if before else None), now_s, unix_s
        )
    for key, subject in state.held.items():
        if key in seen:
            continue
        if subject.seen.collector not in snapshot.silent:
            gone = vanished(subject.track, now_s, ABSENT_S)
            held[key] = _dated(replace(subject, track=gone), now_s, unix_s)
        if is_forgotten(held[key].track, now_s):
            del held[key]
    return replace(state, held=held, dropped=dropped)


def _dated(subject: HeldFinding, now_s: float, unix_s: float) -> HeldFinding:
    """Return the subject with the date of its start, taken once: clocks of a node do jump."""
    track = subject.track
    if not track.is_active:
        return replace(subject, started_unix_s=None)
    if subject.started_unix_s is not None or track.since_s is None:
        return subject
    return replace(subject, started_unix_s=unix_s - max(0.0, now_s - track.since_s))


def list_findings(state: NodeState, snapshot: Snapshot, now_s: float) -> tuple[NodeFinding, ...]:
    """Return what is wrong now, the worst first."""
    active = {key: subject for key, subject in state.held.items() if subject.track.is_active}
    verdicts = {
        _uuid_of(subject.seen.labels): subject.seen
        for subject in active.values()
        if subject.seen.overrules
    }
    checks = frozenset(subject.seen.check for subject in active.values())
    ranks = _RankPlaces(snapshot)
    findings = [_finding(key, active[key], verdicts, checks, ranks, now_s) for key in active]
    return tuple(sorted(findings, key=_order))


def _finding(
    key: str,
    subject: HeldFinding,
    verdicts: Mapping[str, CheckLook],
    checks: AbstractSet[str],
    ranks: "_RankPlaces",
    now_s: float,
) -> NodeFinding:
    seen, track = subject.seen, subject.track
    action, reason = _action(subject, verdicts.get(_uuid_of(seen.labels)), checks)
    assert track.since_s is not None, "what is active has begun"
    return NodeFinding(
        id=key,
        check=seen.check,
        component=seen.component,
        device=device_of(seen.labels),
        labels=seen.labels,
        severity=seen.severity,
        action=action,
        reason=reason,
        summary=seen.summary,
        evidence=seen.evidence,
        source=seen.source,
        since_age_s=max(0.0, now_s - track.since_s),
        started_unix_s=subject.started_unix_s or 0.0,
        ranks=ranks.hit_by(seen),
        is_flapping=track.is_flapping,
        is_latched=track.is_latched,
        raises=track.raises,
        boots=track.bad_boots,
        kernel=seen.kernel,
    )


_MENDED_BY_BOOT: Final = frozenset({Action.RESTART_APP, Action.RESET_GPU, Action.REBOOT})


def _action(
    subject: HeldFinding, verdict: CheckLook | None, checks: AbstractSet[str]
) -> tuple[Action, str]:
    """Return what to do: the row's word, that of a row which agrees, the driver's, what did not help."""
    seen = subject.seen
    action, reason = seen.action, ""
    if agreeing := sorted(set(seen.beside) & checks):
        action, reason = seen.beside_action, f"with {', '.join(agreeing)}"
    if verdict is not None and not seen.overrules and action not in (Action.NONE, Action.WATCH):
        action, reason = verdict.action, f"the driver's verdict: {verdict.summary}"
    boots = subject.track.bad_boots
    if seen.reboots_max is not None and boots > seen.reboots_max and action in _MENDED_BY_BOOT:
        return Action.CONTACT_SUPPORT, f"came back after {boots - 1} reboots"
    return action, reason


_SEVERITIES: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def _order(finding: NodeFinding) -> tuple[int, str]:
    return _SEVERITIES[finding.severity], finding.id


class _RankPlaces:
    """Which ranks stand on which device of this node."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._all = tuple(sorted(set(_ranks(snapshot, RANK_INFO)), key=_rank_order))
        self._by_uuid: dict[str, list[HitRank]] = {}
        self._by_address: dict[str, list[HitRank]] = {}
        reading = snapshot.readings.get(RANK_GPU_INFO)
        for series in reading.series if reading else ():
            own = dict(series.labels)
            rank = HitRank(own["job_id"], int(own["rank"]))
            self._by_uuid.setdefault(own["uuid"], []).append(rank)
            self._by_address.setdefault(pci_address(own["pci_bus_id"]), []).append(rank)
        self._near_nic = _gpus_near(snapshot)

    def hit_by(self, seen: CheckLook) -> tuple[HitRank, ...]:
        """Return the ranks on the device; on the node where the device is everybody's."""
        own = dict(seen.labels)
        if seen.component is Component.RANK:
            return (HitRank(own["job_id"], int(own["rank"])),) if "rank" in own else ()
        if seen.component is Component.AGENT:
            return ()  # no rank runs the worse for it
        if seen.component is Component.GPU and "uuid" in own:
            return tuple(sorted(self._by_uuid.get(own["uuid"], ()), key=_rank_order))
        if seen.component is Component.NIC and own.get("device") in self._near_nic:
            near = self._near_nic[own["device"]]
            hit = {rank for address in near for rank in self._by_address.get(address, ())}
            return tuple(sorted(hit, key=_rank_order))
        return self._all


_CLOSENESS: Final = ("PIX", "PXB", "PHB", "NODE")  # nearest first; SYS is near to nobody


def _gpus_near(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the GPUs to which each NIC is the nearest, by PCI address.

    NCCL lets a GPU send through the NIC that is nearest to it.
    """
    reading = snapshot.readings.get(AFFINITY_INFO)
    by_gpu: dict[str, list[tuple[int, str]]] = {}
    for series in reading.series if reading else ():
        own = dict(series.labels)
        if own["closeness"] in _CLOSENESS:
            place = (_CLOSENESS.index(own["closeness"]), own["device"])
            by_gpu.setdefault(pci_address(own["pci_bus_id"]), []).append(place)
    near: dict[str, list[str]] = {}
    for address, places in by_gpu.items():
        nearest = min(places)[0]
        for closeness, device in places:
            if closeness == nearest:
                near.setdefault(device, []).append(address)
    return near


def pci_address(text: str) -> str:
    """Return a PCI address as all writers agree on it: NVML has 8 digits of domain, sysfs 4.

    The function is left out: an XID line has none, and a GPU's is 0.
    """
    domain, _colon, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest.partition('.')[0]}"


def _ranks(snapshot: Snapshot, metric: str) -> Iterator[HitRank]:
    reading = snapshot.readings.get(metric)
    for series in reading.series if reading else ():
        own = dict(series.labels)
        yield HitRank(own["job_id"], int(own["rank"]))


def _rank_order(rank: HitRank) -> tuple[str, int]:
    return rank.job_id, rank.rank


def release(state: NodeState, key: str) -> NodeState | None:
    """Return the state without the latch of one finding, or None where there is none."""
    subject = state.held.get(key)
    if subject is None or not subject.track.is_latched:
        return None
    return replace(state, held={**state.held, key: replace(subject, track=released(subject.track))})


def restore(state: NodeState, shift_s: float, *, is_new_boot: bool) -> NodeState:
    """Return a saved state as it goes on: in this boot, or in a later one with another clock."""
    if not is_new_boot:
        return state
    held = {
        key: replace(
            subject,
            track=after_reboot(shifted(subject.track, shift_s), subject.seen.persistence),
        )
        for key, subject in state.held.items()
    }
    return replace(state, held=held, growths={}, looked_at_s={})


def blocked_checks(state: NodeState, checks: Iterable[Check], snapshot: Snapshot) -> list[str]:
    """Return the checks that ought to run and can't: their collector is silent."""
    return [
        check.name
        for check in checks
        if any(state.collectors.get(metric) in snapshot.silent for metric in check.metrics)
    ]


@lru_cache(maxsize=1_024)
def alert_name(check: str) -> str:
    """Return a check's name in the form of an alert's: ``RankmendGpuLost``."""
    return "Rankmend" + "".join(part.capitalize() for part in check.split("_"))


def alert_labels(finding: NodeFinding, node: str) -> dict[str, str]:
    """Return the labels under which a finding travels: those of detectors.finding.LABELS only."""
    labels = {
        "alertname": alert_name(finding.check),
        "node": node,
        "severity": finding.severity.value,
        "uuid": _uuid_of(finding.labels),
        "device": finding.device,
    }
    return {name: value for name, value in labels.items() if value}


def alert_annotations(finding: NodeFinding) -> dict[str, str]:
    """Return what an alert says beside its labels. Ranks change while the fault stays: no label."""
    ranks = ", ".join(f"{rank.job_id}:{rank.rank}" for rank in finding.ranks)
    texts = {
        "summary": finding.summary,
        "action": finding.action.value,
        "reason": finding.reason,
        "component": finding.component.value,
        "check": finding.check,
        "finding": finding.id,
        "ranks": ranks,
        "description": "\n".join(finding.evidence),
        "source": finding.source,
    }
    return {name: value for name, value in texts.items() if value}
