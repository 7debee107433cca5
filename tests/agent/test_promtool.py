"""Prometheus' own opinion of the agent's metrics and of the configuration that scrapes them."""

import shutil
import subprocess

import pytest
from prometheus_client import generate_latest

from agent.assembly.families import FAMILIES
from agent.metrics import Metric
from agent.page.application import make_registry
from agent.sampling.collection import CollectorOutcome, CollectorView
from tests.support.agent import ROOT, answer_of

pytestmark = pytest.mark.process


def test_promtool_finds_nothing_wrong_with_a_page_of_every_metric() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    metrics = tuple(
        Metric(family.name, 1, tuple((label, 'a"b\\c\nd') for label in family.labels))
        for family in FAMILIES.values()
        if not family.name.startswith("rankmend_collector_")
    )
    view = CollectorView(
        "all",
        1.0,
        CollectorOutcome.MEASURED,
        "",
        0.5,
        0.1,
        None,
        0.5,
        0,
        False,
        answer=answer_of(metrics),
    )

    page = generate_latest(make_registry(lambda: [view], FAMILIES))
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False
    )

    assert all(f"# TYPE {name} ".encode() in page for name in FAMILIES)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_promtool_accepts_the_scrape_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")

    checked = subprocess.run(
        [promtool, "check", "config", str(ROOT / "deploy" / "prometheus" / "rankmend.yml")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr
    assert "FAILED" not in checked.stdout + checked.stderr
