"""Bonds: which of their links are down. A bond with one link left still works, at half its rate.

Source: <root>/class/net/*/bonding and <root>/class/net/*/bonding_slave, Linux
        Documentation/networking/bonding.rst and drivers/net/bonding/bond_sysfs*.c.
Cost:   two small reads a link, every 5 s; no privilege.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from agent.sources.kept_files import KeptFiles
from rankmend.errors import NoSourceError, SourceError

_LINKS_MAX = 64  # per bond

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("bond_links", "", ("bond",), "Links that belong to the bond."),
    gauge("bond_links_up", "", ("bond",), "Links of the bond that are up."),
    gauge(
        "bond_link_up",
        "",
        ("bond", "device"),
        "1 when the bond's own monitor calls the link up, 0 when not.",
    ),
    counter(
        "bond_link_failures",
        "",
        ("bond", "device"),
        "Times that the link went down since it joined the bond.",
    ),
)


class BondingCollector:
    name = "bonding"
    interval_s = 5.0

    def __init__(self, sysfs_root: Path) -> None:
        self._root = sysfs_root / "class" / "net"
        self._files = KeptFiles()

    def collect(self) -> Iterator[Metric]:
        bonds = sorted(path.parent for path in self._root.glob("*/bonding"))
        if not bonds:
            raise NoSourceError(f"no bond below {self._root}")
        self._files.begin_run()
        for bond in bonds:
            try:
                links = self._files.read(f"{bond}/bonding/slaves").split()[:_LINKS_MAX]
            except (NoSourceError, SourceError):
                continue  # taken down meanwhile
            up = 0
            for link in links:
                state = self._is_up(link)
                up += bool(state)
                labels = (("bond", bond.name), ("device", link))
                if state is not None:
                    yield Metric("rankmend_bond_link_up", int(state), labels)
                failures = self._failures(link)
                if failures is not None:
                    yield Metric("rankmend_bond_link_failures_total", failures, labels)
            yield Metric("rankmend_bond_links", len(links), (("bond", bond.name),))
            yield Metric("rankmend_bond_links_up", up, (("bond", bond.name),))

    def _is_up(self, link: str) -> bool | None:
        try:
            return self._files.read(f"{self._root}/{link}/bonding_slave/mii_status") == "up"
        except (NoSourceError, SourceError):
            return None

    def _failures(self, link: str) -> int | None:
        try:
            text = self._files.read(f"{self._root}/{link}/bonding_slave/link_failure_count")
        except (NoSourceError, SourceError):
            return None
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
