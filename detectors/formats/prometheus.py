"""What Prometheus knows, as hardware readings: a page of metrics, or the answer to a range query.

Pages: the text format or OpenMetrics, as `rankmend agent --once` prints and exporters serve.
Answers: the JSON of /api/v1/query_range (matrix) or /api/v1/query (vector), one or several.
The node of a series is its label `node`, else `instance` without the port, else what the caller
names. Series that nobody asks for are passed over before they cost memory.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from detectors.slow.hardware_reading import HardwareReading, reading_of
from rankmend.errors import SourceError

READINGS_MAX: Final = 5_000_000  # some 800 MB
LABELS_MAX: Final = 64
_OUTSIDE: Final = frozenset({"__name__", "node", "instance", "job"})  # labels that Prometheus adds


def read_page(
    text: str, metrics: Collection[str], node: str | None, at_s: float
) -> list[HardwareReading]:
    """Return the samples of a page; ``node`` and ``at_s`` stand in where the page has none."""
    from prometheus_client import parser  # noqa: PLC0415 - costs 30 ms
    from prometheus_client.openmetrics.parser import (  # noqa: PLC0415
        text_string_to_metric_families as read_openmetrics,
    )

    is_openmetrics = text.rstrip().endswith("# EOF")
    families = read_openmetrics if is_openmetrics else parser.text_string_to_metric_families
    readings = []
    try:
        for family in families(text):
            for sample in family.samples:
                if sample.name not in metrics:
                    continue
                stamp = sample.timestamp
                time_s = at_s if stamp is None else float(stamp)
                readings.append(
                    _reading(sample.name, sample.labels, float(sample.value), time_s, node)
                )
                if len(readings) > READINGS_MAX:
                    raise SourceError(f"more than {READINGS_MAX} samples on a page")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise SourceError(f"not a page of metrics: {error}") from error
    return readings


def read_answer(
    document: Any, metrics: Collection[str], node: str | None = None
) -> list[HardwareReading]:
    """Return the samples of one answer of the HTTP API, or of a list of such answers."""
    readings: list[HardwareReading] = []
    for answer in document if isinstance(document, list) else [document]:
        for reading in _of_answer(answer, metrics, node):
            readings.append(reading)
            if len(readings) > READINGS_MAX:
                raise SourceError(f"more than {READINGS_MAX} samples in an answer of Prometheus")
    return readings


def parse_answer(data: bytes | str) -> Any:
    """Return the JSON of an answer, or raise SourceError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"the answer of Prometheus is not JSON: {error}") from error


def is_answer(document: Any) -> bool:
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, dict) and ("resultType" in first or "data" in first)


def _of_answer(
    answer: Any, metrics: Collection[str], node: str | None
) -> Iterator[HardwareReading]:
    if not isinstance(answer, dict):
        raise SourceError(f"an answer of Prometheus is {type(answer).__name__}, not an object")
    if answer.get("status", "success") != "success":
        raise SourceError(f"Prometheus answered: {str(answer.get('error', answer))[:300]}")
    data = answer.get("data", answer)
    results = data.get("result") if isinstance(data, dict) else None
    kind = data.get("resultType", "matrix") if isinstance(data, dict) else None
    if not isinstance(results, list) or kind not in ("matrix", "vector"):
        raise SourceError(f"an answer of Prometheus has no matrix or vector: {str(answer)[:120]}")
    for series in results:
        labels = series.get("metric") if isinstance(series, dict) else None
        if not isinstance(labels, dict) or len(labels) > LABELS_MAX:
            raise SourceError(f"a series of Prometheus has no labels: {str(series)[:120]}")
        name = str(labels.get("__name__"))
        if name not in metrics:
            continue
        points = series.get("values") if kind == "matrix" else [series.get("value")]
        if not isinstance(points, list):
            raise SourceError(f"{name}: a series without values")
        texts = {str(key): str(text) for key, text in labels.items()}
        series_of = _reading(name, texts, 0.0, 0.0, node)
        for point in points:
            try:
                at, value = point
                time_s, number = float(at), float(value)
            except (TypeError, ValueError) as error:
                raise SourceError(f"{name}: not a sample: {str(point)[:80]}") from error
            # labels are shared between all samples of a series: they are most of the memory
            yield HardwareReading(
                series_of.node, name, number, time_s, series_of.device, series_of.labels
            )


def _reading(
    name: str, labels: Mapping[str, str], value: float, at_s: float, node: str | None
) -> HardwareReading:
    instance = labels.get("instance", "")
    named = labels.get("node") or instance.rpartition(":")[0] or instance or node
    if not named:
        raise SourceError(f"{name}: of which node? It has neither a label node nor instance")
    own = {key: text for key, text in labels.items() if key not in _OUTSIDE}
    return reading_of(name, own, value, at_s, named)
