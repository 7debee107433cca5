"""Watches this node by the agent's own collectors and rules while it is under load. Runs in a child process.

Where an agent runs it is asked before and after: it looks each second and knows how long each fault has lasted. Else a
scan by the same collectors runs all along, so that a counter that grows under load is seen.
"""

import logging
import os
import select
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from rankmend.clock import Clock

LOOK_S: Final = 2.0
LOOKS: Final = 10  # 20 s: less than any load lasts. What asks for more is a warning
COLLECT_S_MAX: Final = 1.0
_CHUNK_BYTES: Final = 64

Page = Mapping[str, Any]


class ScanFindings(Protocol):
    def scan_only(self, looks: int, /) -> None: ...
    def page(self, now_s: float) -> dict[str, Any]: ...


class ScanningAgent(Protocol):
    """As much of an agent as a scan needs (agent/daemon/node_agent.py)."""

    @property
    def findings(self) -> ScanFindings: ...
    def collect_once(self, timeout_s: float) -> None: ...
    def stop(self) -> None: ...


def watch_health(
    make_agent: Callable[[Clock], ScanningAgent],
    clock: Clock,
    ask: Callable[[], Page | None],
    until_end: int,
) -> dict[str, Any]:
    """Return the findings page once the descriptor ends, and the ids of what was found before the load."""
    page = ask()
    if page is not None:
        before = _ids(page)
        _wait(until_end, None)
        return {"before": before, "page": ask() or page}
    logging.disable(logging.ERROR)
    agent = make_agent(clock)
    agent.findings.scan_only(LOOKS)
    try:
        agent.collect_once(COLLECT_S_MAX)
        before = _ids(agent.findings.page(clock.now_s()))
        while not _wait(until_end, LOOK_S):
            agent.collect_once(COLLECT_S_MAX)
        agent.collect_once(COLLECT_S_MAX)
        found = {**agent.findings.page(clock.now_s()), "asked": "a scan under load"}
        return {"before": before, "page": found, "may_read_all": os.geteuid() == 0}
    finally:
        agent.stop()


def _ids(page: Page) -> list[str]:
    return [found["id"] for found in page["findings"]]


def _wait(descriptor: int, timeout_s: float | None) -> bool:
    """Return whether the descriptor has ended."""
    ready = select.select([descriptor], [], [], timeout_s)[0]
    return bool(ready) and not os.read(descriptor, _CHUNK_BYTES)
