"""Which shared part explains ranks of a job that became slow together."""

from dataclasses import replace

from detectors.formats.site.slurm_topology import parse_parts
from detectors.network_topology import LayoutGpu, LayoutNic, NodeLayout
from detectors.parts.fleet_parts import NO_PARTS
from detectors.parts.shared_blame import BlameEnd
from recovery.controller.job.watch.slow_causes import PATIENCE_S, SlowInquiry
from recovery.controller.job.watch.slow_together import TOGETHER_STEPS, explain_together
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Ledger, SlowNow
from recovery.journal.observation_records import SlowFound
from tests.support.job_ledgers import slow

PLACEMENT = [Placement(f"n{node}", (2 * node, 2 * node + 1)) for node in range(8)]
PARTS = parse_parts("SwitchName=leaf1 Nodes=n[0-3]\nSwitchName=leaf2 Nodes=n[4-7]\n")


def part(*found: SlowFound, nics: dict[int, str] | None = None) -> str:
    return explain_together(found[0], found, PLACEMENT, nics or {}, PARTS).part


def test_ranks_below_one_leaf_name_it_and_those_of_one_node_the_node() -> None:
    assert part(*(slow(rank) for rank in range(8))) == "leaf switch leaf1"
    assert part(slow(4), slow(5)) == "node n2"
    assert part(slow(4), slow(9)) == ""


def test_ranks_that_use_the_same_rail_name_it() -> None:
    nics = {rank: f"mlx5_{rank % 2}" for rank in range(16)}

    assert part(*(slow(rank) for rank in range(1, 16, 2)), nics=nics) == "rail mlx5_1"


def layout_of(gpus: int) -> NodeLayout:
    """Return nodes whose second GPU stands beside the NIC of rail 0."""
    nics = (LayoutNic("mlx5_0", "1", rail="0"), LayoutNic("mlx5_1", "1", rail="1"))
    near = [LayoutGpu(at, f"0000:{at}b:00.0", nics=(f"mlx5_{1 - at % 2}",)) for at in range(gpus)]
    return NodeLayout(tuple(f"n{node}" for node in range(8)), tuple(near), nics)


def test_the_layout_tells_the_nics_of_ranks_whose_agents_were_not_asked() -> None:
    found = [slow(rank) for rank in range(1, 16, 2)]
    nics = {1: "mlx5_0", 0: "mlx5_1"}  # one node was asked

    def said(gpus: int) -> str:
        parts = replace(PARTS, layouts=dict.fromkeys(layout_of(gpus).nodes, layout_of(gpus)))
        return explain_together(found[0], found, PLACEMENT, nics, parts).part

    assert said(2) == "rail 0"
    assert said(4) == "", "which of its GPUs a rank stands on is not known"


def test_slow_computing_is_never_held_against_a_switch() -> None:
    assert (
        part(*(slow(rank, "compute") for rank in range(8))) == "node n0, node n1, node n2, node n3"
    )


def test_ranks_that_became_slow_at_another_time_or_in_another_way_are_left_out() -> None:
    later = [slow(rank, onset_step=101 + TOGETHER_STEPS) for rank in (2, 3, 4, 5, 6, 7)]
    always = [replace(slow(rank), is_always=True) for rank in (2, 3, 4, 5, 6, 7)]

    assert part(slow(0), slow(1), *later) == "node n0"
    assert part(slow(0), slow(1), *always) == "node n0"


def test_the_record_says_which_part_explains_the_rank_or_that_none_does() -> None:
    def record_of(*ranks: int) -> tuple[str, str, list[str]]:
        ledger = replace(
            Ledger(),
            job_id="j",
            attempt=1,
            slow={rank: SlowNow(slow(rank), number) for number, rank in enumerate(ranks, 5)},
        )
        inquiry = SlowInquiry()
        inquiry.due(ledger, PLACEMENT, 0.0, PARTS)
        first = inquiry.due(ledger, PLACEMENT, PATIENCE_S, PARTS)[0]
        return first.part, first.reason, [one.source for one in first.evidence]

    named, reason, sources = record_of(*range(8))
    nobody, silent, _sources = record_of(1, 9)

    assert named == "leaf switch leaf1"
    assert reason.endswith("8 ranks became slow together: explained by leaf switch leaf1 (8 of 8)")
    assert "shared parts" in sources
    assert (nobody, "together" in silent) == ("", False)


def test_one_slow_rank_and_an_unknown_topology_say_nothing() -> None:
    found = explain_together(slow(0), [slow(0)], PLACEMENT, {}, NO_PARTS)

    assert found.end is BlameEnd.TOO_FEW
