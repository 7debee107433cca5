"""The runner: collectors are isolated, and old values never look healthy."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest
from prometheus_client import generate_latest

from agent.assembly.families import FAMILIES
from agent.metrics import Metric
from agent.page.application import make_registry
from agent.sampling.collection import SERIES_MAX, CollectorOutcome, Slot
from agent.sampling.demand import Demand
from agent.sampling.runner import HURRY_S_MIN, Runner
from agent.sampling.schedule import Schedule
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import FakeClock
from tests.support.collectors import LOAD, FakeCollector, StuckCollector
from tests.support.eventually import eventually

pytestmark = pytest.mark.process


class OrderedCollector(FakeCollector):
    """Notes when it ran among others."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__(name)
        self.order = order

    def collect(self) -> Iterator[Metric]:
        self.order.append(self.name)
        return super().collect()


def make_slot(*answers: Metric | Exception) -> tuple[Slot, FakeCollector, FakeClock]:
    collector, clock = FakeCollector("host", *answers), FakeClock()
    return Slot(collector, 1.0, clock, FAMILIES), collector, clock


def test_source_that_a_node_lacks_is_looked_for_every_five_seconds_and_one_that_is_there_at_its_interval() -> (
    None
):
    slot, collector, clock = make_slot(NoSourceError("none here"))
    runs = []
    for second in range(16):
        if not slot.may_wait(clock.now_s()):
            slot.run()
            runs.append(second)
        collector.answers = (LOAD,) if second == 10 else collector.answers
        clock.time_s += 1.0

    assert runs == [0, 5, 10, 15]
    assert slot.view(clock.now_s()).outcome is CollectorOutcome.MEASURED
    assert not slot.may_wait(clock.now_s())


def test_absent_source_that_hangs_becomes_stale_all_the_same() -> None:
    slot, _collector, clock = make_slot(NoSourceError("none here"))
    slot.run()
    first = slot.view(clock.now_s())

    clock.time_s += 5.0
    again = slot.view(clock.now_s())
    clock.time_s += 5.1
    late = slot.view(clock.now_s())

    assert again is first
    assert late.is_stale
    assert late.age_s == pytest.approx(10.1)


def test_values_carry_their_age_and_are_dropped_past_the_bound() -> None:
    slot, _collector, clock = make_slot(LOAD)
    slot.run()

    at_bound = slot.view(clock.time_s + 10.0)
    past_bound = slot.view(clock.time_s + 10.01)

    assert (at_bound.age_s, at_bound.is_stale, at_bound.metrics) == (10.0, False, (LOAD,))
    assert (past_bound.is_stale, past_bound.metrics) == (True, ())
    assert (
        past_bound.outcome is CollectorOutcome.MEASURED
    )  # age alone tells: nothing was measured anew


def test_the_same_tuple_is_the_same_answer_also_after_a_failure() -> None:
    kept = (LOAD,)
    given: list[tuple[Metric, ...] | None] = [kept, kept, None, kept]

    class Standing:
        name, interval_s = "standing", 1.0

        def collect(self) -> tuple[Metric, ...]:
            answer = given.pop(0)
            if answer is None:
                raise NoSourceError("gone")
            return answer

    clock, collector = FakeClock(), Standing()
    slot = Slot(collector, 1.0, clock, FAMILIES)

    slot.run()
    first = slot.view(clock.now_s()).answer
    slot.run()
    again = slot.view(clock.now_s()).answer
    slot.run()
    gone = slot.view(clock.now_s())
    slot.run()
    back = slot.view(clock.now_s()).answer

    assert again is first
    assert gone.metrics == ()
    assert back.metrics == first.metrics == kept
    assert back.revision != first.revision


def test_collector_that_never_answered_becomes_stale() -> None:
    slot, _collector, clock = make_slot(LOAD)

    assert slot.view(clock.time_s).outcome is CollectorOutcome.PENDING
    assert slot.view(clock.time_s + 11).is_stale


def test_broken_collector_keeps_its_last_values_with_their_age() -> None:
    slot, collector, clock = make_slot(LOAD)
    slot.run()
    collector.answers = (LOAD, SourceError("no answer from the device"))
    clock.time_s += 2
    slot.run()

    view = slot.view(clock.time_s)

    assert (view.outcome, view.failures) == (CollectorOutcome.BROKEN, 1)
    assert (view.age_s, view.metrics) == (2.0, (LOAD,))
    assert view.error == "no answer from the device"


def test_absent_collector_has_no_values_and_is_no_failure() -> None:
    slot, collector, clock = make_slot(LOAD)
    slot.run()
    collector.answers = (NoSourceError("no such device"),)
    slot.run()

    view = slot.view(clock.time_s)

    assert (view.outcome, view.failures, view.metrics) == (CollectorOutcome.ABSENT, 0, ())


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((ZeroDivisionError("oops"),), "ZeroDivisionError: oops"),
        ((LOAD, LOAD), "1 series twice"),
        ((Metric("rankmend_unheard_of", 1),), "AssertionError: rankmend_unheard_of"),
        ((Metric(LOAD.name, 1, (("gpu", "0"),)),), "AssertionError: rankmend_host_load_processes"),
    ],
)
def test_whatever_a_collector_does_is_only_its_own_failure(
    answers: tuple[Metric | Exception, ...], error: str
) -> None:
    slot, _collector, clock = make_slot(*answers)

    slot.run()

    assert slot.view(clock.time_s).outcome is CollectorOutcome.BROKEN
    assert slot.view(clock.time_s).error.startswith(error)


def test_collector_without_end_is_cut_off() -> None:
    many = [Metric(LOAD.name, 1, (("window", str(number)),)) for number in range(SERIES_MAX + 1)]
    slot, _collector, clock = make_slot(*many)

    slot.run()

    assert slot.view(clock.time_s).error == "more than 10000 series"


def make_runner(clock: FakeClock, *collectors: FakeCollector) -> Runner:
    return Runner(
        collectors,
        clock,
        Schedule(SystemClock()),
        FAMILIES,
        {collector.name: 0.05 for collector in collectors},
    )


def test_stuck_collector_stops_neither_the_others_nor_the_page_and_is_not_started_again() -> None:
    clock = FakeClock()
    stuck, lively = StuckCollector("host"), FakeCollector("disk")
    runner = make_runner(clock, stuck, lively)
    runner.start()
    try:
        eventually(lambda: stuck.runs == 2, "the second run to hang")
        runs_before = lively.runs
        eventually(lambda: lively.runs >= runs_before + 5, "five more runs of the other")
        clock.time_s += 8
        page_before = generate_latest(make_registry(runner.views, FAMILIES)).decode()
        clock.time_s += 3
        eventually(lambda: not views(runner)["disk"].is_stale, "the other to answer")
        page_after = generate_latest(make_registry(runner.views, FAMILIES)).decode()
    finally:
        runner.stop()
        stuck.release.set()

    assert stuck.runs == 2
    assert 'rankmend_collector_age_seconds{collector="host"} 8.0' in page_before
    assert 'rankmend_host_load_processes{window="1m"} 3.0' in page_before
    assert 'rankmend_collector_age_seconds{collector="host"} 11.0' in page_after
    assert "rankmend_host_load_processes" not in page_after


def views(runner: Runner) -> dict[str, object]:
    return {view.name: view for view in runner.views()}


def test_reload_stops_what_is_disabled_and_starts_it_anew_later() -> None:
    clock = FakeClock()
    host, disk = FakeCollector("host", LOAD), FakeCollector("disk")
    runner = make_runner(clock, host, disk)
    runner.start()
    intervals_s = {"host": 0.05, "disk": 0.05}
    try:
        eventually(lambda: host.runs > 0, "a first run")
        runner.reload(intervals_s, disabled={"host"})
        assert list(views(runner)) == ["disk"]
        eventually(lambda: disk.runs > 3, "the other to go on")
        runner.reload(intervals_s, disabled=set())
        runs_before = host.runs
        eventually(lambda: host.runs > runs_before, "the disabled one to run again")
    finally:
        runner.stop()


def test_collector_that_no_check_reads_runs_before_a_reader_is_expected() -> None:
    clock = FakeClock()
    demand = Demand(clock.now_s)
    agent = FakeCollector("agent", LOAD)
    runner = Runner(
        (agent,),
        clock,
        Schedule(SystemClock()),
        FAMILIES,
        {"agent": 1.0},
        demand=demand,
        unread_s={"agent": 15.0},
    )
    slot = runner._slots["agent"]
    slot.run()

    clock.time_s += 1.0
    unread = runner._is_wanted(slot)
    demand.note("10.0.0.1")
    clock.time_s += 1.0
    demand.note("10.0.0.1")  # it comes each second
    expected = runner._is_wanted(slot)
    clock.time_s += 15.0  # it has gone
    old = runner._is_wanted(slot)

    assert (unread, expected, old) == (False, True, True)


def test_collector_that_was_off_is_not_stale_when_it_is_switched_on() -> None:
    clock = FakeClock()
    runner = Runner(
        [FakeCollector("host", LOAD)],
        clock,
        Schedule(SystemClock()),
        FAMILIES,
        {"host": 1.0},
        disabled={"host"},
    )
    clock.time_s += 3600

    runner.reload({"host": 1.0}, disabled=set())

    (view,) = runner.views()
    assert (view.outcome, view.is_stale, view.age_s) == (CollectorOutcome.PENDING, False, 0.0)


def test_quick_collectors_that_hang_one_after_another_stop_no_other() -> None:
    stuck = [StuckCollector("disk"), StuckCollector("thermal")]  # each quick once
    other = FakeCollector("host", LOAD)
    runner = make_runner(FakeClock(), *stuck, other)
    runner.start()
    try:
        eventually(lambda: all(one.runs == 2 for one in stuck), "both to hang")
        runs_before = other.runs
        eventually(lambda: other.runs >= runs_before + 3, "three more runs of the other")
    finally:
        runner.stop()
        for one in stuck:
            one.release.set()

    assert [one.runs for one in stuck] == [2, 2]  # none was started a second time
    eventually(
        lambda: not any(thread.name == "collect" for thread in threading.enumerate()),
        "the threads to end with the runner",
    )


def test_hurried_collector_runs_beside_its_interval_and_once_for_a_storm_of_events() -> None:
    clock = FakeClock()  # of the schedule, too: a slow machine cannot draw the storm out
    collector = FakeCollector("host", LOAD)
    schedule, witnesses = Schedule(clock), list[int]()
    runner = Runner([collector], clock, schedule, FAMILIES, {"host": 3600.0})
    runner.start()
    try:
        eventually(lambda: runner.unanswered() == (), "the first run")
        for event in range(20):  # the collector has just run, so all of these wait
            runner.hurry("host")
            schedule.once("witness", 0.0, partial(witnesses.append, event))
            eventually(lambda event=event: event in witnesses, "the schedule to work")
        runs_during_storm = collector.runs
        clock.time_s += HURRY_S_MIN
        eventually(lambda: collector.runs > 1, "the run out of turn")
        runs_after_storm = collector.runs
        clock.time_s += 2 * HURRY_S_MIN
        runner.hurry("host")
        eventually(lambda: collector.runs > runs_after_storm, "the next run out of turn")
    finally:
        runner.stop()

    assert (runs_during_storm, runs_after_storm) == (1, 2)


def test_collectors_that_are_hurried_together_run_in_order() -> None:
    clock = FakeClock()
    order: list[str] = []
    first, second = OrderedCollector("host", order), OrderedCollector("pressure", order)
    runner = Runner(
        [second, first],
        clock,
        Schedule(SystemClock()),
        FAMILIES,
        {"host": 3600.0, "pressure": 3600.0},
    )
    runner.start()
    try:
        eventually(lambda: runner.unanswered() == (), "the first runs to end")
        order.clear()
        runner.hurry("host", "disk", "pressure")  # there is no collector "disk": it is left out
        eventually(lambda: len(order) == 2, "the runs out of turn")
    finally:
        runner.stop()

    assert order == ["host", "pressure"]


def test_disabled_collector_is_not_hurried() -> None:
    clock = FakeClock()
    collector = FakeCollector("host", LOAD)
    runner = Runner(
        [collector], clock, Schedule(SystemClock()), FAMILIES, {"host": 3600.0}, disabled={"host"}
    )
    runner.start()
    clock.time_s += 10

    runner.hurry("host")
    runner.stop()

    assert collector.runs == 0
