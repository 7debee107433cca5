"""Fakes and small doers that the tests of the agent share."""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from prometheus_client.parser import text_string_to_metric_families

from agent.assembly.families import FAMILIES
from agent.metrics import Metric
from agent.sampling.collection import NO_ANSWER, CollectorAnswer, Revision, check_series, revise
from rankmend import progress
from tests.support.eventually import DEADLINE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "sys-node"
JOB_ID = uuid.UUID("6d0c4b1e-0000-4000-8000-000000000001")
# a shared machine may be slow: neither is a failure of what is tested
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SHARED_MEMORY = Path("/dev/shm")


_REVISIONS = itertools.count(1)


def answer_of(metrics: Iterable[Metric], before: CollectorAnswer = NO_ANSWER) -> CollectorAnswer:
    """Return a collector's answer with these samples, newer than every other answer."""
    return revise(before, tuple(metrics), Revision(next(_REVISIONS)))


def checked(metrics: Iterable[Metric]) -> list[Metric]:
    """Return what a collector gives, after the checks that the runner makes of it."""
    given = list(metrics)
    check_series(given, FAMILIES)
    return given


class FakeClock:
    def __init__(self, now_s: float = 1000.0) -> None:
        self.time_s = now_s

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return 1.7e9 + self.time_s


def values_of(metrics: list[Metric]) -> dict[str, float]:
    """Return series as text to value, ``name{value,value}``."""
    return {
        metric.name.removeprefix("rankmend_")
        + ("{" + ",".join(value for _, value in metric.labels) + "}" if metric.labels else ""): (
            metric.value
        )
        for metric in metrics
    }


def is_listening(path: Path) -> bool:
    """Tell whether somebody takes connections at a socket; it is there a moment before they do."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        return peer.connect_ex(str(path)) == 0


@contextmanager
def tmpfs_folder() -> Iterator[Path]:
    """A folder on tmpfs, as the launcher uses it."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip(f"{SHARED_MEMORY} is not writable here")
    folder = SHARED_MEMORY / f"rankmend-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_progress_file(
    folder: Path, rank: int = 0, attempt: int = 1, job_id: uuid.UUID = JOB_ID
) -> Path:
    path = folder / f"{job_id}-{attempt}-rank-{rank}.progress"
    identity = progress.RankIdentity(job_id, attempt, rank, rank, world_size=8)
    os.close(progress.create(path, identity))
    return path


class AgentProcess:
    """A real `rankmend agent`."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankmend.cli", "agent", *arguments],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def wait_for_line(self, text: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"the agent ended before it said {text!r}: {''.join(self.lines)}")

    def get(self, port: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S
            ) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.lines.append(self.process.communicate(timeout=DEADLINE_S)[1])
        return self.process.returncode


@contextmanager
def running_agent(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[AgentProcess, int]]:
    """Run an agent on a free port; yield it with its port."""
    agent = AgentProcess("--listen", "127.0.0.1:0", *arguments, environment=environment)
    try:
        line = agent.wait_for_line("agent started")
        yield agent, int(line.rpartition(" port=")[2].split()[0])
    finally:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.communicate()


def ranks_page(agent: AgentProcess, port: int) -> list[dict[str, object]]:
    _status, text = agent.get(port, "/api/v1/ranks")
    ranks = json.loads(text)["ranks"]
    assert isinstance(ranks, list)
    return ranks


def run_agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `rankmend agent` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "agent", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def sick_tree(folder: Path) -> list[str]:
    """Return flags for a copy of the recorded node whose disk sensor is beyond its limit."""
    sys_root = shutil.copytree(FIXTURE / "sys", folder / "sys", symlinks=True)
    (sensor,) = sys_root.glob("devices/**/hwmon1/temp1_input")
    sensor.write_text("99000\n")
    return ["--procfs", str(FIXTURE / "proc"), "--sysfs", str(sys_root)]


def message(**changes: object) -> bytes:
    """Return an offer of ranks as a launcher sends it to the agent."""
    fields: dict[str, object] = {
        "version": 1,
        "job_id": str(JOB_ID),
        "job_name": "digits",
        "attempt": 1,
        "ranks": [{"rank": 0, "local_rank": 0, "pid": 4242}],
    }
    return json.dumps(fields | changes).encode()


class Page:
    """The series of an agent's page, found by name and some labels."""

    def __init__(self, agent: AgentProcess, port: int) -> None:
        self._agent, self._port = agent, port

    def value(self, name: str, **labels: str) -> float | None:
        _status, text = self._agent.get(self._port, "/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                wanted = sample.name == f"rankmend_{name}"
                if wanted and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None

    def wait(self, value: float | None, name: str, **labels: str) -> None:
        eventually(
            lambda: self.value(name, **labels) == value,
            lambda: f"{name} {labels} to be {value}; it is {self.value(name, **labels)}",
        )

    def wait_above(self, value: float, name: str, **labels: str) -> None:
        eventually(
            lambda: (self.value(name, **labels) or 0.0) > value, f"{name} {labels} above {value}"
        )
