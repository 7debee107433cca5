"""What the agent's findings say of a node that is under load. Pure: a findings page in, verdicts out."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from detectors.finding import Action, Severity
from detectors.preflight.verdicts import CheckStanding, CheckVerdict

HEALTH_CHECK: Final = "health"  # the name of all verdicts here
_BROKEN: Final = "collector_broken"  # it has answered, with an error
PREFLIGHT_FINDING: Final = "preflight_failed"  # an earlier check's result says nothing of this one


def judge_health(
    page: Mapping[str, Any], before: Collection[str], *, may_read_all: bool = True
) -> list[CheckVerdict]:
    """Return a verdict for each finding that keeps jobs off a node, and one for collectors without an answer.

    The same rule as that of Slurm's prolog (agent/slurm/fitness.py): critical, not silenced, and with an action that ends
    the use of something. ``before``: ids of findings from before the load; ``may_read_all``: False for a scan by a user without rights: a source
    that is closed to it says nothing of the node.
    """
    verdicts = []
    for found in page["findings"]:
        if found["is_silenced"] or found["severity"] != Severity.CRITICAL.value:
            continue
        if not Action(found["action"]).ends_use:
            continue
        if found.get("check") == PREFLIGHT_FINDING:
            continue
        when = "" if found["id"] in before else ", appeared under load"
        verdicts.append(
            CheckVerdict(
                HEALTH_CHECK,
                found["id"],
                CheckStanding.FAILED,
                f"{found['summary']}{when}",
                found["action"],
                found.get("reason") or "",
            )
        )
    closed = set() if may_read_all else {_collector_of(found) for found in page["findings"]}
    silent = [name for name in page["silent"] if name not in closed]
    skipped = [name for name in page["silent"] if name in closed]
    if skipped:
        text = f"this user can't read the sources of {', '.join(skipped[:8])}"
        verdicts.append(CheckVerdict(HEALTH_CHECK, "collectors", CheckStanding.SKIPPED, text))
    if silent:
        text = f"no answer from {', '.join(silent[:8])}"
        verdicts.append(CheckVerdict(HEALTH_CHECK, "collectors", CheckStanding.SILENT, text))
    if not silent and all(verdict.standing is CheckStanding.SKIPPED for verdict in verdicts):
        text = f"{page['checks']} rules, by {page['asked']}"
        verdicts.append(CheckVerdict(HEALTH_CHECK, "node", CheckStanding.PASSED, text))
    return verdicts


def _collector_of(found: Mapping[str, Any]) -> str:
    """Return the collector that a finding says can't read its source; of other findings nothing."""
    return str(found.get("device", "")) if found.get("check") == _BROKEN else ""
