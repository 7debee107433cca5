"""The controller's gauges of alerts that call nodes otherwise than launchers do."""

from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from recovery.cluster.node_names import NoMatch
from recovery.cluster.unmatched_names import ToldNames
from recovery.messages.outside import NameMatch

_MATCHES: Final = (NameMatch.CASE, NameMatch.SHORT, NameMatch.ADDRESS)


class NameGauges:
    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._matched = Gauge(
            f"{prefix}_alerts_matched",
            "Firing alerts whose node its launcher calls otherwise, by how they were matched: case, short, address.",
            ("match",),
            registry=registry,
        )
        self._unmatched = Gauge(
            f"{prefix}_alerts_unmatched",
            "Firing alerts whose node is no launcher's, by reason: unknown, ambiguous, domain, limits, unheard. They count for no job.",
            ("reason",),
            registry=registry,
        )
        self.note(ToldNames())

    def note(self, told: ToldNames) -> None:
        """Take what the newest look at the alerts has found."""
        for match in _MATCHES:
            self._matched.labels(match.value).set(told.alerts_matched.get(match, 0))
        for reason in NoMatch:
            self._unmatched.labels(reason.value).set(told.alerts_unmatched.get(reason, 0))
