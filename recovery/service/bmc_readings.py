"""What the nodes' BMCs have answered, for /metrics and for those that ask them. For any thread."""

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rankmend.redfish_session import BmcFault
from recovery.service.bmcs import PowerState

REFUSED_S: Final = 600.0  # after a password that was rejected: more tries may lock the account
NODES_MAX: Final = 20_000  # of which something is kept, and shown
_PREFIX: Final = "rankmend_controller"
STATE_IDS: Final = {
    PowerState.OFF: 0,
    PowerState.ON: 1,
    PowerState.POWERING_ON: 2,
    PowerState.POWERING_OFF: 3,
    PowerState.PAUSED: 4,
}


class PowerOffStage(Enum):
    """What became of a request to switch a node off."""

    ASKED = "asked"
    DONE = "done"  # the BMC took it; whether the power is off is read afterwards
    REFUSED = "refused"  # the BMC's answer
    FAILED = "failed"  # no answer that can be used: nobody knows whether it was taken
    WITHDRAWN = "withdrawn"  # not sent: the node was heard again, or nobody could say


@dataclass(slots=True)
class _OneBmc:
    state: PowerState | None = None
    state_unix_s: float = 0.0
    fault: BmcFault | None = None  # of the newest reading
    failures: Counter[BmcFault] = field(default_factory=Counter)


class BmcReadings:
    """The newest reading of each node's BMC; a collector of `prometheus_client`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, _OneBmc] = {}
        self._checked: Collection[str] | None = None  # None: all
        # node: when (monotonic) its BMC rejected which credentials. Outlives the node's job: the next one must not try again.
        self._refused: dict[str, tuple[float, object]] = {}
        self._power_offs: Counter[PowerOffStage] = Counter()

    def note_state(self, node: str, state: PowerState, unix_s: float) -> None:
        with self._lock:
            one = self._of(node)
            one.state, one.state_unix_s, one.fault = state, unix_s, None
            self._refused.pop(node, None)

    def note_failure(
        self, node: str, fault: BmcFault, now_s: float, credentials: object = None
    ) -> bool:
        """Count a reading that gave no state; return whether that is news.

        ``credentials``: which were used, as `NodeBmc.credentials` says.
        """
        with self._lock:
            one = self._of(node)
            is_news = one.fault is not fault
            one.fault = fault
            one.failures[fault] += 1
            if fault is BmcFault.REFUSED:
                self._refused[node] = (now_s, credentials)
            return is_news

    def note_power_off(self, stage: PowerOffStage) -> None:
        with self._lock:
            self._power_offs[stage] += 1

    def may_ask(self, node: str, now_s: float, credentials: object = None) -> bool:
        """Return whether the node's BMC has not rejected these credentials lately."""
        with self._lock:
            refused_at_s, refused = self._refused.get(node, (float("-inf"), None))
            return now_s - refused_at_s >= REFUSED_S or refused != credentials

    def keep(self, nodes: Collection[str], checked: Collection[str], now_s: float) -> None:
        """Forget all other nodes, but for a rejected password.

        ``checked``: those that are read again and again. Of others nobody learns that they can be read again.
        """
        with self._lock:
            self._checked = checked
            self._nodes = {node: one for node, one in self._nodes.items() if node in nodes}
            self._refused = {
                node: (at_s, credentials)
                for node, (at_s, credentials) in self._refused.items()
                if now_s - at_s < REFUSED_S
            }

    def _of(self, node: str) -> _OneBmc:
        if node not in self._nodes and len(self._nodes) >= NODES_MAX:
            del self._nodes[next(iter(self._nodes))]
        return self._nodes.setdefault(node, _OneBmc())

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            f"{_PREFIX}_bmc_power_state_id",
            "Power state that the node's BMC answered last, by node: 0 off, 1 on, 2 powering on, 3 powering off, 4 paused.",
            labels=("node",),
        )
        read_at = GaugeMetricFamily(
            f"{_PREFIX}_bmc_read_timestamp_seconds",
            "Unix time at which the node's BMC last answered with a power state, by node.",
            labels=("node",),
        )
        success = GaugeMetricFamily(
            f"{_PREFIX}_bmc_success",
            "1 if the newest reading of the node's BMC gave a power state, else 0, by node that is checked.",
            labels=("node",),
        )
        failures = CounterMetricFamily(
            f"{_PREFIX}_bmc_failures",
            f"Readings of the node's BMC that gave no power state, by node and kind: {_words(BmcFault)}.",
            labels=("node", "kind"),
        )
        power_offs = CounterMetricFamily(
            f"{_PREFIX}_power_offs",
            f"Requests to a BMC to switch a lost node off, by stage: {_words(PowerOffStage)}.",
            labels=("stage",),
        )
        with self._lock:
            for node, one in self._nodes.items():
                if one.state is not None:
                    state.add_metric((node,), STATE_IDS[one.state])
                    read_at.add_metric((node,), one.state_unix_s)
                if self._checked is None or node in self._checked:
                    success.add_metric((node,), one.fault is None)
                for fault, count in one.failures.items():
                    failures.add_metric((node, fault.value), count)
            for stage in PowerOffStage:
                power_offs.add_metric((stage.value,), self._power_offs[stage])
        yield from (state, read_at, success, failures, power_offs)


def _words(kinds: type[Enum]) -> str:
    return ", ".join(str(one.value) for one in kinds)
