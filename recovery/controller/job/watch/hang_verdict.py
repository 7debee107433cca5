"""Gathers the evidence that launchers saved of an incident, and judges it once for the whole job.

Each launcher reports its own evidence; the record is made once all have reported, or the rest are
overdue. That happens after the ranks are stopped and delays nothing.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from detectors.finding import Blame, Finding, Kind, SymptomKind
from detectors.hang.evidence import judge_evidence
from detectors.wording import names_in_words
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import EvidenceCollected, SavedEvidence
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.messages.exchange import Collected, Report

log = logging.getLogger(__name__)

LATE_S: Final = 10.0  # after the first report; a launcher takes 5 s and reports twice a second


class HangInquiry:
    def __init__(self) -> None:
        self._heard: dict[str, Collected] = {}  # by node
        self._key: tuple[str, int] | None = None  # incident and attempt of the evidence in `_heard`
        self._first_at_s = 0.0
        self._judged: EvidenceCollected | None = None  # not journaled yet

    def note_saved(
        self, report: Report, now_s: float, journaled: Collection[tuple[str, int]]
    ) -> None:
        """Keep a launcher's report of its evidence; the fuller of two reports counts.

        ``journaled``: incident and attempt of the evidence on record. A launcher goes on reporting it, also to
        the next controller.
        """
        new = report.collected
        if new is None or self._is_judged(new) or (new.incident_id, new.attempt) in journaled:
            return
        if (new.incident_id, new.attempt) != self._key:
            self._key, self._heard = (new.incident_id, new.attempt), {}
            self._first_at_s = now_s
        before = self._heard.get(report.node)
        if before is None or not before.ranks:
            self._heard[report.node] = new

    def _is_judged(self, reported: Collected) -> bool:
        judged = self._judged
        return judged is not None and (judged.incident_id, judged.attempt) == (
            reported.incident_id,
            reported.attempt,
        )

    @property
    def is_open(self) -> bool:
        """Return whether a launcher has reported evidence that is not journaled yet."""
        return self._judged is not None or bool(self._heard)

    def due(
        self, nodes: Collection[str], finding: Finding | None, now_s: float
    ) -> EvidenceCollected | None:
        """Return the record, once all ``nodes`` have reported or are overdue.

        ``finding`` is the incident's newest, None if the incident is unknown. Returns the same record
        until `forget`.
        """
        if self._judged is None:
            self._judged = self._judge(nodes, finding, now_s)
        return self._judged

    def forget(self) -> None:
        """Note that the record is journaled."""
        self._judged = None

    def _judge(
        self, nodes: Collection[str], finding: Finding | None, now_s: float
    ) -> EvidenceCollected | None:
        if self._key is None or not self._heard:
            return None
        is_late = now_s - self._first_at_s >= LATE_S
        if not (is_late or set(nodes) <= set(self._heard)):
            return None
        received, (incident_id, attempt) = self._heard, self._key
        self._key, self._heard = None, {}
        saved = tuple(
            SavedEvidence(
                node,
                item.folder,
                item.files,
                item.size_bytes,
                item.took_s,
                item.notes,
                item.output_says,
            )
            for node, item in sorted(received.items())
        )
        if finding is None or finding.kind is not Kind.RANK_HUNG:
            return EvidenceCollected(incident_id, attempt, saved)
        ranks = [rank for item in received.values() for rank in item.ranks]
        try:
            judged = judge_evidence(
                finding,
                {rank.rank: rank.dump for rank in ranks if rank.dump is not None},
                {rank.rank: rank.stack for rank in ranks},
                frozenset({*finding.ranks, *finding.victims}),
            )
        except Exception as error:  # a verdict helps, but recovery works without it
            log.exception("the evidence of incident %s can't be judged", incident_id)
            return EvidenceCollected(incident_id, attempt, saved, reason=f"not judged: {error!r}")
        where = {rank.rank: node for node, item in received.items() for rank in item.ranks}
        accused, reason = judged.finding, judged.reason
        if accused != finding and accused.blame is Blame.RANK:
            on = sorted({where.get(rank, "") for rank in accused.ranks})
            accused = replace(accused, node=on[0] if len(on) == 1 else "")
            if len(on) > 1:
                reason += f"; they are on {_named(on)}, so no single node is to blame"
                accused = replace(accused, summary=f"no rank makes progress; {reason}")
        return EvidenceCollected(
            incident_id,
            attempt,
            saved,
            finding=accused if accused != finding else None,
            cause=judged.cause,
            reason=reason,
            confidence=judged.confidence,
        )


def _named(nodes: Sequence[str]) -> str:
    return names_in_words([node or "a node that reported nothing" for node in nodes])


def collection_for(ledger: Ledger) -> tuple[str | None, float]:
    """Return the incident whose evidence to save before the ranks are stopped, and the time for it.

    Only the evidence of a hang is worth a wait: in other failures the ranks are already dying.
    """
    incident, closing = ledger.incident, ledger.closing
    if incident is not None and incident.state.phase is Phase.FENCING:
        is_hung = incident.last_failure.finding.kind is Kind.RANK_HUNG
        return incident.state.incident_id, incident.policy.collect_s if is_hung else 0.0
    if closing is not None and closing.outcome.incident_id is not None:
        errors = ledger.errors
        is_hung = errors is not None and errors.symptom.kind is SymptomKind.HUNG
        return closing.outcome.incident_id, Policy().collect_s if is_hung else 0.0
    return None, 0.0
