"""The pace of a launcher's reports, and when standbys may use CPU time. Pure."""

from typing import Final

from recovery.launcher.decision.launcher_state import LauncherState
from recovery.messages.exchange import Order

REPORT_S: Final = 0.5  # while all ranks step
REPORT_FAST_S: Final = 0.05  # from an order until every rank has made two steps
HURRY_S_MAX: Final = 300.0  # and no longer than this
# To a controller over the network, which accepts ten reports a second per node, including those
# about events.
REMOTE_REPORT_S_MIN: Final = 0.2
# Reports that one controller handles easily in a second: one each from 2,000 nodes.
REPORTS_PER_S_MAX: Final = 2000.0


def is_in_a_hurry(order: Order | None, state: LauncherState, now_s: float) -> bool:
    """Return whether to report often: an order is pending, or ranks are starting."""
    if order is not None and state.carried < (order.epoch, order.revision):
        return True
    attempt = state.attempt
    if attempt is None or now_s - attempt.started_at_s > HURRY_S_MAX:
        return False  # the latter: ranks that report no steps
    return not attempt.is_stepping


def is_calm(order: Order | None, state: LauncherState, now_s: float) -> bool:
    """Return whether every rank trains, so that standbys may use CPU time."""
    attempt = state.attempt
    if attempt is None or order is None or state.stop_asked_at_s is not None:
        return False
    return attempt.is_started and not is_in_a_hurry(order, state, now_s)


def report_pause_s(order: Order | None, state: LauncherState, now_s: float) -> float:
    """Return the pause between two reports."""
    pause_s = REPORT_FAST_S if is_in_a_hurry(order, state, now_s) else REPORT_S
    pause_s = max(pause_s, state.report_pause_min_s)
    return shared_pause_s(pause_s, 1 if order is None else order.group_count)


def shared_pause_s(pause_s: float, group_count: int) -> float:
    """Return each launcher's pause between two reports, for this many launchers; at least ``pause_s``."""
    return max(pause_s, group_count / REPORTS_PER_S_MAX)


def wait_s(order: Order | None, state: LauncherState, reported_at_s: float, now_s: float) -> float:
    """Return how long the loop may sleep if nothing happens."""
    until_s = reported_at_s + report_pause_s(order, state, now_s)
    for deadline_s in (state.grace_until_s, state.leftover_until_s):
        if deadline_s is not None:
            until_s = min(until_s, deadline_s)
    if state.evidence_wait_s > 0:
        until_s = min(until_s, now_s + state.evidence_wait_s)
    return max(0.0, until_s - now_s)
