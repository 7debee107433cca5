"""Real jobs in which ranks become slow while they train: named, explained, told, and well again.

The tests go through one story of one job in the order of this file, each to the part that it asks
for; a test that runs alone has only that part played. A second job has a processor of its own for
each of its two ranks.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from recovery.journal.observation_records import SlowEnded, SlowExplained, SlowFound
from recovery.local.report.overview import slow_ranks, view_job
from tests.support.agent import AgentProcess, running_agent
from tests.support.eventually import eventually, fault_lasts
from tests.support.faults.processor import prefer, taken_core
from tests.system.faults import slowness
from tests.system.faults.harness import Job

pytestmark = pytest.mark.process
CPU_GROUP = Path("/sys/fs/cgroup/cpu")  # version 1
QUIET_S = 9.0  # as long as four looks, after which a rank that is slow in each of them is named
SLOW = {2: "communication", 3: "io"}  # of six ranks, at the same time


@dataclass(frozen=True)
class Bed:
    """A job of six ranks that its node's agent knows of."""

    job: Job
    agent: AgentProcess
    port: int

    def page(self) -> str:
        return self.agent.get(self.port, "/metrics")[1]


@dataclass(frozen=True)
class Told:
    """What the agent showed while ranks were slow."""

    page: str
    findings: list[dict[str, object]]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("slow")
    socket = folder / "agent.sock"
    with running_agent("--socket", str(socket), "--interval=1") as (agent, port):
        url = f"http://127.0.0.1:{port}/metrics"
        with slowness.running(
            folder / "uneven", "uneven.py", 6, agent_socket=str(socket), agent_url=url
        ) as job:
            job.pids_at_step(60)  # a past of a few seconds, with which ranks are compared
            yield Bed(job, agent, port)


@pytest.fixture(scope="module")
def named_while_all_were_slow(bed: Bed) -> list[SlowFound]:
    slowness.slow_down(bed.job, "all", "compute", 0.05)
    fault_lasts(QUIET_S)
    named = bed.job.records(SlowFound)
    slowness.make_well(bed.job)
    return named


@pytest.fixture(scope="module")
def found(bed: Bed) -> dict[int, SlowFound]:
    """Make ranks slow, and return by rank how each is named."""
    for rank, section in SLOW.items():
        slowness.slow_down(bed.job, rank, section)
    return {rank: slowness.found(bed.job, rank, section) for rank, section in SLOW.items()}


@pytest.fixture(scope="module")
def explained(bed: Bed, found: dict[int, SlowFound]) -> dict[int, SlowExplained]:
    return {rank: slowness.explained(bed.job, rank) for rank in found}


@pytest.fixture(scope="module")
def told(bed: Bed, explained: dict[int, SlowExplained]) -> Told:
    def page() -> str | None:
        page = bed.page()
        is_told = page.count("rankmend_rank_slow_ratio{") >= len(SLOW) and (
            page.count('check="rank_slow",component="rank"') >= len(SLOW)
        )
        return page if is_told else None

    shown = eventually(page, "the agent shows the slow ranks")
    findings = json.loads(bed.agent.get(bed.port, "/api/v1/findings")[1])["findings"]
    return Told(shown, findings)


@pytest.fixture(scope="module")
def well_again(bed: Bed, told: Told) -> str:
    """Make nobody slow any more, and return the agent's page once it shows nobody."""
    slowness.make_well(bed.job)
    eventually(lambda: not slow_ranks(bed.job.entries), "nobody is slow")

    def page() -> str | None:
        page = bed.page()
        return None if "rankmend_rank_slow_ratio{" in page else page

    return eventually(page, "the agent shows nobody any more")


def test_healthy_job_and_one_in_which_everyone_becomes_slow_name_nobody(
    named_while_all_were_slow: list[SlowFound],
) -> None:
    assert named_while_all_were_slow == []


@pytest.mark.parametrize(
    ("rank", "section"),
    [pytest.param(2, SLOW[2], marks=pytest.mark.real_fault("rank slow")), (3, SLOW[3])],
)
def test_each_of_several_slow_ranks_is_named_with_the_section(
    bed: Bed, found: dict[int, SlowFound], rank: int, section: str
) -> None:
    named = found[rank]
    shown = view_job(bed.job.state_folder, time.monotonic).slow

    assert (named.rank, named.section) == (rank, section)
    assert named.factor > 1.1
    assert named.step_factor > 1.05
    eventually(lambda: named.finding.summary in bed.job.output, "it is told on stderr")
    assert any(line.startswith(named.finding.summary) for line in shown), "told by status"


def test_hardware_that_shows_nothing_is_said_to_show_nothing(
    bed: Bed, explained: dict[int, SlowExplained]
) -> None:
    why = explained[3]

    assert why.reason.startswith("hardware shows nothing") or why.cause, why
    assert any("checked: " in one.text for one in why.evidence) or why.cause, why
    eventually(lambda: why.reason in bed.job.output, "it is told on stderr")
    assert not any("no node agent answers" in one.text for one in why.evidence)


def test_agent_shows_slow_ranks_as_metrics_findings_and_alarms(
    bed: Bed, explained: dict[int, SlowExplained], told: Told
) -> None:
    job_id = bed.job.job_id

    for rank, section in SLOW.items():
        cause = explained[rank].cause or "unknown"
        labels = f'cause="{cause}",job_id="{job_id}",rank="{rank}",section="{section}"'
        assert f"rankmend_rank_slow_ratio{{{labels}}}" in told.page
    slow = [one for one in told.findings if one["check"] == "rank_slow"]
    ranks = {(hit["job_id"], hit["rank"]) for one in slow for hit in one["ranks"]}  # type: ignore[attr-defined]
    assert ranks == {(job_id, rank) for rank in SLOW}
    assert 'rankmend_finding_raised_total{check="rank_slow",severity="warning"} 2' in told.page


def test_ranks_that_are_well_again_are_called_slow_no_more(bed: Bed, well_again: str) -> None:
    ended = {one.rank for one in bed.job.records(SlowEnded)}

    assert "rankmend_rank_slow_ratio{" not in well_again
    assert set(SLOW) <= ended
    assert {one.rank for one in bed.job.records(SlowFound)} == set(SLOW), "and nobody else"
    assert bed.job.incidents == [], "training goes on"


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of two ranks, each on a core of its own, that work for part of the time."""
    with slowness.running(
        tmp_path_factory.mktemp("busy") / "job", "uneven.py", 2, "--work-s=0.02"
    ) as job:
        cores = sorted(os.sched_getaffinity(0))
        for rank, pid in job.pids_at_step(2).items():
            os.sched_setaffinity(pid, {cores[-rank]})
            if os.geteuid() == 0:
                prefer(pid)  # a rank that other tests really slow down would be named for that
        job.pids_at_step(50)
        yield job


@pytest.mark.skipif(
    not os.access(CPU_GROUP / "cgroup.procs", os.W_OK),
    reason="needs root and control groups of version 1 for a quota of processor time",
)
def test_rank_throttled_by_its_control_group_is_named_with_the_quota_as_cause(busy: Job) -> None:
    group = CPU_GROUP / f"rankmend-slow-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    home = _own_cpu_group()
    pid = busy.pids_at_step(10)[0]
    past = slowness.past(busy, 0)
    try:
        (group / "cpu.cfs_quota_us").write_text("10000")  # of 100 ms: a step needs 20
        (group / "cpu.shares").write_text("262144")  # its priority counts only within the group
        (group / "cgroup.procs").write_text(str(pid))
        slowness.found(busy, 0, "compute", past)
        why = slowness.explained(busy, 0, past)
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        group.rmdir()

    assert why.cause == "cpu_throttled"
    assert f"CPU quota of /{group.name}" in why.evidence[0].text
    busy.expect_output(why.reason)
    assert why.evidence[0].text in slowness.why(busy)


def _own_cpu_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            found = CPU_GROUP / path.lstrip("/")
            return found if found.is_dir() else CPU_GROUP
    return CPU_GROUP


@pytest.mark.skipif(
    shutil.which("stress-ng") is None or (os.cpu_count() or 1) < 2 or os.geteuid() != 0,
    reason="needs stress-ng, two cores, and root for a real-time task",
)
def test_rank_whose_core_is_taken_by_others_is_named_with_that_cause(busy: Job) -> None:
    core = max(os.sched_getaffinity(0))  # on which rank 1 is
    busy.pids_at_step(10)
    past = slowness.past(busy, 1)
    with taken_core(core, share=0.8, limit_s=120):
        slowness.found(busy, 1, "compute", past)
        why = slowness.explained(busy, 1, past)

    assert why.cause == "cpu_taken"
    assert "ready to run and without a CPU" in why.evidence[0].text
