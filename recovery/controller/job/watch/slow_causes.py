"""Finds out why a slow rank is slow: hardware of its node and of some peers, judged once.

The journal's record of a slow rank makes the orders of a few nodes ask for hardware readings
(`nodes_to_read`); the launchers tell, each its own; `detectors.slow.causes` compares. The record that
comes of it is made when all have reported, or when those that have not are overdue. Nothing waits.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from detectors.finding import Evidence, Kind
from detectors.parts.fleet_parts import NO_PARTS, FleetParts
from detectors.parts.shared_blame import SharedBlame
from detectors.slow.cause_table import METRICS
from detectors.slow.causes import explain_slow
from detectors.slow.explanation import SlowExplanation, SlowPeriod, SlowPlace, SlowSection
from detectors.slow.hardware_reading import HardwareReading, reading_of
from detectors.wording import counted
from recovery.controller.job.watch.slow_together import explain_together
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Ledger
from recovery.journal.observation_records import SlowExplained, SlowFound
from recovery.messages.exchange import Hardware, Report, ToldFinding

log = logging.getLogger(__name__)

PEERS_MAX: Final = 8  # nodes beside the slow ranks' own: a median needs no more
# A launcher reads its agent's page three times over 12 s, and reports twice a second; with
# thousands of nodes every few seconds.
PATIENCE_S: Final = 30.0
BEFORE_S: Final = 4.0  # two looks: a rank may have been slow for so long when a look first saw it
_RANK_NIC: Final = "rankmend_rank_nic_info"
LINES_MAX: Final = 8  # lines of evidence in a record
_SERIES_MAX: Final = 2_000  # per node; launchers report at most as many
_SECTIONS: Final = {section.value: section for section in SlowSection}


class SlowInquiry:
    def __init__(self) -> None:
        self._asked = 0
        self._asked_at_s = 0.0
        self._heard: dict[str, list[HardwareReading]] = {}
        self._notes: dict[str, str] = {}
        self.nics: Mapping[int, str] = {}  # of ranks, as far as their nodes have reported

    def note_hardware(self, report: Report, now_s: float) -> None:
        """Keep what a node's hardware shows, dated by this clock."""
        reported = report.hardware
        if reported is None or reported.asked != self._asked or report.node in self._heard:
            return
        self._heard[report.node] = list(_readings(reported, report.node, now_s))
        if reported.note:
            self._notes[report.node] = reported.note

    def due(
        self,
        ledger: Ledger,
        placement: Sequence[Placement],
        now_s: float,
        parts: FleetParts = NO_PARTS,
    ) -> list[SlowExplained]:
        """Return the records that are due: one for each slow rank whose cause was not requested yet."""
        waiting = unexplained(ledger)
        number = asked_number(ledger)
        if number != self._asked:
            self._asked, self._asked_at_s = number, now_s
            self._heard, self._notes = {}, {}
        if not waiting:
            return []
        nodes = nodes_to_read(ledger, placement)
        is_late = now_s - self._asked_at_s >= PATIENCE_S
        if not (nodes <= set(self._heard) or is_late):
            return []
        slow = [item.found for item in ledger.slow.values()]
        nics = self.nics = {**self.nics, **self._nics(ledger.job_id)}
        return [
            _with_part(
                self._explain(found, ledger.job_id, now_s),
                explain_together(found, slow, placement, nics, parts),
                knows_parts=bool(parts.on),
            )
            for found in waiting
        ]

    def _nics(self, job_id: str | None) -> dict[int, str]:
        """Return the NIC that each rank uses, as far as its node has reported; of several none."""
        found: dict[int, set[str]] = {}
        for readings in self._heard.values():
            for reading in readings:
                labels = dict(reading.labels)
                if (
                    reading.metric == _RANK_NIC
                    and labels.get("job_id") == job_id
                    and reading.device
                ):
                    rank = labels.get("rank", "")
                    if rank.isdecimal():
                        found.setdefault(int(rank), set()).add(reading.device)
        return {rank: next(iter(nics)) for rank, nics in found.items() if len(nics) == 1}

    def _explain(self, found: SlowFound, job_id: str | None, now_s: float) -> SlowExplained:
        node = found.finding.node
        accused = SlowPlace(
            _SECTIONS.get(found.section, SlowSection.UNKNOWN),
            found.rank,
            node or None,
            None,
            job_id,
        )
        onset_s = self._asked_at_s - found.finding.since_age_s - BEFORE_S
        readings = [item for received in self._heard.values() for item in received]
        first_s = min((reading.at_s for reading in readings), default=onset_s)
        window = SlowPeriod(first_s, now_s, None if found.is_always else onset_s)
        try:
            (why,) = explain_slow([accused], readings, window)
        except Exception as error:  # a cause is a help; the finding stands without
            log.exception("why rank %d is slow can't be judged", found.rank)
            return SlowExplained(found.attempt, found.rank, "", f"not judged: {error!r}", 0.0, ())
        notes = () if not self._notes.get(node) else (Evidence(node, self._notes[node]),)
        if node not in self._heard:
            notes = (
                Evidence(node, f"reported nothing about its hardware within {PATIENCE_S:g} s"),
            )
        best = why.causes[0] if why.causes else None
        return SlowExplained(
            found.attempt,
            found.rank,
            "" if best is None else best.cause,
            why.reason,
            0.0 if best is None else best.confidence,
            (*_lines(why), *notes),
        )


def _with_part(why: SlowExplained, blame: SharedBlame, *, knows_parts: bool) -> SlowExplained:
    said = blame.in_words("rank")
    if not said or not (blame.part or knows_parts):
        return why
    together = f"{counted(blame.bad, 'rank')} became slow together: {said}"
    reason = f"{why.reason}; {together}" if blame.part else why.reason
    lines = (*why.evidence, Evidence("shared parts", together))
    return replace(why, reason=reason, evidence=lines, part=blame.part)


def _lines(why: SlowExplanation) -> tuple[Evidence, ...]:
    lines = [line for cause in why.causes for line in cause.evidence]
    lines += [Evidence("hardware, nearby", text) for text in why.beside]
    if why.looked_at and not why.causes:
        lines.append(Evidence("hardware", f"checked: {', '.join(why.looked_at)}"))
    if why.missing:
        lines.append(Evidence("hardware", f"not measured: {', '.join(why.missing)}"))
    return tuple(lines[:LINES_MAX])


def _readings(reported: Hardware, node: str, now_s: float) -> list[HardwareReading]:
    return [
        reading_of(series.metric, dict(series.labels), value, now_s - age_s, node)
        for series in reported.series[:_SERIES_MAX]
        if series.metric in METRICS
        for age_s, value in series.points
        if age_s >= 0
    ]


def unexplained(ledger: Ledger) -> list[SlowFound]:
    """Return the slow ranks of which nobody knows yet why."""
    return [item.found for item in ledger.slow.values() if item.why is None]


def asked_number(ledger: Ledger) -> int:
    """Return the number of the newest record because of which hardware is requested; 0: none is requested."""
    return max((item.number for item in ledger.slow.values() if item.why is None), default=0)


def nodes_to_read(ledger: Ledger, placement: Sequence[Placement]) -> set[str]:
    """Return the nodes whose hardware is requested: of the unexplained slow ranks, and some peers."""
    waiting = {found.rank for found in unexplained(ledger)}
    own = {place.node for place in placement if waiting & set(place.ranks)}
    slow = set(ledger.slow)
    peers = [p.node for p in placement if p.node not in own and not slow & set(p.ranks)]
    step = max(1, -(-len(peers) // PEERS_MAX))
    return own | set(peers[::step]) if own else set()


def told_findings(
    ledger: Ledger, ranks: Collection[int], *, is_first: bool
) -> tuple[ToldFinding, ...]:
    """Return what the agent of a node with these ranks is to know of the job.

    A slow rank as soon as it is known why, so that its alert says so from the start; the newest
    incident of the job on the culprits' nodes, and on the first one where nobody is accused.
    """
    reported = [
        ToldFinding(
            f"slow-{item.number}",
            item.found.finding.kind.value,
            (item.found.rank,),
            item.found.section,
            item.why.cause,
            round(item.found.factor, 3),
        )
        for item in ledger.slow.values()
        if item.why is not None and item.found.rank in ranks
    ]
    if ledger.fault is not None:
        incident_id, finding = ledger.fault
        if finding.kind is Kind.NUMBERS_WRONG:
            return tuple(
                reported
            )  # no fault of a rank; and agents close on a kind that they don't know
        own = tuple(rank for rank in finding.ranks if rank in ranks)
        if own or (is_first and not finding.ranks):
            reported.append(ToldFinding(incident_id, finding.kind.value, own))
    return tuple(reported)
