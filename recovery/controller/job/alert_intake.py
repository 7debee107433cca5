"""Alerts about a job's nodes: journals each once per attempt, and decides which rule out a device.

Alerts are delivered at least once, and when a switch dies 1,000 may arrive within a second: those
between two ticks share one record. Every ignored alert is logged with the reason.
"""

import logging
from collections.abc import Mapping
from typing import Final

from detectors.finding import Action, Finding, Kind, Severity
from recovery.journal.ledger import KeptEvidence, Ledger
from recovery.journal.node_records import EvidenceDoubted, EvidenceTaken
from recovery.messages.outside import NodeEvidence

log = logging.getLogger(__name__)

_WAITING_MAX: Final = 4096  # between two ticks; the ledger keeps as many
_ACTIONS: Final = {action.value: action for action in Action}


def ends_use(evidence: NodeEvidence) -> bool:
    """Return whether the alert declares its device or node unusable."""
    action = _ACTIONS.get(evidence.action)
    return evidence.severity is Severity.CRITICAL and action is not None and action.ends_use


def fatal(ledger: Ledger) -> tuple[KeptEvidence, ...]:
    """Return the alerts of the newest attempt that rule out a device or node that its ranks use."""
    if not ledger.evidence:  # called at every look, on thousands of nodes
        return ()
    placed = {place.node: frozenset(place.ranks) for place in ledger.placement}
    return tuple(
        retained
        for retained in ledger.evidence.values()
        if retained.attempt == ledger.attempt
        and retained.overruled_by is None
        and ends_use(retained.evidence)
        if not retained.doubted
        # Ranks that moved after the alert no longer use this device.
        if (ranks := placed.get(retained.evidence.node))
        and ranks.issuperset(retained.evidence.ranks)
    )


def confirmed(ledger: Ledger, finding: Finding) -> Mapping[str, str]:
    """Return the nodes that a doubted alert accuses and on which a rank has died, and what it says."""
    if finding.kind is not Kind.RANK_FAILED:
        return {}
    return {
        retained.evidence.node: in_words(retained)
        for retained in ledger.evidence.values()
        if retained.doubted and retained.attempt == ledger.attempt and retained.overruled_by is None
        if retained.evidence.node == finding.node and ends_use(retained.evidence)
    }


def in_words(retained: KeptEvidence) -> str:
    return f"{retained.evidence.alertname}: {retained.evidence.summary}"


def doubts_due(ledger: Ledger, doubts: Mapping[str, str]) -> tuple[EvidenceDoubted, ...]:
    """Return the records of what is doubted now and was not, or the other way round. ``doubts``: reasons, by identity."""
    reported = [
        (identity, doubts.get(identity, ""))
        for identity, retained in ledger.evidence.items()
        if retained.attempt == ledger.attempt and bool(retained.doubted) != (identity in doubts)
    ]
    by_reason: dict[str, list[str]] = {}
    for identity, why in reported:
        by_reason.setdefault(why, []).append(identity)
    return tuple(
        EvidenceDoubted(tuple(item), ledger.attempt, why) for why, item in by_reason.items()
    )


class AlertIntake:
    """Alerts that have arrived but are not journaled yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, NodeEvidence] = {}
        self._ended: dict[
            str, NodeEvidence
        ] = {}  # alerts that a person has overruled and that have ended

    def receive(self, evidence: NodeEvidence, ledger: Ledger) -> None:
        known = ledger.evidence.get(evidence.identity)
        if not evidence.is_active:
            # The end of an alert proves nothing about the node: its record stays. But a person's override
            # ends with the alert that it was about: if that fires again, it counts again.
            self._waiting.pop(evidence.identity, None)
            if known is not None and known.overruled_by is not None:
                self._ended[evidence.identity] = evidence
            self._pass_over(evidence, "it has ended")
        elif known is not None and known.overruled_by is not None:
            if evidence.identity in self._ended:
                self._waiting[evidence.identity] = evidence
            else:
                self._pass_over(evidence, f"{known.overruled_by} has taken the node back")
        elif known is not None and known.attempt == ledger.attempt:
            return  # the same fault, reported again
        elif evidence.node not in ledger.members:
            self._pass_over(evidence, "its node is not in the job")
        elif evidence.identity not in self._waiting and len(self._waiting) >= _WAITING_MAX:
            self._pass_over(evidence, f"{_WAITING_MAX} alerts are already waiting")
        else:
            self._waiting[evidence.identity] = evidence

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._ended

    def due(self, ledger: Ledger) -> EvidenceTaken | None:
        """Return the record of the alerts since the last record."""
        if self._ended:
            reason = "ended: a person had overruled it; if it fires again, it counts again"
            return EvidenceTaken(tuple(self._ended.values()), ledger.attempt, None, reason)
        if not self._waiting:
            return None
        taken = tuple(self._waiting.values())
        incident = ledger.incident
        if incident is not None:
            reason = "joins the open incident"
        elif not any(ends_use(item) for item in taken):
            reason = "kept: it rules out no device"
        else:
            reason = "kept: what the ranks do next decides"
        incident_id = None if incident is None else incident.state.incident_id
        return EvidenceTaken(taken, ledger.attempt, incident_id, reason)

    def forget(self, taken: EvidenceTaken) -> None:
        """Note that the record is journaled."""
        for evidence in taken.evidence:
            (self._waiting if evidence.is_active else self._ended).pop(evidence.identity, None)

    @staticmethod
    def _pass_over(evidence: NodeEvidence, reason: str) -> None:
        log.info(
            "alert passed over",
            extra={"alertname": evidence.alertname, "node": evidence.node, "reason": reason},
        )
