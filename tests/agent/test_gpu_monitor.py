"""The monitor's thread, with children that are fakes: who is woken, and what outlives a restart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.nvml.children import ReleaseFile
from agent.nvml.known_gpus import MonitorState
from agent.nvml.monitor import GpuMonitor
from rankmend.errors import SourceError
from tests.support.agent import FakeClock
from tests.support.eventually import eventually
from tests.support.gpu_children import FakeChild

pytestmark = pytest.mark.process


class World:
    """A monitor with its fake children. Its thread runs; its time is ours."""

    def __init__(self, kept: ReleaseFile | None = None) -> None:
        self.clock = FakeClock()
        self.children: list[FakeChild] = []
        self.event_calls: list[MonitorState] = []
        self.monitor = GpuMonitor(
            self.clock,
            1.0,
            spawn=self._spawn,
            kept=kept,
            on_events=lambda: self.event_calls.append(self.monitor.view().state),
        )

    def _spawn(self, _interval_s: float, skipped: Sequence[int], now_s: float) -> FakeChild:
        self.children.append(FakeChild(skipped, now_s))
        return self.children[-1]

    def wait_child(self) -> FakeChild:
        """Return the newest child once it is connected."""
        self.monitor.view()
        eventually(lambda: any(child.is_connected for child in self.children[-1:]), "a child")
        return self.children[-1]


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


def test_first_answer_is_waited_for(world: World) -> None:
    world.wait_child().say(kind="sweep", duration_s=0.1)

    view = world.monitor.view(wait_s=60.0)

    assert view.state is MonitorState.RUNNING


def test_an_event_is_told_at_once_and_who_is_told_may_ask(world: World) -> None:
    child = world.wait_child()
    child.say(kind="event", gpu=1, event="xid", code=79)

    eventually(lambda: bool(world.event_calls), "the event to be told")
    (gpu,) = world.monitor.view().gpus

    assert gpu.xids == {79: 1}
    assert len(world.event_calls) == 1


# ---- a release over a restart of the agent


def file_at(folder: Path, boot_id: str = "boot-1") -> ReleaseFile:
    return ReleaseFile(folder / "gpu-release.json", boot_id)


@pytest.mark.safety
def test_release_outlives_a_restart_and_ends_when_its_time_is_over(tmp_path: Path) -> None:
    with worldly(file_at(tmp_path)) as before:
        before.wait_child()
        before.monitor.release(600.0)

    with worldly(file_at(tmp_path)) as after:
        released = after.monitor.view(wait_s=60.0)
        children_while_released = len(after.children)
        after.clock.time_s += 601
        after.wait_child()

    assert released.state is MonitorState.RELEASED
    assert released.released_s is not None
    assert children_while_released == 0
    assert list(tmp_path.iterdir()) == []


def test_resumed_gpus_are_taken_up_by_the_next_agent(tmp_path: Path) -> None:
    with worldly(file_at(tmp_path)) as before:
        before.wait_child()
        before.monitor.release(600.0)
        before.monitor.resume()

    with worldly(file_at(tmp_path)) as after:
        assert after.wait_child().is_connected


@pytest.mark.safety
def test_release_ends_with_the_boot_in_which_it_was_asked_for(tmp_path: Path) -> None:
    file_at(tmp_path).save(0.0, 600.0)

    assert file_at(tmp_path).load(10.0) is not None
    assert file_at(tmp_path, "boot-2").load(10.0) is None
    assert file_at(tmp_path).load(600.0) is None


@pytest.mark.safety
@pytest.mark.parametrize("text", ["", "{", '{"boot_id": 1}', "x" * 5000])
def test_file_that_makes_no_sense_is_no_release(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu-release.json").write_text(text)

    assert file_at(tmp_path).load(10.0) is None


@pytest.mark.safety
def test_release_that_cannot_be_remembered_is_refused(tmp_path: Path) -> None:
    with worldly(file_at(tmp_path / "gone")) as world:
        child = world.wait_child()

        with pytest.raises(SourceError, match=r"not released: cannot write .*gone"):
            world.monitor.release(600.0)

        assert child.is_connected
