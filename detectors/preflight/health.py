"""What the agent's findings say of a node that is under load. Pure: a findings page in, verdicts out."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from detectors.finding import Action, Severity
from detectors.preflight.verdicts import CheckStanding, CheckVerdict

HEALTH_CHECK: Final = "health"  # the name of all verdicts here
PREFLIGHT_FINDING: Final = "preflight_failed"  # an earlier check's result says nothing of this one


def judge_health(page: Mapping[str, Any], before: Collection[str]) -> list[CheckVerdict]:
    """Return a verdict for each finding that keeps jobs off a node, and one for collectors without an answer.

    The same rule as that of Slurm's prolog (agent/slurm/fitness.py): critical, not silenced, and with an action that ends
    the use of something. ``before``: ids of findings from before the load.
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
    silent = [*page["silent"]]
    if silent:
        text = f"no answer from {', '.join(silent[:8])}"
        verdicts.append(CheckVerdict(HEALTH_CHECK, "collectors", CheckStanding.SILENT, text))
    if not verdicts:
        text = f"{page['checks']} rules, by {page['asked']}"
        verdicts.append(CheckVerdict(HEALTH_CHECK, "node", CheckStanding.PASSED, text))
    return verdicts
