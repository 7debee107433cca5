"""Where Prometheus finds the agents: the answer of /v1/sd/agents.

An agent serves under its node's name, unless `[discovery]` says another address. Labels come from the
configuration alone, so that a node's series stay the same series whichever job it runs.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

from recovery.api import wire
from recovery.service.controller_config import NODE_MARK, Discovery

# What may stand for {node} in an address. A launcher names its node itself: it must not choose the domain.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_WILD: Final = frozenset("*?[")  # what makes a name a pattern
JOBS_LABEL: Final = "__meta_rankmend_job_ids"


@dataclass(frozen=True, slots=True)
class _NameTable:
    """Values by node name: a name before patterns, and of these the first that matches."""

    names: Mapping[str, str]
    patterns: tuple[tuple[re.Pattern[str], str], ...]

    def get(self, node: str) -> str | None:
        if (value := self.names.get(node)) is not None:
            return value
        return next((value for pattern, value in self.patterns if pattern.match(node)), None)


def targets(jobs_of_node: Mapping[str, Iterable[str]], told: Discovery) -> list[wire.Target]:
    """Return the targets of these nodes, ordered by name; a node whose address can't be told is left out.

    With a thousand patterns and 10,000 nodes this takes seconds: not for the event loop.
    """
    addresses, racks = _read(told.addresses), _read(told.racks)
    found = []
    for node, job_ids in sorted(jobs_of_node.items()):
        address = _address_of(node, addresses.get(node), told)
        if address is None:
            continue
        labels = {"node": node, JOBS_LABEL: ",".join(sorted(job_ids))}
        if told.cluster:
            labels["cluster"] = told.cluster
        if (rack := racks.get(node)) is not None:
            labels["rack"] = rack
        found.append(wire.Target([address], labels))
    return found


def _address_of(node: str, given: str | None, told: Discovery) -> str | None:
    """Return HOST:PORT of a node's agent; None for a name that may not stand for {node}."""
    if given is None:
        domain = f".{told.domain}" if told.domain else ""
        return f"{node}{domain}:{told.agent_port}"
    if NODE_MARK in given and not _LABEL.fullmatch(node):
        return None
    return given.replace(NODE_MARK, node)


def _read(values: Mapping[str, str]) -> _NameTable:
    patterns = tuple(
        (re.compile(translate(name)), value)
        for name, value in values.items()
        if not _WILD.isdisjoint(name)
    )
    return _NameTable(values, patterns)
