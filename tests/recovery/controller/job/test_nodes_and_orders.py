import json
from collections.abc import Mapping
from dataclasses import replace
from signal import SIGSEGV

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.finding import (
    HOST_ENDED,
    HOST_RESTARTED,
    Blame,
    Evidence,
    Finding,
    Kind,
    Severity,
    Symptom,
    SymptomKind,
)
from detectors.formats.site.slurm_topology import parse_parts
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import FlightDump
from detectors.parts.fleet_parts import FleetPart, SharedKind
from recovery.controller.cluster.gate import Answer, Judgement
from recovery.controller.job.node_power import ASK_RATIO
from recovery.controller.job.observation import Observation
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.watch.hang_verdict import LATE_S
from recovery.journal.attempt_records import AttemptEnded, AttemptStarted, CheckpointSeen, Proof
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import (
    Decided,
    EvidenceCollected,
    IncidentOpened,
    PlanWaits,
    WaitsFor,
)
from recovery.journal.job_records import LauncherStarted, OutcomeKind, PersonActed
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.node_records import (
    EvidenceDoubted,
    EvidenceTaken,
    FinderChosen,
    LaunchersEnded,
    LeaveCause,
    NodeLeft,
    NodesJoined,
    NodesOff,
)
from recovery.journal.records import decode_record, encode_record, kind_of
from recovery.messages.candidates import HeldPart, Share
from recovery.messages.exchange import (
    BadNumber,
    Collected,
    Endpoint,
    FoundCheckpoint,
    NotFinite,
    Order,
    RankError,
    RankEvidence,
    RankExit,
    RankReport,
    Report,
    StepNumbers,
)
from recovery.messages.outside import PersonAct
from tests.support.controller_bench import POLICY
from tests.support.nodes_bench import (
    SEARCHING,
    SETTINGS,
    Bench,
    FakeNode,
    command,
    evidence,
    last_word,
    make_training,
)

pytestmark = pytest.mark.safety


@pytest.fixture
def training() -> Bench:
    return make_training()


# Joining, placement and orders.


def test_nodes_that_join_in_one_go_are_one_record_and_start_at_once_when_all_are_there() -> None:
    bench = Bench()
    bench.beat(0.25)

    (joined,) = bench.records(NodesJoined)
    assert [one.node for one in joined.nodes] == ["a", "b", "c"]
    assert bench.placed == ["a", "b"]


def test_with_fewer_than_all_the_first_attempt_waits_for_a_while() -> None:
    bench = Bench(names="ab")
    bench.beat(POLICY.join_wait_s - 1.0)
    assert bench.records(AttemptStarted) == []

    bench.beat(2.0)
    assert bench.placed == ["a", "b"]


LOST_PEER = RankError("ConnectionResetError", "connection reset by peer", "")
ELASTIC = replace(SETTINGS, nodes_min=1, shrink_multiple=1)  # --nnodes 1:3


def test_a_range_of_nodes_trains_on_all_that_join() -> None:
    bench = Bench(ELASTIC)
    bench.beat(1.0)

    assert bench.placed == ["a", "b", "c"]
    assert bench.nodes["a"].orders[-1].spare_count == 0


def test_the_last_call_begins_when_the_minimum_is_there() -> None:
    bench = Bench(replace(ELASTIC, nodes_min=2), names="abc")
    bench.nodes["b"].is_silent = bench.nodes["c"].is_silent = True
    bench.beat(POLICY.join_wait_s + 5.0)
    bench.nodes["b"].is_silent = False
    bench.beat(POLICY.join_wait_s - 2.0)
    assert bench.records(AttemptStarted) == []

    bench.beat(4.0)
    assert bench.placed == ["a", "b"]


def test_a_node_that_joins_later_is_used_at_the_next_restart() -> None:
    bench = Bench(ELASTIC)
    bench.nodes["c"].is_silent = True
    bench.beat(POLICY.join_wait_s + 1.0)
    assert bench.placed == ["a", "b"]
    bench.nodes["c"].is_silent = False
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    assert len(bench.records(AttemptStarted)) == 1, "it restarts nothing"

    bench.kill("a")
    bench.beat(10.0)

    assert bench.placed == ["a", "b", "c"]


def test_spares_of_a_range_wait_until_a_node_is_lost() -> None:
    bench = Bench(replace(ELASTIC, nodes_min=1, spares=1))
    bench.beat(1.0)
    assert bench.placed == ["a", "b"]
    assert [bench.nodes[name].orders[-1].spare_count for name in "abc"] == [1, 1, 1]
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)

    bench.control.handle_report(last_word(bench.nodes["a"]))
    bench.nodes["a"].is_silent = True
    bench.beat(10.0)

    assert bench.placed == ["c", "b"]


def test_orders_name_ranks_peers_and_the_place_to_meet_and_spares_run_nothing(
    training: Bench,
) -> None:
    first, second, spare = (training.nodes[name].orders[-1] for name in "abc")

    assert (first.ranks, second.ranks, spare.ranks) == ((0,), (1,), ())
    assert (first.group_rank, second.group_rank, first.group_count) == (0, 1, 2)
    assert first.rendezvous == second.rendezvous == Endpoint("a", 1000)
    assert [peer.node for peer in first.peers] == ["a", "b"]
    assert (first.lease_s, spare.lease_s) == (POLICY.lease_s, 0.0)
    assert (first.node, first.launcher_id, first.epoch, first.controller_id) == (
        "a", "a-1", 1, "c-1",
    )  # fmt: skip


def test_nodes_have_as_many_ranks_as_their_own_launchers_say() -> None:
    bench = Bench(replace(ELASTIC, nodes_min=2), names="abc")
    for name, slots in (("a", 1), ("b", 2), ("c", 3)):
        bench.nodes[name].slots = slots
    bench.beat(1.0)

    assert [place.ranks for place in bench.records(AttemptStarted)[-1].placement] == [
        (0,),
        (1, 2),
        (3, 4, 5),
    ]
    order = bench.nodes["b"].orders[-1]
    assert (order.world_size, order.group_sizes) == (6, (1, 2, 3))
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)

    bench.control.handle_report(last_word(bench.nodes["b"]))
    bench.nodes["b"].is_silent = True
    bench.beat(10.0)

    assert {node: bench.nodes[node].orders[-1].ranks for node in "ac"} == {
        "a": (0,),
        "c": (1, 2, 3),
    }


def test_ranks_are_counted_within_their_role() -> None:
    bench = Bench(ELASTIC)
    for name, slots, role in (("a", 2, "trainer"), ("b", 1, ""), ("c", 3, "trainer")):
        bench.nodes[name].slots, bench.nodes[name].role = slots, role
    bench.beat(1.0)

    orders = [bench.nodes[name].orders[-1] for name in "abc"]
    assert [(one.role_rank, one.role_world_size) for one in orders] == [(0, 5), (0, 1), (2, 5)]


def test_a_job_of_one_role_counts_its_ranks_only_once() -> None:
    bench = Bench(ELASTIC)
    for node in bench.nodes.values():
        node.role = "trainer"
    bench.beat(1.0)

    assert bench.nodes["c"].orders[-1].role_world_size == 0


def test_a_node_with_too_few_slots_gets_no_ranks_where_all_need_the_same_number() -> None:
    bench = Bench(replace(SETTINGS, slots=2, shrink_multiple=4))
    bench.nodes["a"].slots = 1
    for name in "bc":
        bench.nodes[name].slots = 2
    bench.beat(1.0)

    bench.beat(POLICY.join_wait_s + 1.0)
    assert bench.placed == ["b", "c"]


def test_more_nodes_than_the_most_are_refused() -> None:
    bench = Bench(names="abcd")
    bench.beat(1.0)

    assert sorted(bench.control.ledger.members) == ["a", "b", "c"]


def test_a_node_above_the_most_is_passed_over_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(names="abcd")

    for step in range(1, 6):
        bench.beat(1.0, step)

    assert sorted(bench.control.ledger.members) == ["a", "b", "c"]
    said = [record for record in caplog.records if "has all its nodes" in record.message]
    assert [record.__dict__["node"] for record in said] == ["d"]


def test_a_launcher_that_was_replaced_is_refused_for_ever(training: Bench) -> None:
    old = training.nodes["c"].report()
    training.nodes["c"].launcher_id, training.nodes["c"].started_s = "c-2", 9.0
    training.beat(1.0)

    training.control.handle_report(replace(old, number=10_000))
    training.control.tick()

    assert "was replaced by c-2" in training.control.refuses("c", "c-1")
    assert training.control.refuses("c", "c-2") is None
    assert training.control.ledger.members["c"].launcher_id == "c-2"


def test_a_launcher_that_has_ended_proves_its_node_empty_at_once_and_a_spare_takes_its_place(
    training: Bench,
) -> None:
    word, late = last_word(training.nodes["b"]), training.nodes["b"].report()
    training.nodes["b"].is_silent = True

    training.control.handle_report(word)
    for again in (late, word):  # overtaken by it, and once more
        training.control.handle_report(again)
    training.beat(2.0)

    (ended,) = training.records(LaunchersEnded)
    assert [(one.node, one.launcher_id) for one in ended.launchers] == [("b", "b-1")]
    (incident,) = training.records(IncidentOpened)
    assert "the launcher of b has ended" in incident.failure.finding.summary
    (proof,) = training.records(AttemptEnded)[0].proofs
    assert (proof.node, proof.proof) == ("b", Proof.LAST_WORD)
    assert training.placed == ["a", "c"]
    assert "b-1 of b has ended" in training.control.refuses("b", "b-1")


@pytest.mark.parametrize("error", [LOST_PEER, None], ids=["lost peer", "exit code alone"])
def test_peers_that_lost_the_ranks_of_an_ended_launcher_are_its_victims(
    training: Bench, error: RankError | None
) -> None:
    word = last_word(training.nodes["b"])
    training.nodes["b"].is_silent = True

    end_with(training.nodes["a"], error)
    training.beat(2.0)
    assert not training.records(IncidentOpened)
    training.control.handle_report(word)
    training.beat(1.0)

    (incident,) = training.records(IncidentOpened)
    finding = incident.failure.finding
    assert (finding.node, finding.symptom, finding.victims) == ("b", HOST_ENDED, (0,))
    assert training.placed == ["a", "c"]


def test_a_rank_with_an_error_of_its_own_is_no_victim_of_an_ended_launcher(
    training: Bench,
) -> None:
    word = last_word(training.nodes["b"])
    training.nodes["b"].is_silent = True

    end_with(training.nodes["a"], RankError("ValueError", "bad batch 7", ""))
    training.control.handle_report(word)
    training.beat(2.0)

    (incident,) = training.records(IncidentOpened)
    assert incident.failure.finding.symptom.kind is SymptomKind.EXCEPTION


@pytest.mark.parametrize("is_silent", [False, True])
def test_an_exit_code_alone_blames_no_launcher_that_has_reported_no_end(
    training: Bench, is_silent: bool
) -> None:
    training.nodes["b"].is_silent = is_silent

    end_with(training.nodes["a"], None)
    training.beat(0.1)
    training.beat(6.0)

    incident, *_ = training.records(IncidentOpened)
    assert incident.failure.finding.symptom.kind is SymptomKind.EXIT


@pytest.mark.parametrize(("is_silent", "waits_s"), [(False, 1.0), (True, 6.0)])
def test_peers_that_lost_another_blame_no_launcher_that_has_reported_no_end(
    training: Bench, is_silent: bool, waits_s: float
) -> None:
    training.nodes["b"].is_silent = is_silent

    lose_peer(training.nodes["a"])
    training.beat(0.1)
    training.beat(waits_s)

    (incident,) = training.records(IncidentOpened)
    finding = incident.failure.finding
    assert (finding.blame, finding.ranks) == (Blame.COMMUNICATION, ())


@pytest.mark.parametrize(
    ("boot_id", "symptom", "words"),
    [
        ("boot-1", HOST_ENDED, "the launcher of b was restarted"),
        ("boot-2", HOST_RESTARTED, "b was booted anew"),
    ],
)
@pytest.mark.parametrize("is_lost", [False, True])
def test_only_a_new_boot_counts_against_the_node_of_a_launcher_that_came_anew(
    training: Bench, boot_id: str, symptom: Symptom, words: str, *, is_lost: bool
) -> None:
    node = training.nodes["b"]
    if is_lost:
        lose_peer(training.nodes["a"])
    node.launcher_id, node.boot_id, node.started_s = "b-2", boot_id, 9.0
    node.attempt, node.ranks = 0, {}
    training.beat(3.0)

    incident, *_ = training.records(IncidentOpened)
    finding = incident.failure.finding
    assert (finding.node, finding.symptom) == ("b", symptom)
    assert words in finding.summary


def test_an_ended_launcher_whose_rank_reported_its_own_lost_peer_is_not_the_reason(
    training: Bench,
) -> None:
    lose_peer(training.nodes["a"])
    lose_peer(training.nodes["b"])
    reported = training.nodes["b"].report()
    training.control.handle_report(reported)
    training.nodes["b"].is_silent = True
    training.control.handle_report(last_word(training.nodes["b"]))
    training.beat(1.0)

    (incident,) = training.records(IncidentOpened)
    assert incident.failure.finding.blame is Blame.COMMUNICATION


def test_the_end_of_a_launcher_is_remembered_by_the_next_controller(training: Bench) -> None:
    training.answer = Answer(Judgement.WAIT, "later")
    training.nodes["b"].is_silent = True
    training.control.handle_report(last_word(training.nodes["b"]))
    training.beat(1.0)

    again = Bench(opened=training.journal.entries)
    again.nodes |= {name: training.nodes[name] for name in "ac"}
    again.nodes["b"].is_silent = True
    again.beat(3.0)

    assert again.records(AttemptEnded)[0].proofs[0].proof is Proof.LAST_WORD
    assert again.placed == ["a", "c"]


def test_a_new_boot_proves_its_node_empty_at_once_whose_launcher_said_no_word(
    training: Bench,
) -> None:
    node = training.nodes["b"]
    node.is_silent = True
    training.beat(2.0)

    node.launcher_id, node.boot_id, node.started_s, node.number = "b-2", "boot-2", 0.5, 0
    node.ranks, node.attempt, node.empty_through, node.revision = {}, 0, 0, 0
    training.control.handle_report(node.report())  # and no more, so that nothing else proves it
    training.beat(2.0)

    (proof,) = training.records(AttemptEnded)[0].proofs
    assert (proof.node, proof.proof) == ("b", Proof.BOOT)
    assert len(training.records(AttemptStarted)) == 2


def test_a_silent_node_without_power_is_proved_empty_long_before_the_lease(
    training: Bench,
) -> None:
    training.nodes["b"].is_silent = True
    training.off.add("b")
    lost_at_s = training.clock.time_s

    training.beat(12.0)

    (off,) = training.records(NodesOff)
    assert [(one.node, one.launcher_id, one.attempt) for one in off.nodes] == [("b", "b-1", 1)]
    (ended,) = training.records(AttemptEnded)
    assert (ended.proofs, ended.off) == ((), ("b",))
    assert training.placed == ["a", "c"]
    (started,) = (
        entry
        for entry in training.journal.entries
        if isinstance(entry.record, AttemptStarted) and entry.record.attempt == 2
    )
    assert started.monotonic_s - lost_at_s <= 12.0  # by the simulated clock
    assert "b-1 of b has ended" in training.control.refuses("b", "b-1")


POWER_OFF = replace(SETTINGS, policy=replace(POLICY, power_off_to_fence=True))


def start_of(settings: JobSettings, names: str = "abc") -> Bench:
    bench = Bench(settings, names=names)
    bench.beat(1.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    return bench


def test_a_lost_node_is_switched_off_once_where_the_policy_allows_it() -> None:
    bench = start_of(POWER_OFF)
    bench.nodes["b"].is_silent = True

    bench.age(POLICY.node_silent_s + 5.0)
    bench.beat(2.0)

    assert bench.switched_off == ["b"]
    assert bench.records(AttemptEnded)[0].off == ("b",)
    assert bench.placed == ["a", "c"]


def test_nothing_is_switched_off_by_default_or_while_the_node_is_only_late() -> None:
    by_default, late = start_of(SETTINGS), start_of(POWER_OFF)
    by_default.nodes["b"].is_silent = True
    by_default.age(POLICY.node_silent_s + 10.0)
    late.nodes["b"].is_silent = True
    late.kill("a")  # so that the attempt is fenced long before the node counts as silent
    late.beat(POLICY.node_silent_s - 2.0)

    assert by_default.lost == []
    assert late.records(IncidentOpened)
    assert late.lost == []


def test_nothing_is_switched_off_where_most_of_the_job_is_silent() -> None:
    settings = replace(POWER_OFF, nodes_min=3, nodes_max=3)
    bench = start_of(settings)
    bench.kill("a")
    for name in "bc":
        bench.nodes[name].is_silent = True

    bench.beat(POLICY.node_silent_s + 10.0)

    assert bench.records(IncidentOpened)
    assert bench.lost == []


def test_no_node_is_blamed_where_most_of_the_job_is_silent_at_once() -> None:
    bench = start_of(replace(SETTINGS, nodes_min=3, nodes_max=3))
    for name in "bc":
        bench.nodes[name].is_silent = True

    bench.beat(POLICY.node_silent_s + 30.0)

    (incident,) = bench.records(IncidentOpened)
    finding = incident.failure.finding
    assert (finding.blame, finding.node, finding.ranks) == (Blame.COMMUNICATION, "", ())
    assert finding.summary.startswith("b, c silent")


def test_power_is_asked_about_only_after_several_reports_are_missing(training: Bench) -> None:
    training.off = {"a", "b", "c"}
    training.beat(5.0, step=5)
    training.nodes["b"].is_silent = True
    training.beat(ASK_RATIO * POLICY.node_silent_s - 0.5, step=6)

    assert training.records(NodesOff) == []
    assert training.records(IncidentOpened) == []


def test_more_than_half_of_the_job_without_power_is_proof_although_the_lease_is_none() -> None:
    bench = Bench(replace(SETTINGS, nodes_min=3, nodes_max=5), names="abcde")
    bench.beat(1.0)
    for step in (1, 2, 3):
        bench.beat(1.0, step)
    for name in "bc":
        bench.nodes[name].is_silent = True
    bench.off = {"b", "c"}

    bench.beat(12.0)

    assert set(bench.records(AttemptEnded)[0].off) == {"b", "c"}
    assert bench.placed == ["a", "d", "e"]


def test_power_that_was_off_is_remembered_by_the_next_controller(training: Bench) -> None:
    training.answer = Answer(Judgement.WAIT, "later")
    training.nodes["b"].is_silent = True
    training.off.add("b")
    training.beat(5.0)

    again = Bench(opened=training.journal.entries)
    again.nodes |= {name: training.nodes[name] for name in "ac"}
    again.nodes["b"].is_silent = True
    again.beat(3.0)

    assert again.records(AttemptEnded)[0].off == ("b",)
    assert again.placed == ["a", "c"]


def test_a_node_whose_power_was_off_comes_back_with_a_new_launcher_only(training: Bench) -> None:
    node = training.nodes["b"]
    old = node.report()
    node.is_silent = True
    training.off.add("b")
    training.beat(8.0)

    late = replace(old, number=old.number + 50)  # from before, or its BMC is another node's
    training.control.handle_report(late)
    training.beat(1.0)
    assert len(training.records(NodesJoined)) == 1

    training.off.clear()
    node.launcher_id, node.boot_id, node.number, node.is_silent = "b-2", "boot-2", 0, False
    training.beat(1.0)
    assert [one.node for one in training.records(NodesJoined)[-1].nodes] == ["b"]


def test_a_spare_that_leaves_is_offered_no_more_until_a_newer_launcher_comes(
    training: Bench,
) -> None:
    spare = training.nodes["c"]
    training.control.handle_report(last_word(spare))
    spare.is_silent = True
    training.beat(0.5, 5)
    assert training.control.ledger.members["c"].left == "its launcher has ended"
    assert training.records(IncidentOpened) == []

    spare.launcher_id, spare.started_s, spare.is_silent = "c-2", 9.0, False
    training.beat(0.5, 6)

    assert training.control.ledger.members["c"].left is None
    assert training.control.refuses("c", "c-2") is None


def test_the_end_of_a_launcher_that_has_a_successor_says_nothing_of_it(training: Bench) -> None:
    old = last_word(training.nodes["b"])
    training.nodes["b"].launcher_id, training.nodes["b"].started_s = "b-2", 9.0
    training.nodes["b"].attempt, training.nodes["b"].ranks = 0, {}
    training.beat(0.5)

    training.control.handle_report(old)
    training.beat(0.5)

    assert training.records(LaunchersEnded) == []
    assert training.control.ledger.members["b"].left is None


def test_the_end_of_a_launcher_of_another_boot_or_that_never_joined_says_nothing(
    training: Bench,
) -> None:
    word = last_word(training.nodes["b"])

    training.control.handle_report(replace(word, boot_id="boot-9"))
    training.control.handle_report(replace(word, launcher_id="stranger"))
    training.beat(0.5, 5)

    assert training.records(LaunchersEnded) == []


def test_a_launcher_that_ends_while_its_plan_is_carried_out_is_left_with_the_gates_leave(
    training: Bench,
) -> None:
    training.kill("a")
    training.nodes["b"].is_silent = True
    training.beat(1.0)  # restart in place: b is to say that it is empty
    assert training.asked[-1].step is PlanStep.RESTART_IN_PLACE

    training.control.handle_report(last_word(training.nodes["b"]))
    training.beat(2.0)

    assert training.asked[-1].without == ("b",)
    assert training.placed == ["a", "c"]


def test_no_lease_is_over_while_reports_wait_that_may_have_renewed_it(training: Bench) -> None:
    training.nodes["b"].is_silent = True
    waiting = training.nodes["b"].report()
    training.hearing.hear_through(training.clock.time_s)
    training.kill("a")

    training.beat(60.0)  # b's report was answered, and lies in the queue
    assert training.records(AttemptEnded) == []

    training.control.handle_report(waiting)
    training.hearing.hear_through(training.clock.time_s)
    training.beat(1.0)
    for _second in range(40):
        training.hearing.hear_through(training.clock.time_s)
        training.beat(1.0)

    (ended,) = training.records(AttemptEnded)
    assert [(one.node, one.proof) for one in ended.proofs] == [("b", Proof.LEASE)]


def test_a_late_first_report_of_an_older_launcher_replaces_nobody(training: Bench) -> None:
    late = replace(training.nodes["c"].report(), launcher_id="c-0", launcher_started_s=0.5)

    training.control.handle_report(late)
    training.control.tick()

    assert training.control.ledger.members["c"].launcher_id == "c-1"


def test_a_report_that_was_overtaken_changes_nothing(training: Bench) -> None:
    node = training.nodes["a"]
    early = node.report()
    training.beat(1.0, 5)
    dead = replace(early.ranks[0], exit=RankExit(0.1, None, 9, False, False, None, ()))

    training.control.handle_report(replace(early, ranks=(dead,)))
    training.control.tick()

    assert training.records(IncidentOpened) == []


def test_a_node_speaks_for_no_ranks_but_its_own(training: Bench) -> None:
    foreign = replace(
        training.nodes["a"].ranks[0], rank=1, exit=RankExit(0.1, None, 9, False, False, None, ())
    )
    report = training.nodes["a"].report()

    training.control.handle_report(replace(report, ranks=(*report.ranks, foreign)))
    training.control.tick()

    assert training.records(IncidentOpened) == []


def test_every_attempt_meets_at_a_place_where_none_has_met(training: Bench) -> None:
    training.kill("b")
    training.beat(2.0)

    met = [one.rendezvous for one in training.records(AttemptStarted)]
    assert met == [Endpoint("a", 1000), Endpoint("a", 1001)]


def test_without_a_new_place_to_meet_no_attempt_starts(training: Bench) -> None:
    training.nodes["a"].port -= 1
    training.kill("b")
    training.beat(2.0)
    assert len(training.records(AttemptStarted)) == 1

    training.nodes["a"].port += 1
    training.beat(1.0)
    assert len(training.records(AttemptStarted)) == 2


def shares_asked(bench: Bench) -> list[dict[str, tuple[int, int]]]:
    """Return for each look which node was asked for which share."""
    return [
        {one.node: (one.share.number, one.share.count) for one in chosen.readers}
        or {chosen.node: (0, 1)}
        for chosen in bench.records(FinderChosen)
    ]


def test_the_nodes_of_the_next_attempt_look_for_checkpoints_after_the_fence_each_at_its_share() -> (
    None
):
    bench = Bench(SEARCHING)
    bench.beat(2.0)

    (chosen,) = bench.records(FinderChosen)
    assert (chosen.node, chosen.attempt) == ("a", 0)
    assert shares_asked(bench) == [{"a": (0, 3), "b": (1, 3), "c": (2, 3)}]
    looks = [order for order in bench.nodes["c"].orders if order.finds_checkpoints]
    assert [(order.share, order.ranks) for order in looks] == [(Share(2, 3), ())]
    assert bench.nodes["c"].orders[-1].restore.path == "/c/7"


def test_beside_training_each_node_has_its_share_and_what_they_know_together_is_noted() -> None:
    bench = Bench(SEARCHING)
    bench.beat(2.0)

    running = [node.orders[-1] for node in bench.nodes.values()]

    assert [order.share for order in running] == [Share(at, 3) for at in range(3)]
    assert [order.finds_checkpoints for order in running] == [False] * 3


def test_one_node_looks_alone_where_it_is_the_only_one() -> None:
    bench = Bench(replace(SEARCHING, nodes_min=1, nodes_max=1), names="a")
    bench.beat(2.0)

    assert shares_asked(bench) == [{"a": (0, 1)}]
    assert bench.nodes["a"].orders[-1].share == Share()


def test_a_defect_in_one_share_holds_the_checkpoint_back_and_names_the_node() -> None:
    bench = Bench(SEARCHING)
    bench.nodes["b"].told = {
        "is_valid": False,
        "reason": "CRC does not fit",
        "hindrance": "damaged",
    }
    bench.beat(2.0)

    (started,) = bench.records(AttemptStarted)
    assert started.choice.restore is None
    assert [one.reason for one in started.choice.passed_over] == ["b: CRC does not fit"]


def test_the_share_of_a_node_that_can_not_look_is_read_by_the_others() -> None:
    bench = Bench(SEARCHING)
    bench.nodes["b"].look_error = "Input/output error"
    bench.beat(3.0)

    assert shares_asked(bench) == [
        {"a": (0, 3), "b": (1, 3), "c": (2, 3)},
        {"a": (0, 2), "c": (1, 2)},
    ]
    assert "b can't look: Input/output error" in bench.records(FinderChosen)[-1].reason
    assert bench.nodes["b"].orders[-1].restore.path == "/c/7"


def test_one_node_reads_all_where_the_others_fail_again() -> None:
    bench = Bench(SEARCHING)
    bench.nodes["b"].look_error = bench.nodes["c"].look_error = "Input/output error"
    bench.beat(3.0)

    assert shares_asked(bench)[1:] == [{"a": (0, 1)}]
    assert bench.placed == ["a", "b", "c"]


def test_a_node_that_does_not_answer_holds_nobody_up_once_another_has() -> None:
    bench = Bench(SEARCHING)
    take = bench.nodes["b"].take

    def take_nothing_to_find(order: Order) -> None:
        take(order if not order.finds_checkpoints else replace(order, finds_checkpoints=False))

    bench.nodes["b"].take = take_nothing_to_find
    bench.beat(40.0)
    assert len(bench.records(FinderChosen)) == 1  # a launcher may take 30 s

    bench.beat(20.0)

    assert shares_asked(bench)[1] == {"a": (0, 2), "c": (1, 2)}
    assert bench.placed == ["a", "b", "c"]


def test_a_node_that_speaks_for_the_whole_is_enough() -> None:
    bench = Bench(SEARCHING)
    bench.nodes["a"].told = {"share": Share()}
    take = bench.nodes["b"].take
    bench.nodes["b"].take = lambda order: take(replace(order, finds_checkpoints=False))

    bench.beat(5.0)

    assert len(bench.records(FinderChosen)) == 1
    assert bench.placed == ["a", "b", "c"]


def test_on_local_disks_each_node_of_the_next_attempt_is_asked_for_its_own() -> None:
    bench = Bench(replace(SETTINGS, has_checkpoints=True))
    for node in bench.nodes.values():
        node.folder_id = f"disk of {node.name}"
        node.told = {"kind": "nvrx_local", "parts": (HeldPart(7, ord(node.name) - ord("a"), 0),)}
    take = bench.nodes["b"].take
    bench.nodes["b"].take = lambda order: take(replace(order, finds_checkpoints=False))
    bench.beat(POLICY.join_wait_s + 3.0)
    assert shares_asked(bench) == [{"a": (0, 1), "b": (0, 1)}]

    bench.nodes["b"].is_silent = True
    bench.beat(POLICY.node_silent_s + 3.0)

    assert shares_asked(bench)[1:] == [{"a": (0, 1), "c": (0, 1)}]
    assert bench.placed == ["a", "c"]


def test_a_storage_that_no_node_can_read_on_its_own_disk_fails_the_start() -> None:
    bench = Bench(SEARCHING)
    for node in bench.nodes.values():
        node.folder_id, node.look_error = f"disk of {node.name}", "Input/output error"
    bench.beat(3.0)

    assert len(bench.records(FinderChosen)) == 1
    outcome = bench.control.outcome
    assert outcome is not None
    assert "a can't look: Input/output error" in outcome.reason


def test_a_finder_that_falls_silent_is_replaced() -> None:
    bench = Bench(replace(SETTINGS, has_checkpoints=True))
    bench.nodes["a"].take = lambda order: setattr(bench.nodes["a"], "is_silent", True)
    bench.beat(POLICY.join_wait_s + 3.0)

    assert "a" in shares_asked(bench)[0]
    assert "a" not in shares_asked(bench)[-1]
    assert bench.placed == ["b", "c"]


def test_each_start_of_a_controller_is_an_epoch(training: Bench) -> None:
    again = Bench(opened=training.journal.entries)

    assert again.control.ledger.epoch == 2
    claimed = Bench(replace(SETTINGS, epoch_min=7), opened=again.journal.entries)
    assert claimed.control.ledger.epoch == 7


def test_a_journal_without_placement_still_folds(training: Bench) -> None:
    old = [
        replace(entry, record=replace(entry.record, placement=(), rendezvous=None))
        if isinstance(entry.record, AttemptStarted)
        else entry
        for entry in training.journal.entries
    ]

    assert fold_all(old).placement == ()


# Moves.


def test_a_silent_node_whose_peers_stand_still_is_left_for_a_spare(training: Bench) -> None:
    training.nodes["b"].is_silent = True
    training.age(POLICY.node_silent_s + 5.0)

    (opened,) = training.records(IncidentOpened)
    assert (opened.failure.finding.kind, opened.failure.finding.node) == (Kind.HOST, "b")
    assert training.records(Decided)[0].plan.without == ("b",)
    assert len(training.records(AttemptStarted)) == 1  # not before the lease

    training.beat(POLICY.lease_s + POLICY.kill_bound_s + POLICY.lease_margin_s + 1.0)
    assert training.placed == ["a", "c"]
    assert training.blamed == [("b", opened.incident_id)]


# a to g have ranks; h, i and j are spares, and j hangs on the switch of a, b and c.
ON_LEAVES = parse_parts("SwitchName=l1 Nodes=a,b,c,j\nSwitchName=l2 Nodes=d,e,f,g,h,i")
LEAF1 = FleetPart(SharedKind.LEAF, "l1")
BLAMED = "j: below leaf switch l1, which is blamed: 3 of 4 nodes below it are lost"
ACCUSED = "j: below leaf switch l1, which the alert SwitchDown accuses"


@pytest.mark.parametrize(
    ("lost", "broken", "is_let", "after", "said"),
    [
        ("abc", {}, False, "abcdefg", BLAMED),
        ("abc", {}, True, "hijdefg", ""),
        ("ade", {}, False, "jhibcfg", ""),  # nothing is blamed: the nearest comes first
        ("ade", {LEAF1: "the alert SwitchDown accuses"}, False, "abcdefg", ACCUSED),
    ],
)
def test_a_spare_below_a_broken_switch_takes_a_place_only_by_policy(
    lost: str, broken: Mapping[FleetPart, str], is_let: bool, after: str, said: str
) -> None:
    policy = replace(POLICY, spares_below_broken_parts=is_let, spare_wait_s=60.0)
    settings = replace(SETTINGS, policy=policy, nodes_min=7, nodes_max=10)
    bench = Bench(settings, names="abcdefghij")
    bench.parts, bench.broken_parts = ON_LEAVES, broken
    for step in range(5):
        bench.beat(1.0, step)

    for name in lost:
        bench.nodes[name].is_silent = True
    bench.age(POLICY.node_silent_s + 5.0)
    bench.beat(POLICY.lease_s + POLICY.kill_bound_s + POLICY.lease_margin_s + 1.0)

    assert sorted(bench.placed) == sorted(after)
    waits = [one.reason for one in bench.records(PlanWaits) if one.waits_for is WaitsFor.NODES]
    assert [said in one for one in waits] == ([True] if said else [])
    if said:
        bench.beat(61.0)
        outcome = bench.control.outcome
        assert outcome is not None
        assert (outcome.kind, said in outcome.reason) == (OutcomeKind.ESCALATED, True)


@pytest.mark.parametrize(
    ("accused", "after"), [("", "cb"), ("c", "db"), ("cd", "eb"), ("cde", "cb")]
)
def test_a_spare_that_an_alert_rules_out_is_taken_last(accused: str, after: str) -> None:
    bench = Bench(replace(SETTINGS, nodes_min=2, nodes_max=5), names="abcde")
    for step in range(5):
        bench.beat(1.0, step)
    assert bench.placed == ["a", "b"]
    bench.accused_nodes = tuple(accused)

    bench.nodes["a"].is_silent = True
    bench.age(POLICY.node_silent_s + 5.0)
    bench.beat(POLICY.lease_s + POLICY.kill_bound_s + POLICY.lease_margin_s + 1.0)

    assert sorted(bench.placed) == sorted(after)


def test_of_two_nodes_that_do_not_reach_each_other_one_gives_way_to_a_spare(
    training: Bench,
) -> None:
    training.nodes["a"].unreachable = ("b",)

    training.age(301.0)  # past the floor of a hang; both are heard all the time

    decided = training.records(Decided)[0]
    assert decided.plan.step is PlanStep.MOVE
    assert decided.plan.without == ("b",)
    assert "leave b: cut off from a;" in decided.plan.reason
    assert training.placed == ["a", "c"]
    for step in (5, 6, 7):
        training.beat(1.0, step)
    assert [one.node for one in training.records(NodesJoined)[-1].nodes] == ["b"]  # a spare now
    assert training.placed == ["a", "c"]


def test_orders_name_the_neighbours_in_the_ring_of_those_that_run(training: Bench) -> None:
    a, b, spare = (training.nodes[name].orders[-1] for name in "abc")

    assert [peer.node for peer in a.neighbours] == ["b"]
    assert [peer.node for peer in b.neighbours] == ["a"]
    assert (spare.ranks, spare.neighbours) == ((), ())


def lose_peer(node: FakeNode) -> None:
    """Have the node's ranks end because a peer closed the connection; the launcher misses it, too."""
    end_with(node, LOST_PEER)


def end_with(node: FakeNode, error: RankError | None) -> None:
    """Have the node's ranks end with exit code 1 and this error."""
    ended = RankExit(0.1, 1, None, False, False, error, ())
    node.ranks = {
        rank: replace(told, process_state="", exit=ended) for rank, told in node.ranks.items()
    }


def test_a_host_that_died_is_left_and_not_the_node_that_misses_it(training: Bench) -> None:
    training.nodes["a"].is_silent = True
    training.nodes["b"].unreachable = ("a",)  # by age alone, b would give way
    lose_peer(training.nodes["b"])

    training.beat(6.0)
    (opened,) = training.records(IncidentOpened)
    training.beat(POLICY.lease_s + POLICY.node_silent_s + 5.0)

    assert opened.failure.finding.blame is Blame.COMMUNICATION
    assert [(left.node, left.cause) for left in training.records(NodeLeft)] == [
        ("a", LeaveCause.SILENT)
    ]
    assert sorted(training.placed) == ["b", "c"]


def test_nothing_starts_before_a_missed_node_is_known_to_be_alive(training: Bench) -> None:
    lose_peer(training.nodes["b"])
    training.beat(0.75)
    training.nodes["b"].unreachable = ("a",)
    training.beat(0.75)
    assert len(training.records(AttemptEnded)) == 1  # both have said that nothing is left
    assert len(training.records(AttemptStarted)) == 1

    training.beat(1.0)

    assert [(left.node, left.cause) for left in training.records(NodeLeft)] == [
        ("b", LeaveCause.CUT_OFF)
    ]
    assert training.placed == ["a", "c"]


def test_a_node_comes_back_as_soon_as_all_that_it_did_not_reach_have_left() -> None:
    bench = Bench(names="ab")
    bench.beat(40.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    bench.nodes["c"] = FakeNode("c")
    bench.beat(1.0, 5)
    bench.nodes["b"].unreachable = ("a",)
    lose_peer(bench.nodes["b"])
    bench.beat(1.5)
    assert [left.node for left in bench.records(NodeLeft)] == ["b"]
    bench.nodes["b"].unreachable = ()

    bench.nodes["a"].is_silent = True  # before the next attempt makes a step
    bench.beat(POLICY.hung.startup_s + 2 * POLICY.lease_s + POLICY.node_silent_s)

    assert [left.node for left in bench.records(NodeLeft)] == ["b", "a"]
    assert sorted(bench.placed) == ["b", "c"]
    assert bench.control.ledger.incident is not None


def test_a_torn_link_counts_where_ranks_at_one_end_look_as_if_they_were_behind(
    training: Bench,
) -> None:
    training.nodes["a"].unreachable = ("b",)
    for name, entered in (("a", 726), ("b", 690)):
        ranks = training.nodes[name].ranks
        for rank, told in ranks.items():
            ranks[rank] = replace(told, sections_entered=entered)

    training.age(301.0)

    (opened,) = training.records(IncidentOpened)
    assert opened.failure.finding.blame is Blame.RANK
    decided = training.records(Decided)[0]
    assert decided.plan.without == ("b",)
    assert "cut off from a" in decided.plan.reason


def test_ranks_that_stand_still_without_a_spare_start_again_where_they_are_though_nodes_are_torn() -> (
    None
):
    bench = Bench(names="ab")
    bench.beat(40.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    bench.nodes["a"].unreachable = ("b",)

    bench.age(310.0)

    assert [one.plan.step for one in bench.records(Decided)][:1] == [PlanStep.RESTART_IN_PLACE]


def test_a_controller_that_stood_still_itself_takes_nobody_for_silent(training: Bench) -> None:
    training.clock.time_s += 600.0
    training.control.tick()
    training.nodes["b"].is_silent = True  # its report comes later than that of the other
    for rank, told in training.nodes["a"].ranks.items():
        training.nodes["a"].ranks[rank] = replace(told, step_age_s=60.0, section_age_s=60.0)
    training.beat(POLICY.node_silent_s - 2.0)
    training.nodes["b"].is_silent = False
    training.beat(3.0, 5)

    assert training.records(IncidentOpened) == []


def test_nodes_that_were_left_are_used_again_when_a_person_starts_the_job_again(
    training: Bench,
) -> None:
    training.control.take_command(command(PersonAct.LEAVE_NODE, "c"))
    training.control.take_command(command(PersonAct.STOP))
    training.beat(3.0)
    assert training.control.outcome.kind is OutcomeKind.STOPPED

    again = Bench(opened=training.journal.entries)

    assert again.control.ledger.members["c"].left is None


def test_a_silent_node_whose_peers_make_steps_stops_nothing(training: Bench) -> None:
    training.nodes["b"].is_silent = True
    for step in range(5, 60):
        training.beat(1.0, step)

    assert training.records(IncidentOpened) == []


def test_a_long_evaluation_without_steps_stops_nothing_although_a_node_is_silent() -> None:
    bench = Bench(replace(SETTINGS, policy=Policy()))
    bench.beat(1.0)
    for step in (1, 2, 3):
        bench.beat(1.0, step)
    for node in bench.nodes.values():
        node.ranks = {r: replace(told, section="idle") for r, told in node.ranks.items()}
    bench.beat(1.0)
    bench.nodes["b"].is_silent = True

    bench.age(20 * 60)

    assert bench.records(IncidentOpened) == []


def test_the_second_failure_in_a_row_that_blames_a_node_moves_the_job(training: Bench) -> None:
    training.kill("b", SIGSEGV)
    training.beat(2.0)
    for step in (5, 6, 7):
        training.beat(1.0, step)
    assert training.placed == ["a", "b"]

    training.kill("b", SIGSEGV)
    training.beat(3.0)
    assert training.placed == ["a", "c"]
    assert "2 times in a row" in training.records(NodeLeft)[0].reason


def test_kills_whose_sender_nobody_knows_never_move_the_job(training: Bench) -> None:
    for _kill in range(3):
        training.kill("b")
        training.beat(3.0)
        for step in (5, 6, 7):
            training.beat(1.0, step)

    assert training.placed == ["a", "b"]
    assert training.records(NodeLeft) == []


def test_a_kill_between_two_crashes_does_not_end_their_row(training: Bench) -> None:
    for signum in (SIGSEGV, 9, SIGSEGV):
        assert training.placed == ["a", "b"]
        training.kill("b", signum)
        training.beat(3.0)

    assert training.placed == ["a", "c"]


def dump(launched: int) -> FlightDump:
    """Return the flight-recorder dump of one of two ranks; the one that launched more waits."""
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "state": "completed" if number <= 6 else "started",
            "retired": number <= 6,
            "is_p2p": False,
        }
        for number in range(1, launched + 1)
    ]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return parse_dump(
        json.dumps({"version": "2.10", "entries": entries, "pg_config": groups}).encode()
    )


def hang(bench: Bench, *, is_told: bool = True) -> None:
    """Let all ranks stand alike, of which only the dumps know that rank 1 is waited for."""
    step = 100 * len(bench.records(AttemptStarted))
    for more in range(4):
        bench.beat(1.0, step + more)
    before = len(bench.records(IncidentOpened))
    while len(bench.records(IncidentOpened)) == before:
        bench.age(1.0)
    opened = bench.records(IncidentOpened)[-1]
    for name, rank, launched in (("a", 0, 7), ("b", 1, 6)):
        ranks = (RankEvidence(rank, (), dump(launched)),)
        told = Collected(opened.incident_id, opened.failure.attempt, "/e", 1, 10, 0.1, (), ranks)
        if is_told:
            bench.control.handle_report(replace(bench.nodes[name].report(), collected=told))
    bench.beat(3.0)


def test_evidence_of_hangs_that_nobody_was_blamed_for_moves_the_job_when_it_repeats(
    training: Bench,
) -> None:
    hang(training)
    first, collected = training.records(IncidentOpened)[0], training.records(EvidenceCollected)[0]
    assert first.failure.finding.blame is Blame.NOBODY
    assert (collected.finding.ranks, collected.finding.node) == ((1,), "b")
    assert training.blamed == [("b", first.incident_id)], "the cluster hears of it, too"
    assert training.placed == ["a", "b"], "blamed once"

    hang(training)
    if training.placed == ["a", "b"]:  # the evidence came after the restart, which waits for none
        hang(training, is_told=False)

    assert training.placed == ["a", "c"]
    assert "b: blamed 2 times in a row" in training.records(Decided)[-1].plan.reason


def test_evidence_is_judged_when_every_node_of_the_attempt_has_told_or_is_late(
    training: Bench,
) -> None:
    told = Collected("i-1", 1, "/e", 1, 10, 0.1, ())
    report = replace(training.nodes["a"].report(), collected=told)
    training.control.handle_report(report)

    training.beat(2.0)
    assert training.records(EvidenceCollected) == []
    training.beat(LATE_S)
    assert [one.node for one in training.records(EvidenceCollected)[0].saved] == ["a"]


def test_a_node_that_the_cluster_holds_back_is_not_used_again(training: Bench) -> None:
    training.held["a"] = "drained by ada"
    training.kill("b")
    training.beat(3.0)

    assert training.placed == ["c", "b"]


def test_an_attempt_that_one_node_alone_tells_of_stops_no_other_and_is_counted_above(
    training: Bench,
) -> None:
    spare = training.nodes["c"]
    spare.attempt, spare.ranks = 9, {0: RankReport(0, 0, 5, "S")}
    training.beat(3.0, 7)
    assert training.records(AttemptEnded) == []
    assert {training.nodes[name].attempt for name in "ab"} == {1}

    training.kill("b")
    training.beat(3.0)

    assert training.records(AttemptStarted)[-1].attempt == 10
    assert training.placed == ["a", "b"]


# Gate and people.


def test_a_plan_that_waits_stays_where_it_is_and_says_so_once(training: Bench) -> None:
    training.answer = Answer(Judgement.WAIT, "paused")
    training.kill("b")
    training.beat(10.0)

    (waits,) = training.records(PlanWaits)
    assert (waits.plan.step, waits.reason) == (PlanStep.RESTART_IN_PLACE, "paused")
    assert training.nodes["a"].orders[-1].ranks == (0,)

    training.answer = Answer(Judgement.ALLOWED, "open")
    training.beat(3.0)
    assert len(training.records(AttemptStarted)) == 2


def test_a_plan_that_is_refused_escalates(training: Bench) -> None:
    training.answer = Answer(Judgement.REFUSED, "6 stops within an hour")
    training.kill("b")
    training.beat(3.0)

    assert training.control.outcome.kind is OutcomeKind.ESCALATED
    assert "6 stops within an hour" in training.control.outcome.reason


def test_a_person_approves_and_the_gate_is_overruled(training: Bench) -> None:
    training.answer = Answer(Judgement.WAIT, "needs approval")
    training.kill("b")
    training.beat(2.0)

    assert not training.control.take_command(command(PersonAct.APPROVE)).is_refused
    training.beat(2.0)
    assert len(training.records(AttemptStarted)) == 2


def test_a_person_rejects_and_the_incident_is_escalated(training: Bench) -> None:
    training.answer = Answer(Judgement.WAIT, "needs approval")
    training.kill("b")
    training.beat(2.0)
    training.control.take_command(command(PersonAct.REJECT))
    training.beat(2.0)

    assert "rejected by ada" in training.control.outcome.reason


def test_a_repeated_key_does_nothing_twice(training: Bench) -> None:
    first = training.control.take_command(command(PersonAct.RESTART, key="k"))
    training.beat(4.0)
    again = training.control.take_command(command(PersonAct.RESTART, key="k"))
    training.beat(4.0)

    assert again.result == first.result
    assert len(training.records(PersonActed)) == 1
    assert len(training.records(AttemptStarted)) == 2


def test_a_cancelled_incident_leaves_the_ranks_and_decides_nothing_until_resumed(
    training: Bench,
) -> None:
    training.answer = Answer(Judgement.WAIT, "needs approval")
    training.kill("b")
    training.beat(2.0)
    training.control.take_command(command(PersonAct.CANCEL))
    training.answer = Answer(Judgement.ALLOWED, "open")
    training.beat(30.0)
    assert len(training.records(AttemptStarted)) == 1

    training.control.take_command(command(PersonAct.RESUME))
    training.beat(3.0)
    assert len(training.records(AttemptStarted)) == 2


def test_a_person_has_the_job_leave_a_node_and_gives_it_back(training: Bench) -> None:
    training.control.take_command(command(PersonAct.LEAVE_NODE, "a"))
    training.beat(3.0)
    assert training.placed == ["c", "b"]
    assert training.blamed == []

    refused = training.control.take_command(command(PersonAct.LEAVE_NODE, "b"))
    assert refused.is_refused
    assert "no other node can replace b" in refused.result
    training.control.take_command(command(PersonAct.RESUME, "a"))
    assert training.control.ledger.members["a"].left is None


def test_a_node_that_replaces_one_tells_of_the_checkpoints_in_its_place(training: Bench) -> None:
    training.nodes["a"].known = (FoundCheckpoint("/c/3", 3, "npz", 1, 1.0, True, "whole"),)
    training.beat(12.0, 5)
    training.control.take_command(command(PersonAct.LEAVE_NODE, "a"))
    training.beat(3.0)
    training.nodes["c"].known = (FoundCheckpoint("/c/9", 9, "npz", 1, 2.0, True, "whole"),)
    for step in range(10, 25):
        training.beat(1.0, step)

    assert training.placed == ["c", "b"]
    assert [one.path for one in training.records(CheckpointSeen)] == ["/c/3", "/c/9"]


def test_a_persons_word_is_no_proof_while_the_launcher_speaks(training: Bench) -> None:
    refused = training.control.take_command(command(PersonAct.CONFIRM_GONE, "b"))

    assert refused.is_refused
    assert "only its own report counts" in refused.result


def test_a_person_stops_the_job(training: Bench) -> None:
    training.control.take_command(command(PersonAct.STOP))
    training.beat(3.0)

    assert training.control.outcome.kind is OutcomeKind.STOPPED


# Evidence.


def test_evidence_is_journaled_once_an_attempt_and_moves_nothing_while_steps_are_made(
    training: Bench,
) -> None:
    for step in range(5, 40):
        training.control.take_evidence(evidence("b"))
        training.beat(1.0, step)

    (taken,) = training.records(EvidenceTaken)
    assert taken.incident_id is None
    assert training.records(IncidentOpened) == []


def test_an_alert_is_unrecorded_until_the_next_tick_has_journaled_it(training: Bench) -> None:
    assert training.control.has_recorded_evidence
    training.control.take_evidence(evidence("b"))
    assert not training.control.has_recorded_evidence

    training.beat(1.0, 5)

    assert training.control.has_recorded_evidence
    assert not training.control.is_behind_disk


def test_a_stand_still_with_evidence_is_acted_upon_before_the_hang_limit(training: Bench) -> None:
    training.control.take_evidence(evidence("b"))
    training.age(16.0)

    (opened,) = training.records(IncidentOpened)
    assert opened.failure.finding.signature == "evidence:XidFatal"
    assert training.placed == ["a", "c"]


@pytest.mark.parametrize(
    "changes",
    [
        {"severity": Severity.WARNING},
        {"action": "watch"},
        {"action": "something new"},
        {"node": "c"},
        {"node": "z"},
        {"ranks": (0,)},
        {"is_active": False},
    ],
)
def test_evidence_that_ends_no_use_of_what_the_ranks_stand_on_moves_nothing(
    training: Bench, changes: dict[str, object]
) -> None:
    training.control.take_evidence(replace(evidence("b"), **changes))
    training.kill("b")
    training.beat(3.0)

    assert training.placed == ["a", "b"]


def test_evidence_that_comes_while_the_ranks_are_restarted_is_waited_for() -> None:
    bench = Bench(replace(SETTINGS, hears_evidence=True))
    bench.beat(1.0)
    for step in (1, 2, 3):
        bench.beat(1.0, step)
    bench.kill("b")
    bench.beat(2.0)
    assert len(bench.records(AttemptStarted)) == 1

    bench.control.take_evidence(evidence("b"))
    bench.beat(3.0)
    assert bench.placed == ["a", "c"]
    assert bench.records(EvidenceTaken)[0].incident_id is not None


def test_late_evidence_moves_ranks_that_have_made_no_steps_again(training: Bench) -> None:
    training.kill("b")
    training.beat(2.0)
    assert training.placed == ["a", "b"]

    training.control.take_evidence(evidence("b"))
    training.beat(4.0)
    assert training.placed == ["a", "c"]


def test_that_an_alert_is_over_proves_nothing(training: Bench) -> None:
    training.control.take_evidence(evidence("b"))
    training.beat(0.25)
    training.control.take_evidence(evidence("b", is_active=False))
    training.kill("b")
    training.beat(3.0)

    assert training.placed == ["a", "c"]


ALL = {f"{node}/0": "XidFatal accuses 2 of 2 nodes of one job within 10 minutes" for node in "ab"}


def test_alerts_that_accuse_every_node_of_a_job_cost_it_a_restart_and_no_more() -> None:
    """A rule gone mad: the job must not stand still because all of its nodes are accused."""
    bench = Bench(replace(SETTINGS, nodes_min=2, nodes_max=2), names="ab")
    bench.beat(1.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    for node in "ab":
        bench.control.take_evidence(evidence(node))
    bench.doubted = ALL
    bench.beat(1.0, 5)

    bench.kill("b")
    bench.beat(3.0)

    assert bench.placed == ["a", "b"]
    assert len(bench.records(AttemptStarted)) == 2
    (doubted,) = bench.records(EvidenceDoubted)
    assert doubted.identities == ("a/0", "b/0")


def accused_bench(names: str, accused: str) -> Bench:
    """Return a job on two nodes that trains; alerts that nobody doubts accuse these nodes, placed or not."""
    bench = Bench(replace(SETTINGS, nodes_min=2, nodes_max=max(2, len(names))), names=names)
    bench.beat(3.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    bench.accused_nodes = tuple(accused)
    for node in accused:
        bench.control.take_evidence(evidence(node))
    bench.beat(1.0, 5)
    return bench


@pytest.mark.parametrize(
    ("names", "accused", "killed", "placed"),
    [
        ("abc", "abc", "a", ["c", "b"]),  # a broke; b and c are accused by alerts alone
        ("abcd", "abc", "a", ["c", "d"]),  # enough without accused nodes of the job
        ("abc", "ab", "a", ["c", "b"]),
        ("ab", "b", "a", ["a", "b"]),
    ],
)
def test_job_rather_restarts_on_accused_nodes_than_not_at_all(
    names: str, accused: str, killed: str, placed: list[str]
) -> None:
    bench = accused_bench(names, accused)

    bench.kill(killed)
    bench.beat(4.0)

    assert sorted(bench.placed) == sorted(placed)
    assert len(bench.records(AttemptStarted)) == 2


@pytest.mark.parametrize(("accused", "placed"), [("", ["a", "c"]), ("c", ["a", "b"])])
def test_suspect_is_not_left_for_a_spare_that_an_alert_rules_out(
    training: Bench, accused: str, placed: list[str]
) -> None:
    """Of a suspect a fault is suspected, of an accused spare it is known."""
    for node in "ab":
        training.control.take_evidence(evidence(node))
    training.doubted = ALL
    training.accused_nodes = tuple(accused)
    training.beat(1.0, 5)

    training.kill("b")
    training.beat(3.0)

    assert training.placed == placed


def test_plan_names_the_accused_node_that_stays_and_why() -> None:
    bench = accused_bench("abc", "abc")

    bench.kill("a")
    bench.beat(4.0)

    made = bench.records(Decided)[0].plan
    assert made.without == ("a",)
    assert made.reason.endswith(
        "without these the job could not run, so they stay: b: XidFatal: Xid 79"
    )


def test_accused_node_whose_rank_died_is_never_used_again() -> None:
    """A second thing agrees with the alert, so the node is broken: the job waits for another one."""
    bench = accused_bench("ab", "a")

    bench.kill("a")
    bench.beat(4.0)

    assert len(bench.records(AttemptStarted)) == 1
    assert bench.records(Decided)[0].plan.without == ("a",)


def test_accused_node_that_the_cluster_holds_is_not_needed_for_a_restart() -> None:
    bench = accused_bench("abc", "abc")
    bench.held["b"] = "in quarantine"

    bench.kill("a")
    bench.beat(4.0)

    assert set(bench.records(Decided)[0].plan.without) == {"a", "b"}


def test_accused_nodes_make_an_elastic_job_smaller_and_are_not_used() -> None:
    bench = Bench(replace(SETTINGS, nodes_min=1, nodes_max=2, shrink_multiple=1), names="ab")
    bench.beat(3.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    bench.control.take_evidence(evidence("b"))
    bench.beat(1.0, 5)

    bench.kill("a")
    bench.beat(4.0)

    assert bench.placed == ["a"]


def test_doubted_alert_and_a_dead_rank_move_the_job_to_a_spare(training: Bench) -> None:
    for node in "ab":
        training.control.take_evidence(evidence(node))
    training.doubted = ALL
    training.beat(1.0, 5)

    training.kill("b")
    training.beat(3.0)

    assert training.placed == ["a", "c"]


def test_alert_that_is_doubted_no_more_counts_again(training: Bench) -> None:
    for node in "b":
        training.control.take_evidence(evidence(node))
    training.doubted = {"b/0": ALL["b/0"]}
    training.beat(1.0, 5)
    training.doubted = {}
    training.beat(1.0, 6)

    training.kill("a")
    training.beat(3.0)

    assert [one.reason for one in training.records(EvidenceDoubted)] == [ALL["b/0"], ""]
    assert "b" not in training.placed


def test_a_thousand_alerts_are_one_incident_with_one_plan(training: Bench) -> None:
    for number in range(1000):
        training.control.take_evidence(evidence("b", number))
    training.kill("b")
    training.beat(3.0)

    assert len(training.records(EvidenceTaken)) == 1
    assert len(training.records(IncidentOpened)) == 1
    assert len(training.records(Decided)) == 1


# Numbers that went wrong.


@pytest.mark.parametrize(
    ("moves", "names", "placed"),
    [(True, "abc", ["a", "c"]), (False, "abc", ["a", "b"]), (True, "ab", ["a", "b"])],
)
def test_node_whose_loss_was_nan_first_is_left_only_by_policy_and_for_a_spare(
    moves: bool, names: str, placed: list[str]
) -> None:
    policy = replace(POLICY, numbers_rollbacks_max=1, numbers_rollback_moves=moves, join_wait_s=0.0)
    bench = Bench(replace(SETTINGS, policy=policy), names=names)
    bench.beat(1.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    bench.nodes["a"].known = (FoundCheckpoint("/c/3", 3, "npz", 1, 1.0, True, "whole"),)
    for name, value in (("a", 1.0), ("b", NotFinite.NAN)):
        node = bench.nodes[name]
        bad = BadNumber(4, NotFinite.NAN) if name == "b" else None
        node.ranks = {
            rank: replace(told, numbers=(StepNumbers(1, 4, value),), first_bad_loss=bad)
            for rank, told in node.ranks.items()
        }
    bench.beat(20.0)

    assert [one.attempt for one in bench.records(AttemptStarted)] == [1, 2]
    assert bench.placed == placed
    assert bool(bench.blamed) is moves


# Slow ranks.


def slow() -> Finding:
    return Finding(
        Kind.RANK_SLOW, Severity.WARNING, Blame.RANK, "rank 1 is slow", SETTINGS.job_id, 1, "b",
        (1,), (0,), 10.0, "slow:compute",
    )  # fmt: skip


def test_a_slow_rank_is_only_named_while_the_cost_of_a_restart_is_not_measured(
    training: Bench,
) -> None:
    assert "never been measured" in training.control.take_slow(slow(), 1.6)
    assert training.records(IncidentOpened) == []


@pytest.mark.parametrize(("factor", "moves"), [(1.6, True), (1.00001, False)])
def test_a_slow_rank_is_moved_where_that_wins_more_than_a_restart_costs(
    training: Bench, factor: float, moves: bool
) -> None:
    training.kill("a")
    training.beat(2.0)
    for step in (5, 6, 7, 8):
        training.beat(1.0, step)
    assert training.control.ledger.restart_cost_s > 1.0

    said = training.control.take_slow(slow(), factor)
    training.beat(3.0)

    assert said.startswith("moved" if moves else "only reported")
    assert training.placed == (["a", "c"] if moves else ["a", "b"])
    assert training.asked[-1].is_standing is not moves


def test_a_slow_rank_is_not_moved_to_a_spare_that_an_alert_rules_out(training: Bench) -> None:
    training.kill("a")
    training.beat(2.0)
    for step in (5, 6, 7, 8):
        training.beat(1.0, step)
    training.accused_nodes = ("c",)

    assert training.control.take_slow(slow(), 1.6) == "only reported: no spare"


def wait_for_approval_of_a_slow_rank(bench: Bench) -> None:
    """Have the plan to move rank 1 wait, while what stands may be restarted without a word."""
    bench.kill("a")
    bench.beat(2.0)
    for step in (5, 6, 7, 8):
        bench.beat(1.0, step)
    bench.answer_standing = bench.answer
    bench.answer = Answer(Judgement.WAIT, "needs approval")
    bench.control.take_slow(slow(), 1.6)
    bench.beat(2.0, 9)
    assert len(bench.records(PlanWaits)) == 1
    assert len(bench.records(AttemptStarted)) == 2


def assert_superseded(bench: Bench, kind: Kind, why: str) -> IncidentOpened:
    """Check that the newest incident ended another in one go, and keeps its evidence."""
    kept = [one.record for one in bench.journal.entries]
    opened = bench.records(IncidentOpened)[-1]
    ended = kept[kept.index(opened) - 1]
    before = bench.records(IncidentOpened)[-2]
    assert ended.event.incident_id == before.incident_id
    assert ended.event.outcome is Outcome.CANCEL
    assert ended.event.reason.startswith("superseded by a failure: ")
    finding = opened.failure.finding
    assert finding.kind is kind
    assert Evidence(f"incident {before.incident_id}", why) in finding.evidence
    assert set(before.failure.finding.evidence) <= set(finding.evidence)
    return opened


def test_a_rank_that_dies_while_a_slow_one_waits_to_be_moved_is_handled_at_once(
    training: Bench,
) -> None:
    wait_for_approval_of_a_slow_rank(training)

    training.kill("a")
    training.beat(3.0)

    opened = assert_superseded(training, Kind.RANK_FAILED, "rank 1 is slow")
    assert opened.failure.exit_code == 128 + 9
    assert len(training.records(AttemptStarted)) == 3


def test_a_hang_while_a_slow_rank_waits_to_be_moved_is_handled_at_once(training: Bench) -> None:
    wait_for_approval_of_a_slow_rank(training)

    training.age(POLICY.hung.ceil_s + 5.0)

    assert_superseded(training, Kind.RANK_HUNG, "rank 1 is slow")
    assert len(training.records(AttemptStarted)) == 3


def test_a_rank_that_dies_while_an_alerts_plan_waits_is_an_incident_that_joins_the_alert(
    training: Bench,
) -> None:
    training.answer = Answer(Judgement.WAIT, "paused (cluster) by ada")
    training.control.take_evidence(evidence("b"))
    training.age(16.0)
    training.age(POLICY.hung.ceil_s)  # the same stand-still, for longer, is no news
    assert len(training.records(IncidentOpened)) == 1

    training.kill("a")
    training.beat(2.0)
    assert_superseded(training, Kind.RANK_FAILED, "XidFatal on b: Xid 79")
    assert len(training.records(AttemptStarted)) == 1, "what waits for everybody waits for a death"

    training.answer = Answer(Judgement.ALLOWED, "open")
    training.beat(4.0)
    assert training.placed == ["a", "c"], "the alert still counts"


def test_a_plan_that_waits_is_dropped_when_the_ranks_advance_again(training: Bench) -> None:
    training.answer = Answer(Judgement.WAIT, "needs approval")
    training.nodes["b"].is_silent = True
    training.age(POLICY.node_silent_s + 5.0)
    assert len(training.records(PlanWaits)) == 1

    training.nodes["b"].is_silent = False
    for step in (5, 6, 7):
        training.beat(1.0, step)

    assert training.control.ledger.incident is None
    assert training.records(NodeLeft) == []


def test_a_job_that_ends_while_a_plan_waits_is_done(training: Bench) -> None:
    training.answer = Answer(Judgement.WAIT, "needs approval")
    training.control.take_command(command(PersonAct.RESTART))
    training.beat(1.0)
    for node in training.nodes.values():
        done = RankExit(0.1, 0, None, False, False, None, ())
        node.ranks = {rank: replace(told, exit=done) for rank, told in node.ranks.items()}
    training.beat(1.0)
    for name in "ab":
        training.nodes[name].empty_through = 1
    training.beat(2.0)

    assert training.control.outcome.kind is OutcomeKind.DONE


# What was counted as reports came.


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # rank
            st.integers(0, 5),  # steps
            st.sampled_from([None, None, None, 0, 1, -9]),  # exit
            st.booleans(),  # by the launcher
        ),
        max_size=40,
    )
)
def test_counts_are_what_a_look_at_every_rank_would_give(
    told: list[tuple[int, int, int | None, bool]],
) -> None:
    seen = Observation(1, 4, places={"a": frozenset({0, 1}), "b": frozenset({2, 3})})
    for at, (rank, steps, ended, by_launcher) in enumerate(told):
        code, number = (None, 9) if ended == -9 else (ended, None)
        end = None if ended is None else RankExit(0.1, code, number, by_launcher, False, None, ())
        report = RankReport(
            rank, 0, 100, "S", attached_age_s=0.1, step=steps or None, step_age_s=0.1,
            steps_done=steps, exit=end,
        )  # fmt: skip
        node = "a" if rank < 2 else "b"
        seen.observe(Report(1, node, "boot", "job", 1, 1, (report,), 0), float(at))

        views = list(seen.ranks.values())
        is_whole = len(views) == 4
        assert seen.is_started is (is_whole and all(view.is_started for view in views))
        assert seen.has_ended is (is_whole and all(view.exit is not None for view in views))
        assert seen.is_done is (is_whole and all(view.is_done for view in views))
        assert {view.rank for view in seen.failed} == {v.rank for v in views if v.has_failed}
        assert seen.telling_ranks == tuple(sorted(v.rank for v in views if v.steps_done))
        ages = [view.advanced_at_s for view in views if view.advanced_at_s is not None]
        assert seen.advanced_at_s == max(ages, default=None)


def test_records_of_an_older_rankmend_are_read_with_what_they_did_not_know(
    training: Bench,
) -> None:
    new = {"placement", "rendezvous", "proofs", "epoch", "controller_id", "without", "nodes"}
    for record in (training.records(AttemptStarted)[0], training.records(LauncherStarted)[0]):
        fields = json.loads(encode_record(record))
        old = json.dumps({name: value for name, value in fields.items() if name not in new})
        if isinstance(record, LauncherStarted):
            old = json.dumps({**json.loads(old), "nodes": ["n1"]})

        read = decode_record(kind_of(record), 1, 0, old.encode())

        assert type(read) is type(record)
        assert getattr(read, "placement", ()) == ()
        assert getattr(read, "epoch", 0) == 0
