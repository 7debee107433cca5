"""Faults of a rank by `rankmend inject`: a job that allows drills is broken in each way, and goes on."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.journal.incident_records import IncidentOpened
from recovery.local.report.overview import read_entries, view_ranks
from tests.support.eventually import DEADLINE_S, eventually

SCRIPT = """
import sys, time
import rankmend
step = 0
while True:
    step += 1
    rankmend.step(step)
    time.sleep(0.01)
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.process


class DrilledJob:
    """One rank that makes a step every 10 ms, until it is broken."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.log = folder / "log"
        command = [sys.executable, "-m", "rankmend.cli", "run", "--standalone", *flags]
        options = [
            "--job=drilled",
            f"--state-dir={self.state}",
            "--max-restarts=50",
            "--no-hang-detection",
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options, str(script)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=ENVIRONMENT,
            )  # fmt: skip

    @property
    def job_folder(self) -> Path | None:
        return next(iter(self.state.glob("jobs/*/run.json")), None)

    def rank(self) -> int:
        """Return the pid of the rank that makes steps now."""

        def look() -> int | None:
            assert self.process.poll() is None, self.log.read_text()
            if self.job_folder is None:
                return None
            runtime = Path(json.loads(self.job_folder.read_text())["runtime"])
            found = [one.pid for one in view_ranks(runtime, time.monotonic) if one.step]
            return found[0] if found and Path(f"/proc/{found[0]}").exists() else None

        pid = eventually(look, "a step")
        assert isinstance(pid, int)
        return pid

    def inject(
        self, fault: str, *options: str, on: str = "rank:drilled/0"
    ) -> "subprocess.Popen[bytes]":
        self.said = self.folder / f"said-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "rankmend.cli", "inject", fault, f"--on={on}", "--json"]
        places = [f"--state-dir={self.state}", f"--undo-dir={self.folder / 'undo'}", "--for=300s"]
        with self.said.open("wb") as said:
            process = subprocess.Popen(
                [*command, *places, *options],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=ENVIRONMENT,
            )  # fmt: skip
        eventually(lambda: process.poll() is not None or "in force" in self.said.read_text(), fault)
        return process

    def is_clean(self) -> bool:
        return not list((self.folder / "undo").glob("*.json"))

    def errors(self) -> list[str]:
        assert self.job_folder is not None
        entries = read_entries(self.job_folder.parent)
        return [str(one.record) for one in entries if isinstance(one.record, IncidentOpened)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrilledJob]:
    made = DrilledJob(tmp_path_factory.mktemp("drilled"), "--drills")
    yield made
    made.process.terminate()
    made.process.wait(DEADLINE_S)


def end(process: "subprocess.Popen[bytes]", number: int) -> None:
    process.send_signal(number)
    process.wait(DEADLINE_S)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_stopped_rank_goes_on_when_its_injector_ends(job: DrilledJob, number: int) -> None:
    pid = job.rank()

    process = job.inject("stop")
    eventually(lambda: state_of(pid) == "T", "the rank stands still")
    end(process, number)

    eventually(lambda: state_of(pid) != "T" and job.is_clean(), "it goes on")


def test_fault_of_a_named_moment_is_made_then_and_lasts_from_then_on(job: DrilledJob) -> None:
    pid, at_unix_s = job.rank(), time.time() + 2.0

    process = job.inject("stop", f"--at={at_unix_s}", "--for=1")
    made_unix_s = time.time()
    eventually(lambda: process.poll() is not None, "its time is over")

    assert made_unix_s >= at_unix_s
    assert '"ended_by": "time"' in job.said.read_text()
    assert state_of(pid) != "T"


@pytest.mark.parametrize("fault", ["file-limit", "stop"])
def test_second_fault_of_the_same_thing_is_refused_and_the_first_is_undone_as_ever(
    job: DrilledJob, fault: str
) -> None:
    pid = job.rank()
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    first = job.inject(fault)

    second = job.inject(fault, on=f"pid:{pid}")
    said, code = job.said.read_text(), second.wait(DEADLINE_S)
    end(first, signal.SIGTERM)

    assert code == 1
    assert f"{fault} on rank:drilled/0 stands" in said
    eventually(lambda: state_of(pid) != "T" and job.is_clean(), "it is undone")
    assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == before


def test_moment_that_is_too_far_ahead_is_refused(job: DrilledJob) -> None:
    process = job.inject("stop", f"--at={time.time() + 3600}")

    assert process.poll() == 1
    assert "ahead: want at most 600 s" in job.said.read_text()


def test_limit_of_file_sizes_is_given_back_after_a_kill_9(job: DrilledJob) -> None:
    pid = job.rank()
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)

    process = job.inject("file-limit")
    during = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    end(process, signal.SIGKILL)

    eventually(job.is_clean, "it is undone")
    assert during[0] == 0
    assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_rank_returns_to_its_control_group_after_a_kill_9(job: DrilledJob) -> None:
    pid = job.rank()
    before = Path(f"/proc/{pid}/cgroup").read_text()

    process = job.inject("cpu-quota", "--share=0.5")
    if process.poll() is not None and "no control group here" in job.said.read_text():
        pytest.skip("no cpu controller here")
    during = Path(f"/proc/{pid}/cgroup").read_text()
    end(process, signal.SIGKILL)

    eventually(job.is_clean, "it is undone")
    made = re.search(r"rankmend-inject-[^\s/]+", during)
    assert made is not None
    assert Path(f"/proc/{pid}/cgroup").read_text() == before
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{made.group()}"))


def test_load_on_the_cores_ends_with_a_kill_9(job: DrilledJob) -> None:
    job.rank()

    process = job.inject("core-load", "--workers=1")
    loads = _loads(job.folder)
    end(process, signal.SIGKILL)

    assert loads
    eventually(lambda: job.is_clean() and not any(map(_runs, loads)), "the load ends")


def _loads(folder: Path) -> list[int]:
    """Return the busy processes of the only injection that stands."""
    injection = json.loads(next((folder / "undo").glob("*.json")).read_text())
    helper = next(one["pid"] for one in injection["undo"] if one["type"] == "end_helper")
    found = subprocess.run(["pgrep", "-P", str(helper)], capture_output=True, check=False)
    return [helper, *map(int, found.stdout.split())]


def _runs(pid: int) -> bool:
    try:
        return state_of(pid) not in "ZX"
    except OSError:
        return False


def test_leak_is_freed_when_its_injector_is_killed(job: DrilledJob) -> None:
    pid = job.rank()
    before = _resident_bytes(pid)

    process = job.inject("memory-leak", "--rate=100M", "--most=100M")
    eventually(lambda: _resident_bytes(pid) > before + 60e6, "the leak")
    end(process, signal.SIGKILL)

    eventually(lambda: _resident_bytes(pid) < before + 50e6 and job.is_clean(), "it is freed")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_grandchild_ends_when_its_injector_is_killed(job: DrilledJob) -> None:
    pid = job.rank()

    process = job.inject("grandchild")
    grandchildren = eventually(lambda: _grandchildren(job, pid), "a grandchild")
    end(process, signal.SIGKILL)

    assert isinstance(grandchildren, list)
    eventually(lambda: job.is_clean() and not any(map(_runs, grandchildren)), "it ends")


def _grandchildren(job: DrilledJob, rank: int) -> list[int]:
    assert job.job_folder is not None
    runtime = json.loads(job.job_folder.read_text())["runtime"]
    orders = f"{runtime}/.*drill.order"
    found = subprocess.run(["pgrep", "-f", orders], capture_output=True, check=False)
    return [pid for pid in map(int, found.stdout.split()) if pid != rank and _runs(pid)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kill",), "SIGKILL"),
        (("exit-code", "--code=7"), "7"),
        (("exception",), "a fault injected by rankmend inject"),
    ],
    ids=["kill", "exit-code", "exception"],
)
def test_rank_that_was_made_to_fail_is_restarted(
    job: DrilledJob, words: tuple[str, ...], said: str
) -> None:
    pid, before = job.rank(), len(job.errors())

    process = job.inject(*words)
    eventually(lambda: not _runs(pid), "the rank ends")

    assert process.wait(DEADLINE_S) == 0, job.said.read_text()
    eventually(lambda: job.rank() != pid and len(job.errors()) > before, "another attempt")
    assert said in job.errors()[-1]
    assert job.is_clean()


def test_job_that_allows_no_drills_is_left_alone(tmp_path: Path) -> None:
    job = DrilledJob(tmp_path)
    try:
        pid = job.rank()

        process = job.inject("kill", f"--marks={tmp_path / 'none'}")

        assert process.wait(DEADLINE_S) == 2
        assert "was not started with --drills" in job.said.read_text()
        assert _runs(pid)
    finally:
        job.process.terminate()
        job.process.wait(DEADLINE_S)
