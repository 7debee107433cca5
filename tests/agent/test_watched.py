"""The agent takes ranks of other launchers only from folders that are their user's own."""

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.collectors.ranks import RanksCollector
from agent.ranks import watched
from agent.ranks.rank_processes import UNKNOWN_PID, InnerProcess, find_pid
from agent.ranks.table import RankTable
from rankmend.clock import SystemClock
from rankmend.hook import layout
from rankmend.progress import RankIdentity, create
from tests.support.eventually import DEADLINE_S
from tests.support.watched_jobs import Machine

pytestmark = pytest.mark.process


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.ranks.close()


def test_series_of_a_watched_rank_are_those_of_an_own_one_and_its_job_is_named(
    machine: Machine,
) -> None:
    machine.tell()
    writer = machine.add(2)
    for step in range(3):
        writer.step(step)

    metrics = list(RanksCollector(RankTable(), SystemClock(), None, machine.ranks).collect())

    values = {(one.name, dict(one.labels).get("rank")): one.value for one in metrics}
    assert values["rankmend_rank_steps_total", "2"] == 3
    (info,) = [one for one in metrics if one.name == "rankmend_watched_job_info"]
    labels = dict(info.labels)
    assert (labels["job_name"], labels["launcher"], labels["slurm_job"]) == (
        "pretrain",
        "torchrun",
        "41",
    )
    assert labels["job_id"] == str(machine.job_id)


def test_job_is_found_once_its_rank_has_told_of_it(machine: Machine) -> None:
    machine.add(0)
    assert machine.found() == []

    machine.tell()
    assert machine.found() == [0]


def test_rank_of_a_new_attempt_takes_the_place_of_the_old_one(machine: Machine) -> None:
    machine.tell()
    machine.add(0)
    machine.ranks.look()
    machine.add(0, attempt=2)

    ((rank,),) = [machine.ranks.look().ranks]
    assert rank.identity.attempt == 2


def test_rank_whose_process_has_ended_is_not_shown(machine: Machine) -> None:
    machine.tell()
    machine.add(0)
    machine.add(1)
    end(machine, 1)

    assert machine.found() == [0]


def end(machine: Machine, rank: int) -> None:
    """Let the file of a rank name a process that lives no more."""
    with (machine.job / f"rank-{rank}.progress").open("r+b") as file:
        file.seek(layout.ATTACHMENT_AT)
        body = layout.ATTACHMENT.pack(2**22 + 1, 0, 1, 1, 0, 0)
        file.write(body + layout.CRC.pack(zlib.crc32(body)))


def look_long_after(machine: Machine) -> list[int]:
    """Look as if what is over now had been so for long."""
    kept = machine.ranks._over
    for key, over in kept.items():
        kept[key] = replace(over, since_s=over.since_s - watched.OVER_S)
    return machine.found()


def test_job_that_is_over_is_looked_at_again_once_a_rank_starts(machine: Machine) -> None:
    machine.tell()
    machine.add(0)
    machine.add(1)
    end(machine, 0)
    end(machine, 1)
    assert machine.found() == []
    assert look_long_after(machine) == []
    assert len(machine.ranks._over) == 1

    machine.add(1, attempt=2)

    assert machine.found() == [1]
    assert machine.ranks._over == {}


def test_job_whose_rank_has_not_put_its_number_down_is_not_over(machine: Machine) -> None:
    machine.tell()
    numbers = layout.ATTACHMENT.pack(0, 0, 0, 0, 0, 0)
    machine.add(0)
    with (machine.job / "rank-0.progress").open("r+b") as file:
        file.seek(layout.ATTACHMENT_AT)
        file.write(numbers + layout.CRC.pack(zlib.crc32(numbers)))

    assert machine.found() == []
    assert machine.ranks._over == {}


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_folder_that_others_may_write_to_is_left_out(machine: Machine, mode: int) -> None:
    machine.tell()
    machine.add(0)
    machine.job.chmod(mode)

    assert machine.found() == []


@pytest.mark.parametrize(
    "changes",
    [{"key": "another"}, {"name": "x" * 300}, {"launcher": 5}, {"slurm_job": None}],
    ids=str,
)
def test_job_that_is_not_this_users_or_of_another_form_is_refused(
    machine: Machine, changes: dict[str, object]
) -> None:
    machine.tell(**changes)
    machine.add(0)

    assert machine.found() == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b" " * 5000, b'{"x":' + b"[" * 4000]
)
def test_damaged_word_on_a_job_harms_no_other(machine: Machine, content: bytes) -> None:
    (machine.job / "job.json").write_bytes(content)
    machine.add(0)

    assert machine.found() == []


def test_links_pipes_and_foreign_files_are_refused(machine: Machine) -> None:
    machine.tell()
    machine.add(0)
    (machine.job / "rank-1.progress").symlink_to(machine.job / "rank-0.progress")
    os.mkfifo(machine.job / "rank-2.progress")
    (machine.job / "rank-3.progress").write_bytes(b"torn")
    (machine.job / "rank-x.progress").touch()
    (machine.root / "rankmend-watch-12-").mkdir()
    (machine.root / "rankmend-watch-evil").mkdir()
    (machine.root / f"rankmend-watch-{os.getuid() + 1}").mkdir()

    assert machine.found() == [0]


def test_what_one_user_can_show_is_bounded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "RANKS_OF_USER_MAX", 2)
    machine.tell()
    for rank in range(4):
        machine.add(rank)

    assert len(machine.found()) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for folders of another user")
def test_many_folders_of_one_user_keep_nobody_else_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "USERS_MAX", 3)
    monkeypatch.setattr(os, "getuid", lambda: 2)
    machine = Machine(tmp_path)
    machine.tell()
    machine.add(1).step(1)
    for path in (machine.user, *machine.user.rglob("*")):
        os.chown(path, 2, 2)
    for number in range(5):  # sort before it
        folder = tmp_path / f"rankmend-watch-1-{number}"
        folder.mkdir(mode=0o755)
        os.chown(folder, 1, 1)

    assert machine.found() == [1]
    machine.ranks.close()


def test_new_job_is_seen_behind_many_that_have_ended(machine: Machine) -> None:
    for number in range(watched.JOBS_OF_USER_MAX + 5):
        left = machine.user / f"00000000-0000-4000-8000-{number:012}"
        left.mkdir()
        os.utime(left, (1000.0, 1000.0 + number))
    machine.tell()
    machine.add(1).step(1)

    assert machine.found() == [1]


def test_files_are_closed_once_they_are_gone(machine: Machine) -> None:
    machine.tell()
    machine.add(0)
    machine.ranks.look()
    before = len(list(Path("/proc/self/fd").iterdir()))
    (machine.job / "rank-0.progress").unlink()

    assert machine.found() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1


WRITES = """
import sys, time
from rankmend.hook.writer import Writer
writer = Writer(sys.argv[1])
writer.step(1)
print("written", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="PID namespaces need root here")
def test_rank_in_a_pid_namespace_of_its_own_is_shown_with_its_pid_here(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "INNER_LOOK_S", 0.0)
    machine.tell()
    path = machine.job / "rank-0.progress"
    os.close(create(path, RankIdentity(machine.job_id, 1, 0, 0, 4)))
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE
    ) as tool:
        try:
            assert tool.stdout is not None
            assert tool.stdout.readline() == b"written\n"
            ((rank,),) = [machine.ranks.look().ranks]
            status = Path(f"/proc/{rank.pid}/status").read_text()
            assert rank.reader.writer()[0] == 1
            assert f"PPid:\t{tool.pid}\n" in status

            os.kill(rank.pid, signal.SIGKILL)
            tool.wait(DEADLINE_S)
            assert machine.found() == []
        finally:
            tool.kill()


def test_two_processes_that_are_alike_inside_are_not_told_apart() -> None:
    one = InnerProcess(0, 1, 77)

    assert find_pid(one, {}) is None
    assert find_pid(one, {one: [4711]}) == 4711
    assert find_pid(one, {one: [4711, 4712]}) == UNKNOWN_PID
