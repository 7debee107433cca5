"""Decides what one node's launcher does next, from the newest order and the present state. Pure.

Level-triggered: an order names the ranks and the attempt that should run, and the launcher acts on the
difference to what runs. The loop observes, decides and acts until nothing is left to do.

- Ranks of a new attempt start only once no process of an older one is left.
- An attempt that was reported as gone stays gone, even if it is ordered again.
- Evidence that an order requests is collected before the ranks are killed, within the order's time.
- The checkpoint that an attempt restores is held until every rank here trains. A rank that makes a second
  step has received the others' share of the first, so by then all have read it.
- A lease ends with its attempt, and is not prolonged once the ranks are being killed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from recovery.launcher.decision.launcher_state import (
    AskForFence,
    AskRanksToStop,
    CollectEvidence,
    ContinueRanks,
    FindCheckpoints,
    ForgetAttempt,
    KeepLease,
    KeptLease,
    KillThrough,
    LauncherAction,
    LauncherDecision,
    LauncherState,
    LeaseRanks,
    Leave,
    ReleaseCheckpoint,
    StartRanks,
    WatchCheckpoints,
)
from recovery.messages.candidates import Share
from recovery.messages.exchange import Order, Stop

FENCE_S_MAX: Final = 60.0  # for the storage to accept the fence, as policy.fence_timeout_s
LEASE_STEP_S: Final = 0.25  # a smaller change of the lease is not worth a message to the guardian
# Wait before a planned stop without the controller, which answers within milliseconds and restarts
# within seconds. Slurm's KillWait is 30 s.
STOP_ALONE_S: Final = 5.0
LEFTOVER_S: Final = 5.0  # for children that outlive their ranks, if all ranks ended with 0

_Rule = Callable[[Order | None, LauncherState, float], LauncherDecision]


def decide(order: Order | None, state: LauncherState, now_s: float) -> LauncherDecision:
    """Return the next actions and the state after them; without actions nothing is due.

    ``order``: the newest one, None before the first. ``now_s``: monotonic.
    """
    actions: list[LauncherAction] = []
    for rule in _RULES:
        decision = rule(order, state, now_s)
        state = decision.state
        actions += decision.actions
    return LauncherDecision(state, tuple(actions))


def _end_leftovers(_order: Order | None, state: LauncherState, now_s: float) -> LauncherDecision:
    """Give surviving children of an attempt that ended by itself a moment, then send SIGKILL."""
    attempt = state.attempt
    if attempt is None or not attempt.rank_count or not attempt.has_ended:
        return LauncherDecision(replace(state, leftover_until_s=None))
    if state.kill_sent_through >= attempt.number:
        return LauncherDecision(state)
    until_s = state.leftover_until_s
    if until_s is None:
        until_s = now_s + LEFTOVER_S
    state = replace(state, leftover_until_s=until_s)
    if attempt.has_leftovers and now_s < until_s:
        return LauncherDecision(state)
    return _kill(state, attempt.number)


def _stop_alone(order: Order | None, state: LauncherState, now_s: float) -> LauncherDecision:
    """Make a planned stop without an order, if no controller sends one."""
    if state.stop_asked_at_s is None or (order is not None and order.stop is Stop.GRACE):
        return LauncherDecision(state)
    if now_s - state.stop_asked_at_s < STOP_ALONE_S:
        return LauncherDecision(state)
    attempt = state.attempt
    if attempt is None or state.empty_through >= attempt.number:
        return LauncherDecision(state, (Leave(),))
    if state.grace_until_s is not None:
        return LauncherDecision(state)
    state = replace(state, grace_until_s=now_s + state.grace_s)
    return LauncherDecision(state, (AskRanksToStop(attempt.number, is_alone=True),))


def _keep_lease(order: Order | None, state: LauncherState, _now_s: float) -> LauncherDecision:
    """Set the end of the lease at the guardian, and have the peers renew it."""
    attempt = state.attempt
    if attempt is None or state.empty_through >= attempt.number:
        return _drop_lease(state)
    if order is None or order.attempt != attempt.number:
        return LauncherDecision(state)  # it is being stopped; the lease continues
    if state.kill_sent_through >= attempt.number:
        return LauncherDecision(state)
    lease = _lease_of(order)
    if not order.ranks and order.stop is Stop.GRACE:
        lease = state.lease  # for as long as the ranks may take to save
    if lease is None:
        return LauncherDecision(state)
    actions: list[LauncherAction] = []
    if lease != state.lease:
        actions.append(KeepLease(lease))
        state = replace(state, lease=lease)
    until_s, told_s = state.reached_at_s + lease.lease_s, state.leased_until_s
    if told_s is None or abs(until_s - told_s) >= LEASE_STEP_S:
        actions.append(LeaseRanks(attempt.number, until_s, lease.kill_bound_s))
        state = replace(state, leased_until_s=until_s)
    return LauncherDecision(state, tuple(actions))


def _lease_of(order: Order) -> KeptLease | None:
    if not order.ranks or order.lease_s <= 0:
        return None
    return KeptLease(
        order.attempt, order.peers, order.lease_s, order.neighbours, order.kill_bound_s
    )


def _drop_lease(state: LauncherState) -> LauncherDecision:
    actions: list[LauncherAction] = []
    if state.leased_until_s is not None:
        actions.append(LeaseRanks(0, None))
    if state.lease is not None:
        actions.append(KeepLease(None))
    return LauncherDecision(replace(state, lease=None, leased_until_s=None), tuple(actions))


def _reconcile(order: Order | None, state: LauncherState, now_s: float) -> LauncherDecision:
    """Make the running ranks match the order."""
    if order is None or state.carried == (order.epoch, order.revision):
        return _enforce_grace(state, now_s)
    attempt = state.attempt
    actions: list[LauncherAction] = []
    if attempt is None or attempt.number != order.attempt or not order.ranks:
        may_start = bool(order.ranks) and order.attempt > state.empty_through
        gone_through = order.attempt - 1 if may_start else order.attempt
        if attempt is not None:
            gone_through = max(gone_through, attempt.number)
        if state.empty_through < gone_through:
            return _stop_ranks(order, state, gone_through, now_s)
        collected = _collect(order, state)  # dumps that dead ranks left behind
        state = collected.state
        actions += collected.actions
        if attempt is not None:
            actions.append(ForgetAttempt(attempt.number))
            state = replace(state, attempt=None)
        if may_start:
            requested = _request_fence(order, state, now_s)
            state = requested.state
            actions += requested.actions
            if not _has_fence_answer(order, state, now_s):
                return LauncherDecision(state, tuple(actions))
            actions.append(StartRanks(order))
    look = _look_for_checkpoints(order, state)
    state = replace(look.state, carried=(order.epoch, order.revision))
    return LauncherDecision(state, (*actions, *look.actions))


def _enforce_grace(state: LauncherState, now_s: float) -> LauncherDecision:
    """Kill once the grace period is over, also if a second interrupt ended it without an order."""
    attempt, until_s = state.attempt, state.grace_until_s
    is_due = until_s is not None and now_s >= until_s
    if attempt is None or not is_due or state.kill_sent_through >= attempt.number:
        return LauncherDecision(state)
    return _kill(state, attempt.number)


def _stop_ranks(order: Order, state: LauncherState, through: int, now_s: float) -> LauncherDecision:
    attempt = state.attempt
    if order.stop is Stop.GRACE and attempt is not None and not attempt.has_ended:
        if state.grace_until_s is None:
            state = replace(state, grace_until_s=now_s + order.grace_s)
            return LauncherDecision(state, (AskRanksToStop(attempt.number),))
        if now_s < state.grace_until_s:
            return LauncherDecision(state)
    if state.kill_sent_through >= through:
        return LauncherDecision(state)
    collecting = _collect(order, state)
    if collecting.actions:
        return collecting
    if order.collect is not None and attempt is not None and state.evidence_wait_s > 0:
        return LauncherDecision(state)
    return _kill(state, through)


def _kill(state: LauncherState, through: int) -> LauncherDecision:
    return LauncherDecision(replace(state, kill_sent_through=through), (KillThrough(through),))


def _collect(order: Order, state: LauncherState) -> LauncherDecision:
    """Start collecting the evidence that the order requests, once per incident and attempt."""
    attempt = state.attempt
    if order.collect is None or not state.can_collect or attempt is None:
        return LauncherDecision(state)
    wanted = (order.collect, attempt.number)
    if state.collected_for == wanted:
        return LauncherDecision(state)
    within_s = 0.0 if attempt.has_ended else order.collect_s
    action = CollectEvidence(order.collect, attempt.number, within_s)
    return LauncherDecision(replace(state, collected_for=wanted), (action,))


def _request_fence(order: Order, state: LauncherState, now_s: float) -> LauncherDecision:
    is_asked = state.fence_asked is not None and state.fence_asked[0] == order.attempt
    if is_asked:
        return LauncherDecision(state)
    path = None if order.restore is None else order.restore.path
    state = replace(state, fence_asked=(order.attempt, now_s), pinned_attempt=order.attempt)
    return LauncherDecision(state, (AskForFence(order.attempt, path),))


def _has_fence_answer(order: Order, state: LauncherState, now_s: float) -> bool:
    """Return whether the storage has answered about the fence, or has taken too long."""
    if state.fenced_attempt == order.attempt:
        return True
    assert state.fence_asked is not None, "asked just before"
    return now_s - state.fence_asked[1] >= FENCE_S_MAX


def _release_checkpoint(
    _order: Order | None, state: LauncherState, _now_s: float
) -> LauncherDecision:
    attempt, pinned = state.attempt, state.pinned_attempt
    if pinned is None or attempt is None or attempt.number != pinned or not attempt.rank_count:
        return LauncherDecision(state)
    if attempt.has_ended or not attempt.is_stepping:
        return LauncherDecision(state)
    return LauncherDecision(replace(state, pinned_attempt=None), (ReleaseCheckpoint(pinned),))


def _look_for_checkpoints(order: Order, state: LauncherState) -> LauncherDecision:
    if order.ranks:
        has_share = order.share is not None or order.finds_checkpoints
        watch = (WatchCheckpoints(order.share or Share()),) if has_share else ()
        return LauncherDecision(state, watch)
    if not order.finds_checkpoints:
        return LauncherDecision(state)
    wanted = (order.epoch, order.revision)
    if state.found_for == wanted:
        return LauncherDecision(state)
    action = FindCheckpoints(state.empty_through, order.revision, order.share or Share())
    return LauncherDecision(replace(state, found_for=wanted), (action,))


def _continue_ranks(order: Order | None, state: LauncherState, _now_s: float) -> LauncherDecision:
    """Let stopped ranks go on, once for each record that asks for it."""
    attempt = state.attempt
    if order is None or not order.continues or attempt is None or attempt.number != order.attempt:
        return LauncherDecision(state)
    requested = order.continue_number
    if state.continued == requested or state.kill_sent_through >= attempt.number:
        return LauncherDecision(state)
    action = ContinueRanks(attempt.number, order.continues)
    return LauncherDecision(replace(state, continued=requested), (action,))


_RULES: Final[tuple[_Rule, ...]] = (
    _keep_lease,
    _end_leftovers,
    _stop_alone,
    _continue_ranks,
    _release_checkpoint,
    _reconcile,
)
