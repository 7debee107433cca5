"""Reads the BMCs of all known nodes once in a while, so that people learn of one that fails before it is needed.

A reading here is never proof that a node has no power, and decides nothing: it only becomes a metric and a
line in the log. A few threads read, other ones than `bmc_power` has, so a lost node waits for none of them.
"""

import heapq
import logging
import random
import threading
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from rankmend.redfish_session import BmcFault
from recovery.service.bmc_readings import NODES_MAX, BmcReadings
from recovery.service.bmcs import BmcDirectory, NodeBmc, fault_of, read_power

log = logging.getLogger(__name__)

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
