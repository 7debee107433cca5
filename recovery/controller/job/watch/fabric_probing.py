"""Decides when idle nodes test the network of a job whose communication is slow, which ones, and when they stop. Pure.

The ranks' own NICs stay out of it unless the policy lets them in. What the nodes find is weighed against the slow ranks' path
(`detectors.fabric.probe_evidence`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Final

from detectors.fabric.probe_evidence import ProbeEvidence, weigh, with_probe
from detectors.finding import Evidence
from detectors.parts.fleet_parts import FleetParts
from detectors.parts.shared_blame import PlacedWorker
from detectors.slow.explanation import SlowSection
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.controller.job.watch.slow_together import explain_together, place_ranks
from recovery.journal.ledger import Ledger, SlowNow, Wish
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    FabricProbeSkipped,
    ProbeEnd,
    ProbeLimits,
    SlowExplained,
)
from recovery.messages.probing import ProbeState, ProbeTold

NODES_MIN: Final = 2
SECONDS_MAX: Final = 1.0  # of sending in each direction of a test, as `rankmend fabric test`
SECONDS_MIN: Final = 0.1
SENDING_SHARE: Final = 0.4  # of a probe's time; the rest is for the starts, and between rounds
GRACE_S: Final = 5.0  # beyond a probe's time: a report carries its end
_ENDS: Final = {ProbeState.YIELDED: ProbeEnd.YIELDED, ProbeState.FAILED: ProbeEnd.FAILED}
_NETWORK: Final = SlowSection.COMMUNICATION.value


def slow_in_network(ledger: Ledger) -> list[SlowNow]:
    """Return the ranks whose communication is slow by themselves, not as they wait for others."""
    return [item for item in ledger.slow.values() if item.found.section == _NETWORK]


def decide_probe(
    ledger: Ledger,
    rules: ProbeRules,
    idle: Sequence[str],
    training: Sequence[str],
    since_last_s: float | None,
    job_id: str,
) -> FabricProbeAsked | FabricProbeSkipped | None:
    """Return the record of a probe that is due, or that it can't be done; None: none is due.

    ``idle``, ``training``: nodes that could take part, without and with ranks of the job; ``since_last_s``: since the job's last probe.
    """
    slow = slow_in_network(ledger)
    is_known = all(now.why is not None for now in slow)  # of its hardware, which may tell more
    if not slow or not is_known or len(ledger.placement) < 2 or not rules.per_hour_max:
        return None
    about = max(now.number for now in slow)
    if about <= ledger.probes.about or is_in_the_way(ledger) or ledger.probes.open is not None:
        return None
    if since_last_s is not None and since_last_s < rules.again_after_s:
        return None
    ranks = tuple(sorted(now.found.rank for now in slow))
    own = [now.found.finding.node for now in slow]
    members = choose_training(own, training, rules) if rules.through_training_nics else ()
    nodes = tuple(idle[: max(0, rules.nodes_max - len(members))]) + members
    if len(nodes) < NODES_MIN:
        skipped = FabricProbeSkipped(ledger.attempt, ranks, about, nodes)
        return None if skipped == ledger.probes.skipped else skipped
    return FabricProbeAsked(
        probe_id=f"{job_id}-{ledger.number}",
        job_id=job_id,
        attempt=ledger.attempt,
        ranks=ranks,
        about=about,
        nodes=nodes,
        training=members,
        rails=rules.rails,
        limits=plan_limits(rules, len(nodes), is_beside=bool(members)),
        epoch=ledger.epoch,
        is_dry=rules.dry_run,
    )


def is_in_the_way(ledger: Ledger) -> bool:
    """Return whether the job has more urgent things to do than to find out why it is slow, or must be left alone."""
    is_training = ledger.wish is Wish.RANKS and ledger.is_attempt_open
    is_left_alone = ledger.closing is not None or ledger.paused_by is not None
    return not is_training or ledger.incident is not None or is_left_alone


def choose_training(
    own: Sequence[str], training: Sequence[str], rules: ProbeRules
) -> tuple[str, ...]:
    """Return nodes with ranks: the slow ranks' own, then others spread evenly, to compare with."""
    first = [node for node in dict.fromkeys(own) if node in training]
    others = [node for node in training if node not in first]
    room = min(rules.training_nodes_max, rules.nodes_max)
    first = first[: max(1, room // 2)]
    step = max(1, ceil(len(others) / max(1, room - len(first))))
    return tuple([*first, *others[::step]][:room])


def nearest_first(idle: Sequence[str], own: Sequence[str], parts: FleetParts) -> tuple[str, ...]:
    """Return idle nodes, in turn one that shares a part with the slow ranks' nodes and one that does not."""
    wanted = frozenset().union(*(parts.of_node(node) for node in own))
    near = [node for node in idle if parts.of_node(node) & wanted]
    far = [node for node in idle if node not in set(near)]
    both = [node for pair in zip(near, far, strict=False) for node in pair]
    count = len(both) // 2
    return (*both, *near[count:], *far[count:])


def plan_limits(rules: ProbeRules, count: int, *, is_beside: bool) -> ProbeLimits:
    """Return how long and how fast each node sends, so that a probe of so many nodes keeps the rules."""
    rounds = 2 * ceil(log2(count))
    rate = min(rules.bytes_per_s_max, rules.training_bytes_per_s_max) if is_beside else rules.bytes_per_s_max  # fmt: skip
    seconds = min(SECONDS_MAX, SENDING_SHARE * rules.seconds_max / (2 * rounds))
    seconds = max(SECONDS_MIN, min(seconds, rules.bytes_per_node_max / (rounds * rate)))
    rate = min(rate, rules.bytes_per_node_max / (rounds * seconds))
    return ProbeLimits(seconds, rules.seconds_max, rate, int(rules.bytes_per_node_max))


def decide_end(
    ledger: Ledger, requested: FabricProbeAsked, reported: Mapping[str, ProbeTold], age_s: float
) -> FabricProbeEnded | None:
    """Return the record of the end of a probe that yields or has failed; None: it goes on, or has a verdict."""

    def end(why: ProbeEnd, reason: str = "") -> FabricProbeEnded:
        return FabricProbeEnded(requested.probe_id, why, reason)

    if requested.epoch != ledger.epoch:
        return end(ProbeEnd.INTERRUPTED, "the controller has started anew")
    if is_in_the_way(ledger) or requested.attempt != ledger.attempt:
        return end(ProbeEnd.YIELDED, "the job needs its nodes")
    gone = [node for node in requested.nodes if not _is_there(ledger, node)]
    if gone:
        return end(ProbeEnd.YIELDED, f"{gone[0]} has left the job")
    for node, item in reported.items():
        if item.state in _ENDS:
            why = f"{node} is needed" if item.state is ProbeState.YIELDED else item.failure
            return end(_ENDS[item.state], why[:500])
    if age_s > requested.limits.limit_s + GRACE_S:
        return end(ProbeEnd.LATE, f"no verdict within {requested.limits.limit_s:g} s")
    return None


def _is_there(ledger: Ledger, node: str) -> bool:
    member = ledger.members.get(node)
    return member is not None and member.left is None and member.ended_through is None


def judge_probe(
    ledger: Ledger,
    requested: FabricProbeAsked,
    reported: ProbeTold,
    nics: Mapping[int, str],
    parts: FleetParts,
) -> tuple[FabricProbeEnded, list[SlowExplained]]:
    """Return what a verdict means: the record of the end, and what is now known of each slow rank."""
    assert reported.verdict is not None, "the coordinator has told it"
    slow = slow_in_network(ledger)
    workers = place_ranks(ledger.placement, nics, parts)
    bad = [workers[now.found.rank] for now in slow if now.found.rank in workers]
    job_nodes = [place.node for place in ledger.placement]

    def evidence_of(workers: Sequence[PlacedWorker]) -> ProbeEvidence:
        return weigh(
            verdict,
            requested.nodes,
            requested.limits.bytes_per_s,
            workers,
            job_nodes,
            parts,
            requested.rails,
        )

    verdict = reported.verdict
    found = evidence_of(bad)
    ended = FabricProbeEnded(
        requested.probe_id,
        ProbeEnd.JUDGED,
        reported.failure[:500],
        verdict,
        found.says,
        found.part,
        found.slow_nodes,
    )
    explained = []
    for now in slow:
        worker = workers.get(now.found.rank)
        if now.why is None or worker is None:
            continue
        own = evidence_of([worker])
        blame = explain_together(
            now.found, [other.found for other in slow], ledger.placement, nics, parts
        )
        part = with_probe(blame, own, [worker], parts).part if own.shared else ""
        explained.append(_with_evidence(now.why, own, part))
    return ended, explained


def _with_evidence(why: SlowExplained, found: ProbeEvidence, part: str) -> SlowExplained:
    said = found.in_words()
    return replace(
        why,
        reason=f"{why.reason}; {said}",
        evidence=(*why.evidence, Evidence("fabric probe", said)),
        part=part or found.part or why.part,
    )
