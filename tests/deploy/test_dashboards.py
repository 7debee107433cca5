"""The dashboards for Grafana: written from the code, asking for what is there, linked, explained, bounded."""

import importlib.util
import re
from pathlib import Path

import pytest

from agent.assembly.families import FAMILIES
from deploy.prometheus.recording_rules import recording_rules
from recovery.service.metrics.measures import Measures
from tests.support.dashboards import (
    load,
    metrics_of,
    names,
    panels,
    queries,
    variable_queries,
)

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "docs" / "reference" / "metrics.md"
NEEDS_SDK = pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None,
    reason="no Grafana Foundation SDK (rankmend[dashboards], Python 3.11)",
)
ALL = [*queries(), *variable_queries()]


@NEEDS_SDK
@pytest.mark.parametrize("name", names())
def test_dashboard_is_what_the_code_says(name: str) -> None:
    from deploy.grafana.generate import dashboard_text

    path = ROOT / "deploy" / "grafana" / "dashboards" / f"{name}.json"

    assert path.read_text() == dashboard_text(name), "run python deploy/grafana/generate.py"


@NEEDS_SDK
@pytest.mark.parametrize("name", names())
def test_grafanas_own_types_read_the_dashboard(name: str) -> None:
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()

    read = Dashboard.from_json(load(name))

    assert read.title == f"rankmend: {name}"
    assert read.uid == f"rankmend-{name}"
    assert read.panels is not None
    assert len(read.panels) == len(load(name)["panels"])


@pytest.mark.parametrize("query", ALL, ids=lambda one: one.name)
def test_query_reads_metrics_that_are_documented(query: object) -> None:
    documented = set(re.findall(r"^\| `([\w:]+)`", METRICS.read_text(), re.MULTILINE))

    for metric in metrics_of(query.expression):  # type: ignore[attr-defined]
        base = re.sub(r"_(bucket|sum|count)$", "", metric)
        assert metric in documented or base in documented, metric


def test_recording_rules_read_metrics_that_there_are_and_rules_before_them() -> None:
    known = {*FAMILIES, *(one.name for one in Measures().registry.collect())}
    for rule in recording_rules():
        for metric in metrics_of(rule.expression):
            base = re.sub(r"_(bucket|sum|count|total)$", "", metric)
            assert metric in known or base in known, f"{rule.name} reads {metric}"
        known.add(rule.name)


@pytest.mark.parametrize("name", names())
def test_every_panel_says_what_it_shows_in_which_unit(name: str) -> None:
    for panel in panels(name):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
    titles = [panel["title"] for panel in panels(name)]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("query", ALL, ids=lambda one: one.name)
def test_query_keeps_to_the_clusters_that_are_chosen(query: object) -> None:
    text = query.expression  # type: ignore[attr-defined]
    if query.panel == "variable cluster":  # type: ignore[attr-defined]
        return
    selectors = re.findall(
        r"(?:rankmend_\w+|\bup\b|ALERTS)(?::\w+)?(\{[^}]*\})?", _without_by(text)
    )

    assert selectors
    for selector in selectors:
        assert 'cluster=~"$cluster"' in selector, text


def _without_by(text: str) -> str:
    return re.sub(r'"[^"]*rankmend[^"]*"', '""', text)


def test_links_lead_to_dashboards_and_runbooks_that_there_are() -> None:
    uids = {load(name)["uid"] for name in names()}
    runbooks = ROOT / "docs" / "operate" / "runbooks"
    found = 0
    for name in names():
        for panel in panels(name):
            for override in panel["fieldConfig"]["overrides"]:
                for link in (
                    one
                    for entry in override["properties"]
                    if entry["id"] == "links"
                    for one in entry["value"]
                ):
                    found += 1
                    if (to := re.match(r"/d/([\w-]+)\?", link["url"])) is not None:
                        assert to[1] in uids, link
                    else:
                        page = re.match(r"\$\{runbooks\}/([\w-]+\.md)", link["url"])
                        assert page is not None, link
                        assert (runbooks / page[1]).is_file(), link
    assert found > 20


def test_every_dashboard_is_linked_from_all_others_by_its_tag() -> None:
    for name in names():
        made = load(name)
        assert made["tags"] == ["rankmend"]
        assert [link["tags"] for link in made["links"]] == [["rankmend"]]


def test_no_panel_draws_a_line_for_each_node_of_a_large_fleet() -> None:
    bounded = re.compile(
        r"^\(?(?:sum|max|min|avg|count|quantile|topk|bottomk|abs|histogram_quantile|label_replace)\b"
    )
    for query in queries():
        text = query.expression
        outer = re.match(r"\w+", text)
        assert bounded.match(text), query
        if (
            outer
            and outer[0] not in {"topk", "bottomk"}
            and query.dashboard in {"fleet", "incidents"}
        ):
            by = re.match(r"\w+ by \(([^)]*)\)", text)
            labels = set(by[1].split(", ")) if by else set()
            assert not labels & {"node", "uuid", "rank", "gpu"}, query
