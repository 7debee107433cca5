"""Findings of one node: how the looks of its checks begin and end them.

`looks.observe` turns the collectors' answers into looks. `judge` lets looks begin and end findings
(detectors/persistence.py). `list_findings` adds what takes all of them together: the driver's
verdict, which overrides the action of every row for the same device, and the ranks on that device.
All three are pure; the state between two calls is a value that can be saved and restored.

Missing data is never healthy: a check whose collector is silent neither begins nor ends a finding.
A finding ends some time after a working collector stops reporting its series.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from detectors.finding import Action, Severity
from detectors.node.checks import Check
from detectors.node.node_state import (
    CheckLook,
    HeldFinding,
    NodeFinding,
    NodeState,
    Snapshot,
    device_of,
    finding_id,
    uuid_of,
)
from detectors.node.rank_places import RankPlaces
from detectors.persistence import (
    after_reboot,
    is_forgotten,
    look,
    released,
    shifted,
    vanished,
)

HELD_MAX: Final = 2_000  # subjects; a node of 8 GPUs and 10 NICs has about 2,000 series in all
ABSENT_S: Final = 600.0  # as long as gpud keeps a port's state (sticky window, 10 min)

_MENDED_BY_BOOT: Final = frozenset({Action.RESTART_APP, Action.RESET_GPU, Action.REBOOT})

_SEVERITIES: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def judge(
    state: NodeState,
    observations: Iterable[CheckLook],
    snapshot: Snapshot,
    now_s: float,
    unix_s: float,
) -> NodeState:
    """Return the state after these looks; subjects without a look end unless their collector is silent."""
    held, dropped, seen = dict(state.held), state.dropped, set()
    for observation in observations:
        key = finding_id(observation.check, observation.labels)
        seen.add(key)
        before = held.get(key)
        if before is None and len(held) >= HELD_MAX:
            dropped += 1
            continue
        track = look(
            before.track if before else None,
            observation.persistence,
            is_bad=observation.is_bad,
            at_s=observation.at_s,
        )
        if track is None:
            continue
        if observation.is_withdrawn:
            track = released(track)
        newest = observation if before is None or observation.is_bad else before.seen
        held[key] = _dated(
            HeldFinding(newest, track, before.started_unix_s if before else None), now_s, unix_s
        )
    for key, subject in state.held.items():
        if key in seen:
            continue
        if subject.seen.collector not in snapshot.silent:
            gone = vanished(subject.track, now_s, ABSENT_S)
            held[key] = _dated(replace(subject, track=gone), now_s, unix_s)
        if is_forgotten(held[key].track, now_s):
            del held[key]
    return replace(state, held=held, dropped=dropped)


def _dated(subject: HeldFinding, now_s: float, unix_s: float) -> HeldFinding:
    """Return the subject with the date of its start, taken once because clocks jump."""
    track = subject.track
    if not track.is_active:
        return replace(subject, started_unix_s=None)
    if subject.started_unix_s is not None or track.since_s is None:
        return subject
    return replace(subject, started_unix_s=unix_s - max(0.0, now_s - track.since_s))


def list_findings(state: NodeState, snapshot: Snapshot, now_s: float) -> tuple[NodeFinding, ...]:
    """Return the active findings, the worst first."""
    active = {key: subject for key, subject in state.held.items() if subject.track.is_active}
    if not active:
        return ()
    verdicts = {
        uuid_of(subject.seen.labels): subject.seen
        for subject in active.values()
        if subject.seen.overrules
    }
    checks = frozenset(subject.seen.check for subject in active.values())
    ranks = RankPlaces(snapshot)
    findings = [_finding(key, active[key], verdicts, checks, ranks, now_s) for key in active]
    return tuple(sorted(findings, key=_order))


def _finding(
    key: str,
    subject: HeldFinding,
    verdicts: Mapping[str, CheckLook],
    checks: AbstractSet[str],
    ranks: RankPlaces,
    now_s: float,
) -> NodeFinding:
    seen, track = subject.seen, subject.track
    action, reason = _action(subject, verdicts.get(uuid_of(seen.labels)), checks)
    assert track.since_s is not None, "an active finding has a start"
    return NodeFinding(
        id=key,
        check=seen.check,
        component=seen.component,
        device=device_of(seen.labels),
        labels=seen.labels,
        severity=seen.severity,
        action=action,
        reason=reason,
        summary=seen.summary,
        evidence=seen.evidence,
        source=seen.source,
        since_age_s=max(0.0, now_s - track.since_s),
        started_unix_s=subject.started_unix_s or 0.0,
        ranks=ranks.hit_by(seen),
        is_flapping=track.is_flapping,
        is_latched=track.is_latched,
        raises=track.raises,
        boots=track.bad_boots,
        kernel=seen.kernel,
    )


def _action(
    subject: HeldFinding, verdict: CheckLook | None, checks: AbstractSet[str]
) -> tuple[Action, str]:
    """Return what to do and why: by the row, checks beside it, the driver's verdict and past reboots."""
    seen = subject.seen
    action, reason = seen.action, ""
    if agreeing := sorted(set(seen.beside) & checks):
        action, reason = seen.beside_action, f"with {', '.join(agreeing)}"
    if verdict is not None and not seen.overrules and action not in (Action.NONE, Action.WATCH):
        action, reason = verdict.action, f"the driver's verdict: {verdict.summary}"
    boots = subject.track.bad_boots
    if seen.reboots_max is not None and boots > seen.reboots_max and action in _MENDED_BY_BOOT:
        return Action.CONTACT_SUPPORT, f"came back after {boots - 1} reboots"
    return action, reason


def _order(finding: NodeFinding) -> tuple[int, str]:
    return _SEVERITIES[finding.severity], finding.id


def release(state: NodeState, key: str) -> NodeState | None:
    """Return the state without one finding's latch, or None if it has none."""
    subject = state.held.get(key)
    if subject is None or not subject.track.is_latched:
        return None
    return replace(state, held={**state.held, key: replace(subject, track=released(subject.track))})


def restore(state: NodeState, shift_s: float, *, is_new_boot: bool) -> NodeState:
    """Return a saved state ready to continue, in this boot or in a later one with another clock."""
    if not is_new_boot:
        return state
    held = {
        key: replace(
            subject,
            track=after_reboot(shifted(subject.track, shift_s), subject.seen.persistence),
        )
        for key, subject in state.held.items()
    }
    return replace(state, held=held, growths={}, looked_at_s={})


def blocked_checks(state: NodeState, checks: Iterable[Check], snapshot: Snapshot) -> list[str]:
    """Return the checks that can't run because their collector is silent."""
    if not snapshot.silent:
        return []
    silent = {
        metric for metric, collector in state.collectors.items() if collector in snapshot.silent
    }
    return (
        [check.name for check in checks if not silent.isdisjoint(check.metrics)] if silent else []
    )
