"""Pages and commands say what is so: one word for one state, buttons that do something, the loss first."""

import re
from dataclasses import dataclass, replace

import msgspec
import pytest

from detectors.finding import Kind
from rankmend.progress import Section
from recovery.accounting.goodput.job_time import JobTime, StepsTime
from recovery.accounting.goodput.time_words import hours_name
from recovery.accounting.goodput.timeline import TimePart, TimeSpan
from recovery.api import wire
from recovery.console.acts import EVERYTHING, MayAct
from recovery.console.fleet import NodeRow, NodeUse
from recovery.console.incident import (
    WaitingPlan,
    check_command,
    loss_of,
    view_page,
    view_waiting,
)
from recovery.console.job_time import (
    goodput_shares,
    loss_spark,
    sparks_of,
    step_times,
    view_time,
)
from recovery.console.rendering import render, running_clock
from recovery.console.source import RankTail
from recovery.console.views.incident_view import with_clock
from recovery.console.views.job_view import raise_highest, reason_of, state_of, view_ledger
from recovery.console.views.state_words import standing_of, standing_word, use_of, word_of
from recovery.controller.cluster.active_alerts import ActiveAlert
from recovery.controller.cluster.incoming_alerts import AlertTarget
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    Cause,
    Choice,
)
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.incident_machine import Outcome, Phase
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.journal.ledger import Closing, Ledger
from recovery.journal.node_records import FenceWaits
from recovery.journal.records import Record
from recovery.local.report.overview import doing_of
from recovery.messages.exchange import NodeKinds, Stop
from recovery.service.jobs.views import view_findings
from tests.support.goodput_jobs import (
    BEGIN,
    END,
    FIRST,
    OPENED,
    RECOVERY,
    entries_of,
    event,
    time_of,
)
from tests.support.job_ledgers import SEEN

JOB = "00000000-0000-4000-8000-000000000001"
NOW_UNIX_S = 2_000.0


def incident_of(**changes: object) -> wire.IncidentView:
    values: dict[str, object] = {
        "incident_id": "i-1", "job_id": JOB, "job": "train", "opened_unix_s": 1_916.5, "attempt": 1, "cause": "rank_failed",
        "signature": "s", "summary": "rank 3 failed", "blame": "rank", "node": "n1", "ranks": [3], "victims": [],
        "outcome": "restoring", "tries": 1, "steps": [], "phases": {"detect_s": 0.5}, "notes": [], "total_s": None,
        "recovered_s": None, "steps_recomputed": None, "caught_up_s": None, "highest_step": 400, "ranks_lost": 2,
    }  # fmt: skip
    return wire.IncidentView(**(values | changes))  # type: ignore[arg-type]


def plan_of(waits_for: str) -> wire.PlanView:
    return wire.PlanView(
        JOB, "train", "i-1", 1, "restart_in_place", "rank 3 failed", "wait", "0 of 1 nodes are there",
        plan_id="p1", waits_for=waits_for,
    )  # fmt: skip


def node_of(**changes: object) -> wire.NodeView:
    values: dict[str, object] = {
        "node": "n1", "job_id": JOB, "heard_age_s": 1.0, "attempt": 1, "ranks": [0, 1], "is_spare": False, "boot_id": "b",
    }  # fmt: skip
    return wire.NodeView(**(values | changes))  # type: ignore[arg-type]


def job_of(state: str, **changes: object) -> wire.JobView:
    job = wire.JobView(JOB, "train", "ann", state, 3, 2, 1, 0, 0, 400, 1, "i-1", None)
    return msgspec.structs.replace(job, **changes)


def checkpoint_of(steps_since: int) -> wire.CheckpointView:
    return wire.CheckpointView(
        "/ckpt/step_300.pt", "torch", 300, steps_since, 60.0, None, 1, None, None, "", None, None, None, None, 0,
        0.0, 1.0, 1.0, None, None, None, "", "",
    )  # fmt: skip


def incident_html(
    view: wire.IncidentView,
    plan: WaitingPlan | None = None,
    job: wire.JobView | None = None,
    may: MayAct = EVERYTHING,
    tails: tuple[RankTail, ...] = (),
) -> str:
    return render(
        "incident.html.j2", root="", page=view_page(view, (), (), plan, "", job), incident=view, story=[], opened=1_916.5,
        plan=plan, node=None, readings=(), tails=tails, may=may, check=check_command, is_controller=True, now_unix_s=NOW_UNIX_S,
    )  # fmt: skip


def node_html(findings: list[wire.NodeFindingView], states: dict[str, str]) -> str:
    row = NodeRow("n1", NodeUse.WAITING, "n1", "", 2, ((JOB, "train"),), 1.0)
    return render(
        "node.html.j2", root="", node=row, views=[node_of()], states=states, findings=findings, watched=[], slurm=None, kubernetes=None,
        incidents=[], hold=None, pause=None, scope="node:n1", history=[], may=EVERYTHING, check=check_command,
        is_controller=True, now_unix_s=NOW_UNIX_S,
    )  # fmt: skip


def job_html(job: wire.JobView, time: JobTime | None = None) -> str:
    ranks = wire.RankMap(JOB, 0, None, [], [], [], [], [], [], [])
    return render(
        "job.html.j2", root="", job=job, is_ended=False, nodes=[], nodes_left=0, plan=None, loss=0.0, incidents=[],
        time=view_time(time), ranks=ranks, loss_curve=None, slowest=[], counts={}, highest=None, pause=None,
        scope=f"job:{JOB}", newest=[], may=EVERYTHING, check=check_command, is_controller=True, now_unix_s=NOW_UNIX_S,
    )  # fmt: skip


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.parametrize(
    ("waits_for", "buttons"),
    [
        ("leave", ["Approve ...", "Reject ..."]),
        ("nodes", ["Take n1 back ..."]),
        ("storage", []),
    ],
)
def test_a_waiting_plan_offers_the_act_that_helps_and_no_other(
    waits_for: str, buttons: list[str]
) -> None:
    held = [node_of(held="drained by ann: fan 3")]
    holds = [wire.HoldView("n1", "drain", "ann", "fan 3", None, 1_800.0)]
    view = incident_of(standing="waiting", outcome="restoring", node="")

    html = incident_html(view, view_waiting(plan_of(waits_for), held, holds), job_of("waiting"))

    assert re.findall(r'class="button[^>]*>([^<]+)</a>', html) == buttons


def test_a_plan_that_waits_for_nodes_names_who_holds_the_node_since_when_and_why() -> None:
    held = [node_of(held="drained by ann: fan 3"), node_of(node="n2")]
    holds = [wire.HoldView("n1", "drain", "ann", "fan 3", None, 1_800.0)]
    plan = view_waiting(plan_of("nodes"), held, holds)

    text = text_of(incident_html(incident_of(standing="waiting"), plan, job_of("waiting")))

    assert "n1 is held back by ann since 1970-01-01 00:30:00 UTC: fan 3." in text
    assert "rankmend resume --node n1" in text
    assert "train waits for nodes" in text
    assert "rankmend approve" not in text


def test_who_may_not_act_on_nodes_gets_no_button_to_take_one_back() -> None:
    plan = view_waiting(plan_of("nodes"), [node_of(held="drained")], [])

    html = incident_html(incident_of(standing="waiting"), plan, may=MayAct(job=True))

    assert 'class="button' not in html


@pytest.mark.parametrize(
    ("phase", "waits", "word"),
    [
        (Phase.OPENED, False, "recovering"),
        (Phase.FENCING, False, "recovering"),
        (Phase.RESTORING, True, "waiting"),
        (Phase.VERIFYING, False, "recovering"),
        (Phase.RECOVERED, False, "recovered"),
        (Phase.ESCALATED, True, "gave up"),
        (Phase.CANCELLED, False, "cancelled"),
    ],
)
def test_an_incident_has_one_word_which_its_job_shares_while_it_is_open(
    phase: Phase, waits: bool, word: str
) -> None:
    assert standing_of(phase, waits=waits).value == word


def test_a_job_that_gave_up_is_called_so_and_an_older_controllers_phase_gets_the_same_word() -> (
    None
):
    old = incident_of(outcome="escalated")

    assert word_of("escalated") == "gave up" == standing_word(old)
    assert [word_of(state) for state in ("running", "time_limit")] == ["running", "time limit"]


@pytest.mark.parametrize(
    ("state", "use"),
    [
        ("running", "training"),
        ("waiting", "waiting"),
        ("recovering", "recovering"),
        ("done", "done"),
    ],
)
def test_a_node_trains_only_while_its_job_does(state: str, use: str) -> None:
    assert use_of(node_of(), state) == use
    assert use_of(node_of(is_spare=True), state) == "spare"
    assert f"train {'● ' if use == 'training' else ''}" in text_of(node_html([], {JOB: state}))
    assert ("training" in text_of(node_html([], {JOB: state}))) is (use == "training")


def test_a_nodes_open_findings_come_first_on_its_page() -> None:
    lost = wire.NodeFindingView(
        "n1", "RankmendGpuLost", "critical", "GPU-5f", "GPU 3 has fallen off the bus", "reset_gpu", 1_900.0
    )  # fmt: skip

    text = text_of(node_html([lost], {JOB: "waiting"}))

    assert text.index("1 open finding") < text.index("Ranks") < text.index("Jobs")
    assert "RankmendGpuLost : GPU 3 has fallen off the bus" in text
    assert "to do: reset gpu" in text


def test_an_open_incident_shows_a_running_clock_and_the_loss_so_far() -> None:
    view = incident_of(standing="waiting")

    html = incident_html(view, None, job_of("waiting", checkpoint=checkpoint_of(100)))

    assert 'data-age-s="84.0">84 s<' in html
    assert "Down 84 s , 2 ranks idle, at most 100 steps to make again." in text_of(html)
    chosen = incident_of(standing="recovering", highest_step=400, restored_step=380)
    assert "2 ranks idle, 20 steps to make again." in text_of(incident_html(chosen))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lost_s": 8.5, "total_s": 0.253, "steps_recomputed": 40}, "Lost 8.5 s of 2 ranks, 40 steps made again."),
        ({"lost_s": 0.5, "total_s": 0.5, "is_lost_least": True}, "Lost at least 0.5 s of 2 ranks."),
        ({"total_s": 0.253, "steps_recomputed": 40},
         "Lost at least 0.253 s of 2 ranks, 40 steps to make again: it makes them now."),
    ],
)  # fmt: skip
def test_the_loss_in_all_stands_before_mttr(changes: dict[str, object], said: str) -> None:
    view = incident_of(outcome="recovered", standing="recovered", **changes)

    text = text_of(incident_html(view, None, job_of("running")))

    assert said in text
    assert text.index("Lost in all") < text.index("MTTR")


def test_a_job_that_gave_up_did_not_lose_the_fraction_of_a_second_until_then_only() -> None:
    view = incident_of(outcome="escalated", standing="gave up", lost_s=0.135)

    text = text_of(incident_html(view))

    assert "Gave up after 0.135 s : 2 ranks no longer trained." in text
    assert "Lost until then 0.135 s" in text
    assert "Lost in all" not in text


def test_a_job_that_has_ended_shows_no_checkpoint_that_was_checked_while_it_trained() -> None:
    """It may have saved another one since: `rankmend checkpoints` looks for it."""

    def seen_of(*records: tuple[float, Record]) -> wire.CheckpointView | None:
        ledger = fold_all(entries_of(*BEGIN, (1_900.0, SEEN), *records))
        return view_ledger(ledger, JOB, "train", state="any", now_unix_s=9_000.0).checkpoint

    running, ended = seen_of(), seen_of(*END)

    assert running is not None
    assert (running.path, ended) == (SEEN.path, None)


def test_steps_to_make_again_are_not_counted_from_a_checkpoint_where_memory_may_have_more() -> None:
    memory = wire.SnapshotView(
        395, 1, 5, 1.0, 10, 10, 10, 2, 0, [], 0, 0, 2, None, None, 1.0, 1.0, None, None, "", ""
    )
    view, job = incident_of(), job_of("recovering", checkpoint=checkpoint_of(100))
    restores = incident_of(restored_step=395)

    assert loss_of(view, job).steps == 100
    assert loss_of(view, msgspec.structs.replace(job, snapshots=memory)).steps is None
    assert loss_of(restores, msgspec.structs.replace(job, snapshots=memory)).steps == 5


def test_a_job_whose_plan_waits_while_its_ranks_train_is_not_down() -> None:
    """A slow rank, or a person's request: hours may pass until somebody approves the plan."""
    waits = incident_of(standing="waiting", outcome="opened", trained_s=None, cause="rank_slow")
    stopped = msgspec.structs.replace(
        waits, outcome="fencing", trained_s=70.0, phases={"detect_s": 0.0}
    )

    text = text_of(incident_html(waits, None, job_of("waiting", checkpoint=checkpoint_of(100))))

    assert "Training goes on ." in text
    assert not re.search("Down|idle|to make again", text)
    assert (with_clock(waits, NOW_UNIX_S).down_s, with_clock(stopped, NOW_UNIX_S).down_s) == (
        None,
        13.5,
    )
    assert "Down 13 s , 2 ranks idle" in text_of(incident_html(stopped, None, job_of("recovering")))


def test_the_ledgers_clock_runs_from_the_fault_or_from_when_training_ranks_were_stopped() -> None:
    slow = replace(OPENED.failure.finding, kind=Kind.RANK_SLOW)
    opened = replace(OPENED, failure=replace(OPENED.failure, finding=slow))
    accepted = (3_600.0, event(Outcome.ACCEPTED, "inc-1"))

    def down_s(*records: tuple[float, Record]) -> float | None:
        ledger = fold_all(entries_of(*BEGIN, *records))
        return view_ledger(
            ledger, JOB, "train", state="waiting", now_unix_s=5_000.0 + 3_610.0
        ).down_s

    assert down_s((100.0, OPENED)) == 3_510.5
    assert down_s((100.0, OPENED), accepted) == 3_510.5
    assert down_s((100.0, opened)) is None
    assert down_s((100.0, opened), accepted) == 10.0


def test_a_job_that_stops_says_why_while_it_does() -> None:
    """It may take minutes until no rank is left, and no incident is open then."""
    outcome = JobOutcome(OutcomeKind.ESCALATED, 1, "the budget is spent")
    ledger = Ledger(closing=Closing(outcome, Stop.KILL, 0.0))

    assert (state_of(ledger), reason_of(ledger, "train")) == ("stopping", "the budget is spent")


def test_the_clock_of_an_open_incident_begins_with_the_fault_and_not_with_its_detection() -> None:
    loss = loss_of(incident_of(standing="recovering", phases={"detect_s": 16.5}))

    assert loss.since_unix_s == 1_900.0
    assert loss.seconds is None


def test_a_finished_jobs_incident_does_not_say_that_training_continues() -> None:
    view = incident_of(outcome="recovered", standing="recovered", lost_s=1.0)

    assert "Training continues" in incident_html(view, None, job_of("running"))
    assert "Training continues" not in incident_html(view, None, None)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("starting", "No rank has reported in this attempt yet."),
        ("interrupted", "No rank runs that reports."),
        ("waiting", "No rank runs that reports."),
    ],
)
def test_a_job_of_which_nothing_runs_is_not_said_to_have_reported_nothing_yet(
    state: str, said: str
) -> None:
    assert said in text_of(job_html(job_of(state)))


def test_only_the_newest_attempt_of_a_job_can_run() -> None:
    """The end of an older one may be on no record, as after a takeover of ranks that ran."""
    orphaned = replace(FIRST, attempt=2, cause=Cause.TAKEOVER)

    html = job_html(job_of("running"), time_of(*BEGIN, (50.0, orphaned), now_s=60.0))

    assert re.findall(r"<td>(runs|-|running|failed|lost)</td>", html) == ["runs", "-"]


@pytest.mark.parametrize(
    ("outcome", "job", "said", "typed"),
    [
        ("fencing", job_of("recovering"), "The recovery is under way. Nothing to do.", "rankmend why i-1"),
        ("fencing", job_of("interrupted"), "The job's launcher has ended, so the recovery stands still. Start the same command again.",
         "rankmend why i-1"),
        ("restoring", job_of("not managed", problem="the disk is full"), "The recovery may stand still: the disk is full.",
         "rankmend why i-1"),
        ("escalated", None, "The job has ended. Check the node, then start the job again: it resumes from its newest checkpoint, if it has one.",
         "ssh n1 rankmend check node"),
        ("escalated", job_of("stopping"), "The job is being stopped. Check the node,", "ssh n1 rankmend check node"),
        ("escalated", job_of("running"), "The job was started again since.", "ssh n1 rankmend check node"),
        ("recovered", job_of("waiting"), "The job went on, and is waiting now.", "ssh n1 rankmend check node"),
        ("recovered", job_of("waiting", incident_id="i-2"), "The job has another incident now.", "rankmend why i-2"),
        ("cancelled", job_of("running", incident_id=None), "Nothing to do.", "rankmend why i-1"),
        ("cancelled", job_of("recovering", incident_id="i-2"), "The job has another incident now.", "rankmend why i-2"),
        ("cancelled", job_of("standing", incident_id=None), "The job is left stopped. To recover it:", "rankmend resume --job train"),
        ("cancelled", job_of("interrupted", incident_id=None), "The job is interrupted now.", "rankmend status train"),
        ("cancelled", None, "Nothing to do.", "rankmend why i-1"),
    ],
)  # fmt: skip
def test_what_to_do_next_follows_from_how_the_job_stands_now(
    outcome: str, job: wire.JobView | None, said: str, typed: str
) -> None:
    view = incident_of(outcome=outcome)

    found = view_page(view, (), (), None, "", job).next

    assert (found.text.startswith(said), found.command) == (True, typed), found


def test_a_recovery_that_waits_for_a_persons_look_at_a_node_says_so_until_it_is_proved_empty() -> (
    None
):
    waits = FenceWaits(
        1, ("n1",), "nothing proves that attempt 1 is gone (silent: n1): reboot the node"
    )
    proved = AttemptEnded(1, AttemptResult.FAILED)

    def text_after(*records: Record) -> str:
        entries = entries_of(*((100.0, record) for record in records))
        return view_page(incident_of(), entries, (), None, "", job_of("recovering")).next.text

    assert text_after(waits) == f"The recovery waits for a person: {waits.reason}."
    assert text_after(waits, proved) == "The recovery is under way. Nothing to do."


def test_what_a_failed_rank_printed_last_is_on_the_incidents_page_as_text() -> None:
    tail = RankTail(3, "stderr", "/state/incidents/i-1", ("Traceback", "<b>ValueError</b>: no"))

    html = incident_html(incident_of(), tails=(tail,))

    assert "Rank 3 printed last, on stderr" in html
    assert "Traceback\n&lt;b&gt;ValueError&lt;/b&gt;: no" in html


def test_a_silent_node_is_not_offered_to_be_taken_back_and_findings_of_held_ones_are_named() -> (
    None
):
    silent = node_of(node="n2", held="silent", heard_age_s=60.0)
    holds = [wire.HoldView("n1", "drain", "ann", "fan 3", None, 1_800.0)]
    finding = wire.NodeFindingView("n1", "GpuLost", "critical", "", "GPU 3 is gone", "", 1.0)
    held = [silent, node_of(held="drained by ann: fan 3")]
    plan = view_waiting(plan_of("nodes"), held, holds, [finding])

    html = incident_html(incident_of(standing="waiting"), plan, job_of("waiting"))

    assert re.findall(r'class="button[^>]*>([^<]+)</a>', html) == ["Take n1 back ..."]
    assert "fan 3; open finding GpuLost: GPU 3 is gone." in html
    assert "rankmend resume --node n1" in html


def test_curves_show_the_step_time_and_the_share_of_new_steps_in_60_slices() -> None:
    spans = (
        TimeSpan(0.0, 60.0, TimePart.PRODUCTIVE),
        TimeSpan(60.0, 90.0, TimePart.WAIT_NODES),
        TimeSpan(90.0, 120.0, TimePart.RECOMPUTED),
    )
    steps = tuple(
        StepsTime(end_s, 1, 2, 10, took_s, 0.0, 0.0, 0.0, 0.0, 0.0)
        for end_s, took_s in ((1.0, 2.0), (1.5, 4.0), (119.0, 5.0), (500.0, 9.0))
    )
    time = JobTime("id", "train", 0.0, spans, (), (), (), steps=steps)

    shares, times = goodput_shares(time), step_times(time)
    curves = sparks_of(time)

    assert shares == [1.0] * 30 + [0.0] * 30
    assert (times[0], times[59], times[1:59]) == (pytest.approx(0.3), 0.5, [None] * 58)
    assert [(one.name, one.newest, one.span) for one in curves] == [
        ("Step time", "0.5 s", "0.3 s to 0.5 s"),
        ("Goodput", "0.00 %", "0.00 % to 100.00 %"),
    ]
    assert curves[0].points == "0.0,35.0 240.0,1.0"
    assert len(curves[1].points.split()) == 60


def test_a_job_of_which_no_two_values_are_recorded_has_no_curve() -> None:
    assert sparks_of(JobTime("id", "train", 0.0, (), (), (), ())) == ()


@pytest.mark.parametrize(
    ("gpus", "name"), [(("H200", "H200"), "GPU-hours"), (("H200", ""), "rank-hours"), ((), "rank-hours")]
)  # fmt: skip
def test_hours_are_those_of_gpus_only_where_every_job_has_some(
    gpus: tuple[str, ...], name: str
) -> None:
    jobs = [
        JobTime("id", "train", 0.0, (), (), (), (), kinds={"n1": NodeKinds(gpu=gpu)})
        for gpu in gpus
    ]

    assert hours_name(jobs) == name


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119.9, "119 s"), (120.0, "2 min 0 s"), (7_199.0, "119 min 59 s"), (11_520.0, "3 h 12 min")],
)  # fmt: skip
def test_a_running_clock_counts_seconds_then_minutes_then_hours(seconds: float, words: str) -> None:
    assert running_clock(seconds) == words


@dataclass(frozen=True)
class ToldProgress:
    """What `doing_of` reads of a rank's progress."""

    section: Section
    sections_entered: int = 0
    last: str | None = "step 7"
    pid: int = 4711


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (ToldProgress(Section.IDLE), "training"),
        (ToldProgress(Section.IDLE, sections_entered=9), "-"),
        (ToldProgress(Section.IDLE, last=None), None),
        (ToldProgress(Section.COMPUTE, sections_entered=9), "compute"),
        (ToldProgress(Section.COMPUTE, pid=0), None),
    ],
)
def test_a_rank_that_trains_without_sections_is_never_called_idle(
    told: ToldProgress, word: str | None
) -> None:
    assert doing_of(told) == word  # type: ignore[arg-type]


def test_restarts_of_a_job_are_counted_over_all_its_starts() -> None:
    again = AttemptStarted(3, Cause.FIRST, Choice(True, None, "a new run", is_new_run=True))

    ledger = fold_all(entries_of(*BEGIN, *RECOVERY, (200.0, again)))

    assert (ledger.restarts, ledger.restarts_in_all) == (0, 1)
    assert view_ledger(ledger, JOB, "train", state="running").restarts_in_all == 1


@dataclass(frozen=True)
class ListedAlerts:
    active: tuple[ActiveAlert, ...]


@dataclass(frozen=True)
class AlertedDesk:
    """What `view_findings` reads of a controller."""

    alerts: ListedAlerts


def test_open_findings_name_their_node_the_worst_and_newest_first() -> None:
    def alert_of(
        name: str, severity: str, at_s: float, node: str = "n1", *, is_firing: bool = True
    ) -> ActiveAlert:
        target = AlertTarget(name, name, node, "", "", (), severity, "watch")
        return ActiveAlert(target, f"{name}!", (), (), at_s, at_s, 1, (), is_firing=is_firing)

    alerts = (
        alert_of("Noted", "info", 9.0),
        alert_of("Hot", "warning", 5.0),
        alert_of("Lost", "critical", 1.0),
        alert_of("LostToo", "critical", 2.0),
        alert_of("Over", "critical", 3.0, is_firing=False),
        alert_of("OfNobody", "critical", 3.0, node=""),
    )

    found = view_findings(AlertedDesk(ListedAlerts(alerts)))  # type: ignore[arg-type]

    assert [one.check for one in found] == ["LostToo", "Lost", "Hot", "Noted"]
    assert (found[0].node, found[0].summary, found[0].action) == ("n1", "LostToo!", "watch")


def test_the_curve_of_the_loss_says_its_steps_and_its_newest_value() -> None:
    curve = loss_spark([(100, 4.0), (150, 2.0), (200, 3.0)])

    assert curve is not None
    assert (curve.name, curve.newest, curve.span) == ("Loss", "3", "2 to 4, steps 100 to 200")
    assert curve.points == "0.0,1.0 120.0,35.0 240.0,18.0"


@pytest.mark.parametrize("losses", [[], [(5, 1.0)]])
def test_no_curve_is_drawn_where_no_rank_reports_a_loss(losses: list[tuple[int, float]]) -> None:
    assert loss_spark(losses) is None


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([], "If this node is blamed again, have it checked."),
        ([False], "Nothing counts against n1."),
        ([True], "The incident counts against n1: have it checked."),
    ],
)
def test_after_a_recovery_the_page_says_what_counts_against_the_node(
    counts: list[bool], said: str
) -> None:
    charges = [wire.NodeChargeView("n1", "device", one, "because") for one in counts]
    view = incident_of(outcome="recovered", standing="recovered", charges=charges)

    assert f"Training continues. {said}" in text_of(incident_html(view, job=job_of("running")))


def test_only_an_open_incident_has_a_running_clock() -> None:
    waits = incident_of(standing="waiting")
    over = incident_of(standing="recovered", outcome="recovered")

    assert with_clock(waits, 2_000.0).down_s == 84.0
    assert with_clock(over, 2_000.0).down_s is None


@pytest.mark.parametrize("page", ["jobs.html.j2", "job.html.j2"])
def test_job_whose_journal_is_not_read_has_no_counts(page: str) -> None:
    unread = job_of("not managed", problem="the journal is damaged", attempt=0, world_size=0)

    def html(job: wire.JobView) -> str:
        if page == "job.html.j2":
            return job_html(job)
        return render(
            page, root="", q="", state="", states=[], running=[job], running_left=0, watched=[], ended=[], ended_left=0,
            waits={}, is_controller=True,
        )  # fmt: skip

    assert "not known" in html(unread)
    assert "not known" not in html(job_of("running"))


def test_steps_since_a_checkpoint_go_on_with_the_highest_step() -> None:
    job = job_of("running", checkpoint=checkpoint_of(100))

    raise_highest(job, 450)

    assert job.highest_step == 450
    assert job.checkpoint is not None
    assert job.checkpoint.steps_since == 150


def test_a_plan_that_waits_for_nodes_says_when_the_job_is_given_up() -> None:
    plan = msgspec.structs.replace(plan_of("nodes"), gives_up_after_s=600.0)

    text = text_of(incident_html(incident_of(standing="waiting"), WaitingPlan(plan)))

    assert "After 10 min of waiting the job is given up." in text
    without = text_of(incident_html(incident_of(standing="waiting"), WaitingPlan(plan_of("nodes"))))
    assert "given up" not in without
