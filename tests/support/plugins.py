"""Plugins of the agent, installed by hand."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agent import plugins
from agent.assembly.families import FAMILIES
from agent.plugins import PluginChoice, PluginCollector, PluginContext
from rankmend.clock import SystemClock

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
    """Return what a plugin is made with."""
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


def site_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a site whose packages can be imported, and forget what was imported of it."""
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name in set(sys.modules) - before:
        if name.startswith("rankmend_test_"):
            del sys.modules[name]


def load(*names: str, **settings: dict[str, Any]) -> tuple[PluginCollector, ...]:
    """Load the plugins of these names, as the agent does."""
    return plugins.load(PluginChoice(names, settings), make_context(), FAMILIES)
