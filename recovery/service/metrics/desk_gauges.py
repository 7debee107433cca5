"""Metrics of what is requested of Slurm, or of Kubernetes, read from its ledger when Prometheus asks."""

from collections import Counter
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from recovery.journal.slurm_records import SlurmOutcome
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.schedulers.slurm.limits import NodeLimits
from recovery.schedulers.slurm.requests import SchedulerAction
from recovery.schedulers.slurm.return_rules import Stay

_OPEN: Final = "open"


class DeskGauges(Collector):
    def __init__(self, prefix: str, registry: CollectorRegistry, limits: type[NodeLimits]) -> None:
        self._prefix = f"{prefix}_{limits.table}"
        self._manager = limits.manager
        self._desk: RequestDesk | None = None
        registry.register(self)

    def watch(self, desk: RequestDesk) -> None:
        self._desk = desk

    def collect(self) -> list[GaugeMetricFamily]:
        requests = GaugeMetricFamily(
            f"{self._prefix}_requests",
            f"Requests to {self._manager} that are kept, by action and outcome: open, done, dry, left, refused, failed.",
            labels=("action", "outcome"),
        )
        drained = GaugeMetricFamily(
            f"{self._prefix}_nodes_drained",
            f"Nodes that are drained in {self._manager} by rankmend.",
        )
        staying = GaugeMetricFamily(
            f"{self._prefix}_nodes_staying",
            f"Nodes that are drained in {self._manager} by rankmend, by what keeps them out: person, offender, busy, silent, "
            "waiting, paused, checking, asked.",
            labels=("stay",),
        )
        passed = GaugeMetricFamily(
            f"{self._prefix}_node_check_passed",
            "1 if the newest check of a node that rankmend has drained has passed, else 0.",
            labels=("node",),
        )
        answering = GaugeMetricFamily(
            f"{self._prefix}_answering",
            f"1 if {self._manager} answered when it was asked last, else 0.",
        )
        desk = self._desk
        if desk is not None and desk.works_here:  # another controller tells the rest
            ledger = desk.ledger
            counts = Counter(
                (work.request.action, work.ended.outcome.value if work.ended else _OPEN)
                for work in ledger.works.values()
            )
            for action in SchedulerAction:
                for outcome in (_OPEN, *(item.value for item in SlurmOutcome)):
                    requests.add_metric([action.value, outcome], counts[action, outcome])
            drained.add_metric([], len(ledger.ours))
            stays = Counter(standing.stay for standing in desk.returns.standings.values())
            for stay in Stay:
                staying.add_metric([stay.value], stays[stay])
            for node in ledger.ours:
                if (checked := ledger.history(node).checked) is not None:
                    passed.add_metric([node], checked.is_passed)
            if desk.bench.is_answering is not None:
                answering.add_metric([], desk.bench.is_answering)
        return [requests, drained, staying, passed, answering]
