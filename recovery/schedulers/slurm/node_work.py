"""Works on requests about nodes, one node after another, and sees which of our drains somebody has ended."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from rankmend.watched_report import PRESENT_S
from recovery.journal.slurm_records import (
    SlurmAct,
    SlurmActs,
    SlurmDrainOver,
    SlurmDrainSeen,
    SlurmNodeEnded,
    SlurmOutcome,
)
from recovery.journal.witnesses import OutsideAct, Witness, allows, refuse
from recovery.schedulers.slurm.bench import Bench, Memory, text_of
from recovery.schedulers.slurm.bounds import refuse_drain
from recovery.schedulers.slurm.ledger import SlurmLedger, Work
from recovery.schedulers.slurm.managed_node import ManagedNode
from recovery.schedulers.slurm.node_moves import next_node_move
from recovery.schedulers.slurm.requests import (
    Do,
    Move,
    MoveEnd,
    MoveWait,
    SchedulerAction,
    mark_in,
    reason_of,
)

log = logging.getLogger(__name__)

# An agent says every PRESENT_S which jobs run on its node. A controller that has just taken over, or that is not the one to which the agent
# reports, has its word within that time and some for a retry; after it there is none.
WORD_S: Final = PRESENT_S + 30.0

# Nodes about which one look asks whose work they run: a question each, and launchers name as many as they like.
OWNERS_ASKED_MAX: Final = 16

_WORST: Final = (  # what came of a request is the worst that came of its nodes
    SlurmOutcome.DONE, SlurmOutcome.DRY, SlurmOutcome.LEFT, SlurmOutcome.REFUSED, SlurmOutcome.FAILED,
)  # fmt: skip


class NodeWork:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._owners_asked = 0  # in this look at a request

    def advance(self, work: Work, memory: Memory) -> None:
        self._owners_asked = 0
        left = [node for node in work.request.nodes if node not in work.nodes]
        seen = self._bench.client.nodes(left)
        self._bench.note_answer()
        waits = ""
        for node in left:
            work = self._bench.ledger.works[work.request.key]
            now_unix_s = self._bench.clock.unix_s()
            move = next_node_move(
                work,
                node,
                seen.get(node),
                self._bench.ledger,
                self._bench.settled_s,
                now_unix_s,
                self._bench.limits.manager,
            )
            waits = self._move_node(work, node, move, memory) or waits
        work = self._bench.ledger.works[work.request.key]
        if len(work.nodes) == len(work.request.nodes):
            worst = max((item.outcome for item in work.nodes.values()), key=_WORST.index)
            self._bench.end(work, worst, "; ".join(item.text for item in work.nodes.values()))
        else:
            self._bench.wait(work, memory, waits)

    def _move_node(self, work: Work, node: str, move: Move, memory: Memory) -> str:
        """Return what the node waits for."""
        key, action = work.request.key, work.request.action
        if isinstance(move, Do):
            move = self._forbid_node(work, node, move)
        if isinstance(move, MoveWait):
            return move.text
        if isinstance(move, MoveEnd):
            text = text_of(move, memory)
            subject = _confirmed(work, node, move.outcome)
            self._bench.write(SlurmNodeEnded(key, node, move.outcome, text, subject))
            is_back = action is SchedulerAction.RESUME and move.outcome is SlurmOutcome.DONE
            if is_back and self._bench.ledger.history(node).is_ours:
                self._bench.write(
                    SlurmDrainOver(node, work.request.reason or "taken back by rankmend")
                )
            return ""
        assert isinstance(move, Do), move
        self._bench.write(SlurmActs(key, move.act, node))
        if move.act is SlurmAct.DRAIN:
            self._bench.client.drain(node, reason_of(key, work.request.reason))
        elif move.act is SlurmAct.UNDRAIN:
            self._bench.client.undrain(node)
        else:
            self._bench.client.reboot(node, reason_of(key, work.request.reason))
        memory.error = ""
        return f"{node}: {move.act.value} is read back"

    def _forbid_node(self, work: Work, node: str, move: Do) -> Move:
        if self._asks_owner(work, node, move) and self._owners_asked >= OWNERS_ASKED_MAX:
            return MoveWait(f"{node}: others of the request come first")
        if self._is_foreign(work, node, move):
            waited_s = self._bench.clock.unix_s() - work.asked_unix_s
            if work.request.job_id and 0.0 <= waited_s < WORD_S:
                return MoveWait(f"{node}: the word of the node's agent about the job there")
            owner, manager = work.request.subject, self._bench.limits.manager
            return MoveEnd(SlurmOutcome.REFUSED, refuse(OutsideAct.DRAIN, node, owner, manager))
        if not self._bench.limits.allows(work.request.action):
            return MoveEnd(SlurmOutcome.DRY, f"would {move.act.value} {node}")
        if move.act is SlurmAct.DRAIN and not work.did(move.act, node):
            count, now_unix_s = self._bench.client.node_count(), self._bench.clock.unix_s()
            limits, sharer = self._bench.limits, work.request.sharer
            why = refuse_drain(self._bench.ledger, limits, count, now_unix_s, sharer)
            if why is not None:
                return MoveEnd(SlurmOutcome.REFUSED, f"{node} is not drained: {why}")
        return move

    def _is_foreign(self, work: Work, node: str, move: Do) -> bool:
        """Return whether only launchers accuse a node on which the manager has nothing of their owner's."""
        if not self._asks_owner(work, node, move):
            return False
        self._owners_asked += 1
        client = self._bench.client
        proved = {pod.pod for pod in self._bench.ledger.pods_proved.values() if pod.node == node}
        is_there = client.has_pod(node, sorted(proved.intersection(work.request.pods)))
        is_there = is_there or work.request.subject in client.subjects_on(node)
        witness = Witness.SCHEDULER if is_there else Witness.LAUNCHER
        return not allows(OutsideAct.DRAIN, {witness})

    def _asks_owner(self, work: Work, node: str, move: Do) -> bool:
        """Return whether the manager has to confirm the owner before the node is drained."""
        is_first = move.act is SlurmAct.DRAIN and not work.did(move.act, node)
        return is_first and _needs_word(work, node)

    def look_at_drains(self) -> Mapping[str, ManagedNode]:
        """See which of our drains somebody has ended, and return the nodes as their manager reports them."""
        ours = self._bench.ledger.ours
        if not ours:
            return {}
        seen = self._bench.client.nodes(ours)
        self._bench.note_answer()
        busy = {node for work in self._bench.ledger.open for node in work.request.nodes}
        for node in ours:
            if node in busy:
                continue
            why = _drain_over(self._bench.ledger, node, seen.get(node), self._bench.limits.manager)
            if why is not None:
                self._bench.write(SlurmDrainOver(node, why))
                log.info("a drain of ours is over", extra={"node": node, "why": why})
        return seen

    def look_for_others(self, nodes: Sequence[str]) -> None:
        """Journal once each drain that somebody else has put on one of these nodes."""
        ledger = self._bench.ledger
        known = {(item.node, item.reason) for _at_s, item in ledger.drains_seen}
        wanted = [node for node in nodes if not ledger.history(node).is_ours]
        for node, seen in self._bench.client.nodes(wanted).items() if wanted else ():
            if seen.is_drained and (node, seen.reason) not in known:
                self._bench.write(SlurmDrainSeen(node, seen.reason_by, seen.reason))


def _needs_word(work: Work, node: str) -> bool:
    return bool(work.request.subject) and node not in work.request.vouched


def _confirmed(work: Work, node: str, outcome: SlurmOutcome) -> str:
    """Return the owner whom the manager had on the node: it was asked before anything was done, or would have been."""
    is_done = outcome is SlurmOutcome.DRY or bool(work.did(SlurmAct.DRAIN, node))
    return work.request.subject if _needs_word(work, node) and is_done else ""


def _drain_over(
    ledger: SlurmLedger, node: str, seen: ManagedNode | None, manager: str
) -> str | None:
    if seen is None:
        return f"{manager} does not know the node any more"
    if not seen.is_drained:
        return "somebody has taken the drain back"
    if not ledger.is_our_mark(node, mark_in(seen.reason)):
        by = f" by {seen.reason_by}" if seen.reason_by else ""
        return f"the reason was changed{by}: {seen.reason}"
    return None
