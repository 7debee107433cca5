"""The nodes of a simulated cluster: which are faulty, silent or in repair, and what happens next to them."""

import heapq
from dataclasses import dataclass, field
from typing import Final

from recovery.lab.simulation.faults import NodeFault

PERSON: Final = "operator"
REBOOT_S: Final = (
    1800.0  # a node that fell silent and has no lasting fault: half an hour (NVSentinel, issue 126)
)


def node_name(number: int) -> str:
    return f"node-{number:06d}"


def node_number(name: str) -> int:
    return int(name.rpartition("-")[2])


@dataclass(frozen=True, slots=True)
class Happens:
    """What happens at a moment: exactly one of the fields is set."""

    fault: NodeFault | None = None  # a new one
    back: str | None = None  # a node comes back from its repair or check
    again: tuple[int, NodeFault] | None = (
        None  # a fault that stayed shows again, if this attempt still trains
    )
    slow: NodeFault | None = None  # a slow node is found


@dataclass
class Machines:
    bad: dict[str, NodeFault] = field(default_factory=dict)  # by node: faults that stay
    silent: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)  # in repair or in a check
    slow: dict[str, NodeFault] = field(default_factory=dict)
    alerts: list[tuple[float, str, NodeFault]] = field(default_factory=list)  # that will arrive
    _due: list[tuple[float, int, Happens]] = field(default_factory=list)
    _serial: int = 0

    def plan(self, at_s: float, happens: Happens) -> None:
        self._serial += 1
        heapq.heappush(self._due, (at_s, self._serial, happens))

    def next_s(self) -> float:
        """Return when something happens next."""
        return self._due[0][0] if self._due else float("inf")

    def pop(self) -> tuple[float, Happens]:
        at_s, _serial, happens = heapq.heappop(self._due)
        return at_s, happens

    def send_away(self, node: str, now_s: float, check_s: float) -> None:
        """Have a node that the job has left repaired, or checked where it has no fault."""
        if node in self.away:
            return
        self.away.add(node)
        fault = self.bad.get(node) or self.slow.get(node)
        if fault is not None:
            lasts_s = fault.repair_s
        elif node in self.silent:
            lasts_s = REBOOT_S
        else:
            lasts_s = check_s
        self.plan(now_s + lasts_s, Happens(back=node))

    def bring_back(self, node: str) -> None:
        self.away.discard(node)
        self.silent.discard(node)
        self.bad.pop(node, None)
        self.slow.pop(node, None)

    def take_alerts(self, now_s: float) -> list[tuple[str, NodeFault]]:
        """Return the alerts that have arrived by now, each once."""
        arrived = [(node, fault) for at_s, node, fault in self.alerts if at_s <= now_s]
        self.alerts = [alert for alert in self.alerts if alert[0] > now_s]
        return arrived
