"""Plugins that are imported, in a thread of their own, and run by an agent; one is really installed by pip."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import config as configuration
from agent import plugins
from agent.assembly.families import FAMILIES, with_plugins
from agent.daemon.node_agent import NodeAgent
from agent.findings.policy_files import load_checks
from agent.sampling.collection import CollectorOutcome
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, NoSourceError, SourceError
from tests.support.agent import FIXTURE, ROOT
from tests.support.eventually import DEADLINE_S
from tests.support.plugins import MODULE, Site, load, site_on_path

pytestmark = pytest.mark.process


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    yield from site_on_path(tmp_path / "site", monkeypatch)


def make_agent(**table: Any) -> NodeAgent:
    config = configuration.AgentConfig(
        procfs=str(FIXTURE / "proc"), sysfs=str(FIXTURE / "sys"), plugins=table
    )
    configuration.check(config)
    return NodeAgent(config, SystemClock())


def test_plugin_gets_its_own_settings_and_gives_its_own_metrics(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", MODULE)

    (collector,) = load("tank", tank={"tanks": ["north", "south"]})

    assert (collector.name, collector.interval_s) == ("tank", 5.0)
    assert [dict(metric.labels)["tank"] for metric in collector.collect()] == ["north", "south"]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("Tank = 3", "is not a class"),
        ("class Tank:\n    name = 'tonk'", "its class Tank has another name"),
        (MODULE.replace("5.0", "0.01"), "interval_s of 0.01"),
        (MODULE.replace("rankmend_tank_level", "rankmend_gpu_level"), "is not named rankmend_tank"),
        (MODULE.replace("def collect", "def gather"), "no method collect"),
    ],
)
def test_plugin_that_cannot_be_used_is_broken_and_says_why(
    code: str, problem: str, site: Site
) -> None:
    site.install("tank", "rankmend_test_tank:Tank", code)

    (collector,) = load("tank")

    with pytest.raises(SourceError, match=problem):
        list(collector.collect())


def test_plugin_whose_import_hangs_is_left_behind(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("tank", "rankmend_test_hangs:Tank", "import threading; threading.Event().wait(60)")
    monkeypatch.setattr(plugins, "IMPORT_S_MAX", 0.1)

    (collector,) = load("tank")

    with pytest.raises(SourceError, match="could not be imported within"):
        list(collector.collect())


def test_plugin_without_its_hardware_is_absent_and_is_tried_again(site: Site) -> None:
    code = MODULE.replace("self.tanks = context", "self.tanks = find(context)\n        _ = context")
    code += (
        "\nfrom rankmend.errors import NoSourceError\nfound = []\n"
        "def find(context):\n"
        "    if not found:\n        raise NoSourceError('no tank here')\n    return found\n"
    )
    site.install("tank", "rankmend_test_tank:Tank", code)
    (collector,) = load("tank")

    with pytest.raises(NoSourceError, match="no tank here"):
        list(collector.collect())
    sys.modules["rankmend_test_tank"].found.append("late")

    assert len(list(collector.collect())) == 1


def test_agent_goes_on_beside_a_plugin_that_raises(site: Site) -> None:
    broken = MODULE.replace("for tank in", "raise OSError('pump')\n        for tank in")
    site.install("tank", "rankmend_test_tank:Tank", broken)
    agent = make_agent(enabled=["tank"])

    page = agent.collect_page()

    views = {view.name: view for view in agent.runner.views()}
    assert views["tank"].outcome is CollectorOutcome.BROKEN
    assert "OSError: pump" in views["tank"].error
    assert views["host"].outcome is CollectorOutcome.MEASURED
    assert 'rankmend_collector_success{collector="tank"} 0.0' in page
    assert 'rankmend_plugin_loaded{plugin="tank"} 1.0' in page
    assert (
        'rankmend_plugin_info{package="rankmend_test_tank",plugin="tank",proof="unknown",'
        'version="2.5"} 1.0' in page
    )


def test_plugin_that_cannot_be_imported_is_a_metric(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", "import no_such_module_at_all")

    page = make_agent(enabled=["tank"]).collect_page()

    assert 'rankmend_plugin_loaded{plugin="tank"} 0.0' in page
    assert 'rankmend_collector_success{collector="tank"} 0.0' in page


def test_plugin_can_be_disabled_and_have_an_interval(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", MODULE)

    config = configuration.AgentConfig(
        plugins={"enabled": ["tank"]}, disabled=("tank",), intervals_s={"tank": 7.0}
    )

    configuration.check(config)
    assert NodeAgent(config, SystemClock())._intervals_s()["tank"] == 7.0


def test_site_policy_may_judge_a_plugins_metric(site: Site, tmp_path: Path) -> None:
    site.install("tank", "rankmend_test_tank:Tank", MODULE)
    (collector,) = load("tank")
    policy = tmp_path / "site.toml"
    policy.write_text(
        '[tank_low]\nmetric = "rankmend_tank_level_ratio"\ncondition = "value < 0.2"\n'
        'component = "host"\nseverity = "warning"\naction = "watch"\n'
        'summary = "The tank is nearly empty."\nsource = "the tank\'s manual"\n'
    )

    with_plugin = load_checks(with_plugins([collector]), policy)

    assert "tank_low" in {check.name for check in with_plugin}
    with pytest.raises(ConfigError, match="rankmend_tank_level_ratio"):
        load_checks(FAMILIES, policy)  # without the plugin


def test_every_collector_of_the_agent_can_be_configured(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", MODULE)
    agent = make_agent(enabled=["tank"])
    agent.stop()

    names = {collector.name for collector in agent.collectors}

    assert names == {*configuration.COLLECTORS, "plugins", "tank"}


def test_shipped_plugins_are_found_beside_an_old_copy_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())
    points = declared["project"]["entry-points"][plugins.GROUP]
    for folder, lines in (("old", []), ("new", [f"{k} = {v}" for k, v in points.items()])):
        about = tmp_path / folder / "rankmend-0.1.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rankmend\nVersion: 0.1\n")
        text = "\n".join([f"[{plugins.GROUP}]", *lines])
        (about / "entry_points.txt").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "old"), str(tmp_path / "new"), *sys.path])

    collectors = load("amd", "ascend")

    assert [collector.problem for collector in collectors] == [None, None]
    for collector in collectors:
        with pytest.raises(NoSourceError, match="recorded tree"):
            list(collector.collect())


def test_example_is_installed_by_pip_and_shown_by_the_agent(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    subprocess.run(["cp", "-r", str(ROOT / "examples" / "plugin"), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--target", str(target), str(source)], check=True)
    procfs = tmp_path / "proc"
    (procfs / "sys" / "kernel" / "random").mkdir(parents=True)
    (procfs / "sys" / "kernel" / "random" / "entropy_avail").write_text("192\n")
    (procfs / "sys" / "kernel" / "random" / "poolsize").write_text("256\n")
    config = tmp_path / "agent.toml"
    config.write_text('[plugins]\nenabled = ["entropy"]\n[plugins.entropy]\npool = "main"\n')
    environment = {**os.environ, "PYTHONPATH": f"{target}{os.pathsep}{ROOT}"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    flags = ("--config", str(config), "--procfs", str(procfs), "--sysfs", str(FIXTURE / "sys"))
    page = run("rankmend.cli", "agent", "--once", *flags)
    own_test = run("pytest", "-q", "-p", "no:cacheprovider", str(source / "test_entropy.py"))

    assert page.returncode == 0, page.stderr
    assert 'rankmend_entropy_available_ratio{pool="main"} 0.75' in page.stdout
    assert 'package="rankmend-example"' in page.stdout
    assert 'proof="proved on hardware"' in page.stdout
    assert own_test.returncode == 0, own_test.stdout
