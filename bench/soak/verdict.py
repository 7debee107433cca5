"""Whether what a process uses stays bounded, and what else must hold at the end. Pure.

A process has warmed up after five minutes, or a third of its life where that is less. From then on the slope of the memory that it has allocated is that of
Theil and Sen (the median of the slopes of all pairs: a few samples beside the line don't move it); descriptors and threads are
compared between the first and the last quarter. Only the longest life of each process counts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from bench.soak.samples import Sample, Stored

WARM_S: Final = 300.0
MEASURED_S_MIN: Final = 480.0  # of a life after that; less says nothing about a slope
_MIB: Final = 1 << 20
_PAIRS_OF: Final = 200  # samples, evenly taken


@dataclass(frozen=True, slots=True)
class Limits:
    """What one kind of process may use."""

    pss_bytes_max: int
    slope_bytes_per_h_max: int
    descriptors_max: int
    threads_max: int
    drift_max: int = 3  # more descriptors or threads in the last quarter than in the first


# Per kind of process, for a job of four ranks on two nodes with three faults a minute and a checkpoint a second. A controller keeps
# where a running job's time went, incident by incident and save by save: some 70 KiB an incident here, and 100 incidents an hour.
LIMITS: Final = {
    "controller": Limits(160 * _MIB, 12 * _MIB, 120, 40),
    "agent": Limits(80 * _MIB, 4 * _MIB, 400, 30),
    "launcher": Limits(100 * _MIB, 8 * _MIB, 120, 40),
    "guardian": Limits(40 * _MIB, 2 * _MIB, 60, 8),
    "fork server": Limits(160 * _MIB, 8 * _MIB, 120, 40),
}
_INCIDENTS_MIN: Final = 4
JOURNAL_BYTES_PER_INCIDENT_MAX: Final = 64 * 1024
RUNTIME_BYTES_MAX: Final = 64 * _MIB


@dataclass(frozen=True, slots=True)
class Usage:
    """What came of one process over its longest life."""

    part: str
    lives: int
    life_s: float
    pss_first_bytes: int  # after it has warmed up
    pss_last_bytes: int
    pss_max_bytes: int
    rss_max_bytes: int
    slope_bytes_per_h: float | None  # None: its life was too short
    descriptors_max: int
    descriptors_drift: int | None
    threads_max: int
    threads_drift: int | None


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    held: bool
    said: str


def limits_of(part: str) -> Limits:
    return next(limits for name, limits in LIMITS.items() if part.startswith(name))


def usage_of(part: str, samples: Sequence[Sample]) -> Usage:
    """Return what a process used; ``samples``: its own, oldest first, at least one."""
    lives: dict[int, list[Sample]] = {}
    for one in samples:
        lives.setdefault(one.life, []).append(one)
    longest = max(lives.values(), key=lambda life: life[-1].at_s - life[0].at_s)
    life_s = longest[-1].at_s - longest[0].at_s
    warm_s = longest[0].at_s + min(WARM_S, life_s / 3)
    warm = [one for one in longest if one.at_s >= warm_s]
    is_long = warm[-1].at_s - warm[0].at_s >= MEASURED_S_MIN
    return Usage(
        part, len(lives), life_s,
        _quarters([one.pss_bytes for one in warm])[0], _quarters([one.pss_bytes for one in warm])[1],
        max(one.pss_bytes for one in samples), max(one.rss_bytes for one in samples),
        slope_per_h([(one.at_s, one.own_bytes) for one in warm]) if is_long else None,
        max(one.descriptors for one in samples), _drift([one.descriptors for one in warm]) if is_long else None,
        max(one.threads for one in samples), _drift([one.threads for one in warm]) if is_long else None,
    )  # fmt: skip


def slope_per_h(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of Theil and Sen, per hour; ``points``: of seconds and a value."""
    kept = points[:: max(1, len(points) // _PAIRS_OF)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(kept, 2) if b[0] > a[0]]
    return 3600.0 * statistics.median(slopes) if slopes else 0.0


def _quarters(values: Sequence[int]) -> tuple[int, int]:
    """Return the medians of the first and the last quarter."""
    count = max(1, len(values) // 4)
    return int(statistics.median(values[:count])), int(statistics.median(values[-count:]))


def _drift(values: Sequence[int]) -> int:
    first, last = _quarters(values)
    return last - first


def judge_usage(usage: Usage) -> Check:
    limits = limits_of(usage.part)
    over = []
    if usage.pss_max_bytes > limits.pss_bytes_max:
        over.append(
            f"PSS {usage.pss_max_bytes / _MIB:.1f} MiB, over {limits.pss_bytes_max / _MIB:g}"
        )
    slope = usage.slope_bytes_per_h
    if slope is not None and slope > limits.slope_bytes_per_h_max:
        most = limits.slope_bytes_per_h_max
        over.append(f"its own memory grows {slope / _MIB:.2f} MiB/h, over {most / _MIB:g}")
    for name, value, most in (
        ("descriptors", usage.descriptors_max, limits.descriptors_max),
        ("threads", usage.threads_max, limits.threads_max),
        ("descriptors more in the last quarter", usage.descriptors_drift, limits.drift_max),
        ("threads more in the last quarter", usage.threads_drift, limits.drift_max),
    ):
        if value is not None and value > most:
            over.append(f"{value:g} {name}, over {most}")
    said = "PSS, slope, descriptors, threads within their limits"
    if slope is None:
        said = "within its limits; its life was too short for a slope"
    return Check(f"{usage.part} is bounded", not over, "; ".join(over) or said)


def judge_missed(drawn: int, missed: int) -> Check:
    """Judge how many faults found nothing to break: with most of them missed, a run shows little."""
    return Check(
        "most faults met their target",
        2 * missed < drawn,
        f"{drawn - missed} of {drawn}",
    )


def judge_stored(stored: Sequence[Stored]) -> list[Check]:
    """Judge journals by what an incident costs in the second half, and shared memory by its peak."""
    later = stored[len(stored) // 2 :]
    checks = []
    if later:
        # A few are charged to at least so many: the first records of a journal take whole pages.
        incidents = max(_INCIDENTS_MIN, later[-1].incidents - later[0].incidents)
        grown = later[-1].controller - later[0].controller
        each = grown / incidents
        checks.append(
            Check(
                "the controller's journals are bounded",
                each <= JOURNAL_BYTES_PER_INCIDENT_MAX,
                f"{each / 1024:.1f} KiB an incident (at most {JOURNAL_BYTES_PER_INCIDENT_MAX / 1024:g})",
            )
        )
        peak = max(one.runtime for one in stored)
        checks.append(
            Check(
                "shared memory is bounded",
                peak <= RUNTIME_BYTES_MAX,
                f"at most {peak / _MIB:.1f} MiB (at most {RUNTIME_BYTES_MAX / _MIB:g})",
            )
        )
    return checks
