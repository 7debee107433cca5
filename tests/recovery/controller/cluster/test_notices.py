"""What a person must hear of: each word as long as its reason, and no longer."""

from dataclasses import replace

from detectors.finding import Kind, Severity
from recovery.controller.cluster.cluster_ledger import ClusterLedger, NodeBlame, NodePast
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.controller.cluster.notices import (
    NOTICES_MAX,
    TOLD_S_MAX,
    EndedJob,
    Notice,
    NoticeKind,
    RunningJob,
    find_notices,
    most_urgent,
)
from recovery.journal.attempt_records import StandKind, StandStill, StartWaits
from recovery.journal.cluster_records import Acknowledged, Hold, NodeHeld, Spent
from recovery.journal.incident_records import WaitCause, WaitsFor
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.journal.ledger import Ledger, SlowNow, Wish
from recovery.journal.limits import Policy
from recovery.journal.observation_records import SlowExplained, SlowFound
from recovery.journal.witnesses import Witness
from tests.support.troubles import FINDING, JOB, NOW, incident, running


def told(
    jobs: list[RunningJob] | None = None,
    ended: list[EndedJob] | None = None,
    cluster: ClusterLedger | None = None,
    nodes_active: int = 100,
) -> tuple[Notice, ...]:
    return find_notices(
        jobs or [], ended or [], cluster or ClusterLedger(), ClusterPolicy(), nodes_active, NOW
    )


def test_a_healthy_cluster_has_nothing_to_say() -> None:
    assert told(running(Ledger())) == ()


def test_a_plan_that_waits_says_why_until_it_is_approved() -> None:
    waiting = Ledger(incident=incident())

    (notice,) = told(running(waiting))

    assert notice.kind is NoticeKind.PLAN_WAITS
    assert notice.severity is Severity.CRITICAL, "the job stands"
    assert "the plan to move is waiting: dry run" in notice.summary
    assert (notice.incident_id, notice.node) == ("6f1c1b52-1", "n1")
    approved = replace(waiting, incident=replace(incident(), approved_by="ann"))
    assert told(running(approved)) == ()


def test_a_plan_that_waits_for_a_checkpoint_says_what_an_approval_would_do() -> None:
    waiting = replace(incident(), waits_cause=WaitCause.CHECKPOINT)

    (notice,) = told(running(Ledger(incident=waiting)))

    assert "begin at step 0 (`rankmend approve 6f1c1b52-1`)" in notice.todo


def test_a_start_that_is_held_is_told_as_an_emergency() -> None:
    held = StartWaits("2 files look like checkpoints, but none can be restored", "2 /c/9")

    (notice,) = told(running(Ledger(start_waits=held)))

    assert (notice.kind, notice.severity) == (NoticeKind.PLAN_WAITS, Severity.CRITICAL)
    assert held.reason in notice.summary
    assert notice.need == "it would begin at step 0"


def test_a_start_that_would_lose_the_optimizers_state_says_what_an_approval_would_do() -> None:
    held = StartWaits("no state is whole", "1 /c/9", model_alone="/c/model_9.pt")

    (notice,) = told(running(Ledger(start_waits=held)))

    assert notice.need == "the optimizer's state would be lost"
    assert "let the job go on from /c/model_9.pt" in notice.todo
    assert "step 0" not in notice.todo


def test_a_job_that_waits_for_a_checkpoint_before_a_restart_is_told_until_it_goes_on() -> None:
    waits = StandStill(3, StandKind.WAITS, (2,), "no rank advances; rank 2 is stopped")

    (notice,) = told(running(Ledger(attempt=3, standing=waits)))

    assert (notice.kind, notice.severity, notice.rank) == (
        NoticeKind.RANK_HUNG,
        Severity.WARNING,
        "2",
    )
    assert "rank 2 is stopped" in notice.summary
    assert "rankmend stop" in notice.todo
    for kind in (StandKind.CONTINUED, StandKind.SUSPENDED, StandKind.ENDED):
        assert not told(running(Ledger(attempt=3, standing=replace(waits, kind=kind))))


def test_a_plan_that_waits_for_nodes_is_told_although_it_was_approved_and_asks_for_no_approval() -> (
    None
):
    short = replace(incident(), approved_by="ann", waits_for=WaitsFor.NODES)

    (notice,) = told(running(Ledger(incident=short)))

    assert "rankmend resume --node NODE" in notice.todo
    assert "rankmend approve" not in notice.todo


def test_a_job_that_stands_since_it_is_paused_is_told_until_it_is_resumed() -> None:
    paused = Ledger(attempt=2, wish=Wish.RANKS, paused_by="ann")
    cancelled = replace(paused, set_aside=2)
    stopped = replace(paused, wish=Wish.NOTHING)

    assert told(running(paused)) == (), "it trains"
    for standing in (cancelled, stopped):
        (notice,) = told(running(standing))
        assert notice.kind is NoticeKind.PLAN_WAITS
        assert "is not training: ann left it stopped" in notice.summary
        assert "rankmend resume --job train" in notice.todo
    assert told(running(replace(cancelled, paused_by=None))) == ()


def test_a_plan_for_a_slow_rank_that_waits_is_no_emergency() -> None:
    slow = incident(replace(FINDING, kind=Kind.RANK_SLOW))

    (notice,) = told(running(Ledger(incident=slow)))

    assert notice.severity is Severity.WARNING


def test_a_node_of_which_nothing_is_proved_is_named_until_it_is_heard() -> None:
    ledger = Ledger(is_attempt_open=True, attempt=2, fence_waits=("n1", "n2"))

    (notice,) = told(running(ledger, "n2"))

    assert (notice.kind, notice.node) == (NoticeKind.GONE_UNPROVED, "n2")
    assert "`rankmend confirm-gone n2 --job " in notice.todo
    assert told(running(replace(ledger, is_attempt_open=False), "n2")) == ()


def test_a_job_with_no_restart_left_is_said_before_it_is_given_up() -> None:
    limit = Policy().restarts_max

    assert told(running(Ledger(restarts=limit - 1))) == ()
    (notice,) = told(running(Ledger(restarts=limit)))
    assert notice.kind is NoticeKind.BUDGET_SPENT


def ended(kind: OutcomeKind = OutcomeKind.ESCALATED, age_s: float = 60.0) -> list[EndedJob]:
    outcome = JobOutcome(kind, 1, "all 3 tries failed", "6f1c1b52-1")
    return [EndedJob(JOB, "train", outcome, NOW - age_s)]


def test_an_escalation_is_told_until_it_is_acknowledged_or_a_week_old() -> None:
    (notice,) = told(ended=ended())

    assert notice.kind is NoticeKind.INCIDENT_ESCALATED
    assert "all 3 tries failed" in notice.summary
    seen = ClusterLedger(acknowledged={"6f1c1b52-1": Acknowledged("6f1c1b52-1", "ann", "")})
    assert told(ended=ended(), cluster=seen) == ()
    assert told(ended=ended(age_s=TOLD_S_MAX + 1)) == ()
    assert told(ended=ended(OutcomeKind.DONE)) == ()


def test_an_end_without_an_incident_can_be_acknowledged_too() -> None:
    (job,) = ended()
    job = replace(job, outcome=replace(job.outcome, incident_id=None))

    assert job.incident_id == "6f1c1b52-at-1799999940"


def test_the_clusters_budget_of_stops_is_told_when_it_is_spent() -> None:
    limit = ClusterPolicy().budgets.stops_per_hour_max
    spent = [(NOW - 60, Spent(JOB, f"i-{n}", 1, "move", ("n1",), True)) for n in range(limit)]

    assert told(cluster=ClusterLedger(spent=tuple(spent[:-1]))) == ()
    (notice,) = told(cluster=ClusterLedger(spent=tuple(spent)))
    assert (notice.kind, notice.job_id) == (NoticeKind.BUDGET_SPENT, "")
    old = tuple((NOW - 3601, one) for _unix_s, one in spent)
    assert told(cluster=ClusterLedger(spent=old)) == ()


def blamed(held: NodeHeld | None = None) -> ClusterLedger:
    blames = tuple(NodeBlame(NOW - 60, JOB, f"i-{number}", "GPU lost") for number in range(3))
    return ClusterLedger(nodes={"n1": NodePast(blames, held)})


def test_a_quarantine_is_told_and_so_is_one_that_a_breaker_refuses() -> None:
    held = NodeHeld("n1", Hold.QUARANTINE, "policy", "blamed in 3 incidents", NOW + 60)

    assert [one.kind for one in told(cluster=blamed(held))] == [NoticeKind.NODE_QUARANTINED]
    (refused,) = told(cluster=blamed(), nodes_active=9)
    assert refused.kind is NoticeKind.QUARANTINE_REFUSED
    assert "the limit for 9 nodes that ran ranks within a day is 0" in refused.summary
    drained = NodeHeld("n1", Hold.DRAIN, "ann", "", None)
    assert told(cluster=blamed(drained), nodes_active=9) == ()


def test_what_people_are_told_at_once_is_bounded_and_the_urgent_comes_first() -> None:
    nodes = {f"n{number}": blamed().nodes["n1"] for number in range(NOTICES_MAX)}

    found = told(running(Ledger(restarts=100)), ended(), ClusterLedger(nodes=nodes), nodes_active=5)

    assert len(found) == NOTICES_MAX
    assert found[0].severity is Severity.CRITICAL
    assert found[-1].severity is Severity.CRITICAL


def test_a_flood_of_one_subjects_notices_hides_none_of_anothers() -> None:
    nodes = [f"n{number}" for number in range(100)]
    lost = Ledger(is_attempt_open=True, attempt=2, fence_waits=tuple(nodes))
    flood = [
        RunningJob(
            f"{number:08}-0", f"m{number}", lost, Policy(), frozenset(nodes), owner="mallory"
        )
        for number in range(12)
    ]
    given_up = [replace(job, owner="mallory") for job in ended() * NOTICES_MAX]
    alices = [replace(job, owner="alice") for job in running(Ledger(incident=incident()))]
    held = ClusterLedger(nodes=blamed().nodes)

    found = told([*flood, *alices], given_up, held, nodes_active=9)

    assert len(found) == NOTICES_MAX
    assert [notice.job for notice in found if notice.owner == "alice"] == ["train"]
    assert NoticeKind.QUARANTINE_REFUSED in {notice.kind for notice in found}
    assert most_urgent(found) == found


def test_what_launchers_of_one_subject_report_of_a_node_sends_nobody_to_it() -> None:
    (plain, *_more) = blamed().nodes["n1"].blames
    forged = tuple(
        replace(plain, incident_id=f"i-{number}", subject="mallory") for number in range(3)
    )
    was_there = replace(
        plain, incident_id="i-4", subject="alice", witness=Witness.AGENT, was_there=True
    )

    def found(*blames: NodeBlame, single_tenant: bool = False) -> int:
        ledger = ClusterLedger(nodes={"n1": NodePast(blames)})
        policy = ClusterPolicy(single_tenant=single_tenant)
        return len(find_notices([], [], ledger, policy, 9, NOW))

    assert found(*forged) == 0
    assert found(*forged, replace(was_there, was_there=False, witness=Witness.LAUNCHER)) == 0
    assert found(*forged, was_there) == 1
    assert found(*forged, replace(was_there, unix_s=0.0)) == 0, "long ago"
    assert found(*(replace(blame, witness=Witness.AGENT) for blame in forged)) == 1
    assert found(*forged, single_tenant=True) == 1


def test_no_command_holds_a_name_that_a_shell_would_read() -> None:
    hung = replace(FINDING, kind=Kind.RANK_HUNG)
    ledgers = [
        Ledger(incident=incident(), restarts=Policy().restarts_max),
        Ledger(incident=replace(incident(hung), waits=None)),
        Ledger(incident=replace(incident(), waits_cause=WaitCause.PAUSED, waits_about="job:x ann")),
        Ledger(start_waits=StartWaits("nothing can be restored", "2 /c/9")),
        Ledger(attempt=2, wish=Wish.RANKS, paused_by="ann", set_aside=2),
        Ledger(attempt=3, standing=StandStill(3, StandKind.WAITS, (2,), "rank 2 is stopped")),
        Ledger(is_attempt_open=True, attempt=1, slow={3: slow_now()}, fence_waits=("n2",)),
    ]
    (job,) = running(Ledger(), "n2")
    jobs = [replace(job, name="x; reboot", ledger=ledger) for ledger in ledgers]
    (over,) = ended()
    over = replace(over, name="x; reboot", outcome=replace(over.outcome, incident_id=None))

    commands = {notice.command for notice in told(jobs, [over])}

    assert len(commands) >= len(ledgers)
    assert not [command for command in commands if "reboot" in command]


def test_every_notice_says_in_a_few_words_what_it_needs_and_names_one_command() -> None:
    jobs = running(Ledger(incident=incident(), restarts=Policy().restarts_max))
    held = NodeHeld("n1", Hold.QUARANTINE, "policy", "blamed in 3 incidents", NOW + 9)
    named = [*told(jobs, ended()), *told(cluster=blamed(held))]

    assert len(named) == 4
    for notice in named:
        assert 0 < len(notice.need) <= 40, notice
        assert notice.command.startswith("rankmend "), notice


def slow_now(why: SlowExplained | None = None) -> SlowNow:
    finding = replace(
        FINDING,
        kind=Kind.RANK_SLOW,
        severity=Severity.WARNING,
        summary="rank 3 on n1 is 1.5x slower than its peers",
        ranks=(3,),
    )
    return SlowNow(SlowFound(1, 3, "compute", 1.5, 20, finding), 7, why)


def test_a_slow_rank_is_told_with_its_cause_until_it_ends_or_its_attempt() -> None:
    why = SlowExplained(1, 3, "gpu_thermal_slowdown", "its GPU is hot", 0.9, ())
    ledger = Ledger(is_attempt_open=True, attempt=1, slow={3: slow_now(why)})

    (notice,) = told(running(ledger))

    assert (notice.kind, notice.severity) == (NoticeKind.RANK_SLOW, Severity.WARNING)
    assert (notice.job_id, notice.node, notice.rank) == (JOB, "n1", "3")
    assert notice.summary.endswith("1.5x slower than its peers; its GPU is hot")
    assert told(running(replace(ledger, slow={}))) == ()
    assert told(running(replace(ledger, is_attempt_open=False))) == ()


def test_what_a_slow_rank_is_told_by_does_not_change_with_what_is_found_out() -> None:
    before = Ledger(is_attempt_open=True, attempt=1, slow={3: slow_now()})
    why = SlowExplained(1, 3, "", "hardware shows nothing", 0.5, ())
    after = replace(before, slow={3: slow_now(why)})

    assert [one.key for one in told(running(before))] == [one.key for one in told(running(after))]


def test_a_hang_is_told_with_its_culprits_while_its_incident_is_open() -> None:
    hung = replace(FINDING, kind=Kind.RANK_HUNG, ranks=(15, 2), summary="no rank advances")
    open_incident = replace(incident(hung), waits=None)

    (notice,) = told(running(Ledger(incident=open_incident)))

    assert (notice.kind, notice.rank, notice.node) == (NoticeKind.RANK_HUNG, "2,15", "n1")
    assert notice.incident_id == "6f1c1b52-1"
    assert "waits for ranks 2 and 15" in notice.summary
    nobody = replace(incident(replace(hung, ranks=())), waits=None)
    (notice,) = told(running(Ledger(incident=nobody)))
    assert "no rank is blamed" in notice.summary
    assert told(running(Ledger())) == ()


def test_a_job_whose_launchers_are_refused_is_orphaned_and_says_what_to_do() -> None:
    (job,) = running(Ledger())

    (notice,) = told([replace(job, orphaned="1 launcher is refused (n1): token 0a1b2c3d ended")])

    assert notice.kind is NoticeKind.JOB_ORPHANED
    assert notice.severity is Severity.CRITICAL
    assert notice.summary.endswith("is orphaned: 1 launcher is refused (n1): token 0a1b2c3d ended")
    assert notice.command == "rankmend status train"
