"""The deciding thread: jobs that fail apart from each other, queues with a bound, state on disk."""

import dataclasses
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, JobHeldError, JournalError
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.journal.job_records import JobEnded, JobOutcome, OutcomeKind
from recovery.journal.limits import Policy
from recovery.journal.postgres.database import CommitUnknownError, LeaseLostError
from recovery.journal.store import Journal
from recovery.service.http.request_errors import CallConflictError, EndedError, FullError
from recovery.service.jobs import stored_jobs, worker_inbox
from recovery.service.jobs.job_registry import JobRegistry, newcomers_room
from recovery.service.jobs.listening_clock import Hearing
from recovery.service.jobs.newest_orders import NewestOrders
from recovery.service.jobs.served_job import OVERRIDE_FACTOR_MAX, Core, make_core, policy_of
from recovery.service.jobs.stored_jobs import StateFolder
from recovery.service.jobs.worker import Worker
from recovery.service.metrics.measures import Measures
from recovery.service.roles import TooManyError
from recovery.service.server import parts_of_service
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Speaker, join_of

pytestmark = pytest.mark.process


class FaultyCore:
    """The real core, which raises for the job named ``broken`` as often as it is told."""

    def __init__(self) -> None:
        self.failures = 0
        self.made = 0
        self.error: Exception = RuntimeError("a fault of ours")

    def __call__(self, journal: Any, orders: Any, settings: Any, *others: Any) -> Core:
        core = make_core(journal, orders, settings, *others)
        self.made += 1
        if settings.name != "broken":
            return core
        tick = core.tick

        def fail() -> None:
            if self.failures:
                self.failures -= 1
                raise self.error
            tick()

        core.tick = fail  # type: ignore[method-assign]
        return core


class Bench:
    """A worker with its parts, without any HTTP."""

    def __init__(self, path: Path, **options: Any) -> None:
        clock = SystemClock()
        self.folder = StateFolder(path)
        self.journal = Journal(self.folder.cluster / "journal.db", clock, "boot")
        desk = ClusterController(self.journal, ClusterPolicy(), clock, lambda job_id: job_id)
        self.board = NewestOrders()
        self.measures = Measures()
        hearing = Hearing(clock)
        jobs = JobRegistry(
            self.folder,
            self.board,
            self.measures,
            clock,
            hearing,
            lambda _name: Policy(),
            lambda join: parts_of_service(desk, join),
            **options,
        )
        self.worker = Worker(jobs, desk, self.board, self.measures, clock, hearing)

    def close(self) -> None:
        self.worker.stop(10)
        self.journal.close()
        self.folder.close()

    def join(self, **changes: Any) -> str:
        join = join_of(**({"node": "n1"} | changes))
        return self.ask(lambda: self.worker.jobs.join("alice", join)[0].job_id)

    def ask(self, act: Callable[[], Any]) -> Any:
        asked: Future[Any] = self.worker.call(act)
        return asked.result(DEADLINE_S)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def start(name: str = "state", **options: Any) -> Bench:
        bench = Bench(tmp_path / name, **options)
        made.append(bench)
        bench.worker.start()
        eventually(lambda: bench.worker.is_taken_up, "jobs taken up")
        return bench

    yield start
    for bench in made:
        if bench.worker.is_alive:
            bench.close()


@pytest.mark.safety
def test_what_a_journal_held_when_it_was_opened_does_not_stay_in_memory(
    make: Callable[..., Bench],
) -> None:
    first = make()
    job_id = first.join()
    first.close()

    bench = make()

    job = bench.worker.jobs.running[job_id]
    assert job.controller is not None
    assert job.controller.ledger.epoch == 2
    assert job._journal is not None
    assert job._journal.opened == ()


def test_job_whose_core_raises_is_tried_again_and_takes_no_other_down(
    make: Callable[..., Bench],
) -> None:
    core = FaultyCore()
    bench = make(make_core=core)
    sound = bench.join(key="sound", name="sound")
    broken = bench.join(key="broken", name="broken")
    core.failures = 1

    problem = eventually(lambda: bench.worker.jobs.running[broken].problem, "the failure")
    eventually(lambda: bench.worker.jobs.running[broken].controller is not None, "another try")

    assert problem == "RuntimeError: a fault of ours"
    assert bench.worker.jobs.running[sound].failures == 0
    assert bench.worker.jobs.running[sound].controller is not None
    assert core.made == 3
    assert b"rankmend_controller_job_failures_total 1.0" in bench.measures.render()
    eventually(lambda: bench.worker.jobs.running[broken].problem is None, "nothing wrong any more")


@pytest.mark.parametrize(
    ("error", "tracebacks"),
    [(RuntimeError("a fault of ours"), 1), (LeaseLostError("the lease is over"), 0), (CommitUnknownError("no answer"), 0)],
    ids=["defect", "lease", "commit"],
)  # fmt: skip
def test_only_a_defect_of_ours_is_logged_with_its_traceback(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture, error: Exception, tracebacks: int
) -> None:
    core = FaultyCore()
    bench = make(make_core=core)
    broken = bench.join(key="broken", name="broken")
    core.error, core.failures = error, 1

    eventually(lambda: bench.worker.jobs.running[broken].failures == 1, "the failure")

    said = [record for record in caplog.records if record.levelname == "ERROR"]
    eventually(lambda: "cannot manage a job" in caplog.text, "it is logged")
    assert sum(record.exc_info is not None for record in said) == tracebacks


def test_job_that_fails_again_and_again_is_tried_less_and_less(make: Callable[..., Bench]) -> None:
    core = FaultyCore()
    bench = make(make_core=core)
    broken = bench.join(key="broken", name="broken")
    core.failures = 2
    eventually(lambda: bench.worker.jobs.running[broken].failures == 2, "the second failure")

    job = bench.worker.jobs.running[broken]

    assert job.retry_at_s - job.ticked_at_s > 1.5  # the second pause is 2 s


def test_full_queue_of_reports_is_said_and_bounded(make: Callable[..., Bench]) -> None:
    bench = make()
    job_id = bench.join()
    report = Speaker(None, "n1", job_id).report  # type: ignore[arg-type]
    assert report is not None
    bench.close()  # a thread that takes nothing out

    with pytest.raises(FullError, match="bytes"):
        bench.worker.inbox.put_report(report, worker_inbox.REPORT_BYTES_MAX + 1)
    alone_max = worker_inbox.REPORTS_MAX * 7 // 8
    for _ in range(alone_max):
        bench.worker.inbox.put_report(report, 1)
    bench.worker.hearing.beat()
    with pytest.raises(TooManyError, match=str(alone_max)):
        bench.worker.inbox.put_report(report, 1)

    hearing = bench.worker.hearing.of("")
    refused_s = hearing.listened_s()
    bench.worker.hearing.beat()
    assert hearing.listened_s() == refused_s  # nobody is silent who is turned away


class ListeningCore:
    """The real core, with the times at which it heard reports and ticked."""

    def __init__(self) -> None:
        self.reported_at_s: list[float] = []
        self.ticked: list[tuple[int, float]] = []  # reports heard before, and when

    def __call__(self, journal: Any, orders: Any, settings: Any, *others: Any) -> Core:
        core = make_core(journal, orders, settings, *others)
        hearing, tick = others[0].hearing, core.tick

        def note_tick() -> None:
            self.ticked.append((len(self.reported_at_s), hearing.now_s()))
            tick()

        core.handle_report = lambda _report: self.reported_at_s.append(hearing.now_s())  # type: ignore[method-assign]
        core.tick = note_tick  # type: ignore[method-assign]
        return core


def test_reports_that_wait_are_dated_by_when_they_came_and_no_tick_looks_beyond_them(
    make: Callable[..., Bench],
) -> None:
    core = ListeningCore()
    bench = make(make_core=core)
    report = Speaker(None, "n1", bench.join()).report  # type: ignore[arg-type]
    assert report is not None
    reports = worker_inbox.BATCH_MAX + 500
    may_go_on = threading.Event()
    stuck = bench.worker.call(lambda: may_go_on.wait(DEADLINE_S))

    began_s = bench.worker.hearing.listened_s()
    for _ in range(reports):
        bench.worker.inbox.put_report(report, 1, "alice")
    came_s = bench.worker.hearing.listened_s()
    eventually(lambda: bench.worker.hearing.listened_s() > came_s + 0.3, "time in which they wait")
    late_s = bench.worker.inbox.lateness_s
    may_go_on.set()
    eventually(lambda: core.ticked and core.ticked[-1][0] == reports, "all heard")

    assert stuck.result(DEADLINE_S)
    assert late_s > 0.3
    assert began_s <= min(core.reported_at_s)
    assert max(core.reported_at_s) <= came_s
    assert all(at_s <= came_s for heard, at_s in core.ticked if 0 < heard < reports)
    assert core.ticked[-1][1] > came_s


def test_question_after_the_stop_is_refused_at_once(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.close()

    with pytest.raises(FullError):
        bench.worker.call(lambda: None)


def test_question_that_raises_is_the_askers_affair(make: Callable[..., Bench]) -> None:
    bench = make()

    with pytest.raises(ZeroDivisionError):
        bench.ask(lambda: 1 // 0)
    assert bench.ask(lambda: "still here") == "still here"


def test_jobs_beyond_the_bound_are_refused(make: Callable[..., Bench]) -> None:
    bench = make(jobs_max=1)
    bench.join(key="first")

    with pytest.raises(FullError, match=r"jobs\.at_once_max is 1"):
        bench.ask(lambda: bench.worker.jobs.join("bob", join_of("n1", key="second")))


@pytest.mark.safety
def test_jobs_are_taken_up_again_with_owner_secret_and_settings(make: Callable[..., Bench]) -> None:
    first = make()
    job_id = first.join(key="kept", slots=4)
    before = first.worker.jobs.running[job_id]
    first.close()

    after = make().worker.jobs.running[job_id]

    assert after.stored == before.stored
    assert dataclasses.replace(after.settings, controller_id="") == dataclasses.replace(
        before.settings, controller_id=""
    )


def test_job_that_had_ended_is_not_begun_again_by_a_start(make: Callable[..., Bench]) -> None:
    first = make()
    job_id = first.join()
    path = first.worker.jobs.running[job_id].hold.path
    first.close()
    outcome = JobOutcome(OutcomeKind.STOPPED, 143, "told so")
    journal = Journal(path / "journal.db", SystemClock(), "boot")
    journal.append(JobEnded(outcome, True))  # and the controller died before it kept the end
    journal.close()

    second = make()
    eventually(lambda: second.worker.jobs.known[job_id].outcome is not None, "the end")

    assert second.worker.jobs.known[job_id].outcome == outcome
    assert stored_jobs.read_end(path) is not None
    assert second.worker.jobs.running == {}


def test_ended_jobs_leave_the_disk_in_the_end(make: Callable[..., Bench]) -> None:
    bench = make(ended_max=1)
    jobs = [bench.worker.jobs.running[bench.join(key=key, name=key)] for key in ("one", "two")]

    for job in jobs:
        bench.ask(lambda job=job: bench.worker.jobs.end(job, _stopped()))

    assert [job.hold.path.exists() for job in jobs] == [False, True]


def _stopped() -> JobOutcome:
    return JobOutcome(OutcomeKind.STOPPED, 143, "enough")


def test_state_folder_belongs_to_one_controller(make: Callable[..., Bench], tmp_path: Path) -> None:
    make()

    with pytest.raises(JobHeldError, match="another controller runs"):
        StateFolder(tmp_path / "state")


def test_state_on_a_network_file_system_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 1 0:30 / {tmp_path} rw - nfs4 server:/x rw\n")

    with pytest.raises(JournalError, match="nfs4"):
        StateFolder(tmp_path / "state", mounts)


def test_damaged_folder_is_said_and_the_others_are_taken_up(
    make: Callable[..., Bench],
) -> None:
    first = make()
    good, bad = first.join(key="good", name="good"), first.join(key="bad", name="bad")
    path = first.worker.jobs.running[bad].hold.path
    first.close()
    (path / "service.json").write_bytes(b"{")

    second = make()

    assert list(second.worker.jobs.running) == [good]
    assert str(path) in second.worker.jobs.problems[0]


@pytest.mark.safety
def test_job_with_a_damaged_journal_is_shown_with_its_problem(make: Callable[..., Bench]) -> None:
    first = make()
    job_id = first.join()
    path = first.worker.jobs.running[job_id].hold.path
    first.close()
    (path / "journal.db").write_bytes(b"no database at all" * 100)

    second = make()

    assert "journal.db" in str(second.worker.jobs.running[job_id].problem)
    with pytest.raises(FullError, match="cannot manage job"):
        second.ask(lambda: second.worker.dry_run(job_id, None))


@pytest.mark.safety
def test_override_of_an_owner_is_bounded_by_the_controllers_own_limit() -> None:
    base = Policy()
    most = OVERRIDE_FACTOR_MAX * base.restarts_max

    assert policy_of(join_of("n1", policy={"restarts_max": most}), base).restarts_max == most
    assert policy_of(join_of("n1", policy={"join_wait_s": 0.5}), base).join_wait_s == 0.5
    for wrong in ({"restarts_max": most + 1}, {"join_wait_s": -1.0}, {"join_wait_s": float("nan")}):
        with pytest.raises(ConfigError):
            policy_of(join_of("n1", policy=wrong), base)


def test_launcher_of_an_ended_run_does_not_begin_the_job_again(make: Callable[..., Bench]) -> None:
    bench = make()
    job_id = bench.join(run="r1")
    job = bench.worker.jobs.running[job_id]
    bench.ask(lambda: bench.worker.jobs.end(job, _stopped()))

    for changes in ({"run": "r1", "launcher_id": "other"}, {"run": ""}):
        with pytest.raises(EndedError):
            bench.join(**changes)
    assert bench.join(run="r2", launcher_id="other") == job_id


def test_settings_of_a_job_that_never_began_and_that_nobody_waits_for_can_be_changed(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    job_id = bench.join()
    with pytest.raises(
        CallConflictError, match=r"at least 2 nodes.*has at least 1 node .*rankmend stop"
    ):
        bench.join(nodes_min=1)
    job = bench.worker.jobs.running[job_id]
    job.joined_at_s -= Policy().node_silent_s

    again = bench.join(nodes_min=1, launcher_id="other")

    assert again == job_id
    assert bench.worker.jobs.running[job_id].settings.nodes_min == 1
    assert bench.worker.jobs.running[job_id].stored.secret == job.stored.secret
    with pytest.raises(CallConflictError):
        bench.join(nodes_min=2)


def test_one_subject_takes_no_more_than_its_share_of_the_jobs(make: Callable[..., Bench]) -> None:
    bench = make(jobs_max=4)

    def join(owner: str, key: str) -> str:
        try:
            bench.ask(lambda: bench.worker.jobs.join(owner, join_of("n1", key=key)))
        except (FullError, TooManyError) as error:
            return str(error)
        return ""

    assert [join("mallory", f"m{number}") for number in range(3)] == [
        "",
        "",
        "mallory has 2 running jobs: its share of jobs.at_once_max (jobs.of_subject_percent)",
    ]
    assert [join("alice", f"a{number}") for number in range(2)] == [
        "",
        "3 jobs are running: the last 1 of jobs.at_once_max are for subjects without a job",
    ]
    assert join("bob", "b") == ""
    assert join("carol", "c") == "4 jobs are running; jobs.at_once_max is 4"


def test_many_subjects_together_leave_room_for_each_who_has_no_job(
    make: Callable[..., Bench],
) -> None:
    bench = make(jobs_max=16)

    def join(owner: str, key: str) -> bool:
        try:
            bench.ask(lambda: bench.worker.jobs.join(owner, join_of("n1", key=key)))
        except (FullError, TooManyError):
            return False
        return True

    begun = [join(f"mallory-{number % 5}", f"m{number}") for number in range(40)]
    newcomers = [join("alice", "a1"), join("alice", "a2"), join("bob", "b1")]

    assert sum(begun) == 14  # all but an eighth
    assert newcomers == [True, False, True]


def test_each_subject_with_a_token_has_room_for_its_first_job_however_many_others_agree(
    make: Callable[..., Bench],
) -> None:
    honest = [f"honest-{number}" for number in range(4)]
    colluders = [f"mallory-{number}" for number in range(4)]
    bench = make(jobs_max=16, launchers=lambda: frozenset((*honest, *colluders)))

    def join(owner: str, key: str) -> bool:
        try:
            bench.ask(lambda: bench.worker.jobs.join(owner, join_of("n1", key=key)))
        except (FullError, TooManyError):
            return False
        return True

    # One begins with all but what is kept for others; the others use their tokens only then.
    begun = [join(owner, f"{owner}-{number}") for owner in colluders for number in range(16)]
    newcomers = [join(owner, owner) for owner in honest]

    assert sum(begun) == 12
    assert newcomers == [True] * 4


@pytest.mark.parametrize(
    ("jobs_max", "waiting", "kept"),
    [(1, 5, 0), (2, 0, 1), (16, 0, 2), (16, 5, 5), (16, 9, 8), (500, 40, 62), (500, 9000, 250)],
)
def test_room_for_newcomers_is_one_job_each_from_an_eighth_to_half_of_all(
    jobs_max: int, waiting: int, kept: int
) -> None:
    assert newcomers_room(jobs_max, waiting) == kept


def test_site_that_gives_one_subject_all_keeps_no_room_for_others(
    make: Callable[..., Bench],
) -> None:
    bench = make(jobs_max=3, of_subject_percent=100.0)

    for number in range(3):
        bench.ask(
            lambda number=number: bench.worker.jobs.join("alice", join_of("n1", key=f"a{number}"))
        )

    assert len(bench.worker.jobs.running) == 3


def test_job_is_forgotten_however_often_launchers_join_that_never_report(
    make: Callable[..., Bench],
) -> None:
    bench = make(unreported_s=0.2)
    first = bench.join()

    def is_another() -> bool:
        return bench.join(launcher_id=uuid.uuid4().hex) != first

    eventually(is_another, "a job anew")


def test_job_of_which_no_launcher_reports_is_forgotten_and_a_late_one_joins_anew(
    make: Callable[..., Bench],
) -> None:
    bench = make(unreported_s=0.2)

    job_id = bench.join()

    folder = bench.folder.path / "jobs"
    eventually(lambda: job_id not in bench.worker.jobs.known, "the job forgotten")
    assert [path for path in folder.iterdir() if path.is_dir()] == []
    assert bench.join() != job_id
