"""Findings of the agent's page as conditions and events of the node. Pure.

A condition has the finding's check as its type, RankmendGpuLost, and is True while the check finds something. Node Problem Detector has
the same convention, so what reads its conditions reads ours. An event stands for one finding, by its id and its beginning.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from detectors.finding import Severity
from detectors.node.node_alerts import alert_name
from rankmend.errors import SourceError
from rankmend.printable import printable

PREFIX: Final = "Rankmend"  # of the types that are ours
CONDITIONS_MAX: Final = 32  # that are true
TYPES_MAX: Final = 128  # of ours that a node ever gets: what is no longer found stays, as False
NAMESPACE: Final = "default"  # of events about nodes, as the kubelet has it
_TEXT_MAX: Final = 500
_KIND_MAX: Final = 100
_NAME_MAX: Final = 253  # of an object, as of the node
_TIME_MAX_S: Final = 253_402_300_799.0  # the end of 9999, the last year of Kubernetes' times
_RANKING: Final = {Severity.CRITICAL.value: 0, Severity.WARNING.value: 1}  # info is told nobody


class _Finding(msgspec.Struct):
    id: str
    check: str
    severity: str
    action: str
    summary: str
    since: float  # unix seconds
    is_silenced: bool = False


class _Page(msgspec.Struct):
    findings: list[_Finding]


@dataclass(frozen=True, slots=True)
class PublishedFinding:
    id: str
    kind: str  # RankmendGpuLost
    severity: str
    text: str
    since_unix_s: float


def read_page(data: bytes) -> tuple[PublishedFinding, ...]:
    """Return what a node's page /api/v1/findings has that others are to see, the worst and oldest first."""
    try:
        page = msgspec.json.decode(data, type=_Page)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise SourceError(f"not the agent's page of findings: {error}") from error
    shown = [
        finding
        for finding in page.findings
        if finding.severity in _RANKING and not finding.is_silenced
    ]
    shown.sort(key=lambda finding: (_RANKING[finding.severity], finding.since, finding.id))
    return tuple(
        PublishedFinding(
            finding.id,
            _kind_of(finding.check),
            finding.severity,
            printable(f"{finding.summary} (action: {finding.action})")[:_TEXT_MAX],
            finding.since,
        )
        for finding in shown
    )


def _kind_of(check: str) -> str:
    """Return the type of a check's condition: letters and digits, as those of others are."""
    name = alert_name(check[:_KIND_MAX])
    return "".join(char for char in name if char.isascii() and char.isalnum())[:_KIND_MAX]


def conditions_for(
    found: Sequence[PublishedFinding], known: Mapping[str, str], now_unix_s: float
) -> list[dict[str, str]]:
    """Return the conditions to set; ``known``: status by type of ours that the node has, which end where nothing is found."""
    by_kind: dict[str, list[PublishedFinding]] = {}
    room = TYPES_MAX - len(known)
    for finding in found:
        if finding.kind not in by_kind and finding.kind not in known:
            if room <= 0:
                continue
            room -= 1
        by_kind.setdefault(finding.kind, []).append(finding)
    firing = dict(list(by_kind.items())[:CONDITIONS_MAX])
    conditions = [
        _condition(
            kind,
            "True",
            ones[0].severity.capitalize(),
            "; ".join(item.text for item in ones)[:_TEXT_MAX],
            min(item.since_unix_s for item in ones),
        )
        for kind, ones in firing.items()
    ]
    held = {kind for kind, status in known.items() if status != "False"}
    ended = sorted(held - firing.keys())
    return conditions + [
        _condition(kind, "False", "NothingFound", "nothing is found any more", now_unix_s)
        for kind in ended
    ]


def unknown_conditions(known: Iterable[str], why: str, now_unix_s: float) -> list[dict[str, str]]:
    """Return what to say of conditions that nobody checks: the agent does not answer."""
    return [
        _condition(kind, "Unknown", "AgentSilent", printable(why)[:_TEXT_MAX], now_unix_s)
        for kind in sorted(known)
    ]


def our_types(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the status of each condition of ours on a node's object, by type."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return {
        str(condition.get("type")): str(condition.get("status"))
        for condition in conditions
        if str(condition.get("type", "")).startswith(PREFIX)
    }


def event_of(node: str, finding: PublishedFinding) -> dict[str, Any]:
    """Return the event of a finding: the same finding has the same name, so it is there once."""
    mark = hashlib.sha256(f"{finding.id}/{finding.since_unix_s:.3f}".encode()).hexdigest()[:16]
    at = _time(finding.since_unix_s)
    return {
        "metadata": {
            "name": f"{node[: _NAME_MAX - len(mark) - 1].rstrip('.-')}.{mark}",
            "namespace": NAMESPACE,
        },
        # The kubelet's own events about its node have the name in place of the UID, too: kubectl describe looks for it.
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        "type": "Warning",
        "reason": finding.kind,
        "message": finding.text,
        "source": {"component": "rankmend-agent", "host": node},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _condition(kind: str, status: str, reason: str, text: str, since_s: float) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": text,
        "lastTransitionTime": _time(since_s),
    }


def _time(unix_s: float) -> str:
    known_s = min(max(unix_s, 0.0), _TIME_MAX_S)
    return datetime.fromtimestamp(known_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
