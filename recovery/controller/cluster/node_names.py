"""Which node an alert means that calls it otherwise than its launcher does. Pure.

Exporters, Prometheus' relabelling and agents name a node by its short name, its full name, its address, with a port, in
capitals. A name is matched only where exactly one node can be meant: what could be two nodes is none, since a wrong match
takes a sound node out of a job. In this order:

1. the launcher's name as it stands;
2. the same apart from upper and lower case, of one node alone;
3. one is the other without its domain, or without the end of it: no other node that is known here may begin with the same label, and no
   other alert may give that short name another domain. Where the policy lists the domains of the nodes, both must be in one of them;
4. the address at which the launchers of one node alone are reached; never that of the host itself (loopback).
"""

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from recovery.controller.cluster.incoming_alerts import host_of
from recovery.messages.outside import NameMatch

_LIKE_MAX: Final = 5
_LABELS_MAX: Final = 20_000  # short names whose full names are kept: twice a cluster's nodes
_ADDRESSES_KEPT: Final = 65_536  # texts that need not be read again
_FULL_NAMES_MAX: Final = 4  # of one short name: two are as good as many


class NoMatch(Enum):
    """Why the name in an alert stands for no node of a launcher."""

    UNKNOWN = (
        "unknown"  # no node that is known is called like this: it is idle, or has another name here
    )
    AMBIGUOUS = "ambiguous"  # it could be several
    DOMAIN = "domain"  # the node of this short name is in another domain
    LIMITS = "limits"  # its sender may not speak for the node that it means
    UNHEARD = "unheard"  # other controllers have not reported yet which nodes are theirs


@dataclass(frozen=True, slots=True)
class FoundNode:
    node: str = ""  # the launcher's name; empty: no node is meant for certain
    match: NameMatch = NameMatch.EXACT
    why_not: NoMatch | None = None
    like: tuple[str, ...] = ()  # nodes that it could be: at most 5


class HeardNames:
    """The full names that alerts give each short name. For one thread."""

    def __init__(self) -> None:
        self._full: dict[str, dict[str, float]] = {}  # short name -> full name -> when last

    def note(self, reported: str, now_s: float) -> None:
        name = _plain(host_of(reported))
        label, dot, _domain = name.partition(".")
        if not dot or _address(name) is not None:
            return
        known = self._full.setdefault(label, {})
        if name in known or len(known) < _FULL_NAMES_MAX:
            known[name] = now_s
        while len(self._full) > _LABELS_MAX:
            del self._full[next(iter(self._full))]

    def of(self, label: str) -> Collection[str]:
        return self._full.get(label, {}).keys()

    def forget(self, due_s: float) -> None:
        """Drop what no alert was called since ``due_s``."""
        for label, known in list(self._full.items()):
            for name in [item for item, at_s in known.items() if at_s < due_s]:
                del known[name]
            if not known:
                del self._full[label]


class NodeNames:
    """The names of all nodes that are known, as launchers and people give them."""

    def __init__(
        self,
        nodes: Iterable[str],
        addresses: Mapping[str, Iterable[str]] | None = None,
        domains: Iterable[str] = (),
        *,
        is_whole: bool = True,
    ) -> None:
        """``addresses``: at which the launchers of each node are reached. ``is_whole``: no other controller may have further nodes."""
        self._names = frozenset(nodes)
        self._domains = tuple(domain.casefold().strip(".") for domain in domains)
        self._is_whole = is_whole
        self._by_label: dict[str, set[str]] = {}
        self._by_address: dict[str, set[str]] = {}
        for name in self._names:
            if (address := _address(name)) is not None:
                self._by_address.setdefault(address, set()).add(name)
            else:
                self._by_label.setdefault(_label(name), set()).add(name)
        for name, reported in (addresses or {}).items():
            for item in reported:
                if (address := _address(item)) is not None:
                    self._by_address.setdefault(address, set()).add(name)

    def find(self, reported: str, received: HeardNames) -> FoundNode:
        """Return the node that an alert calls ``told``, which may be ``host:port``."""
        name = host_of(reported)
        for exact in (reported, name):
            if exact in self._names:
                others = self._by_label.get(_label(exact), set()) - {exact}
                return FoundNode(exact, like=_first(others))
        if is_of_every_host(name):
            return FoundNode(why_not=NoMatch.UNKNOWN)
        address = _address(name)
        if address is not None:
            found = _only(self._by_address.get(address, ()), NameMatch.ADDRESS)
        else:
            found = self._find_name(_plain(name), received)
        if not self._is_whole and (found.node or found.why_not is NoMatch.UNKNOWN):
            return FoundNode(why_not=NoMatch.UNHEARD, like=(found.node,) if found.node else ())
        return found

    def _find_name(self, name: str, received: HeardNames) -> FoundNode:
        label, _dot, domain = name.partition(".")
        alike = self._by_label.get(label, set())
        same = [item for item in alike if _plain(item) == name]
        if same:
            return _only(same, NameMatch.CASE)
        found = _only(alike, NameMatch.SHORT)
        if not found.node:
            return found
        _label_known, _dot, domain_known = _plain(found.node).partition(".")
        if self._domains:
            is_same = self._is_ours(domain) and self._is_ours(domain_known)
        else:
            is_same = _agree(domain, domain_known)
        if not is_same:
            return FoundNode(why_not=NoMatch.DOMAIN, like=(found.node,))
        if not self._domains and any(
            not _agree(domain, item.partition(".")[2]) for item in received.of(label)
        ):
            return FoundNode(why_not=NoMatch.AMBIGUOUS, like=(found.node,))
        return found

    def _is_ours(self, domain: str) -> bool:
        return not domain or any(f"{item}.".startswith(f"{domain}.") for item in self._domains)


def _only(names: Collection[str], match: NameMatch) -> FoundNode:
    if len(names) == 1:
        return FoundNode(next(iter(names)), match)
    if not names:
        return FoundNode(why_not=NoMatch.UNKNOWN)
    return FoundNode(why_not=NoMatch.AMBIGUOUS, like=_first(names))


def _first(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names)[:_LIKE_MAX])


def _agree(text: str, other: str) -> bool:
    """Return whether two domains can be of one host: one is left out, or goes on where the other ends."""
    return (
        not text
        or not other
        or f"{text}.".startswith(f"{other}.")
        or f"{other}.".startswith(f"{text}.")
    )


def _plain(name: str) -> str:
    return name.casefold().rstrip(".")


def _label(name: str) -> str:
    return _plain(name).partition(".")[0]


@lru_cache(_ADDRESSES_KEPT)
def _address(text: str) -> str | None:
    """Return the usual form of an IP address; None for anything else."""
    if not (text[:1].isdigit() or ":" in text):
        return None
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def is_of_every_host(text: str) -> bool:
    """Return whether a host calls itself so, whichever it is: localhost, a loopback or link-local address."""
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return _label(text) == "localhost"
    return address.is_loopback or address.is_unspecified or address.is_link_local
