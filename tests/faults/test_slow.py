"""Real jobs in which a rank becomes slow while it trains: named, and told from the other causes.

The jobs run for the whole module: a fault comes, is found, and goes again.
"""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.overview import slow_ranks, view_job
from recovery.records import SlowEnded, SlowFound
from tests.faults.harness import JOBS, Job, wait_for

pytestmark = pytest.mark.real
CPU_GROUP = Path("/sys/fs/cgroup/cpu")  # version 1
QUIET_S = 12.0  # as long as six looks: a rank that is slow is named after four or five


@contextmanager
def _running(folder: Path, script: str, world_size: int, *more: str) -> Iterator[Job]:
    faults = folder / "faults"
    faults.mkdir()
    is_own = script == "uneven.py"
    arguments = [f"--faults={faults}", *more] if is_own else [str(faults)]
    job = Job(folder, JOBS / script, arguments, world_size)
    job.start()
    try:
        job.pids_at_step(10)
        yield job
    finally:
        job.close()


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with _running(tmp_path_factory.mktemp("uneven"), "uneven.py", 4) as job:
        yield job


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of two ranks, each on a core of its own, that work for part of the time."""
    folder = tmp_path_factory.mktemp("busy")
    with _running(folder, "uneven.py", 2, "--work-s=0.02") as job:
        cores = sorted(os.sched_getaffinity(0))
        for rank, pid in job.pids_at_step(50).items():
            os.sched_setaffinity(pid, {cores[-rank]})
        yield job


def _pids(job: Job) -> dict[int, int]:
    return job.pids_at_step(10)


@contextmanager
def _fault(job: Job, rank: object, section: str, seconds: float) -> Iterator[None]:
    path = job.folder / "faults" / str(rank)
    path.write_text(f"{section} {seconds}")
    try:
        yield
    finally:
        path.unlink()


def _named(job: Job, after: int) -> SlowFound:
    """Return the first rank named since so many findings ago."""

    def look() -> SlowFound | None:
        assert job.process is not None
        assert job.process.poll() is None, job.output
        return next(iter(job.records(SlowFound)[after:]), None)

    return wait_for(look, "a slow rank is named")


def _count(job: Job) -> int:
    return len(job.records(SlowFound))


def test_healthy_job_and_one_in_which_everyone_becomes_slow_name_nobody(uneven: Job) -> None:
    until_s = time.monotonic() + QUIET_S
    wait_for(lambda: time.monotonic() >= until_s, "healthy steps")
    with _fault(uneven, "all", "compute", 0.05):
        until_s = time.monotonic() + QUIET_S
        wait_for(lambda: time.monotonic() >= until_s, "slow steps of everyone")

    assert uneven.records(SlowFound) == []


@pytest.mark.parametrize(
    ("rank", "section", "what"), [(2, "communication", "delayed send"), (3, "io", "slow loader")]
)
def test_rank_that_delays_the_others_is_named_with_the_section(
    uneven: Job, rank: int, section: str, what: str
) -> None:
    before = _count(uneven)
    with _fault(uneven, rank, section, 0.06):
        found = _named(uneven, before)

    assert (found.rank, found.section) == (rank, section), what
    assert found.factor > 1.2, "0.06 s more than the 0.04 s of a machine that is not too busy"
    assert found.finding.summary in uneven.output, "told on stderr"


@pytest.mark.skipif(
    not os.access(CPU_GROUP / "cgroup.procs", os.W_OK),
    reason="needs root and control groups of version 1 for a quota of processor time",
)
def test_rank_throttled_by_its_control_group_is_named_for_its_compute(busy: Job) -> None:
    group = CPU_GROUP / f"rankmend-slow-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    home = _own_cpu_group()
    pid = _pids(busy)[0]
    before = _count(busy)
    try:
        (group / "cpu.cfs_quota_us").write_text("10000")  # of 100 ms: a step needs 20
        (group / "cgroup.procs").write_text(str(pid))
        found = _named(busy, before)
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        group.rmdir()

    assert (found.rank, found.section) == (0, "compute")


def _own_cpu_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            found = CPU_GROUP / path.lstrip("/")
            return found if found.is_dir() else CPU_GROUP
    return CPU_GROUP


@pytest.mark.skipif(
    shutil.which("stress-ng") is None or (os.cpu_count() or 1) < 2,
    reason="needs stress-ng and two cores",
)
def test_rank_whose_core_is_taken_by_others_is_named_for_its_compute(busy: Job) -> None:
    core = max(os.sched_getaffinity(0))  # on which rank 1 is
    before = _count(busy)
    hogs = subprocess.Popen(
        ["stress-ng", "--cpu", "12", "--taskset", str(core), "--quiet", "--timeout", "90"],
        start_new_session=True,
    )
    # Where the kernel divides time between sessions first, twelve count as one: make it a heavy one.
    group = Path(f"/proc/{hogs.pid}/autogroup")
    if os.geteuid() == 0 and group.exists():
        group.write_text("-10")
    try:
        found = _named(busy, before)
    finally:
        hogs.terminate()
        hogs.wait(20)

    assert (found.rank, found.section) == (1, "compute")


def test_rank_that_is_well_again_is_called_slow_no_more_and_status_follows(uneven: Job) -> None:
    before = _count(uneven)
    with _fault(uneven, 3, "compute", 0.06):
        found = _named(uneven, before)
        assert found.rank == 3
        assert view_job(uneven.state_folder, time.monotonic()).slow == (found.finding.summary,) or (
            found.finding.summary in view_job(uneven.state_folder, time.monotonic()).slow
        )

    wait_for(lambda: not slow_ranks(uneven.entries), "nobody is slow")

    ended = uneven.records(SlowEnded)
    assert ended[-1].rank == 3
    assert uneven.incidents == [], "training goes on"


@pytest.mark.torch
def test_unchanged_ddp_script_has_its_slow_rank_named_by_section(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with _running(tmp_path, "uneven_ddp.py", 2) as job:
        with _fault(job, 1, "io", 0.06):
            loader = _named(job, 0)
        wait_for(lambda: not slow_ranks(job.entries), "nobody is slow")
        with _fault(job, 0, "compute", 0.06):
            compute = _named(job, 1)
        told = subprocess.run(
            [sys.executable, "-m", "rankmend.cli", "why", job.name, f"--state-dir={job.state}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert (loader.rank, loader.section) == (1, "io")
    assert (compute.rank, compute.section) == (0, "compute")
    assert compute.finding.summary in told
    assert "own work of a step" in told
