"""What to do next about one node of a request: drain, resume or reboot. Pure.

A node that a person has drained, taken down or reserved is left as it is, and so is one whose reason in Slurm is not ours.
"""

from typing import Final

from recovery.journal.slurm_records import SlurmAct, SlurmOutcome
from recovery.schedulers.slurm.ledger import SlurmLedger, Work
from recovery.schedulers.slurm.managed_node import ManagedNode
from recovery.schedulers.slurm.requests import Do, Move, MoveEnd, MoveWait, SchedulerAction, mark_in

TRIES: Final = 3  # of one command on one node
# By so much the clocks of a manager and of the controller may differ: a node that is newer than a request is another machine of the same name.
SKEW_S: Final = 60.0
# What Slurm itself gives as the reason of a node that it takes down.
_SLURMS: Final = frozenset({"Not responding", "Node unexpectedly rebooted"})


def next_node_move(
    work: Work,
    node: str,
    seen: ManagedNode | None,
    ledger: SlurmLedger,
    settled_s: float,
    now_unix_s: float,
    manager: str = "Slurm",
) -> Move:
    """Return what to do; ``settled_s``: after it a command that was begun has had its effect, or has none."""
    if seen is None:
        return MoveEnd(SlurmOutcome.FAILED, f"{manager} has no node {node}")
    is_ours = ledger.is_our_mark(node, mark_in(seen.reason))
    action = work.request.action
    if is_newer(seen, work) and not is_ours and action is not SchedulerAction.RESUME:
        return MoveEnd(SlurmOutcome.LEFT, f"{node} was made anew since: it may be another machine")
    if action is SchedulerAction.DRAIN:
        due = _due(work, SlurmAct.DRAIN, node, settled_s, now_unix_s)
        return _drain(seen, is_ours=is_ours, due=due)
    if action is SchedulerAction.RESUME:
        due = _due(work, SlurmAct.UNDRAIN, node, settled_s, now_unix_s)
        return _resume(seen, is_ours=is_ours, due=due)
    return _reboot(work, seen, due=_due(work, SlurmAct.REBOOT, node, settled_s, now_unix_s))


def is_newer(seen: ManagedNode, work: Work) -> bool:
    """Return whether the manager has got the node after the request was asked: what it was asked for is of another one."""
    return seen.made_unix_s is not None and seen.made_unix_s > work.asked_unix_s + SKEW_S


def _due(work: Work, act: SlurmAct, node: str, settled_s: float, now_unix_s: float) -> Move | None:
    """Return what to do in place of running the command (again), or None."""
    done = work.did(act, node)
    if done and now_unix_s - done[-1].unix_s < settled_s:
        return MoveWait(f"{node}: {act.value} is under way")
    if len(done) >= TRIES:
        return MoveEnd(SlurmOutcome.FAILED, f"{node}: {act.value} had no effect {TRIES} times")
    return None


def persons_hold(seen: ManagedNode) -> str | None:
    """Return why the node is a person's and not to be touched, or None. Asked of nodes that are not ours."""
    by = f" by {seen.reason_by}" if seen.reason_by else ""
    why = f": {seen.reason}" if seen.reason else ""
    if seen.is_drained:
        return f"{seen.name} is drained{by}{why}"
    if seen.is_down and seen.reason not in _SLURMS:
        return f"{seen.name} was taken down{by}{why}"
    if "MAINT" in seen.flags:
        return f"{seen.name} is reserved for maintenance"
    return None


def _drain(seen: ManagedNode, *, is_ours: bool, due: Move | None) -> Move:
    if is_ours and seen.is_drained:
        return MoveEnd(SlurmOutcome.DONE, f"{seen.name} is drained: {seen.reason}")
    if (why := persons_hold(seen)) is not None:
        return MoveEnd(SlurmOutcome.LEFT, why)
    return due or Do(SlurmAct.DRAIN, seen.name)


def _resume(seen: ManagedNode, *, is_ours: bool, due: Move | None) -> Move:
    if not seen.is_drained:
        return MoveEnd(SlurmOutcome.DONE, f"{seen.name} is not drained")
    if not is_ours:
        return MoveEnd(SlurmOutcome.LEFT, persons_hold(seen) or f"{seen.name} is not ours")
    return due or Do(SlurmAct.UNDRAIN, seen.name)


def _reboot(work: Work, seen: ManagedNode, *, due: Move | None) -> Move:
    done = work.did(SlurmAct.REBOOT, seen.name)
    if done and (seen.is_rebooting or (seen.boot_unix_s or 0.0) > done[0].unix_s):
        return MoveEnd(SlurmOutcome.DONE, f"{seen.name} restarts as soon as it is empty")
    if seen.is_rebooting:
        return MoveEnd(SlurmOutcome.LEFT, f"{seen.name} is about to restart already")
    if seen.is_drained:
        # A drain of ours, too: `nextstate=resume` would take it back without a check.
        return MoveEnd(SlurmOutcome.LEFT, persons_hold(seen) or f"{seen.name} is drained")
    if (why := persons_hold(seen)) is not None:
        return MoveEnd(SlurmOutcome.LEFT, why)
    return due or Do(SlurmAct.REBOOT, seen.name)
