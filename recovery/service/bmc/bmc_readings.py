"""Reads the BMCs of all known nodes once in a while, so that people learn of a failed BMC before it is needed.

A reading here is never proof that a node has no power, and decides nothing: it only becomes a
metric and a line in the log. A few threads read, other ones than `bmc_power` has, so a lost node
waits for none of them.
"""

import heapq
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from rankmend.redfish_session import BmcFault
from recovery.service.bmc.bmcs import BmcDirectory, NodeBmc, PowerState, fault_of, read_power

log = logging.getLogger(__name__)

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

# Readings at a time, each thread at most one a second: 8 readings take 2 to 3 % of a core (2.3 to 3.6 ms each, most
# of it the handshake). That is 2,400 in the default 5 minutes; with more nodes or slow BMCs a round takes longer.
CHECKS_AT_ONCE: Final = 8
FIRST_S_MAX: Final = 60.0  # a new node is first read within this time
AGAIN_S_MAX: Final = (
    300.0  # after a reading that failed: a blip must not look like a fault for a day
)
JITTER: Final = 0.1  # of the interval, to both sides: BMCs that began together are read apart
REFRESH_S: Final = 30.0  # between two looks at which nodes there are
LOOK_S: Final = 1.0  # of each thread


class PowerOffStage(Enum):
    """What became of a request to switch a node off."""

    ASKED = "asked"
    DONE = "done"  # the BMC took it; whether the power is off is read afterwards
    REFUSED = "refused"  # the BMC's answer
    FAILED = "failed"  # no answer that can be used: nobody knows whether it was taken
    WITHDRAWN = "withdrawn"  # not sent: the node reported again, or that was not known


@dataclass(slots=True)
class _OneBmc:
    state: PowerState | None = None
    state_unix_s: float = 0.0
    fault: BmcFault | None = None  # of the newest reading
    failures: Counter[BmcFault] = field(default_factory=Counter)


class BmcReadings:
    """The newest reading of each node's BMC, for /metrics and other readers; a collector of `prometheus_client`. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, _OneBmc] = {}
        self._checked: Collection[str] | None = None  # None: all
        # node: when (monotonic) its BMC rejected which credentials. Outlives the node's job: the next one must not try again.
        self._refused: dict[str, tuple[float, object]] = {}
        self._power_offs: Counter[PowerOffStage] = Counter()

    def note_state(self, node: str, state: PowerState, unix_s: float) -> None:
        with self._lock:
            item = self._of(node)
            item.state, item.state_unix_s, item.fault = state, unix_s, None
            self._refused.pop(node, None)

    def note_failure(
        self, node: str, fault: BmcFault, now_s: float, credentials: object = None
    ) -> bool:
        """Count a reading that gave no state; return whether that is news.

        ``credentials``: which were used, as in `NodeBmc.credentials`.
        """
        with self._lock:
            item = self._of(node)
            is_news = item.fault is not fault
            item.fault = fault
            item.failures[fault] += 1
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
            self._nodes = {node: item for node, item in self._nodes.items() if node in nodes}
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
            for node, item in self._nodes.items():
                if item.state is not None:
                    state.add_metric((node,), STATE_IDS[item.state])
                    read_at.add_metric((node,), item.state_unix_s)
                if self._checked is None or node in self._checked:
                    success.add_metric((node,), item.fault is None)
                for fault, count in item.failures.items():
                    failures.add_metric((node, fault.value), count)
            for stage in PowerOffStage:
                power_offs.add_metric((stage.value,), self._power_offs[stage])
        yield from (state, read_at, success, failures, power_offs)


def _words(kinds: type[Enum]) -> str:
    return ", ".join(str(kind.value) for kind in kinds)


class BmcCheck:
    def __init__(
        self,
        directory: BmcDirectory,
        readings: BmcReadings,
        clock: Clock,
        known_nodes: Callable[[], Collection[str]],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``known_nodes`` may wait, and raise RankmendError or what a Future raises that gave no result."""
        self._directory = directory
        self._readings = readings
        self._clock = clock
        self._known_nodes = known_nodes
        self._uniform = uniform
        self._lock = threading.Lock()
        self._bmcs: dict[str, NodeBmc | None] = {}
        self._at_s: dict[str, float] = {}  # when each is due; infinite while it is read
        self._due: list[tuple[float, str]] = []  # a heap; an entry counts if its time is the node's
        self._refreshed_at_s = float("-inf")
        self._is_closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"bmc-check-{number}", daemon=True)
            for number in range(CHECKS_AT_ONCE)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Read no more; a request that is under way ends within its timeout."""
        self._is_closing.set()

    def _run(self) -> None:
        while not self._is_closing.wait(LOOK_S):
            try:
                self.read_next()
            except Exception:
                log.exception("the check of BMCs failed")

    def read_next(self) -> bool:
        """Read the BMC that has been due longest, if any is; return whether one was."""
        taken = self._take()
        if taken is None:
            return False
        node, bmc = taken
        is_read = False
        try:
            is_read = self._read(node, bmc)
        finally:
            self._put_back(node, bmc, is_read=is_read)
        return True

    def _take(self) -> tuple[str, NodeBmc] | None:
        with self._lock:
            now_s = self._clock.now_s()
            if now_s - self._refreshed_at_s >= REFRESH_S:
                self._refresh(now_s)
            while self._due and self._due[0][0] <= now_s:
                at_s, node = heapq.heappop(self._due)
                bmc = self._bmcs.get(node)
                if bmc is not None and self._at_s.get(node) == at_s:
                    self._at_s[node] = float("inf")
                    return node, bmc
            return None

    def _refresh(self, now_s: float) -> None:
        self._refreshed_at_s = now_s
        try:
            nodes = {*self._known_nodes(), *self._directory.named}
        except (RankmendError, FutureTimeoutError, CancelledError) as error:
            log.debug("which nodes there are is not known: %r", error)
            return
        known = self._bmcs
        self._bmcs = {}
        for node in sorted(nodes)[:NODES_MAX]:
            self._bmcs[node] = bmc = known[node] if node in known else self._directory.find(node)
            if node not in known and bmc is not None and bmc.rule.check_s > 0:
                pause_s = self._uniform(0.0, min(bmc.rule.check_s, FIRST_S_MAX))
                self._schedule(node, now_s + pause_s)
        for node in known.keys() - self._bmcs.keys():
            self._at_s.pop(node, None)
        found = {node: bmc for node, bmc in self._bmcs.items() if bmc is not None}
        checked = {node for node, bmc in found.items() if bmc.rule.check_s > 0}
        self._readings.keep(found.keys(), checked, now_s)

    def _put_back(self, node: str, bmc: NodeBmc, *, is_read: bool) -> None:
        check_s = bmc.rule.check_s if is_read else min(bmc.rule.check_s, AGAIN_S_MAX)
        pause_s = check_s * self._uniform(1.0 - JITTER, 1.0 + JITTER)
        with self._lock:
            if node in self._at_s:
                self._schedule(node, self._clock.now_s() + pause_s)

    def _schedule(self, node: str, at_s: float) -> None:
        self._at_s[node] = at_s
        heapq.heappush(self._due, (at_s, node))

    def _read(self, node: str, bmc: NodeBmc) -> bool:
        """Return whether there is a power state."""
        credentials = bmc.credentials()
        if not self._readings.may_ask(node, self._clock.now_s(), credentials):
            return False
        try:
            state = read_power(bmc, self._clock)
            self._readings.note_state(node, state, self._clock.unix_s())
            return True
        except RankmendError as error:
            now_s = self._clock.now_s()
            if self._readings.note_failure(node, fault_of(error), now_s, credentials):
                log.warning("cannot read a BMC", extra={"node": node, "error": str(error)})
        except Exception:
            log.exception("cannot read a BMC", extra={"node": node})
            self._readings.note_failure(node, BmcFault.INTERNAL, self._clock.now_s())
        return False
