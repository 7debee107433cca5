"""Three controllers on one simulated database: the faults of `make jepsen` at thousands of seeds, and the same checker."""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.jepsen.checker import Rule
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import LauncherStarted
from recovery.journal.journal_rows import verify_rows
from tests.support.simulation_controllers import (
    ControllerTrouble,
    LeasedCluster,
    draw_controller_troubles,
)
from tests.support.simulation_nodes import Setting, Trouble, draw_setting

pytestmark = pytest.mark.safety

SECONDS = float(os.environ.get("RANKMEND_SIM_SECONDS", "12"))
FIRST_SEED = int(os.environ.get("RANKMEND_SIM_SEED", "1"))
SEEDS_MAX = int(os.environ.get("RANKMEND_SIM_SEEDS", "100000"))
# Of one controller's own disk and host, which have other names here.
ONE_CONTROLLERS = ("lose_state", "disk_full", "starved", "clock_jump", "crash", "stand_still")
KILL = Setting(seed=3, troubles=(Trouble("kill_rank", 25.0, 1),), steps=40)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # thousands of lines a seed
    yield
    logging.disable(logging.NOTSET)


def draw(seed: int) -> tuple[Setting, tuple[ControllerTrouble, ...]]:
    setting = draw_setting(seed)
    troubles = tuple(one for one in setting.troubles if one.kind not in ONE_CONTROLLERS)
    return replace(setting, troubles=troubles, has_two_controllers=False), draw_controller_troubles(seed)  # fmt: skip


def records_of(world: LeasedCluster, kind: type) -> list[object]:
    return [one.record for one in verify_rows(world.rows(), "job")[0] if isinstance(one.record, kind)]  # fmt: skip


@pytest.mark.thorough
def test_random_faults_of_controllers_and_database_break_no_rule(tmp_path: Path) -> None:
    """Many seeds, as many as the time allows. RANKMEND_SIM_SEED=N SECONDS=0 runs one again."""
    until_s = time.monotonic() + SECONDS
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        setting, troubles = draw(seed)
        try:
            violations = LeasedCluster(setting, troubles, tmp_path / str(seed)).run().violations()
            assert violations == ()
        except Exception as error:
            command = (
                f"RANKMEND_SIM_SEED={seed} RANKMEND_SIM_SECONDS=0 python -m pytest "
                f"tests/recovery/journal/postgres/test_simulated_controllers.py -k random"
            )
            raise AssertionError(f"{setting}\n{troubles}\n{error}\nrun it again: {command}") from error  # fmt: skip
        if seed % 100 == 0:
            print(f"seeds {FIRST_SEED} to {seed} broke no rule", flush=True)
        if time.monotonic() >= until_s:
            break
    print(f"{seed - FIRST_SEED + 1} seeds, {FIRST_SEED} to {seed}, broke no rule")


@pytest.mark.thorough
def test_without_the_databases_refusal_the_checker_finds_what_two_owners_write(
    tmp_path: Path,
) -> None:
    """Not at every seed: two controllers must write at the same time."""
    found: set[Rule] = set()
    for seed in range(1, 41):
        world = LeasedCluster(*draw(seed), tmp_path / str(seed), is_fenced=False).run()
        found |= {one.rule for one in world.violations()}
        if {Rule.SOUND, Rule.JOURNALED} <= found:
            return
    pytest.fail(f"found only {found}")


@pytest.mark.parametrize(
    "kind", ["kill", "stop", "stop_mid_write", "lose_statements", "lose_answers"]
)
def test_a_job_whose_controller_fails_for_longer_than_its_lease_is_recovered_by_another(
    tmp_path: Path, kind: str
) -> None:
    """Every controller in turn, since nobody says whose the job is; a rank dies meanwhile."""
    troubles = tuple(ControllerTrouble(kind, 22.0 + 8.0 * n, n, 7.0) for n in range(3))

    world = LeasedCluster(KILL, troubles, tmp_path / "run").run()

    assert world.has_ended
    assert world.violations() == ()
    assert len(records_of(world, IncidentOpened)) == 1
    assert len(records_of(world, LauncherStarted)) > 1


@pytest.mark.parametrize("deaf", [(0,), (0, 1)], ids=str)
def test_a_controller_that_no_launcher_reaches_leaves_its_jobs_to_one_that_they_reach(
    tmp_path: Path, deaf: tuple[int, ...]
) -> None:
    troubles = tuple(ControllerTrouble("cut_launchers", 22.0, number, 1e9) for number in deaf)

    world = LeasedCluster(KILL, troubles, tmp_path / "run").run()

    assert world.has_ended
    assert world.violations() == ()
    assert len(records_of(world, IncidentOpened)) == 1


@pytest.mark.thorough
def test_a_crash_at_any_boundary_breaks_no_rule(tmp_path: Path) -> None:
    whole = LeasedCluster(KILL, (), tmp_path / "whole").run()

    for crash_at in range(1, whole.crossings, 16):
        setting = replace(KILL, crashes=(crash_at,))
        world = LeasedCluster(setting, (), tmp_path / str(crash_at)).run()

        assert world.violations() == ()
        assert world.crashed == 1
