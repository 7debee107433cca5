"""What is wrong now, from ledgers, notices and alerts: what needs a person, and the one command to run."""

import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest

from detectors.finding import Blame, Kind, Severity, Symptom, SymptomKind
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_ledger import ClusterLedger
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.controller.cluster.notices import (
    EndedJob,
    Notice,
    RunningJob,
    find_notices,
    job_argument,
)
from recovery.journal.attempt_records import Placement
from recovery.journal.incident_machine import IncidentState, Phase
from recovery.journal.incident_records import WaitCause, WaitsFor
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.journal.ledger import Ledger, Moment, OpenIncident, Wish
from recovery.journal.limits import Policy
from recovery.service.pager import mark_contested
from recovery.service.paging.trouble import FINDING, NodeAlert, PresentTrouble, Stage, find_troubles
from tests.support.cluster_desk import make_desk
from tests.support.troubles import FINDING as DEVICE
from tests.support.troubles import JOB, NOW, Site, incident, running

GPU = NodeAlert("RankmendGpuLost", "n1", "critical", "GPU 3 is lost", NOW - 60)


def ledger_of(one: OpenIncident, **changes: object) -> Ledger:
    at = replace(one, opened_at=Moment(NOW - 30), fault_age_s=10.0)
    return replace(Ledger(incident=at, world_size=16), **changes)  # type: ignore[arg-type]


def only(
    ledger: Ledger, *alerts: NodeAlert, placed: dict[str, str] | None = None
) -> PresentTrouble:
    found = troubles(running(ledger), *alerts, placed=placed)
    return next(one for one in found if one.kind != FINDING)


def troubles(
    jobs: list[RunningJob], *alerts: NodeAlert, placed: dict[str, str] | None = None
) -> tuple[PresentTrouble, ...]:
    notices: tuple[Notice, ...] = find_notices(jobs, [], ClusterLedger(), ClusterPolicy(), 100, NOW)
    return find_troubles(jobs, notices, alerts, placed or {}, NOW)


def test_a_port_and_the_network_that_it_belongs_to_are_one_fault() -> None:
    port = NodeAlert(
        "RankmendNicPortDown",
        "n1",
        "critical",
        "port mlx5_8/1 is no longer active",
        NOW - 50,
        "mlx5_8/1",
    )
    plane = NodeAlert(
        "RankmendPlaneDegraded",
        "n1",
        "warning",
        "the storage network has half",
        NOW - 60,
        "storage",
    )

    (both,) = troubles([], port, plane)
    (alone,) = troubles([], plane)

    assert both.what.startswith(
        "port mlx5_8/1 is no longer active; storage network degraded; no job"
    )
    assert (both.about, both.ports, both.since_unix_s) == (
        "RankmendNicPortDown",
        ("mlx5_8/1",),
        NOW - 60,
    )
    assert alone.what.startswith("the storage network has half; no job")


def test_an_incident_that_runs_needs_nobody_and_counts_its_idle_gpus_from_the_fault() -> None:
    state = IncidentState("6f1c1b52-1", 3, phase=Phase.RESTORING)
    one = only(ledger_of(replace(incident(), waits=None, state=state)))

    assert (one.severity, one.need) == (Severity.INFO, "restarting")
    assert (one.gpus_idle, one.since_unix_s) == (16, NOW - 40)
    assert one.command == "rankmend why 6f1c1b52-1"
    assert one.done == ("stopped the old ranks, and proved that none is left",)


def test_ranks_are_idle_from_the_moment_at_which_a_plan_about_slow_ones_stopped_them() -> None:
    """The wish is for ranks again as soon as the next attempt is ordered, long before it trains."""
    slow = replace(incident(replace(DEVICE, kind=Kind.RANK_SLOW)), waits=None)
    state = IncidentState("6f1c1b52-1", 3, phase=Phase.VERIFYING)
    restarted = replace(slow, state=state, stopped_at=Moment(NOW - 20))

    waits = only(ledger_of(slow, wish=Wish.RANKS))
    starts = only(ledger_of(restarted, wish=Wish.RANKS))

    assert (waits.gpus_idle, starts.gpus_idle) == (0, 16)


def test_an_incident_has_no_node_that_is_contested_and_the_finding_there_stays_its_own() -> None:
    lost = replace(DEVICE, node="n1", symptom=Symptom(SymptomKind.HOST, "silent"))
    (job,) = running(ledger_of(replace(incident(lost), waits=None)))

    own = find_troubles([job], [], [GPU], {}, NOW)
    forged = find_troubles([replace(job, contested=frozenset({"n1"}))], [], [GPU], {}, NOW)

    assert [(one.kind, one.nodes, one.is_loss) for one in own] == [
        ("RankmendIncident", ("n1",), True),
        (FINDING, ("n1",), False),
    ]
    assert [(one.kind, one.nodes, one.is_loss) for one in forged] == [
        ("RankmendIncident", (), False),
        (FINDING, ("n1",), False),
    ]
    site = Site()
    site.look(*forged)
    said = site.look(*forged, after_s=60.0).open
    assert [(one.told.cause_id, one.told.severity) for one in said] == [
        ("6f1c1b52-1", "info"),
        ("node-n1", "warning"),
    ], "the finding is a message of its own"
    assert site.look(own[1], after_s=3600.0).open[0].told.cause_id == "node-n1"


MALLORY, ALICE = "mallorys", "alices"


def jobs_on_n1() -> list[RunningJob]:
    """Return mallory's job with an incident about n1, where his launchers and alice's say that they are."""
    place = (Placement("n1", (0,)),)
    forged = replace(incident(replace(DEVICE, node="n1")), waits=None)
    return [
        RunningJob(
            MALLORY, "m", replace(ledger_of(forged), placement=place), Policy(), frozenset()
        ),
        RunningJob(ALICE, "a", Ledger(placement=place), Policy(), frozenset()),
    ]


def contested(change: Callable[[ClusterController], None], jobs: list[RunningJob]) -> bool:
    desk, _journal, _clock = make_desk()
    desk.owner_of = {MALLORY: "mallory", ALICE: "alice"}.__getitem__
    change(desk)
    marked = mark_contested(jobs, desk)
    assert all(not job.contested for job in marked[1:])
    return marked[0].contested == {"n1"}


def by_agent(desk: ClusterController) -> None:
    desk.is_seen_by_agent = lambda node, job_id: (node, job_id) == ("n1", MALLORY)
    desk.has_agents_word = lambda node: node == "n1"


def by_manager(desk: ClusterController) -> None:
    desk.is_on_node = lambda node, subject, _at_s: (node, subject) == ("n1", "mallory")


def by_policy(desk: ClusterController) -> None:
    desk.take_policy(ClusterPolicy(single_tenant=True))


def test_a_node_is_contested_where_only_a_jobs_launchers_say_that_it_is_there() -> None:
    both, alone = jobs_on_n1(), jobs_on_n1()[:1]

    def nothing(_desk: ClusterController) -> None:
        pass

    def agent_has_others(desk: ClusterController) -> None:
        desk.has_agents_word = lambda node: node == "n1"

    assert contested(nothing, both), "alice is there, too"
    assert not contested(nothing, alone), "nobody else is, and nobody could say so"
    assert contested(agent_has_others, alone), "its agent would have said so"
    for confirm in (by_agent, by_manager, by_policy):
        assert not contested(confirm, both), confirm.__name__


def test_a_node_that_two_subjects_share_by_others_word_is_contested_for_both() -> None:
    """What is found there is nobody's alone: one who crashes his own ranks there must not silence it."""

    def by_slurm(desk: ClusterController) -> None:
        desk.is_on_node = lambda node, _subject, _at_s: node == "n1"

    def by_agent_of_both(desk: ClusterController) -> None:
        desk.is_seen_by_agent = lambda node, _job_id: node == "n1"

    for share in (by_slurm, by_agent_of_both):
        assert contested(share, jobs_on_n1()), share.__name__
        assert not contested(share, jobs_on_n1()[:1]), share.__name__


def test_a_hang_that_is_being_recovered_wakes_nobody() -> None:
    hung = replace(DEVICE, kind=Kind.RANK_HUNG, ranks=(3,))
    one = only(ledger_of(replace(incident(hung), waits=None)))

    assert (one.key, one.severity) == ("6f1c1b52-1", Severity.INFO)


@pytest.mark.parametrize(
    ("cause", "about", "waits_for", "severity", "command"),
    [
        (WaitCause.APPROVAL, "all", WaitsFor.LEAVE, "critical", "rankmend approve 6f1c1b52-1"),
        (WaitCause.DRY_RUN, "", WaitsFor.LEAVE, "critical", "rankmend approve 6f1c1b52-1"),
        (WaitCause.PAUSED, "cluster ann", WaitsFor.LEAVE, "critical", "rankmend resume --cluster"),
        (WaitCause.PAUSED, "node:n7 ann", WaitsFor.LEAVE, "critical", "rankmend resume --node n7"),
        (WaitCause.PAUSED, "ann", WaitsFor.LEAVE, "critical", "rankmend resume --job train"),
        (WaitCause.NODES, "", WaitsFor.NODES, "critical", "rankmend why 6f1c1b52-1"),
        (WaitCause.CHECKPOINT, "", WaitsFor.LEAVE, "critical", "rankmend why 6f1c1b52-1"),
        (WaitCause.OBSERVE, "", WaitsFor.LEAVE, "info", "rankmend why 6f1c1b52-1"),
    ],
)
def test_a_plan_that_waits_names_the_one_command_for_what_it_waits_for(
    cause: WaitCause, about: str, waits_for: WaitsFor, severity: str, command: str
) -> None:
    waiting = replace(incident(), waits_cause=cause, waits_about=about, waits_for=waits_for)

    one = only(ledger_of(waiting))

    assert (one.severity.value, one.command) == (severity, command)
    assert one.stage is (Stage.RECOVERS if cause is WaitCause.OBSERVE else Stage.WAITS)


def test_a_job_that_was_given_up_says_so_in_its_stage_whatever_else_is_known_of_it() -> None:
    outcome = JobOutcome(OutcomeKind.ESCALATED, 93, "exit code 93", "6f1c1b52-1")
    ended = EndedJob(JOB, "train", outcome, NOW)
    notices = find_notices([], [ended], ClusterLedger(), ClusterPolicy(), 100, NOW)
    running_still = running(ledger_of(replace(incident(), waits=None)))

    for jobs in ([], running_still):
        (one,) = find_troubles(jobs, notices, [], {}, NOW)
        assert one.stage is Stage.GIVEN_UP


def test_a_program_that_fails_does_not_blame_its_node_and_a_device_does() -> None:
    program = replace(DEVICE, blame=Blame.PROGRAM)
    quiet = replace(incident(program), waits=None)

    assert not only(ledger_of(quiet)).blames_node
    assert only(ledger_of(replace(incident(), waits=None))).blames_node


def test_findings_of_a_node_are_one_trouble_and_urgent_only_under_a_job() -> None:
    hot = replace(GPU, alertname="RankmendGpuHot", severity="warning", since_unix_s=NOW - 90)

    (idle,) = troubles([], hot, GPU)
    (used,) = troubles([], hot, GPU, placed={"n1": "train"})

    assert (idle.severity, used.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert used.what == "GPU 3 is lost (and 1 more finding); job train uses the node"
    assert used.since_unix_s == NOW - 90
    assert idle.what.endswith("; no job of rankmend uses the node")
    assert troubles([], replace(GPU, severity="info")) == ()


def test_who_does_not_know_every_job_does_not_say_that_none_uses_a_node() -> None:
    (found,) = find_troubles([], [], [GPU], {}, NOW, knows_all=False)

    assert found.what == "GPU 3 is lost"


@pytest.mark.parametrize("name", ["a b", "$(reboot)", "-x", "a;b", "x" * 101, "ü"])
def test_a_command_never_holds_a_name_that_a_shell_would_read_otherwise(name: str) -> None:
    assert job_argument(name, JOB) == JOB


def test_an_alert_with_a_hostile_name_adds_nothing_to_the_command() -> None:
    (one,) = troubles([], replace(GPU, alertname="Rankmend'; reboot #"))

    assert shlex.split(one.command) == [
        "rankmend",
        "drain",
        "n1",
        "--reason",
        "Rankmend'; reboot #",
    ]


def test_a_usual_name_is_typed_as_it_is() -> None:
    assert job_argument("llama-70b_v2.1", JOB) == "llama-70b_v2.1"


def test_a_budget_that_is_spent_is_a_trouble_of_its_own_beside_the_incident() -> None:
    spent = ledger_of(replace(incident(), waits=None), restarts=Policy().restarts_max)

    assert [one.key for one in troubles(running(spent))] == ["6f1c1b52-1", "budget-6f1c1b52"]
