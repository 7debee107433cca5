"""The newest answers of all collectors in the form that the detectors read: by metric, with revisions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from agent.metrics import Metric
from agent.sampling.collection import (
    NEVER,
    CollectorAnswer,
    CollectorOutcome,
    CollectorView,
    Revision,
)
from agent.sampling.runner import runner_metrics
from detectors.node.kernel_findings import GPU_INFO, RECOVERY_ACTION, XID_EVENTS
from detectors.node.node_state import MetricAnswer, Snapshot
from detectors.node.rank_places import AFFINITY_INFO, RANK_GPU_INFO, RANK_INFO

_RUNNER: Final = ""  # no collector's name: what `make_snapshot` keeps of the runner's own metrics
LOG_RECORDS: Final = "rankmend_kernel_log_records_total"  # on the page: the log can be read
TIMED: Final = frozenset(
    {"rankmend_collector_age_seconds", "rankmend_collector_duration_seconds"}
)  # the runner's metrics that change with each look; no check of the shipped table reads them
# what detectors read besides what the checks name
DETECTORS_READ: Final = frozenset(
    {
        *(AFFINITY_INFO, RANK_GPU_INFO, RANK_INFO),
        *(GPU_INFO, LOG_RECORDS, RECOVERY_ACTION, XID_EVENTS),
    }
)
_UNHEARD = (CollectorOutcome.PENDING, CollectorOutcome.BROKEN)


@dataclass(slots=True)
class SeenAnswer:
    """The answer of one collector, sorted by metric."""

    collector: str
    revision: Revision
    layout: Revision
    places: dict[str, list[int]]  # positions of each metric's series in the answer
    series: dict[str, list[Metric]]
    revisions: dict[str, Revision]  # when a series of the metric last changed
    names: tuple[str, ...]  # of the metrics that are wanted
    at_s: float = 0.0


@dataclass(slots=True)
class SeenAnswers:
    """What a reader of snapshots keeps from one to the next."""

    by_collector: dict[str, SeenAnswer] = field(default_factory=dict)
    by_metric: dict[str, SeenAnswer] = field(default_factory=dict)  # the same, as they are found
    standing: list[tuple[object, ...]] = field(default_factory=list)  # the runner's, of all
    number: int = 0  # of the newest snapshot


class _Readings(Mapping[str, MetricAnswer]):
    """Answers by metric, made when they are read: most are not, because nothing has changed."""

    __slots__ = ("_by_metric",)

    def __init__(self, by_metric: Mapping[str, SeenAnswer]) -> None:
        self._by_metric = by_metric

    def __getitem__(self, name: str) -> MetricAnswer:
        seen = self._by_metric[name]
        return MetricAnswer(seen.collector, seen.at_s, seen.series[name], seen.revisions.get(name))

    def __contains__(self, name: object) -> bool:
        return name in self._by_metric

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_metric)

    def __len__(self) -> int:
        return len(self._by_metric)


def make_snapshot(
    views: Sequence[CollectorView],
    now_s: float,
    seen: SeenAnswers,
    asking: str,
    *,
    wanted: AbstractSet[str] | None = None,
) -> Snapshot:
    """Return the newest answers by metric, and which collectors are silent.

    ``seen`` is the caller's to keep from one snapshot to the next, and a snapshot holds until that. ``asking`` is
    the collector that wants the snapshot: it runs, so its own silence says nothing. ``wanted``: only these metrics,
    and those of `DETECTORS_READ`.
    """
    changed: set[str] = set()
    is_new_layout = False
    for view in views:
        answer, at_s = view.answer, view.answered_at_s
        known = seen.by_collector.get(view.name)
        if known is None or known.layout != answer.layout:
            is_new_layout = True
            changed.update(known.names if known is not None else ())
            known = seen.by_collector[view.name] = _sort(view.name, answer, wanted)
            changed.update(known.names)
        elif known.revision != answer.revision:
            changed.update(_take(answer, known))
        # without a time of its own it is the same each time for the same answer
        known.at_s = round(now_s - view.age_s, 6) if at_s is None else at_s
    timed = wanted is None or not wanted.isdisjoint(TIMED)
    is_new_layout |= _see_runner(views, seen, changed, now_s, timed=timed)
    if is_new_layout:  # also for what has gone
        by_collector = seen.by_collector
        for name in by_collector.keys() - {_RUNNER, *(view.name for view in views)}:
            changed.update(by_collector.pop(name).names)
        seen.by_metric = {
            name: item
            for collector in (*(view.name for view in views), _RUNNER)
            for item in (by_collector[collector],)
            for name in item.names
        }
    silent = {
        view.name
        for view in views
        if view.name != asking and (view.is_stale or view.outcome in _UNHEARD)
    }
    seen.number += 1
    return Snapshot(_Readings(seen.by_metric), silent, seen.number, changed)


def _see_runner(
    views: Sequence[CollectorView],
    seen: SeenAnswers,
    changed: set[str],
    now_s: float,
    *,
    timed: bool,
) -> bool:
    """Take the runner's own metrics; return whether there are others than before. All but the times seldom change."""
    standing: list[tuple[object, ...]] = [
        (view.name, view.failures, view.is_stale, view.outcome) for view in views
    ]
    known = seen.by_collector.get(_RUNNER)
    is_new = known is None or seen.standing != standing
    if known is None or is_new:
        steady = [
            metric for view in views for metric in runner_metrics(view) if metric.name not in TIMED
        ]
        revision = Revision(NEVER if known is None else known.revision + 1)
        series = _by_metric(steady)
        changed.update(() if known is None else known.names, series)
        known = seen.by_collector[_RUNNER] = SeenAnswer(
            "runner", revision, revision, {}, series, dict.fromkeys(series, revision), (*series,)
        )
        seen.standing = standing
    known.at_s = now_s
    if timed:  # without a revision: they change with each look
        times = _by_metric(
            metric for view in views for metric in runner_metrics(view) if metric.name in TIMED
        )
        known.series.update(times)
        changed.update(times)
        if not is_new and not known.series.keys() <= set(known.names):
            is_new = True
        known.names = (*known.series,)
    return is_new


def _by_metric(metrics: Iterable[Metric]) -> dict[str, list[Metric]]:
    series: dict[str, list[Metric]] = {}
    for metric in metrics:
        series.setdefault(metric.name, []).append(metric)
    return series


def _sort(collector: str, answer: CollectorAnswer, wanted: AbstractSet[str] | None) -> SeenAnswer:
    """Return an answer by metric."""
    places: dict[str, list[int]] = {}
    for place, metric in enumerate(answer.metrics):
        places.setdefault(metric.name, []).append(place)
    names = tuple(
        name for name in places if wanted is None or name in wanted or name in DETECTORS_READ
    )
    series = _by_metric(answer.metrics)
    revisions = dict.fromkeys(places, answer.revision)
    return SeenAnswer(collector, answer.revision, answer.layout, places, series, revisions, names)


def _take(answer: CollectorAnswer, seen: SeenAnswer) -> AbstractSet[str]:
    """Take an answer with the same series as the one that was ``seen``; return the metrics that have changed."""
    metrics, before = answer.metrics, seen.revision
    changed = {metrics[place].name for place, at in enumerate(answer.changed_at) if at > before}
    for name in changed:
        seen.series[name] = [metrics[place] for place in seen.places[name]]
        seen.revisions[name] = answer.revision
    seen.revision = answer.revision
    return changed
