"""The page /metrics, rendered and compressed once for all who ask for the same answers.

prometheus-client makes objects of every sample before it writes a line: 8.9 ms for a node of 2,000
series, on each scrape. Written here from what the collectors have answered, only lines whose sample
has changed are made anew, and only pieces of the page with such lines are compressed anew. What
prometheus-client would write and what is written here agree byte for byte; tests/agent/test_exposition.py
compares the two.

Where the driver says in which chassis, slot and tray a GPU sits (GB200 NVL72 and newer), each series of the GPU
has these as labels, on the page only: checks and findings know a GPU by its UUID. The number of series stays the same.
Until the first answer about it, at most a minute after the agent's start, series are without them.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from prometheus_client.utils import floatToGoString

from agent.metrics import Family, Metric, MetricType
from agent.sampling.collection import NO_ANSWER, CollectorAnswer, CollectorView, Revision, revise

PAGE_S_MAX: Final = 1.0  # the ages on the page are at most this much too young
SEGMENT_CHARS: Final = 16_000  # at least, of what is compressed at once; half costs 10 % more bytes
GZIP_LEVEL: Final = 1  # 2,000 series: 0.8 ms and 41 kB; level 6 takes 2.3 ms for 36 kB

# deflate, no name, no time, as fast as possible, Unix (RFC 1952)
_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03"
_GZIP_TAIL: Final = Struct("<II")  # checksum, size
_LAST_BLOCK: Final = b"\x03\x00"  # final, of fixed codes, empty (RFC 1951)

Views = Callable[[], list[CollectorView]]
RunnerMetrics = Callable[[CollectorView], tuple[Metric, ...]]
More = Callable[[list[CollectorView]], Iterable[Metric]]
_MORE: Final = "/"  # no collector's name
_GPU: Final = "rankmend_gpu_"
_PLATFORM: Final = "rankmend_gpu_platform_info"
_PLACE: Final = ("chassis", "slot", "tray")
PLACES_MAX: Final = 128  # GPUs: as many as a node has, and those that they replaced
Labels = tuple[tuple[str, str], ...]
RackPlaces = Mapping[str, Labels]
"""Chassis, slot and tray as labels, by the UUID of the GPU."""
_State = list[tuple[object, ...]]


def _header(family: Family) -> str:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {family.type.value}\n"


def _openmetrics_header(family: Family) -> str:
    name, type_ = family.name, family.type.value
    if family.type is MetricType.COUNTER:
        if not name.endswith("_total"):  # another exporter's: OpenMetrics has no such counter
            type_ = "unknown"
        name = name.removesuffix("_total")
    text = family.help.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f"# HELP {name} {text}\n# TYPE {name} {type_}\n"


class GpuPlaces:
    """Remembers where GPUs sit in their racks: the series of one that is lost keep their labels."""

    def __init__(self) -> None:
        self._places: RackPlaces = {}
        self._layout: Revision | None = None  # of the GPUs' answer that was read

    def update(self, views: Iterable[CollectorView]) -> bool:
        """Read the driver's platform info; return whether a GPU's place has become known, or another."""
        answer = next((view.answer for view in views if view.name == "gpu"), NO_ANSWER)
        if answer.layout == self._layout:
            return False
        self._layout = answer.layout
        found = dict(self._places)
        for metric in answer.metrics:
            if metric.name == _PLATFORM:
                labels = dict(metric.labels)
                found.pop(labels["uuid"], None)
                found[labels["uuid"]] = tuple((name, labels[name]) for name in _PLACE)
        newest = dict(list(found.items())[-PLACES_MAX:])
        is_changed, self._places = newest != self._places, newest
        return is_changed

    def labels_for(self, metric: Metric) -> Labels:
        """Return the labels that a series of a GPU gets on top of its own."""
        if not self._places or not metric.name.startswith(_GPU) or metric.name == _PLATFORM:
            return ()
        uuid = next((value for name, value in metric.labels if name == "uuid"), "")
        return self._places.get(uuid, ())


class _Written(NamedTuple):
    """One collector's answer as lines, in its order, and as the blocks of its families."""

    revision: Revision
    layout: Revision
    prefixes: list[str]  # name and labels
    lines: list[str]
    places: dict[str, list[int]]  # by family, in `lines`
    blocks: dict[str, str]


class _Segment(NamedTuple):
    """Some families in a row, as they were last sent."""

    text: str
    data: bytes
    packed: bytes | None  # once somebody has requested it compressed


class Exposition:
    """Renders the newest answers; safe to call from many threads."""

    def __init__(
        self,
        views: Views,
        runner_metrics: RunnerMetrics,
        now_s: Callable[[], float],
        families: Mapping[str, Family],
        hidden: AbstractSet[str] = frozenset(),
        more: More | None = None,
    ) -> None:
        """``hidden`` families are left out; ``more`` returns samples that are made of the others."""
        self._hidden = hidden
        self._more = more
        self._more_answer = NO_ANSWER
        self._views = views
        self._runner_metrics = runner_metrics
        self._now_s = now_s
        self._lock = Lock()
        self._headers = {
            family.name: (_header(family), _openmetrics_header(family))
            for family in families.values()
        }
        self._written: dict[str, _Written] = {}  # by collector; empty: the runner of them
        self._runner_answer = NO_ANSWER
        self._places = GpuPlaces()
        self._state: _State = []
        self._rendered_at_s = float("-inf")
        self._families: dict[str, list[str]] = {}
        self._segments: dict[bool, list[_Segment]] = {False: [], True: []}  # by format
        self._pages: dict[tuple[bool, bool], bytes] = {}

    def page(self, *, openmetrics: bool, compressed: bool) -> bytes:
        """Return the page in one of its four forms."""
        key = (openmetrics, compressed)
        with self._lock:
            self._refresh()
            if key not in self._pages:
                segments = self._cut(openmetrics, compressed)
                self._pages[key] = (
                    _gzip(segments)
                    if compressed
                    else b"".join([segment.data for segment in segments])
                )
            return self._pages[key]

    def _refresh(self) -> None:
        views, now_s = self._views(), self._now_s()
        state: _State = [
            (view.name, view.answer.revision, view.outcome, view.is_stale, view.failures)
            for view in views
        ]
        if now_s - self._rendered_at_s < PAGE_S_MAX and state == self._state:
            return
        self._state, self._rendered_at_s = state, now_s
        self._pages = {}
        if self._places.update(views):
            self._written = {}
        of_runner = tuple(chain.from_iterable(map(self._runner_metrics, views)))
        revision = Revision(self._runner_answer.revision + 1)
        self._runner_answer = revise(self._runner_answer, of_runner, revision)
        sources = [*((view.name, view.answer) for view in views), ("", self._runner_answer)]
        if self._more is not None:
            revision = Revision(self._more_answer.revision + 1)
            self._more_answer = revise(self._more_answer, tuple(self._more(views)), revision)
            sources.append((_MORE, self._more_answer))
        families: dict[str, list[str]] = {}
        for source, answer in sources:
            for name, block in self._blocks_of(source, answer).items():
                if name in self._hidden:
                    continue
                families.setdefault(name, []).append(block)
        self._families = families

    def _blocks_of(self, source: str, answer: CollectorAnswer) -> dict[str, str]:
        """Return the lines of one source by family; only what has changed is written anew."""
        known = self._written.get(source)
        if known is None or known.layout != answer.layout:
            known = self._written[source] = _write(answer, self._places)
        elif known.revision != answer.revision:
            known = self._written[source] = _rewrite(answer, known)
        return known.blocks

    def _cut(self, openmetrics: bool, compressed: bool) -> list[_Segment]:
        """Return the page in segments; one that reads as before is taken over."""
        texts: list[str] = []
        parts: list[str] = []
        size = 0
        for name, headers in self._headers.items():  # the order of docs/reference/metrics.md
            blocks = self._families.get(name)
            if blocks is None:
                continue
            parts.append(headers[openmetrics])
            parts += blocks
            size += sum(map(len, blocks))
            if size >= SEGMENT_CHARS:
                texts.append("".join(parts))
                parts, size = [], 0
        if openmetrics:
            parts.append("# EOF\n")
        texts.append("".join(parts))
        before = self._segments[openmetrics]
        before += [_Segment("", b"", b"")] * (len(texts) - len(before))
        segments = []
        for text, known in zip(texts, before, strict=False):
            segment = known
            if text != known.text:
                segment = _Segment(text, text.encode("utf-8", "replace"), None)
            if compressed and segment.packed is None:
                segment = segment._replace(packed=_deflate(segment.data))
            segments.append(segment)
        self._segments[openmetrics] = segments
        return segments


def _rewrite(answer: CollectorAnswer, before: _Written) -> _Written:
    """Write the lines of the samples that have changed since ``before``."""
    lines, changed = before.lines, set()
    for place, at in enumerate(answer.changed_at):
        if at > before.revision:
            metric = answer.metrics[place]
            lines[place] = _line(before.prefixes[place], metric)
            changed.add(metric.name)
    for name in changed:
        before.blocks[name] = "".join([lines[place] for place in before.places[name]])
    return before._replace(revision=answer.revision)


def _write(answer: CollectorAnswer, racks: GpuPlaces) -> _Written:
    metrics = answer.metrics
    prefixes = [
        _prefix(metric.name, (*metric.labels, *racks.labels_for(metric))) for metric in metrics
    ]
    lines = [_line(prefix, metric) for prefix, metric in zip(prefixes, metrics, strict=True)]
    places: dict[str, list[int]] = {}
    for place, metric in enumerate(metrics):
        places.setdefault(metric.name, []).append(place)
    blocks = {
        name: "".join([lines[place] for place in of_family]) for name, of_family in places.items()
    }
    return _Written(answer.revision, answer.layout, prefixes, lines, places, blocks)


def _line(prefix: str, metric: Metric) -> str:
    value = metric.value
    text = repr(float(value)) if -1e6 < value < 1e6 else floatToGoString(value)
    return f"{prefix}{text}\n"


def _prefix(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return f"{name} "
    pairs = ",".join(
        '{}="{}"'.format(label, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\""))
        for label, value in sorted(labels)
    )
    return f"{name}{{{pairs}}} "


def _deflate(data: bytes) -> bytes:
    """Return a piece of a deflate stream that refers to nothing before it."""
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)


def _gzip(segments: Iterable[_Segment]) -> bytes:
    """Return one gzip member (RFC 1952) of pieces that were compressed one by one."""
    parts, checksum, size = [_GZIP_HEADER], 0, 0
    for segment in segments:
        assert segment.packed is not None, "the caller has compressed it"
        parts.append(segment.packed)
        checksum = zlib.crc32(segment.data, checksum)
        size += len(segment.data)
    return b"".join([*parts, _LAST_BLOCK, _GZIP_TAIL.pack(checksum, size)])
