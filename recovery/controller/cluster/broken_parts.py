"""Which shared parts of the fleet are known to be broken now: by their own alert, or as what explains the nodes that are lost. Pure.

An alert is of a part where its node is the name of a switch, rack, feed or loop of the topology and no node, as an SNMP exporter's rule names the switch.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from detectors.finding import Severity
from detectors.parts.fleet_parts import FleetPart, FleetParts
from detectors.parts.shared_blame import PlacedWorker, explain_shared
from detectors.parts.site_units import UnitVerdict
from detectors.wording import counted
from recovery.controller.cluster.active_alerts import ActiveAlert

# Findings that say that a whole node, or its way to the others, is gone.
AGENT_DOWN: Final = "RankmendAgentDown"
LOSSES: Final = frozenset({AGENT_DOWN, "RankmendNicPortDown"})


def find_broken_parts(
    parts: FleetParts,
    known: Collection[str],
    alerts: Iterable[ActiveAlert],
    units: Iterable[UnitVerdict] = (),
    doubted: Collection[str] = (),
    percent: float = 100.0,
) -> Mapping[FleetPart, str]:
    """Return the broken parts, each with its proof, as the rest of a sentence. ``known``: all nodes that would have reported a fault.

    ``doubted``: alerts that accuse too much of the fleet, by identity; ``percent``: nodes_held_percent. A rule that accuses parts with more
    nodes below them than that, beside those of one part, is doubted like one that accuses nodes (`doubtful_alerts`): no job must find all of
    its spares barred by a mistake in a rule about switches.
    """
    if not parts.on:
        return {}
    # A sender limited to jobs speaks for these, and for no part that others share.
    firing = [
        alert
        for alert in alerts
        if alert.is_firing and alert.node and not alert.sender.is_of_jobs
        if alert.target.key not in doubted
    ]
    lost = {alert.node for alert in firing if alert.target.alertname in LOSSES}
    found = find_blamed(known, lost, parts)
    by_name: dict[str, list[FleetPart]] = {}
    for part in parts.nodes_of:
        by_name.setdefault(part.name, []).append(part)
    accused: dict[tuple[str, str], set[FleetPart]] = {}  # by sender and rule
    for alert in firing:
        if alert.target.severity == Severity.CRITICAL.value and alert.node not in parts.on:
            rule = alert.sender.name, alert.target.alertname
            accused.setdefault(rule, set()).update(by_name.get(alert.node, ()))
    for (_sender, name), together in accused.items():
        if not _is_mad(together, parts, percent):
            found |= dict.fromkeys(together, f"the alert {name} accuses")
    for unit in units:
        if unit.is_broken:
            found[FleetPart(unit.kind.part, unit.unit)] = f"is at fault: {unit.in_words()}"
    return found


def _is_mad(accused: Collection[FleetPart], parts: FleetParts, percent: float) -> bool:
    """Return whether too many nodes hang on these parts, beside those of the one with the most, to believe the rule."""
    below = sorted((parts.nodes_of[part] for part in accused), key=len)
    if len(below) < 2:
        return False
    rest = set[str]().union(*below[:-1]) - below[-1]
    return 100.0 * len(rest) > percent * len(parts.on)


def find_blamed(
    nodes: Collection[str], lost: Collection[str], parts: FleetParts
) -> dict[FleetPart, str]:
    """Return the parts that are named as what explains the lost ones of all nodes, each with its reason; one lost node blames none."""
    if len(lost) < 2:
        return {}
    workers = [PlacedWorker(node, node) for node in {*nodes, *lost}]
    return {
        item.part: f"is blamed: {len(item.bad)} of {counted(len(item.bad) + item.sound, 'node')} below it are lost"
        for item in explain_shared(workers, lost, parts).named
    }
