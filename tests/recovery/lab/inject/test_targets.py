"""What a target names is found by what launchers wrote down and by how programs were started."""

import fcntl
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankmend.cli.agent import agent
from rankmend.errors import ConfigError, NoSourceError
from recovery.lab.inject.request import parse_target
from recovery.lab.inject.targets import find_target

pytestmark = pytest.mark.process


@contextmanager
def started(*words: str) -> Iterator[int]:
    """Run a program that has these words on its command line, and does nothing."""
    program = [sys.executable, "-S", "-c", "print(flush=True); input()", *words]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.parametrize(
    ("words", "service"),
    [
        (("/usr/bin/rankmend", "agent", "--config", "/etc/rankmend/agent.toml"), "agent"),
        (("rankmend.cli", "agent"), "agent"),
        (("/usr/bin/rankmend", "controller", "run", "--config=x"), "controller"),
    ],
)
def test_service_is_found_as_it_is_started(
    words: tuple[str, ...], service: str, tmp_path: Path
) -> None:
    with started(*words) as pid:
        found = find_target(parse_target(f"service:{service}/{pid}"), tmp_path)

    assert found.process is not None
    assert found.process.pid == pid


@pytest.mark.parametrize("command", sorted(agent.commands))
def test_command_to_an_agent_is_no_agent(command: str, tmp_path: Path) -> None:
    with started("rankmend", "agent", command) as pid, pytest.raises(NoSourceError):
        find_target(parse_target(f"service:agent/{pid}"), tmp_path)


def test_launcher_of_a_job_of_several_nodes_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "n1" / "jobs" / "llama-1"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"job_id": "id", "name": "llama"}))
    with (folder / "lock").open("w") as lock, started("a launcher") as pid:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = {"pid": pid, "runtime": str(tmp_path), "allows_drills": True}
        (folder / "run.json").write_text(json.dumps(run))

        found = find_target(parse_target("service:launcher/llama"), tmp_path)

    assert found.process is not None
    assert found.process.pid == pid
    assert found.job is not None
    assert found.job.allows_drills


@contextmanager
def ranking(folder: Path, name: str) -> Iterator[int]:
    """Run a process as rank 1 of a job of this name, whose folder this is; yield its pid."""
    job_id, runtime = str(uuid.uuid4()), folder / "runtime"
    runtime.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"job_id": job_id, "name": name}))
    told = {"runtime": str(runtime), "pid": os.getpid(), "allows_drills": True}
    (folder / "run.json").write_text(json.dumps(told))
    marks = {"RANKMEND_JOB_ID": job_id, "RANKMEND_ATTEMPT": "2"}
    argv = [sys.executable, "-ESs", "-c", "input()"]
    with (
        (folder / "lock").open("wb") as lock,
        subprocess.Popen(argv, env=marks, stdin=subprocess.PIPE) as rank,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        ranks = [{"rank": 1, "local_rank": 0, "pid": rank.pid}]
        (runtime / "ranks.json").write_text(json.dumps({"attempt": 2, "ranks": ranks}))
        yield rank.pid
        rank.kill()


@pytest.mark.parametrize("place", ["jobs", "nodes/n1/jobs"])
def test_rank_is_found_whether_its_job_has_one_node_or_several(tmp_path: Path, place: str) -> None:
    with ranking(tmp_path / place / "train-0", "train") as pid:
        found = find_target(parse_target("rank:train/1"), tmp_path)

    assert found.process is not None
    assert (found.process.pid, found.process.attempt) == (pid, 2)
    assert found.job is not None
    assert (found.job.name, found.job.allows_drills) == ("train", True)


def test_whole_name_of_a_job_goes_before_the_beginning_of_another(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    with ranking(jobs / "train-0", "train") as pid, ranking(jobs / "train-2-0", "train-2"):
        found = find_target(parse_target("rank:train/1"), tmp_path)
        with pytest.raises(ConfigError, match="fits ranks of several jobs"):
            find_target(parse_target("rank:tr/1"), tmp_path)

    assert found.process is not None
    assert found.process.pid == pid
