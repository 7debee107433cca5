"""The rules for Prometheus: written from the tables, understood by promtool, firing and not firing; the queries of dashboards."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rankmend.links import RUNBOOKS
from tests.support.agent import ROOT
from tests.support.dashboards import filled, queries, variable_queries
from tests.support.shipped import load_generator

pytestmark = pytest.mark.process

RULES = ROOT / "deploy" / "prometheus" / "rankmend-rules.yml"
VARIABLES = {"cluster": ".*", "node": "gpu-001", "job": "6d0c4b1e-0000-4000-8000-000000000001"}
QUERIES = [*queries(), *variable_queries()]
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


generate = load_generator()


@pytest.mark.parametrize("path", generate.OUTPUTS)
def test_file_is_what_the_tables_of_findings_say(path: str) -> None:
    expected = generate.OUTPUTS[path](generate.RUNBOOKS)

    assert (ROOT / path).read_text() == expected, "run python deploy/prometheus/generate.py"


@NEEDS_PROMTOOL
def test_promtool_understands_every_rule_and_the_configuration() -> None:
    rules = promtool("check", "rules", RULES.name, folder=RULES.parent)
    configuration = promtool(
        "check", "config", "--syntax-only", "rankmend.yml", folder=RULES.parent
    )

    assert rules.returncode == 0, rules.stderr
    assert configuration.returncode == 0, configuration.stderr


@NEEDS_PROMTOOL
def test_rule_fires_once_for_each_finding_and_for_nothing_else(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    (tmp_path / "rules.test.yml").write_text(generate.tests_text(generate.RUNBOOKS))

    tested = promtool("test", "rules", "rules.test.yml", folder=tmp_path)

    assert tested.returncode == 0, (tested.stdout + tested.stderr)[-4000:]


@NEEDS_PROMTOOL
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ('{severity!="info"}', '{check!="gpu_lost",severity!="info"}'),  # never fires for one
        (
            'rankmend_finding_active{severity!="info"}',
            "rankmend_finding_active",
        ),  # for the record, too
        ("> 150e6", "> 150"),
    ],
)
def test_tests_of_the_rules_find_a_rule_that_is_wrong(tmp_path: Path, good: str, bad: str) -> None:
    text = RULES.read_text()
    assert good in text
    (tmp_path / RULES.name).write_text(text.replace(good, bad, 1))
    (tmp_path / "rules.test.yml").write_text(generate.tests_text(generate.RUNBOOKS))

    assert promtool("test", "rules", "rules.test.yml", folder=tmp_path).returncode != 0


def test_every_rule_has_a_summary_and_a_runbook_that_exists() -> None:
    text = RULES.read_text()

    alerts = re.findall(r"- alert: (\w+)", text)
    links = re.findall(rf"runbook_url: '{re.escape(RUNBOOKS)}/([a-z]+\.md)#([a-z0-9_]+)'", text)

    finding = f"runbook_url: '{RUNBOOKS}/findings.md#{{{{ $labels.check }}}}'"
    links += [("findings.md", rule.check) for rule in generate.finding_rules()]
    assert text.count(finding) == 1
    assert len(alerts) == len(set(alerts)) == text.count("summary: ")
    assert len(links) == len(alerts) - 1 + len(list(generate.finding_rules()))
    for path, anchor in links:
        page = ROOT / "docs/operate/runbooks" / path
        sections = re.findall(r"^## (\S+)", page.read_text(), re.MULTILINE)
        assert anchor in [section.lower() for section in sections], (path, anchor)


def promtool(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@NEEDS_PROMTOOL
def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    lines = ["groups:", "  - name: queries", "    rules:"]
    for number, query in enumerate(QUERIES):
        expression = filled(query.expression, VARIABLES).replace("'", "''")
        lines += [f"      - record: query_{number}", f"        expr: '{expression}'"]
    path = tmp_path / "queries.yml"
    path.write_text("\n".join(lines) + "\n")

    checked = promtool("check", "rules", path.name, folder=tmp_path)

    assert checked.returncode == 0, checked.stderr
    assert f"{len(QUERIES)} rules found" in checked.stdout
