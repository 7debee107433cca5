from dataclasses import replace

import pytest

from detectors.hang.live import HungLimits
from rankmend.errors import ConfigError
from recovery.controller.cluster.cluster_limits import Approval, Budgets, ClusterPolicy
from recovery.controller.job import planner
from recovery.journal.incident_records import Plan
from recovery.journal.limits import PlanStep, Policy
from recovery.lab.simulation.assumptions import Assumptions, Setup
from recovery.lab.simulation.campaign import Campaign, drawn
from recovery.lab.simulation.faults import NodeFault
from recovery.lab.simulation.incident import run_job
from recovery.lab.simulation.job import Rules, SimulatedJob
from recovery.lab.simulation.outcome import RunOutcome
from recovery.lab.simulation.rate_table import RatedCause, RateTable, Shows

SETUP = Setup(gpus=128, days=6.0, spares=16)
ASSUMED = Assumptions(slow_per_1000_node_days=0.0, false_alarms_per_day=0.0)


def rates(*causes: RatedCause) -> RateTable:
    return RateTable("a test's", "nowhere", 128, 6.0, causes)


def run(faults: list[NodeFault], rules: Rules | None = None, setup: Setup = SETUP) -> RunOutcome:
    return run_job(SimulatedJob(setup, ASSUMED, rules or Rules(), faults, 1))


def run_drawn(
    table: RateTable, rules: Rules, assumptions: Assumptions = ASSUMED
) -> list[RunOutcome]:
    faults = drawn(table, SETUP, assumptions)
    return Campaign(SETUP, assumptions, rules, faults).run([1, 2])


STUCK = rates(RatedCause("stuck GPU", 20, Shows.HANG, stays=1.0))
MIXED = rates(
    RatedCause("GPU", 40, Shows.EXIT, stays=0.1, told=0.5),
    RatedCause("software", 20, Shows.SOFTWARE),
    RatedCause("cable", 20, Shows.HANG),
    RatedCause("host", 20, Shows.HOST, stays=0.1),
)


def test_a_job_without_faults_loses_its_start_and_its_saves() -> None:
    outcome = run([])

    assert set(outcome.parts_s) == {"productive", "startup", "checkpoint"}
    assert outcome.incidents == 0
    assert outcome.ettr_ratio == pytest.approx(1 - 1 / 600, abs=3e-4)


def test_one_death_costs_its_phases_and_the_steps_since_the_newest_durable_save() -> None:
    fault = NodeFault(100_000.0, 3, "GPU", Shows.EXIT)

    outcome = run([fault])

    assert outcome.incidents == 1
    assert outcome.parts_s["detect"] == pytest.approx(0.142 + 0.3)
    assert outcome.parts_s["restore"] == 117.0
    assert 0 < outcome.parts_s["recomputed"] < 600 + 173 + 6
    assert outcome.moves == 0
    assert outcome.mttr_s == pytest.approx(
        sum(outcome.parts_s[name] for name in
            ("detect", "fence", "start", "rendezvous", "restore", "first_step"))
    )  # fmt: skip


def test_a_silent_host_is_found_and_fenced_by_the_policys_times_and_replaced() -> None:
    policy = Policy(node_silent_s=40.0, lease_s=60.0)
    fault = NodeFault(100_000.0, 3, "power", Shows.HOST, stays=True, repair_s=1e6)

    outcome = run([fault], Rules(policy=policy))

    assert outcome.parts_s["detect"] == 40.0
    assert outcome.parts_s["fence"] > 60.0 + policy.kill_bound_s + policy.lease_margin_s
    assert outcome.moves == 1
    assert outcome.spares_used_max == 1


def test_the_parts_sum_to_the_wall_time_whatever_happens() -> None:
    for outcome in run_drawn(MIXED, Rules()):
        assert sum(outcome.parts_s.values()) == pytest.approx(outcome.wall_s)
        assert outcome.incidents > 50
        lost_s = outcome.wall_s * (1 - outcome.ettr_ratio)
        assert outcome.lost_gpu_hours_total == pytest.approx(lost_s * 128 / 3600)


def test_equal_seeds_give_equal_outcomes() -> None:
    assert run_drawn(MIXED, Rules()) == run_drawn(MIXED, Rules())


def test_a_policy_that_leaves_a_node_later_loses_more_to_stuck_nodes() -> None:
    early, late = (
        run_drawn(STUCK, Rules(policy=Policy(node_failures_max=count))) for count in (1, 4)
    )

    for one, other in zip(early, late, strict=True):
        assert one.ettr_ratio > other.ettr_ratio + 0.02


def test_a_planner_that_never_leaves_a_node_changes_what_is_simulated() -> None:
    def stay(*arguments: object) -> Plan:
        made: Plan = planner.plan(*arguments)  # type: ignore[arg-type]
        if made.step is PlanStep.MOVE:
            return replace(made, step=PlanStep.RESTART_IN_PLACE, without=())
        return made

    real, other = run_drawn(STUCK, Rules()), run_drawn(STUCK, Rules(plan=stay))

    for one, worse in zip(real, other, strict=True):
        assert worse.ettr_ratio < one.ettr_ratio - 0.02
        assert one.moves > 0


def test_a_longer_hang_limit_costs_what_it_is_longer() -> None:
    fault = NodeFault(100_000.0, 3, "NCCL", Shows.HANG)
    limits = HungLimits(floor_s=400.0)

    short, long = (run([fault], Rules(policy=Policy(hung=hung))) for hung in (HungLimits(), limits))

    assert long.parts_s["detect"] - short.parts_s["detect"] == 100.0


def test_plans_that_need_an_approval_wait_for_a_person() -> None:
    fault = NodeFault(100_000.0, 3, "GPU", Shows.EXIT)

    outcome = run([fault], Rules(cluster=ClusterPolicy(approval=Approval.ALL)))

    assert outcome.parts_s["wait_person"] == ASSUMED.person_s


def test_observe_mode_leaves_every_restart_to_people() -> None:
    outcome = run([NodeFault(100_000.0, 3, "GPU", Shows.EXIT)], Rules(policy=Policy(observe=True)))

    assert outcome.escalations == 1
    assert outcome.parts_s["wait_person"] == ASSUMED.person_s


def test_a_slow_node_is_moved_once_a_restart_has_been_measured_and_the_budget_allows_it() -> None:
    faults = [
        NodeFault(10_000.0, 1, "software", Shows.SOFTWARE),
        NodeFault(50_000.0, 3, "slow node", Shows.SLOW, stays=True, repair_s=1e6),
    ]
    none = ClusterPolicy(budgets=Budgets(stops_per_hour_max=0))

    moved, refused = run(faults), run(faults, Rules(cluster=none))

    assert moved.moves == 1
    assert moved.parts_s["slow"] < 100
    assert refused.refusals > 0
    assert refused.parts_s["slow"] > 10_000


def test_without_spares_the_job_waits_for_a_node_or_shrinks_where_it_can() -> None:
    fault = NodeFault(100_000.0, 3, "power", Shows.HOST, stays=True, repair_s=300.0)
    alone = Setup(gpus=128, days=6.0)

    waited = run([fault], setup=alone)
    shrunk = run([replace(fault, repair_s=50_000.0)], setup=replace(alone, nodes_min=14))

    assert 0 < waited.parts_s["wait_nodes"] < 300
    assert waited.availability_ratio < 1
    assert "wait_nodes" not in shrunk.parts_s
    assert shrunk.parts_s["shrunk"] > 0


def test_a_snapshot_in_memory_is_restored_unless_too_many_nodes_are_lost() -> None:
    setup = replace(ASSUMED, snapshot_interval_s=30.0)
    hosts = [
        NodeFault(100_000.0 + at_s, node, "power", Shows.HOST, stays=True, repair_s=1e6)
        for at_s, node in ((0.0, 3), (1.0, 7))
    ]

    one = run_job(SimulatedJob(SETUP, setup, Rules(), hosts[:1], 1))
    two = run_job(SimulatedJob(SETUP, setup, Rules(), hosts, 1))

    assert one.parts_s["recomputed"] < 30 + 2 * 6
    assert two.parts_s["recomputed"] > 60


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gpus": 8}, "8 GPUs"),
        ({"gpus": 130}, "130 GPUs are not a whole number of nodes with 8"),
        ({"days": 0.0}, "0 days"),
        ({"days": float("nan")}, "nan days"),
        ({"spares": -1}, "-1 spares"),
        ({"nodes_min": 17}, "nodes_min is 17"),
    ],
)
def test_a_job_that_can_not_be_is_refused_by_name(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SETUP, **changed)  # type: ignore[arg-type]
