"""A disk that does not answer for one job's journal: the others are recovered, and nothing follows from what it does not have."""

import threading
from pathlib import Path

import pytest

from recovery.journal.store import open_readonly
from tests.support.eventually import eventually
from tests.support.slow_disk import jobs_on

pytestmark = [pytest.mark.process, pytest.mark.safety]


def test_a_job_whose_journal_hangs_keeps_no_other_from_its_recovery(tmp_path: Path) -> None:
    with jobs_on(tmp_path / "state", 3) as jobs:
        stuck, *others = jobs.launchers
        eventually(lambda: all(one.attempts for one in jobs.launchers), "all jobs run")
        hangs = jobs.disk.stuck[jobs.journal_of(stuck)] = threading.Event()
        before, orders = len(jobs.disk.waits), stuck.report.revision

        stuck.kill()
        for one in others:
            one.kill()
        eventually(lambda: all(2 in one.attempts for one in others), "the others are restarted")

        assert [
            thread for thread, _path in jobs.disk.waits[before:] if thread == "controller"
        ] == []
        assert not stuck.is_ordered_anew()  # nothing is ordered that its journal does not have
        assert stuck.report.revision == orders
        hangs.set()
        eventually(lambda: 2 in stuck.attempts, "it is restarted, too")
        path = jobs.journal_of(stuck)
    entries = open_readonly(path).entries
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert b"rankmend_controller_commit_seconds_count" in jobs.measures.render()
