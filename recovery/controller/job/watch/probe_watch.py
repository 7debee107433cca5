"""Has idle nodes test the network of a job whose communication is slow: decisions of `recovery.controller.job.watch.fabric_probing`, and their effects.

A probe is on record before any request is sent, and requested with each answer to a report as long as it goes on. What is kept here is lost with this
process: another one ends what it finds under way, and its nodes, without further requests, stop by themselves. For the controller's thread.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from detectors.parts.fleet_parts import FleetParts, SharedKind, with_domains
from recovery.controller.job.situation import Situation
from recovery.controller.job.watch.fabric_probing import (
    decide_end,
    decide_probe,
    judge_probe,
    nearest_first,
    slow_in_network,
)
from recovery.journal.ledger import Ledger
from recovery.journal.observation_records import FabricProbeAsked, FabricProbeEnded
from recovery.journal.records import Record
from recovery.messages.exchange import Report
from recovery.messages.probing import ProbeRequest, ProbeTold

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # between two looks whether a probe is due: ranks are slow for minutes
REFUSED_S: Final = 10.0  # until it is tried again where the cluster refuses


@dataclass(slots=True)
class _UnderWay:
    """A probe that this process has requested."""

    asked: FabricProbeAsked
    began_at_s: float
    secret: str = field(default_factory=lambda: secrets.token_hex(32))
    told: dict[str, ProbeTold] = field(default_factory=dict)


class ProbeWatch:
    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._now: _UnderWay | None = None
        self._look_at_s = float("-inf")
        self._refusal = ""
        self.requests: Mapping[str, ProbeRequest] = {}  # by node; replaced as a whole

    def receive(self, report: Report, ledger: Ledger) -> None:
        """Take in what a node reports of its part."""
        now, reported = self._now, report.probe
        if now is None or reported is None or reported.probe_id != now.asked.probe_id:
            return
        member = ledger.members.get(report.node)
        if report.node in now.asked.nodes and member is not None:
            now.told[report.node] = reported

    def due(self, ledger: Ledger, now_s: float) -> list[Record]:
        """Return the records that are due: of a probe that begins, can't begin, or has ended. `act` follows."""
        requested = ledger.probes.open
        if requested is not None:
            return self._end(ledger, requested, now_s)
        if not ledger.slow or now_s < self._look_at_s or not self._situation.is_taken_up:
            return []
        self._look_at_s = now_s + LOOK_S
        return self._begin(ledger, now_s)

    def act(self, records: Sequence[Record], now_s: float) -> None:
        """Do what follows from these records; the nodes and the others learn of it once they are durable."""
        for record in records:
            if isinstance(record, FabricProbeAsked) and not record.is_dry:
                self._now = _UnderWay(record, now_s)
            elif isinstance(record, FabricProbeEnded):
                self._now = None
                self._situation.follow(partial(self._situation.pool.note_probe_ended, record))

    def ask(self, ledger: Ledger) -> None:
        """Have the parts of the probe requested from its nodes, and from no others."""
        now = self._now
        if now is None or ledger.probes.open != now.asked:
            self.requests = {}
        else:
            self.requests = self._requests(ledger, now)

    def _begin(self, ledger: Ledger, now_s: float) -> list[Record]:
        situation = self._situation
        job_id, pool = situation.settings.job_id, situation.pool
        rules = pool.probe_rules(job_id)
        last = ledger.probes.asked
        since_s = None if last is None else situation.since_record_s(ledger.probes.asked_at)
        idle, training = self._able(ledger, now_s)
        own = [now.found.finding.node for now in slow_in_network(ledger)]
        near = nearest_first(idle, own, self._parts())
        found = decide_probe(ledger, rules, near, training, since_s, job_id)
        if isinstance(found, FabricProbeAsked) and not found.is_dry:
            refusal = pool.refuse_probe(found)
            if refusal is not None:
                if refusal != self._refusal:
                    log.info("no probe of the network now", extra={"reason": refusal})
                self._refusal, self._look_at_s = refusal, now_s + REFUSED_S
                return []
        return [] if found is None else [found]

    def _able(self, ledger: Ledger, now_s: float) -> tuple[list[str], list[str]]:
        """Return the nodes that can take part: those without ranks, and those with ranks."""
        situation = self._situation
        nodes = situation.nodes
        able = [
            node
            for node, member in nodes.usable(ledger, now_s).items()
            if member.peer_endpoint is not None
            and situation.pool.unusable(node) is None
            and (report := nodes.report_of(node)) is not None
            and report.can_probe
        ]
        placed = {place.node for place in ledger.placement}
        able.sort(key=lambda node: (ledger.members[node].joined, node))
        return (
            [node for node in able if node not in placed],
            [node for node in able if node in placed],
        )

    def _parts(self) -> FleetParts:
        return with_domains(self._situation.pool.parts, self._situation.nodes.domains())

    def _end(self, ledger: Ledger, requested: FabricProbeAsked, now_s: float) -> list[Record]:
        now = self._now
        reported = {} if now is None else now.told
        age_s = 0.0 if now is None else now_s - now.began_at_s
        first = reported.get(requested.nodes[0])
        ended = decide_end(ledger, requested, reported, age_s)
        if ended is not None:
            return [ended]
        if first is None or first.verdict is None:
            return []
        nics = self._situation.causes.nics
        judged, explained = judge_probe(ledger, requested, first, nics, self._parts())
        return [judged, *explained]

    def _requests(self, ledger: Ledger, now: _UnderWay) -> dict[str, ProbeRequest]:
        requested, limits = now.asked, now.asked.limits
        first = ledger.members.get(requested.nodes[0])
        if first is None or first.peer_endpoint is None:
            return {}
        reported = now.told.get(requested.nodes[0])
        leaf_of = self._leaves(requested)
        return {
            node: ProbeRequest(
                probe_id=requested.probe_id,
                place=place,
                count=len(requested.nodes),
                secret=now.secret,
                address=first.peer_endpoint.address,
                port=0 if place == 0 or reported is None else reported.port,
                seconds=limits.seconds,
                limit_s=limits.limit_s,
                bytes_per_s=limits.bytes_per_s,
                bytes_max=limits.bytes_max,
                rails=requested.rails,
                is_beside_ranks=node in requested.training,
                leaf_of=leaf_of if place == 0 else {},
            )
            for place, node in enumerate(requested.nodes)
        }

    def _leaves(self, requested: FabricProbeAsked) -> dict[str, str]:
        parts = self._parts()
        named = {node: parts.name_of(node, SharedKind.LEAF) for node in requested.nodes}
        return {node: leaf for node, leaf in named.items() if leaf is not None}
