"""A node drains itself, at most once and never more than a share of its partition.

Slurm has no compare-and-set: between reading a node and draining it, a person may drain it first, for some
milliseconds. Thousands of nodes may find a fault in the same second, since slurmd runs its health checks at the same time.
So each counts before it drains and again after: if the count is beyond the share, it takes its own drain back. The last
one to drain sees all others, so the number that stays is never above the share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from agent.slurm.commands import NodeRecord
from rankmend.errors import SourceError
from rankmend.printable import printable

PREFIX: Final = "rankmend: "
REASON_CHARACTERS_MAX: Final = 240
SHARE_MAX: Final = (
    0.1  # more of a partition at once is a fault of the checks or of something shared
)


class DrainOutcome(Enum):
    NOT_NEEDED = "not_needed"
    DRAINED = "drained"
    ALREADY_DRAINED = "already_drained"
    BRAKED = "braked"  # too many nodes of the partition are drained by rankmend
    NO_ANSWER = "no_answer"  # Slurm did not answer, or refused


@dataclass(frozen=True, slots=True)
class DrainResult:
    outcome: DrainOutcome
    reason: str = ""  # the node's reason afterwards
    note: str = ""  # for people


class Slurm(Protocol):
    def node(self, name: str) -> NodeRecord: ...
    def partition_nodes(self, partition: str) -> Sequence[NodeRecord]: ...
    def drain(self, name: str, reason: str) -> None: ...
    def undrain(self, name: str) -> None: ...


def drain_reason(causes: Sequence[str], before: str = "") -> str:
    """Return the reason of a drain; ``before``: what a person wrote, which stays in front."""
    text = printable(PREFIX + "; ".join(causes)).replace('"', "'")
    retained = f"{before}; " if before and not before.startswith(PREFIX) else ""
    return (retained + text)[: max(REASON_CHARACTERS_MAX, len(retained) + len(PREFIX))]


def drained_by_us(nodes: Sequence[NodeRecord]) -> int:
    return sum(node.is_drained and PREFIX in node.reason for node in nodes)


def allowed_drains(count: int, share_max: float) -> int:
    """Return how many nodes of a partition may be drained by rankmend at once: one, however small it is."""
    return max(1, int(count * share_max))


def drain_node(slurm: Slurm, name: str, causes: Sequence[str], share_max: float) -> DrainResult:
    """Drain a node, unless it is drained already or the brake holds; never raises for Slurm's silence."""
    try:
        node = slurm.node(name)
        if node.is_drained:
            return DrainResult(DrainOutcome.ALREADY_DRAINED, node.reason)
        if full := _full_partition(slurm, node.partitions, share_max, added=1):
            return DrainResult(DrainOutcome.BRAKED, node.reason, full)
        reason = drain_reason(causes, node.reason)
        slurm.drain(name, reason)
    except SourceError as error:
        return DrainResult(DrainOutcome.NO_ANSWER, note=str(error))
    return _checked_again(slurm, name, reason, share_max)


def _checked_again(slurm: Slurm, name: str, reason: str, share_max: float) -> DrainResult:
    try:
        after = slurm.node(name)
        full = _full_partition(slurm, after.partitions, share_max, added=0)
        if full and after.is_drained and after.reason == reason:
            slurm.undrain(name)
            return DrainResult(DrainOutcome.BRAKED, note=f"{full}; took its own drain back")
        return DrainResult(DrainOutcome.DRAINED, after.reason)
    except SourceError as error:
        return DrainResult(DrainOutcome.DRAINED, reason, f"not read back: {error}")


def _full_partition(slurm: Slurm, partitions: Sequence[str], share_max: float, added: int) -> str:
    """Return which partition has too many nodes drained by rankmend, as a sentence, or nothing."""
    for partition in partitions:
        nodes = slurm.partition_nodes(partition)
        count, allowed = drained_by_us(nodes), allowed_drains(len(nodes), share_max)
        if count + added > allowed:
            return (
                f"{count} of the {len(nodes)} nodes of partition {partition} are drained by rankmend,"
                f" and {allowed} may be"
            )
    return ""
