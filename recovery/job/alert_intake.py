"""Alerts about a job's nodes: each journaled once an attempt, and what can end a device's use.

An alert is delivered at least once, and 1,000 of them may come within a second when a switch dies:
what comes between two ticks is one record. Whatever is passed over is logged with the reason.
"""

import logging
from typing import Final

from detectors.finding import Action, Severity
from recovery.journal.ledger import KeptEvidence, Ledger
from recovery.journal.node_records import EvidenceTaken
from recovery.messages.outside import NodeEvidence

log = logging.getLogger(__name__)

_WAITING_MAX: Final = 4096  # between two ticks; as many as the ledger keeps
_ACTIONS: Final = {action.value: action for action in Action}


def ends_use(evidence: NodeEvidence) -> bool:
    """Return whether the alert says that what it names can't be used on."""
    action = _ACTIONS.get(evidence.action)
    return evidence.severity is Severity.CRITICAL and action is not None and action.ends_use


def fatal(ledger: Ledger) -> tuple[KeptEvidence, ...]:
    """Return the alerts of the newest attempt that end the use of what its ranks stand on."""
    if not ledger.evidence:  # asked at every look, on thousands of nodes
        return ()
    placed = {place.node: frozenset(place.ranks) for place in ledger.placement}
    return tuple(
        kept
        for kept in ledger.evidence.values()
        if kept.attempt == ledger.attempt and kept.overruled_by is None and ends_use(kept.evidence)
        # Ranks that were moved since the alert was made stand on something else.
        if (ranks := placed.get(kept.evidence.node)) and ranks.issuperset(kept.evidence.ranks)
    )


class AlertIntake:
    """What was told and is not on record yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, NodeEvidence] = {}
        self._ended: dict[str, NodeEvidence] = {}  # what a person has overruled, and is over now

    def receive(self, evidence: NodeEvidence, ledger: Ledger) -> None:
        known = ledger.evidence.get(evidence.identity)
        if not evidence.is_active:
            # That it is over proves nothing about the node: what is on record stays there. Only a
            # person's word ends with what it was about: when that comes again, it is news.
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
            return  # the same fault, told again
        elif evidence.node not in ledger.members:
            self._pass_over(evidence, "its node is not in the job")
        elif evidence.identity not in self._waiting and len(self._waiting) >= _WAITING_MAX:
            self._pass_over(evidence, f"{_WAITING_MAX} alerts wait already")
        else:
            self._waiting[evidence.identity] = evidence

    def due(self, ledger: Ledger) -> EvidenceTaken | None:
        """Return the record of what has come since the last one."""
        if self._ended:
            reason = "ended: a person had overruled it, and it is news when it comes again"
            return EvidenceTaken(tuple(self._ended.values()), ledger.attempt, None, reason)
        if not self._waiting:
            return None
        taken = tuple(self._waiting.values())
        incident = ledger.incident
        if incident is not None:
            reason = "joins the incident under way"
        elif not any(ends_use(one) for one in taken):
            reason = "kept: none of it ends the use of a device"
        else:
            reason = "kept: what the ranks do now decides"
        incident_id = None if incident is None else incident.state.incident_id
        return EvidenceTaken(taken, ledger.attempt, incident_id, reason)

    def forget(self, taken: EvidenceTaken) -> None:
        """Hear that it is on record now."""
        for one in taken.evidence:
            (self._waiting if one.is_active else self._ended).pop(one.identity, None)

    @staticmethod
    def _pass_over(evidence: NodeEvidence, reason: str) -> None:
        log.info(
            "alert passed over",
            extra={"alertname": evidence.alertname, "node": evidence.node, "reason": reason},
        )
