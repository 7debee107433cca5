"""Every query of the dashboards returns data on a Prometheus that a real agent and a real controller feed."""

from collections.abc import Iterator

import pytest

from tests.support.dashboards import Query, filled, queries, variable_queries
from tests.support.eventually import eventually
from tests.support.nvml_stub.node import build
from tests.system.chain.bed import missing_daemons
from tests.system.panels.bed import CLUSTER, NODE, PanelBed

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_daemons()), reason=f"not installed: {missing_daemons()}"),
]
# "dashboard: panel" -> why no data can be had here
NEEDS_HARDWARE: dict[str, str] = {}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelBed]:
    library = build(tmp_path_factory.mktemp("nvml"))
    made = PanelBed(tmp_path_factory.mktemp("panels"), library.parent)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_every_query_of_the_dashboards_returns_data(bed: PanelBed) -> None:
    asked = [*queries(), *variable_queries()]
    assert set(NEEDS_HARDWARE) <= {query.name for query in asked}
    variables = {"cluster": ".*", "node": NODE, "job": bed.job_id}
    empty = [query for query in asked if query.name not in NEEDS_HARDWARE]

    def have_data() -> bool:
        bed.tick()
        missing = [one for one in empty if not has_data(bed, filled(one.expression, variables))]
        empty[:] = missing
        return not empty

    eventually(have_data, lambda: explain(empty) + bed.logs)


def has_data(bed: PanelBed, expression: str) -> bool:
    """Return whether a query gives a number. What Prometheus refuses fails the test."""
    return any(one["value"][1] != "NaN" for one in bed.ask_prometheus(expression))


def explain(empty: list[Query]) -> str:
    return "\n".join(f"{query.name}: {query.expression}" for query in empty) + "\n"


def test_prometheus_finds_the_agents_through_the_controller_with_cluster_and_rack(
    bed: PanelBed,
) -> None:
    found = bed.ask_prometheus(f'up{{job="rankmend-agent",node="{NODE}"}}')

    (one,) = found
    assert one["metric"]["cluster"] == CLUSTER
    assert one["metric"]["rack"] == "r1"
    assert "__meta_rankmend_job_ids" not in one["metric"]


def test_clusters_that_are_not_chosen_are_not_counted(bed: PanelBed) -> None:
    for query in queries():
        if " or vector(0)" in query.expression or query.dashboard != "fleet":
            continue
        chosen = filled(query.expression, {"cluster": "another", "node": NODE, "job": "j"})
        assert bed.ask_prometheus(chosen) == [], query
