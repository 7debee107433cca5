"""Jobs of each framework, as the README's table starts them, killed at the worst moments.

One job a framework, each of whose attempts but the last is killed at another point. No attempt
begins at zero that need not, each begins from the newest checkpoint that was whole, and the trained
parameters are those of an undisturbed attempt, the first. `tests.support.kill_points` has the points. Where `examples/frameworks`
has snapshots, two attempts keep them: one rank is killed in a step, then the other, and the next attempt begins from memory.
"""

from pathlib import Path

import pytest

from tests.support.framework_saves import require
from tests.support.kill_points import FRAMEWORKS, run, started

pytestmark = [pytest.mark.process, pytest.mark.torch, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_job_killed_at_each_point_goes_on_from_the_newest_whole_checkpoint(
    name: str, tmp_path: Path
) -> None:
    framework = FRAMEWORKS[name]
    found_by = require(framework.needs, is_parallel=framework.is_parallel)
    folder = tmp_path / "killed"
    plan = framework.plan()
    finals = run(folder, framework, [kill for _point, kill in plan], found_by)

    attempts = started(folder)
    killed = [int(attempt) for attempt in (folder / "kills").read_text().split()]
    from_memory = []
    for (point, kill), attempt in zip(plan, killed, strict=True):
        choice = attempts[attempt + 1].choice
        if point is None:
            if kill.snapshot_every:
                from_memory.append(choice.snapshot and choice.snapshot.step)
            continue
        restore, step = choice.restore, framework.step_after(point)
        assert (restore and restore.step) == step, f"{point}: {choice}"
        assert choice.snapshot is None, point
        if restore is not None:
            paths = [folder / framework.folder / save.format(step=step) for save in framework.saves]
            assert Path(restore.path) in paths, point
    if framework.keeps_snapshots:
        first, second = from_memory
        assert 60 < first < second < 70
        assert first % 2 == second % 2 == 0
    # Of the undisturbed attempt, of the one that was killed at its very end, and of the last.
    assert len(finals) == 3
    assert len(set(finals)) == 1 or not framework.is_deterministic
