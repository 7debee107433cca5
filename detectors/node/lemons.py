"""Lemons: nodes that fail again and again. Pure.

Meta's clusters removed nodes by such a list, over 28 days, and large jobs failed in 4 % of the cases rather than 14 %
(Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DAYS: Final = 28.0
FAULTS_MIN: Final = (
    3  # from so many on a node is listed; offences_max of the drains in Slurm is the same
)
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class BlamedNode:
    """One incident whose culprit was a node, or something on it."""

    node: str
    kind: str
    unix_s: float
    job_id: str = ""
    evidence: str = ""  # value of a ChargeKind; empty: from a journal that does not say


@dataclass(frozen=True, slots=True)
class Lemon:
    node: str
    faults: int
    kinds: tuple[tuple[str, int], ...]  # the most frequent first
    newest_unix_s: float


def find_lemons(
    faults: Iterable[BlamedNode],
    now_unix_s: float,
    days: float = DAYS,
    faults_min: int = FAULTS_MIN,
) -> list[Lemon]:
    """Return the nodes with that many faults within these days, the worst first.

    One job and one kind of evidence count once a day, as in `detectors.node.charges`.
    """
    since_s = now_unix_s - days * DAY_S
    by_node: dict[str, list[BlamedNode]] = {}
    newest_s: dict[tuple[str, str, str], float] = {}
    for fault in sorted(faults, key=lambda fault: fault.unix_s):
        if not fault.node or fault.unix_s < since_s:
            continue
        cause = (fault.node, fault.job_id, fault.evidence)
        is_known = bool(fault.evidence) and cause in newest_s
        if is_known and fault.unix_s < newest_s[cause] + DAY_S:
            continue
        newest_s[cause] = fault.unix_s
        by_node.setdefault(fault.node, []).append(fault)
    found = [
        Lemon(
            node,
            len(some),
            tuple(sorted(Counter(item.kind for item in some).items(), key=lambda k: (-k[1], k[0]))),
            max(item.unix_s for item in some),
        )
        for node, some in by_node.items()
        if len(some) >= faults_min
    ]
    return sorted(found, key=lambda lemon: (-lemon.faults, -lemon.newest_unix_s, lemon.node))
