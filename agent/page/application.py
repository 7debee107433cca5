"""The agent's HTTP pages: metrics for Prometheus, and pages for people and scripts.

All pages are made from the newest answers of the collectors, so no request waits for a source.
"""

import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector as PrometheusCollector

from agent.collectors.ranks import RanksCollector
from agent.config import PageNames, PageSettings
from agent.metrics import Family, Metric, MetricType
from agent.page import other_names
from agent.page.exposition import Exposition, GpuPlaces, More
from agent.ranks.step_times import measure_steps
from agent.ranks.table import RankSample
from agent.sampling.collection import CollectorOutcome, CollectorView
from agent.sampling.demand import Demand
from agent.sampling.runner import page_metrics
from rankmend.errors import SourceError
from rankmend.negotiation import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    VARY,
    accepts_gzip,
    prefers_openmetrics,
)
from rankmend.progress import RankProgress
from rankmend.version import RANKMEND_VERSION

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]
PromFamily = CounterMetricFamily | GaugeMetricFamily


def describe_rank(sample: RankSample, now_s: float) -> dict[str, object]:
    """Return one rank as the page /api/v1/ranks shows it. Ages are as of ``now_s``."""
    identity = sample.identity
    about: dict[str, object] = {
        "job_id": str(identity.job_id),
        "job_name": sample.job_name,
        "attempt": identity.attempt,
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "pid": sample.pid,
        "error": sample.error,
    }
    if sample.progress is None:
        return about
    try:
        return about | _describe_progress(sample.progress, now_s)
    except SourceError as error:
        return about | {"error": str(error)}


def _describe_progress(progress: RankProgress, now_s: float) -> dict[str, object]:
    times = measure_steps(progress.records)
    since_s, last = progress.section_since_s, progress.last
    return {
        "is_attached": progress.pid != 0,
        "is_relative": progress.is_relative,
        "step": last.step if last else None,
        "step_age_s": max(0.0, now_s - last.ended_at_s) if last else None,
        "steps_done": progress.step_count,
        "step_last_s": times.last_s if times else None,
        "step_median_s": times.median_s if times else None,
        "section": progress.section.name.lower(),
        "section_age_s": None if since_s is None else max(0.0, now_s - since_s),
        "collectives_entered": progress.collectives_entered,
        "collectives_completed": progress.collectives_completed,
        "snapshot_step": progress.snapshots and progress.snapshots.newest_step,
    }


class FindingsSource(Protocol):
    """The findings of the agent's detectors."""

    def blocked(self) -> tuple[str, ...]:
        """Return the checks that should run but can't."""
        ...

    def page(self, now_s: float) -> dict[str, Any]: ...


class PageCollector(PrometheusCollector):
    """Hands the newest values to prometheus-client, at the moment of a scrape."""

    def __init__(
        self,
        views: Callable[[], list[CollectorView]],
        known: Mapping[str, Family],
        hidden: AbstractSet[str] = frozenset(),
        more: More | None = None,
    ) -> None:
        self._views = views
        self._known = known
        self._hidden = hidden
        self._more = more
        self._places = GpuPlaces()

    def describe(self) -> Iterator[PromFamily]:
        for family in self._known.values():
            yield _prom_family(family)

    def collect(self) -> Iterator[PromFamily]:
        families: dict[str, PromFamily] = {}
        views = self._views()
        self._places.update(views)
        for metric in self._metrics(views):
            if metric.name in self._hidden:
                continue
            if metric.name not in families:
                families[metric.name] = _prom_family(self._known[metric.name])
            values = [value for _name, value in metric.labels]
            family = families[metric.name]
            family.add_metric(values, metric.value)
            if place := self._places.labels_for(metric):
                sample = family.samples[-1]
                family.samples[-1] = sample._replace(labels={**sample.labels, **dict(place)})
        for name in self._known:  # the order of docs/reference/metrics.md
            if name in families:
                yield families[name]

    def _metrics(self, views: list[CollectorView]) -> Iterator[Metric]:
        for view in views:
            yield from page_metrics(view)
            yield from view.metrics
        if self._more is not None:
            yield from self._more(views)


def _prom_family(family: Family) -> PromFamily:
    if family.type is MetricType.COUNTER and family.name.endswith("_total"):
        name = family.name.removesuffix("_total")  # prometheus-client adds it again
        return CounterMetricFamily(name, family.help, labels=family.labels)
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)


def make_registry(
    views: Callable[[], list[CollectorView]],
    families: Mapping[str, Family],
    hidden: AbstractSet[str] = frozenset(),
    more: More | None = None,
) -> CollectorRegistry:
    """Return a registry of our own, without what prometheus-client adds to the global one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PageCollector(views, families, hidden, more))
    return registry


def make_metrics_app(
    views: Callable[[], list[CollectorView]],
    now_s: Callable[[], float],
    families: Mapping[str, Family],
    demand: Demand | None = None,
    hidden: AbstractSet[str] = frozenset(),
    more: More | None = None,
) -> Application:
    """Return the WSGI application of /metrics; a page of chosen names is prometheus-client's."""
    library_app: Application = make_wsgi_app(make_registry(views, families, hidden, more))
    exposition = Exposition(views, page_metrics, now_s, families, hidden, more)

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method not in ("GET", "HEAD"):
            return _refuse_method(method, start_response)
        if demand is not None and method == "GET":
            demand.note(environ.get("REMOTE_ADDR", ""))
        openmetrics = prefers_openmetrics(environ.get("HTTP_ACCEPT", ""))
        compressed = accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", ""))
        if method == "GET" and environ.get("QUERY_STRING"):
            settled = {
                **environ,  # it reads names and no weights
                "HTTP_ACCEPT": "application/openmetrics-text;version=1.0.0" if openmetrics else "",
                "HTTP_ACCEPT_ENCODING": "gzip" if compressed else "",
            }
            return library_app(
                settled, lambda status, headers: start_response(status, [*headers, VARY])
            )
        body = exposition.page(openmetrics=openmetrics, compressed=compressed)
        headers = [
            ("Content-Type", OPENMETRICS_TYPE if openmetrics else TEXT_TYPE),
            ("Content-Length", str(len(body))),
            VARY,
        ]
        if compressed:
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return [] if method == "HEAD" else [body]

    return app


def _refuse_method(method: str, start_response: StartResponse) -> Iterable[bytes]:
    """Answer a method other than GET and HEAD. The body names none: it could be anything."""
    status = "200 OK" if method == "OPTIONS" else "405 Method Not Allowed"
    body = b"" if method == "OPTIONS" else b"only GET and HEAD\n"
    start_response(
        status,
        [
            ("Allow", "GET, HEAD, OPTIONS"),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ],
    )
    return [body]


def make_app(
    node: str,
    views: Callable[[], list[CollectorView]],
    ranks: RanksCollector,
    now_s: Callable[[], float],
    families: Mapping[str, Family],
    findings: FindingsSource | None = None,
    demand: Demand | None = None,
    page: PageSettings | None = None,
) -> Application:
    """Return the WSGI application of the agent.

    ``demand`` learns when values are read that no check reads.
    """
    page = page or PageSettings()
    more: More | None = None
    if PageNames.DCGM in page.names:
        families = {**families, **other_names.FAMILIES}
        more = partial(other_names.dcgm_metrics, hostname=node)
    hidden = other_names.hidden_families(page.beside, families)
    metrics_app = make_metrics_app(views, now_s, families, demand, hidden, more)
    pages: dict[str, Callable[[], tuple[str, str, str]]] = {
        "/": lambda: ("200 OK", "text/html", _home(node, views())),
        "/healthz": lambda: _health(views(), findings.blocked() if findings else ()),
        "/api/v1/ranks": lambda: ("200 OK", "application/json", _ranks(node, ranks, now_s())),
    }
    if findings is not None:
        pages["/api/v1/findings"] = lambda: (
            "200 OK",
            "application/json",
            json.dumps(findings.page(now_s()), indent=1) + "\n",
        )

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO") or "/"
        if path == "/metrics":
            return metrics_app(environ, start_response)
        extra: list[tuple[str, str]] = []
        if path not in pages:
            status, kind, text = "404 Not Found", "text/plain", f"no page {path[:200]}\n"
        elif environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, kind, text = "405 Method Not Allowed", "text/plain", "only GET\n"
            extra = [("Allow", "GET, HEAD")]
        else:
            status, kind, text = pages[path]()
        body = text.encode("utf-8", "replace")
        start_response(
            status,
            [
                ("Content-Type", f"{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("X-Content-Type-Options", "nosniff"),
                *extra,
            ],
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return app


def _health(views: list[CollectorView], blocked: tuple[str, ...]) -> tuple[str, str, str]:
    """Return whether everything that ought to be watched is watched; not whether it is well."""
    problems = {
        "stale": [f"{view.name} ({view.age_s:.0f} s old)" for view in views if view.is_stale],
        "broken": [
            f"{view.name} ({view.error[:200]})"
            for view in views
            if view.outcome is CollectorOutcome.BROKEN and not view.is_stale
        ],
        "checks that can't run": list(blocked),
    }
    lines = [f"{what}: {', '.join(names)}\n" for what, names in problems.items() if names]
    if lines:
        return "503 Service Unavailable", "text/plain", "".join(lines)
    return "200 OK", "text/plain", "ok\n"


def _ranks(node: str, ranks: RanksCollector, now_s: float) -> str:
    view = ranks.newest
    page = {
        "node": node,
        "age_s": max(0.0, now_s - view.at_s),
        "ranks": [describe_rank(sample, view.at_s) for sample in view.samples],
    }
    return json.dumps(page, indent=1) + "\n"


def _home(node: str, views: list[CollectorView]) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _home_row(view)) + "</tr>\n"
        for view in views
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rankmend agent on {html.escape(node)}</title>
<style>body{{font-family:sans-serif;margin:2em}}td,th{{text-align:left;padding:.2em 1em .2em 0}}</style>
</head><body>
<h1>rankmend agent on {html.escape(node)}</h1>
<p>Version {html.escape(RANKMEND_VERSION)}</p>
<ul><li><a href="/metrics">/metrics</a></li><li><a href="/api/v1/ranks">/api/v1/ranks</a></li>
<li><a href="/api/v1/findings">/api/v1/findings</a></li>
<li><a href="/healthz">/healthz</a></li></ul>
<table><tr><th>collector</th><th>state</th><th>age</th><th>interval</th><th>took</th><th>series</th>
<th>why</th></tr>
{rows}</table></body></html>
"""


def _home_row(view: CollectorView) -> tuple[str, ...]:
    state = view.outcome.value
    if view.is_stale:
        state = f"stale, {state}"
    if view.running_s is not None and view.is_stale:
        state = f"{state}, running for {view.running_s:.0f} s"
    took = "" if view.duration_s is None else f"{view.duration_s * 1000:.1f} ms"
    age, interval = f"{view.age_s:.1f} s", f"{view.interval_s:g} s"
    return view.name, state, age, interval, took, str(len(view.metrics)), view.error
