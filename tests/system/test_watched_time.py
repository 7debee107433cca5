"""The time of watched jobs outlives `kill -9` of the controller: several jobs at once, one whose node's agent is paused."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmend.watched_report import ReportedJob, ReportedRank, ReportTaken, WatchedReport
from recovery.api.wire import Watched, WatchedTimes
from recovery.console.views.watched_time_view import time_of_view
from tests.support.controllers import RANKMEND, Service
from tests.support.eventually import DEADLINE_S, eventually, fault_lasts
from tests.support.service import make_folder

pytestmark = [pytest.mark.process, pytest.mark.safety]
STEP_S = 0.1
SLEW_S = 0.1  # of the wall clock against the monotonic one
JOBS = ("6d0c4b1e-0000-4000-8000-000000000001", "6d0c4b1e-0000-4000-8000-000000000002")


class Agent:
    """One node's agent with two ranks of each job, told over the real API."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.told_unix_s = 0.0  # when each job was first told of

    def tell(self, service: Service) -> None:
        now_s = time.monotonic()
        self.told_unix_s = self.told_unix_s or time.time()
        jobs = []
        for number, job_id in enumerate(JOBS):
            steps = 100 + int((now_s - self.began_s) / STEP_S)
            ranks = tuple(
                ReportedRank(
                    rank=rank,
                    world_size=2,
                    attempt=1,
                    pid=100 + 10 * number + rank,
                    start_ticks=7,
                    process_state="R",
                    attached_age_s=now_s - self.began_s + 20.0,
                    steps_done=steps,
                    step=steps,
                    step_age_s=0.0,
                    step_s=STEP_S,
                )
                for rank in range(2)
            )
            name = f"job-{number}"
            jobs.append(
                ReportedJob(job_id=job_id, name=name, user="ann", launcher="srun", ranks=ranks)
            )
        service.client.ask(
            "POST", "/v1/watched", ReportTaken, WatchedReport(node="n1", jobs=tuple(jobs))
        )

    def tell_until_judged(self, service: Service) -> float:
        """Tell until the controller has looked at each job, and return when that was seen."""

        def is_judged() -> bool:
            self.tell(service)
            told = service.client.ask("GET", "/v1/watched", Watched).watched
            return [one.state for one in told].count("training") == len(JOBS)

        eventually(is_judged, "a look at each job", pause_s=0.2)
        return time.time()

    def tell_until_counted(self, service: Service, seconds: float) -> None:
        """Tell until the account of each job has so much more time."""

        def wall() -> dict[str, float]:
            told = service.client.ask("GET", "/v1/watched/times", WatchedTimes).jobs
            return {one.job_id: time_of_view(one).length_s for one in told}

        def is_counted() -> bool:
            self.tell(service)
            now = wall()
            return all(now.get(one, 0.0) >= before.get(one, 0.0) + seconds for one in JOBS)

        before = wall()
        eventually(is_counted, f"{seconds} s more of each job", pause_s=0.2)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    make_folder(tmp_path)
    service = Service(tmp_path, token="admin")
    yield service
    service.process.kill()
    service.process.wait()


def report(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [*RANKMEND, "report", "--json", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_time_of_watched_jobs_is_told_after_kill_9_of_the_controller(
    service: Service, tmp_path: Path
) -> None:
    agent = Agent()
    judged_unix_s = agent.tell_until_judged(service)
    agent.tell_until_counted(service, 3.0)
    eventually((tmp_path / "state/watched/000001/journal.db").exists, "a journal")

    def is_written() -> bool:
        agent.tell(service)
        told = report("--state-dir", str(tmp_path / "state"))
        return {one["job"] for one in told["jobs"]} == {"job-0", "job-1"}

    eventually(is_written, "both jobs are in the journal")
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    dead = report("--state-dir", str(tmp_path / "state"))
    fault_lasts(3.0)

    again = Service(tmp_path, token="admin")
    try:
        again_unix_s = agent.tell_until_judged(again)
        agent.tell_until_counted(again, 3.0)
        asked_unix_s = time.time()
        live = report(
            *("--controller", again.url, "--ca-file", str(tmp_path / "ca.crt")),
            *("--token-file", str(tmp_path / "admin.token")),
        )
        answered_unix_s = time.time()
        eventually(
            lambda: (
                'rankmend_controller_goodput_ratio{jobs="watched"}'
                in again.client.request("GET", "/metrics").decode()
            ),
            "the series of watched jobs",
        )
    finally:
        again.process.kill()
        again.process.wait()

    assert {one["job"] for one in dead["jobs"]} == {"job-0", "job-1"}
    for one in live["jobs"]:
        assert one["is_watched"]
        total_s = sum(part["seconds"] for part in one["parts"].values())
        assert total_s == pytest.approx(one["wall_s"], rel=0.01)
        began_unix_s = one["began_unix_s"]
        ended_unix_s = began_unix_s + one["wall_s"]
        # From its first judgement until now; what nobody saw lies between two judgements.
        assert agent.told_unix_s - SLEW_S <= began_unix_s <= judged_unix_s + SLEW_S
        assert asked_unix_s - SLEW_S <= ended_unix_s <= answered_unix_s + SLEW_S
        for span in one["spans"]:
            if span["part"] == "unaccounted":
                assert judged_unix_s - SLEW_S <= span["begin_unix_s"]
                assert span["begin_unix_s"] + span["seconds"] <= again_unix_s + SLEW_S
        assert one["gpu_hours"] * 3600 == pytest.approx(2 * one["wall_s"])
    assert live["total"]["wall_s"] == pytest.approx(sum(one["wall_s"] for one in live["jobs"]))
