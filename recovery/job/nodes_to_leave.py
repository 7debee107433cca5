"""Which nodes of an attempt the next one must leave, and which it leaves only for a spare. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from detectors.finding import Finding, Kind
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
