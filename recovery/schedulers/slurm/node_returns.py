"""Returns nodes that we drained to service: once each is empty, its check has passed, and nothing speaks against it.

Checks run beside the thread of the desk, which starts them and takes in their ends (`node_check`). To undo the drain
is a request like any other: it is dry, bounded and read back as those are.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recovery.journal.slurm_records import ReturnStep, SlurmNodeChecked, SlurmNodeEmpty
from recovery.schedulers.slurm.bench import Bench
from recovery.schedulers.slurm.ledger import NodeHistory, say_check
from recovery.schedulers.slurm.managed_node import ManagedNode
from recovery.schedulers.slurm.node_check import (
    CheckEnd,
    RunningCheck,
    StartCheck,
    start_check,
    words_for,
)
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest, mark_of
from recovery.schedulers.slurm.return_rules import (
    ReturnStanding,
    Stay,
    due_unix_s,
    not_ready,
    stands_alone,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    step: ReturnStep
    drain_key: str  # of the drain that it may end
    check: RunningCheck


class NodeReturns:
    """``standings`` is for any thread: it is replaced as a whole."""

    def __init__(
        self,
        bench: Bench,
        ask: Callable[[SchedulerRequest], None],
        may_act: Callable[[SchedulerRequest], str],
        start: StartCheck = start_check,
    ) -> None:
        self._bench = bench
        self._ask = ask
        self._may_act = may_act
        self._start = start
        self._running: dict[str, _Running] = {}
        self.standings: Mapping[str, ReturnStanding] = {}

    def stop(self) -> None:
        """Kill what runs; the next start of the controller checks anew."""
        for running in self._running.values():
            running.check.stop()
        self._running.clear()

    def collect(self) -> bool:
        """Take in the checks that have ended; return whether there were any."""
        before = len(self._running)
        for node, running in list(self._running.items()):
            past = self._bench.ledger.history(node)
            if not past.is_ours or past.drains[-1].key != running.drain_key:
                running.check.stop()
                del self._running[node]
            elif (end := running.check.end()) is not None:
                self._take_in(node, running, end)
        return len(self._running) < before

    def _take_in(self, node: str, running: _Running, end: CheckEnd) -> None:
        checked = SlurmNodeChecked(node, end.is_passed, end.text, running.step, end.exit_code)
        self._bench.write(checked)
        del self._running[node]
        log.info("a drained node was checked", extra={"node": node, "result": say_check(checked)})
        if not end.is_passed:
            return
        if running.step is ReturnStep.CHECK and self._bench.limits.burn_in:
            self._begin(node, ReturnStep.BURN_IN)
            return
        self._ask(_request(node, self._bench.ledger.history(node)))

    def is_due(self) -> bool:
        """Return whether a check can start now."""
        if len(self._running) >= self._bench.limits.return_checks_max:
            return False
        due = [
            standing.due_unix_s
            for standing in self.standings.values()
            if standing.due_unix_s is not None
        ]
        return bool(due) and min(due) <= self._bench.clock.unix_s()

    def look(self, seen: Mapping[str, ManagedNode]) -> None:
        """Start the checks that are due; ``seen``: the nodes with a drain of ours, as their manager reports them now."""
        standings: dict[str, ReturnStanding] = {}
        due: list[tuple[float, str]] = []
        requested = {node for work in self._bench.ledger.open for node in work.request.nodes}
        for node in self._bench.ledger.ours:
            item = seen.get(node)
            if item is not None:
                standings[node] = self._stand(node, item, is_asked=node in requested)
        now_unix_s = self._bench.clock.unix_s()
        for node, standing in standings.items():
            if standing.due_unix_s is not None and standing.due_unix_s <= now_unix_s:
                due.append((standing.due_unix_s, node))
        for _due, node in sorted(due):
            if len(self._running) >= self._bench.limits.return_checks_max:
                break
            self._begin(node, ReturnStep.CHECK)
            standings[node] = ReturnStanding(Stay.CHECKING, ReturnStep.CHECK.value)
        self.standings = standings

    def _stand(self, node: str, seen: ManagedNode, *, is_asked: bool) -> ReturnStanding:
        limits, clock = self._bench.limits, self._bench.clock
        past = self._bench.ledger.history(node)
        if is_asked:
            return ReturnStanding(Stay.ASKED, "a request about it is under way")
        if (running := self._running.get(node)) is not None:
            return ReturnStanding(Stay.CHECKING, running.step.value)
        if (standing := stands_alone(node, past, limits, clock.unix_s())) is not None:
            return standing
        if (standing := not_ready(seen, limits.manager)) is not None:
            if past.empty_unix_s is not None:
                self._bench.write(SlurmNodeEmpty(node, is_empty=False))
            return standing
        if past.empty_unix_s is None:
            self._bench.write(SlurmNodeEmpty(node, is_empty=True))
            past = self._bench.ledger.history(node)
        empty_s = past.empty_unix_s if past.empty_unix_s is not None else clock.unix_s()
        if why := self._may_act(_request(node, past)):
            return ReturnStanding(Stay.PAUSED, why)
        text = "waits for its check" if past.checked is None else say_check(past.checked)
        return ReturnStanding(Stay.WAITING, text, due_unix_s(past, limits, empty_s))

    def _begin(self, node: str, step: ReturnStep) -> None:
        limits = self._bench.limits
        command, timeout_s = limits.return_check, limits.return_check_timeout_s
        if step is ReturnStep.BURN_IN:
            command, timeout_s = limits.burn_in, limits.burn_in_timeout_s
        key = self._bench.ledger.history(node).drains[-1].key
        check = self._start(words_for(command, node), timeout_s)
        self._running[node] = _Running(step, key, check)


def _request(node: str, past: NodeHistory) -> SchedulerRequest:
    """Return the request that undoes the drain: one for each check that has passed."""
    key = f"return/{node}/{mark_of(past.drains[-1].key)}/{past.check_count}"
    return SchedulerRequest(key, SchedulerAction.RESUME, (node,), reason="its check has passed")
