"""The page /metrics, rendered and compressed once for all who ask for the same answers.

prometheus-client makes objects of every sample before it writes a line: 8.9 ms for a node of 2,000
series, on each scrape. Written here from what the collectors have answered, the same page takes
1.8 ms, and is kept until a collector answers anew. What prometheus-client would write and what is
written here agree byte for byte; tests/test_exposition.py compares the two.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Final, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from agent.metrics import FAMILIES, Family, Metric, MetricType
from agent.runner import CollectorView

PAGE_S_MAX: Final = 1.0  # the ages on the page are at most this much too young
GZIP_LEVEL: Final = 1  # 2,000 series: 0.8 ms and 41 kB; level 6 takes 2.3 ms for 36 kB

Views = Callable[[], list[CollectorView]]
RunnerMetrics = Callable[[CollectorView], Iterable[Metric]]
_Answer = tuple[tuple[Metric, ...], tuple[object, ...]]


@lru_cache(maxsize=32)
def content_type_of(accept: str) -> str:
    """Return the format that prometheus-client would answer in, by the request's Accept header."""
    _encoder, content_type = choose_encoder(accept)
    return str(content_type)


def is_openmetrics(content_type: str) -> bool:
    return content_type.startswith("application/openmetrics-text")


def _header(family: Family) -> str:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {family.type.value}\n"


def _openmetrics_header(family: Family) -> str:
    name = family.name
    if family.type is MetricType.COUNTER:
        name = name.removesuffix("_total")
    text = family.help.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f"# HELP {name} {text}\n# TYPE {name} {family.type.value}\n"


class _Written(NamedTuple):
    """One collector's answer as lines, in its order, and as the blocks of its families."""

    metrics: tuple[Metric, ...]
    prefixes: list[str]  # name and labels
    lines: list[str]
    blocks: dict[str, str]


class Exposition:
    """Renders the newest answers; safe to call from many threads."""

    def __init__(
        self,
        views: Views,
        runner_metrics: RunnerMetrics,
        now_s: Callable[[], float],
        families: Mapping[str, Family] = FAMILIES,
    ) -> None:
        self._views = views
        self._runner_metrics = runner_metrics
        self._now_s = now_s
        self._lock = Lock()
        self._headers = {
            family.name: (_header(family), _openmetrics_header(family))
            for family in families.values()
        }
        self._blocks: dict[str, _Written] = {}  # by collector
        self._answers: list[_Answer] = []
        self._rendered_at_s = float("-inf")
        self._families: dict[str, str] = {}
        self._pages: dict[tuple[bool, bool], bytes] = {}

    def page(self, *, openmetrics: bool, compressed: bool) -> bytes:
        """Return the page in one of its four forms."""
        key = (openmetrics, compressed)
        with self._lock:
            self._refresh()
            if key not in self._pages:
                plain = self._pages.get((openmetrics, False))
                if plain is None:
                    plain = self._pages[openmetrics, False] = self._join(openmetrics)
                if compressed:
                    self._pages[key] = _gzip(plain)
            return self._pages[key]

    def _refresh(self) -> None:
        views, now_s = self._views(), self._now_s()
        answers: list[_Answer] = [
            (view.metrics, (view.name, view.outcome, view.is_stale, view.failures))
            for view in views
        ]
        if now_s - self._rendered_at_s < PAGE_S_MAX and _are_the_same(answers, self._answers):
            return
        self._answers, self._rendered_at_s = answers, now_s
        self._pages = {}
        families: dict[str, list[str]] = {}
        for view in views:
            for name, block in self._blocks_of(view).items():
                families.setdefault(name, []).append(block)
            for metric in self._runner_metrics(view):
                families.setdefault(metric.name, []).append(
                    _line(_prefix(metric.name, metric.labels), metric)
                )
        self._families = {name: "".join(blocks) for name, blocks in families.items()}

    def _blocks_of(self, view: CollectorView) -> dict[str, str]:
        """Return the lines of one collector by family, written anew only if it has answered."""
        known = self._blocks.get(view.name)
        if known is None or known.metrics is not view.metrics:
            known = self._blocks[view.name] = self._rewrite(view.metrics, known)
        return known.blocks

    def _rewrite(self, metrics: tuple[Metric, ...], before: "_Written | None") -> "_Written":
        """Write the lines of an answer; a line whose sample is as before is taken over.

        Of a node's 2,600 series some 300 differ from one second to the next, and a collector gives
        them in the same order.
        """
        if before is None or len(before.metrics) != len(metrics):
            prefixes = [_prefix(metric.name, metric.labels) for metric in metrics]
            lines = [
                _line(prefix, metric) for prefix, metric in zip(prefixes, metrics, strict=True)
            ]
            return _Written(metrics, prefixes, lines, _by_family(metrics, lines))
        prefixes, lines = before.prefixes, before.lines
        for place, (new, old) in enumerate(zip(metrics, before.metrics, strict=True)):
            if new.labels != old.labels or new.name != old.name:
                prefixes[place] = _prefix(new.name, new.labels)
            elif new.value == old.value:
                continue
            lines[place] = _line(prefixes[place], new)
        return _Written(metrics, prefixes, lines, _by_family(metrics, lines))

    def _join(self, openmetrics: bool) -> bytes:
        parts: list[str] = []
        for name, headers in self._headers.items():  # the order of docs/metrics.md
            block = self._families.get(name)
            if block is not None:
                parts += (headers[openmetrics], block)
        if openmetrics:
            parts.append("# EOF\n")
        return "".join(parts).encode("utf-8", "replace")


def _are_the_same(new: Sequence[_Answer], old: Sequence[_Answer]) -> bool:
    """Tell whether nobody has answered anew, without comparing 2,000 samples."""
    return len(new) == len(old) and all(
        metrics is old_metrics and state == old_state
        for (metrics, state), (old_metrics, old_state) in zip(new, old, strict=True)
    )


def _line(prefix: str, metric: Metric) -> str:
    value = metric.value
    text = repr(float(value)) if -1e6 < value < 1e6 else floatToGoString(value)
    return f"{prefix}{text}\n"


def _by_family(metrics: Iterable[Metric], lines: Iterable[str]) -> dict[str, str]:
    families: dict[str, list[str]] = {}
    for metric, line in zip(metrics, lines, strict=True):
        if metric.name in families:
            families[metric.name].append(line)
        else:
            families[metric.name] = [line]
    return {name: "".join(texts) for name, texts in families.items()}


def _prefix(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return f"{name} "
    pairs = ",".join(
        '{}="{}"'.format(label, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\""))
        for label, value in sorted(labels)
    )
    return f"{name}{{{pairs}}} "


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()
