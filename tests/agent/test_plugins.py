"""Plugins: found by entry point, checked, isolated, and really installed by pip once."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import config as configuration
from agent import plugins
from agent.assembly.families import FAMILIES, with_plugins
from agent.daemon.node_agent import NodeAgent
from agent.findings.policy_files import load_checks
from agent.metrics import Family, Metric, MetricType
from agent.plugins import PluginChoice, PluginCollector, PluginContext, check_class, choose
from agent.sampling.collection import CollectorOutcome
from agent.vendors.amd import AmdCollector
from agent.vendors.ascend import AscendCollector
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, NoSourceError, SourceError
from tests.support.agent import FIXTURE, PATIENT, ROOT

pytestmark = pytest.mark.process

LEVEL = Family("rankmend_tank_level_ratio", MetricType.GAUGE, "ratio", ("tank",), "How full.")
MODULE = """
from agent.metrics import Family, Metric, MetricType

class Tank:
    name = "tank"
    interval_s = 5.0
    families = (Family("rankmend_tank_level_ratio", MetricType.GAUGE, "ratio", ("tank",), "Full."),)
    def __init__(self, context):
        self.tanks = context.settings.get("tanks", ["a"])
    def collect(self):
        for tank in self.tanks:
            yield Metric("rankmend_tank_level_ratio", 0.5, (("tank", tank),))
"""


def make_context(settings: Mapping[str, Any] = MappingProxyType({})) -> PluginContext:
    return PluginContext(Path("/proc"), Path("/sys"), False, SystemClock(), settings)


class Site:
    """A folder of installed packages, written by hand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self, name: str, target: str, code: str) -> None:
        module = target.partition(":")[0]
        (self._folder / f"{module}.py").write_text(code)
        about = self._folder / f"{module}-2.5.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 2.5\n")
        (about / "entry_points.txt").write_text(f"[rankmend.collectors]\n{name} = {target}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name in set(sys.modules) - before:
        if name.startswith("rankmend_test_"):
            del sys.modules[name]


def load(*names: str, **settings: dict[str, Any]) -> tuple[PluginCollector, ...]:
    return plugins.load(PluginChoice(names, settings), make_context(), FAMILIES)


def make_agent(**table: Any) -> NodeAgent:
    config = configuration.AgentConfig(
        procfs=str(FIXTURE / "proc"), sysfs=str(FIXTURE / "sys"), plugins=table
    )
    configuration.check(config)
    return NodeAgent(config, SystemClock())


# --- found and made


def test_plugin_gets_its_own_settings_and_gives_its_own_metrics(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", MODULE)

    (collector,) = load("tank", tank={"tanks": ["north", "south"]})

    assert (collector.name, collector.interval_s) == ("tank", 5.0)
    assert [dict(metric.labels)["tank"] for metric in collector.collect()] == ["north", "south"]


def test_plugin_that_nobody_has_named_is_not_imported(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", "raise AssertionError('imported')")

    assert load() == ()


def test_unknown_name_is_an_error_that_lists_what_is_installed(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", MODULE)

    with pytest.raises(ConfigError, match=r"no plugin 'tankk' is installed; there are .*tank"):
        load("tankk")


def test_name_of_two_packages_is_an_error_that_names_both(site: Site) -> None:
    site.install("tank", "rankmend_test_one:Tank", MODULE)
    site.install("tank", "rankmend_test_two:Tank", MODULE)

    with pytest.raises(ConfigError, match="rankmend_test_one:Tank and rankmend_test_two:Tank"):
        load("tank")


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


# --- isolated


class _Plugin:
    def __init__(self, *metrics: Metric) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self.metrics


@pytest.mark.parametrize(
    "metric",
    [
        Metric("rankmend_gpu_lost", 0, (("gpu", "0"),)),
        Metric("rankmend_tank_level_ratio", 0.5),
        Metric("rankmend_tank_level_ratio", 0.5, (("other", "a"),)),
        Metric("rankmend_tank_level_ratio", 0.5, (("tank", 7),)),  # type: ignore[arg-type]
        Metric("rankmend_tank_level_ratio", "full", (("tank", "a"),)),  # type: ignore[arg-type]
        Metric("rankmend_tank_level_ratio", None, (("tank", "a"),)),  # type: ignore[arg-type]
    ],
)
def test_metric_that_is_not_the_plugins_own_breaks_it(metric: Metric) -> None:
    origin = plugins.Origin("tank", "p", "1", None)
    collector = PluginCollector(origin, lambda: _Plugin(metric), 5.0, (LEVEL,))

    with pytest.raises(SourceError, match=metric.name):
        list(collector.collect())


def test_plugin_that_exits_is_broken_and_can_run_again() -> None:
    class Leaving(_Plugin):
        def collect(self) -> Iterator[Metric]:
            sys.exit("no pump")

    collector = PluginCollector(plugins.Origin("tank", "p", "1", None), Leaving, 5.0, (LEVEL,))

    for _ in range(2):
        with pytest.raises(SourceError, match="tried to exit: no pump"):
            list(collector.collect())


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


def test_plugin_that_raises_while_stopping_stops_nobody_else() -> None:
    class Stubborn(_Plugin):
        def stop(self) -> None:
            raise RuntimeError("no")

    origin = plugins.Origin("tank", "p", "1", None)
    collector = PluginCollector(origin, Stubborn, 5.0, (LEVEL,))
    list(collector.collect())

    collector.stop()


# --- checked


def _class(**changes: Any) -> type[Any]:
    about = {"name": "tank", "interval_s": 5.0, "families": (LEVEL,), "collect": lambda self: ()}
    return type("Tank", (), about | changes)


def _family(**changes: Any) -> Family:
    about = {"name": LEVEL.name, "type": LEVEL.type, "unit": "", "labels": (), "help": "x"}
    return Family(**(about | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "rankmend_tank_Level"},
        {"name": "rankmend_tank_level_total"},
        {"type": MetricType.COUNTER},
        {"labels": ("node",)},
        {"labels": ("__name__",)},
        {"labels": ("a", "a")},
        {"labels": ("a b",)},
        {"help": ""},
        {"help": "two\nlines"},
        {"name": "rankmend_rank_steps"},
    ],
)
def test_wrong_family_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="tank"):
        check_class("tank", _class(families=(_family(**changes),)), FAMILIES)


def test_family_that_is_there_already_is_refused_also_without_total() -> None:
    counter = _family(name="tank_leaks_total", type=MetricType.COUNTER)
    gauge = _family(name="tank_leaks")

    assert check_class("tank", _class(families=(counter,)), FAMILIES) == (counter,)
    with pytest.raises(SourceError, match="already exists"):
        check_class("tank", _class(families=(gauge,)), FAMILIES | {counter.name: counter})


@pytest.mark.parametrize(
    "table",
    [
        {"enabled": "amd"},
        {"enabled": [3]},
        {"enabled": ["tank", "tank"]},
        {"enabled": [f"p{number}" for number in range(17)]},
        {"enabled": [], "tank": {}},
        {"enabled": ["tank"], "tank": 3},
        {"tank": {}},
    ],
)
def test_wrong_table_of_plugins_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="plugins"):
        choose(table)


@PATIENT
@given(st.dictionaries(st.text(max_size=8), st.one_of(st.integers(), st.lists(st.text()))))
def test_any_table_is_a_choice_or_a_config_error(table: dict[str, Any]) -> None:
    try:
        choice = choose(table)
    except ConfigError:
        return
    assert isinstance(choice.enabled, tuple)


def test_collector_of_the_agents_own_is_no_plugin() -> None:
    with pytest.raises(ConfigError, match="'gpu' is a collector of the agent's own"):
        configuration.check(configuration.AgentConfig(plugins={"enabled": ["gpu"]}))


def test_every_collector_of_the_agent_can_be_configured(site: Site) -> None:
    site.install("tank", "rankmend_test_tank:Tank", MODULE)
    agent = make_agent(enabled=["tank"])
    agent.stop()

    names = {collector.name for collector in agent.collectors}

    assert names == {*configuration.COLLECTORS, "plugins", "tank"}


# --- those that are shipped


@pytest.mark.parametrize("plugin", [AmdCollector, AscendCollector], ids=lambda plugin: plugin.name)
def test_shipped_plugin_is_documented_and_owns_to_be_unproved(plugin: type[Any]) -> None:
    text = (ROOT / "docs/reference/plugins.md").read_text()

    assert re.search(rf"^## {plugin.name}: .* Unproved on hardware$", text, re.MULTILINE)
    assert plugin.is_proved_on_hardware is False
    assert check_class(plugin.name, plugin, FAMILIES) == plugin.families


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


# --- for real


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
            timeout=120,
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


# --- the plugins that rankmend ships

INTERFACE = {
    *("agent.metrics", "agent.plugins", "rankmend.errors"),
    # how a plugin runs a vendor's program: bounded, without a shell
    *("agent.root_helper.program_runner", "agent.root_helper.questions"),
}


def _imports_of(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_shipped_plugins_use_nothing_but_the_interface_that_every_plugin_has() -> None:
    used = set().union(*(_imports_of(file) for file in (ROOT / "agent" / "vendors").glob("*.py")))

    assert {name for name in used if name.partition(".")[0] in ("agent", "rankmend")} <= INTERFACE


def test_agent_knows_its_shipped_plugins_by_entry_point_only() -> None:
    files = [file for file in (ROOT / "agent").rglob("*.py") if file.parent.name != "vendors"]

    assert not [
        file for file in files if any("agent.vendors" in name for name in _imports_of(file))
    ]
