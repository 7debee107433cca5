"""The newest answers of all collectors in the form that the detectors read: by metric, with revisions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.metrics import Metric
from agent.sampling.answers import CollectorAnswer, Revision
from agent.sampling.collection import CollectorOutcome, CollectorView
from agent.sampling.runner import runner_metrics
from detectors.node.node_state import MetricAnswer, Snapshot

_UNHEARD = (CollectorOutcome.PENDING, CollectorOutcome.BROKEN)


@dataclass(slots=True)
class SeenAnswer:
    """The answer of one collector, sorted by metric."""

    revision: Revision
    layout: Revision
    places: dict[str, list[int]]  # positions of each metric's series in the answer
    series: dict[str, list[Metric]]
    revisions: dict[str, Revision]  # when a series of the metric last changed


def make_snapshot(
    views: Sequence[CollectorView], now_s: float, seen: dict[str, SeenAnswer], asking: str
) -> Snapshot:
    """Return the newest answers by metric, and which collectors are silent.

    ``seen`` is the caller's to keep from one snapshot to the next. ``asking`` is the collector that
    wants the snapshot: it runs, so its own silence says nothing.
    """
    readings: dict[str, MetricAnswer] = {}
    for view in views:
        known = seen[view.name] = _sort(view.answer, seen.get(view.name))
        at_s = round(now_s - view.age_s, 6)  # the same each time for the same answer
        for name, series in known.series.items():
            readings[name] = MetricAnswer(view.name, at_s, series, known.revisions[name])
    for name, series in _by_metric(m for view in views for m in runner_metrics(view)).items():
        readings[name] = MetricAnswer("runner", now_s, series)
    silent = {
        view.name
        for view in views
        if view.name != asking and (view.is_stale or view.outcome in _UNHEARD)
    }
    return Snapshot(readings, silent)


def _by_metric(metrics: Iterable[Metric]) -> dict[str, list[Metric]]:
    series: dict[str, list[Metric]] = {}
    for metric in metrics:
        series.setdefault(metric.name, []).append(metric)
    return series


def _sort(answer: CollectorAnswer, seen: SeenAnswer | None) -> SeenAnswer:
    """Return an answer by metric; of one that was ``seen`` only what has changed is sorted anew."""
    metrics = answer.metrics
    if seen is None or seen.layout != answer.layout:
        places: dict[str, list[int]] = {}
        for place, metric in enumerate(metrics):
            places.setdefault(metric.name, []).append(place)
        revisions = dict.fromkeys(places, answer.revision)
        return SeenAnswer(answer.revision, answer.layout, places, _by_metric(metrics), revisions)
    if seen.revision == answer.revision:
        return seen
    changed = {
        metric.name
        for metric, at in zip(metrics, answer.changed_at, strict=True)
        if at > seen.revision
    }
    for name in changed:
        seen.series[name] = [metrics[place] for place in seen.places[name]]
        seen.revisions[name] = answer.revision
    seen.revision = answer.revision
    return seen
