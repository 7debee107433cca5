"""What the fleet's page says of each node."""

from dataclasses import dataclass

import pytest

from recovery.api import wire
from recovery.console.fleet import Fleet, NodeUse, choose, natural, view_fleet
from recovery.service.controller_config import Discovery
from recovery.service.discovery import rack_finder

NOW_UNIX_S = 1000.0
NO_RACKS = Discovery()


@dataclass(frozen=True)
class FleetJob:
    name: str = "train"
    state: str = "running"


def node_of(name: str, **changes: object) -> wire.NodeView:
    values: dict[str, object] = {
        "node": name, "job_id": "j1", "heard_age_s": 0.5, "attempt": 1, "ranks": [0, 1],
        "is_spare": False, "boot_id": "b",
    }  # fmt: skip
    return wire.NodeView(**(values | changes))  # type: ignore[arg-type]


def fleet_of(
    *nodes: wire.NodeView,
    held: tuple[wire.HoldView, ...] = (),
    windows: tuple[wire.WindowView, ...] = (),
    known: tuple[str, ...] = (),
    discovery: Discovery = NO_RACKS,
    job: FleetJob = FleetJob(),
) -> Fleet:
    cluster = wire.Cluster([], list(held), list(windows), [])
    return view_fleet(nodes, known, cluster, {"j1": job}, rack_finder(discovery), NOW_UNIX_S)


def test_a_node_with_ranks_trains_and_one_without_is_a_spare() -> None:
    fleet = fleet_of(node_of("a"), node_of("b", ranks=[]), known=("c",))

    assert [row.state for row in fleet.nodes] == [
        NodeUse.TRAINING,
        NodeUse.SPARE,
        NodeUse.UNASSIGNED,
    ]


def test_a_node_that_no_known_job_has_is_not_called_idle() -> None:
    """Ranks of a job that was given up may be left there, as that job's end says, or those of a job that nobody here knows."""
    (row,) = fleet_of(known=("a",)).nodes

    assert row.label == "a: unassigned"


@pytest.mark.parametrize(
    ("states", "use"),
    [
        (["training"], NodeUse.TRAINING),
        (["training", "hung"], NodeUse.WAITING),
        (["starting"], NodeUse.WAITING),
        (["ended"], NodeUse.UNASSIGNED),
    ],
)
def test_a_node_that_a_watched_job_uses_is_not_unassigned(states: list[str], use: NodeUse) -> None:
    jobs = [
        wire.WatchedView("j", "torch", "ann", "torchrun", "", "", 1, 2, 2, ["a"], 5, 0.1, state, 1.0, "")
        for state in states
    ]  # fmt: skip
    cluster = wire.Cluster([], [], [], [])

    fleet = view_fleet([], ["a"], cluster, {}, rack_finder(NO_RACKS), NOW_UNIX_S, jobs)

    assert [row.state for row in fleet.nodes] == [use]


def test_a_node_has_the_leaf_nvlink_domain_and_block_that_one_of_its_jobs_tells() -> None:
    views = node_of("a", leaf="leaf1", nvlink_domain="d.1", block="b1"), node_of("a", job_id="j2")

    (row,) = fleet_of(*views).nodes

    assert (row.leaf, row.nvlink_domain, row.block) == ("leaf1", "d.1", "b1")


@pytest.mark.parametrize(
    ("age_s", "why"),
    [(None, "no report yet"), (16.0, "last report 16 s ago"), (258.2, "last report 4.3 min ago")],
)
def test_a_node_that_is_not_heard_is_never_shown_as_good(age_s: float | None, why: str) -> None:
    (row,) = fleet_of(node_of("a", heard_age_s=age_s)).nodes

    assert row.state is NodeUse.SILENT
    assert row.why == why


def test_a_drain_says_by_whom_and_why() -> None:
    hold = wire.HoldView("a", "drain", "ann", "fan", None)

    (row,) = fleet_of(node_of("a"), held=(hold,)).nodes

    assert (row.state, row.why, row.ranks) == (NodeUse.DRAINED, "by ann: fan", 2)


def test_a_held_node_that_no_job_uses_is_shown() -> None:
    hold = wire.HoldView("gone", "quarantine", "policy", "blamed twice", 2000.0)

    (row,) = fleet_of(held=(hold,)).nodes

    assert row.state is NodeUse.QUARANTINED


@pytest.mark.parametrize(
    ("begin", "end", "state"),
    [
        (900, 1100, NodeUse.MAINTENANCE),
        (1001, 1100, NodeUse.TRAINING),
        (900, 1000, NodeUse.TRAINING),
    ],
)
def test_maintenance_counts_while_its_window_is_open(
    begin: float, end: float, state: NodeUse
) -> None:
    window = wire.WindowView("w1", ["rack7-*"], begin, end, "ann", "PDU")

    (row,) = fleet_of(node_of("rack7-n1"), windows=(window,)).nodes

    assert row.state is state


def test_racks_are_named_by_the_pattern_and_what_it_does_not_match_stands_apart() -> None:
    fleet = fleet_of(
        known=("r1-n1", "r1-n2", "r2-n1", "login"), discovery=Discovery(rack_pattern="^(r[0-9]+)-")
    )

    assert {rack.name: len(rack.nodes) for rack in fleet.racks} == {"other": 1, "r1": 2, "r2": 1}


def test_a_rack_of_the_table_counts_before_the_pattern() -> None:
    told = Discovery(rack_pattern="^(r[0-9]+)-", racks={"r1-n2": "spares", "login*": "front"})

    fleet = fleet_of(known=("r1-n1", "r1-n2", "login1"), discovery=told)

    assert {rack.name for rack in fleet.racks} == {"r1", "spares", "front"}


def test_nodes_without_racks_are_shown_in_blocks() -> None:
    fleet = fleet_of(known=tuple(f"gpu-{number}" for number in range(130)))

    assert [len(rack.nodes) for rack in fleet.racks] == [64, 64, 2]
    assert fleet.racks[0].name == "gpu-0 to gpu-63"


def test_names_sort_by_their_numbers() -> None:
    names = ["gpu-10", "gpu-2", "a", "\u0661x", "2"]

    assert sorted(names, key=natural) == ["2", "a", "gpu-2", "gpu-10", "\u0661x"]


def test_a_filter_finds_by_a_part_of_the_name_and_by_state_the_worst_first() -> None:
    fleet = fleet_of(node_of("n1"), node_of("n2", heard_age_s=99.0), node_of("m1"))

    assert [row.name for row in choose(fleet.nodes, "N", "")] == ["n2", "n1"]
    assert [row.name for row in choose(fleet.nodes, "", "silent")] == ["n2"]
