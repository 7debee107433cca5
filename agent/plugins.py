"""Collectors of other packages, found as entry points of the group `rankmend.collectors`.

Rules: only what the configuration names is loaded. A plugin that can't be imported or made, or that
raises, is a broken collector like any other and stops nothing else. It gives its own metric
families and no others, so that it can neither hide nor fake what rankmend says itself.

How to write one: docs/reference/plugins.md.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent.metrics import Family, Metric, MetricType, gauge
from agent.sampling.runner import INTERVAL_S_MAX, INTERVAL_S_MIN
from rankmend.clock import Clock
from rankmend.errors import ConfigError, NoSourceError, RankmendError, SourceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

GROUP: Final = "rankmend.collectors"
PLUGINS_MAX: Final = 16
FAMILIES_MAX: Final = 200  # per plugin; NVML, the largest source here, has about 100
LABELS_MAX: Final = 16
IMPORT_S_MAX: Final = 5.0  # for all plugins together: it delays the agent's readiness
FAILED_INTERVAL_S: Final = 60.0  # for a plugin that states none
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LABEL: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_RESERVED_LABELS: Final = frozenset({"job", "instance", "node", "le", "quantile"})
_PROOF: Final = {True: "proved on hardware", False: "unproved on hardware", None: "unknown"}

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "plugin_info",
        "",
        ("plugin", "package", "version", "proof"),
        "A plugin that the configuration names, and whether it was proved on hardware; always 1.",
    ),
    gauge(
        "plugin_loaded",
        "",
        ("plugin",),
        "1 when the plugin could be imported and used, 0 when not.",
    ),
)


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What a plugin is made with."""

    procfs_root: Path
    sysfs_root: Path
    is_live: bool  # False: the roots are a recorded tree, and this machine must not be asked
    clock: Clock
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # its own table [plugins.NAME], unchecked


class Plugin(Protocol):
    """A collector of another package. Its class also has `families`, see docs/reference/plugins.md."""

    def collect(self) -> Iterable[Metric]: ...


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """What the configuration says of plugins."""

    enabled: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def choose(table: Mapping[str, Any]) -> PluginChoice:
    """Return the table [plugins] as a value, or raise ConfigError."""
    enabled = table.get("enabled", [])
    if not isinstance(enabled, list | tuple) or not all(isinstance(name, str) for name in enabled):
        raise ConfigError(f"plugins.enabled is not a list of names: {enabled!r}")
    if len(enabled) > PLUGINS_MAX:
        raise ConfigError(f"plugins.enabled has {len(enabled)} names, at most {PLUGINS_MAX}")
    if len(set(enabled)) != len(enabled):
        raise ConfigError(f"plugins.enabled names one plugin twice: {', '.join(enabled)}")
    settings = {name: value for name, value in table.items() if name != "enabled"}
    for name, value in settings.items():
        if not isinstance(value, dict):
            raise ConfigError(f"plugins.{name} is not a table: {value!r}")
        if name not in enabled:
            raise ConfigError(f"[plugins.{name}]: plugins.enabled does not name this plugin")
    return PluginChoice(tuple(enabled), settings)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a plugin comes from, and what is known of it."""

    plugin: str
    package: str
    version: str
    is_proved: bool | None  # on the hardware that it is for; None: it does not say


class PluginCollector:
    """Stands between a plugin and the runner: makes it late, and checks what it gives."""

    def __init__(
        self,
        origin: Origin,
        make: Callable[[], Plugin],
        interval_s: float,
        families: Sequence[Family],
        problem: RankmendError | None = None,
    ) -> None:
        self.origin = origin
        self.name = origin.plugin
        self.interval_s = interval_s
        self.families = tuple(families)
        self.problem = problem  # why it can't be used at all
        self._labels = {family.name: family.labels for family in families}
        self._make = make
        self._plugin: Plugin | None = None

    def collect(self) -> Iterator[Metric]:
        if self.problem is not None:
            raise self.problem
        try:
            if self._plugin is None:  # in the runner's thread: a driver may block here
                self._plugin = self._make()
            for metric in self._plugin.collect():
                self._check(metric)
                yield metric
        except (
            SystemExit
        ) as error:  # the runner's thread would end, and its slot seem busy for ever
            raise SourceError(f"the plugin {self.name} tried to exit: {error}") from error

    def stop(self) -> None:
        """Let the plugin end what it holds."""
        stop = getattr(self._plugin, "stop", None)
        if stop is None:
            return
        try:
            stop()
        except Exception:  # one collector is isolated from the others
            log.exception("plugin raised while stopping", extra={"plugin": self.name})

    def _check(self, metric: Metric) -> None:
        labels = self._labels.get(metric.name)
        if labels is None:
            raise SourceError(f"{metric.name} is not a family of the plugin {self.name}")
        if tuple(name for name, _value in metric.labels) != labels:
            raise SourceError(f"{metric.name} has the labels {metric.labels}, not {labels}")
        if not all(isinstance(value, str) for _name, value in metric.labels):
            raise SourceError(f"{metric.name}: a label is not text: {metric.labels}")
        if not isinstance(metric.value, int | float):
            raise SourceError(f"{metric.name} is not a number: {metric.value!r}")


class PluginsCollector:
    """Says which plugins this agent has been told to use, and what became of them."""

    name = "plugins"
    interval_s = 60.0

    def __init__(self, plugins: Sequence[PluginCollector]) -> None:
        self._plugins = tuple(plugins)

    def collect(self) -> Iterator[Metric]:
        for plugin in self._plugins:
            origin = plugin.origin
            labels = (("plugin", origin.plugin),)
            about = (
                ("package", origin.package),
                ("version", origin.version),
                ("proof", _PROOF[origin.is_proved]),
            )
            yield Metric("rankmend_plugin_info", 1, (*labels, *about))
            yield Metric("rankmend_plugin_loaded", int(plugin.problem is None), labels)


def load(
    choice: PluginChoice, context: PluginContext, own_families: Mapping[str, Family]
) -> tuple[PluginCollector, ...]:
    """Return a collector for each plugin that is named, or raise ConfigError for an unknown one.

    Each is made with ``context`` and its own settings. It may export none of the agent's
    ``own_families``, nor one of another plugin.
    """
    if not choice.enabled:
        return ()
    points = _find(choice.enabled)
    classes = _import(points, context.clock)
    known = dict(own_families)
    collectors = []
    for name, point in points.items():
        own = replace(context, settings=choice.settings.get(name, {}))
        collector = _adapt(point, classes[name], own, known)
        known |= {family.name: family for family in collector.families}
        if collector.problem is not None:
            fields = {"plugin": name, "error": str(collector.problem)}
            log.error("plugin can't be used", extra=fields)
        collectors.append(collector)
    return tuple(collectors)


def _find(names: Sequence[str]) -> "dict[str, EntryPoint]":
    if not names:
        return {}
    from importlib.metadata import distributions  # noqa: PLC0415 - 2.5 MiB that few agents need

    installed: dict[str, dict[str, EntryPoint]] = {}
    # not entry_points(): of two copies of a package, as an old *.egg-info in the working folder
    # is one, it sees the first only
    for distribution in distributions():
        for point in distribution.entry_points.select(group=GROUP):
            installed.setdefault(point.name, {}).setdefault(point.value, point)
    found = {}
    for name in names:
        if name not in installed:
            others = ", ".join(sorted(installed)) or "none"
            raise ConfigError(f"no plugin {name!r} is installed; there are {others}")
        points = list(installed[name].values())
        if len(points) > 1:
            places = " and ".join(sorted(point.value for point in points))
            raise ConfigError(f"two plugins are named {name!r}: {places}")
        found[name] = points[0]
    return found


def _import(
    points: "Mapping[str, EntryPoint]", clock: Clock
) -> dict[str, "type[Any] | RankmendError"]:
    """Return each plugin's class, or why there is none. One that hangs is left behind."""
    loaded: dict[str, type[Any] | RankmendError] = {}

    def load_one(name: str, point: "EntryPoint") -> None:
        try:
            target = point.load()
            if not isinstance(target, type):
                raise SourceError(f"{point.value} is not a class")
            loaded[name] = target
        except NoSourceError as error:
            loaded[name] = error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code, isolated
            loaded[name] = _failed(f"the plugin {name} can't be imported", error)

    deadline_s = clock.now_s() + IMPORT_S_MAX
    for name, point in points.items():
        thread = Thread(target=load_one, args=(name, point), name=f"import-{name}", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline_s - clock.now_s()))
    hangs = {
        name: SourceError(f"the plugin {name} could not be imported within {IMPORT_S_MAX:g} s")
        for name in points
    }
    return hangs | loaded


def _adapt(
    point: "EntryPoint",
    loaded: "type[Any] | RankmendError",
    context: PluginContext,
    known: Mapping[str, Family],
) -> PluginCollector:
    package = point.dist.metadata["Name"] if point.dist else "unknown"
    version = point.dist.version if point.dist else "unknown"
    is_proved = getattr(loaded, "is_proved_on_hardware", None)
    is_proved = is_proved if isinstance(is_proved, bool) else None
    origin = Origin(point.name, package, version, is_proved)
    problem: RankmendError
    if isinstance(loaded, RankmendError):
        problem = loaded
    else:
        try:
            families = check_class(point.name, loaded, known)
        except SourceError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - foreign attributes
            problem = _failed(f"the plugin {point.name} can't be used", error)
        else:
            interval_s = float(loaded.interval_s)
            return PluginCollector(origin, lambda: loaded(context), interval_s, families)
    return PluginCollector(origin, _never, FAILED_INTERVAL_S, (), problem)


def _never() -> Plugin:
    raise AssertionError("a plugin with a problem is never made")


def _failed(what: str, error: BaseException) -> SourceError:
    failure = SourceError(f"{what}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def check_class(name: str, plugin: "type[Any]", known: Mapping[str, Family]) -> tuple[Family, ...]:
    """Return the families of a plugin's class, or raise SourceError for what is wrong with it."""
    if getattr(plugin, "name", None) != name or not _NAME.fullmatch(name):
        raise SourceError(
            f"the entry point is {name!r}, but its class {plugin.__name__} has another name"
        )
    interval_s = getattr(plugin, "interval_s", None)
    if not isinstance(interval_s, int | float) or isinstance(interval_s, bool):
        raise SourceError(f"{name}: interval_s is not a number: {interval_s!r}")
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        limits = f"from {INTERVAL_S_MIN} to {INTERVAL_S_MAX}"
        raise SourceError(f"{name}: interval_s of {interval_s}: {limits}")
    if not callable(getattr(plugin, "collect", None)):
        raise SourceError(f"{name}: it has no method collect")
    families = tuple(getattr(plugin, "families", ()))
    if not 0 < len(families) <= FAMILIES_MAX:
        raise SourceError(f"{name}: {len(families)} families, from 1 to {FAMILIES_MAX}")
    taken = {_base(family) for family in known.values()}
    for family in families:
        _check_family(name, family)
        if _base(family) in taken:
            raise SourceError(f"{name}: the family {family.name} already exists")
        taken.add(_base(family))
    return families


def _check_family(name: str, family: object) -> None:
    if not isinstance(family, Family) or not isinstance(family.type, MetricType):
        raise SourceError(f"{name}: not a family: {family!r}")
    if not _NAME.fullmatch(family.name) or not family.name.startswith(
        (f"rankmend_{name}_", f"{name}_")
    ):
        raise SourceError(f"{name}: {family.name!r} is not named rankmend_{name}_... or {name}_...")
    if family.name.endswith("_total") != (family.type is MetricType.COUNTER):
        raise SourceError(
            f"{name}: {family.name}: names of counters end in _total, other names do not"
        )
    if not family.help or "\n" in family.help:
        raise SourceError(f"{name}: {family.name} has no one-line help")
    if len(family.labels) > LABELS_MAX or len(set(family.labels)) != len(family.labels):
        raise SourceError(f"{name}: {family.name}: wrong labels {family.labels}")
    for label in family.labels:
        if not _LABEL.fullmatch(label) or label in _RESERVED_LABELS:
            raise SourceError(f"{name}: {family.name}: wrong label {label!r}")


def _base(family: Family) -> str:
    """Return the name under which OpenMetrics tells families apart."""
    return family.name.removesuffix("_total")
