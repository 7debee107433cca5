"""Decides what a job's incident counts against its nodes, and which nodes the next attempt must leave. Pure.

The table and the rules are `detectors.node.charges`'; the pool knows what other jobs had.

The next attempt leaves a node that an active alert rules out, unless no attempt could start then: a
job rather restarts on accused nodes than not at all (`recovery.controller.job.planner`). But where
a second thing agrees with the alert, the node is broken and not only accused: a rank on it failed
or hung by its machine's fault, it is silent, cut off, or held by the cluster. No attempt uses such
a node.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from detectors.failed.error_rows import is_devices_own_word
from detectors.finding import Action, Blame, Evidence, Finding, Kind, Severity, SymptomKind
from detectors.node.charges import (
    CHARGES,
    Beside,
    ChargeKind,
    NodeCharge,
    Weight,
    error_class,
    read_crash_library,
    weigh,
)
from recovery.journal.incident_records import BlameCorrected, ChargedNode, Conclusion, Failure
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.journal.node_records import LeaveCause, LeaveReason
from recovery.messages.outside import NodeEvidence

NODES_MAX: Final = (
    64  # journaled with one incident; a switch that dies takes more, and its own alert names it
)

_BY_LEAVING: Final = {
    LeaveCause.ALERT: ChargeKind.ALERT,
    LeaveCause.SILENT: ChargeKind.HOST,
    LeaveCause.CUT_OFF: ChargeKind.CUT_OFF,
    LeaveCause.SLOW: ChargeKind.SLOW,
    LeaveCause.NUMBERS: ChargeKind.NUMBERS,
}
"""What it shows of a node that a job leaves it, where the finding need not be about the node."""
_ACTIONS: Final = {action.value: action for action in Action}
_OF_FINDING: Final = frozenset({LeaveCause.BLAMED, LeaveCause.ACCUSED})

Reasons = dict[str, LeaveReason]


@dataclass(frozen=True, slots=True)
class ChargedJob:
    """Whose incident it is."""

    job_id: str
    program: str  # its script; empty: not known


def charges_of(
    incident_id: str,
    failure: Failure,
    job: ChargedJob,
    ledger: Ledger,
    left: Mapping[str, LeaveReason],
    proved: Finding | None = None,
) -> tuple[NodeCharge, ...]:
    """Return what an incident shows of nodes; ``left``: those that its plan leaves.

    ``proved``: the finding that dumps or stacks led to, where they are sure. A person's word shows nothing of a node.
    """
    finding = failure.finding if proved is None else proved
    if finding.is_persons:
        return ()
    kinds: dict[str, ChargeKind] = {}
    if _names_node(finding):
        kinds[finding.node] = _weighed(finding, failure, ledger, is_proved=proved is not None)
    for node, reason in left.items():
        kind = _BY_LEAVING.get(reason.cause)
        if kind is None and reason.cause in _OF_FINDING and node in kinds:
            continue
        known = kinds.get(node)
        if known is None or CHARGES[known].weight is not Weight.ONE:
            kinds[node] = kind or known or ChargeKind.LEFT
    is_alone = _is_alone(finding, ledger)
    error = error_class(finding, "" if failure.error is None else failure.error.type_name)
    return tuple(
        NodeCharge(
            node,
            kind,
            job.job_id,
            incident_id,
            finding.summary,
            finding.kind.value,
            error if node == finding.node else "",
            job.program,
            is_alone and node == finding.node,
        )
        for node, kind in sorted(kinds.items())[:NODES_MAX]
        if node not in ledger.taken_back
    )


def _names_node(finding: Finding) -> bool:
    """Return whether a finding is about ranks of a node, or about the node."""
    if not finding.node or finding.blame in (Blame.COMMUNICATION, Blame.USER):
        return False
    return bool(finding.ranks) or finding.kind in (Kind.HOST, Kind.DEVICE)


def _weighed(finding: Finding, failure: Failure, ledger: Ledger, *, is_proved: bool) -> ChargeKind:
    nodes = _nodes_of(finding, ledger) or {finding.node}
    alerts = [
        retained.evidence
        for retained in ledger.evidence.values()
        if retained.attempt == failure.attempt
    ]
    mine = [alert for alert in alerts if alert.node == finding.node]
    library = failure.crash_library
    if not library and finding.symptom.kind is SymptomKind.CRASHED:
        lines = [line for alert in mine for line in (alert.summary, *_texts(alert.evidence))]
        library = read_crash_library([*lines, *_texts(finding.evidence)])
    said = (finding.summary, finding.symptom.detail, *_texts(finding.evidence))
    is_own_word = finding.kind is not Kind.RANK_FAILED or any(map(is_devices_own_word, said))
    beside = Beside(any(rules_out(alert) for alert in mine), is_proved, library, is_own_word)
    return weigh(finding, nodes, beside)


def rules_out(evidence: NodeEvidence) -> bool:
    """Return whether the alert is about more than the program: it requires more than a restart or an inspection."""
    action = _ACTIONS.get(evidence.action)
    return evidence.severity is not Severity.INFO and action is not None and action.ends_use


def _texts(evidence: tuple[Evidence, ...]) -> list[str]:
    return [item.text for item in evidence]


def _nodes_of(finding: Finding, ledger: Ledger) -> set[str]:
    ranks = set(finding.ranks)
    return {place.node for place in ledger.placement if ranks & set(place.ranks)}


def _is_alone(finding: Finding, ledger: Ledger) -> bool:
    """Return whether the job has other nodes, all of them without the error, and it's not rank 0's alone.

    Rank 0 evaluates, logs and saves, wherever it is: an error that only it has is the program's.
    """
    nodes = _nodes_of(finding, ledger)
    return len(nodes) == 1 and len(ledger.placement) > 1 and set(finding.ranks) != {0}


def of_incidents(ledger: Ledger, incident_id: str) -> tuple[str, ...]:
    """Return the incidents of the error for which the program is given up, oldest first."""
    run = ledger.errors
    symptom = None if run is None else run.symptom
    ids = () if run is None else run.incidents
    starts = [
        failure.incident_id for failure in ledger.start_failures if failure.symptom == symptom
    ]
    return tuple(dict.fromkeys(item for item in (*starts, *ids, incident_id) if item))


def corrects(
    concludes: Conclusion, failure: Failure, ledger: Ledger, incident_id: str, reason: str
) -> BlameCorrected | None:
    """Return the record that blames the program for the incidents of its error, or None where nothing concludes that.

    Full storage, or a service that stays away, stays nobody's fault however often it ends the job.
    """
    outside = (SymptomKind.STORAGE, SymptomKind.SERVICE)
    if concludes is Conclusion.NOTHING or failure.finding.symptom.kind in outside:
        return None
    ids = of_incidents(ledger, incident_id)
    opened = failure if ledger.incident is None else ledger.incident.failure
    is_known = {failure.finding.blame, opened.finding.blame} == {Blame.PROGRAM}
    if ids == (incident_id,) and is_known and not ledger.charged:
        return None  # there is nothing to correct
    return BlameCorrected(ids, Blame.PROGRAM, reason)


def counting(charged: tuple[ChargedNode, ...]) -> frozenset[str]:
    """Return the nodes against which an incident counts."""
    return frozenset(node.node for node in charged if node.counts)


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
        failed |= {
            place.node for place in ledger.placement if set(place.ranks) & set(finding.ranks)
        }
    return frozenset(
        node
        for node, reason in must.items()
        if reason.cause is LeaveCause.ALERT and node not in failed and node not in torn
        if not is_silent(node) and unusable(node) is None
    )
