"""The nodes' BMCs: which is whose, and the two things that are asked of one (Redfish, DSP0266).

Every request goes over a connection of its own and ends within the `timeout_s` of the BMC's rule.
"""

import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

from rankmend.clock import Clock
from rankmend.errors import ConfigError, RankmendError
from rankmend.redfish_session import (
    BmcAddress,
    BmcError,
    BmcFault,
    BmcRefusedError,
    RedfishSession,
    make_context,
    parse_url,
    read_credentials,
)
from recovery.service.controller_config import BmcRule

SYSTEMS: Final = "/redfish/v1/Systems"
RESET: Final = "ComputerSystem.Reset"
_SYSTEM_PATH: Final = re.compile(rf"{SYSTEMS}/[A-Za-z0-9._-]{{1,64}}/?")
_NODE: Final = "{node}"
# What may stand for {node} in a URL. A launcher names its node itself: it must not choose the domain.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_WILD: Final = frozenset("*?[")  # what makes a rule's name a pattern (fnmatch)

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
    """The BMC of one node: where it is, and how it is to be queried."""

    rule: BmcRule
    address: BmcAddress
    context: ssl.SSLContext

    def credentials(self) -> object:
        """Return what differs once the file of user and password is another one."""
        try:
            found = Path(self.rule.credentials_file).stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)


class BmcDirectory:
    """Which BMC is whose. The first rule that matches a node's name counts."""

    def __init__(self, rules: Sequence[BmcRule]) -> None:
        """Raise ConfigError, with the rule, for files that can't be used."""
        self._rules: list[tuple[BmcRule, ssl.SSLContext]] = []
        self._named: dict[str, int] = {}  # of rules for one node: the number of the first one
        self._patterns: list[int] = []  # numbers of the others
        for number, rule in enumerate(rules):
            try:
                read_credentials(Path(rule.credentials_file))
                self._rules.append((rule, make_context(rule.ca_file, verify=True)))
            except ConfigError as error:
                raise ConfigError(
                    f"[[bmcs]] number {number + 1} ({rule.match}): {error}"
                ) from error
            if _WILD & set(rule.match):
                self._patterns.append(number)
            else:
                self._named.setdefault(rule.match, number)

    @property
    def named(self) -> tuple[str, ...]:
        """Return the nodes that a rule has by their full names."""
        return tuple(self._named)

    def find(self, node: str) -> NodeBmc | None:
        """Return the BMC of a node, or None where none is known."""
        named = self._named.get(node, len(self._rules))
        patterns = (number for number in self._patterns if number < named)
        matching = (
            pattern for pattern in patterns if fnmatchcase(node, self._rules[pattern][0].match)
        )
        number = next(matching, named)
        if number == len(self._rules):
            return None
        rule, context = self._rules[number]
        if _NODE in rule.url and not _LABEL.fullmatch(node):
            return None
        return NodeBmc(rule, parse_url(rule.url.replace(_NODE, node)), context)


def read_power(bmc: NodeBmc, clock: Clock) -> PowerState:
    """Return what the BMC answers, or raise an error of `fault_of`."""
    system = bmc.rule.system
    return _with_session(
        bmc,
        clock,
        lambda session, until_s: read_power_state(lambda path: session.get(path, until_s), system),
    )


def force_off(bmc: NodeBmc, clock: Clock, timeout_s: float) -> None:
    """Ask, within ``timeout_s`` in all, for `ForceOff` (DSP2046, ComputerSystem.Reset) once, or raise an error of `fault_of`."""
    system = bmc.rule.system

    def act(session: RedfishSession, until_s: float) -> None:
        path = SYSTEMS + f"/{system}" if system else find_system(lambda p: session.get(p, until_s))
        reset = f"{path.rstrip('/')}/Actions/{RESET}"
        session.post(reset, {"ResetType": "ForceOff"}, until_s)

    _with_session(bmc, clock, act, timeout_s)


def fault_of(error: RankmendError) -> BmcFault:
    """Return why a request failed."""
    if isinstance(error, BmcError):
        return error.fault
    if isinstance(error, BmcRefusedError):
        return BmcFault.REFUSED
    return BmcFault.CREDENTIALS if isinstance(error, ConfigError) else BmcFault.INTERNAL


def _with_session(
    bmc: NodeBmc,
    clock: Clock,
    act: Callable[[RedfishSession, float], _R],
    timeout_s: float | None = None,
) -> _R:
    """Return what ``act`` does with a new connection and until when it may take; ``timeout_s``: None: as configured."""
    rule = bmc.rule
    bound_s = rule.timeout_s if timeout_s is None else timeout_s
    deadline_s = clock.now_s() + bound_s
    session = RedfishSession(
        bmc.address,
        read_credentials(Path(rule.credentials_file)),
        bmc.context if bmc.address.is_encrypted else None,
        clock,
        bound_s,
    )
    try:
        return act(session, deadline_s)
    finally:
        session.close()


def read_power_state(get: Callable[[str], dict[str, Any]], system: str | None) -> PowerState:
    """Return the power state of a system, or of the only one; raise BmcError for any other answer."""
    path = find_system(get) if system is None else f"{SYSTEMS}/{system}"
    reported = get(path).get("PowerState")
    try:
        return PowerState(reported)
    except ValueError:
        raise BmcError(f"{path}: PowerState is {reported!r:.80}", BmcFault.ANSWER) from None


def find_system(get: Callable[[str], dict[str, Any]]) -> str:
    """Return the path of the only system that the BMC manages."""
    members = get(SYSTEMS).get("Members")
    if not isinstance(members, list) or len(members) != 1:
        count = len(members) if isinstance(members, list) else "no list of"
        text = f"{SYSTEMS} has {count} members: name one with `system`"
        raise BmcError(text, BmcFault.ANSWER)
    path = members[0].get("@odata.id") if isinstance(members[0], dict) else None
    if not isinstance(path, str) or not _SYSTEM_PATH.fullmatch(path):
        raise BmcError(f"{SYSTEMS}: the member is {path!r:.80}", BmcFault.ANSWER)
    return path
