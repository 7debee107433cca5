"""Reads the policy tables: for the checks of a node and for kernel events, shipped and of the site."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import get_data
from typing import Any, Final

from agent.metrics import Family, MetricType
from detectors.kernel.catalogue import Document, parse_documents
from detectors.kernel.event_policy import PolicyTable, complete, parse_policy
from detectors.node.check_table import MetricShape, compile_table, override, parse_rows
from detectors.node.checks import Check
from rankmend.errors import ConfigError
from rankmend.files import read_capped

_BYTES_MAX: Final = 1_000_000  # the larger shipped table, node_policy.toml, has 60,000
_CHECKS: Final = "node_policy.toml"
_EVENTS: Final = "kernel_log.csv"
_DOCUMENTS: Final = "documents.toml"


def load_checks(
    families: Mapping[str, Family], site: Path | None = None, events: PolicyTable | None = None
) -> tuple[Check, ...]:
    """Return the checks of the shipped table with the site's over it, or raise ConfigError.

    ``families`` are the metrics that there are to check. ``events`` gives the severity and action
    of checks whose event the kernel log shows, too.
    """
    rows = parse_rows(_shipped(_CHECKS), _CHECKS)
    origin = _CHECKS
    if site is not None:
        rows = override(rows, parse_rows(_read(site), str(site)))
        origin = f"{_CHECKS} with {site}"
    return compile_table(rows, known_metrics(families), origin, events or load_policy())


def load_policy(site: Path | None = None) -> PolicyTable:
    """Return the table of kernel events, or raise ConfigError that names file, line and problem."""
    rows = parse_policy(_shipped(_EVENTS), _EVENTS)
    if site is not None:
        rows.update(parse_policy(_read(site), str(site)))
    return complete(rows, _EVENTS)


def load_documents() -> Mapping[str, Document]:
    """Return what the shipped tables rest on, by the key that their rows name."""
    return parse_documents(_shipped(_DOCUMENTS))


def load_check_rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of the shipped table of checks as they are in the file."""
    return parse_rows(_shipped(_CHECKS), _CHECKS)


def known_metrics(families: Mapping[str, Family]) -> dict[str, MetricShape]:
    """Return the shape of each metric, by which a table's rows are checked."""
    return {
        family.name: MetricShape(family.labels, family.type is MetricType.COUNTER)
        for family in families.values()
    }


def _shipped(name: str) -> str:
    data = get_data("detectors", f"data/{name}")  # importlib.resources loads zipfile: 0.6 MiB
    assert data is not None, "the loader of this package reads its files"
    return data.decode("utf-8")


def _read(path: Path) -> str:
    name = f"the policy table {path}"
    data = read_capped(path, _BYTES_MAX, ConfigError, name=name)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error}") from error
