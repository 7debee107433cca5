"""What people must know of the names by which alerts call nodes: which stand for no node of a launcher, and why. Pure."""

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from detectors.finding import Action, Severity
from detectors.wording import counted
from recovery.controller.cluster.active_alerts import ActiveAlert
from recovery.controller.cluster.incoming_alerts import host_of
from recovery.controller.cluster.node_names import NoMatch, is_of_every_host
from recovery.messages.outside import NameMatch

NAMES_MAX: Final = 1_000
_SHOWN_MAX: Final = 5
_ENDS_USE: Final = frozenset(action.value for action in Action if action.ends_use)

_WHY: Final = {
    NoMatch.UNKNOWN: "is it",
    NoMatch.AMBIGUOUS: "not certain to be",
    NoMatch.DOMAIN: "in another domain than",
    NoMatch.LIMITS: "by a sender that may not speak for",
    NoMatch.UNHEARD: "until the other controllers have reported their nodes, not certain to be",
}


@dataclass(frozen=True, slots=True)
class UnmatchedName:
    """A name that stands for no node of a launcher."""

    told: str
    why: NoMatch
    like: tuple[str, ...]  # nodes that it could be
    alertname: str  # of the first alert
    is_telling: bool  # a job may lack this evidence; False: most likely a node without a job

    def in_words(self) -> str:
        if not self.like:
            return self.told
        return f"{self.told} ({_WHY[self.why]} {' or '.join(self.like)})"


@dataclass(frozen=True, slots=True)
class MatchedName:
    """A name that stands for a node of a launcher that calls it otherwise."""

    told: str
    node: str
    match: NameMatch


@dataclass(frozen=True, slots=True)
class ToldNames:
    """The names in the alerts that are active, apart from those that launchers use, too."""

    unmatched: tuple[UnmatchedName, ...] = ()  # each name once: at most 1,000
    matched: tuple[MatchedName, ...] = ()  # likewise
    alerts_unmatched: Mapping[NoMatch, int] = field(default_factory=dict)
    alerts_matched: Mapping[NameMatch, int] = field(default_factory=dict)

    def in_words(self) -> str:
        """Return a sentence on the names that may be of nodes of jobs; empty for none."""
        reported = [name for name in self.unmatched if name.is_telling]
        if not reported:
            return ""
        shown = ", ".join(name.in_words() for name in reported[:_SHOWN_MAX])
        more = f" and {len(reported) - _SHOWN_MAX} more" if len(reported) > _SHOWN_MAX else ""
        return f"{counted(len(reported), 'node name')} in alerts match no launcher's, so that these alerts count for no job: {shown}{more}"


def read_names(alerts: Iterable[ActiveAlert]) -> ToldNames:
    """Return by which names the active alerts call their nodes."""
    unmatched: dict[str, UnmatchedName] = {}
    matched: dict[str, MatchedName] = {}
    without: Counter[NoMatch] = Counter()
    under: Counter[NameMatch] = Counter()
    for alert in alerts:
        found = alert.found
        if not (alert.is_firing and alert.target.node):
            continue
        reported = alert.told_node
        if found.why_not is not None:
            without[found.why_not] += 1
            known = unmatched.get(reported)
            is_telling = _is_worth_naming(alert) or (known is not None and known.is_telling)
            if known is None and len(unmatched) < NAMES_MAX:
                unmatched[reported] = UnmatchedName(
                    reported, found.why_not, found.like, alert.target.alertname, is_telling
                )
            elif known is not None and is_telling and not known.is_telling:
                unmatched[reported] = UnmatchedName(
                    reported, known.why, known.like, known.alertname, True
                )
        elif found.match is not NameMatch.EXACT:
            under[found.match] += 1
            if len(matched) < NAMES_MAX:
                matched.setdefault(reported, MatchedName(reported, found.node, found.match))
    return ToldNames(tuple(unmatched.values()), tuple(matched.values()), without, under)


def _is_worth_naming(alert: ActiveAlert) -> bool:
    if alert.found.why_not is NoMatch.UNHEARD:
        return bool(alert.found.like)
    host = host_of(alert.told_node)
    if alert.is_doubtful or is_of_every_host(host) or _is_address(host):
        return True
    return alert.target.severity == Severity.CRITICAL.value and alert.target.action in _ENDS_USE


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True
