"""Every alert that is shipped has a case in which it fires, and one in which it does not."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankmend.links import RUNBOOKS
from tests.support.shipped import load_generator

generate = load_generator()

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
CASES = {
    "rankmend-rules.yml": lambda: generate.tests_text(RUNBOOKS),
    "rankmend-controller-rules.yml": (
        ROOT / "tests" / "fixtures" / "controller_rules" / "rules.test.yml"
    ).read_text,
}


def rules_of(path: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def cases_of(text: str) -> tuple[set[str], set[str]]:
    """Return the alerts that have a case in which they fire, and those with one in which they don't."""
    fires, quiet = set(), set()
    for test in yaml.load(text, Loader=yaml.CSafeLoader)["tests"]:
        for case in test.get("alert_rule_test", ()):
            (fires if case["exp_alerts"] else quiet).add(case["alertname"])
    return fires, quiet


def test_every_file_of_rules_has_tests() -> None:
    files = {path.name for path in FOLDER.glob("*rules.yml")}

    assert files == {*CASES, "rankmend-recording-rules.yml"}


@pytest.mark.parametrize("name", CASES)
def test_every_alert_fires_in_one_case_and_not_in_another(name: str) -> None:
    alerts = {rule["alert"] for rule in rules_of(FOLDER / name)}

    fires, quiet = cases_of(CASES[name]())

    assert alerts - fires == set(), "no case in which they fire"
    assert alerts - quiet == set(), "no case in which they do not fire"
    assert fires | quiet == alerts


@pytest.mark.parametrize("name", CASES)
def test_every_alert_tells_who_is_woken_where_and_what_to_do(name: str) -> None:
    for rule in rules_of(FOLDER / name):
        summary, url = rule["annotations"]["summary"], rule["annotations"]["runbook_url"]
        where = re.findall(r"\$labels\.(node|job_id|instance|token|subject)\b", summary)
        assert where, f"{rule['alert']} does not say where"
        assert url.startswith(RUNBOOKS), rule["alert"]
        severity = rule.get("labels", {}).get("severity")
        assert severity in {"critical", "warning"} or "rankmend_finding_active" in rule["expr"]
