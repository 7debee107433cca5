"""What `rankmend status` and the console say of a job whose launcher can't write its journal, or whose checkpoint was removed."""

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from recovery.checkpoints.marks import BESIDE
from recovery.journal.attempt_records import CheckpointSeen
from recovery.journal.folder.heartbeat import Heartbeat
from recovery.journal.job_records import JobOpened
from recovery.journal.store import Journal
from recovery.local.report.overview import view_job
from tests.support.clocks import FakeClock

pytestmark = pytest.mark.process  # a journal writes in a thread

FULL = "decisions can't be recorded (since 2026-11-30 12:00:00 UTC), so nothing is restarted: disk full"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder as its launcher does."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_running_job_whose_disk_is_full_is_not_managed_and_says_since_when_and_why(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    with closing(Journal(tmp_path / "journal.db", clock, "boot-1")) as journal:
        journal.append(JobOpened("job-1", "llama"))
    with held(tmp_path), closing(Heartbeat(tmp_path, clock, "boot-1")) as heartbeat:
        heartbeat.beat()
        before = view_job(tmp_path, clock.now_s)
        heartbeat.beat(FULL)
        during = view_job(tmp_path, clock.now_s)
    after = view_job(tmp_path, clock.now_s)

    assert (before.state, before.problem) == ("starting", None)
    assert (during.state, during.problem) == ("not managed", FULL)
    assert (after.state, after.problem) == ("interrupted", None), "its launcher has left"


def test_a_checkpoint_that_was_removed_is_not_shown_as_the_newest(tmp_path: Path) -> None:
    job, saved = tmp_path / "job", tmp_path / "ckpt" / "step_20.pt"
    job.mkdir()
    (saved.parent / BESIDE).mkdir(parents=True)
    saved.touch()
    clock = FakeClock()
    with closing(Journal(job / "journal.db", clock, "boot-1")) as journal:
        journal.append(JobOpened("job-1", "llama"))
        journal.append(CheckpointSeen(str(saved), 20, "torch", "torch.save file", 1.0, "whole"))

    def seen() -> tuple[bool, str]:
        view = view_job(job, clock.now_s, clock.unix_s())
        return view.checkpoint is not None, view.removed_checkpoint

    assert seen() == (True, "")
    saved.unlink()
    assert seen() == (False, str(saved))
    (saved.parent / BESIDE).rmdir()
    assert seen() == (True, ""), "another machine's folder: not known"
