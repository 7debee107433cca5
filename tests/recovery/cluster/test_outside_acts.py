"""What reaches outside a job: each act with each witness, and who may give which word."""

from dataclasses import replace
from itertools import combinations

import pytest

from detectors.node.charges import ChargeKind
from recovery.cluster.alert_shares import Sender
from recovery.cluster.cluster import ClusterController
from recovery.cluster.cluster_limits import Budgets, ClusterPolicy
from recovery.cluster.gate import PlanRequest
from recovery.cluster.incoming_alerts import IncomingAlert
from recovery.journal.cluster_records import NodeBlamed, NotDone, NotDoneAct, PowerOffAsked
from recovery.journal.limits import PlanStep
from recovery.journal.witnesses import ENOUGH, OutsideAct, Witness, allows, strongest
from recovery.service.roles import WITNESS_OF, Role
from tests.support.cluster_desk import FINDING, MemoryJournal, blame, make_desk

MALLORY, ALICE = "job-of-mallory", "job-of-alice"
OWNERS = {MALLORY: "mallory", "job-2-of-mallory": "mallory", ALICE: "alice"}
D, E, R = OutsideAct.DRAIN, OutsideAct.EVICT, OutsideAct.REQUEUE
Q, K, P = OutsideAct.QUARANTINE, OutsideAct.KEEP_OUT, OutsideAct.POWER_OFF
ALLOWED = {
    Witness.LAUNCHER: set(),
    Witness.PERSON: {D, Q, K, P},
    Witness.ALERT: {D, Q, K, P},
    Witness.SCHEDULER: {D, E, R, Q, K, P},
    Witness.SUBJECTS: {D, Q, K, P},
    Witness.SINGLE_TENANT: {D, E, R, Q, K, P},
}


@pytest.mark.parametrize("act", OutsideAct)
@pytest.mark.parametrize("witness", Witness)
@pytest.mark.parametrize("role", Role)
def test_each_act_follows_from_the_witnesses_that_the_table_names_and_from_no_role_alone(
    act: OutsideAct, witness: Witness, role: Role
) -> None:
    by_role = WITNESS_OF[role]

    assert allows(act, {witness}) == (act in ALLOWED[witness])
    assert allows(act, {witness, by_role}) == (act in ALLOWED[witness] | ALLOWED[by_role])


def test_no_number_of_launchers_is_a_witness_and_every_act_has_one() -> None:
    assert all(not allows(act, {Witness.LAUNCHER}) for act in OutsideAct)
    assert set(ENOUGH) == set(OutsideAct)
    assert all(ENOUGH.values())
    assert WITNESS_OF[Role.LAUNCH] is WITNESS_OF[Role.READ] is Witness.LAUNCHER


@pytest.mark.parametrize("act", OutsideAct)
def test_what_is_on_record_is_a_witness_that_was_enough(act: OutsideAct) -> None:
    for found in combinations(Witness, 2):
        kept = strongest(act, set(found))
        assert (kept is not Witness.LAUNCHER) == allows(act, set(found))
        assert kept in (*found, Witness.LAUNCHER)


def desk_of(policy: ClusterPolicy | None = None) -> tuple[ClusterController, MemoryJournal]:
    chosen = policy or ClusterPolicy(budgets=Budgets(nodes_held_percent=100.0))
    desk, journal, _clock = make_desk(chosen)
    desk.owner_of = OWNERS.__getitem__
    desk.note_running(f"n{number}" for number in range(1, 10))
    return desk, journal


def forge(desk: ClusterController, jobs: tuple[str, ...] = (MALLORY,) * 3) -> None:
    """Have launchers report device faults of n2: of another kind each, so that each counts."""
    kinds = (ChargeKind.DEVICE, ChargeKind.HOST, ChargeKind.CUT_OFF)
    for number, (job, kind) in enumerate(zip(jobs, kinds, strict=True)):
        blame(desk, "n2", job, f"inc-{number}", FINDING, kind)


def alert_by(desk: ClusterController, sender: str, action: str = "drain") -> None:
    labels = {
        "alertname": "RankmendGpuLost",
        "node": "n2",
        "severity": "critical",
        "action": action,
    }
    desk.take_alerts([IncomingAlert(labels, {}, desk.now_unix_s(), True)], {}, Sender(sender))


def power_off(desk: ClusterController, job: str = MALLORY) -> bool:
    return desk.allow_power_off(PowerOffAsked("n2", job, "inc-9"))


def test_a_subjects_launchers_alone_hold_no_node_back_and_that_is_journaled() -> None:
    desk, journal = desk_of()

    forge(desk)
    was_off = power_off(desk)

    assert desk.unusable("n2") is None
    assert not was_off
    not_done = [one.record for one in journal.entries if isinstance(one.record, NotDone)]
    assert [(one.act, one.node, one.is_observed) for one in not_done] == [
        (NotDoneAct.QUARANTINE, "n2", False),
        (NotDoneAct.POWER_OFF, "n2", False),
    ]
    assert "launchers of mallory alone" in not_done[0].reason
    assert any("launchers of mallory alone" in note.text for note in desk.notes)


def test_two_jobs_of_one_subject_are_one_party() -> None:
    desk, _journal = desk_of()

    forge(desk, (MALLORY, "job-2-of-mallory", MALLORY))

    assert desk.unusable("n2") is None


def by_alert(desk: ClusterController) -> None:
    alert_by(desk, "alertmanager")


def by_slurm(desk: ClusterController) -> None:
    desk.is_on_node = lambda node, subject: (node, subject) == ("n2", "mallory")


def by_another(desk: ClusterController) -> None:
    blame(desk, "n2", ALICE, "inc-of-alice", FINDING, ChargeKind.SLOW)


def by_policy(desk: ClusterController) -> None:
    desk.take_policy(replace(desk.policy, single_tenant=True))


@pytest.mark.parametrize("witness", [by_alert, by_slurm, by_another, by_policy])
def test_a_second_party_makes_the_same_reports_count(witness) -> None:  # type: ignore[no-untyped-def]
    desk, journal = desk_of()

    witness(desk)
    forge(desk)

    assert "in quarantine: blamed in" in (desk.unusable("n2") or "")
    assert power_off(desk)
    kept = [one.record for one in journal.entries if isinstance(one.record, NodeBlamed)]
    assert kept[-1].subject == "mallory"
    assert kept[-1].witness is not Witness.LAUNCHER


@pytest.mark.parametrize(
    ("sender", "action"), [("mallory", "drain"), ("alertmanager", "watch")], ids=str
)
def test_an_alert_of_the_owner_and_one_that_rules_nothing_out_are_no_second_party(
    sender: str, action: str
) -> None:
    desk, _journal = desk_of()

    alert_by(desk, sender, action)
    forge(desk)

    assert desk.unusable("n2") is None
    assert not power_off(desk)


def test_one_subject_leaves_others_half_of_the_stops_of_an_hour() -> None:
    policy = ClusterPolicy(budgets=Budgets(stops_per_hour_max=4))
    desk, _journal = desk_of(policy)

    def stop(job: str, number: int) -> str:
        request = PlanRequest(
            job, f"inc-{number}", 1, PlanStep.RESTART_IN_PLACE, FINDING, (), 2, is_standing=False
        )
        return desk.judge(request).judgement.value

    of_mallory = [stop(MALLORY, number) for number in range(6)]
    of_alice = [stop(ALICE, 10 + number) for number in range(3)]

    assert of_mallory == ["allowed"] * 4 + ["refused"] * 2
    assert of_alice == ["allowed"] * 2 + ["refused"]
