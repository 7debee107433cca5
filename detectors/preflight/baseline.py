"""What nodes of one model usually reach: samples by node and time, their median and their spread. Pure.

A node is never judged by its own samples. The centre is the median of the nodes' medians, so that a node that is checked
often counts once; the spread is the median absolute deviation of all samples from it, so that it has both the difference
between nodes and that from one run to the next. 1.4826 makes it a standard deviation of normal data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from detectors.preflight.figures import KINDS, FigureKind, LoadFigure

NODES_MIN: Final = 4  # others; with fewer, one odd node moves the median
OWN_SAMPLES_MIN: Final = 8  # of the node itself, where the fleet is too small
SIGMAS: Final = 6.0  # 20 figures a node: one false accusation in 10^7 nodes, were they normal
UNSTEADY_SHARE: Final = 0.8  # of the centre: a node at a fifth of it would still pass
NODES_MAX: Final = 512  # of one model and figure; the newest stay
SAMPLES_MAX: Final = 8  # of one node
MODELS_MAX: Final = 256
_TO_SIGMA: Final = 1.4826


@dataclass(frozen=True, slots=True)
class BaselineSample:
    """One figure of a node that passed."""

    node: str
    unix_s: float
    value: float


Key = tuple[str, str]
"""The name of a figure, and the model of the part that it is of."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Samples by figure and model."""

    samples: Mapping[Key, tuple[BaselineSample, ...]]


EMPTY: Final = Baseline({})


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a figure is held against."""

    centre: float
    spread: float  # a standard deviation, by the median absolute deviation
    limit: float
    samples: int
    nodes: int
    is_own: bool = False  # the node's own past: the fleet is too small
    is_unsteady: bool = False  # the samples differ so much that the limit would accuse nobody


@dataclass(frozen=True, slots=True)
class TooFewSamples:
    """Why there is nothing to hold a figure against."""

    nodes: int
    own_samples: int


def merge(*baselines: Baseline) -> Baseline:
    """Return all samples once, the newest of each node."""
    found: dict[Key, dict[tuple[str, float], BaselineSample]] = {}
    for baseline in baselines:
        for key, samples in baseline.samples.items():
            known = found.setdefault(key, {})
            for sample in samples:
                known[sample.node, sample.unix_s] = sample
    newest = sorted(found.items(), key=lambda item: -max(s.unix_s for s in item[1].values()))
    retained = newest[: MODELS_MAX * len(KINDS)]
    return Baseline({key: _newest(samples.values()) for key, samples in sorted(retained)})


def add(baseline: Baseline, node: str, unix_s: float, figures: Iterable[LoadFigure]) -> Baseline:
    """Return the baseline with a node's figures, the median where it has several of one key."""
    values: dict[Key, list[float]] = {}
    for figure in figures:
        values.setdefault((figure.name, figure.model), []).append(figure.value)
    added = {key: (BaselineSample(node, unix_s, median(some)),) for key, some in values.items()}
    return merge(baseline, Baseline(added))


def _newest(samples: Iterable[BaselineSample]) -> tuple[BaselineSample, ...]:
    by_node: dict[str, list[BaselineSample]] = {}
    for item in sorted(samples, key=lambda sample: -sample.unix_s):
        if item.node in by_node or len(by_node) < NODES_MAX:
            by_node.setdefault(item.node, []).append(item)
    retained = [item for some in by_node.values() for item in some[:SAMPLES_MAX]]
    return tuple(sorted(retained, key=lambda sample: (sample.unix_s, sample.node)))


def expect(
    baseline: Baseline, node: str, figure: LoadFigure, kind: FigureKind
) -> Expectation | TooFewSamples:
    """Return what ``node`` is to reach, or how little is known."""
    known = baseline.samples.get((figure.name, figure.model), ())
    others: dict[str, list[float]] = {}
    own: list[float] = []
    for sample in known:
        (own if sample.node == node else others.setdefault(sample.node, [])).append(sample.value)
    if len(others) >= NODES_MIN:
        centre = median(median(values) for values in others.values())
        values = [value for some in others.values() for value in some]
        return _expected(kind, centre, values, len(others), is_own=False)
    if len(own) >= OWN_SAMPLES_MIN:
        return _expected(kind, median(own), own, 1, is_own=True)
    return TooFewSamples(len(others), len(own))


def _expected(
    kind: FigureKind, centre: float, values: list[float], nodes: int, *, is_own: bool
) -> Expectation:
    spread = _TO_SIGMA * median(abs(value - centre) for value in values)
    allowed = max(SIGMAS * spread, kind.share * abs(centre))
    limit = centre - allowed if kind.is_more_better else centre + allowed
    is_unsteady = kind.is_more_better and allowed > UNSTEADY_SHARE * abs(centre)
    return Expectation(centre, spread, limit, len(values), nodes, is_own, is_unsteady)


def is_worse(kind: FigureKind, value: float, limit: float) -> bool:
    """Return whether a figure is beyond a limit."""
    return value < limit if kind.is_more_better else value > limit
