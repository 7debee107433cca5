"""Reads from BMCs whether silent nodes have power, and switches lost nodes off.

Source: Redfish, DSP0266: `PowerState` of a ComputerSystem.
"""

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from rankmend.redfish_session import BmcFault
from recovery.journal.cluster_records import PowerOffAsked
from recovery.schedulers.slurm.desk_lease import act_timeout_s
from recovery.service.bmc.bmc_readings import NODES_MAX, BmcReadings, PowerOffStage
from recovery.service.bmc.bmcs import (
    BmcDirectory,
    NodeBmc,
    PowerState,
    fault_of,
    force_off,
    read_power,
)

log = logging.getLogger(__name__)

# Between the two readings. A system that restarts passes through Off for about as long (IPMI 2.0, 28.3: a
# power cycle keeps the power off for at least a second), which is as good a proof: no process outlives it.
PAUSE_S: Final = 1.0
AGAIN_S: Final = 1.0  # after a reading that proves nothing, while the node stays silent
_REFUSALS: Final = frozenset({BmcFault.REFUSED, BmcFault.STATUS})
SWITCHES_AT_ONCE: Final = (
    4  # apart from readings: BMCs that hang must not hold up a request until it is out of date
)
THREADS: Final = 16  # a rack that loses its power: 16 nodes at once, each within seconds


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of one node."""

    silence: object
    is_off: bool = False
    is_busy: bool = False  # a thread reads it
    again_at_s: float = 0.0
    is_on: bool = False  # by the newest reading
    outcome: str = ""  # of the newest reading, as it was logged


class BmcPower:
    """The power of nodes by their BMCs (`recovery.controller.job.node_power.PowerReader`). For any thread.

    A few threads read, so a BMC that hangs delays no job and no other BMC for long. Only two
    answers `Off` over separate connections, with a pause between them, count as proof. Whatever
    else a BMC does (On, PoweringOff, an error, a redirect, an answer that is too long or too late)
    proves nothing, and is logged when it changes.
    """

    def __init__(
        self,
        directory: BmcDirectory,
        clock: Clock,
        readings: BmcReadings,
        pause_s: float = PAUSE_S,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``left_s``: of the lease under which this controller switches nodes off."""
        self._left_s = left_s
        self._directory = directory
        self._readings = readings
        self._clock = clock
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._is_closing = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="bmc")
        self._switches = ThreadPoolExecutor(SWITCHES_AT_ONCE, thread_name_prefix="bmc-off")

    def close(self) -> None:
        """Read no more; a request that is under way ends within its timeout."""
        with self._lock:
            self._is_closing.set()
        for pool in (self._pool, self._switches):
            pool.shutdown(wait=False, cancel_futures=True)

    def is_off(self, node: str, silence: object, /) -> bool:
        with self._lock:
            known = self._known.get(node) or _Known(silence)
            if known.silence != silence:
                known = replace(known, silence=silence, is_off=False, is_on=False)
            self._keep(node, known)
            if known.is_off or known.is_busy or self._is_closing.is_set():
                return known.is_off
            now_s = self._clock.now_s()
            if now_s < known.again_at_s:
                return False
            bmc = self._directory.find(node)
            if bmc is not None and self._readings.may_ask(node, now_s, bmc.credentials()):
                self._keep(node, replace(known, is_busy=True))
                self._pool.submit(self._read_twice, node, bmc, silence)
            return False

    def is_on(self, node: str) -> bool:
        """Return whether the newest reading, in the node's present silence, was `On`."""
        with self._lock:
            known = self._known.get(node)
            return known is not None and known.is_on

    def switch_off(self, node: str, is_lost: Callable[[], bool]) -> None:
        """Ask the node's BMC once, in the background, to switch its power off without a shutdown.

        ``is_lost``: called right before, in another thread; the request is withdrawn if it is false or fails.
        """
        bmc = self._directory.find(node)
        with self._lock:
            if bmc is not None and not self._is_closing.is_set():
                self._switches.submit(self._switch_off, node, bmc, is_lost)

    def _switch_off(self, node: str, bmc: NodeBmc, is_lost: Callable[[], bool]) -> None:
        try:
            reason = "" if is_lost() else "it reports again"
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows
            reason = f"whether it reports is not known: {error!r}"
        timeout_s = act_timeout_s(bmc.rule.timeout_s, self._left_s())
        if not reason and timeout_s is None:
            reason = "the lease of this controller is nearly over"
        if reason or timeout_s is None:
            log.warning("a node is not switched off", extra={"node": node, "reason": reason})
            self._readings.note_power_off(PowerOffStage.WITHDRAWN)
            return
        self._readings.note_power_off(PowerOffStage.ASKED)
        stage = PowerOffStage.FAILED
        try:
            force_off(bmc, self._clock, timeout_s)
            stage = PowerOffStage.DONE
            log.warning("power of a lost node is being switched off", extra={"node": node})
        except RankmendError as error:
            if fault_of(error) in _REFUSALS:
                stage = PowerOffStage.REFUSED
            log.warning("cannot switch a lost node off", extra={"node": node, "error": str(error)})
        except Exception:
            log.exception("cannot switch a lost node off", extra={"node": node})
        self._readings.note_power_off(stage)

    def _keep(self, node: str, known: _Known) -> None:
        if node not in self._known and len(self._known) >= NODES_MAX:
            del self._known[next(iter(self._known))]
        self._known[node] = known

    def _read_twice(self, node: str, bmc: NodeBmc, silence: object) -> None:
        is_off = is_on = False
        credentials = bmc.credentials()
        try:
            state = self._read(node, bmc)
            is_on = state is PowerState.ON
            outcome = state.value
            if state is PowerState.OFF and not self._is_closing.wait(self._pause_s):
                state = self._read(node, bmc)
                outcome = f"Off, then {state.value}"
                is_off = state is PowerState.OFF
        except RankmendError as error:
            now_s = self._clock.now_s()
            self._readings.note_failure(node, fault_of(error), now_s, credentials)
            outcome = str(error)
        except Exception as error:
            log.exception("cannot read a BMC", extra={"node": node})
            self._readings.note_failure(node, BmcFault.INTERNAL, self._clock.now_s())
            outcome = type(error).__name__
        self._note(node, silence, outcome, is_off=is_off, is_on=is_on)

    def _read(self, node: str, bmc: NodeBmc) -> PowerState:
        state = read_power(bmc, self._clock)
        self._readings.note_state(node, state, self._clock.unix_s())
        return state

    def _note(self, node: str, silence: object, outcome: str, *, is_off: bool, is_on: bool) -> None:
        with self._lock:
            known = self._known.get(node) or _Known(silence)
            is_news = known.outcome != outcome
            self._keep(
                node,
                replace(
                    known,
                    is_busy=False,
                    # A reading during another silence proves nothing of this one.
                    is_off=is_off and known.silence == silence,
                    is_on=is_on and known.silence == silence,
                    again_at_s=self._clock.now_s() + AGAIN_S,
                    outcome=outcome,
                ),
            )
        if is_news:
            log.info("BMC of a silent node", extra={"node": node, "power_state": outcome})


class PowerDesk(Protocol):
    """The cluster's rules (`recovery.controller.cluster.cluster.ClusterController`)."""

    def allow_power_off(self, requested: PowerOffAsked) -> bool: ...


class ServicePowerSwitch:
    """Switches lost nodes off: what a service adds to `recovery.controller.job.node_power` before it sends a request to a BMC.

    The BMC must have answered `On` in the node's present silence, no other job may receive reports
    from the node, and the cluster's rules and budget must allow it. For the deciding thread.
    """

    def __init__(
        self,
        power: BmcPower,
        desk: PowerDesk,
        is_heard: Callable[[str], bool],
        ask_heard: Callable[[str], bool],
    ) -> None:
        """``is_heard`` returns whether the node reports to any job; ``ask_heard`` does the same from another thread."""
        self._power = power
        self._desk = desk
        self._is_heard = is_heard
        self._ask_heard = ask_heard

    def allow_off(self, requested: PowerOffAsked, /) -> bool:
        if not self._power.is_on(requested.node) or self._is_heard(requested.node):
            return False
        return self._desk.allow_power_off(requested)

    def switch_off(self, node: str, /) -> None:
        self._power.switch_off(node, lambda: not self._ask_heard(node))
