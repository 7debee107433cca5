"""What counts against a node in the cluster, with what other jobs had there, and what is taken back. Pure.

`detectors.node.charges` has the table and decides; here lies what it decides upon: the cluster's ledger.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from detectors.node.charges import ChargeVerdict, NodeCharge, judge_charge
from recovery.cluster.cluster_ledger import ClusterLedger, NodeBlame
from recovery.cluster.cluster_limits import DAY_S, ClusterPolicy
from recovery.cluster.lemon_verdict import find_over
from recovery.journal.cluster_records import BlameTakenBack, Hold


def weigh_charge(
    charge: NodeCharge, ledger: ClusterLedger, policy: ClusterPolicy, now_unix_s: float
) -> ChargeVerdict:
    """Return whether a charge counts against its node."""
    if ledger.has_elsewhere(charge.node, charge.job_id, charge.error):
        charge = replace(charge, is_here_alone=False)
    return judge_charge(
        charge,
        ledger.counted_against(charge.node),
        ledger.compared_on(charge.node) if charge.error else (),
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
        left = tuple(one for one in past.blames if one.incident_id not in gone)
        has_errors = any(one.incident_id in gone for one in past.errors)
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
        return sum(one.unix_s >= since_s for one in left) < policy.quarantine.blames
    lemon = ledger.lemons.get(node)
    if lemon is None or lemon.is_dry or held.who != "policy":
        return False
    since_s = now_unix_s - policy.lemons.days * DAY_S
    kinds = Counter(one.kind for one in left if one.unix_s >= since_s)
    return find_over(kinds, policy.lemons) is None
