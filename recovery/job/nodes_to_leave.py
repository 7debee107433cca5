"""Which nodes of an attempt the next one must leave, and which it leaves only for a spare. Pure.

A node that an active alert rules out is left, unless no attempt could start then: a job rather restarts on accused nodes than not at
all (`recovery.job.planner`). But where a second thing agrees with the alert, the node is broken and not only accused: a rank
on it failed or hung by its machine's fault, it is silent, cut off, or held by the cluster. Such a node is never used.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from detectors.finding import Blame, Finding, Kind
from recovery.journal.leaving import LeaveCause, LeaveReason
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy

Reasons = dict[str, LeaveReason]


def find_nodes_to_leave(
    finding: Finding,
    ledger: Ledger,
    policy: Policy,
    *,
    accused: Mapping[str, str],
    is_silent: Callable[[str], bool],
    unusable: Callable[[str], str | None],
    torn: Mapping[str, LeaveReason],
    suspected: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Reasons, Reasons]:
    """Return the nodes that can't be used, and the suspects.

    ``accused``: nodes that an alert rules out, with its words; ``unusable``: why the cluster gives a node no
    ranks, or None; ``torn``: nodes that others do not reach; ``suspected``: nodes that a doubted alert and a dead rank accuse.
    """
    must: Reasons = {}
    may: Reasons = {}
    for place in ledger.placement:
        node, member = place.node, ledger.members.get(place.node)
        is_accused = node not in ledger.taken_back
        if member is None:
            must[node] = LeaveReason(LeaveCause.NOT_JOINED)
        elif member.left is not None:
            must[node] = LeaveReason(LeaveCause.LEFT, member.left)
        elif node in accused:
            must[node] = LeaveReason(LeaveCause.ALERT, accused[node])
        elif is_silent(node):
            must[node] = LeaveReason(LeaveCause.SILENT)
        elif (reason := unusable(node)) is not None:
            must[node] = LeaveReason(LeaveCause.HELD, reason)
        elif finding.kind is Kind.RANK_SLOW and node == finding.node and is_accused:
            must[node] = LeaveReason(LeaveCause.SLOW)
        elif finding.kind is Kind.NUMBERS_WRONG and node == finding.node and is_accused:
            may[node] = LeaveReason(LeaveCause.NUMBERS)
        elif ledger.node_run[0] == node and ledger.node_run[1] >= policy.node_failures_max:
            may[node] = LeaveReason(LeaveCause.BLAMED, str(ledger.node_run[1]))
        elif node in suspected:
            may[node] = LeaveReason(LeaveCause.ALERT, suspected[node])
        elif node in torn:
            may[node] = torn[node]
    return must, may


def accused_alone(
    finding: Finding,
    ledger: Ledger,
    must: Mapping[str, LeaveReason],
    *,
    is_silent: Callable[[str], bool],
    unusable: Callable[[str], str | None],
    torn: Mapping[str, LeaveReason],
) -> frozenset[str]:
    """Return the nodes to leave that alerts accuse and nothing else does. The arguments are those of `find_nodes_to_leave`."""
    failed = {finding.node} if finding.blame is Blame.RANK else set()
    if finding.blame is Blame.RANK:
        failed |= {one.node for one in ledger.placement if set(one.ranks) & set(finding.ranks)}
    return frozenset(
        node
        for node, reason in must.items()
        if reason.cause is LeaveCause.ALERT and node not in failed and node not in torn
        if not is_silent(node) and unusable(node) is None
    )
