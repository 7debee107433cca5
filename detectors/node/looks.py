"""Each check of the policy table applied to the newest answers of the collectors."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final, NamedTuple

from detectors.node.checks import Check, CheckGuard, Combine, Measure
from detectors.node.counter_growth import Growth, grow, increase
from detectors.node.node_state import (
    CheckLook,
    Labels,
    MetricAnswer,
    NodeState,
    Series,
    Snapshot,
    finding_id,
)

GROWTHS_MAX: Final = 20_000
EVIDENCE_MAX: Final = 8

_Read = tuple[tuple[str, int] | None, ...]  # per metric that a check reads: collector, revision


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
    """One series compared with its check's condition."""

    is_bad: bool
    value: float
    limit: float
    labels: Labels


@dataclass(slots=True)
class StandingChecks:
    """Which checks need no look until something that they read changes. Kept between looks with one state and one table."""

    read: dict[str, _Read] = field(
        default_factory=dict
    )  # by healthy check: what it read; by one without a reading: nothing
    number: int | None = None  # of the newest snapshot
    readers: dict[str, list[str]] = field(default_factory=dict)  # by metric: the checks
    places: dict[str, int] = field(default_factory=dict)  # of the checks in their table

    def due(self, snapshot: Snapshot, checks: Sequence[Check]) -> Sequence[Check]:
        """Return the checks that need a look: few, where it is known what has changed since the last one."""
        before, self.number = self.number, snapshot.number
        if not self.places:
            self.places = {check.name: place for place, check in enumerate(checks)}
            for check in checks:
                for metric in check.metrics:
                    self.readers.setdefault(metric, []).append(check.name)
        if before is None or snapshot.number != before + 1:
            return checks
        readers = self.readers
        names = {name for metric in snapshot.changed for name in readers.get(metric, ())}
        names |= self.places.keys() - self.read.keys()
        return [checks[place] for place in sorted(map(self.places.__getitem__, names))]


def observe(
    state: NodeState,
    checks: Sequence[Check],
    snapshot: Snapshot,
    still: StandingChecks | None = None,
) -> tuple[NodeState, list[CheckLook]]:
    """Return the looks from new answers: every bad one, and good ones of subjects that are held.

    As long as a healthy check that can't turn bad with time reads the same revisions, it is still healthy
    and is skipped.
    """
    still = StandingChecks() if still is None else still
    due, standing = still.due(snapshot, checks), still.read
    growths, looked_at_s = dict(state.growths), dict(state.looked_at_s)
    collectors = dict(state.collectors)
    held_checks = {subject.seen.check for subject in state.held.values()}
    join = _Join(snapshot)
    observations: list[CheckLook] = []
    readings = snapshot.readings
    for check in due:
        name = check.name
        reading = readings.get(check.metric)
        if reading is None:
            standing.setdefault(name, ())
            continue
        at_s = reading.at_s
        if at_s <= looked_at_s.get(name, -math.inf):
            standing.pop(name, None)  # its limit has changed: look at its next answer
            continue  # an answer already seen
        looked_at_s[name] = at_s
        collectors[check.metric] = reading.collector
        is_held = name in held_checks
        may_stand_still = check.may_stand_still and not is_held
        read = _read_by(check, readings) if may_stand_still else ()
        if read and read == standing.get(name):
            continue
        standing.pop(name, None)
        if not is_held and _is_plainly_well(check, reading.series):
            if read:
                standing[name] = read
            continue
        judged = [
            verdict
            for series in reading.series
            if check.means(series.labels)
            and (verdict := _judge_series(check, series, reading.at_s, growths, join)) is not None
        ]
        if not is_held and not any(verdict.is_bad for verdict in judged):
            is_value = check.condition.measure is Measure.VALUE
            if read and (is_value or not any(verdict.value for verdict in judged)):
                standing[name] = read
            continue  # healthy, as nearly always
        observations += _looks_at_subjects(check, judged, reading, state)
    if len(growths) > GROWTHS_MAX:  # series come and go: forget the oldest
        growths = dict(list(growths.items())[-GROWTHS_MAX:])
        standing.clear()
    state = replace(state, growths=growths, looked_at_s=looked_at_s, collectors=collectors)
    return state, observations


def _looks_at_subjects(
    check: Check, judged: Iterable[_Judged], reading: MetricAnswer, state: NodeState
) -> Iterator[CheckLook]:
    """Return a look at each subject that is bad, or that is held."""
    groups: dict[Labels, list[_Judged]] = {}
    for verdict in judged:
        groups.setdefault(_group(check.by, verdict.labels), []).append(verdict)
    for labels, members in groups.items():
        is_bad = any(member.is_bad for member in members)
        if is_bad or finding_id(check.name, labels) in state.held:
            yield _observation(check, labels, members, reading, is_bad=is_bad)


def _read_by(check: Check, readings: Mapping[str, MetricAnswer]) -> _Read:
    """Return what a check reads, or nothing where a revision is not known."""
    read: list[tuple[str, int] | None] = []
    for metric in check.metrics:
        answer = readings.get(metric)
        if answer is None:
            read.append(None)
        elif answer.revision is None:
            return ()
        else:
            read.append((answer.collector, answer.revision))
    return tuple(read)


def _is_plainly_well(check: Check, series: Sequence[Series]) -> bool:
    """Return whether no value can be bad, whichever series the check selects."""
    condition = check.condition
    if condition.measure is not Measure.VALUE or condition.other is not None:
        return False
    limit, holds = condition.limit, condition.comparison.holds
    values = [item.value for item in series]
    return not isinstance(limit, str) and not any(map(holds, values, repeat(limit)))


def _group(by: tuple[str, ...], labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] in by)


def _judge_series(
    check: Check, series: Series, at_s: float, growths: dict[str, Growth], join: _Join
) -> _Judged | None:
    """Return the verdict on one series, or None if there is none."""
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
