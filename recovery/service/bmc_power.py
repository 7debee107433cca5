"""Reads from BMCs whether silent nodes have power (Redfish, DSP0266: `PowerState` of a ComputerSystem).

A few threads read, so a BMC that hangs holds up no job and no other BMC for long. Only two answers `Off`
over separate connections, with a pause between them, count as proof. Whatever else a BMC does (On,
PoweringOff, an error, a redirect, an answer that is too long or too late) proves nothing, and is logged when it changes.
"""

import logging
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

from rankmend.clock import Clock
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.redfish_session import (
    BmcAddress,
    BmcRefusedError,
    RedfishSession,
    make_context,
    parse_url,
    read_credentials,
)
from recovery.service.controller_config import BmcRule

log = logging.getLogger(__name__)

SYSTEMS: Final = "/redfish/v1/Systems"
RESET: Final = "ComputerSystem.Reset"
# Between the two readings. A system that restarts passes through Off for about as long (IPMI 2.0, 28.3: a
# power cycle keeps the power off for at least a second), which is as good a proof: no process outlives it.
PAUSE_S: Final = 1.0
AGAIN_S: Final = 1.0  # after a reading that proves nothing, while the node stays silent
REFUSED_S: Final = 600.0  # after a password that was rejected: more tries may lock the account
THREADS: Final = 16  # a rack that loses its power: 16 nodes at once, each within seconds
NODES_MAX: Final = 20_000
_SYSTEM_PATH: Final = re.compile(rf"{SYSTEMS}/[A-Za-z0-9._-]{{1,64}}/?")
_NODE: Final = "{node}"
# What may stand for {node} in a URL. A launcher names its node itself: it must not choose the domain.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


_R = TypeVar("_R")


class PowerState(Enum):
    """Values of `PowerState` (DSP2046, ComputerSystem)."""

    ON = "On"
    OFF = "Off"
    POWERING_ON = "PoweringOn"
    POWERING_OFF = "PoweringOff"
    PAUSED = "Paused"


@dataclass(frozen=True, slots=True)
class NodeBmc:
    """The BMC of one node: where it is, and how it is to be asked."""

    rule: BmcRule
    address: BmcAddress
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of one node."""

    silence: object
    is_off: bool = False
    is_busy: bool = False  # a thread reads it
    again_at_s: float = 0.0
    is_on: bool = False  # by the newest reading
    outcome: str = ""  # of the newest reading, as it was logged


class BmcDirectory:
    """Which BMC is whose. The first rule that matches a node's name counts."""

    def __init__(self, rules: Sequence[BmcRule]) -> None:
        """Raise ConfigError, with the rule, for files that can't be used."""
        self._rules = []
        for number, rule in enumerate(rules, 1):
            try:
                read_credentials(Path(rule.credentials_file))
                self._rules.append((rule, make_context(rule.ca_file, verify=True)))
            except ConfigError as error:
                raise ConfigError(f"[[bmcs]] number {number} ({rule.match}): {error}") from error

    def find(self, node: str) -> NodeBmc | None:
        """Return the BMC of a node, or None where none is known."""
        for rule, context in self._rules:
            if fnmatchcase(node, rule.match):
                if _NODE in rule.url and not _LABEL.fullmatch(node):
                    return None
                return NodeBmc(rule, parse_url(rule.url.replace(_NODE, node)), context)
        return None


class BmcPower:
    """The power of nodes by their BMCs (`recovery.job.node_power.PowerReader`). For any thread."""

    def __init__(self, directory: BmcDirectory, clock: Clock, pause_s: float = PAUSE_S) -> None:
        self._directory = directory
        self._clock = clock
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._is_closing = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="bmc")

    def close(self) -> None:
        """Read no more; a request that is under way ends within its time-out."""
        with self._lock:
            self._is_closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def is_off(self, node: str, silence: object, /) -> bool:
        with self._lock:
            known = self._known.get(node) or _Known(silence)
            if known.silence != silence:
                known = replace(known, silence=silence, is_off=False, is_on=False)
            self._keep(node, known)
            if known.is_off or known.is_busy or self._is_closing.is_set():
                return known.is_off
            if self._clock.now_s() < known.again_at_s:
                return False
            bmc = self._directory.find(node)
            if bmc is not None:
                self._keep(node, replace(known, is_busy=True))
                self._pool.submit(self._read_twice, node, bmc, silence)
            return False

    def is_on(self, node: str) -> bool:
        """Return whether the newest reading, in the node's present silence, was `On`."""
        with self._lock:
            known = self._known.get(node)
            return known is not None and known.is_on

    def switch_off(self, node: str) -> None:
        """Ask the node's BMC once, in the background, to switch its power off without a shutdown."""
        bmc = self._directory.find(node)
        with self._lock:
            if bmc is not None and not self._is_closing.is_set():
                self._pool.submit(self._switch_off, node, bmc)

    def _switch_off(self, node: str, bmc: NodeBmc) -> None:
        try:
            self._with_session(bmc, lambda session, until_s: force_off(session, bmc, until_s))
            log.warning("power of a lost node is being switched off", extra={"node": node})
        except RankmendError as error:
            log.warning("cannot switch a lost node off", extra={"node": node, "error": str(error)})
        except Exception:
            log.exception("cannot switch a lost node off", extra={"node": node})

    def _keep(self, node: str, known: _Known) -> None:
        if node not in self._known and len(self._known) >= NODES_MAX:
            del self._known[next(iter(self._known))]
        self._known[node] = known

    def _read_twice(self, node: str, bmc: NodeBmc, silence: object) -> None:
        again_s, is_off, is_on = AGAIN_S, False, False
        try:
            state = self._read(bmc)
            is_on = state is PowerState.ON
            outcome = state.value
            if state is PowerState.OFF and not self._is_closing.wait(self._pause_s):
                state = self._read(bmc)
                outcome = f"Off, then {state.value}"
                is_off = state is PowerState.OFF
        except BmcRefusedError as error:
            again_s, outcome = REFUSED_S, str(error)
        except RankmendError as error:
            outcome = str(error)
        except Exception as error:
            log.exception("cannot read a BMC", extra={"node": node})
            outcome = type(error).__name__
        self._note(node, silence, outcome, again_s, is_off=is_off, is_on=is_on)

    def _note(
        self, node: str, silence: object, outcome: str, again_s: float, *, is_off: bool, is_on: bool
    ) -> None:
        with self._lock:
            known = self._known.get(node) or _Known(silence)
            is_news = known.outcome != outcome
            self._keep(
                node,
                replace(
                    known,
                    is_busy=False,
                    # What was read during another silence says nothing of this one.
                    is_off=is_off and known.silence == silence,
                    is_on=is_on and known.silence == silence,
                    again_at_s=self._clock.now_s() + again_s,
                    outcome=outcome,
                ),
            )
        if is_news:
            log.info("BMC of a silent node", extra={"node": node, "power_state": outcome})

    def _read(self, bmc: NodeBmc) -> PowerState:
        system = bmc.rule.system
        return self._with_session(
            bmc,
            lambda session, until_s: read_power_state(
                lambda path: session.get(path, until_s), system
            ),
        )

    def _with_session(self, bmc: NodeBmc, act: Callable[[RedfishSession, float], _R]) -> _R:
        """Return what ``act`` does with a new connection and until when it may take."""
        rule = bmc.rule
        deadline_s = self._clock.now_s() + rule.timeout_s
        session = RedfishSession(
            bmc.address,
            read_credentials(Path(rule.credentials_file)),
            bmc.context if bmc.address.is_encrypted else None,
            self._clock,
            rule.timeout_s,
        )
        try:
            return act(session, deadline_s)
        finally:
            session.close()


def read_power_state(get: Callable[[str], dict[str, Any]], system: str | None) -> PowerState:
    """Return the power state of a system, or of the only one; raise SourceError for any other answer."""
    path = find_system(get) if system is None else f"{SYSTEMS}/{system}"
    told = get(path).get("PowerState")
    try:
        return PowerState(told)
    except ValueError:
        raise SourceError(f"{path}: PowerState is {told!r:.80}") from None


def force_off(session: RedfishSession, bmc: NodeBmc, until_s: float) -> None:
    """Ask for `ForceOff` (DSP2046, ComputerSystem.Reset) once, or raise SourceError or BmcRefusedError."""

    def get(path: str) -> dict[str, Any]:
        return session.get(path, until_s)

    system = bmc.rule.system
    path = (find_system(get) if system is None else f"{SYSTEMS}/{system}").rstrip("/")
    session.post(f"{path}/Actions/{RESET}", {"ResetType": "ForceOff"}, until_s)


def find_system(get: Callable[[str], dict[str, Any]]) -> str:
    """Return the path of the only system that the BMC manages."""
    members = get(SYSTEMS).get("Members")
    if not isinstance(members, list) or len(members) != 1:
        count = len(members) if isinstance(members, list) else "no list of"
        raise SourceError(f"{SYSTEMS} has {count} members: name one with `system`")
    path = members[0].get("@odata.id") if isinstance(members[0], dict) else None
    if not isinstance(path, str) or not _SYSTEM_PATH.fullmatch(path):
        raise SourceError(f"{SYSTEMS}: the member is {path!r:.80}")
    return path
