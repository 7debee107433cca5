"""What is done about a watched job that hangs: by policy, once, within bounds, and by default nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from detectors.hang.live import HungLimits
from rankmend.errors import JournalError
from rankmend.watched_report import ReportedEvidence, WatchedReport
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import (
    ClusterPolicy,
    JobOverride,
    NodeRules,
    WatchedAction,
    WatchedRules,
)
from recovery.controller.cluster.cluster_limits_file import parse_policy
from recovery.controller.watched.watched_jobs import WatchedJobs
from recovery.journal.cluster_records import WatchedAsked
from recovery.journal.store import Journal
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.support.agent import FakeClock
from tests.support.watched_cluster import JOB, LOAD, REDUCE, Cluster, stand_still

pytestmark = pytest.mark.process

OTHER = "6d0c4b1e-0000-4000-8000-000000000002"
REQUEUE = WatchedRules(action=WatchedAction.REQUEUE, dry_run=False)


@dataclass
class FakeScheduler:
    asked: list[SchedulerRequest] = field(default_factory=list)
    fails: int = 0

    def ask(self, request: SchedulerRequest, /) -> None:
        if self.fails:
            self.fails -= 1
            raise JournalError("the disk is full")
        self.asked.append(request)


class Site:
    """A cluster with a controller's journal and a scheduler."""

    def __init__(self, folder: Path, rules: WatchedRules, **policy: object) -> None:
        self.folder = folder
        self.cluster = Cluster()
        self.scheduler = FakeScheduler()
        self.policy = replace(ClusterPolicy(watched=rules), **policy)  # type: ignore[arg-type]
        self.start()

    def start(self) -> None:
        """Start the controller, also anew."""
        self.journal = Journal(self.folder / "journal.db", FakeClock(), "boot")
        self.desk = ClusterController(self.journal, self.policy, FakeClock(), lambda _job: "")
        cluster = self.cluster
        cluster.jobs = WatchedJobs(lambda: cluster.now_s, lambda _name: HungLimits(), self.desk)
        cluster.jobs.scheduler = self.scheduler

    def hang(self, for_s: float = 700.0, state: str = "D") -> None:
        self.cluster.run(60)
        self.cluster.pause()
        self.cluster.states[2] = state
        self.cluster.run(for_s)

    @property
    def act(self) -> str:
        return self.cluster.job.act

    def journaled(self) -> list[bool]:
        return [one.is_dry for _unix_s, one in self.desk.ledger.watched]


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    made = []

    def make(rules: WatchedRules, **policy: object) -> Site:
        made.append(Site(tmp_path, rules, **policy))
        return made[-1]

    yield make
    for site in made:
        site.journal.close()


def test_by_default_people_are_told_and_nothing_is_done(make_site: MakeSite) -> None:
    site = make_site(WatchedRules())

    site.hang()

    assert (site.scheduler.asked, site.journaled(), site.act) == ([], [], "")


def test_action_is_dry_until_it_is_switched_on(make_site: MakeSite) -> None:
    site = make_site(WatchedRules(action=WatchedAction.REQUEUE))

    site.hang()

    assert (site.scheduler.asked, site.journaled()) == ([], [True])
    assert site.act == "dry run: would requeue job 41 without n2"
    assert site.cluster.jobs.notices()[0].todo.startswith("dry run: would requeue job 41")

    site.desk.take_policy(ClusterPolicy(watched=REQUEUE))
    site.cluster.run(10)

    assert site.journaled() == [True, False]
    assert len(site.scheduler.asked) == 1


def test_hung_job_is_requeued_once_without_its_bad_node(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)

    site.hang(900.0)

    (request,) = site.scheduler.asked
    assert (request.action, request.slurm_job, request.nodes) == (
        SchedulerAction.REQUEUE,
        "41",
        ("n2",),
    )
    assert "it waits for rank 2 on n2" in request.reason
    assert (request.owner, request.seen_on) == ("ann", ("n1", "n2")), "for Slurm to confirm"
    assert site.journaled() == [False]


@pytest.mark.parametrize("action", [WatchedAction.REQUEUE, WatchedAction.DRAIN])
def test_node_of_a_process_that_a_signal_has_stopped_is_not_blamed(
    make_site: MakeSite, action: WatchedAction
) -> None:
    site = make_site(WatchedRules(action=action, dry_run=False))

    site.hang(state="T")

    asked = [(one.action, one.nodes) for one in site.scheduler.asked]
    assert asked == ([(SchedulerAction.REQUEUE, ())] if action is WatchedAction.REQUEUE else [])


def test_controller_that_starts_anew_asks_again_under_the_same_key(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)
    site.hang()
    site.journal.close()

    site.start()
    site.cluster.run(700)

    first, again = site.scheduler.asked
    assert first.key == again.key
    assert site.journaled() == [False]


def test_request_that_could_not_be_made_is_made_at_the_next_look(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)
    site.scheduler.fails = 2

    site.hang()

    assert len(site.scheduler.asked) == 1
    assert site.journaled() == [False]


def test_nothing_is_done_before_the_verdict_has_stood_for_a_while(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)

    site.hang(330.0)

    assert site.scheduler.asked == []
    assert "(confirm_s)" in site.act


def test_job_that_another_restarter_tends_is_left_to_it(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)
    site.cluster.restarter = "nvrx"

    site.hang()

    assert site.scheduler.asked == []
    assert site.act == "rankmend does not requeue job 41 without n2: nvrx restarts its ranks"


def test_hang_that_blames_no_rank_is_only_told_of(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)
    site.cluster.run(60)
    site.cluster.pause()

    site.cluster.run(2400)

    assert site.scheduler.asked == []
    assert site.act == "rankmend does not requeue job 41: no rank is blamed"


def test_no_node_is_drained_for_a_rank_that_runs_and_is_behind(make_site: MakeSite) -> None:
    site = make_site(WatchedRules(action=WatchedAction.DRAIN, dry_run=False))
    site.cluster.behind = {1: 3}
    site.cluster.run(60)

    site.cluster.pause()
    site.cluster.run(2400)

    assert site.cluster.job.verdict.ranks == (1,)
    assert site.scheduler.asked == []
    assert "the program may be at fault" in site.act


def test_no_node_is_drained_for_what_a_jobs_own_stacks_say(make_site: MakeSite) -> None:
    site = make_site(WatchedRules(action=WatchedAction.DRAIN, dry_run=False))
    for rank in range(4):
        frame = LOAD if rank == 2 else REDUCE
        site.cluster.evidence[rank] = ReportedEvidence(frames=(frame,))

    stand_still(site.cluster)
    site.cluster.run(600)

    assert site.cluster.job.verdict.ranks == (2,)
    assert site.scheduler.asked == []
    assert "the program may be at fault" in site.act


def test_pause_holds_it_and_its_end_lets_it_go(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)
    site.desk.pause("cluster", "ann", "")

    site.hang()
    held = list(site.scheduler.asked)
    site.desk.resume("cluster", "ann", "")
    site.cluster.run(10)

    assert held == []
    assert len(site.scheduler.asked) == 1


@pytest.mark.safety
def test_budget_of_the_hour_holds_it(make_site: MakeSite) -> None:
    site = make_site(REQUEUE)
    for number in range(2):
        site.desk.note_watched(
            WatchedAsked(f"other-{number}", JOB, "other", "7", "requeue", (), "hung", is_dry=False)
        )

    site.hang()

    assert site.scheduler.asked == []
    assert "2 are allowed" in site.act


def note_act(site: Site, user: str) -> None:
    """Have the scheduler been asked once within the hour about a job of this user."""
    site.desk.note_watched(
        WatchedAsked("other", OTHER, "other", "7", "requeue", (), "hung", is_dry=False, user=user)
    )


def show_job_of(site: Site, user: str) -> None:
    """Have a node's agent report a job of another user, too."""
    (reported,) = site.cluster.told("n1").jobs
    job = msgspec.structs.replace(reported, job_id=OTHER, user=user)
    site.cluster.jobs.take(WatchedReport(node="n9", jobs=(job,)))


@pytest.mark.safety
@pytest.mark.parametrize("is_one_party", [False, True])
def test_forged_hangs_of_one_user_leave_others_a_share_of_the_hour(
    make_site: MakeSite, *, is_one_party: bool
) -> None:
    site = make_site(REQUEUE, single_tenant=is_one_party)
    note_act(site, "ann")
    show_job_of(site, "bob")

    site.hang()

    assert len(site.scheduler.asked) == is_one_party
    assert ("of ann within the last hour" in site.act) != is_one_party


@pytest.mark.safety
@pytest.mark.parametrize(("acted_for", "other"), [("bob", "bob"), ("ann", "ann")])
def test_user_who_has_used_none_or_is_alone_may_use_what_is_left_of_the_hour(
    make_site: MakeSite, acted_for: str, other: str
) -> None:
    site = make_site(REQUEUE)
    note_act(site, acted_for)
    show_job_of(site, other)

    site.hang()

    assert len(site.scheduler.asked) == 1


def test_dry_run_of_the_cluster_or_of_the_job_holds_it(make_site: MakeSite) -> None:
    site = make_site(REQUEUE, overrides=(JobOverride("llama", is_dry=True),))

    site.hang()

    assert (site.scheduler.asked, site.journaled()) == ([], [True])


def test_policy_is_read_and_refused_as_the_others_are() -> None:
    read = parse_policy({"watched": {"action": "drain", "dry_run": False, "confirm_s": 30.0}})

    assert read.cluster.watched == WatchedRules(WatchedAction.DRAIN, False, 30.0)
    with pytest.raises(Exception, match="acts_per_hour_max is 101"):
        parse_policy({"watched": {"acts_per_hour_max": 101}})
    with pytest.raises(Exception, match="kill"):
        parse_policy({"watched": {"action": "kill"}})


@pytest.mark.safety
@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"observe": True}, "[cluster] observe"),
        ({"overrides": (JobOverride("llama", observe=True),)}, "[[jobs]] llama"),
        ({"nodes": (NodeRules("n2", observe=True),)}, "[[nodes]] n2"),
    ],
)
def test_observe_mode_of_the_cluster_the_job_or_the_node_only_journals_it(
    make_site: MakeSite, policy: dict[str, object], why: str
) -> None:
    site = make_site(REQUEUE, **policy)

    site.hang()

    assert (site.scheduler.asked, site.journaled()) == ([], [True])
    assert site.act == f"observe mode ({why}): would requeue job 41 without n2"
