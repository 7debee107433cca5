"""The queries of the shipped dashboards, as Grafana would send them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"
RANGES: Final = {"$__rate_interval": "1m", "$__range": "1h", "$__interval": "15s"}
_VARIABLE: Final = re.compile(r"\$\w+|\$\{\w+(?::\w+)?\}")


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    dashboard: str
    panel: str
    expression: str

    @property
    def name(self) -> str:
        return f"{self.dashboard}: {self.panel}"


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def panels(name: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard that are no rows."""
    return [panel for panel in load(name)["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Query]:
    for name in names():
        for panel in panels(name):
            for target in panel["targets"]:
                yield Query(name, panel["title"], target["expr"])


def variable_queries() -> Iterator[Query]:
    """Return what the variables ask Prometheus, without Grafana's own functions around it."""
    for name in names():
        for variable in load(name)["templating"]["list"]:
            if variable["type"] != "query":
                continue
            text = variable["query"]["query"]
            asked = re.fullmatch(r"(?:label_values\((.*), \w+\)|query_result\((.*)\))", text)
            assert asked is not None, text
            yield Query(name, f"variable {variable['name']}", asked[1] or asked[2])


def filled(expression: str, variables: Mapping[str, str]) -> str:
    """Return a query with its variables replaced; raise KeyError for one that has no value."""
    values = {**RANGES, **{f"${name}": value for name, value in variables.items()}}
    return _VARIABLE.sub(lambda found: values[found[0]], expression)


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that a query reads."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)  # no names inside of strings
    return set(re.findall(r"\b(?:[a-z_]+:)?rankmend_\w+(?::\w+)?\b", bare))
