"""What a test of the network among idle nodes says of slow ranks."""

from dataclasses import replace

import pytest

from detectors.fabric.fabric_verdict import (
    FabricOutcome,
    FabricVerdict,
    PartKind,
    SlowPart,
)
from detectors.fabric.probe_evidence import ProbeEvidence, ProbeSays, weigh, with_probe
from detectors.formats.site.slurm_topology import parse_parts
from detectors.network_topology import LayoutNic, NodeLayout
from detectors.parts.fleet_parts import NO_PARTS, FleetParts
from detectors.parts.shared_blame import BlameEnd, PlacedWorker, explain_shared
from tests.support.findings import LIMIT, slow_part, verdict

PARTS = parse_parts("SwitchName=leaf1 Nodes=n[0-3],s[0-1]\nSwitchName=leaf2 Nodes=n[4-7],s[2-3]\n")
SPARES = ("s0", "s1", "s2", "s3")
JOB = [f"n{number}" for number in range(8)]


def weighed(
    found: FabricVerdict,
    node: str = "n0",
    nic: str | None = None,
    spares: tuple[str, ...] = SPARES,
    parts: FleetParts = PARTS,
    rails: tuple[str, ...] = (),
) -> ProbeEvidence:
    return weigh(found, spares, LIMIT, [PlacedWorker("0", node, nic)], JOB, parts, rails)


@pytest.mark.parametrize(
    ("part", "part_in_words"),
    [
        (slow_part(PartKind.SWITCH, "leaf1", "s0", "s1"), "leaf switch leaf1"),
        (slow_part(PartKind.UPLINK, "leaf1", "s0", "s1"), "uplink of leaf switch leaf1"),
        (slow_part(PartKind.RAIL, "eth1"), "rail eth1"),
        (slow_part(PartKind.PATH, "s0 <-> s2", "s0", "s2"), "path s0 <-> s2"),
        (slow_part(PartKind.NODE, "n0", "n0"), "node n0"),
        (slow_part(PartKind.NIC, "n0 eth1", "n0"), "NIC n0 eth1"),
    ],
)
def test_a_slow_part_on_the_ranks_path_is_named(part: SlowPart, part_in_words: str) -> None:
    found = weighed(verdict(part))

    assert (found.says, found.part) == (ProbeSays.SHARED, part_in_words)
    assert "slow (4.0x), on the path of the slow ranks" in found.in_words()


@pytest.mark.parametrize(
    "part",
    [
        slow_part(PartKind.SWITCH, "leaf2", "s2", "s3"),
        slow_part(PartKind.NODE, "s1", "s1"),  # a spare's own cable, though below the same leaf
        slow_part(PartKind.LINK, "s0 <-> s1", "s0", "s1"),  # below one leaf: their own cables
        slow_part(PartKind.GROUP, "s0,s1", "s0", "s1"),
    ],
)
def test_a_slow_part_that_the_ranks_do_not_use_is_told_and_not_blamed(part: SlowPart) -> None:
    found = weighed(verdict(part))

    assert (found.says, found.part) == (ProbeSays.ELSEWHERE, "")
    assert found.elsewhere == (part,)


def test_a_rail_is_a_ranks_own_unless_it_is_known_to_use_another_one() -> None:
    rail = verdict(slow_part(PartKind.RAIL, "eth1"))

    def says(nic: str | None) -> ProbeSays:
        return weighed(rail, nic=nic, rails=("eth0", "eth1")).says

    assert says(None) is says("mlx5_1") is says("eth1") is ProbeSays.SHARED
    assert says("eth0") is ProbeSays.ELSEWHERE


def test_layouts_tell_which_tested_rail_an_rdma_device_is() -> None:
    nics = tuple(LayoutNic(f"mlx5_{rail}", "1", f"eth{rail}", rail=str(rail)) for rail in range(2))
    parts = replace(PARTS, layouts={"n0": NodeLayout(("n0",), nics=nics)})
    rail, card = slow_part(PartKind.RAIL, "eth1"), slow_part(PartKind.NIC, "n0 eth1", "n0")
    worker = PlacedWorker("0", "n0", "mlx5_1")
    alone = explain_shared([worker], ["0"], parts)

    def says(part: SlowPart, nic: str) -> ProbeSays:
        return weighed(verdict(part), nic=nic, parts=parts, rails=("eth0", "eth1")).says

    assert says(rail, "mlx5_1") is says(card, "mlx5_1") is ProbeSays.SHARED
    assert says(rail, "mlx5_0") is says(card, "mlx5_0") is ProbeSays.ELSEWHERE
    found = weighed(verdict(rail), nic="mlx5_1", parts=parts, rails=("eth0", "eth1"))
    assert with_probe(alone, found, [worker], parts).named[0].bad == ("0",)


def test_spares_that_were_slow_are_told() -> None:
    found = weighed(
        verdict(
            slow_part(PartKind.NODE, "s1", "s1"),
            slow_part(PartKind.PATH, "s0 <-> s2", "s0", "s2"),
        )
    )

    assert found.slow_nodes == ("s1",)


def test_nothing_slow_among_idle_nodes_is_an_answer() -> None:
    found = weighed(verdict(outcome=FabricOutcome.SOUND))

    assert found.says is ProbeSays.NOTHING
    assert "found nothing slow: look at the slow ranks' own nodes" in found.in_words()


def test_two_nodes_are_sound_only_if_they_reached_what_they_were_allowed_to_send() -> None:
    def says(usual: float) -> ProbeSays:
        found = verdict(outcome=FabricOutcome.UNCLEAR, usual=usual)
        return weighed(found, spares=("s0", "s2")).says

    assert says(0.81 * LIMIT) is ProbeSays.NOTHING
    assert says(0.79 * LIMIT) is ProbeSays.UNCLEAR


def test_an_unclear_test_of_many_nodes_decides_nothing() -> None:
    assert weighed(verdict(outcome=FabricOutcome.UNCLEAR)).says is ProbeSays.UNCLEAR


def test_the_part_that_was_slow_breaks_a_tie_and_explains_a_single_rank() -> None:
    parts = parse_parts("SwitchName=leaf1 Nodes=n[0-1]\nSwitchName=spine1 Switches=leaf1\n")
    workers = [PlacedWorker(node, node) for node in ("n0", "n1", "n2", "n3", "n4")]
    found = weigh(
        verdict(slow_part(PartKind.SWITCH, "leaf1", "s0")), SPARES, LIMIT, workers[:1], JOB, parts
    )
    tied = explain_shared(workers, ["n0", "n1"], parts)
    alone = explain_shared(workers, ["n0"], parts)

    assert (tied.end, alone.end) == (BlameEnd.TIED, BlameEnd.TOO_FEW)
    assert with_probe(tied, found, workers[:2], parts).part == "leaf switch leaf1"
    assert with_probe(alone, found, workers[:1], parts).part == "leaf switch leaf1"
    assert with_probe(alone, found, workers[:1], parts).alone == ()


def test_what_a_probe_did_not_find_changes_no_blame() -> None:
    blame = explain_shared([PlacedWorker(node, node) for node in JOB], ["n0", "n1"], NO_PARTS)

    assert with_probe(blame, weighed(verdict()), [], NO_PARTS) == blame
