"""Findings as JSON: the page /api/v1/findings, and one finding in the journal."""

from dataclasses import asdict, dataclass
from typing import Any

from detectors.node.node_alerts import alert_labels, alert_name
from detectors.node.node_state import NodeFinding


@dataclass(frozen=True, slots=True)
class FindingsView:
    """All findings as they stood at one time."""

    at_s: float
    findings: tuple[NodeFinding, ...] = ()
    silenced: frozenset[str] = frozenset()  # ids
    blocked: tuple[str, ...] = ()  # checks that can't run
    silent: tuple[str, ...] = ()  # collectors that are broken, stuck or not yet heard
    checks: int = 0
    looks: int = 0  # rounds so far; 0 says that nothing has been looked at


def describe(finding: NodeFinding) -> dict[str, Any]:
    """Return a finding as the journal and the page /api/v1/findings show it."""
    return {
        "id": finding.id,
        "check": finding.check,
        "component": finding.component.value,
        "device": finding.device,
        "labels": dict(finding.labels),
        "severity": finding.severity.value,
        "action": finding.action.value,
        "reason": finding.reason,
        "summary": finding.summary,
        "evidence": list(finding.evidence),
        "source": finding.source,
        "since": round(finding.started_unix_s, 3),
        "since_age_s": round(finding.since_age_s, 3),
        "ranks": [{"job_id": rank.job_id, "rank": rank.rank} for rank in finding.ranks],
        "is_flapping": finding.is_flapping,
        "is_latched": finding.is_latched,
        "raises": finding.raises,
        "boots": finding.boots,
        "kernel": None if finding.kernel is None else asdict(finding.kernel),
    }


def findings_page(node: str, view: FindingsView, now_s: float) -> dict[str, Any]:
    """Return the page /api/v1/findings."""
    return {
        "node": node,
        "age_s": max(0.0, now_s - view.at_s),
        "looks": view.looks,
        "checks": view.checks,
        "silent": list(view.silent),
        "blocked": list(view.blocked),
        "findings": [
            {
                **describe(finding),
                "is_silenced": finding.id in view.silenced,
                "how_to_silence": how_to_silence(finding, node),
            }
            for finding in view.findings
        ],
    }


def how_to_silence(finding: NodeFinding, node: str) -> dict[str, str]:
    """Return what a person types to have peace: for all, or for this node's agent."""
    labels = alert_labels(finding, node)
    named = " ".join(
        f'{name}="{labels[name]}"' for name in ("node", "uuid", "device") if name in labels
    )
    return {
        "alertmanager": f"amtool silence add alertname={alert_name(finding.check)} {named}",
        "agent": f'[findings] silenced = ["{finding.id}"]',
    }
