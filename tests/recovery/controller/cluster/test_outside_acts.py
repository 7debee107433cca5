"""What reaches outside a job: each act with each witness, and who may give which word."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product

import pytest

from detectors.finding import Symptom, SymptomKind
from detectors.node.charges import ChargeKind, NodeCharge
from recovery.console.views.untaken_view import view_untaken
from recovery.controller.cluster.active_alerts import JobNode
from recovery.controller.cluster.alert_shares import Sender
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_ledger import (
    NODES_KEPT,
    NOT_DONE_KEPT,
    SPENT_KEPT,
    ClusterLedger,
    NodeBlame,
    NodePast,
    fold_entry,
)
from recovery.controller.cluster.cluster_limits import (
    DAY_S,
    Budgets,
    ClusterPolicy,
    LemonRules,
    Quarantine,
)
from recovery.controller.cluster.gate import PlanRequest
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.journal.cluster_records import (
    BlameConfirmed,
    CauseTold,
    Hold,
    NodeBlamed,
    NodeErrorNoted,
    NodeHeld,
    NotDone,
    NotDoneAct,
    PowerOffAsked,
    Spent,
)
from recovery.journal.limits import PlanStep
from recovery.journal.records import Entry
from recovery.journal.witnesses import ENOUGH, OutsideAct, Witness, allows, strongest
from recovery.service.roles import WITNESS_OF, Role
from tests.support.cluster_desk import FINDING, MemoryJournal, blame, make_desk

MALLORY, ALICE = "job-of-mallory", "job-of-alice"
BOB, CAROL = "job-of-bob", "job-of-carol"
OWNERS = {
    MALLORY: "mallory",
    "job-2-of-mallory": "mallory",
    ALICE: "alice",
    BOB: "bob",
    CAROL: "carol",
}
D, E, R = OutsideAct.DRAIN, OutsideAct.EVICT, OutsideAct.REQUEUE
Q, K, P = OutsideAct.QUARANTINE, OutsideAct.KEEP_OUT, OutsideAct.POWER_OFF
ALLOWED = {
    Witness.LAUNCHER: set(),
    Witness.PERSON: {D, Q, K, P},
    Witness.ALERT: {D, Q, K},
    Witness.SCHEDULER: {D, E, R, Q, K},
    Witness.AGENT: {D, Q, K},
    Witness.SUBJECTS: {D, Q, K},
    Witness.SINGLE_TENANT: {D, E, R, Q, K, P},
    Witness.MANAGER_LOST: set(),
    Witness.SILENT_AGENT: set(),
}
THERE = {Witness.SCHEDULER, Witness.AGENT}
LOST = {Witness.ALERT, Witness.SUBJECTS, Witness.MANAGER_LOST, Witness.SILENT_AGENT}


def is_enough(act: OutsideAct, found: set[Witness]) -> bool:
    """Say it again in other words than the table."""
    return any(act in ALLOWED[one] for one in found) or (
        act is P and bool(found & THERE) and bool(found & LOST)
    )


@pytest.mark.parametrize("act", OutsideAct)
@pytest.mark.parametrize("role", Role)
def test_each_act_follows_from_all_kinds_of_evidence_as_documented_and_from_no_role_alone(
    act: OutsideAct, role: Role
) -> None:
    kinds = tuple(Witness)
    by_role = WITNESS_OF[role]

    for chosen in product((False, True), repeat=len(kinds)):
        found = {kind for kind, is_there in zip(kinds, chosen, strict=True) if is_there}
        assert allows(act, found) == is_enough(act, found), found
        assert allows(act, found | {by_role}) == is_enough(act, found | {by_role}), found


def test_no_number_of_launchers_is_a_witness_and_every_act_has_one() -> None:
    assert all(not allows(act, {Witness.LAUNCHER}) for act in OutsideAct)
    assert set(ENOUGH) == set(OutsideAct)
    assert all(ENOUGH.values())
    assert not any(Witness.LAUNCHER in found for found in ENOUGH.values())
    assert WITNESS_OF[Role.LAUNCH] is WITNESS_OF[Role.READ] is Witness.LAUNCHER


@pytest.mark.parametrize("act", OutsideAct)
def test_what_is_on_record_is_a_witness_that_was_enough(act: OutsideAct) -> None:
    for found in combinations(Witness, 2):
        kept = strongest(act, set(found))
        assert (kept is not Witness.LAUNCHER) == any(allows(act, {one}) for one in found)
        assert kept in (*found, Witness.LAUNCHER)


def desk_of(
    policy: ClusterPolicy | None = None, journal: MemoryJournal | None = None
) -> tuple[ClusterController, MemoryJournal]:
    """``journal``: of a controller from which this one takes over."""
    chosen = policy or ClusterPolicy(budgets=Budgets(nodes_held_percent=100.0))
    desk, journal, _clock = make_desk(chosen, journal)
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
    shown = view_untaken(desk.ledger, None, lambda _job_id: "llama").untaken
    assert [(one.action, one.nodes, one.why_not) for one in shown] == [
        ("quarantine", ["n2"], "launchers_alone"),
        ("power_off", ["n2"], "launchers_alone"),
    ]
    assert any("launchers of mallory alone" in note.text for note in desk.notes)


def test_a_flood_of_forged_faults_pushes_out_no_note_for_people() -> None:
    desk, _journal = desk_of(
        ClusterPolicy(budgets=Budgets(nodes_held_percent=100.0), quarantine=Quarantine(blames=1))
    )
    desk.note_database(60.0)

    for number in range(150):
        blame(desk, f"forged-{number}", MALLORY, f"inc-{number}")

    texts = [note.text for note in desk.notes]
    assert sum("launchers of mallory alone" in text for text in texts) == 1
    assert any("PostgreSQL does not answer" in text for text in texts)


def test_nodes_that_only_launchers_have_named_make_room_for_others() -> None:
    ledger = ClusterLedger(
        nodes={
            "real": NodePast((NodeBlame(0.0, ALICE, "i", "", witness=Witness.ALERT, subject="a"),)),
            "ours": NodePast((NodeBlame(0.0, "job", "i", ""),)),  # without tokens
            "held": NodePast(held=NodeHeld("held", Hold.DRAIN, "ann", "", None)),
            **{
                f"forged-{number}": NodePast((NodeBlame(0.0, MALLORY, "i", "", subject="m"),))
                for number in range(NODES_KEPT)
            },
        }
    )
    record = NodeBlamed("new", MALLORY, "inc-1", "", subject="mallory")

    after = fold_entry(ledger, Entry(1, 0.0, 0.0, "boot", record))

    assert len(after.nodes) == len(ledger.nodes)
    assert {"real", "ours", "held", "new", "forged-1"} <= after.nodes.keys()
    assert "forged-0" not in after.nodes


def test_a_flood_of_forged_blames_and_errors_of_a_node_pushes_out_none_of_others() -> None:
    """Else a tenant hides a bad node: a hundred incidents of his own, and the node's past is his word alone."""
    desk, _journal = desk_of(ClusterPolicy(quarantine=Quarantine(blames=99)))
    by_slurm(desk)
    blame(desk, "n2", ALICE, "inc-of-alice", FINDING, ChargeKind.SLOW)
    blame(desk, "n2", BOB, "inc-of-bob", FINDING, ChargeKind.SLOW)
    noted = NodeErrorNoted("n2", ALICE, "i", ChargeKind.PROGRAM, "e", "a.py:1", True, "alice", True)
    ledger = fold_entry(desk.ledger, Entry(1, 0.0, 0.0, "boot", noted))

    for number in range(250):
        for record in (
            NodeBlamed("n2", MALLORY, f"forged-{number}", "", subject="mallory"),
            replace(noted, job_id=MALLORY, incident_id=f"forged-{number}", subject="mallory"),
        ):
            ledger = fold_entry(ledger, Entry(number + 2, 1.0, 0.0, "boot", record))

    past = ledger.past("n2")
    assert [one.subject for one in past.blames if one.subject != "mallory"] == ["alice", "bob"]
    assert past.blames[-1].incident_id == "forged-249"
    assert [one.subject for one in past.errors if one.subject != "mallory"] == ["alice"]
    assert len(past.blames) == len(past.errors) == 100


def test_a_flood_of_one_subjects_messages_pushes_out_no_closed_message_of_others() -> None:
    def over(number: int, owner: str) -> CauseTold:
        return CauseTold(
            f"{owner}-{number}", 0.0, "j", "j", "", "info", "", is_over=True, owner=owner
        )

    ledger = fold_entry(ClusterLedger(), Entry(1, 0.0, 0.0, "boot", over(0, "alice")))
    for number in range(1_200):
        ledger = fold_entry(ledger, Entry(number + 2, 1.0, 0.0, "boot", over(number, "mallory")))

    assert len(ledger.causes) == 1_000
    assert {"alice-0", "mallory-1199"} <= ledger.causes.keys()
    assert "mallory-0" not in ledger.causes


def test_nodes_that_one_subjects_incidents_name_hide_none_of_others() -> None:
    def told(number: int, owner: str, *nodes: str) -> CauseTold:
        return CauseTold(
            f"{owner}-{number}", 0.0, "j", "j", "", "info", "", nodes=nodes, owner=owner
        )

    ledger = ClusterLedger()
    for cause in (
        told(0, "alice", "a1", "a2"),
        told(0, "", "found"),
        *(told(number, "mallory", f"m{number}", f"m{number}-b") for number in range(300)),
    ):
        ledger = fold_entry(ledger, Entry(ledger.number + 1, 10.0, 0.0, "boot", cause))

    wanted = ledger.nodes_of_causes(0.0, 200)

    assert len(wanted) == 200
    assert {"a1", "a2", "found", "m299"} <= set(wanted)
    assert ledger.nodes_of_causes(10.0, 200) == ()


def folded(ledger: ClusterLedger, records: list[tuple[float, Spent | NotDone]]) -> ClusterLedger:
    for number, (at_s, record) in enumerate(records, start=1):
        ledger = fold_entry(ledger, Entry(number, at_s, 0.0, "boot", record))
    return ledger


def test_moves_of_jobs_that_stand_push_out_no_stop_of_the_last_day() -> None:
    old, stop = Spent(ALICE, "i-0", 1, "move", (), True), Spent(ALICE, "i-1", 1, "move", (), True)
    move = Spent(MALLORY, "i-2", 1, "move", ("n2",), False)
    moves = ((DAY_S, move),) * (SPENT_KEPT - 3)
    ledger = ClusterLedger(spent=((0.0, old), (DAY_S, stop), *moves))

    after = folded(ledger, [(DAY_S + 1.0, move)] * 3)

    assert len(after.spent) == SPENT_KEPT
    assert [item for _at_s, item in after.spent if item.stops_training] == [stop]
    assert after.spent[-1] == (DAY_S + 1.0, move)


def test_a_flood_of_forged_faults_pushes_out_nothing_that_observe_mode_has_kept() -> None:
    observed = NotDone(NotDoneAct.QUARANTINE, "n1", ALICE, "i-0", "blamed")
    forged = NotDone(NotDoneAct.QUARANTINE, "n2", MALLORY, "i-1", "launchers alone", False)
    ledger = ClusterLedger(
        not_done=((0.0, observed), *((0.0, forged),) * (NOT_DONE_KEPT - 1)),
    )

    after = folded(ledger, [(1.0, forged), (1.0, observed)])

    assert len(after.not_done) == NOT_DONE_KEPT
    assert [at_s for at_s, item in after.not_done if item.is_observed] == [0.0, 1.0]
    assert folded(ClusterLedger(), [(1.0, forged)]).not_done == ((1.0, forged),)


def test_two_jobs_of_one_subject_are_one_party() -> None:
    desk, _journal = desk_of()

    forge(desk, (MALLORY, "job-2-of-mallory", MALLORY))

    assert desk.unusable("n2") is None


def test_word_of_an_agent_that_comes_after_a_take_over_holds_the_node_back() -> None:
    desk, journal = desk_of()
    forge(desk)
    assert desk.unusable("n2") is None
    taken_over, _journal = desk_of(journal=journal)

    taken_over.confirm_blames("n2")
    before = taken_over.unusable("n2")
    by_agent(taken_over)
    taken_over.confirm_blames("n2")
    taken_over.confirm_blames("n2")  # the report of a minute later
    restarted, _journal = desk_of(journal=journal)

    assert before is None
    assert taken_over.unusable("n2") is not None
    assert restarted.unusable("n2") is not None, "nobody has said it again"
    confirmed = [one.record for one in journal.entries if isinstance(one.record, BlameConfirmed)]
    assert confirmed == [BlameConfirmed("n2", MALLORY, ("inc-0", "inc-1", "inc-2"))]


def test_word_of_an_agent_about_another_job_confirms_no_blame() -> None:
    desk, journal = desk_of()
    forge(desk)

    desk.is_seen_by_agent = lambda node, job: (node, job) == ("n2", ALICE)
    desk.confirm_blames("n2")
    desk.is_seen_by_agent = lambda node, job: (node, job) == ("n3", MALLORY)
    desk.confirm_blames("n2")

    assert desk.unusable("n2") is None
    assert not [one for one in journal.entries if isinstance(one.record, BlameConfirmed)]


def test_word_of_an_agent_that_finds_the_journal_full_is_used_with_its_next_report() -> None:
    desk, journal = desk_of()
    forge(desk)
    by_agent(desk)

    journal.is_full = True
    desk.confirm_blames("n2")
    journal.is_full = False
    desk.confirm_blames("n2")

    assert desk.unusable("n2") is not None


def by_alert(desk: ClusterController) -> None:
    alert_by(desk, "alertmanager")


def by_slurm(desk: ClusterController) -> None:
    desk.is_on_node = lambda node, subject, _at: (node, subject) == ("n2", "mallory")


def by_agent(desk: ClusterController) -> None:
    desk.is_seen_by_agent = lambda node, job: (node, job) == ("n2", MALLORY)


def by_another(desk: ClusterController) -> None:
    desk.is_on_node = lambda node, subject, _at: (node, subject) == ("n2", "alice")
    blame(desk, "n2", ALICE, "inc-of-alice", FINDING, ChargeKind.SLOW)


def by_another_that_was_there(desk: ClusterController) -> None:
    """Alice's job has left the node since, and nobody can say so any more but the journal."""
    desk.is_seen_by_agent = lambda node, job: (node, job) == ("n2", ALICE)
    blame(desk, "n2", ALICE, "inc-of-alice", FINDING, ChargeKind.SLOW)
    desk.is_seen_by_agent = lambda _node, _job: False


def by_policy(desk: ClusterController) -> None:
    desk.take_policy(replace(desk.policy, single_tenant=True))


@pytest.mark.parametrize(
    "witness", [by_alert, by_slurm, by_agent, by_another, by_another_that_was_there, by_policy]
)
def test_a_second_party_makes_the_same_reports_count(witness) -> None:  # type: ignore[no-untyped-def]
    desk, journal = desk_of()

    witness(desk)
    forge(desk)

    assert "in quarantine: blamed in" in (desk.unusable("n2") or "")
    assert power_off(desk) == (witness is by_policy), "silence needs two words more"
    kept = [one.record for one in journal.entries if isinstance(one.record, NodeBlamed)]
    assert kept[-1].subject == "mallory"
    assert kept[-1].witness is not Witness.LAUNCHER


LEMONS = ClusterPolicy(
    budgets=Budgets(nodes_held_percent=100.0),
    quarantine=Quarantine(blames=99),
    lemons=LemonRules(faults=2, dry_run=False, nodes_percent=50.0),
)


@pytest.mark.parametrize(
    "witness",
    [None, by_alert, by_slurm, by_agent, by_another, by_another_that_was_there, by_policy],
)
def test_a_node_is_kept_out_as_a_lemon_by_each_witness_and_not_by_launchers_alone(
    witness: Callable[[ClusterController], None] | None,
) -> None:
    desk, _journal = desk_of(LEMONS)

    if witness is not None:
        witness(desk)
    forge(desk)

    reason = desk.unusable("n2") or ""
    assert ("drained by policy" in reason) == (witness is not None)


def test_a_second_subject_that_was_never_on_the_node_is_no_witness() -> None:
    desk, journal = desk_of()
    desk.is_on_node = lambda node, subject, _at: (node, subject) == ("n3", "alice")
    desk.is_seen_by_agent = lambda node, job: (node, job) == ("n3", ALICE)

    for number in range(3):
        blame(desk, "n2", ALICE, f"inc-of-alice-{number}", FINDING, ChargeKind.SLOW)
    forge(desk)

    assert desk.unusable("n2") is None
    assert not power_off(desk)
    assert not power_off(desk, ALICE)
    blames = [one.record for one in journal.entries if isinstance(one.record, NodeBlamed)]
    assert {one.witness for one in blames} == {Witness.LAUNCHER}
    assert not any(one.was_there for one in blames)


def same_error(desk: ClusterController, job: str, program: str) -> bool:
    """Return whether an error that counts nothing by itself counts against n2, since a job of another script had it there."""
    charge = NodeCharge(
        "n2",
        ChargeKind.PROGRAM,
        job,
        f"inc-of-{job}",
        "no such file",
        error="exception:FileNotFoundError",
        program=program,
        is_here_alone=True,
    )
    return desk.note_charge(charge).counts


def test_an_error_that_a_stranger_to_the_node_reports_makes_no_error_of_others_count() -> None:
    desk, journal = desk_of()
    assert not same_error(desk, MALLORY, "forged.py:1")
    desk.is_on_node = lambda node, subject, _at: (node, subject) == ("n2", "alice")

    assert not same_error(desk, ALICE, "a.py:2")
    assert same_error(desk, BOB, "b.py:3"), "alice was there, and has told of it"
    assert same_error(desk, "job-2-of-mallory", "other.py:4"), "his own, within his own blames"
    blames = [one.record for one in journal.entries if isinstance(one.record, NodeBlamed)]
    assert [(one.subject, one.witness) for one in blames] == [
        ("bob", Witness.LAUNCHER),
        ("mallory", Witness.LAUNCHER),
    ]


def test_jobs_of_one_party_make_the_same_error_count() -> None:
    desk, _journal = desk_of(ClusterPolicy(single_tenant=True))

    assert not same_error(desk, MALLORY, "a.py:1")
    assert same_error(desk, ALICE, "b.py:2")


def test_an_accomplice_who_was_there_speaks_for_the_first_and_not_for_a_third_node() -> None:
    desk, _journal = desk_of()
    by_another(desk)

    assert desk.witnesses_of("n2", MALLORY) == {Witness.SUBJECTS}
    assert desk.witnesses_of("n3", MALLORY) == frozenset()
    assert desk.witnesses_of("n2", ALICE) == {Witness.SCHEDULER}


def test_who_was_on_the_node_a_day_ago_is_no_witness_today() -> None:
    desk, _journal, clock = make_desk(ClusterPolicy(budgets=Budgets(nodes_held_percent=100.0)))
    desk.owner_of = OWNERS.__getitem__
    desk.note_running(f"n{number}" for number in range(1, 10))
    was_there_s = desk.now_unix_s()
    desk.is_on_node = lambda node, _subject, at_s: node == "n2" and abs(at_s - was_there_s) <= 600.0
    clock.now += 86_400.0

    forge(desk)
    blame(desk, "n2", ALICE, "inc-of-alice", FINDING, ChargeKind.SLOW)

    assert desk.unusable("n2") is None
    assert not power_off(desk)
    assert desk.witnesses_of("n2", MALLORY) == frozenset()


def alert_of_job(
    desk: ClusterController, sender: Sender, job: str, *, is_firing: bool = True
) -> None:
    """Have a sender report that n2 is broken, where a launcher says that the job runs."""
    labels = {
        "alertname": "RankmendGpuLost",
        "node": "n2",
        "severity": "critical",
        "action": "drain",
    }
    told = IncomingAlert(labels, {}, desk.now_unix_s(), is_firing)
    desk.take_alerts([told], {"n2": (JobNode(job, (0,)),)}, sender)


def leaves_for_alert(job: str) -> PlanRequest:
    finding = replace(FINDING, job_id=job, symptom=Symptom(SymptomKind.ALERT, "RankmendGpuLost"))
    return PlanRequest(job, "inc-1", 1, PlanStep.MOVE, finding, ("n2",), 2, is_standing=True)


OF_JOBS = Sender("prometheus-of-mallory", is_of_jobs=True)
"""The sender with a token that is limited to mallory's jobs, under another name than his."""


@pytest.mark.parametrize("first", [Sender("alertmanager"), OF_JOBS], ids=["all", "of jobs"])
@pytest.mark.parametrize("ends", [Sender("alertmanager"), OF_JOBS], ids=["all", "of jobs"])
def test_a_sender_limited_to_jobs_ends_its_own_alerts_and_no_others(
    first: Sender, ends: Sender
) -> None:
    desk, _journal = desk_of()
    alert_of_job(desk, first, MALLORY)

    alert_of_job(desk, ends, MALLORY, is_firing=False)

    assert bool(desk.alerts.active) == (ends is OF_JOBS and first is not OF_JOBS)


def test_a_sender_limited_to_jobs_that_spoke_first_ends_no_alert_that_another_repeats() -> None:
    desk, _journal = desk_of()
    alert_of_job(desk, OF_JOBS, MALLORY)
    alert_of_job(desk, Sender("alertmanager"), MALLORY)

    alert_of_job(desk, OF_JOBS, MALLORY, is_firing=False)

    assert desk.witnesses_of("n2", MALLORY) == {Witness.ALERT}


@pytest.mark.parametrize("sender", [Sender("mallory"), OF_JOBS], ids=["owner", "limited to jobs"])
@pytest.mark.parametrize("has_ended", [False, True])
def test_an_alert_of_the_jobs_owner_or_limited_to_jobs_speaks_for_no_drain_and_no_blame(
    sender: Sender, *, has_ended: bool
) -> None:
    """One subject may hold `launch` and `alert`, for its own jobs: it is one party all the same."""
    desk, journal = desk_of()
    alert_of_job(desk, sender, MALLORY)
    if has_ended:
        alert_of_job(desk, sender, MALLORY, is_firing=False)

    is_vouched = desk.is_vouched(leaves_for_alert(MALLORY), "n2")
    blame(desk, "n2", MALLORY, "inc-1", FINDING, ChargeKind.ALERT)

    kept = [one.record for one in journal.entries if isinstance(one.record, NodeBlamed)]
    assert not is_vouched
    assert [one.witness for one in kept] == [Witness.LAUNCHER]


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_alert_of_another_speaks_for_the_plan_and_the_blame(*, has_ended: bool) -> None:
    desk, journal = desk_of()
    alert_of_job(desk, Sender("alertmanager"), MALLORY)
    if has_ended:
        alert_of_job(desk, Sender("alertmanager"), MALLORY, is_firing=False)

    is_vouched = desk.is_vouched(leaves_for_alert(MALLORY), "n2")
    blame(desk, "n2", MALLORY, "inc-1", FINDING, ChargeKind.ALERT)

    kept = [one.record for one in journal.entries if isinstance(one.record, NodeBlamed)]
    assert is_vouched
    assert [one.witness for one in kept] == [Witness.ALERT]


def test_an_alert_limited_to_jobs_is_no_second_party_until_one_without_limits_says_so_too() -> None:
    desk, _journal = desk_of()

    alert_of_job(desk, OF_JOBS, MALLORY)
    forge(desk)

    assert desk.unusable("n2") is None
    assert not power_off(desk)
    assert desk.witnesses_of("n2", ALICE) == frozenset()
    alert_by(desk, "alertmanager")
    assert desk.witnesses_of("n2", MALLORY) == {Witness.ALERT}


def test_an_approval_with_a_token_limited_to_jobs_speaks_for_the_job_and_for_no_node() -> None:
    desk, _journal = desk_of()
    within = PlanRequest(
        MALLORY,
        "inc-1",
        1,
        PlanStep.MOVE,
        FINDING,
        ("n2",),
        2,
        approved_by="mallory",
        is_approved_within=True,
    )
    without_limits = replace(within, is_approved_within=False)

    assert desk.judge(within).judgement.value == "allowed"
    assert not desk.is_vouched(within, "n2")
    assert desk.sharer_of(within) == "mallory"
    assert desk.is_vouched(without_limits, "n2")
    assert desk.sharer_of(without_limits) == ""


def test_a_rule_gone_mad_and_a_forged_death_together_drain_nothing() -> None:
    desk, _journal = desk_of(ClusterPolicy(budgets=Budgets(nodes_held_percent=10.0)))
    nodes = [f"n{number}" for number in range(1, 10)]
    labels = {"alertname": "RankmendGpuLost", "severity": "critical", "action": "drain"}
    told = [IncomingAlert({**labels, "node": node}, {}, desk.now_unix_s(), True) for node in nodes]
    jobs_on = {node: (JobNode(ALICE, (0,)),) for node in nodes}
    jobs_on["n2"] = (JobNode(MALLORY, (0,)),)
    desk.take_alerts(told, jobs_on, Sender("prometheus"))

    forge(desk)

    assert not desk.is_vouched(leaves_for_alert(MALLORY), "n2")
    assert desk.unusable("n2") is None
    assert not power_off(desk)


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


@pytest.mark.parametrize(
    ("witness", "is_vouched"),
    [
        (by_alert, True),
        (by_agent, True),
        (by_another, True),
        (by_policy, True),
        (by_slurm, False),  # Slurm is asked anew, before it drains
        (lambda _desk: None, False),
    ],
)
def test_a_drain_for_a_plan_needs_no_further_word_where_a_witness_speaks(
    witness: Callable[[ClusterController], None], is_vouched: bool
) -> None:
    desk, _journal = desk_of()

    witness(desk)
    request = PlanRequest(MALLORY, "inc-1", 1, PlanStep.MOVE, FINDING, ("n2",), 2, is_standing=True)

    assert desk.is_vouched(request, "n2") == is_vouched
    assert desk.is_vouched(request, "n3") == (witness is by_policy)


def stops_of(desk: ClusterController, job: str, count: int) -> int:
    """Return how many of so many training jobs of the job's owner may be stopped."""
    asked = [
        PlanRequest(
            job,
            f"{job}-{number}",
            1,
            PlanStep.RESTART_IN_PLACE,
            FINDING,
            (),
            2,
            is_standing=False,
        )
        for number in range(count)
    ]
    return sum(desk.judge(request).judgement.value == "allowed" for request in asked)


@pytest.mark.parametrize(
    ("witness", "sharer"),
    [
        (lambda _desk: None, "mallory"),
        (by_slurm, "mallory"),  # says where the job is, and not that the node is bad
        (by_agent, "mallory"),
        (by_alert, ""),
        (by_another, ""),
        (by_policy, ""),
    ],
)
def test_a_drain_counts_to_the_share_of_the_owner_whose_launchers_alone_say_what_is_wrong(
    witness: Callable[[ClusterController], None], sharer: str
) -> None:
    desk, _journal = desk_of()

    witness(desk)
    request = PlanRequest(MALLORY, "inc-1", 1, PlanStep.MOVE, FINDING, ("n2",), 2, is_standing=True)

    assert desk.sharer_of(request) == sharer
    assert desk.sharer_of(replace(request, approved_by="ann")) == ""
    desk.is_only_subject = lambda owner: owner == "mallory"
    assert desk.sharer_of(request) == ""


def held_for(desk: ClusterController, job: str, *nodes: str) -> list[str]:
    """Return which nodes are held back for what launchers of a job report of them, where their agents confirm the job."""
    desk.is_seen_by_agent = lambda _node, seen: seen == job
    for node in nodes:
        blame(desk, node, job, f"inc-of-{job}-on-{node}")
    return [node for node in nodes if desk.unusable(node) is not None]


HELD_FOUR = ClusterPolicy(
    budgets=Budgets(nodes_held_max=4, nodes_held_percent=100.0), quarantine=Quarantine(blames=1)
)


def test_what_launchers_of_one_subject_report_leaves_others_a_share_of_the_held_nodes() -> None:
    desk, _journal = desk_of(HELD_FOUR)

    assert held_for(desk, MALLORY, "n1", "n2", "n3", "n4") == ["n1", "n2"]
    assert held_for(desk, "job-2-of-mallory", "n4") == []
    assert held_for(desk, ALICE, "n5", "n6") == ["n5"], "half of what is left"
    desk.owner_of = lambda _job: ""
    assert held_for(desk, "job-of-the-operator", "n7", "n8") == ["n7"], "all share one bound"
    texts = [note.text for note in desk.notes if "launchers of mallory" in note.text]
    assert len(texts) == 1, "one note for each subject"


def lost(desk: ClusterController, job: str, *nodes: str) -> list[str]:
    """Return which nodes lose their power for a job whose launchers are silent there, and which each agent had seen."""
    desk.is_seen_by_agent = lambda _node, seen: seen == job
    desk.is_agent_silent = lambda _node: True
    return [node for node in nodes if desk.allow_power_off(PowerOffAsked(node, job, f"i-{node}"))]


def test_silence_of_one_subjects_launchers_leaves_others_a_share_of_the_power_offs() -> None:
    desk, journal = desk_of(ClusterPolicy(budgets=Budgets(power_offs_per_hour_max=4)))

    assert lost(desk, MALLORY, "n1", "n2", "n3") == ["n1", "n2"]
    assert lost(desk, "job-2-of-mallory", "n3") == []
    assert lost(desk, ALICE, "n4", "n5") == ["n4"], "half of what is left"
    desk.is_only_subject = lambda owner: owner == "bob"
    assert lost(desk, BOB, "n6", "n7") == ["n6"], "all share one bound"
    kept = [one.record for one in journal.entries if isinstance(one.record, PowerOffAsked)]
    assert [one.sharer for one in kept] == ["mallory", "mallory", "alice", ""]
    assert {one.witnesses for one in kept} == {(Witness.AGENT, Witness.SILENT_AGENT)}
    texts = [note.text for note in desk.notes if "share of power_offs_per_hour_max" in note.text]
    assert any("for what launchers of mallory report" in text for text in texts)


def test_node_that_an_alert_names_loses_its_power_by_nobodys_share() -> None:
    desk, journal = desk_of(ClusterPolicy(budgets=Budgets(power_offs_per_hour_max=2)))
    by_alert(desk)

    assert lost(desk, MALLORY, "n1", "n2", "n3") == ["n1", "n2"]
    kept = [one.record for one in journal.entries if isinstance(one.record, PowerOffAsked)]
    assert [(one.node, one.sharer) for one in kept] == [("n1", "mallory"), ("n2", "")]


def agent_is_missed(desk: ClusterController, sender: str = "prometheus", *nodes: str) -> None:
    told = [
        IncomingAlert(
            {"alertname": "RankmendAgentDown", "node": node, "severity": "critical"},
            {},
            desk.now_unix_s(),
            True,
        )
        for node in nodes or ("n2",)
    ]
    desk.take_alerts(told, {}, Sender(sender))


def by_silent_agent(desk: ClusterController) -> None:
    desk.is_agent_silent = lambda node: node == "n2"


def by_manager_without_answer(desk: ClusterController) -> None:
    desk.is_lost_by_manager = lambda node: node == "n2"


@pytest.mark.parametrize("there", [None, by_slurm, by_agent])
@pytest.mark.parametrize(
    "gone",
    [None, by_alert, agent_is_missed, by_silent_agent, by_manager_without_answer, by_another],
)
def test_power_of_a_silent_node_needs_a_word_that_the_job_is_there_and_one_that_it_is_lost(
    there: Callable[[ClusterController], None] | None,
    gone: Callable[[ClusterController], None] | None,
) -> None:
    desk, journal = desk_of()
    if gone is not None:
        gone(desk)
    if there is not None and (gone, there) != (by_another, by_slurm):
        there(desk)
    if (gone, there) == (by_another, by_slurm):
        desk.is_on_node = lambda node, subject, _at: node == "n2" and subject in OWNERS.values()

    was_off = power_off(desk)

    assert was_off == (there is not None and gone is not None)
    refused = [one.record for one in journal.entries if isinstance(one.record, NotDone)]
    assert bool(refused) != was_off
    assert all("launchers of mallory alone" in one.reason for one in refused)


def test_a_lost_node_whose_second_word_comes_late_is_switched_off_then_and_refused_once() -> None:
    desk, journal = desk_of()
    by_agent(desk)

    before = [power_off(desk) for _look in range(3)]
    by_silent_agent(desk)

    assert before == [False] * 3
    assert power_off(desk)
    assert sum(isinstance(one.record, NotDone) for one in journal.entries) == 1


def test_prometheus_that_misses_half_of_the_fleet_switches_nothing_off() -> None:
    desk, _journal = desk_of(ClusterPolicy(budgets=Budgets(nodes_held_percent=25.0)))
    by_agent(desk)

    agent_is_missed(desk, "prometheus", "n1", "n2", "n3", "n4")

    assert not power_off(desk)


@pytest.mark.parametrize("sender", ["mallory"])
def test_alert_of_the_owner_that_his_node_is_missed_switches_nothing_off(sender: str) -> None:
    desk, _journal = desk_of()
    by_agent(desk)

    agent_is_missed(desk, sender)

    assert not power_off(desk)


def test_another_subjects_blame_of_an_hour_ago_is_no_word_about_a_node_that_is_silent_now() -> None:
    desk, _journal, clock = make_desk(ClusterPolicy(budgets=Budgets(nodes_held_percent=100.0)))
    desk.owner_of = OWNERS.__getitem__
    desk.note_running(f"n{number}" for number in range(1, 10))
    by_another(desk)
    by_agent(desk)
    assert Witness.SUBJECTS in desk.witnesses_of_loss("n2", MALLORY)

    clock.now += 3600.0

    assert Witness.SUBJECTS in desk.witnesses_of("n2", MALLORY), "it counts against the node"
    assert not power_off(desk)


def out(desk: ClusterController, job: str, *nodes: str) -> list[str]:
    """Return which nodes are kept out as lemons for what launchers of a job report, where their agents confirm the job."""
    desk.is_seen_by_agent = lambda _node, seen: seen == job
    for node in nodes:
        for number, kind in enumerate((ChargeKind.DEVICE, ChargeKind.HOST)):
            blame(desk, node, job, f"inc-{number}-of-{job}-on-{node}", FINDING, kind)
    return [node for node in nodes if desk.unusable(node) is not None]


def test_what_launchers_of_one_subject_report_leaves_others_a_share_of_the_lemons() -> None:
    lemons = replace(LEMONS.lemons, nodes_max=4)
    desk, _journal = desk_of(replace(LEMONS, lemons=lemons))

    assert out(desk, MALLORY, "n1", "n2", "n3") == ["n1", "n2"]
    assert out(desk, "job-2-of-mallory", "n4") == []
    assert out(desk, ALICE, "n5", "n6") == ["n5"], "half of what is left"
    desk.owner_of = lambda _job: ""
    assert out(desk, "job-of-the-operator", "n7", "n8") == ["n7"], "all share one bound"
    texts = [note.text for note in desk.notes if "launchers of mallory" in note.text]
    assert len(texts) == 1, "one note for each subject"
    assert "its share of the lemons: 2 of 4" in texts[0]


@pytest.mark.parametrize("is_alerted", [False, True])
def test_an_alert_or_a_site_of_one_subject_leaves_all_held_nodes_to_it(*, is_alerted: bool) -> None:
    desk, _journal = desk_of(HELD_FOUR)
    nodes = [f"n{number}" for number in range(1, 6)]
    desk.is_only_subject = lambda owner: owner == "mallory" and not is_alerted
    labels = {"severity": "critical", "action": "drain"}
    told = [
        IncomingAlert(
            {**labels, "alertname": f"RankmendX{node}", "node": node}, {}, desk.now_unix_s(), True
        )
        for node in nodes
    ]
    desk.take_alerts(told if is_alerted else [], {}, Sender("alertmanager"))

    assert held_for(desk, MALLORY, *nodes) == nodes[:4]


def test_one_subject_leaves_others_half_of_the_stops_of_an_hour_and_all_share_one_bound() -> None:
    desk, _journal = desk_of(ClusterPolicy(budgets=Budgets(stops_per_hour_max=6)))

    assert stops_of(desk, MALLORY, 9) == 3
    assert stops_of(desk, "job-2-of-mallory", 9) == 0
    assert stops_of(desk, ALICE, 9) == 2, "half of what is left, rounded up"
    assert stops_of(desk, BOB, 9) == 1
    assert stops_of(desk, CAROL, 9) == 0


@pytest.mark.parametrize("is_approved", [False, True])
def test_a_person_who_restarts_a_job_is_never_held_back_and_takes_no_stop_from_others(
    *, is_approved: bool
) -> None:
    """As one with a token limited to his own job may, again and again."""
    desk, _journal = desk_of(ClusterPolicy(budgets=Budgets(stops_per_hour_max=6)))
    wants = FINDING if is_approved else replace(FINDING, symptom=Symptom(SymptomKind.PERSON))
    approver = "mallory" if is_approved else None
    asked = [
        PlanRequest(
            MALLORY, f"i-{number}", 1, PlanStep.RESTART_IN_PLACE, wants, (), 2,
            is_standing=False, approved_by=approver, is_approved_within=is_approved,
        )
        for number in range(9)
    ]  # fmt: skip

    assert all(desk.judge(request).judgement.value == "allowed" for request in asked)
    assert desk.budgets_left()["stops_per_hour"] == 6
    assert (stops_of(desk, ALICE, 9), stops_of(desk, MALLORY, 9)) == (3, 2)


@pytest.mark.parametrize("stops_max", range(1, 13))
def test_whatever_the_order_in_which_subjects_ask_no_more_jobs_stop_than_the_bound(
    stops_max: int,
) -> None:
    desk, journal = desk_of(ClusterPolicy(budgets=Budgets(stops_per_hour_max=stops_max)))

    for count in range(1, 5):
        for job in (CAROL, ALICE, MALLORY, BOB):
            stops_of(desk, job, count)

    assert 0 < len([one for one in journal.entries if isinstance(one.record, Spent)]) <= stops_max


def test_only_subject_of_a_site_and_a_site_of_one_party_have_all_stops_of_an_hour() -> None:
    policy = ClusterPolicy(budgets=Budgets(stops_per_hour_max=4))
    alone, _journal = desk_of(policy)
    alone.is_only_subject = lambda owner: owner == "mallory"
    of_one_party, _journal = desk_of(replace(policy, single_tenant=True))

    assert [stops_of(desk, MALLORY, 9) for desk in (alone, of_one_party)] == [4, 4]


def test_stops_of_an_older_controller_count_for_all() -> None:
    """It wrote no subject of a stop."""
    journal = MemoryJournal(make_desk()[2])
    journal.append_many([Spent(f"old-{number}", "i", 1, "move", (), True) for number in range(3)])
    desk, _journal = desk_of(ClusterPolicy(budgets=Budgets(stops_per_hour_max=4)), journal)

    assert (stops_of(desk, MALLORY, 9), stops_of(desk, ALICE, 9)) == (1, 0)
