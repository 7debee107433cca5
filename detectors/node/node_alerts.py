"""A node's finding in the form of an alert."""

import re
from functools import lru_cache
from typing import Final

from detectors.node.node_state import NodeFinding, uuid_of

RULE_NAME: Final = (
    "RankmendFinding"  # Prometheus' one rule for all findings; its label `check` says which
)


def own_name(alertname: str, check: str) -> str:
    """Return the name under which the agent itself sends this alert, whichever way it came."""
    return alert_name(check) if alertname == RULE_NAME and check else alertname


@lru_cache(maxsize=1_024)
def alert_name(check: str) -> str:
    """Return a check's name in the form of an alert's: ``RankmendGpuLost``."""
    return "Rankmend" + "".join(part.capitalize() for part in check.split("_"))


def check_of(alertname: str) -> str:
    """Return the check by whose name `alert_name` makes this one; of other alerts something that is no check."""
    words = re.findall(r"[A-Z][a-z0-9]*", alertname.removeprefix("Rankmend"))
    return "_".join(word.lower() for word in words)


def alert_labels(finding: NodeFinding, node: str) -> dict[str, str]:
    """Return the labels under which a finding travels: those of detectors.finding.LABELS only."""
    labels = {
        "alertname": alert_name(finding.check),
        "node": node,
        "severity": finding.severity.value,
        "uuid": uuid_of(finding.labels),
        "device": finding.device,
    }
    return {name: value for name, value in labels.items() if value}


def alert_annotations(finding: NodeFinding) -> dict[str, str]:
    """Return what an alert says beside its labels. Ranks change while the fault stays: no label."""
    ranks = ", ".join(f"{rank.job_id}:{rank.rank}" for rank in finding.ranks)
    texts = {
        "summary": finding.summary,
        "action": finding.action.value,
        "reason": finding.reason,
        "component": finding.component.value,
        "check": finding.check,
        "finding": finding.id,
        "ranks": ranks,
        "description": "\n".join(finding.evidence),
        "source": finding.source,
    }
    return {name: value for name, value in texts.items() if value}
