"""The rules of starting, abandoning and killing collector children, with children that are fakes."""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from agent.nvml.child_protocol import NO_GPU, NvmlCall
from agent.nvml.left_out import FORGET_S, TRIAL, LeftOut
from agent.nvml.monitor import (
    ABANDONED_MAX,
    ABANDONED_S_MAX,
    BACKOFF,
    GPUS_MAX,
    OPEN_S_MAX,
    PAUSE_S,
    GpuMonitor,
    MonitorState,
)
from agent.nvml.release import ReleaseFile
from rankmend.errors import SourceError
from tests.support.agent import FakeClock, wait_for

CALL_S_MAX = 10.0


class FakeProcess:
    def __init__(self) -> None:
        self.signals: list[str] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(f"signal {int(number)}")

    def kill(self) -> None:
        self.signals.append("kill")

    def wait(self, timeout: float) -> int:
        return 0


class FakeChild:
    """A child that does what a test tells it; one in a call can't be killed, as in D state."""

    def __init__(self, skipped: Sequence[int], now_s: float) -> None:
        self.skipped = list(skipped)
        self.started_at_s = self.heard_at_s = now_s
        self.channel, self.its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self.process = FakeProcess()
        self.pid = 4242
        self.is_connected = True
        self.stuck_call: NvmlCall | None = None
        self.killed_at_s: float | None = None
        self.current: NvmlCall | None = None
        self.looks = 0

    def call(self) -> NvmlCall | None:
        return self.current

    def disconnect(self) -> None:
        self.is_connected = False
        self.channel.close()

    def is_gone(self) -> bool:
        self.looks += 1
        return self.current is None

    def status_text(self) -> str:
        return ""

    def close(self) -> None:
        self.its_end.close()

    def say(self, **message: object) -> None:
        self.its_end.send(json.dumps(message).encode())


class World:
    """A monitor with its fake children. Its thread runs; its time is ours."""

    def __init__(self, kept: ReleaseFile | None = None) -> None:
        self.clock = FakeClock()
        self.children: list[FakeChild] = []
        self.event_calls: list[MonitorState] = []
        self.monitor = GpuMonitor(
            self.clock,
            1.0,
            CALL_S_MAX,
            self._spawn,  # type: ignore[arg-type]
            kept,
            on_events=lambda: self.event_calls.append(self.monitor.view().state),
        )

    def _spawn(self, _interval_s: float, skipped: Sequence[int], now_s: float) -> FakeChild:
        self.children.append(FakeChild(skipped, now_s))
        return self.children[-1]

    def pass_time(self, seconds: float, *, is_asked: bool = True) -> None:
        """Let time pass in pieces: somebody asks for values and the monitor looks all the while."""
        while seconds > 0:
            self.clock.time_s += min(seconds, 5.0)
            seconds -= 5.0
            if is_asked:
                self.monitor.view()
            for child in self.children:
                if child.is_connected and child.current is None:
                    child.heard_at_s = self.clock.time_s  # it goes on talking
            wait_tick(self)

    def wait_children(self, count: int) -> FakeChild:
        self.monitor.view()
        wait_for(lambda: len(self.children) == count, f"{count} children")
        return self.children[-1]

    def wait_connected(self) -> FakeChild:
        """Return the newest child once it is connected, whichever of several it is.

        A count taken while the monitor abandons one child and starts the next is soon out of date.
        """
        self.monitor.view()
        wait_for(lambda: any(child.is_connected for child in self.children[-1:]), "a child")
        return self.children[-1]

    def hang(self, child: FakeChild, name: str = "nvmlDeviceGetPowerUsage", gpu: int = 3) -> None:
        child.current = NvmlCall(1, self.clock.time_s, gpu, name)


@contextmanager
def worldly(kept: ReleaseFile | None = None) -> Iterator[World]:
    world = World(kept)
    try:
        yield world
    finally:
        for child in world.children:
            child.current = None
        world.monitor.stop()


@pytest.fixture
def world() -> Iterator[World]:
    with worldly() as world:
        yield world


def test_replacement_leaves_out_the_gpu_that_the_first_one_hangs_on(world: World) -> None:
    first = world.wait_children(1)
    world.hang(first, gpu=3)
    world.pass_time(CALL_S_MAX + 1)

    second = world.wait_children(2)

    assert second.skipped == [3]
    assert not first.is_connected
    assert world.monitor.view().stuck[0].gpu == 3


def test_call_within_its_deadline_is_left_alone(world: World) -> None:
    child = world.wait_children(1)
    world.hang(child)
    world.pass_time(CALL_S_MAX)

    assert child.is_connected
    assert world.monitor.view().stuck == ()


def test_setting_up_the_driver_may_take_longer_than_a_reading(world: World) -> None:
    child = world.wait_children(1)
    world.hang(child, "nvmlInitWithFlags", NO_GPU)
    world.pass_time(OPEN_S_MAX - 5)
    is_connected_before = child.is_connected

    world.pass_time(10)

    wait_for(lambda: not child.is_connected, "the child to be abandoned")
    assert is_connected_before


def hang_on(world: World, *gpus: int) -> None:
    """Have one collector after the other hang, each on the next of these GPUs."""
    for gpu in gpus:
        child = world.wait_connected()
        world.hang(child, gpu=gpu)
        world.pass_time(CALL_S_MAX + 1)
        wait_for(lambda child=child: not child.is_connected, "the child to be abandoned")


def test_gpus_that_hang_one_after_the_other_are_all_left_out_and_the_rest_is_read(
    world: World,
) -> None:
    hang_on(world, 1, 5)
    world.pass_time(5)

    third = world.wait_children(3)

    assert third.skipped == [1, 5]
    assert third.is_connected
    assert sorted(call.gpu for call in world.monitor.view().stuck) == [1, 5]


def test_no_collector_is_started_while_as_many_hang_as_may(world: World) -> None:
    hang_on(world, *range(ABANDONED_MAX))

    world.pass_time(2 * BACKOFF.cap_s)

    assert len(world.children) == ABANDONED_MAX
    assert "hang: no other is started" in world.monitor.view().problem
    world.children[0].current = None  # its call comes back
    assert world.wait_children(ABANDONED_MAX + 1).skipped == list(range(ABANDONED_MAX))


def test_only_one_replacement_is_started_while_nvml_as_a_whole_hangs(world: World) -> None:
    for number in (1, 2):
        world.hang(world.wait_children(number), "nvmlInitWithFlags", NO_GPU)
        world.pass_time(OPEN_S_MAX + 10)

    world.pass_time(2 * BACKOFF.cap_s)

    assert len(world.children) == 2
    world.children[0].current = None
    assert world.wait_children(3).skipped == []


def test_pause_of_the_agent_is_no_hang(world: World) -> None:
    child = world.wait_children(1)
    world.hang(child)  # frozen in a call, like the agent itself
    wait_tick(world)
    world.clock.time_s += max(PAUSE_S, CALL_S_MAX, 600.0) + 1
    wait_tick(world)
    is_connected_after_pause = child.is_connected

    world.pass_time(CALL_S_MAX + 1)

    assert is_connected_after_pause
    wait_for(lambda: not child.is_connected, "the child that really hangs to be abandoned")


def test_abandoned_child_is_killed_after_a_minute_and_once(world: World) -> None:
    child = world.wait_children(1)
    world.hang(child)
    world.pass_time(CALL_S_MAX + 1)
    wait_for(lambda: not child.is_connected, "the child to be abandoned")
    signals_before = list(child.process.signals)

    world.pass_time(ABANDONED_S_MAX + 5)
    wait_for(lambda: bool(child.process.signals), "the kill")
    looks = child.looks
    wait_for(lambda: child.looks > looks + 3, "more looks")

    assert signals_before == []  # no signal while a driver call may be harmed by it
    assert child.process.signals == ["kill"]


def left_out_and_ended(world: World, gpu: int) -> FakeChild:
    """Have a GPU left out whose call then came back; return the collector of the others."""
    first = world.wait_children(1)
    world.hang(first, gpu=gpu)
    world.pass_time(CALL_S_MAX + 1)
    second = world.wait_children(2)
    first.current = None
    return second


def test_gpu_that_was_left_out_is_tried_alone_and_taken_back_when_it_answers(world: World) -> None:
    second = left_out_and_ended(world, gpu=3)
    world.pass_time(TRIAL.first_s + 5)

    trial = world.wait_children(3)
    was_read_meanwhile = second.is_connected
    trial.say(kind="sweep", duration_s=0.1)

    assert set(range(GPUS_MAX)) - set(trial.skipped) == {3}
    assert was_read_meanwhile
    assert world.wait_children(4).skipped == []


def test_trial_that_hangs_costs_the_other_gpus_nothing_and_the_next_waits_longer(
    world: World,
) -> None:
    second = left_out_and_ended(world, gpu=3)
    world.pass_time(TRIAL.first_s + 5)
    trial = world.wait_children(3)
    world.hang(trial, gpu=3)
    world.pass_time(CALL_S_MAX + 1)
    wait_for(lambda: not trial.is_connected, "the trial to be abandoned")
    trial.current = None
    world.pass_time(TRIAL.first_s + 5)
    children_early = len(world.children)

    world.pass_time(TRIAL.first_s + 5)

    assert children_early == 3
    assert world.wait_children(4).skipped == trial.skipped
    assert second.is_connected


def test_gpu_is_not_tried_while_a_process_hangs_on_it(world: World) -> None:
    world.hang(world.wait_children(1), gpu=3)
    world.pass_time(CALL_S_MAX + 1)
    world.wait_children(2)

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
        child = world.wait_children(number)
        started_at_s.append(child.started_at_s)
        child.its_end.close()
        wait_for(lambda child=child: not child.is_connected, "the death to be seen")
        while len(world.children) == number:
            world.clock.time_s += 0.5
            world.monitor.view()
            wait_tick(world)

    gaps_s = [after - before for before, after in pairwise(started_at_s)]
    assert gaps_s == sorted(gaps_s)
    assert gaps_s[-1] >= 4 * gaps_s[0]


def wait_tick(world: World) -> None:
    """Wait until the monitor has done all that it does at the present time."""
    now_s = world.clock.time_s

    def has_looked() -> bool:
        world.monitor._wake()
        with (
            world.monitor._changed
        ):  # not in the middle of a tick: it may be about to start a child
            return world.monitor._ticked_at_s >= now_s

    wait_for(has_looked, "the monitor to look at the time")


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "invented"},
        {"kind": "node", "driver": 1},
        {"kind": "event", "gpu": 1000, "event": "xid", "code": 1},
    ],
)
def test_child_that_sends_nonsense_is_replaced(world: World, message: dict[str, object]) -> None:
    child = world.wait_children(1)

    child.say(**message)

    wait_for(lambda: not child.is_connected, "the child to be abandoned")
    assert world.monitor.view().state is MonitorState.BROKEN


def test_an_event_is_told_at_once_and_who_is_told_may_ask(world: World) -> None:
    child = world.wait_children(1)
    child.say(kind="event", gpu=1, event="xid", code=79)

    wait_for(lambda: bool(world.event_calls), "the event to be told")
    (gpu,) = world.monitor.view().gpus

    assert gpu.xids == {79: 1}
    assert len(world.event_calls) == 1


def test_nobody_asking_lets_go_of_the_gpus_and_asking_takes_them_up(world: World) -> None:
    child = world.wait_children(1)
    world.pass_time(100, is_asked=False)
    wait_for(lambda: not child.is_connected, "the child to be let go")

    world.monitor.view()

    assert world.wait_children(2).is_connected


# ---- a release over a restart of the agent


def file_at(folder: Path, boot_id: str = "boot-1") -> ReleaseFile:
    return ReleaseFile(folder / "gpu-release.json", boot_id)


def test_release_outlives_a_restart_and_ends_when_its_time_is_over(tmp_path: Path) -> None:
    with worldly(file_at(tmp_path)) as before:
        before.wait_children(1)
        before.monitor.release(600.0)

    with worldly(file_at(tmp_path)) as after:
        released = after.monitor.view(wait_s=60.0)
        children_while_released = len(after.children)
        after.clock.time_s += 601
        after.wait_children(1)

    assert released.state is MonitorState.RELEASED
    assert released.released_s is not None
    assert children_while_released == 0
    assert list(tmp_path.iterdir()) == []


def test_resumed_gpus_are_taken_up_by_the_next_agent(tmp_path: Path) -> None:
    with worldly(file_at(tmp_path)) as before:
        before.wait_children(1)
        before.monitor.release(600.0)
        before.monitor.resume()

    with worldly(file_at(tmp_path)) as after:
        assert after.wait_children(1).is_connected


def test_release_ends_with_the_boot_in_which_it_was_asked_for(tmp_path: Path) -> None:
    file_at(tmp_path).save(0.0, 600.0)

    assert file_at(tmp_path).load(10.0) is not None
    assert file_at(tmp_path, "boot-2").load(10.0) is None
    assert file_at(tmp_path).load(600.0) is None


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": 1}', "x" * 5000])
def test_file_that_makes_no_sense_is_no_release(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu-release.json").write_text(text)

    assert file_at(tmp_path).load(10.0) is None


def test_release_that_cannot_be_remembered_is_refused(tmp_path: Path) -> None:
    with worldly(file_at(tmp_path / "gone")) as world:
        child = world.wait_children(1)

        with pytest.raises(SourceError, match=r"not released: cannot write .*gone"):
            world.monitor.release(600.0)

        assert child.is_connected
