"""A slow job's spares are asked to test the network, journaled first, and let go as soon as anything else is due."""

from dataclasses import replace

import pytest

from detectors.fabric.fabric_verdict import PartKind
from detectors.formats.site.slurm_topology import parse_parts
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.watch.probe_watch import REFUSED_S
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    FabricProbeSkipped,
    ProbeEnd,
    SlowExplained,
)
from recovery.journal.records import Record
from recovery.messages.exchange import Report
from recovery.messages.probing import ProbeState, ProbeTold
from tests.support.findings import slow_part, verdict
from tests.support.job_ledgers import slow
from tests.support.nodes_bench import SETTINGS, Bench, FakeNode

FOUR = replace(SETTINGS, nodes_max=4)


class ProbeNode(FakeNode):
    """A launcher that takes part in probes as its test says."""

    can_probe = True
    part: ProbeTold | None = None

    def report(self) -> Report:
        return replace(super().report(), can_probe=self.can_probe, probe=self.part)


class ProbeBench(Bench):
    def __init__(
        self, settings: JobSettings = FOUR, names: str = "abcd", **options: object
    ) -> None:
        super().__init__(settings, names=names, **options)  # type: ignore[arg-type]
        self.nodes = {name: ProbeNode(name) for name in names}  # type: ignore[assignment]
        self.rules = ProbeRules(dry_run=False)
        self.refusal: str | None = None
        self.allowed: list[FabricProbeAsked] = []
        self.ended: list[FabricProbeEnded] = []
        self.parts = parse_parts("SwitchName=leaf1 Nodes=a,c\nSwitchName=leaf2 Nodes=b,d\n")  # type: ignore[misc]

    def is_dry_for(self, _job_id: str) -> bool:
        return False

    def probe_rules(self, _job_id: str) -> ProbeRules:
        return self.rules

    def refuse_probe(self, asked: FabricProbeAsked) -> str | None:
        self.allowed += [] if self.refusal else [asked]
        return self.refusal

    def note_probe_ended(self, ended: FabricProbeEnded) -> None:
        self.ended.append(ended)

    def slow_down(self) -> None:
        """Have rank 0, on node a, found slow in its communication; its hardware shows nothing."""
        found = replace(slow(0), finding=replace(slow(0).finding, node="a"))
        why = SlowExplained(1, 0, "", "nothing that slows it down was found", 0.0, ())
        self.control._situation.record(found, why)

    def probes(self) -> list[Record]:
        kinds = (FabricProbeAsked, FabricProbeSkipped, FabricProbeEnded)
        return [one.record for one in self.journal.entries if isinstance(one.record, kinds)]

    def probe_asked(self) -> FabricProbeAsked:
        (found,) = self.records(FabricProbeAsked)
        assert isinstance(found, FabricProbeAsked)
        return found

    def tell(self, node: str, state: ProbeState, **told: object) -> None:
        self.nodes[node].part = ProbeTold(self.probe_asked().probe_id, state, **told)  # type: ignore[attr-defined,arg-type]
        self.beat(0.5)


@pytest.fixture
def bench() -> ProbeBench:
    made = ProbeBench()
    made.beat(1.0)
    made.beat(1.0, 1)
    made.beat(1.0, 2)
    assert made.placed == ["a", "b"]
    return made


def test_spares_are_asked_after_the_record_and_meet_where_the_first_one_listens(
    bench: ProbeBench,
) -> None:
    bench.slow_down()
    bench.beat(3.0)
    asked, requests = bench.probe_asked(), dict(bench.control.probe_requests)
    bench.tell("c", ProbeState.RUNNING, port=4711)
    later = bench.control.probe_requests

    assert (asked.nodes, asked.ranks, bench.allowed) == (("c", "d"), (0,), [asked])
    assert {node: (one.place, one.port) for node, one in requests.items()} == {
        "c": (0, 0),
        "d": (1, 0),
    }
    assert {node: one.port for node, one in later.items()} == {"c": 0, "d": 4711}
    assert requests["c"].secret == requests["d"].secret == later["c"].secret
    assert len(requests["c"].secret) == 64
    assert requests["c"].leaf_of == {"c": "leaf1", "d": "leaf2"}
    assert not any(one.is_beside_ranks for one in requests.values())


def test_a_verdict_explains_the_slow_rank_and_lets_everybody_go(bench: ProbeBench) -> None:
    bench.slow_down()
    bench.beat(3.0)
    leaf1 = slow_part(PartKind.UPLINK, "leaf1", "c")
    bench.tell("c", ProbeState.DONE, verdict=verdict(leaf1))
    bench.beat(20.0)
    why = bench.control.ledger.slow[0].why

    (ended,) = bench.ended
    assert (ended.end, ended.part) == (ProbeEnd.JUDGED, "uplink of leaf switch leaf1")
    assert why is not None
    assert why.part == "leaf switch leaf1"
    assert bench.control.probe_requests == {}
    assert len(bench.probes()) == 2, "it is not done twice"
    assert bench.control.ledger.probes.slow_nodes == {"c"}


def test_a_spare_that_is_needed_is_taken_at_once_and_the_probe_ends(bench: ProbeBench) -> None:
    bench.slow_down()
    bench.beat(3.0)
    assert set(bench.control.probe_requests) == {"c", "d"}
    bench.kill("b")
    bench.nodes["b"].is_silent = True
    bench.beat(120.0)

    kinds = [type(one.record) for one in bench.journal.entries]
    (ended,) = bench.ended
    assert ended.end is ProbeEnd.YIELDED
    assert kinds.index(FabricProbeEnded) < len(kinds) - kinds[::-1].index(AttemptStarted) - 1
    assert bench.control.probe_requests == {}


def test_another_controller_ends_what_it_finds_under_way_and_does_not_do_it_again(
    bench: ProbeBench,
) -> None:
    bench.slow_down()
    bench.beat(3.0)
    asked = bench.probe_asked()

    after = ProbeBench(opened=tuple(bench.journal.entries))
    after.nodes = bench.nodes
    after.beat(3.0)
    after.slow_down()
    after.beat(60.0)

    ended = [one for one in after.probes() if isinstance(one, FabricProbeEnded)]
    assert [(one.probe_id, one.end) for one in ended] == [(asked.probe_id, ProbeEnd.INTERRUPTED)]
    assert after.control.probe_requests == {}
    assert after.probe_asked() == asked, "the only one"


def test_by_default_it_is_journaled_and_nobody_is_asked(bench: ProbeBench) -> None:
    bench.rules = ProbeRules()
    bench.slow_down()
    bench.beat(60.0)

    assert bench.probe_asked().is_dry
    assert (bench.allowed, bench.control.probe_requests) == ([], {})


def test_what_the_cluster_refuses_waits_unjournaled_and_is_tried_again(bench: ProbeBench) -> None:
    bench.refusal = "another one is under way"
    bench.slow_down()
    bench.beat(30.0)
    before = bench.probes()
    bench.refusal = None
    bench.beat(REFUSED_S + 1.0)

    assert before == []
    assert bench.probe_asked().nodes == ("c", "d")


def test_launchers_that_know_no_probes_are_not_counted(bench: ProbeBench) -> None:
    bench.nodes["d"].can_probe = False  # type: ignore[attr-defined]
    bench.beat(1.0)
    bench.slow_down()
    bench.beat(3.0)

    (skipped,) = bench.probes()
    assert isinstance(skipped, FabricProbeSkipped)
    assert skipped.idle == ("c",)
