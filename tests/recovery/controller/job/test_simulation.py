import os
import time
from dataclasses import replace

import pytest

from recovery.journal.attempt_records import AttemptStarted, Cause
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import IncidentEvent, IncidentOpened, TryFailed
from recovery.journal.job_records import OutcomeKind, StopRequested
from recovery.journal.journal_rows import verify_rows
from tests.support.simulation import HORIZON_S, Scenario, SimWorld, draw_scenario

pytestmark = pytest.mark.safety

SECONDS = float(os.environ.get("RANKMEND_SIM_SECONDS", "20"))
FIRST_SEED = int(os.environ.get("RANKMEND_SIM_SEED", "1"))
SEEDS_MAX = int(os.environ.get("RANKMEND_SIM_SEEDS", "100000"))

ONE_KILL = Scenario(seed=7, steps=30)
BOUNDARIES = 64  # crossings of an undisturbed run of ONE_KILL: appends, fences, orders, copies
WAYS_TO_GIVE_UP = (
    "budget is spent",
    "attempts in a row",
    "tries failed; last error",
    "without progress before",
    "; held for",
    "are still there",
    "no attempt can start",
    "ended before any step",
    "the program itself fails",
)


def records_of(world: SimWorld) -> list[object]:
    return [entry.record for entry in verify_rows(world.disk.rows, "journal")[0]]


def test_undisturbed_run_crosses_every_boundary_that_the_crash_test_names() -> None:
    world = SimWorld(ONE_KILL).run()

    assert world.crossings == BOUNDARIES
    assert world.outcome.kind is OutcomeKind.DONE
    assert world.started == [1, 2]


@pytest.mark.parametrize("kills_launcher", [False, pytest.param(True)])
@pytest.mark.parametrize(
    "crash_at",
    [
        pytest.param(at, marks=[] if at % 10 == 1 else pytest.mark.thorough)
        for at in range(1, BOUNDARIES + 1)
    ],
)
def test_crash_at_any_boundary_ends_done_with_each_attempt_started_once(
    crash_at: int, kills_launcher: bool
) -> None:
    for seed in (7, 8, 9):
        scenario = replace(ONE_KILL, seed=seed, crashes=(crash_at,), kills_launcher=kills_launcher)

        world = SimWorld(scenario).run()

        assert world.crashed <= 1
        assert world.outcome.kind is OutcomeKind.DONE, world.outcome
        opened = [record for record in records_of(world) if isinstance(record, IncidentOpened)]
        assert len(opened) <= 1
        assert len(world.started) <= 4


@pytest.mark.parametrize("crash_at", range(1, BOUNDARIES + 1, 3))
def test_two_crashes_in_a_row_are_as_good_as_one(crash_at: int) -> None:
    scenario = replace(ONE_KILL, crashes=(crash_at, crash_at + 1), is_network_bad=True)

    world = SimWorld(scenario).run()

    assert world.outcome.kind is OutcomeKind.DONE, world.outcome


@pytest.mark.thorough
def test_random_scenarios_keep_every_rule() -> None:
    """Many seeds, as many as the time allows. RANKMEND_SIM_SEED=N SECONDS=0 runs one again."""
    until_s = time.monotonic() + SECONDS
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        scenario = draw_scenario(seed)
        try:
            check(SimWorld(scenario).run())
        except Exception as error:
            command = (
                f"RANKMEND_SIM_SEED={seed} RANKMEND_SIM_SECONDS=0 python -m pytest "
                f"tests/recovery/controller/job/test_simulation.py -k random_scenarios"
            )
            raise AssertionError(f"{scenario}\n{error}\nrun it again: {command}") from error
        if time.monotonic() >= until_s:
            break


def check(world: SimWorld) -> None:
    """State what must hold when a random run has ended."""
    scenario, outcome = world.scenario, world.outcome
    if outcome.kind is OutcomeKind.ESCALATED:
        assert any(way in outcome.reason for way in WAYS_TO_GIVE_UP), outcome.reason
        assert outcome.exit_code != 0
    if outcome.kind is OutcomeKind.DONE:
        assert outcome.exit_code == 0
        has_left_early = scenario.world_size == 1 and "clean" in scenario.faults
        bug = scenario.bug_at_step
        assert bug is None or bug >= scenario.steps or has_left_early
    started = [record for record in records_of(world) if isinstance(record, AttemptStarted)]
    assert [record.attempt for record in started] == sorted({one.attempt for one in started})
    if scenario.journal_fails is None:
        assert set(world.started) <= {record.attempt for record in started}


def test_a_planned_stop_is_no_incident_and_is_resumed_as_none() -> None:
    world = SimWorld(Scenario(seed=3, faults=(), stop_at_s=20.0, kills_launcher=True)).run()
    records = records_of(world)

    assert [outcome.kind for outcome in world.outcomes] == [OutcomeKind.STOPPED, OutcomeKind.DONE]
    assert world.outcomes[0].exit_code == 143
    assert not any(isinstance(record, IncidentOpened) for record in records)
    causes = [record.cause for record in records if isinstance(record, AttemptStarted)]
    assert causes == [Cause.FIRST, Cause.RESUMED]
    assert world.journaled.restarts == 0


def test_a_stop_during_an_incident_cancels_it() -> None:
    undisturbed = SimWorld(Scenario(seed=5)).run()
    opened_s = next(
        entry.monotonic_s - 1000.0
        for entry in verify_rows(undisturbed.disk.rows, "journal")[0]
        if isinstance(entry.record, IncidentOpened)
    )

    world = SimWorld(Scenario(seed=5, stop_at_s=opened_s + 0.1)).run()

    kinds = [type(record) for record in records_of(world)]
    events = [r.event.outcome.name for r in records_of(world) if isinstance(r, IncidentEvent)]

    assert IncidentOpened in kinds
    assert "CANCEL" in events
    assert kinds.index(StopRequested) > kinds.index(IncidentOpened)
    assert world.outcomes[0].kind is OutcomeKind.STOPPED


def test_the_death_of_the_launcher_is_a_takeover_and_no_incident() -> None:
    scenario = Scenario(seed=1, faults=(), crashes=(16,), kills_launcher=True)

    world = SimWorld(scenario).run()

    started = [record for record in records_of(world) if isinstance(record, AttemptStarted)]
    assert [record.cause for record in started] == [Cause.FIRST, Cause.TAKEOVER]
    assert not any(isinstance(record, IncidentOpened) for record in records_of(world))
    assert world.journaled.restarts == 1


def test_the_death_of_the_controller_alone_stops_no_training() -> None:
    world = SimWorld(Scenario(seed=1, faults=(), crashes=(16,), kills_launcher=False)).run()

    assert world.crashed == 1
    assert world.started == [1]


def test_a_bug_ends_the_job_after_two_equal_errors() -> None:
    world = SimWorld(Scenario(seed=2, faults=(), bug_at_step=25)).run()

    assert world.outcome.kind is OutcomeKind.ESCALATED
    assert world.outcome.exit_code == 1
    assert "the same error at step 25 in 2 attempts in a row" in world.outcome.reason
    assert "IndexError: index 17 is out of bounds" in world.outcome.reason
    assert world.started == [1, 2]


def test_a_process_that_can_not_be_killed_ends_the_job_and_nothing_is_started_beside_it() -> None:
    world = SimWorld(Scenario(seed=4, faults=("unkillable",))).run()

    assert world.outcome.kind is OutcomeKind.ESCALATED
    assert "are still there on node-1 after 30 s" in world.outcome.reason
    assert world.outcome.exit_code == 137
    assert world.started == [1]


def test_failures_without_progress_spend_the_budget() -> None:
    faults = ("early",) * 9

    world = SimWorld(Scenario(seed=6, faults=faults, steps=20)).run()

    assert world.outcome.kind is OutcomeKind.ESCALATED
    assert world.outcome.exit_code == 1
    assert len(world.started) <= 4


def test_a_failed_try_is_tried_again_within_the_same_incident() -> None:
    world = SimWorld(Scenario(seed=6, faults=("kill", "launch"), steps=40)).run()
    records = records_of(world)

    assert world.outcome.kind is OutcomeKind.DONE
    assert sum(isinstance(record, IncidentOpened) for record in records) == 1
    assert sum(isinstance(record, TryFailed) for record in records) == 1
    assert world.started == [1, 2, 3]


def test_a_torn_checkpoint_is_passed_over() -> None:
    scenario = Scenario(seed=12, faults=("kill",) * 3, torn_ratio=0.5, checkpoint_every=2)

    world = SimWorld(scenario).run()

    passed = [
        passed.reason
        for record in records_of(world)
        if isinstance(record, AttemptStarted)
        for passed in record.choice.passed_over
    ]
    assert "torn" in passed
    assert world.outcome.kind is OutcomeKind.DONE


def test_a_full_disk_stops_no_training_and_the_failure_is_handled_when_it_passes() -> None:
    scenario = Scenario(seed=1, faults=("kill",), journal_fails=(10.0, 40.0), steps=200)

    world = SimWorld(scenario).run()

    assert world.outcome.kind is OutcomeKind.DONE
    assert world.started == [1, 2]


def test_a_stop_is_obeyed_although_the_journal_can_not_be_written() -> None:
    scenario = Scenario(seed=1, faults=(), journal_fails=(10.0, HORIZON_S), stop_at_s=20.0)

    world = SimWorld(scenario)
    world.run()

    assert world.outcomes[0].kind is OutcomeKind.STOPPED
    assert world.outcomes[0].exit_code == 143
    assert "not in the journal: cannot write journal.db" in world.outcomes[0].reason


def test_every_incident_that_opened_has_ended() -> None:
    world = SimWorld(Scenario(seed=9, faults=("kill", "hang", "exit", "kill2"), steps=120)).run()
    ends = {Phase.RECOVERED, Phase.ESCALATED, Phase.CANCELLED}

    from recovery.journal.accounting import account_all

    accounts = account_all(verify_rows(world.disk.rows, "journal")[0])
    assert accounts
    assert all(account.state.phase in ends for account in accounts)
    assert all(account.total_s is not None for account in accounts)
