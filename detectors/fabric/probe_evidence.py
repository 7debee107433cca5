"""What a test of the network among idle nodes says of ranks whose communication is slow. Pure.

A part that was slow there is to blame where the ranks' own path leads through it: their rail, their leaf switch or its uplink, a link or path
between two leaf switches that the job uses, their own node or NIC where it took part. So one slow rank is enough, and of two parts that explain slow ranks
equally well the one that the test found slow is named. Nothing slow there is an answer, too: what the idle nodes share with the job is sound.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from detectors.fabric.fabric_verdict import FabricOutcome, FabricVerdict, PartKind, SlowPart
from detectors.parts.fleet_parts import FleetPart, FleetParts, SharedKind
from detectors.parts.shared_blame import BlameEnd, ExplainingPart, PlacedWorker, SharedBlame
from detectors.wording import counted, names_in_words

REACHED: Final = 0.8  # of the rate that a probe may send at: two nodes that reach it are sound
NAMED_TOLD_MAX: Final = 4
_WORDS: Final = {
    PartKind.SWITCH: "leaf switch",
    PartKind.UPLINK: "uplink of leaf switch",
    PartKind.GROUP: "what is shared by",
    PartKind.NIC: "NIC",
}
_OF_NODES: Final = frozenset(
    {PartKind.NODE, PartKind.NIC, PartKind.SWITCH, PartKind.UPLINK, PartKind.GROUP}
)
_FLEET_KINDS: Final = {
    PartKind.NODE: SharedKind.NODE,
    PartKind.NIC: SharedKind.NIC,
    PartKind.RAIL: SharedKind.RAIL,
    PartKind.SWITCH: SharedKind.LEAF,
    PartKind.UPLINK: SharedKind.LEAF,
}


class ProbeSays(Enum):
    SHARED = "shared"  # a part is slow that the slow ranks' path leads through
    ELSEWHERE = "elsewhere"  # parts are slow, but none that these ranks use
    NOTHING = "nothing"  # nothing is slow among the nodes of the probe
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class ProbeEvidence:
    says: ProbeSays
    nodes: int  # of the probe
    shared: tuple[SlowPart, ...] = ()
    elsewhere: tuple[SlowPart, ...] = ()
    slow_nodes: tuple[str, ...] = ()  # of the probe

    @property
    def part(self) -> str:
        """Return the slow parts on the ranks' path, in words; empty: none."""
        return names_in_words([part_in_words(item) for item in self.shared], NAMED_TOLD_MAX)

    def in_words(self) -> str:
        """Return one sentence."""
        among = f"a probe among {counted(self.nodes, 'node')}"
        if self.says is ProbeSays.SHARED:
            return f"{among} found {_slow(self.shared)}, on the path of the slow ranks"
        if self.says is ProbeSays.ELSEWHERE:
            return f"{among} found {_slow(self.elsewhere)}, which the slow ranks don't use"
        if self.says is ProbeSays.NOTHING:
            return f"{among} found nothing slow: look at the slow ranks' own nodes, NICs and cables"
        return f"{among} decided nothing"


def weigh(
    verdict: FabricVerdict,
    nodes: Sequence[str],
    bytes_per_s: float,
    bad: Sequence[PlacedWorker],
    job_nodes: Collection[str],
    parts: FleetParts,
    rails: Collection[str] = (),
) -> ProbeEvidence:
    """Return what a verdict means for the ``bad`` workers of a job.

    ``nodes``: of the probe; ``bytes_per_s``: at which each was allowed to send; ``rails``: that were tested, where there were several.
    A rank's NIC may have another name there, as an RDMA device has. Where the topology does not know both names, any rail may be its own.
    """
    bad = [replace(worker, nic=_tested_name(worker, parts, rails)) for worker in bad]
    of_nodes = {node for part in verdict.parts if part.kind in _OF_NODES for node in part.nodes}
    shared = [part for part in verdict.parts if _is_on_path(part, bad, job_nodes, parts)]
    elsewhere = [part for part in verdict.parts if part not in shared]
    return ProbeEvidence(
        _says(verdict, nodes, bytes_per_s, shared),
        len(nodes),
        tuple(shared),
        tuple(elsewhere),
        tuple(node for node in nodes if node in of_nodes),
    )


def _tested_name(worker: PlacedWorker, parts: FleetParts, rails: Collection[str]) -> str | None:
    """Return the name of a rank's NIC among the rails that were tested; None: none of them is known to be its own."""
    if worker.nic is None or worker.nic in rails:
        return worker.nic
    names = parts.names_of_nic(worker.node, worker.nic) & set(rails)
    return next(iter(names)) if len(names) == 1 else None


def with_probe(
    blame: SharedBlame, evidence: ProbeEvidence, bad: Sequence[PlacedWorker], parts: FleetParts
) -> SharedBlame:
    """Return the blame of ranks that became slow together, with what a probe has found on their path."""
    found = {part for item in evidence.shared if (part := _fleet_part(item)) is not None}
    if not found:
        return blame
    named = [item for item in blame.named if item.part in found]
    named += [item for item in blame.tied if item.part in found]
    known = {item.part for item in named}
    for part in sorted(found - known, key=str):
        below = tuple(worker.name for worker in bad if _is_below(worker, part, parts))
        named.append(ExplainingPart(part, below, 0))
    explained = {name for item in named for name in item.bad}
    others = [
        item for item in blame.named if item.part not in found and not set(item.bad) <= explained
    ]
    alone = tuple(name for name in blame.alone if name not in explained)
    return replace(blame, end=BlameEnd.NAMED, named=(*named, *others), tied=(), alone=alone)


def part_in_words(part: SlowPart) -> str:
    if part.kind is PartKind.GROUP:
        return f"{_WORDS[part.kind]} {names_in_words(list(part.nodes), NAMED_TOLD_MAX)}"
    return f"{_WORDS.get(part.kind, part.kind.value)} {part.name}"


def _slow(parts: Sequence[SlowPart]) -> str:
    return names_in_words(
        [f"{part_in_words(part)} slow ({part.delay_ratio:.1f}x)" for part in parts], NAMED_TOLD_MAX
    )


def _says(
    verdict: FabricVerdict, nodes: Sequence[str], bytes_per_s: float, shared: Sequence[SlowPart]
) -> ProbeSays:
    if shared:
        return ProbeSays.SHARED
    if verdict.parts:
        return ProbeSays.ELSEWHERE
    is_at_limit = verdict.usual_bytes_per_s >= REACHED * bytes_per_s and not verdict.slow_ratio
    if verdict.outcome is FabricOutcome.SOUND or (len(nodes) == 2 and is_at_limit):
        return ProbeSays.NOTHING
    return ProbeSays.UNCLEAR


def _is_on_path(
    part: SlowPart, bad: Sequence[PlacedWorker], job_nodes: Collection[str], parts: FleetParts
) -> bool:
    if part.kind in (PartKind.LINK, PartKind.PATH):
        return _is_between_own_leaves(part, bad, job_nodes, parts)
    if part.kind is PartKind.GROUP:
        return any(worker.node in part.nodes for worker in bad)
    found = _fleet_part(part)
    return found is not None and any(_is_below(worker, found, parts) for worker in bad)


def _is_between_own_leaves(
    part: SlowPart, bad: Sequence[PlacedWorker], job_nodes: Collection[str], parts: FleetParts
) -> bool:
    """Return whether the job sends between the leaf switches of these two nodes, or between the nodes themselves."""
    if len(part.nodes) != 2:
        return False
    ends = [{f"node {node}", *_leaves(node, parts)} for node in part.nodes]
    mine = [{f"node {worker.node}", *_leaves(worker.node, parts)} for worker in bad]
    others = [{f"node {node}", *_leaves(node, parts)} for node in job_nodes]
    if _leaves(part.nodes[0], parts) & _leaves(part.nodes[1], parts):
        ends = [{f"node {node}"} for node in part.nodes]  # below one leaf: their own cables
    return any(
        any(item & near for item in mine) and any(other & far for other in others)
        for near, far in (ends, ends[::-1])
    )


def _leaves(node: str, parts: FleetParts) -> set[str]:
    return {str(part) for part in parts.of_node(node) if part.kind is SharedKind.LEAF}


def _is_below(worker: PlacedWorker, part: FleetPart, parts: FleetParts) -> bool:
    if part.kind is SharedKind.NODE:
        return worker.node == part.name
    names = None if worker.nic is None else parts.names_of_nic(worker.node, worker.nic)
    if part.kind is SharedKind.NIC:
        node, _, nic = part.name.partition(" ")
        return node == worker.node and (names is None or nic in names)
    if part.kind is SharedKind.RAIL:
        return names is None or part.name in names
    return part in parts.of_worker(worker.node, worker.nic)


def _fleet_part(part: SlowPart) -> FleetPart | None:
    kind = _FLEET_KINDS.get(part.kind)
    return None if kind is None else FleetPart(kind, part.name)
