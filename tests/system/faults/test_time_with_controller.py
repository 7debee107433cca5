"""Where the time of a job went that a controller of its own process looks after, which is stopped and killed meanwhile."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import read_boot_id
from recovery.journal.incident_records import IncidentOpened
from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.process import stop
from tests.system.faults.harness import JOBS, Job, kill

SLEW_S = 0.1  # of the wall clock against the monotonic one, by which spans are kept
pytestmark = pytest.mark.process


class Controller:
    """`rankmend controller run` on loopback; each start has the port of the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.process: forked_cli.ForkedProcess | None = None

    @property
    def state(self) -> Path:
        return self.folder / "controller-state"

    def start(self) -> None:
        config, log = self.folder / "controller.toml", self.folder / "controller.log"
        config.write_text(f'listen = "127.0.0.1:{self.port}"\nstate_dir = "{self.state}"\n')
        began = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = forked_cli.start(
                ["controller", "run", f"--config={config}"],
                cwd=Path.cwd(),
                environment=os.environ,
                stdout=out,
            )

        def port() -> int | None:
            assert self.process is not None
            assert self.process.poll() is None, log.read_text()
            words = log.read_text()[began:].split()
            told = [word for word in words if word.startswith("port=")]
            return int(told[0].removeprefix("port=")) if told else None

        self.port = eventually(port, "the controller's port")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_S)


@dataclass
class ServedJob(Job):
    """A job whose journal the controller keeps."""

    @property
    def state(self) -> Path:
        return self.folder / "controller-state"

    @property
    def runtime(self) -> Path:
        """Return this node's folder; a launcher of a service names its node in it."""
        alone = super().runtime
        return next(alone.parent.glob(f"{alone.name}*"), alone)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    controller = Controller(tmp_path)
    controller.start()
    yield controller
    controller.kill()


@pytest.fixture
def job(tmp_path: Path, controller: Controller) -> Iterator[Job]:
    where = ("--controller", f"http://127.0.0.1:{controller.port}")
    job = ServedJob(tmp_path, JOBS / "saves.py", [], world_size=2, controller=where)
    yield job
    job.close()


def report(job: Job) -> dict[str, Any]:
    words = ("report", f"--state-dir={job.state}", "--json")
    done = forked_cli.run(*words, check=True)
    (one,) = json.loads(done.stdout)["jobs"]
    return one


def parts_of(told: dict[str, Any]) -> float:
    return float(sum(part["seconds"] for part in told["parts"].values()))


def test_parts_sum_to_the_wall_time_though_the_controller_was_stopped_and_killed(
    job: Job, controller: Controller
) -> None:
    job.start()
    job.pids_at_step(20)
    assert controller.process is not None

    before_stop = job.entries[-1]
    with stop(controller.process):
        pids = job.pids_at_step(80)  # ranks train on for 3 s
    kill(pids[1])
    job.pids_at_step(90, attempt=2)
    before_kill = job.entries[-1]
    controller.kill()
    job.pids_at_step(150, attempt=2)
    controller.start()
    pids = job.pids_at_step(180, attempt=2)
    kill(pids[0])
    job.pids_at_step(190, attempt=3)
    (job.folder / "enough").touch()
    assert job.wait() == 0
    eventually(lambda: job.ended, "the job's end is in the journal")

    told = report(job)
    first, last = job.entries[0], job.entries[-1]
    wall_s = last.monotonic_s - first.monotonic_s
    assert {entry.boot_id for entry in job.entries} == {read_boot_id()}
    assert told["wall_s"] == pytest.approx(wall_s, rel=0.01)
    assert parts_of(told) == pytest.approx(wall_s, rel=0.01)
    assert parts_of(told) == pytest.approx(told["wall_s"])
    assert all(
        one["begin_unix_s"] + one["seconds"] == pytest.approx(two["begin_unix_s"])
        for one, two in pairwise(told["spans"])
    )
    assert (told["failures"], len(told["incidents"])) == (2, 2)
    # What nobody saw lies between what was written before and after the controller was away.
    opened = [entry for entry in job.entries if isinstance(entry.record, IncidentOpened)]
    away = [
        (last.unix_s - SLEW_S, first.unix_s + SLEW_S)
        for last, first in zip((before_stop, before_kill), opened, strict=True)
    ]
    unseen = [one for one in told["spans"] if one["part"] == "unaccounted"]
    assert all(
        any(
            begin <= one["begin_unix_s"] and one["begin_unix_s"] + one["seconds"] <= end
            for begin, end in away
        )
        for one in unseen
    ), (unseen, away)
    assert told["parts"]["productive"]["seconds"] > 0
