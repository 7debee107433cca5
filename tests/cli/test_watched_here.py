"""`status` and `console` of one machine show the ranks under `rankmend watch env` as they show a job's own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.cli.screens.status_view import render
from rankmend.cli.sources.folder_reader import FolderReader
from rankmend.cli.sources.picture import Wanted
from rankmend.cli.sources.reader import has_watched, may_live
from rankmend.cli.sources.watched_here import WatchedHere
from rankmend.clock import SystemClock
from rankmend.hook.layout import ATTACHMENT, ATTACHMENT_AT
from rankmend.hook.writer import read_start_ticks
from tests.support.watched_jobs import Machine


class LaterClock(SystemClock):
    """The machine's clock, some seconds on: progress files are stamped by the machine's."""

    later_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.later_s


def machine_with_ranks(root: Path, steps: int) -> Machine:
    machine = Machine(root)
    machine.tell()
    for rank in (0, 1):
        writer = machine.add(rank)
        for step in range(steps):
            writer.step(step)
    return machine


def shown(reader: FolderReader, job: str | None = None) -> str:
    from rich.console import Console

    console = Console(width=200, no_color=True)
    wanted = Wanted(job, with_ended=False, every_node=False)
    with console.capture() as captured:
        console.print(render(reader.picture(wanted), wanted))
    return captured.get()


class Looks:
    """Makes looks at a folder as /dev/shm, and closes what they opened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[WatchedHere] = []

    def make(self, uid: int | None = None, clock: SystemClock | None = None) -> WatchedHere:
        self.made.append(WatchedHere(self.root, "n1", uid, clock))
        return self.made[-1]


@pytest.fixture
def looks(tmp_path: Path) -> Iterator[Looks]:
    looks = Looks(tmp_path / "shm")
    yield looks
    for made in looks.made:
        made.close()


def test_ranks_of_a_watched_job_stand_in_status_with_step_and_process(
    tmp_path: Path, looks: Looks
) -> None:
    machine_with_ranks(tmp_path / "shm", steps=3)
    here = looks.make()

    text = shown(FolderReader(tmp_path / "state", here.views), "pre")

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.startswith("pretrain training torchrun of ") for line in lines)
    assert any(line.startswith(f"0 {os.getpid()} 2 ") for line in lines)
    assert any(line.startswith(f"1 {os.getpid()} 2 ") for line in lines)


def test_status_that_shows_a_watched_job_does_not_say_that_nothing_runs(
    tmp_path: Path, looks: Looks
) -> None:
    machine_with_ranks(tmp_path / "shm", steps=3)
    here = looks.make()

    assert "no running job" not in shown(FolderReader(tmp_path / "state", here.views))
    assert "no running job" in shown(FolderReader(tmp_path / "state"))


def test_watched_rank_before_its_second_step_is_starting(tmp_path: Path, looks: Looks) -> None:
    machine_with_ranks(tmp_path / "shm", steps=1)

    (job,) = looks.make().views()

    assert (job.state, job.ranks_seen, len(job.ranks)) == ("starting", 2, 2)


def test_watched_job_whose_ranks_are_gone_has_ended_at_the_next_look(
    tmp_path: Path, looks: Looks
) -> None:
    machine = machine_with_ranks(tmp_path / "shm", steps=3)
    clock = LaterClock()
    here = looks.make(clock=clock)
    assert [job.state for job in here.views()] == ["training"]

    for path in machine.job.glob("*.progress"):
        path.unlink()
    clock.later_s = 2.0
    (job,) = here.views()

    assert (job.state, job.ranks) == ("ended", ())


def test_user_sees_no_watched_job_of_another(tmp_path: Path, looks: Looks) -> None:
    machine_with_ranks(tmp_path / "shm", steps=3)
    here = looks.make(uid=os.getuid() + 1)

    assert here.views() == []


def written_by(root: Path, pid: int, ticks: int) -> None:
    """Have every rank's file name this process as its writer."""
    for file in root.glob("*/*/*.progress"):
        data = bytearray(file.read_bytes())
        ATTACHMENT.pack_into(data, ATTACHMENT_AT, pid, 0, ticks, 1, 0, 0)
        file.write_bytes(data)


def test_files_of_ranks_that_have_ended_are_no_watched_ranks(tmp_path: Path) -> None:
    root = tmp_path / "shm"
    assert not has_watched(root)
    machine_with_ranks(root, steps=3)
    assert has_watched(root)
    own_ticks = read_start_ticks(os.getpid())
    assert own_ticks is not None

    written_by(root, os.getpid(), own_ticks - 1)  # another process had this number before

    assert not has_watched(root)
    assert not may_live([str(file) for file in root.glob("*/*/*.progress")], "/proc"), "unloaded"


def test_rank_in_a_container_may_live_and_is_looked_at(tmp_path: Path) -> None:
    root, procfs = tmp_path / "shm", tmp_path / "proc"
    machine_with_ranks(root, steps=3)
    files = [str(file) for file in root.glob("*/*/*.progress")]
    written_by(root, 7, 99)
    (procfs / "4242").mkdir(parents=True)
    (procfs / "4242/status").write_text("Name:\tpython\nNSpid:\t4242\t8\nUid:\t0\n")
    assert not may_live(files, str(procfs))

    (procfs / "4242/status").write_text("Name:\tpython\nNSpid:\t4242\t7\nUid:\t0\n")

    assert may_live(files, str(procfs))
