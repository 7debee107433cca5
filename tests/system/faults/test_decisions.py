"""A person decides about a job on one node from another terminal: its launcher is the controller."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from recovery.journal.attempt_records import StartWaits
from recovery.journal.incident_records import PlanWaits, WaitCause
from recovery.journal.job_records import OutcomeKind, PersonActed
from recovery.messages.outside import PersonAct
from tests.support import forked_cli
from tests.support.eventually import eventually
from tests.system.faults.harness import Job

pytestmark = pytest.mark.process

# Saves half a file and dies; a later attempt waits for the file `enough`.
SCRIPT = """\
import os, signal, time
from pathlib import Path
half = Path("checkpoints/step_5.npz")
if not half.exists():
    half.write_bytes(b"PK" + bytes(100))
    os.kill(os.getpid(), signal.SIGKILL)
while not Path("enough").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = Job(tmp_path, script, [], world_size=1)
    yield job
    job.close()


def ask(job: Job, *words: str) -> tuple[int, str, str]:
    """Run a command as its user would in another terminal; return its code, output and errors."""
    told = forked_cli.run(
        *words,
        f"--state-dir={job.state}",
        environment={
            name: text for name, text in os.environ.items() if name != "RANKMEND_CONTROLLER"
        },
    )
    return told.returncode, told.stdout, told.stderr


def shown(job: Job, *words: str) -> dict[str, Any]:
    code, out, err = ask(job, *words, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def held(job: Job) -> PlanWaits:
    waits = eventually(lambda: next(iter(job.records(PlanWaits)), None), "the job is held")
    assert waits.cause is WaitCause.CHECKPOINT
    return waits


def test_held_job_is_shown_approved_and_begins_at_zero(job: Job) -> None:
    job.start()
    waits = held(job)
    incident = waits.incident_id
    assert f"`rankmend approve {incident}`" in waits.reason

    plan = shown(job, "plan", job.name)
    assert plan["is_waiting"]
    assert plan["plan"]["incident_id"] == incident
    assert "the job would begin at step 0" in plan["plan"]["judgement_reason"]
    done = shown(job, "approve", incident, "--yes", "--reason=woken")
    assert done["plan"] == plan["plan"]

    second = eventually(lambda: job.attempts[1:], "the next attempt")[0]
    assert second.choice.restore is None
    (acted,) = job.records(PersonActed)
    assert (acted.command.who, acted.command.reason) == (f"uid {os.geteuid()}", "woken")
    (job.folder / "enough").touch()
    assert job.wait() == 0
    code, _out, err = ask(job, "approve", incident, "--yes")
    assert (code, f"job {job.name} {job.job_id} has ended: done" in err) == (1, True)
    code, _out, err = ask(job, "plan", job.name)
    assert (code, "has ended: done" in err) == (1, True)


def test_plan_of_a_running_job_is_foreseen_and_its_people_pause_restart_and_stop_it(
    job: Job,
) -> None:
    (job.folder / "checkpoints").mkdir()
    (job.folder / "checkpoints" / "step_5.npz").write_bytes(b"PK" + bytes(100))
    job.start()
    eventually(lambda: job.has_state and job.attempts, "the first attempt")

    plan = shown(job, "plan", job.name)
    assert not plan["is_waiting"]
    assert (plan["plan"]["step"], plan["plan"]["judgement"]) == ("restart_in_place", "allowed")
    assert ask(job, "pause", f"--job={job.name}", "--reason=look")[0] == 0
    assert shown(job, "plan", job.name)["plan"]["judgement"] == "wait"
    assert ask(job, "resume", f"--job={job.name}")[0] == 0
    assert ask(job, "restart", job.name, "--yes")[0] == 0
    eventually(lambda: job.attempts[1:], "the ranks are restarted")
    assert ask(job, "stop", job.name, "--yes")[0] == 0

    job.wait()
    (ended,) = job.ended
    assert ended.outcome.kind is OutcomeKind.STOPPED
    acts = [one.command.act for one in job.records(PersonActed)]
    assert acts == [PersonAct.PAUSE, PersonAct.RESUME, PersonAct.RESTART, PersonAct.STOP]


def test_rejected_plan_ends_the_job(job: Job) -> None:
    job.start()
    incident = held(job).incident_id

    assert ask(job, "reject", incident, "--yes")[0] == 0

    assert job.wait() != 0
    assert job.ended[0].outcome.kind is OutcomeKind.ESCALATED


def test_what_cannot_be_decided_says_why_and_changes_nothing(job: Job) -> None:
    job.start()
    incident = held(job).incident_id

    code, _out, err = ask(job, "approve", "ffffffff-1", "--yes")
    assert (code, f"pending: {incident} ({job.name})" in err) == (1, True)
    code, _out, err = ask(job, "plan", "other")
    assert (code, f"known jobs: {job.name} {job.job_id}" in err) == (1, True)
    code, out, _err = ask(job, "resume", f"--job={job.name}", "--json")
    assert (code, out) == (1, "")
    code, out, _err = ask(job, "plan", job.name, "--node=gone", "--json")
    assert code == 0  # the plan that waits, whatever was asked
    assert job.process is not None
    job.signal(signal.SIGSTOP)
    launcher = psutil.Process(job.process.pid)
    eventually(lambda: launcher.status() == psutil.STATUS_STOPPED, "the launcher has stopped")
    code, out, err = ask(job, "approve", incident, "--yes", "--json")
    assert (code, f"kill -CONT {job.process.pid}" in json.loads(out)["error"]) == (1, True)
    assert shown(job, "plan", job.name)["is_waiting"]
    job.signal(signal.SIGCONT)
    job.signal(signal.SIGKILL)
    job.wait()
    code, _out, err = ask(job, "reject", incident, "--yes")
    assert (code, f"incident '{incident}' has no pending plan" in err) == (1, True)
    code, _out, err = ask(job, "stop", job.name, "--yes")
    assert (code, "no launcher runs job" in err) == (1, True)

    assert job.records(PersonActed) == []
    assert len(job.attempts) == 1


def test_held_start_is_shown_and_approved_by_the_name_of_its_job(job: Job) -> None:
    job.checkpoints.mkdir()
    kept = job.checkpoints / "step_5.npz"
    np.savez(kept, step=5)
    (job.folder / "enough").touch()
    job.start()
    assert job.wait() == 0
    kept.write_bytes(kept.read_bytes()[:50])
    job.start()
    eventually(lambda: job.records(StartWaits), "the start is held")

    plan = shown(job, "plan", job.name)
    assert (plan["is_waiting"], plan["plan"]["step"]) == (True, "start")
    assert ask(job, "reject", job.name, "--yes")[0] == 1
    assert ask(job, "approve", job.name, "--yes")[0] == 0

    assert job.wait() == 0
    assert job.attempts[-1].choice.restore is None
