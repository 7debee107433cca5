"""The recording rules: what they make of series with replicas, of several clusters, of stale and of absent data."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.prometheus.recording_rules import GROUPS, recording_rules

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rankmend-recording-rules.yml"
TESTS = ROOT / "tests" / "fixtures" / "recording_rules" / "rules.test.yml"
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def promtool_in(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["promtool", "test", "rules", TESTS.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_names_are_level_metric_and_operation() -> None:
    names = [rule.name for rule in recording_rules()]

    assert len(names) == len(set(names))
    for name in names:
        assert re.fullmatch(r"[a-z_]+:rankmend_[a-z_0-9]+:[a-z0-9_]+", name), name


def test_every_rule_keeps_the_cluster() -> None:
    for rule in recording_rules():
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule.expression):
            assert labels.startswith("cluster"), rule.name


def test_a_rule_reads_only_rules_of_its_own_group_that_come_before_it() -> None:
    for group in GROUPS:
        before: set[str] = set()
        for rule in group.rules:
            read = set(re.findall(r"\b[a-z_]+:rankmend_\w+:\w+", rule.expression))
            assert read <= before, rule.name
            before.add(rule.name)


@NEEDS_PROMTOOL
def test_rules_give_what_they_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(TESTS, tmp_path)

    tested = promtool_in(tmp_path)

    assert tested.returncode == 0, (tested.stdout + tested.stderr)[-4000:]


# What is wrong, and a rule that gives a wrong value by it. promtool takes as long for one as for all.
WRONG = {
    ("unless on (cluster, node)", "or on (cluster, node)"): (
        "cluster:rankmend_nodes_healthy:ratio"  # healthy although faulty
    ),
    (") > 0)", "))"): (
        "cluster:rankmend_controller_recovery_seconds:mean1d"  # a mean of no incident
    ),
    ("max by (cluster, instance, cause)", "max by (cluster, cause)"): (
        "cluster_cause:rankmend_controller_gpu_seconds_lost:increase1d"  # one of two controllers
    ),
    (">= 4", ">= 1"): "cluster_model:rankmend_gpu_temperature_celsius:median",
}


@NEEDS_PROMTOOL
def test_tests_of_the_rules_find_each_rule_that_is_wrong(tmp_path: Path) -> None:
    text = RULES.read_text()
    for good, bad in WRONG:
        assert good in text
        text = text.replace(good, bad)
    (tmp_path / RULES.name).write_text(text)
    shutil.copy(TESTS, tmp_path)

    tested = promtool_in(tmp_path)

    assert tested.returncode != 0
    failed = set(re.findall(r'expr: "(?:count\()?([\w:]+)', tested.stdout + tested.stderr))
    assert failed >= set(WRONG.values())
