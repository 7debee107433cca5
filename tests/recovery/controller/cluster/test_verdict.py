"""What the cluster allows: pauses, dry run, approval, budgets, holds and quarantine."""

from dataclasses import replace

import pytest

from rankmend.errors import ConfigError
from recovery.controller.cluster.active_alerts import JobNode
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_ledger import ClusterLedger, fold_cluster
from recovery.controller.cluster.cluster_limits import (
    DAY_S,
    Approval,
    Budgets,
    ClusterPolicy,
    JobOverride,
    Quarantine,
)
from recovery.controller.cluster.gate import Judgement, PlanRequest
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.cluster.plan_verdict import judge, refuse_power_off
from recovery.journal.cluster_records import (
    ClusterRecord,
    Hold,
    NodeHeld,
    Paused,
    PowerOffAsked,
    Spent,
    WindowAdded,
)
from recovery.journal.limits import PlanStep
from recovery.journal.records import Entry
from recovery.journal.witnesses import Witness
from recovery.messages.codec import symptom_of
from tests.support.cluster_desk import FINDING, JOB, NOW, blame, make_desk

pytestmark = pytest.mark.safety

RESTART = PlanRequest(JOB, "i-1", 1, PlanStep.RESTART_IN_PLACE, FINDING, (), 4)
MOVE = replace(RESTART, step=PlanStep.MOVE, without=("n2",))
STOPPING = replace(MOVE, is_standing=False)


def ledger_of(*records: ClusterRecord, unix_s: float = NOW - 60.0) -> ClusterLedger:
    return fold_cluster(
        Entry(number, unix_s, 0.0, "boot", record) for number, record in enumerate(records, 1)
    )


def ask(
    request: PlanRequest, ledger: ClusterLedger | None = None, policy: ClusterPolicy | None = None
) -> Judgement:
    answer = judge(request, "llama", ledger or ClusterLedger(), policy or ClusterPolicy(), NOW)
    assert answer.reason
    return answer.judgement


@pytest.mark.parametrize("request_", [RESTART, MOVE, STOPPING])
def test_by_default_a_plan_is_carried_out(request_: PlanRequest) -> None:
    assert ask(request_) is Judgement.ALLOWED


@pytest.mark.parametrize("scope", ["cluster", f"job:{JOB}", "node:n2"])
def test_a_pause_holds_the_plans_of_its_scope(scope: str) -> None:
    assert ask(MOVE, ledger_of(Paused(scope, "ann", "upgrade"))) is Judgement.WAIT


def test_a_pause_of_a_node_holds_what_was_found_about_it_though_the_plan_leaves_nobody() -> None:
    paused = ledger_of(Paused("node:n2", "ann", "its BMC is updated"))
    about_n2 = replace(RESTART, finding=replace(RESTART.finding, node="n2"))
    about_n3 = replace(RESTART, finding=replace(RESTART.finding, node="n3"))

    assert ask(about_n2, paused) is Judgement.WAIT
    assert ask(about_n3, paused) is Judgement.ALLOWED


def test_nobody_is_given_up_during_a_pause_and_that_needs_no_approval() -> None:
    given_up = replace(RESTART, step=PlanStep.ESCALATE)
    paused = ledger_of(Paused("cluster", "ann", "upgrade"))

    assert ask(given_up, paused) is Judgement.WAIT
    assert ask(given_up, policy=ClusterPolicy(approval=Approval.ALL)) is Judgement.ALLOWED


@pytest.mark.parametrize("scope", ["job:another", "node:n1"])
def test_a_pause_elsewhere_holds_nothing(scope: str) -> None:
    assert ask(MOVE, ledger_of(Paused(scope, "ann", ""))) is Judgement.ALLOWED


@pytest.mark.parametrize(
    ("approval", "waiting"),
    [
        (Approval.OFF, []),
        (Approval.STOPS, [STOPPING]),
        (Approval.MOVES, [MOVE, STOPPING]),
        (Approval.ALL, [RESTART, MOVE, STOPPING]),
    ],
)
def test_approval_is_asked_for_what_the_mode_names(
    approval: Approval, waiting: list[PlanRequest]
) -> None:
    policy = ClusterPolicy(approval=approval)

    asked = [one for one in (RESTART, MOVE, STOPPING) if ask(one, None, policy) is Judgement.WAIT]

    assert asked == waiting
    approved = [replace(one, approved_by="ann") for one in waiting]
    assert all(ask(one, None, policy) is Judgement.ALLOWED for one in approved)


def test_a_jobs_own_mode_stands_over_the_clusters() -> None:
    policy = ClusterPolicy(is_dry=True, overrides=(JobOverride("ll*", is_dry=False),))

    assert ask(STOPPING, None, ClusterPolicy(is_dry=True)) is Judgement.WAIT
    assert ask(STOPPING, None, policy) is Judgement.ALLOWED


def test_a_rule_that_misfires_stops_only_so_many_jobs_that_train() -> None:
    policy = ClusterPolicy(budgets=Budgets(stops_per_hour_max=3))
    stops = [Spent(f"job-{n}", "i", 1, "move", ("n",), stops_training=True) for n in range(3)]

    assert ask(STOPPING, ledger_of(*stops[:2]), policy) is Judgement.ALLOWED
    assert ask(STOPPING, ledger_of(*stops), policy) is Judgement.REFUSED
    assert ask(STOPPING, ledger_of(*stops, unix_s=NOW - 3601), policy) is Judgement.ALLOWED
    assert ask(replace(STOPPING, approved_by="ann"), ledger_of(*stops), policy) is Judgement.ALLOWED


@pytest.mark.parametrize("request_", [RESTART, MOVE])
def test_no_budget_blocks_what_restores_safety(request_: PlanRequest) -> None:
    nothing_left = Budgets(stops_per_hour_max=0, moves_per_job_day_max=0, nodes_held_max=0)

    assert ask(request_, None, ClusterPolicy(budgets=nothing_left)) is Judgement.ALLOWED


def test_a_plan_that_was_let_through_is_not_counted_or_refused_again() -> None:
    desk, journal, _clock = make_desk(ClusterPolicy(budgets=Budgets(stops_per_hour_max=1)))

    first = desk.judge(STOPPING)
    again = desk.judge(STOPPING)
    other = desk.judge(replace(STOPPING, incident_id="i-2"))

    assert first.judgement is again.judgement is Judgement.ALLOWED
    assert other.judgement is Judgement.REFUSED
    assert len(journal.entries) == 1


def test_what_counts_waits_for_the_journal_and_what_restores_safety_does_not() -> None:
    desk, journal, _clock = make_desk()
    journal.is_full = True

    assert desk.judge(STOPPING).judgement is Judgement.WAIT
    assert desk.judge(MOVE).judgement is Judgement.ALLOWED
    journal.is_full = False
    assert desk.judge(STOPPING).judgement is Judgement.ALLOWED


# Nodes.


def test_a_drained_node_gets_no_ranks_until_a_person_takes_it_back() -> None:
    desk, _journal, clock = make_desk()

    desk.drain("n2", "ann", "fan")
    clock.now += 365 * DAY_S
    assert desk.unusable("n2") == "drained by ann: fan"
    assert desk.unusable("n1") is None
    desk.release("n2", "ann", "new fan")
    assert desk.unusable("n2") is None


def test_a_node_blamed_again_and_again_goes_into_quarantine_for_longer_each_time() -> None:
    policy = ClusterPolicy(quarantine=Quarantine(blames=2, hold_s=DAY_S, hold_s_max=3 * DAY_S))
    desk, _journal, clock = make_desk(policy)
    desk.note_running(f"n{number}" for number in range(40))

    def blame_until_held() -> float:
        while desk.unusable("n2") is None:
            blame(desk, "n2", f"job-{clock.now}", f"i-{clock.now}")
            clock.now += 60
            desk.note_running(f"n{number}" for number in range(40))
        began = clock.now
        while desk.unusable("n2") is not None:
            clock.now += 3600
        return clock.now - began

    held_s = [blame_until_held() for _time in range(3)]

    assert held_s == pytest.approx([DAY_S, 2 * DAY_S, 3 * DAY_S], abs=3700)


def test_the_same_incident_blames_a_node_once() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy(quarantine=Quarantine(blames=2)))
    desk.note_running(f"n{number}" for number in range(40))

    for _time in range(5):
        blame(desk, "n2", JOB, "i-1")

    assert desk.unusable("n2") is None


@pytest.mark.parametrize(("nodes", "held"), [(9, 0), (10, 1), (25, 2), (1000, 3)])
def test_quarantine_is_bounded_by_number_and_by_share_of_the_nodes_that_run_ranks(
    nodes: int, held: int
) -> None:
    budgets = Budgets(nodes_held_max=3, nodes_held_percent=10.0)
    desk, _journal, _clock = make_desk(
        ClusterPolicy(budgets=budgets, quarantine=Quarantine(blames=1))
    )
    desk.note_running(f"n{number}" for number in range(nodes))

    for number in range(6):
        blame(desk, f"n{number}", JOB, f"i-{number}")

    assert len(desk.ledger.held_by_policy(desk.now_unix_s())) == held
    assert held == 6 or any("is not held back" in note.text for note in desk.notes)


def test_what_is_left_of_the_clusters_budgets_is_told() -> None:
    budgets = Budgets(stops_per_hour_max=2, nodes_held_max=5, nodes_held_percent=10.0)
    desk, _journal, _clock = make_desk(
        ClusterPolicy(budgets=budgets, quarantine=Quarantine(blames=1))
    )
    desk.note_running(f"n{number}" for number in range(20))
    before = desk.budgets_left()

    blame(desk, "n1", JOB, "i-1")
    for job in ("1", "2", "3"):
        desk.judge(replace(RESTART, job_id=job, is_standing=False))

    assert before == {"stops_per_hour": 2, "nodes_held": 2}
    assert desk.budgets_left() == {"stops_per_hour": 0, "nodes_held": 1}


def test_of_each_node_only_the_newest_note_is_kept_and_none_once_it_is_taken_back() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy(quarantine=Quarantine(blames=1)))
    for incident in ("i-1", "i-2"):
        blame(desk, "n1", f"job of {incident}", incident)
    blame(desk, "n10", JOB, "i-1")
    noted = desk.notes

    desk.release("n1", "ann", "")

    assert [note.text.split(" but ")[0] for note in noted] == [
        "n1 was blamed in 2 incidents",
        "n10 was blamed in 1 incident",
    ]
    assert desk.notes == noted[1:]


def test_a_drain_by_a_person_is_not_counted_and_never_refused() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy(budgets=Budgets(nodes_held_max=0)))

    for number in range(50):
        desk.drain(f"n{number}", "ann", "rack move")

    assert all(desk.unusable(f"n{number}") for number in range(50))


def test_a_node_in_maintenance_gets_no_ranks_while_the_window_is_open() -> None:
    desk, _journal, clock = make_desk()
    start = desk.now_unix_s() + 10
    desk.add_window(WindowAdded("w1", ("rack3-*",), start, start + 100, "ann", "switch"))

    assert desk.unusable("rack3-n1") is None
    clock.now += 20
    assert desk.unusable("rack3-n1") == "in maintenance by ann: switch"
    assert desk.unusable("rack4-n1") is None
    desk.remove_window("w1", "ann", "done early")
    assert desk.unusable("rack3-n1") is None


def test_a_wall_clock_that_is_set_ends_no_hold() -> None:
    desk, _journal, clock = make_desk()
    desk._write(NodeHeld("n2", Hold.QUARANTINE, "policy", "3 times", desk.now_unix_s() + DAY_S))

    clock.jumped_s = 10 * DAY_S

    assert desk.unusable("n2") is not None


def test_after_a_restart_everything_is_known_again() -> None:
    desk, journal, clock = make_desk()
    desk.drain("n1", "ann", "fan")
    desk.pause("cluster", "ann", "")
    blame(desk, "n2", JOB, "i-1")

    again = ClusterController(journal, ClusterPolicy(), clock, lambda _job: "llama")

    assert again.ledger == desk.ledger
    assert again.unusable("n1") is not None
    assert again.judge(RESTART).judgement is Judgement.WAIT


@pytest.mark.parametrize("name", ["", "a b", "../etc", "x" * 254])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    desk, journal, _clock = make_desk()

    with pytest.raises(ConfigError, match="is not a name"):
        desk.drain(name, "ann", "")
    assert not journal.entries


@pytest.mark.parametrize("scope", ["", "everything", "job:", "node:a b", "rack:r1"])
def test_a_scope_that_is_none_is_refused(scope: str) -> None:
    desk, _journal, _clock = make_desk()

    with pytest.raises(ConfigError):
        desk.pause(scope, "ann", "")


def test_alerts_of_a_node_in_maintenance_are_told_when_the_window_closes_and_they_still_fire() -> (
    None
):
    desk, _journal, clock = make_desk()
    now_s = desk.now_unix_s()
    desk.add_window(WindowAdded("w1", ("n2",), now_s, now_s + 100, "ann", "switch"))
    jobs_on = {"n1": (JobNode(JOB, (0,)),), "n2": (JobNode(JOB, (1,)),)}
    told = [IncomingAlert({"alertname": "RankmendGpuLost", "node": n}, {}, None, True)
            for n in ("n1", "n2")]  # fmt: skip

    heard = desk.take_alerts(told, jobs_on)[1]

    assert [evidence.node for _job_id, evidence in heard] == ["n1"]
    assert desk.retell(jobs_on) == []
    clock.now += 101
    assert [evidence.node for _job_id, evidence in desk.retell(jobs_on)] == ["n2"]
    assert desk.retell(jobs_on) == []


def test_what_a_person_asked_for_waits_for_no_approval_and_no_pause() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy(approval=Approval.ALL, is_dry=True))
    desk.pause("cluster", "ann", "")
    asked = replace(MOVE, finding=replace(FINDING, symptom=symptom_of("person:leave_node")))

    assert desk.judge(MOVE).judgement is Judgement.WAIT
    assert desk.judge(asked).judgement is Judgement.ALLOWED


def test_an_acknowledgement_is_remembered_over_a_restart_and_written_once() -> None:
    desk, journal, clock = make_desk()

    desk.acknowledge("i-1", "ann", "seen")
    desk.acknowledge("i-1", "bob", "seen, too")

    again = ClusterController(journal, ClusterPolicy(), clock, lambda _job: "llama")
    assert again.ledger.acknowledged["i-1"].who == "ann"
    assert len(journal.entries) == 1


# Power.

LOST = PowerOffAsked("n2", JOB, "i-1")
TWO_OFF = tuple((NOW - age_s, replace(LOST, node=f"n{age_s:g}")) for age_s in (10.0, 3599.0))


@pytest.mark.parametrize(
    ("ledger", "policy", "refusal"),
    [
        (ClusterLedger(), ClusterPolicy(), None),
        (ClusterLedger(power_offs=TWO_OFF), ClusterPolicy(), "power_offs_per_hour_max"),
        (
            ClusterLedger(power_offs=((NOW - 3600.0, TWO_OFF[0][1]), TWO_OFF[1])),
            ClusterPolicy(),
            None,
        ),
        (ClusterLedger(power_offs=((NOW - 9e6, LOST),)), ClusterPolicy(), "already"),
        (
            ClusterLedger(),
            ClusterPolicy(budgets=Budgets(power_offs_per_hour_max=0)),
            "0 are allowed",
        ),
        (ClusterLedger(), ClusterPolicy(is_dry=True), "dry run"),
        (ClusterLedger(), ClusterPolicy(approval=Approval.STOPS), "approval"),
        (
            ClusterLedger(paused={"node:n2": Paused("node:n2", "ada", "cables")}),
            ClusterPolicy(),
            "paused (node:n2) by ada",
        ),
        (
            ClusterLedger(windows={"w": WindowAdded("w", ("n*",), NOW - 1, NOW + 1, "ada", "")}),
            ClusterPolicy(),
            "maintenance",
        ),
    ],
)
def test_power_is_switched_off_only_where_nobody_holds_that_back_and_within_the_budget(
    ledger: ClusterLedger, policy: ClusterPolicy, refusal: str | None
) -> None:
    said = refuse_power_off(LOST, "train", ledger, policy, NOW)

    assert (said is None) if refusal is None else (said is not None and refusal in said)


def test_more_power_offs_than_are_remembered_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="power_offs_per_hour_max is 101, over 100"):
        Budgets(power_offs_per_hour_max=101)


def test_power_off_that_is_not_on_record_is_not_asked_for_and_one_on_record_never_again() -> None:
    desk, journal, clock = make_desk()
    journal.is_full = True
    assert not desk.allow_power_off(LOST)

    journal.is_full = False
    assert desk.allow_power_off(LOST)
    asked = replace(LOST, witnesses=(Witness.SINGLE_TENANT,))
    assert [one.record for one in journal.entries] == [asked]
    assert not desk.allow_power_off(LOST)
    again = ClusterController(journal, ClusterPolicy(), clock, lambda _job: "llama")
    assert not again.allow_power_off(LOST)  # a controller that crashed in between


def test_observe_mode_quarantines_nothing_and_switches_nothing_off_but_journals_it_once() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy(observe=True, quarantine=Quarantine(blames=1)))
    desk.note_running([f"n{number}" for number in range(100)])

    blame(desk, "n1", JOB, "i-1")
    asked = PowerOffAsked("n2", JOB, "i-1")
    allowed = [desk.allow_power_off(asked), desk.allow_power_off(asked)]

    assert desk.unusable("n1") is None
    assert allowed == [False, False]
    done = [(one.act.value, one.node) for _unix_s, one in desk.ledger.not_done]
    assert done == [("quarantine", "n1"), ("power_off", "n2")]
