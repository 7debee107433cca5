"""The schedule: due times by the monotonic clock, whatever happens to the wall clock."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sampling.schedule import LATE_S, Schedule, next_due_s
from rankmend.clock import SystemClock
from tests.support.agent import PATIENT, ROOT, FakeClock
from tests.support.eventually import eventually

pytestmark = pytest.mark.process


@PATIENT
@given(
    late_s=st.floats(min_value=-0.05, max_value=2e9),
    interval_s=st.floats(min_value=0.1, max_value=3600),
)
def test_next_run_is_after_now_and_at_most_one_interval_away(
    late_s: float, interval_s: float
) -> None:
    due_s = 1000.0
    now_s = due_s + late_s

    next_s = next_due_s(due_s, interval_s, now_s)

    assert now_s < next_s <= now_s + interval_s + 0.051


@pytest.mark.parametrize(
    ("now_s", "expected_s"),
    [(10.0, 12.0), (11.9, 12.0), (12.0, 14.0), (10_001.0, 10_002.0), (9.97, 12.0)],
)
def test_runs_stay_multiples_of_the_interval_apart_and_missed_ones_are_skipped(
    now_s: float, expected_s: float
) -> None:
    assert next_due_s(10.0, 2.0, now_s) == expected_s


class SeenClock(FakeClock):
    """A clock that counts how often it is looked at."""

    looks = 0

    def now_s(self) -> float:
        self.looks += 1
        return super().now_s()


class Counter:
    """An action that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


def test_action_is_repeated_until_it_is_removed() -> None:
    schedule, action, other = Schedule(SystemClock()), Counter(), Counter()
    schedule.repeat("one", 0.1, action)
    schedule.repeat("other", 0.1, other)
    schedule.start()
    try:
        eventually(lambda: action.calls >= 3, "three calls")
        schedule.remove("one")
        eventually(lambda: other.calls >= 3, "the other to go on")
        calls, others = action.calls, other.calls
        eventually(lambda: other.calls >= others + 3, "three more calls of the other")
    finally:
        schedule.stop()

    assert action.calls - calls <= 1  # one may have been on its way


def test_storm_of_requests_is_one_call_and_a_later_one_another() -> None:
    clock, action = FakeClock(), Counter()  # time stands still during the storm
    schedule = Schedule(clock)
    schedule.start()
    try:
        for _request in range(20):
            schedule.once("now", 0.3, action)
        clock.time_s += 0.3
        eventually(lambda: action.calls == 1, "the first call")
        schedule.once("now", 0.0, action)
        eventually(lambda: action.calls == 2, "the second call")
    finally:
        schedule.stop()

    assert action.calls == 2


def test_wall_clock_that_is_set_back_delays_nothing() -> None:
    """The monotonic clock runs on while the dates of the jobs stay a long way off."""
    clock, action, waiting = FakeClock(), Counter(), Counter()
    schedule = Schedule(clock)
    schedule.repeat("hourly", 3600.0, action)
    schedule.start()
    try:
        eventually(lambda: action.calls == 1, "the first call")
        schedule.once("soon", 3600.0, waiting)
        clock.time_s += 3600.0 + LATE_S  # still within patience: the job may come by itself
        schedule.watch()
        calls_within_patience = action.calls
        clock.time_s += 0.1
        schedule.watch()
        eventually(lambda: action.calls == 2 and waiting.calls == 1, "what was overdue")
        schedule.watch()
    finally:
        schedule.stop()

    assert calls_within_patience == 1


def test_wall_clock_that_is_set_forward_calls_nothing_too_early() -> None:
    """The dates of the jobs come while the monotonic clock stands: far too early."""
    clock, early = SeenClock(), Counter()
    schedule = Schedule(clock)
    schedule.repeat("often", 0.1, early)
    schedule.start()
    try:
        eventually(lambda: early.calls == 1, "the first call")
        looks = clock.looks  # each is a time at which the job came and was sent away
        eventually(lambda: clock.looks >= looks + 5, "the job to come five times")
        calls_while_time_stood = early.calls
        clock.time_s += 0.1
        eventually(lambda: early.calls == 2, "the second call, when it is due")
    finally:
        schedule.stop()

    assert calls_while_time_stood == 1


def test_action_that_raises_is_called_again() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("broken action")

    schedule = Schedule(SystemClock())
    schedule.repeat("one", 0.1, fail)
    schedule.start()
    try:
        eventually(lambda: len(calls) >= 3, "three calls")
    finally:
        schedule.stop()


def test_schedule_loads_no_asyncio_and_no_metadata_and_leaves_the_real_ones_to_others() -> None:
    script = (
        "import sys\n"
        "from agent.sampling.schedule import Schedule\n"
        "from rankmend.clock import SystemClock\n"
        "Schedule(SystemClock())\n"
        "assert 'apscheduler.util' in sys.modules\n"
        "assert not {'asyncio', 'importlib.metadata'} & sys.modules.keys()\n"
        "import importlib.metadata\n"
        "assert importlib.metadata.version('apscheduler') != '0'\n"
        "import asyncio\n"
        "asyncio.run(asyncio.sleep(0))\n"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)

    assert done.returncode == 0
