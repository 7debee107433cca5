"""Figures over the results of one detector on one set of cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

from bench.scoreboard.cases import Truth, is_same

WILSON_Z = 1.959964  # 95 %


@dataclass(frozen=True, slots=True)
class Result:
    """What one detector said of one case."""

    truth: Truth
    named: tuple[dict[str, Any], ...]  # the likeliest first
    class_name: str | None
    took_s: float  # reading and judging
    delay_steps: int | None = None  # recorded steps from the onset to the first right verdict
    delay_s: float | None = None
    error: str | None = None

    @property
    def hits(self) -> int:
        return sum(any(is_same(one, got) for got in self.named) for one in self.truth.culprits)

    @property
    def false_names(self) -> int:
        return sum(not any(is_same(one, got) for one in self.truth.culprits) for got in self.named)

    @property
    def is_exact(self) -> bool:
        """Return whether exactly the culprits were named, and the class is right where known."""
        return (
            self.error is None
            and self.hits == len(self.truth.culprits)
            and not self.false_names
            and self.is_class_right is not False
        )

    @property
    def is_class_right(self) -> bool | None:
        if self.truth.class_name is None or self.class_name is None:
            return None
        return _plain(self.truth.class_name) == _plain(self.class_name)


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); 0 to 1 where nothing was counted."""
    if not count:
        return 0.0, 1.0
    share = right / count
    denominator = 1 + WILSON_Z**2 / count
    centre = (share + WILSON_Z**2 / (2 * count)) / denominator
    half = WILSON_Z * sqrt(share * (1 - share) / count + WILSON_Z**2 / (4 * count**2)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def score(results: Sequence[Result]) -> dict[str, Any]:
    """Return the figures; None where there is nothing to count."""
    hits = sum(result.hits for result in results)
    named = hits + sum(result.false_names for result in results)
    truly = sum(len(result.truth.culprits) for result in results)
    faulty = [result for result in results if result.truth.culprits]
    healthy = [result for result in results if not result.truth.culprits]
    precision, recall = _share(hits, named), _share(hits, truly)
    exact = sum(result.is_exact for result in results)
    classes = [result.is_class_right for result in results if result.is_class_right is not None]
    top = sum(
        bool(result.named) and any(is_same(one, result.named[0]) for one in result.truth.culprits)
        for result in faulty
    )
    delays = [result.delay_steps for result in results if result.delay_steps is not None]
    delays_s = [result.delay_s for result in results if result.delay_s is not None]
    return {
        "cases": len(results),
        "exact": exact,
        "exact_interval": wilson(exact, len(results)),
        "precision": precision,
        "recall": recall,
        "f1": 2 * hits / (named + truly) if named + truly else None,
        "top1": _share(top, len(faulty)),
        "classes_right": f"{sum(classes)}/{len(classes)}" if classes else None,
        "abstentions_right": sum(not r.named and r.error is None for r in healthy),
        "abstentions_wrong": sum(not r.named and r.error is None for r in faulty),
        "accused_wrongly": sum(bool(r.named) for r in healthy),
        "delay_steps_median": median(delays) if delays else None,
        "delay_steps_max": max(delays) if delays else None,
        "delay_s_median": median(delays_s) if delays_s else None,
        "took_s_median": median(result.took_s for result in results) if results else None,
        "errors": sum(result.error is not None for result in results),
    }


def _plain(name: str) -> str:
    """Return a class without the ways of writing it: "Host stuck" is "host-stuck"."""
    return name.casefold().replace("-", "_").replace(" ", "_")


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
