"""status, incidents and why: what a person and a script are told of a real incident."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import forked_cli
from tests.system.faults.harness import JOBS, Job, kill

pytestmark = pytest.mark.process
Make = Callable[..., Job]


def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked_cli.run(*arguments)


def ask_json(*arguments: str) -> dict[str, object]:
    done = ask(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job of which rank 1 was killed once, and which then ended well."""
    folder = tmp_path_factory.mktemp("killed")
    job = Job(folder, JOBS / "lockstep.py", [], name="asked")
    job.arguments = [
        f"--checkpoint-dir={job.checkpoints}",
        f"--result={folder / 'result.json'}",
        f"--let-go={job.let_go}",
    ]
    job.start()
    kill(job.pids_at_step(25)[1])
    assert job.wait() == 0, job.output
    return job


def test_status_shows_where_each_rank_of_a_running_job_stands(make_lockstep: Make) -> None:
    job = make_lockstep("--steps=100000")
    job.start()
    pids = job.pids_at_step(5)

    told = ask_json("status", f"--state-dir={job.state}")
    shown = ask("status", job.name[:8], f"--state-dir={job.state}")

    (only,) = told["jobs"]
    assert only["state"] == "running"
    assert only["launcher_pid"] == job.process.pid
    assert {rank["rank"]: rank["pid"] for rank in only["ranks"]} == pids
    assert all(rank["step"] >= 5 and rank["step_seconds"] > 0 for rank in only["ranks"])
    assert shown.returncode == 0
    assert job.name in shown.stdout
    job.signal(signal.SIGKILL)
    job.wait()
    (left,) = ask_json("status", f"--state-dir={job.state}")["jobs"]
    assert left["state"] == "interrupted"
    assert left["ranks"] == []


def test_status_leaves_out_ended_jobs_unless_asked(killed: Job) -> None:
    state = f"--state-dir={killed.state}"

    assert ask_json("status", state)["jobs"] == []
    (ended,) = ask_json("status", state, "--all")["jobs"]
    assert (ended["state"], ended["restarts"], ended["incidents"]) == ("done", 1, 1)


def test_incidents_tell_the_mttr_by_phase(killed: Job) -> None:
    (incident,) = ask_json("incidents", f"--state-dir={killed.state}")["incidents"]

    phases = incident["phases"]
    named = ["detect_s", "decide_s", "fence_s", "prepare_s", "start_s", "restore_s", "first_step_s"]
    assert all(phases[name] is not None and phases[name] >= 0 for name in named), phases
    assert incident["total_s"] == pytest.approx(sum(v for v in phases.values() if v is not None))
    assert incident["outcome"] == "recovered"
    assert incident["ranks"] == [1]
    # A checkpoint every 10 steps. The kill comes some steps after 25, on a busy machine after the next one.
    assert 0 <= incident["steps_recomputed"] <= 20
    assert incident["caught_up_s"] >= incident["total_s"]


def test_incidents_are_a_table_for_people(killed: Job) -> None:
    done = ask("incidents", f"--state-dir={killed.state}")

    assert done.returncode == 0
    assert "recovered" in done.stdout
    assert "SIGKILL" in done.stdout.replace("\n", "")


def test_why_tells_the_decision_its_reason_and_its_evidence(killed: Job) -> None:
    (incident,) = ask_json("incidents", f"--state-dir={killed.state}")["incidents"]

    done = ask("why", incident["id"], f"--state-dir={killed.state}")
    entries = ask_json("why", incident["id"], f"--state-dir={killed.state}")["entries"]

    assert done.returncode == 0, done.stderr
    for words in ("decision:", "SIGKILL", "wait status", "checkpoints/step-", "caught up"):
        assert words in done.stdout
    kinds = [entry["kind"] for entry in entries]
    assert kinds[0] == "incident_opened"
    assert "decided" in kinds
    assert entries[0]["record"]["failure"]["finding"]["evidence"]


def test_why_of_a_job_tells_its_whole_story(killed: Job) -> None:
    done = ask("why", "asked", f"--state-dir={killed.state}")

    assert done.returncode == 0
    assert "start: attempt 1" in done.stdout
    assert "done: every rank" in done.stdout


def test_an_unknown_incident_is_an_error(killed: Job) -> None:
    done = ask("why", "no-such-thing", f"--state-dir={killed.state}")

    assert done.returncode == 1
    assert "no-such-thing" in done.stderr


@pytest.mark.safety
def test_a_damaged_journal_is_named_and_hides_no_other_job(killed: Job, tmp_path: Path) -> None:
    import shutil

    state = tmp_path / "state"
    shutil.copytree(killed.state, state)
    broken = state / "jobs" / "broken"
    shutil.copytree(next((killed.state / "jobs").iterdir()), broken)
    (broken / "journal.db").write_bytes(b"this was a journal" * 1000)
    for name in ("journal.db-wal", "journal.db-shm"):
        (broken / name).unlink(missing_ok=True)

    done = ask("incidents", f"--state-dir={state}", "--json")

    assert len(json.loads(done.stdout)["incidents"]) == 1
    assert str(broken / "journal.db") in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell: str) -> None:
    done = ask("completion", shell)

    assert done.returncode == 0
    assert "_RANKMEND_COMPLETE" in done.stdout


def test_the_version_is_told() -> None:
    assert ask("--version").stdout.startswith("rankmend, version ")
