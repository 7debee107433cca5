"""When idle nodes test the network of a slow job, which ones, and when they stop."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.fabric.fabric_verdict import FabricOutcome, FabricVerdict, PartKind
from detectors.fabric.probe_evidence import ProbeSays
from detectors.formats.site.slurm_topology import parse_parts
from detectors.parts.fleet_parts import NO_PARTS
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.controller.job.watch.fabric_probing import (
    GRACE_S,
    decide_end,
    decide_probe,
    judge_probe,
    nearest_first,
    plan_limits,
)
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Ledger, Member, ProbesNow, SlowNow, Wish
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeSkipped,
    ProbeEnd,
    SlowExplained,
)
from recovery.messages.exchange import Endpoint
from recovery.messages.probing import ProbeState, ProbeTold
from tests.support.findings import slow_part, verdict
from tests.support.job_ledgers import slow

ACTS = ProbeRules(dry_run=False)
SPARES = ("s0", "s1", "s2", "s3")
TRAINING = tuple(f"n{number}" for number in range(8))
PARTS = parse_parts("SwitchName=leaf1 Nodes=n[0-3],s[0-1]\nSwitchName=leaf2 Nodes=n[4-7],s[2-3]\n")
WHY = SlowExplained(1, 0, "", "nothing that slows it down was found", 0.0, ())


def member(node: str) -> Member:
    return Member(node, f"{node}-l", f"{node}-b", 2, Endpoint(node, 7000), 1.0, 3, 3, 0)


def slow_job(*ranks: int, section: str = "communication", why: bool = True) -> Ledger:
    return replace(
        Ledger(),
        number=30,
        epoch=2,
        job_id="j",
        attempt=1,
        wish=Wish.RANKS,
        is_attempt_open=True,
        placement=tuple(Placement(node, (2 * at, 2 * at + 1)) for at, node in enumerate(TRAINING)),
        members={node: member(node) for node in (*TRAINING, *SPARES)},
        slow={
            rank: SlowNow(slow(rank, section), 10 + rank, replace(WHY, rank=rank) if why else None)
            for rank in ranks
        },
    )


def decide(
    ledger: Ledger,
    rules: ProbeRules = ACTS,
    idle: tuple[str, ...] = SPARES,
    since_last_s: float | None = None,
) -> FabricProbeAsked | FabricProbeSkipped | None:
    return decide_probe(ledger, rules, idle, TRAINING, since_last_s, "j")


def asked(ledger: Ledger | None = None, rules: ProbeRules = ACTS) -> FabricProbeAsked:
    found = decide(ledger or slow_job(0), rules)
    assert isinstance(found, FabricProbeAsked)
    return found


def test_slow_communication_has_the_idle_nodes_test_the_network_and_nobody_else() -> None:
    found = asked(slow_job(0, 5))

    assert (found.ranks, found.about, found.nodes) == ((0, 5), 15, SPARES)
    assert (found.training, found.is_dry, found.epoch) == ((), False, 2)


@pytest.mark.parametrize(
    "ledger",
    [
        slow_job(),
        slow_job(0, section="compute"),
        slow_job(0, why=False),  # its hardware may tell more in a moment
        replace(slow_job(0), wish=Wish.NOTHING),
        replace(slow_job(0), is_attempt_open=False),
        replace(slow_job(0), paused_by="ann"),
        replace(slow_job(0), placement=(Placement("n0", (0, 1)),)),  # it has no network
    ],
)
def test_no_probe_is_due_without_slow_communication_of_a_job_that_trains(ledger: Ledger) -> None:
    assert decide(ledger) is None


def test_by_default_a_probe_is_dry_and_without_an_allowance_there_is_none() -> None:
    assert asked(rules=ProbeRules()).is_dry
    assert decide(slow_job(0), replace(ACTS, per_hour_max=0)) is None


def test_the_same_slow_ranks_are_probed_for_once_and_others_after_a_pause() -> None:
    known = replace(slow_job(0), probes=ProbesNow(asked=replace(asked(), is_dry=True)))
    more = replace(slow_job(0, 5), probes=known.probes)

    assert decide(known, since_last_s=1e6) is None
    assert decide(more, since_last_s=ACTS.again_after_s - 1) is None
    assert decide(more, since_last_s=ACTS.again_after_s) is not None


def test_a_probe_under_way_holds_the_next_one() -> None:
    ledger = replace(slow_job(0, 5), probes=ProbesNow(asked=asked()))

    assert decide(ledger, since_last_s=1e6) is None


def test_fewer_than_two_idle_nodes_abstain_once_until_there_are_more() -> None:
    skipped = decide(slow_job(0), idle=("s0",))
    assert isinstance(skipped, FabricProbeSkipped)
    known = replace(slow_job(0), probes=ProbesNow(skipped=skipped))

    assert skipped.idle == ("s0",)
    assert decide(known, idle=("s0",)) is None
    assert isinstance(decide(known, idle=("s0", "s1")), FabricProbeAsked)


def test_nodes_of_the_job_take_part_only_if_the_policy_says_so_and_then_all_send_little() -> None:
    rules = replace(ACTS, through_training_nics=True, training_nodes_max=4)
    found = decide(slow_job(6), rules, idle=("s0",))

    assert isinstance(found, FabricProbeAsked)
    assert found.nodes == ("s0", "n3", *found.training[1:])
    assert found.training[0] == "n3", "the slow rank's own"
    assert len(found.training) == 4
    assert found.limits.bytes_per_s == rules.training_bytes_per_s_max


def test_idle_nodes_near_to_the_slow_ranks_come_first_in_turn_with_others() -> None:
    assert nearest_first(SPARES, ["n4"], PARTS) == ("s2", "s0", "s3", "s1")
    assert nearest_first(SPARES, ["n4"], NO_PARTS) == SPARES


@given(
    st.integers(2, 1024),
    st.floats(1e6, 1e11),
    st.floats(1e6, 1e13),
    st.floats(10, 600),
    st.booleans(),
)
def test_whatever_the_rules_a_probe_keeps_them(
    count: int, rate: float, most: float, seconds_max: float, is_beside: bool
) -> None:
    rules = ProbeRules(
        bytes_per_s_max=rate, bytes_per_node_max=most, seconds_max=seconds_max, nodes_max=1024
    )
    limits = plan_limits(rules, count, is_beside=is_beside)
    rounds = 2 * (count - 1).bit_length()

    assert limits.bytes_per_s <= rate
    assert limits.bytes_per_s * limits.seconds * rounds <= most * 1.001
    assert 0.1 <= limits.seconds <= 1.0
    assert limits.limit_s == seconds_max


# How it ends.


def end_of(
    ledger: Ledger, told: dict[str, ProbeTold] | None = None, age_s: float = 1.0
) -> ProbeEnd | None:
    found = decide_end(ledger, asked(), told or {}, age_s)
    return None if found is None else found.end


def test_a_probe_goes_on_while_nothing_else_is_due() -> None:
    told = {"s0": ProbeTold("p", ProbeState.RUNNING, 9000)}

    assert end_of(slow_job(0), told) is None


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"epoch": 3}, ProbeEnd.INTERRUPTED),
        ({"wish": Wish.NOTHING}, ProbeEnd.YIELDED),
        ({"attempt": 2}, ProbeEnd.YIELDED),
        ({"paused_by": "ann"}, ProbeEnd.YIELDED),
        ({"members": {}}, ProbeEnd.YIELDED),
    ],
)
def test_a_probe_gives_way_to_whatever_the_job_needs(
    changes: dict[str, object], end: ProbeEnd
) -> None:
    assert end_of(replace(slow_job(0), **changes)) is end  # type: ignore[arg-type]


def test_a_node_that_was_ordered_to_run_ranks_ends_it_and_so_does_one_that_failed() -> None:
    yielded = {"s1": ProbeTold("p", ProbeState.YIELDED)}
    failed = {"s1": ProbeTold("p", ProbeState.FAILED, failure="no route")}

    assert end_of(slow_job(0), yielded) is ProbeEnd.YIELDED
    assert end_of(slow_job(0), failed) is ProbeEnd.FAILED


def test_a_probe_without_a_word_ends_with_its_time() -> None:
    late_s = ACTS.seconds_max + GRACE_S

    assert end_of(slow_job(0), age_s=late_s) is None
    assert end_of(slow_job(0), age_s=late_s + 1) is ProbeEnd.LATE


def judged(
    ledger: Ledger, found: FabricVerdict
) -> tuple[ProbeSays | None, str, list[SlowExplained]]:
    told = ProbeTold("p", ProbeState.DONE, verdict=found)
    ended, explained = judge_probe(ledger, asked(ledger), told, {}, PARTS)
    assert ended.end is ProbeEnd.JUDGED
    return ended.says, ended.part, explained


def test_a_slow_leaf_of_the_spares_is_the_reason_of_the_ranks_below_it_alone() -> None:
    leaf2 = slow_part(PartKind.SWITCH, "leaf2", "s2", "s3")

    says, part, explained = judged(slow_job(0, 9), verdict(leaf2))
    parts = {one.rank: one.part for one in explained}

    assert (says, part) == (ProbeSays.SHARED, "leaf switch leaf2")
    assert parts == {0: "", 9: "leaf switch leaf2"}
    assert explained[1].reason.endswith(
        "a probe among 4 nodes found leaf switch leaf2 slow (4.0x), on the path of the slow ranks"
    )
    assert explained[1].evidence[-1].source == "fabric probe"


def test_nothing_slow_among_the_spares_points_at_the_ranks_own_nodes() -> None:
    says, part, explained = judged(slow_job(0), verdict(outcome=FabricOutcome.SOUND))

    assert (says, part) == (ProbeSays.NOTHING, "")
    assert "look at the slow ranks' own nodes" in explained[0].reason
