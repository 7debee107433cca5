"""What the agent tells the controller of watched jobs, and that nothing waits for it."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent.collectors.ranks import ENDED_TOLD_S, RanksCollector
from agent.metrics import Metric
from agent.ranks.table import RankTable
from agent.watch.present_jobs import NO_JOBS, JobsOnNode, PresentJobsFile, SeenJob
from agent.watch.report import make_report, places_of, read_run_times, read_state
from agent.watch.sender import STALE_S, WatchSender
from rankmend.alerting import AlertError
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError
from rankmend.hook.watched_layout import STACKS_SUFFIX
from rankmend.progress import RankIdentity, create
from rankmend.rank_values import ToldHidden
from rankmend.watched_report import (
    PRESENT_MAX,
    PRESENT_S,
    PresentJob,
    ReportedEvidence,
    ReportedWork,
    ReportTaken,
    WatchedReport,
    decode,
    report_url,
)
from tests.support.clocks import FakeClock
from tests.support.eventually import eventually
from tests.support.simulation import SimClock
from tests.support.watched_jobs import Machine

pytestmark = pytest.mark.process

PROC = Path("/proc")
OURS = uuid.UUID("0c1d6a52-0000-4000-8000-000000000001")


class Site:
    """A node with a watched job, and a controller that takes reports or refuses them."""

    def __init__(self, root: Path) -> None:
        self.machine = Machine(root)
        self.machine.tell(restarter="nvrx")
        self.writer = self.machine.add(2)
        self.clock = SystemClock()
        self.late_s = 0.0
        self.ranks = RanksCollector(RankTable(), self, None, self.machine.ranks)
        self.reports: list[WatchedReport] = []
        self.is_away = False
        self.owners: list[tuple[uuid.UUID, int]] = []
        self.answer = b'{"text": "taken"}'
        self.sender = WatchSender(
            "n1", "http://controller/v1/watched", self, self.ask,
            lambda: self.ranks.newest_watched, lambda: (), PROC, owners=lambda: self.owners,
        )  # fmt: skip

    def now_s(self) -> float:
        return self.clock.now_s() + self.late_s

    def unix_s(self) -> float:
        return self.clock.unix_s()

    def ask(self, _url: str, body: bytes) -> bytes:
        if self.is_away:
            raise AlertError("connection refused")
        self.reports.append(decode(body))
        return self.answer

    def told_evidence(self) -> list[ReportedEvidence | None]:
        return [one.jobs[0].ranks[0].evidence for one in self.reports]

    def send(self) -> float:
        list(self.ranks.collect())
        return self.sender.send()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.machine.ranks.close()


def test_report_has_the_job_its_rank_and_what_its_process_does(site: Site) -> None:
    for step in range(5):
        site.writer.step(step)

    site.send()

    (report,) = site.reports
    (job,) = report.jobs
    (rank,) = job.ranks
    assert (report.node, job.name, job.slurm_job, job.restarter) == ("n1", "pretrain", "41", "nvrx")
    assert (rank.rank, rank.world_size, rank.pid) == (2, 4, os.getpid())
    assert (rank.steps_done, rank.step, rank.steps) == (5, 4, ())
    assert rank.process_state in ("R", "S")
    assert rank.running_s is not None
    assert rank.running_s > 0
    assert rank.step_age_s is not None


def test_steps_of_a_rank_with_sections_are_told_once_and_again_after_a_failure(site: Site) -> None:
    with site.writer.section("compute"):
        pass
    for step in range(3):
        site.writer.step(step)
    site.send()
    site.writer.step(3)
    site.is_away = True
    site.send()
    site.is_away = False
    site.writer.step(4)
    site.send()
    site.send()

    told = [[step.number for step in one.jobs[0].ranks[0].steps] for one in site.reports]
    assert told == [[1, 2, 3], [4, 5], []]


def test_work_and_what_was_hidden_are_told_as_the_rank_has_them(site: Site) -> None:
    site.writer.step(1)
    site.send()
    site.writer.work(flops=2e15, tokens=4096, dtype="fp8")
    site.writer.tell_hidden(3, 10**9, 2 * 10**9, 0, 0, 0)
    site.send()

    before, after = (one.jobs[0].ranks[0] for one in site.reports)
    assert (before.work, before.hidden) == (None, None)
    assert after.work == ReportedWork(2e15, 4096.0, 0.0, "fp8", "")
    assert after.hidden == ToldHidden(works=3, works_least_s=1.0, works_most_s=2.0)


def test_end_of_the_last_job_is_told_once(site: Site) -> None:
    site.writer.step(1)
    site.send()
    (site.machine.job / "rank-2.progress").unlink()
    for _time in range(3):
        site.send()

    assert [len(one.jobs) for one in site.reports] == [1, 0]


def test_last_step_of_a_rank_that_has_ended_is_told_for_a_while(site: Site) -> None:
    path = site.machine.job / "rank-2.progress"
    path.unlink()
    os.close(create(path, RankIdentity(site.machine.job_id, 2, 2, 2, 4)))
    script = (
        "import sys\nfrom rankmend.hook.writer import Writer\n"
        "writer = Writer(sys.argv[1])\nwriter.step(7)\nprint(flush=True)\ninput()\nwriter.step(8)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        site.send()
        process.communicate(b"\n")
    site.is_away = True
    site.send()
    site.is_away = False
    site.send()
    site.late_s = ENDED_TOLD_S
    site.send()

    before, after, last = site.reports
    (alive,), (ended,) = before.jobs[0].ranks, after.jobs[0].ended
    assert (alive.step, ended.step, ended.process_state) == (7, 8, "X")
    assert (ended.pid, ended.start_ticks) == (alive.pid, alive.start_ticks)
    assert (before.jobs[0].ended, after.jobs[0].ranks, last.jobs) == ((), (), ())


def test_node_without_watched_jobs_sends_nothing(site: Site) -> None:
    (site.machine.job / "rank-2.progress").unlink()

    site.send()

    assert site.reports == []


def test_samples_that_are_old_are_not_told(site: Site) -> None:
    site.writer.step(1)
    list(site.ranks.collect())
    site.late_s = STALE_S + 1

    site.sender.send()

    assert site.reports == []


def test_controller_that_is_away_is_asked_less_and_less_often(site: Site) -> None:
    site.writer.step(1)
    site.is_away = True

    waits_s = [site.send() for _time in range(6)]

    assert waits_s == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    site.is_away = False
    assert site.send() == 5.0


@pytest.mark.parametrize("answer", [b"", b"taken", b'{"evidence_of": 1}', b"\xff"])
def test_answer_that_can_not_be_read_is_none(site: Site, answer: bytes) -> None:
    site.writer.step(1)
    site.answer = answer

    assert [site.send(), site.send()] == [5.0, 5.0]


def test_evidence_is_sent_once_after_the_controller_has_asked(site: Site) -> None:
    (site.machine.job / "rank-2.progress.recorder").write_text('{"dump": "/nonexistent"}')
    # There is something to tell, whatever this process does at that moment: it answers no signal for stacks.
    os.mkfifo(site.machine.job / f"rank-2.progress{STACKS_SUFFIX}", 0o600)
    site.writer.step(1)
    site.answer = msgspec.json.encode(
        ReportTaken(evidence_of=(str(site.machine.job_id), "another"))
    )

    def sent() -> list[ReportedEvidence]:
        site.send()
        return [one for one in site.told_evidence() if one is not None]

    told = eventually(sent, "the evidence")
    site.send()

    assert site.told_evidence()[-1] is None
    assert len(told) == 1
    assert ["no Python stacks" in note for note in told[0].notes] == [True]


def test_rank_whose_file_is_broken_is_told_as_broken(site: Site) -> None:
    site.writer.step(1)
    site.send()
    path = site.machine.job / "rank-2.progress"
    data = bytearray(path.read_bytes())
    data[64:] = b"\xff" * (len(data) - 64)
    with path.open("r+b") as file:
        file.write(data)

    site.send()

    assert site.reports[-1].jobs[0].ranks[0].error


def test_devices_of_a_rank_are_those_of_the_agents_own_series() -> None:
    rank = (("job_id", "a"), ("rank", "3"))
    gpu = Metric("rankmend_rank_gpu_info", 1, (*rank, ("gpu", "0"), ("uuid", "GPU-7"), ("pci_bus_id", ""), ("pid", "1")))  # fmt: skip
    nic = Metric("rankmend_rank_nic_info", 1, (*rank, ("device", "mlx5_1"), ("port", "1")))

    places = places_of([gpu, nic, nic])

    assert places.gpus == {("a", 3): ("GPU-7",)}
    assert places.nics == {("a", 3): ("mlx5_1",)}


def test_process_that_is_gone_has_no_state_and_no_times() -> None:
    assert (read_state(PROC, 2**22 + 1), read_run_times(PROC, 2**22 + 1)) == ("", None)


def test_address_that_is_none_is_refused() -> None:
    assert report_url("https://controller.example:9477/") == (
        "https://controller.example:9477/v1/watched"
    )
    with pytest.raises(ConfigError, match="ftp://"):
        report_url("ftp://controller.example")


def test_report_of_no_jobs_is_small(site: Site) -> None:
    (site.machine.job / "rank-2.progress").unlink()
    list(site.ranks.collect())

    report = make_report("n1", site.ranks.newest_watched, 0.0, PROC, places_of(()), {})

    assert report == WatchedReport(node="n1")


def test_jobs_of_our_own_launchers_are_reported_with_their_user_on_a_change_and_once_a_minute(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.sender = WatchSender(
        "n1", "http://controller/v1/watched", site, site.ask,
        lambda: replace(site.ranks.newest_watched, jobs=(), samples=(), ended=()), lambda: (), PROC,
        owners=lambda: site.owners,
    )  # fmt: skip
    job = OURS

    site.send()
    assert site.reports == [], "there is nothing to be said"
    site.owners = [(job, 0)]
    site.send()
    site.send()
    site.late_s += PRESENT_S
    site.send()
    site.owners = []
    site.send()
    site.send()
    site.machine.ranks.close()

    told = [[(one.job_id, one.uid, one.user) for one in report.present] for report in site.reports]
    assert told == [[(str(job), 0, "root")], [(str(job), 0, "root")], []]
    assert [[one.job_id for one in report.left] for report in site.reports] == [[], [], [str(job)]]


def test_job_that_has_left_is_reported_with_its_age_also_by_an_agent_that_has_restarted(
    tmp_path: Path,
) -> None:
    clock = FakeClock(100.0)
    file = PresentJobsFile(tmp_path / "present-jobs.json", clock, "boot-1")
    before = JobsOnNode(file)
    before.look([(OURS, 1001)], 100.0)
    before.save()

    clock.time_s = 160.0
    restarted = JobsOnNode(file)
    first = restarted.look([], 160.0)
    restarted.save()
    clock.time_s = 650.0
    again = JobsOnNode(file).look([], 650.0)
    clock.time_s = 701.0
    late = JobsOnNode(file).look([], 701.0)
    back = restarted.look([(OURS, 1001)], 170.0)

    assert [(job.job_id, job.uid, job.age_s) for job in first.left] == [(str(OURS), 1001, 60.0)]
    assert [job.age_s for job in again.left] == [550.0], "a restart makes no word younger"
    assert late == NO_JOBS
    assert ([job.uid for job in back.present], back.left) == ([1001], ())


@pytest.mark.parametrize(
    ("away_s", "up_s", "age_s"),
    [(90.0, 30.0, 100.0), (5.0, 30.0, 40.0), (589.0, 30.0, 599.0), (591.0, 30.0, None), (-1.0, 30.0, None)],
    ids=["boot", "clock behind", "ten minutes", "too old", "clock stepped back"],
)  # fmt: skip
def test_node_that_has_booted_reports_the_jobs_that_were_on_it(
    tmp_path: Path, away_s: float, up_s: float, age_s: float | None
) -> None:
    """The job ran 10 s before the list was saved. The wall clock counts the time away, and the time since the boot is its least."""
    path, before, after = tmp_path / "present-jobs.json", SimClock(), SimClock()
    ran = SeenJob(PresentJob(job_id=str(OURS), uid=1001), before.time_s - 10.0)
    PresentJobsFile(path, before, "boot-1").save([ran])
    after.time_s = up_s
    after.jumped_s = before.unix_s() + away_s - after.unix_s()

    found = JobsOnNode(PresentJobsFile(path, after, "boot-2")).look([], up_s)

    assert [job.age_s for job in found.left] == ([] if age_s is None else [pytest.approx(age_s)])


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"\xff", b'{"boot_id": "boot-1", "seen": [7]}', b"[" * 70_000]
)
def test_list_of_jobs_that_is_broken_says_nothing(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "present-jobs.json"
    path.write_bytes(text)

    assert PresentJobsFile(path, FakeClock(), "boot-1").load() == ()


def test_list_of_jobs_of_an_older_agent_counts_for_its_boot(tmp_path: Path) -> None:
    path = tmp_path / "present-jobs.json"
    job = '{"job": {"job_id": "0c1d6a52-0000-4000-8000-000000000001", "uid": 7}, "seen_s": 990.0}'
    path.write_text(f'{{"boot_id": "boot-1", "seen": [{job}]}}')

    assert [one.job.uid for one in PresentJobsFile(path, FakeClock(), "boot-1").load()] == [7]
    assert PresentJobsFile(path, FakeClock(), "boot-2").load() == ()


def test_jobs_that_come_and_go_leave_a_bounded_list(tmp_path: Path) -> None:
    path = tmp_path / "present-jobs.json"
    clock = FakeClock(0.0)
    present = JobsOnNode(PresentJobsFile(path, clock, "boot-1"))
    for number in range(300):
        here = present.look([(uuid.UUID(int=number), 1001)], float(number))
    present.save()

    assert (len(here.present), len(here.left)) == (1, PRESENT_MAX)
    assert here.left[0].job_id == str(uuid.UUID(int=298))
    clock.time_s = 299.0
    assert len(PresentJobsFile(path, clock, "boot-1").load()) == 2 * PRESENT_MAX
