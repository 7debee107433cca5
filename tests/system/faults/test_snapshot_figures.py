"""What people see of a real job that keeps its state in memory: status, checkpoints, incidents and metrics."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import forked_cli
from tests.support.agent import running_agent
from tests.support.eventually import eventually
from tests.system.faults.harness import Job, kill

pytestmark = pytest.mark.process
Make = Callable[..., Job]
LONG = ("--steps=100000", "--step-s=0.05", "--every=20", "--snapshot-every=2", "--snapshot-mb=1")
RANKS = 4
PART_BYTES = 1_000_000  # at least


def command(*arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "400"}
    return forked_cli.run(*arguments, environment=environment, check=True).stdout


def shown(job: Job) -> dict[str, Any] | None:
    (one,) = json.loads(command("status", f"--state-dir={job.state}", "--json"))["jobs"]
    return one["snapshots"]


def stop(job: Job) -> None:
    job.signal(signal.SIGTERM)
    job.wait()


def test_status_and_checkpoints_show_what_a_running_job_keeps_in_memory(
    make_lockstep: Make,
) -> None:
    job = make_lockstep(*LONG)
    job.start()
    job.pids_at_step(45)
    kept = eventually(lambda: (now := shown(job)) and now["interval_s"] and now, "an interval")

    assert kept["step"] % 2 == 0
    assert kept["step"] >= 42
    assert kept["attempt"] == 1
    assert kept["ranks"] == RANKS
    assert (kept["without_count"], kept["damaged"], kept["refused"]) == (0, 0, 0)
    assert kept["files"] == 2
    assert kept["size_bytes"] >= RANKS * PART_BYTES
    assert kept["held_bytes"] == kept["node_bytes"] >= kept["size_bytes"]
    assert kept["age_s"] >= 0
    assert kept["interval_s"] >= 0.1, "two steps of 50 ms"
    assert 0 < kept["stall_s"] < kept["interval_s"]
    assert kept["missing"] == ""
    assert kept["best"]["total"] <= kept["present"]["total"]
    text = command("status", f"--state-dir={job.state}")
    assert "in memory: step " in text
    assert "a snapshot stops training for " in text

    listed = json.loads(command("checkpoints", str(job.checkpoints), "--json"))
    restored = listed["restores_snapshot"]
    assert restored["ranks"] == list(range(RANKS))
    assert restored["verdict"] == "whole"
    assert restored in listed["snapshots"]
    assert listed["restores"] is not None
    assert "continues from memory at step " in command("checkpoints", str(job.checkpoints))

    stop(job)
    ended = json.loads(command("checkpoints", str(job.checkpoints), "--json"))
    assert (ended["snapshots"], ended["restores_snapshot"]) == ([], None)


def test_incidents_say_that_a_job_went_on_from_memory_and_how_many_steps_it_lost(
    make_lockstep: Make,
) -> None:
    job = make_lockstep(*LONG)
    job.start()

    kill(job.pids_at_step(31)[1])
    job.pids_at_step(40, attempt=2)
    told = eventually(
        lambda: (rows := incidents(job)) and rows[0]["steps_recomputed"] is not None and rows[0],
        "the recovery is verified",
    )

    assert told["restored_from"] == "memory"
    assert told["restored_step"] >= 28
    assert told["steps_recomputed"] <= 3
    text = command("incidents", f"--state-dir={job.state}")
    assert f"went on from memory at step {told['restored_step']}" in text
    stop(job)


def incidents(job: Job) -> list[dict[str, Any]]:
    text = command("incidents", f"--state-dir={job.state}", "--json")
    rows: list[dict[str, Any]] = json.loads(text)["incidents"]
    return rows


def test_agent_exports_what_ranks_keep_and_how_old_each_tier_is(make_lockstep: Make) -> None:
    job = make_lockstep(*LONG)
    with running_agent("--socket", str(job.folder / "agent.sock"), "--interval=1") as (agent, port):
        job.flags = [f"--agent-socket={job.folder / 'agent.sock'}"]
        job.start()

        def page() -> str | None:
            text = agent.get(port, "/metrics")[1]
            tiers = ('tier="memory"', 'tier="checkpoint"', "controller_snapshot_interval_seconds{")
            return text if all(one in text for one in tiers) else None

        text = eventually(page, "both tiers have an age")
        stop(job)

    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line.endswith(tuple("0123456789"))
    )
    of_job, rank = f'job_id="{job.job_id}"', f'job_id="{job.job_id}",rank="1"'
    assert number(values, f'controller_restorable_age_seconds{{{of_job},tier="memory"}}') >= 0
    assert number(values, f"controller_snapshot_held_bytes{{{of_job}}}") >= RANKS * PART_BYTES
    assert number(values, f"controller_snapshot_stall_seconds{{{of_job}}}") > 0
    assert number(values, f"controller_snapshot_interval_seconds{{{of_job}}}") >= 0.1
    assert number(values, f"controller_snapshot_best_interval_seconds{{{of_job}}}") > 0
    assert number(values, f"rank_snapshots_total{{{rank}}}") > 0
    assert number(values, f"rank_snapshots_refused_total{{{rank}}}") == 0
    assert number(values, f"rank_snapshot_files{{{rank}}}") == 2
    assert number(values, f"rank_snapshot_step{{{rank}}}") % 2 == 0
    assert number(values, f"rank_snapshot_size_bytes{{{rank}}}") >= PART_BYTES
    assert number(values, f"rank_snapshot_stall_seconds_total{{{rank}}}") > 0


def number(values: dict[str, str], name: str) -> float:
    return float(values[f"rankmend_{name}"])
