"""A job whose launcher can't write its journal: what `rankmend status` and the console say of it."""

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

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
