"""The controller and its choice on real journals and folders."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.finder import CheckpointFinder
from recovery.journal.attempt_records import (
    AttemptStarted,
)
from recovery.journal.store import Journal
from recovery.launcher.run.one_node import FolderCheckpoints
from recovery.messages.candidates import (
    CheckpointSettings,
    CheckpointVerdict,
)
from recovery.messages.exchange import (
    Restore,
)
from tests.support.controller_bench import Bench, FakeStorage

pytestmark = [pytest.mark.process, pytest.mark.safety]


class RealStorage(FakeStorage):
    """A real folder, looked at as `rankmend run` on one node does, with a clean-up that comes after the choice."""

    def __init__(self, folder: Path, clean_up: Callable[[], None]) -> None:
        super().__init__()
        self.on_advance = clean_up
        self._watch = CheckpointWatch(
            CheckpointFinder(folder, CheckpointSettings(grace_s=0.0), SystemClock()), SystemClock()
        )
        self._found = FolderCheckpoints(self._watch, None)

    def candidates(self, is_training: bool) -> tuple[CheckpointVerdict, ...]:
        return self._found.candidates(is_training)

    def check_on(self, path: str) -> None:
        """Read nothing more: there are no files."""

    def is_there(self, path: str) -> bool:
        return self._found.is_there(path)


def test_the_controller_on_a_real_journal_is_taken_up_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    bench = Bench()
    bench.journal = Journal(path, bench.clock, "boot-1")
    bench.start().tell()
    bench.run_attempt(1)
    bench.step(1, 1)
    bench.step(2, 2)
    bench.journal.close()

    after = Bench()
    after.empty_through = 1
    after.journal = Journal(path, after.clock, "boot-1")
    after.storage = bench.storage
    after.start().tell()
    after.journal.close()

    assert after.orders[-1].attempt == 2
    assert after.control.ledger.highest_step == 1  # step 2 came within a milestone's pause


def test_real_folder_that_is_removed_after_the_choice_is_not_ordered(tmp_path: Path) -> None:
    for step in (10, 20):
        (tmp_path / f"step-{step}").mkdir()
        np.savez(tmp_path / f"step-{step}" / "rank0.npz", step=step)
        (tmp_path / f"step-{step}" / "COMMIT").write_text("whole")
    bench = Bench()
    bench.storage = RealStorage(
        tmp_path, lambda: shutil.rmtree(tmp_path / "step-20", ignore_errors=True)
    )

    bench.start().tell()

    (started,) = bench.records(AttemptStarted)
    assert started.choice.restore == Restore(str(tmp_path / "step-10"), 10)
    assert [one.path for one in started.choice.passed_over] == [str(tmp_path / "step-20")]
