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
from recovery.api.wire import Watched
from tests.support.controllers import RANKMEND, Service
from tests.support.service import make_folder, wait_until

pytestmark = [pytest.mark.real, pytest.mark.long]
STEP_S = 0.1
JOBS = ("6d0c4b1e-0000-4000-8000-000000000001", "6d0c4b1e-0000-4000-8000-000000000002")


class Agent:
    """One node's agent with two ranks of each job, told over the real API."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.told_s = 0.0  # when each job was first told of

    def tell(self, service: Service) -> None:
        now_s = time.monotonic()
        self.told_s = self.told_s or now_s
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

        wait_until(is_judged, "a look at each job")
        return time.monotonic()

    def tell_for(self, service: Service, for_s: float) -> None:
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            self.tell(service)
            time.sleep(0.2)


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
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_time_of_watched_jobs_is_told_after_kill_9_of_the_controller(
    service: Service, tmp_path: Path
) -> None:
    agent = Agent()
    judged_s = agent.tell_until_judged(service)
    agent.tell_for(service, 3.0)
    wait_until((tmp_path / "state/watched/000001/journal.db").exists, "a journal")
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    dead = report("--state-dir", str(tmp_path / "state"))
    time.sleep(3.0)

    again = Service(tmp_path, token="admin")
    try:
        agent.tell_until_judged(again)
        agent.tell_for(again, 3.0)
        asked_s = time.monotonic()
        live = report(
            *("--controller", again.url, "--ca-file", str(tmp_path / "ca.crt")),
            *("--token-file", str(tmp_path / "admin.token")),
        )
        answered_s = time.monotonic()
        wait_until(
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
        # Since it was first judged.
        assert asked_s - judged_s <= one["wall_s"] <= answered_s - agent.told_s
        assert one["parts"].get("unaccounted", {"seconds": 0.0})["seconds"] <= 6.0
        assert one["gpu_hours"] * 3600 == pytest.approx(2 * one["wall_s"])
    assert live["total"]["wall_s"] == pytest.approx(sum(one["wall_s"] for one in live["jobs"]))
