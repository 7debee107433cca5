"""A job of Lightning that keeps snapshots, as `examples/frameworks` has it: killed ranks lose no more than the steps since.

Checkpoints of Lightning begin an epoch's data anew, so this is a job of its own; the others': `test_framework_recovery.py`. Two ranks, of which one is killed in a step, then the other in a later attempt. Each attempt begins from memory, and the trained
parameters are those of an undisturbed attempt, the first.
"""

import dataclasses
from pathlib import Path

import pytest

from tests.support.framework_saves import require
from tests.support.kill_points import FRAMEWORKS, UNDISTURBED, Kill, run, started

pytestmark = [pytest.mark.process, pytest.mark.torch, pytest.mark.timeout(600)]
EVERY = 2  # so that none of the checkpoints, of steps 10, 20 and so on, is newer


def test_killed_ranks_go_on_from_memory_and_end_as_if_undisturbed(tmp_path: Path) -> None:
    framework = dataclasses.replace(
        FRAMEWORKS["lightning"], ranks=2, arguments=(f"--snapshot-every={EVERY}",)
    )
    found_by = require(framework.needs)
    # Counted in one attempt.
    kills = [UNDISTURBED, Kill("^step$", 18, rank=1), Kill("^step$", 12, rank=0)]

    finals = run(tmp_path / "killed", framework, kills, found_by)

    choices = [one.choice for one in started(tmp_path / "killed").values()][2:]
    steps = [choice.snapshot and choice.snapshot.step for choice in choices]
    assert all(step is not None and step % EVERY == 0 for step in steps), choices
    assert 6 <= steps[0] < steps[1]
    assert len(finals) == 2
    assert finals[0] == finals[1]
