"""The rules of starting, abandoning and killing collector children. No thread, no process."""

import socket
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from agent.nvml.child_rules import (
    ABANDONED_MAX,
    BACKOFF,
    FORGET_S,
    HEALTHY_S,
    OPEN_S_MAX,
    SILENT_S_MAX,
    SPIN_S_MIN,
    STARVED_S_MAX,
    TRIAL,
    UNTRACED_S,
    LeftOut,
    ProcessWork,
)
from agent.nvml.children import ABANDONED_S_MAX, DriverTraces
from agent.nvml.fields import NO_GPU
from agent.nvml.known_gpus import GPUS_MAX, MonitorState, MonitorView
from agent.nvml.supervisor import PAUSE_S, GpuSupervisor
from tests.support.gpu_children import FakeChild

CALL_S_MAX = 10.0
INTERVAL_S = 1.0


class World:
    """A supervisor with fake children. Nothing happens but what a test does."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.children: list[FakeChild] = []
        self.traces: DriverTraces | None = None
        self.supervisor = GpuSupervisor(
            INTERVAL_S, self._spawn, self.now_s, CALL_S_MAX, read_traces=lambda: self.traces
        )
        self.look()

    def _spawn(self, _interval_s: float, skipped: Sequence[int], now_s: float) -> FakeChild:
        self.children.append(FakeChild(skipped, now_s))
        return self.children[-1]

    def look(self, *, is_asked: bool = True) -> None:
        if is_asked:
            self.supervisor.note_question(self.now_s)
        self.supervisor.tick(self.now_s)

    def pass_time(self, seconds: float, *, is_asked: bool = True) -> None:
        """Let time pass in pieces: the supervisor looks all the while."""
        while seconds > 0:
            self.now_s += min(seconds, 5.0)
            seconds -= 5.0
            for child in self.children:
                if child.is_connected and child.current is None:
                    child.reported_at_s = self.now_s  # it goes on talking
            self.look(is_asked=is_asked)

    def newest(self, count: int) -> FakeChild:
        """Return the newest child, which is this one of all so far."""
        self.look()
        assert len(self.children) == count
        return self.children[-1]

    def hang(self, child: FakeChild, name: str = "nvmlDeviceGetPowerUsage", gpu: int = 3) -> None:
        child.hang(self.now_s, name, gpu)

    def view(self) -> MonitorView:
        return self.supervisor.view(self.now_s)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for child in world.children:
        child.channel.close()
        child.close()


def test_replacement_leaves_out_the_gpu_that_the_first_one_hangs_on(world: World) -> None:
    first = world.newest(1)
    world.hang(first, gpu=3)
    world.pass_time(CALL_S_MAX + 1)

    second = world.newest(2)

    assert second.skipped == [3]
    assert not first.is_connected
    assert world.view().stuck[0].gpu == 3


def test_call_within_its_deadline_is_left_alone(world: World) -> None:
    child = world.newest(1)
    world.hang(child)
    world.pass_time(CALL_S_MAX)

    assert child.is_connected
    assert world.view().stuck == ()


def test_setting_up_the_driver_may_take_longer_than_a_reading(world: World) -> None:
    child = world.newest(1)
    world.hang(child, "nvmlInitWithFlags", NO_GPU)
    world.pass_time(OPEN_S_MAX)
    is_connected_at_limit = child.is_connected

    world.pass_time(1)

    assert is_connected_at_limit
    assert not child.is_connected


def test_child_that_is_in_no_call_and_says_nothing_is_replaced(world: World) -> None:
    child = world.newest(1)
    world.now_s += PAUSE_S  # each of these looks is in time, and the child is silent
    while child.is_connected and world.now_s < 1100:
        world.look()
        world.now_s += 5

    assert not child.is_connected
    assert world.now_s - 5 > 1000 + SILENT_S_MAX + INTERVAL_S
    assert "silent for 30 s" in world.view().problem


def hang_on(world: World, *gpus: int) -> None:
    """Have one collector after the other hang, each on the next of these GPUs."""
    for gpu in gpus:
        child = world.children[-1]
        world.hang(child, gpu=gpu)
        world.pass_time(CALL_S_MAX + 1)
        assert not child.is_connected


def test_gpus_that_hang_one_after_the_other_are_all_left_out_and_the_rest_is_read(
    world: World,
) -> None:
    hang_on(world, 1, 5)
    world.pass_time(5)

    third = world.newest(3)

    assert third.skipped == [1, 5]
    assert third.is_connected
    assert sorted(call.gpu for call in world.view().stuck) == [1, 5]


def test_no_collector_is_started_while_as_many_hang_as_may(world: World) -> None:
    hang_on(world, *range(ABANDONED_MAX))

    world.pass_time(2 * BACKOFF.cap_s)

    assert len(world.children) == ABANDONED_MAX
    assert "hang: not starting another" in world.view().problem
    world.children[0].current = None  # its call comes back
    assert world.newest(ABANDONED_MAX + 1).skipped == list(range(ABANDONED_MAX))


def test_only_one_replacement_is_started_while_nvml_as_a_whole_hangs(world: World) -> None:
    for number in (1, 2):
        world.hang(world.newest(number), "nvmlInitWithFlags", NO_GPU)
        world.pass_time(OPEN_S_MAX + 10)

    world.pass_time(2 * BACKOFF.cap_s)

    assert len(world.children) == 2
    world.children[0].current = None
    assert world.newest(3).skipped == []


def test_pause_of_the_agent_is_no_hang(world: World) -> None:
    child = world.newest(1)
    world.hang(child)  # frozen in a call, like the agent itself
    world.look()
    world.now_s += max(PAUSE_S, CALL_S_MAX, 600.0) + 1
    world.look(is_asked=False)
    is_connected_after_pause = child.is_connected

    world.pass_time(CALL_S_MAX + 1)

    assert is_connected_after_pause
    assert not child.is_connected


def test_call_whose_process_gets_no_processor_is_no_hang(world: World) -> None:
    child = world.newest(1)
    world.hang(child)
    child.process_work = ProcessWork(is_ready=True, ran_s=7.0)
    world.pass_time(10 * CALL_S_MAX)
    is_connected_while_starved = child.is_connected

    child.process_work = ProcessWork(is_ready=False, ran_s=7.0)  # it waits in the driver now
    world.look()

    assert is_connected_while_starved
    assert not child.is_connected


def test_call_that_spins_in_the_driver_is_a_hang_once_it_has_run_for_a_while(world: World) -> None:
    child = world.newest(1)
    world.hang(child)
    child.process_work = ProcessWork(is_ready=True, ran_s=7.0)
    world.pass_time(CALL_S_MAX + 1)
    child.process_work = ProcessWork(is_ready=True, ran_s=7.0 + SPIN_S_MIN - 0.01)
    world.look()
    is_connected_below = child.is_connected

    child.process_work = ProcessWork(is_ready=True, ran_s=7.0 + SPIN_S_MIN)
    world.look()

    assert is_connected_below
    assert not child.is_connected


def test_child_that_gets_no_processor_for_minutes_is_replaced(world: World) -> None:
    child = world.newest(1)
    world.hang(child)
    child.process_work = ProcessWork(is_ready=True, ran_s=7.0)
    world.pass_time(CALL_S_MAX + STARVED_S_MAX)
    is_connected_before = child.is_connected

    world.pass_time(10)

    assert is_connected_before
    assert not child.is_connected


def test_each_call_that_is_overdue_gets_a_first_look_of_its_own(world: World) -> None:
    child = world.newest(1)
    world.hang(child)
    child.process_work = ProcessWork(is_ready=True, ran_s=7.0)
    world.pass_time(CALL_S_MAX + 1)  # this one returns, late
    child.current = None
    world.pass_time(5)
    child.hang(world.now_s, "nvmlDeviceGetTemperature")
    child.process_work = ProcessWork(is_ready=True, ran_s=9.0)

    world.pass_time(CALL_S_MAX + 1)

    assert child.is_connected


def test_child_whose_process_cannot_be_looked_at_is_judged_by_the_clock(world: World) -> None:
    child = world.newest(1)
    world.hang(child)
    child.process_work = None

    world.pass_time(CALL_S_MAX + 1)

    assert not child.is_connected


def test_abandoned_child_is_killed_after_a_minute_and_once(world: World) -> None:
    child = world.newest(1)
    world.hang(child)
    world.pass_time(CALL_S_MAX + 1)
    is_connected = child.is_connected
    signals_before = list(child.signals)

    world.pass_time(2 * ABANDONED_S_MAX)

    assert not is_connected
    assert signals_before == []  # no signal while it may harm a driver call
    assert child.signals == ["kill"]


def left_out_and_ended(world: World, gpu: int) -> FakeChild:
    """Have a GPU left out whose call then came back; return the collector of the others."""
    first = world.newest(1)
    world.hang(first, gpu=gpu)
    world.pass_time(CALL_S_MAX + 1)
    second = world.newest(2)
    first.current = None
    return second


def test_gpu_that_was_left_out_is_tried_alone_and_taken_back_when_it_answers(world: World) -> None:
    second = left_out_and_ended(world, gpu=3)
    world.pass_time(TRIAL.first_s + 5)

    trial = world.newest(3)
    was_read_meanwhile = second.is_connected
    trial.say(kind="sweep", duration_s=0.1)
    world.look()  # the next one starts once both have ended

    assert set(range(GPUS_MAX)) - set(trial.skipped) == {3}
    assert was_read_meanwhile
    assert world.newest(4).skipped == []


def test_trial_that_hangs_costs_the_other_gpus_nothing_and_the_next_waits_longer(
    world: World,
) -> None:
    second = left_out_and_ended(world, gpu=3)
    world.pass_time(TRIAL.first_s + 5)
    trial = world.newest(3)
    world.hang(trial, gpu=3)
    world.pass_time(CALL_S_MAX + 1)
    is_trial_connected = trial.is_connected
    trial.current = None
    world.pass_time(TRIAL.first_s + 5)
    children_early = len(world.children)

    world.pass_time(TRIAL.first_s + 5)

    assert not is_trial_connected
    assert children_early == 3
    assert world.newest(4).skipped == trial.skipped
    assert second.is_connected


def test_gpu_is_not_tried_while_a_process_hangs_on_it(world: World) -> None:
    world.hang(world.newest(1), gpu=3)
    world.pass_time(CALL_S_MAX + 1)
    world.newest(2)

    world.pass_time(2 * TRIAL.first_s)

    assert len(world.children) == 2


def test_gpu_that_goes_on_hanging_is_tried_ever_less_often_up_to_once_an_hour() -> None:
    left_out = LeftOut()
    now_s = 0.0
    waits_s = []
    for _ in range(9):
        left_out.add(3, now_s)
        due_s = next(s for s in range(0, 7200, 10) if left_out.due(now_s + s, ()) == 3)
        waits_s.append(due_s)
        now_s += due_s

    assert waits_s == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    left_out.add(3, now_s + FORGET_S)
    assert left_out.due(now_s + FORGET_S + TRIAL.first_s, ()) == 3
    assert TRIAL.cap_s == 3600


def test_children_that_die_at_once_are_started_less_and_less_often(world: World) -> None:
    started_at_s = []
    for number in range(1, 6):
        child = world.newest(number)
        started_at_s.append(child.started_at_s)
        child.its_end.close()
        while len(world.children) == number:
            world.now_s += 0.5
            world.look()

    gaps_s = [after - before for before, after in pairwise(started_at_s)]
    assert gaps_s == [1.0, 2.0, 4.0, 8.0]


def test_child_that_dies_after_a_healthy_minute_is_soon_replaced(world: World) -> None:
    for number in range(1, 4):
        world.newest(number).its_end.close()
        world.pass_time(BACKOFF.cap_s)
    world.pass_time(HEALTHY_S)
    child = world.newest(4)

    child.its_end.close()
    world.look()
    world.pass_time(BACKOFF.first_s)
    world.newest(5).its_end.close()  # the back-off has begun anew
    world.look()
    world.pass_time(BACKOFF.first_s)

    assert len(world.children) == 6


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "invented"},
        {"kind": "node", "driver": 1},
        {"kind": "event", "gpu": 1000, "event": "xid", "code": 1},
    ],
)
def test_child_that_sends_nonsense_is_replaced(world: World, message: dict[str, object]) -> None:
    child = world.newest(1)
    child.say(**message)

    world.look()

    assert not child.is_connected
    assert world.view().state is MonitorState.BROKEN


def test_only_the_hosts_own_library_tells_that_the_driver_was_replaced(world: World) -> None:
    child = world.newest(1)
    child.say(kind="failed", code=18, error="Driver/library version mismatch")
    world.look()
    is_mismatched, state = world.view().is_mismatched, world.view().state

    child.say(kind="failed", code=999, error="Unknown Error")
    world.look()

    assert (is_mismatched, state) == (True, MonitorState.BROKEN)
    assert not world.view().is_mismatched


def fail_to_find_a_library(world: World) -> None:
    world.children[-1].say(kind="failed", code=12, error="NVML Shared Library Not Found")
    world.children[-1].its_end.shutdown(socket.SHUT_RDWR)
    world.look()


@pytest.mark.parametrize(
    "loaded",
    [
        pytest.param(DriverTraces(True, False, 1), id="module"),
        pytest.param(DriverTraces(False, False, 2), id="library"),
        pytest.param(DriverTraces(False, True, 1), id="device"),
    ],
)
def test_node_without_a_driver_starts_no_second_child_until_a_driver_shows(
    world: World, loaded: DriverTraces
) -> None:
    world.traces = DriverTraces(False, False, 1)
    world.newest(1)
    fail_to_find_a_library(world)
    world.pass_time(UNTRACED_S / 2)
    state, starts = world.view().state, len(world.children)
    is_waiting = world.supervisor.waits_for_driver

    world.traces = loaded
    world.look()

    assert (state, starts, is_waiting) == (MonitorState.ABSENT, 1, True)
    assert (len(world.children), world.supervisor.waits_for_driver) == (2, False)


@pytest.mark.parametrize("traces", [None, DriverTraces(True, False, 1)])
def test_driver_that_is_loaded_or_may_be_is_tried_again_soon(
    world: World, traces: DriverTraces | None
) -> None:
    world.traces = traces
    world.newest(1)
    fail_to_find_a_library(world)

    world.pass_time(10)

    assert len(world.children) == 2


def test_nobody_asking_lets_go_of_the_gpus_and_asking_takes_them_up(world: World) -> None:
    child = world.newest(1)
    world.pass_time(100, is_asked=False)
    state = world.view().state
    is_connected = child.is_connected

    needs_tick = world.supervisor.note_question(world.now_s)

    assert (state, is_connected, needs_tick) == (MonitorState.RELEASED, False, True)
    assert world.view().state is MonitorState.STARTING  # whoever asked waits for a first answer
    assert world.newest(2).is_connected


def test_released_gpus_are_let_go_at_once_and_a_child_that_stays_is_killed_in_ten_seconds(
    world: World,
) -> None:
    stuck = world.newest(1)
    world.hang(stuck)
    world.supervisor.release(600.0, world.now_s)
    world.look()
    pids, signals_before = world.supervisor.children.pids(), list(stuck.signals)

    world.pass_time(11)

    assert (pids, signals_before, stuck.signals) == ([4242], [], ["kill"])
    stuck.current = None
    world.look()
    assert world.supervisor.children.pids() == []


def test_release_that_is_forgotten_ends_by_itself(world: World) -> None:
    child = world.newest(1)
    world.supervisor.release(600.0, world.now_s)
    world.pass_time(600 - 1)
    children_while_released = len(world.children)

    world.pass_time(1)

    assert (child.is_connected, children_while_released) == (False, 1)
    assert world.newest(2).is_connected
    assert world.view().released_s is None


def test_child_with_a_closed_connection_is_no_channel_to_wait_for(world: World) -> None:
    child = world.newest(1)
    before: list[socket.socket] = world.supervisor.children.channels()

    child.its_end.close()
    world.look()

    assert before == [child.channel]
    assert world.supervisor.children.channels() == []
