"""Real jobs in which ranks become slow while they train: named, explained, told, and well again.

One story for the whole module, in which a job of ours and an unchanged PyTorch script run beside
each other and faults come and go; the tests look at what came of it. A second job has a processor
of its own for each of its two ranks.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from recovery.journal.slow_rank_records import SlowEnded, SlowExplained, SlowFound
from recovery.report.overview import slow_ranks, view_job
from tests.support.agent import AgentProcess, running_agent
from tests.support.faults.processor import prefer, taken_core
from tests.system.faults.harness import JOBS, Job, wait_for

pytestmark = [pytest.mark.real, pytest.mark.long]
CPU_GROUP = Path("/sys/fs/cgroup/cpu")  # version 1
QUIET_S = 9.0  # as long as four looks, after which a rank that is slow in each of them is named
HAS_TORCH = importlib.util.find_spec("torch") is not None
SLOW = {2: "communication", 3: "io"}  # of six ranks, at the same time
SLOWER_S = 0.06


@contextmanager
def _running(folder: Path, script: str, world_size: int, *more: str, **flags: str) -> Iterator[Job]:
    faults = folder / "faults"
    faults.mkdir(parents=True)
    is_own = script == "uneven.py"
    arguments = [f"--faults={faults}", *more] if is_own else [str(faults)]
    job = Job(folder, JOBS / script, arguments, world_size)
    job.flags = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    job.start()
    try:
        yield job
    finally:
        job.close()


def _set(job: Job, rank: object, section: str, seconds: float = SLOWER_S) -> None:
    (job.folder / "faults" / str(rank)).write_text(f"{section} {seconds}")


def _clear(job: Job) -> None:
    for path in (job.folder / "faults").iterdir():
        path.unlink()


def _found(job: Job, rank: int, section: str) -> SlowFound:
    def look() -> SlowFound | None:
        assert job.process is not None
        assert job.process.poll() is None, job.output
        found = [
            one for one in job.records(SlowFound) if (one.rank, one.section) == (rank, section)
        ]
        return next(iter(found), None)

    return wait_for(look, f"rank {rank} is named for its {section}")


def _explained(job: Job, rank: int) -> SlowExplained:
    def look() -> SlowExplained | None:
        return next((one for one in job.records(SlowExplained) if one.rank == rank), None)

    return wait_for(look, f"why rank {rank} is slow is known")


def _why(job: Job) -> str:
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "why", job.name, f"--state-dir={job.state}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@dataclass
class Story:
    uneven: Job
    ddp: Job | None
    healthy: list[SlowFound] = field(default_factory=list)
    found: dict[int, SlowFound] = field(default_factory=dict)
    explained: dict[int, SlowExplained] = field(default_factory=dict)
    shown: tuple[str, ...] = ()  # by `rankmend status`, while they were slow
    page: str = ""  # of the agent, while they were slow
    findings: list[dict[str, object]] = field(default_factory=list)
    page_after: str = ""
    loader: SlowFound | None = None
    compute: SlowFound | None = None


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("slow")
    socket = folder / "agent.sock"
    with ExitStack() as stack:  # all of it has ended before the tests look
        agent, port = stack.enter_context(running_agent("--socket", str(socket), "--interval=1"))
        url = f"http://127.0.0.1:{port}/metrics"
        uneven = stack.enter_context(
            _running(folder / "uneven", "uneven.py", 6, agent_socket=str(socket), agent_url=url)
        )
        ddp = None
        if HAS_TORCH:
            ddp = stack.enter_context(_running(folder / "ddp", "uneven_ddp.py", 2))
        return _play(Story(uneven, ddp), agent, port)


def _play(story: Story, agent: AgentProcess, port: int) -> Story:
    uneven, ddp = story.uneven, story.ddp
    uneven.pids_at_step(10)
    if ddp is not None:
        ddp.pids_at_step(10)
        _set(ddp, 1, "io")
    _set(uneven, "all", "compute", 0.05)
    until_s = time.monotonic() + QUIET_S
    wait_for(lambda: time.monotonic() >= until_s, "slow steps of everyone")
    story.healthy = uneven.records(SlowFound)
    _clear(uneven)
    for rank, section in SLOW.items():
        _set(uneven, rank, section)
    if ddp is not None:
        story.loader = _found(ddp, 1, "io")
        _clear(ddp)
        _set(ddp, 0, "compute")
    story.found = {rank: _found(uneven, rank, section) for rank, section in SLOW.items()}
    story.explained = {rank: _explained(uneven, rank) for rank in SLOW}
    story.shown = view_job(uneven.state_folder, time.monotonic).slow

    def page() -> str:
        return agent.get(port, "/metrics")[1]

    def is_told() -> bool:
        story.page = page()
        return story.page.count("rankmend_rank_slow_ratio{") >= len(SLOW) and (
            story.page.count('check="rank_slow",component="rank"') >= len(SLOW)
        )

    wait_for(is_told, "the agent shows the slow ranks")
    story.findings = json.loads(agent.get(port, "/api/v1/findings")[1])["findings"]
    if ddp is not None:
        story.compute = _found(ddp, 0, "compute")
    _clear(uneven)
    wait_for(lambda: not slow_ranks(uneven.entries), "nobody is slow")
    wait_for(lambda: "rankmend_rank_slow_ratio{" not in page(), "the agent shows nobody any more")
    story.page_after = page()
    return story


def test_healthy_job_and_one_in_which_everyone_becomes_slow_name_nobody(story: Story) -> None:
    assert story.healthy == []


@pytest.mark.parametrize(
    ("rank", "section"),
    [pytest.param(2, SLOW[2], marks=pytest.mark.real_fault("rank slow")), (3, SLOW[3])],
)
def test_each_of_several_slow_ranks_is_named_with_the_section(
    story: Story, rank: int, section: str
) -> None:
    found = story.found[rank]

    assert (found.rank, found.section) == (rank, section)
    assert found.factor > 1.1
    assert found.step_factor > 1.05
    assert found.finding.summary in story.uneven.output, "told on stderr"
    assert any(line.startswith(found.finding.summary) for line in story.shown), "told by status"


def test_hardware_that_shows_nothing_is_said_to_show_nothing(story: Story) -> None:
    why = story.explained[3]

    assert why.reason.startswith("hardware shows nothing") or why.cause, why
    assert any("looked at" in one.text for one in why.evidence) or why.cause, why
    assert why.reason in story.uneven.output
    assert not any("no node agent answers" in one.text for one in why.evidence)


def test_agent_shows_slow_ranks_as_metrics_findings_and_alarms(story: Story) -> None:
    job_id = story.uneven.job_id

    for rank, section in SLOW.items():
        cause = story.explained[rank].cause or "unknown"
        labels = f'cause="{cause}",job_id="{job_id}",rank="{rank}",section="{section}"'
        assert f"rankmend_rank_slow_ratio{{{labels}}}" in story.page
    slow = [one for one in story.findings if one["check"] == "rank_slow"]
    ranks = {(hit["job_id"], hit["rank"]) for one in slow for hit in one["ranks"]}  # type: ignore[attr-defined]
    assert ranks == {(job_id, rank) for rank in SLOW}
    assert 'rankmend_finding_raised_total{check="rank_slow",severity="warning"} 2' in story.page
    assert "rankmend_rank_slow_ratio{" not in story.page_after


def test_ranks_that_are_well_again_are_called_slow_no_more(story: Story) -> None:
    ended = {one.rank for one in story.uneven.records(SlowEnded)}

    assert set(SLOW) <= ended
    assert {one.rank for one in story.uneven.records(SlowFound)} == set(SLOW), "and nobody else"
    assert story.uneven.incidents == [], "training goes on"


@pytest.mark.torch
@pytest.mark.skipif(not HAS_TORCH, reason="no PyTorch installed")
def test_unchanged_ddp_script_has_its_slow_rank_named_by_section(story: Story) -> None:
    assert story.ddp is not None
    assert story.loader is not None
    assert story.compute is not None
    told = _why(story.ddp)

    assert story.loader.finding.summary in told
    assert story.compute.finding.summary in told
    assert "own work of a step" in told


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of two ranks, each on a core of its own, that work for part of the time."""
    with _running(tmp_path_factory.mktemp("busy") / "job", "uneven.py", 2, "--work-s=0.02") as job:
        cores = sorted(os.sched_getaffinity(0))
        for rank, pid in job.pids_at_step(50).items():
            os.sched_setaffinity(pid, {cores[-rank]})
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
    try:
        (group / "cpu.cfs_quota_us").write_text("10000")  # of 100 ms: a step needs 20
        (group / "cgroup.procs").write_text(str(pid))
        _found(busy, 0, "compute")
        why = _explained(busy, 0)
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        group.rmdir()

    assert why.cause == "cpu_throttled"
    assert f"CPU quota of /{group.name}" in why.evidence[0].text
    assert why.reason in busy.output
    assert why.evidence[0].text in _why(busy)


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
    for pid in busy.pids_at_step(10).values():
        prefer(pid)  # what else runs here takes nothing from the ranks
    with taken_core(core, share=0.8, limit_s=120):
        _found(busy, 1, "compute")
        why = _explained(busy, 1)

    assert why.cause == "cpu_taken"
    assert "ready to run and without a CPU" in why.evidence[0].text
