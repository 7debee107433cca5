"""Views of jobs that run: the deciding thread goes on while one is made."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detectors.formats.site.slurm_topology import parse_parts
from detectors.network_topology import (
    LayoutNic,
    NodeBlock,
    NodeLayout,
    NvlinkDomain,
    encode_topology,
    merge,
)
from rankmend.cli.screens.network_lines import say_plane
from rankmend.errors import ConfigError
from recovery.console.views.job_view import view_ranks
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.job.watch.rank_picture import RankPicture, RankState
from recovery.service.controller_config import Config, Discovery
from recovery.service.jobs.served_job import Job
from recovery.service.jobs.views import person_of, view_nodes, view_planes
from recovery.service.roles import JOBS_OWN
from tests.support.cluster_desk import make_desk
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Running, Speaker, join_of, make_folder, running

pytestmark = pytest.mark.process


def start(up: Running, asked: Any) -> "Future[Any]":
    loop = up.thread._loop
    assert loop is not None
    return asyncio.run_coroutine_threadsafe(asked, loop)


def test_the_deciding_thread_goes_on_while_a_view_is_made(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    has_begun, may_end = threading.Event(), threading.Event()

    def view(running: Sequence[Job]) -> list[str]:
        has_begun.set()
        assert may_end.wait(DEADLINE_S)
        return [job.stored.join.name for job in running]

    with running(tmp_path / "files") as up:
        up.client().join(join_of("n1"))
        backend = up.service.backend
        looking = start(up, backend.look(view))
        assert has_begun.wait(DEADLINE_S)
        decided = start(up, backend.ask(lambda: "decided")).result(DEADLINE_S)
        was_looking = not looking.done()
        may_end.set()
        seen = looking.result(DEADLINE_S)

    assert decided == "decided"
    assert was_looking
    assert seen == ["train"]


def test_nodes_show_their_nvlink_domain_and_block_with_racks_of_the_configuration(
    tmp_path: Path,
) -> None:
    make_folder(tmp_path / "files")
    domain = NvlinkDomain("d.1", ("n1", "n2"), 0.99)
    layout = NodeLayout(("n1",), nics=(LayoutNic("mlx5_0", rail="0"),))
    blocks = [NodeBlock("b1", ("n1", "n2", "n3"))]
    (tmp_path / "topology.json").write_bytes(
        encode_topology(merge([], (layout,), (domain,), blocks))
    )
    told = Discovery(topology_file=str(tmp_path / "topology.json"), racks={"n*": "r1"})

    def configured(one: Config) -> Config:
        return msgspec.structs.replace(one, discovery=told)

    with running(tmp_path / "files", configured) as up:
        client = up.client()
        Speaker(client, "n1", client.join(join_of("n1")).job_id).say()
        desk = up.service.worker.desk

        def places() -> list[tuple[str, str, str]]:
            (job,) = up.service.worker.jobs.running.values()
            return [(one.nvlink_domain, one.block, one.rack) for one in view_nodes(job, desk)]

        eventually(lambda: bool(places()), "the node's report")

        assert places() == [("d.1", "b1", "r1")]
        assert desk.parts.rail_of("n1", "mlx5_0") == "0"


def test_nodes_show_their_leaf_and_rack_also_after_a_reload(tmp_path: Path) -> None:
    """And a file that can't be read leaves the one in force."""
    make_folder(tmp_path / "files")
    (tmp_path / "topology.conf").write_text("SwitchName=leaf7 Nodes=n1\n")
    told = Discovery(topology_file=str(tmp_path / "topology.conf"), racks={"n*": "r1"})

    def configured(one: Config) -> Config:
        return msgspec.structs.replace(one, discovery=told)

    with running(tmp_path / "files", configured) as up:
        client = up.client()
        Speaker(client, "n1", client.join(join_of("n1")).job_id).say()
        service = up.service

        def places() -> list[tuple[str, str]]:
            (job,) = service.worker.jobs.running.values()
            return [(one.leaf, one.rack) for one in view_nodes(job, service.worker.desk)]

        def reload() -> None:
            asked = service.reload(service.config, service.api.doorman.tokens, service.policy)
            start(up, asked).result(DEADLINE_S)

        eventually(lambda: bool(places()), "the node's report")
        at_first = places()
        (tmp_path / "topology.conf").write_text("SwitchName=leaf8 Nodes=n1\n")
        reload()
        reloaded = places()
        (tmp_path / "topology.conf").write_text("what is this\n")
        with pytest.raises(ConfigError, match=r"topology_file .*topology.conf: .*line 1"):
            reload()
        kept = places()

    assert (at_first, reloaded, kept) == ([("leaf7", "r1")], [("leaf8", "r1")], [("leaf8", "r1")])


def test_networks_that_are_degraded_on_a_jobs_nodes_are_told_and_others_not() -> None:
    desk, _journal, _clock = make_desk()

    def alert(node: str, plane: str, name: str = "RankmendPlaneDegraded") -> IncomingAlert:
        labels = {"alertname": name, "node": node, "device": plane, "severity": "warning"}
        return IncomingAlert(
            labels, {"summary": f"the {plane} network has half"}, None, is_firing=True
        )

    alerts = [alert("n1", "storage"), alert("n2", "storage"), alert("n9", "storage"),
              alert("n1", "compute", "RankmendNicFlapping"), alert("n2", "compute")]  # fmt: skip
    desk.take_alerts(alerts, {})

    found = view_planes({"n1", "n2"}, desk)

    assert [(one.plane, sorted(one.nodes)) for one in found] == [
        ("compute", ["n2"]),
        ("storage", ["n1", "n2"]),
    ]

    desk.parts = parse_parts("SwitchName=s1 Nodes=n1,n2,n9\nSwitchName=s2 Nodes=n3,n4,n5")
    explained = view_planes({"n1", "n2"}, desk, {"n3", "n4", "n5"})
    assert [(one.plane, one.part) for one in explained] == [
        ("compute", ""),
        ("storage", "leaf switch s1"),
    ]
    assert say_plane(explained[1]) == "storage network degraded on n1, n2: leaf switch s1"


@pytest.mark.parametrize(
    ("age_s", "factor", "shown"),
    [
        (0.04, 1.0004, (0.0, 1.0)),
        (0.05, 1.0006, (0.1, 1.001)),
        (12.34, 2.5, (12.3, 2.5)),
        (None, None, (None, None)),
    ],
)
def test_ages_have_one_decimal_and_factors_three(
    age_s: float | None, factor: float | None, shown: tuple[float | None, float | None]
) -> None:
    picture = RankPicture(1, 1.0, (0,), ("n1",), (7,), (age_s,), (RankState.TRAINING,), (factor,))

    view = view_ranks("job", picture)

    assert (view.ages_s[0], view.factors[0]) == shown
    assert view.states == ["training"]


def test_a_job_whose_launchers_host_its_controller_was_started_by_nobody_named_job() -> None:
    assert (person_of(JOBS_OWN), person_of("ann")) == ("", "ann")
