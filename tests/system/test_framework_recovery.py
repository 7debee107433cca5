"""Jobs of each framework, as the README's table starts them, killed at the worst moments.

One job a framework, each of whose attempts but the last is killed at another point. No attempt
begins at zero that need not, each begins from the newest checkpoint that was whole, and the trained
parameters are those of an undisturbed run. `tests.support.kill_points` has the points.
"""

import dataclasses
from pathlib import Path

import pytest

from tests.support.framework_saves import require
from tests.support.kill_points import FRAMEWORKS, Kill, Point, run, started

pytestmark = [pytest.mark.process, pytest.mark.torch, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_job_killed_at_each_point_goes_on_from_the_newest_whole_checkpoint(
    name: str, tmp_path: Path
) -> None:
    framework = FRAMEWORKS[name]
    found_by = require(framework.needs, is_parallel=framework.is_parallel)
    folder = tmp_path / "killed"
    finals = run(folder, framework, [framework.kill(point) for point in Point], found_by)

    attempts = started(folder)
    killed = [int(attempt) for attempt in (folder / "kills").read_text().split()]
    for point, attempt in zip(Point, killed, strict=True):
        restore = attempts[attempt + 1].choice.restore
        step = framework.step_after(point)
        assert (restore and restore.step) == step, f"{point}: {attempts[attempt + 1].choice}"
        if restore is not None:
            paths = [folder / framework.folder / save.format(step=step) for save in framework.saves]
            assert Path(restore.path) in paths, point
    if framework.is_deterministic:
        assert set(finals) == set(run(tmp_path / "undisturbed", framework, (), found_by))


def test_trainers_second_rank_dies_in_a_save_and_both_go_on_from_the_one_before(
    tmp_path: Path,
) -> None:
    framework = dataclasses.replace(FRAMEWORKS["hf_trainer"], ranks=2)
    found_by = require(framework.needs)
    state = f"{framework.folder}/checkpoint-30/trainer_state.json"  # rank 0's last file of a save
    kill = Kill("^save .*checkpoint-30/rng_state_1", rank=1, behind=state)

    finals = run(tmp_path / "killed", framework, [kill], found_by)

    restores = [one.choice.restore for one in started(tmp_path / "killed").values()]
    assert [restore and restore.step for restore in restores] == [None, 20]
    assert len(finals) == 1  # rank 0's, of the second attempt
    out = tmp_path / "killed" / framework.folder
    assert (out / "checkpoint-80" / "rng_state_1.pth").exists()
