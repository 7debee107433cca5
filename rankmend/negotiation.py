"""What a client of a metrics page accepts: format and compression, by RFC 9110 sections 12.4.2, 12.5.1 and 12.5.3.

prometheus-client reads names and no weights: it sends gzip to who refuses it (``gzip;q=0``) and
OpenMetrics to who prefers text. Weights are read here. A header that can't be read counts as absent.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

HEADER_CHARS_MAX: Final = 4096  # Prometheus sends 200
VARY: Final = ("Vary", "Accept, Accept-Encoding")  # RFC 9110 section 12.5.5
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@lru_cache(maxsize=64)
def accepts_gzip(header: str) -> bool:
    """Return whether gzip is accepted and liked at least as much as no compression."""
    weights = _weights(header)
    gzip = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    # what is not named is acceptable, but no wish (RFC 9110 section 12.5.3)
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


@lru_cache(maxsize=64)
def prefers_openmetrics(header: str) -> bool:
    """Return whether OpenMetrics is named and liked at least as much as the text format.

    Only by its name: a browser's ``*/*`` gets text. Where neither is accepted the answer is text,
    which RFC 9110 section 12.5.1 allows: a page is more use than the status 406.
    """
    weights = _weights(header)
    openmetrics = weights.get("application/openmetrics-text", 0.0)
    text = weights.get("text/plain", weights.get("text/*", weights.get("*/*", 0.0)))
    return openmetrics > 0 and openmetrics >= text


def _weights(header: str) -> dict[str, float]:
    """Return the weight of each name; of one that is named twice, the greatest."""
    weights: dict[str, float] = {}
    for name, weight in _items(header[:HEADER_CHARS_MAX]):
        weights[name] = max(weight, weights.get(name, 0.0))
    return weights


def _items(header: str) -> Iterator[tuple[str, float]]:
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        if not name:
            continue
        weight = 1.0
        for parameter in parameters:
            key, _equals, value = (part.strip() for part in parameter.partition("="))
            if key == "q":
                weight = _parse_weight(value)
        yield name, weight


def _parse_weight(text: str) -> float:
    """Return a weight from 0 to 1; what is no weight refuses nothing."""
    digits = text.replace(".", "", 1)
    if not digits.isascii() or not digits.isdigit():
        return 1.0
    return min(1.0, float(text))
