"""Judges what counts against a node in the cluster, and which node is a lemon. Pure.

`detectors.node.charges` has the table and decides; this module gives it the cluster's ledger.

A lemon failed too often within weeks, by kind of fault, and the policy keeps it out of use. That is
off until a limit is set, and then dry until `dry_run` is false. A lemon stays out until a person
takes it back, which forgets its past. The policy keeps out at most a share of the fleet: where that
is used up, the limits match nearly every node, and a person has to check them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.node.charges import ChargeVerdict, NodeCharge, judge_charge
from detectors.wording import counted
from recovery.controller.cluster.cluster_ledger import ClusterLedger, NodeBlame
from recovery.controller.cluster.cluster_limits import DAY_S, ClusterPolicy, LemonRules
from recovery.controller.cluster.plan_verdict import sole_accuser
from recovery.journal.cluster_records import BlameTakenBack, Hold, LemonFound
from recovery.journal.witnesses import share_of

ANY: Final = "any"  # kind of a limit for faults of all kinds


@dataclass(frozen=True, slots=True)
class LemonOver:
    """The limit that a node's faults have reached."""

    kind: str  # value of a Kind, or ANY
    faults: int
    limit: int

    def in_words(self, days: float) -> str:
        of = "" if self.kind == ANY else f" of kind {self.kind}"
        return (
            f"{counted(self.faults, 'fault')}{of} within {days:g} days, the limit is {self.limit}"
        )


def find_over(kinds: Counter[str], rules: LemonRules) -> LemonOver | None:
    """Return the limit that these faults exceed most, or None."""
    limits = {kind.value: limit for kind, limit in rules.limits.items()}
    over = [
        LemonOver(kind, kinds[kind], limit)
        for kind, limit in sorted(limits.items())
        if kinds[kind] >= limit
    ]
    if rules.faults and kinds.total() >= rules.faults:
        over.append(LemonOver(ANY, kinds.total(), rules.faults))
    return max(over, key=lambda item: item.faults / item.limit, default=None)


def judge_lemon(
    node: str,
    nodes_active: int,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
    accuser: str = "",
    *,
    is_observed: bool = False,
) -> LemonFound | str | None:
    """Return the record of a lemon, why a lemon is not kept out, or None.

    ``nodes_active``: the nodes that ran ranks within the last day, of which `nodes_percent` is a share.
    ``accuser``: of whose share of the lemons it would be; empty: nobody's. ``is_observed``: observe mode, in which nothing is kept out.
    """
    rules = policy.lemons
    held = ledger.hold_of(node, now_unix_s)
    if not rules.is_on or (held is not None and held.hold is Hold.DRAIN):
        return None
    since_s = now_unix_s - rules.days * DAY_S
    blames = ledger.blames_of(node, since_s)
    over = find_over(Counter(blame.kind for blame in blames), rules)
    if over is None:
        return None
    is_dry = rules.dry_run or policy.is_dry or is_observed
    reason = f"a lemon: {over.in_words(rules.days)}"
    out = len(ledger.lemons_out(now_unix_s) - {node})
    most = min(rules.nodes_max, int(nodes_active * rules.nodes_percent / 100.0))
    if not is_dry and out >= most:
        return (
            f"{node} is {reason}, but is not kept out: {counted(out, 'lemon')} already {'is' if out == 1 else 'are'}, "
            f"the limit for {counted(nodes_active, 'node')} that ran ranks within a day is {most}"
        )
    if accuser and not is_dry:
        own = sum(
            sole_accuser(ledger.blames_of(item, since_s)) == accuser
            for item in ledger.lemons_out(now_unix_s) - {node}
        )
        share = share_of(most, out, own)
        if own >= share:
            return (
                f"{node} is {reason}, but is not kept out: {counted(own, 'lemon')} already {'is' if own == 1 else 'are'} for what "
                f"launchers of {accuser} report, its share of the lemons: {share} of {most}"
            )
    found = LemonFound(node, over.kind, over.faults, over.limit, rules.days, is_dry, reason)
    known = ledger.lemons.get(node)
    return None if is_dry and known == found else found


def weigh_charge(
    charge: NodeCharge,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
    subject: str = "",
) -> ChargeVerdict:
    """Return whether a charge counts against its node. ``subject``: the job's owner; empty: all users are one party."""
    if ledger.has_elsewhere(charge.node, charge.job_id, charge.error):
        charge = replace(charge, is_here_alone=False)
    return judge_charge(
        charge,
        ledger.counted_against(charge.node),
        ledger.compared_on(charge.node, subject) if charge.error else (),
        now_unix_s,
        policy.quarantine.window_s,
    )


def take_back(
    job_id: str,
    incident_ids: Sequence[str],
    reason: str,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
) -> BlameTakenBack | None:
    """Return the record that takes back what incidents of a job have counted, or None where they counted nothing.

    A node that the policy held back for them alone may be used again; what a person holds stays held.
    """
    gone = frozenset(incident_ids)
    nodes, released = [], []
    for node, past in ledger.nodes.items():
        left = tuple(blame for blame in past.blames if blame.incident_id not in gone)
        has_errors = any(error.incident_id in gone for error in past.errors)
        if len(left) == len(past.blames) and not has_errors:
            continue
        nodes.append(node)
        if len(left) < len(past.blames) and _is_free(node, left, ledger, policy, now_unix_s):
            released.append(node)
    if not nodes:
        return None
    return BlameTakenBack(job_id, tuple(sorted(gone)), tuple(nodes), tuple(released), reason)


def _is_free(
    node: str,
    left: Sequence[NodeBlame],
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
) -> bool:
    """Return whether the policy holds the node back now, and would not for the blames that are left."""
    held = ledger.hold_of(node, now_unix_s)
    if held is None:
        return False
    if held.hold is Hold.QUARANTINE:
        since_s = now_unix_s - policy.quarantine.window_s
        return sum(blame.unix_s >= since_s for blame in left) < policy.quarantine.blames
    lemon = ledger.lemons.get(node)
    if lemon is None or lemon.is_dry or held.who != "policy":
        return False
    since_s = now_unix_s - policy.lemons.days * DAY_S
    kinds = Counter(blame.kind for blame in left if blame.unix_s >= since_s)
    return find_over(kinds, policy.lemons) is None
