"""What is shipped for Prometheus and Alertmanager: understood, firing and not, routed, explained."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rankmend.links import RUNBOOKS
from recovery.controller.cluster.notices import DAILY_RECORD, MESSAGE, NoticeKind
from recovery.service.metrics.measures import Measures
from recovery.service.paging.site_troubles import SITE_READINGS
from recovery.service.paging.trouble import FINDING

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rankmend-controller-rules.yml"
CONFIG = ROOT / "deploy" / "alertmanager" / "rankmend.yml"
TESTS = ROOT / "tests" / "fixtures" / "controller_rules" / "rules.test.yml"


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def run(*argv: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def alerts_of_rules() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text())


@needs("promtool")
def test_promtool_understands_rules_and_configuration() -> None:
    rules = run("promtool", "check", "rules", RULES.name, folder=RULES.parent)
    config = run(
        *("promtool", "check", "config", "--syntax-only", "rankmend-controller.yml"),
        folder=RULES.parent,
    )

    assert (rules.returncode, config.returncode) == (0, 0), rules.stderr + config.stderr


@needs("promtool")
def test_each_rule_fires_when_it_should_and_not_when_it_should_not(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(TESTS, tmp_path)

    tested = run("promtool", "test", "rules", TESTS.name, folder=tmp_path)

    assert tested.returncode == 0, (tested.stdout + tested.stderr)[-4000:]
    named = set(re.findall(r"alertname: (\w+)", TESTS.read_text()))
    assert named == set(alerts_of_rules())


@needs("promtool")
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ('up{job="rankmend-controller"} == 0', 'up{job="rankmend-controler"} == 0'),
        ("< 10", "<= 10"),
        ("unless on (cluster, instance)", "or on (cluster, instance)"),
        ("max by (cluster, job_id, rank)", "sum by (cluster, job_id, rank, replica)"),
        ("for: 15m", "for: 5m"),
        ('{result="full"}', ""),
        ("bmc_success[15m]", "bmc_success[1m]"),
    ],
)
def test_tests_of_the_rules_find_a_rule_that_is_wrong(tmp_path: Path, good: str, bad: str) -> None:
    text = RULES.read_text()
    assert good in text
    (tmp_path / RULES.name).write_text(text.replace(good, bad, 1))
    shutil.copy(TESTS, tmp_path)

    assert run("promtool", "test", "rules", TESTS.name, folder=tmp_path).returncode != 0


def test_rules_read_metrics_that_the_controller_has() -> None:
    known = Measures().render().decode()

    for name in set(re.findall(r"rankmend_controller_\w+", RULES.read_text())):
        family = re.sub("_(total|count|sum|bucket)$", "", name)
        assert f"# HELP {family}" in known, name


def test_every_rule_is_for_people_and_has_a_runbook_that_exists() -> None:
    text = RULES.read_text()
    runbook = (ROOT / "docs/operate/runbooks" / "controller.md").read_text()
    sections = re.findall(r"^## (\w+)$", runbook, re.MULTILINE)

    links = re.findall(rf"runbook_url: '{re.escape(RUNBOOKS)}/controller\.md#(\w+)'", text)

    assert links == [name.lower() for name in alerts_of_rules()]
    assert text.count("to: people}") == len(links)
    messages = {MESSAGE, FINDING, SITE_READINGS, DAILY_RECORD}
    assert {*alerts_of_rules(), *(kind.value for kind in NoticeKind), *messages} == set(sections)


def test_words_for_people_are_those_of_the_document() -> None:
    text = (ROOT / "docs/operate/alerts.md").read_text()
    section = text.partition("\n### Why a person is needed\n")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [
        kind.value for kind in NoticeKind
    ]


@needs("amtool")
def test_amtool_understands_the_configuration() -> None:
    checked = run("amtool", "check-config", str(CONFIG))

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.component("Alertmanager")
@needs("amtool")
@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["alertname=RankmendGpuLost", "node=n1", "uuid=GPU-1"], "rankmend-controller"),
        (["alertname=RankmendAgentDown", "node=n1"], "rankmend-controller"),
        (["alertname=RankmendIncident", "node=n1", "to=people", "severity=critical"], "people"),
        (["alertname=RankmendIncident", "node=n1", "to=people", "severity=info"], "nobody"),
        (["alertname=RankmendCovered", "node=n1", "to=nobody"], "nobody"),
        (["alertname=RankmendDailyRecord", "to=people", "severity=info"], "record"),
        (["alertname=RankmendControllerDown", "to=people"], "people"),
        (["alertname=RankmendRankSlow", "job_id=j"], "people"),
        (["alertname=DiskFull", "node=n1"], "people"),
    ],
)
def test_alerts_are_routed(labels: list[str], receivers: str) -> None:
    command = ("amtool", "config", "routes", "test", f"--config.file={CONFIG}")

    tested = run(*command, f"--verify.receivers={receivers}", *labels)

    assert tested.returncode == 0, tested.stdout + tested.stderr
