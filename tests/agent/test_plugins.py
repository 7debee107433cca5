"""Plugins: found by entry point, checked, and isolated."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import config as configuration
from agent import plugins
from agent.assembly.families import FAMILIES
from agent.metrics import Family, Metric, MetricType
from agent.plugins import PluginCollector, check_class, choose
from agent.vendors.amd import AmdCollector
from agent.vendors.ascend import AscendCollector
from rankmend.errors import ConfigError, SourceError
from tests.support.agent import PATIENT, ROOT
from tests.support.plugins import MODULE, Site, load, site_on_path

LEVEL = Family("rankmend_tank_level_ratio", MetricType.GAUGE, "ratio", ("tank",), "How full.")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    yield from site_on_path(tmp_path / "site", monkeypatch)


# --- found and made


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


# --- those that are shipped


@pytest.mark.parametrize("plugin", [AmdCollector, AscendCollector], ids=lambda plugin: plugin.name)
def test_shipped_plugin_is_documented_and_owns_to_be_unproved(plugin: type[Any]) -> None:
    text = (ROOT / "docs/reference/plugins.md").read_text()

    assert re.search(rf"^## {plugin.name}: .* Unproved on hardware$", text, re.MULTILINE)
    assert plugin.is_proved_on_hardware is False
    assert check_class(plugin.name, plugin, FAMILIES) == plugin.families


# --- for real


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
