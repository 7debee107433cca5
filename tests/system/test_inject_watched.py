"""Faults of ranks that another launcher has started, by `rankmend inject`: only where the job's owner has allowed them."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.watch.hook_folder import make_hook_folder
from recovery.lab.inject.watched_targets import FOLDERS_MAX, WatchedRank, find_watched_ranks
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.watched_jobs import OPTIMIZER

pytestmark = pytest.mark.process
PF_EXITING = 0x4  # include/linux/sched.h
TRAIN = """
import time
from torch.optim.optimizer import SGD
optimizer = SGD()
while True:
    optimizer.step()
    time.sleep(0.01)
"""


class WatchedPair:
    """Two ranks of one job as torchrun would start them; only rank 1 was started with the mark that allows drills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"pair-{uuid.uuid4().hex[:8]}"
        package = folder / "modules" / "torch" / "optim"
        package.mkdir(parents=True)
        for path in (package.parent / "__init__.py", package / "__init__.py"):
            path.touch()
        (package / "optimizer.py").write_text(OPTIMIZER)
        make_hook_folder(folder / "hook")
        (folder / "train.py").write_text(TRAIN)
        self.ranks = [self._start(0), self._start(1)]

    def _start(self, rank: int) -> "subprocess.Popen[bytes]":
        environment = {
            **{"PATH": os.environ["PATH"], "HOME": str(self.folder), "RANKMEND_WATCH": "1"},
            **{"PYTHONPATH": f"{self.folder}/hook:{self.folder}/modules"},
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            "TORCHELASTIC_RUN_ID": self.name,
            **({"RANKMEND_WATCH_DRILLS": "1"} if rank == 1 else {}),
        }
        return subprocess.Popen(
            [sys.executable, str(self.folder / "train.py")],
            env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def found(self) -> dict[int, WatchedRank]:
        return {one.rank: one for one in find_watched_ranks() if one.job_name == self.name}

    def restart(self) -> None:
        """Start rank 1 again, as its launcher would, and wait until both ranks are seen."""
        if self.ranks[1].poll() is not None:
            self.ranks[1] = self._start(1)
        eventually(lambda: len(self.found()) == 2, "both ranks are seen")
        eventually(self.found()[1].drill_file.exists, "rank 1 listens")

    def inject(self, fault: str, rank: int, *options: str) -> "subprocess.CompletedProcess[str]":
        argv = [
            sys.executable,
            "-m",
            "rankmend.cli",
            "inject",
            fault,
            f"--on=rank:{self.name}/{rank}",
        ]
        return subprocess.run(
            [*argv, f"--undo-dir={self.folder}/undo", f"--state-dir={self.folder}/state", *options],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def close(self) -> None:
        for one in self.ranks:
            one.kill()
            one.communicate()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedPair]:
    made = WatchedPair(tmp_path_factory.mktemp("pair"))
    try:
        made.restart()
        yield made
    finally:
        made.close()


@pytest.mark.safety
def test_watched_rank_is_killed_where_its_owner_allows_drills_and_no_other(
    pair: WatchedPair,
) -> None:
    pair.restart()

    done = pair.inject("kill", 1)

    assert done.returncode == 0, done.stderr
    assert pair.ranks[1].wait(DEADLINE_S) == -signal.SIGKILL
    assert pair.ranks[0].poll() is None


def test_watched_rank_that_listens_exits_with_the_code_that_is_asked_for(pair: WatchedPair) -> None:
    pair.restart()

    done = pair.inject("exit-code", 1, "--code=7")

    assert done.returncode == 0, done.stderr
    assert pair.ranks[1].wait(DEADLINE_S) == 7


def test_watched_rank_without_the_mark_is_refused_and_goes_on(
    pair: WatchedPair, tmp_path: Path
) -> None:
    pair.restart()

    done = pair.inject("kill", 0, f"--marks={tmp_path}/none")

    assert done.returncode == 2
    assert "was not started with RANKMEND_WATCH_DRILLS=1" in done.stderr
    assert pair.ranks[0].poll() is None


def test_rank_that_is_not_there_is_told_apart_from_one_that_may_not_be_broken(
    pair: WatchedPair,
) -> None:
    done = pair.inject("kill", 7)

    assert done.returncode == 1
    assert f"rank:{pair.name}/7 is not a rank" in done.stderr


def test_progress_file_that_names_a_process_of_another_user_is_no_target(
    pair: WatchedPair, tmp_path: Path
) -> None:
    pair.restart()
    rank = pair.found()[1]
    proc = tmp_path / "proc"
    inner = proc / str(rank.process.pid)
    inner.mkdir(parents=True)
    for name in ("stat", "environ"):
        (inner / name).write_bytes(Path(f"/proc/{rank.process.pid}/{name}").read_bytes())

    def seen() -> list[str]:
        found = find_watched_ranks(proc=str(proc))
        return [one.job_name for one in found if one.job_name == pair.name]

    assert seen() == [pair.name]
    if os.getuid() != 0:
        pytest.skip("needs root to give files away")
    os.chown(inner, 12345, 12345)
    assert seen() == []


def test_rank_whose_process_is_about_to_end_is_no_target(pair: WatchedPair, tmp_path: Path) -> None:
    pair.restart()
    rank = pair.found()[1]
    inner = tmp_path / "proc" / str(rank.process.pid)
    inner.mkdir(parents=True)
    before, _name, after = Path(f"/proc/{rank.process.pid}/stat").read_text().rpartition(") ")
    fields = after.split()
    fields[6] = str(PF_EXITING)
    (inner / "stat").write_text(f"{before}) {' '.join(fields)}\n")
    (inner / "environ").touch()  # as the kernel shows it once its memory has gone

    found = find_watched_ranks(proc=str(tmp_path / "proc"))

    assert [one for one in found if one.job_name == pair.name] == []


def test_watched_job_is_found_among_thousands_of_files_of_data_loaders(
    pair: WatchedPair, tmp_path: Path
) -> None:
    pair.restart()
    job = pair.found()[0].drill_file.parent
    for number in range(FOLDERS_MAX):
        (tmp_path / f"a-{number}").touch()
    shutil.copytree(job, tmp_path / job.parent.name / job.name)
    (tmp_path / job.parent.name).chmod(0o700)
    for number in range(FOLDERS_MAX):
        (tmp_path / f"z-{number}").touch()

    found = find_watched_ranks(tmp_path)

    assert sorted(one.rank for one in found if one.job_name == pair.name) == [0, 1]
