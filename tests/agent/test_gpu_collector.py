"""From what the collector child has said to series: staleness, counts, and ranks on GPUs."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from agent.collectors.gpu import GpuCollector, GpuStateCollector
from agent.nvml.known_gpus import (
    GpuView,
    GroupView,
    MonitorState,
    MonitorView,
    StuckCall,
)
from agent.nvml.monitor import GpuMonitor
from agent.ranks.table import RankSample
from rankmend.errors import NoSourceError, SourceError
from rankmend.progress import RankIdentity
from tests.support.agent import JOB_ID, values_of

GPU = GpuView(
    index=0,
    uuid="GPU-a",
    pci_bus_id="0000:1b:00.0",
    age_s=0.5,
    is_lost=False,
    is_skipped=False,
    needs_reset=False,
    error="",
    errors=2,
    groups={
        "fast": GroupView(0.5, (("temperature_celsius", (), 45.0),), 1),
        "medium": GroupView(5.0, (("nvlink_up", ("3",), 1.0),), 2),
    },
    seconds={"sw_power_cap": 1.5},
    events={"xid": 1},
    xids={79: 1},
    processes=None,
)
VIEW = MonitorView(
    state=MonitorState.RUNNING,
    problem="",
    gpus=(GPU,),
    count=1,
    stuck=(),
    restarts=0,
    released_s=None,
    sweep_s=0.01,
    pid=1,
)
DEVICE = "0,GPU-a,0000:1b:00.0"


class FakeMonitor:
    def __init__(self, view: MonitorView) -> None:
        self.shown = view
        self.number: int | None = None  # of the newest change; None: look at the view
        self.looks = 0

    def view(self, wait_s: float = 0.0) -> MonitorView:
        self.looks += 1
        return self.shown

    def steady_number(self) -> int | None:
        return self.number

    def stop(self) -> None:
        """Hold nothing."""


def rank_sample(rank: int, pid: int) -> RankSample:
    identity = RankIdentity(uuid.UUID(str(JOB_ID)), 1, rank, rank, 8)
    return RankSample(identity, pid, "digits", None, "not read")


def read(
    view: MonitorView,
    expected: int | None = None,
    ranks: Sequence[RankSample] = (),
    procfs: Path = Path("/nowhere"),
) -> dict[str, float]:
    monitor = cast(GpuMonitor, FakeMonitor(view))
    return values_of(list(GpuCollector(monitor, 1.0, expected, lambda: ranks, procfs).collect()))


def read_state(view: MonitorView, expected: int | None = None) -> dict[str, float]:
    monitor = cast(GpuMonitor, FakeMonitor(view))
    return values_of(list(GpuStateCollector(monitor, 1.0, expected).collect()))


def test_values_carry_the_labels_of_the_gpu() -> None:
    values = read(VIEW)

    assert values[f"gpu_temperature_celsius{{{DEVICE}}}"] == 45
    assert values[f"gpu_nvlink_up{{{DEVICE},3}}"] == 1
    assert values[f"gpu_clocks_event_seconds_total{{{DEVICE},sw_power_cap}}"] == 1.5
    assert values[f"gpu_xid_events_total{{{DEVICE},79}}"] == 1
    assert values[f"gpu_read_errors_total{{{DEVICE}}}"] == 2
    assert read_state(VIEW)[f"gpu_success{{{DEVICE}}}"] == 1


def test_gpus_that_stand_give_the_same_answer_and_one_that_changes_another() -> None:
    monitor = FakeMonitor(replace(VIEW, gpus=(GPU, replace(GPU, index=1, uuid="GPU-b")), count=2))
    collector = GpuCollector(cast(GpuMonitor, monitor), 1.0, None, list, Path("/nowhere"))
    first = collector.collect()
    older = replace(
        GPU, age_s=0.9, groups={k: g._replace(age_s=0.9) for k, g in GPU.groups.items()}
    )
    monitor.shown = replace(monitor.shown, gpus=(older, *monitor.shown.gpus[1:]))

    assert collector.collect() is first, "only older"
    hot = {"fast": GroupView(0.1, (("temperature_celsius", (), 91.0),), 9)}
    monitor.shown = replace(monitor.shown, gpus=(replace(GPU, groups=hot), *monitor.shown.gpus[1:]))
    assert values_of([*collector.collect()])[f"gpu_temperature_celsius{{{DEVICE}}}"] == 91
    monitor.shown = replace(
        monitor.shown, gpus=(replace(GPU, groups=hot, xids={79: 2}), *monitor.shown.gpus[1:])
    )
    assert values_of([*collector.collect()])[f"gpu_xid_events_total{{{DEVICE},79}}"] == 2


@pytest.mark.parametrize("make", [GpuCollector, GpuStateCollector])
def test_nothing_is_looked_at_while_nothing_is_new_and_at_most_three_runs_long(
    make: type[GpuCollector] | type[GpuStateCollector],
) -> None:
    monitor = FakeMonitor(VIEW)
    given = cast(GpuMonitor, monitor)
    collector = (
        GpuCollector(given, 1.0, None, list, Path("/nowhere"))
        if make is GpuCollector
        else GpuStateCollector(given, 1.0, None)
    )
    monitor.number = 7

    first, second, third = [tuple(collector.collect()) for _run in range(3)]
    looks_of_three = monitor.looks
    collector.collect()

    assert first == second == third
    assert (looks_of_three, monitor.looks) == (1, 2)
    monitor.number = 8
    collector.collect()
    assert monitor.looks == 3, "something has come"
    monitor.number = None
    collector.collect()
    collector.collect()
    assert monitor.looks == 5, "a child hangs or starts"


def test_gpu_about_which_nothing_came_is_read_anew_at_most_three_runs_later() -> None:
    gpu = replace(GPU, revision=1)
    monitor = FakeMonitor(replace(VIEW, gpus=(gpu,)))
    collector = GpuCollector(cast(GpuMonitor, monitor), 1.0, None, list, Path("/nowhere"))
    first = collector.collect()
    old = {name: group._replace(age_s=1e4) for name, group in GPU.groups.items()}
    monitor.shown = replace(monitor.shown, gpus=(replace(gpu, groups=old),))

    assert [collector.collect() is first for _run in range(3)] == [True, True, False]
    hot = {"fast": GroupView(0.1, (("temperature_celsius", (), 91.0),), 9)}
    monitor.shown = replace(monitor.shown, gpus=(replace(gpu, groups=hot, revision=2),))
    assert values_of([*collector.collect()])[f"gpu_temperature_celsius{{{DEVICE}}}"] == 91


def test_a_driver_that_was_replaced_is_shown() -> None:
    assert read_state(VIEW)["gpu_driver_mismatch"] == 0
    assert read_state(replace(VIEW, is_mismatched=True))["gpu_driver_mismatch"] == 1


def test_values_that_are_too_old_are_dropped_and_the_age_stays() -> None:
    stale = replace(
        GPU, index=1, age_s=10.1, groups={"fast": GroupView(10.1, GPU.groups["fast"].values, 3)}
    )
    view = replace(VIEW, gpus=(GPU, stale), count=2)
    values, state = read(view), read_state(view)

    assert "gpu_temperature_celsius{1,GPU-a,0000:1b:00.0}" not in values
    assert values["gpu_xid_events_total{1,GPU-a,0000:1b:00.0,79}"] == 1
    assert state["gpu_success{1,GPU-a,0000:1b:00.0}"] == 0
    assert state["gpu_sample_age_seconds{1,GPU-a,0000:1b:00.0}"] == 10.1
    assert state["gpu_answering"] == 1


def test_no_gpu_answers_while_nobody_is_asked_and_each_shows_its_age() -> None:
    silent = replace(VIEW, state=MonitorState.BROKEN, gpus=(replace(GPU, age_s=11.0),))

    state = read_state(silent)

    assert state["gpu_answering"] == 0
    assert state[f"gpu_success{{{DEVICE}}}"] == 0
    assert state[f"gpu_sample_age_seconds{{{DEVICE}}}"] == 11


def test_nothing_is_said_of_answers_before_the_first_one() -> None:
    starting = replace(VIEW, state=MonitorState.STARTING, gpus=(), count=None)

    assert "gpu_answering" not in read_state(starting)


@pytest.mark.parametrize(("age_s", "is_shown"), [(50.0, True), (50.1, False)])
def test_slow_group_lives_for_five_of_its_own_periods(age_s: float, is_shown: bool) -> None:
    groups = {"medium": GroupView(age_s, GPU.groups["medium"].values, 4)}
    values = read(replace(VIEW, gpus=(replace(GPU, groups=groups),)))

    assert (f"gpu_nvlink_up{{{DEVICE},3}}" in values) is is_shown


def test_lost_gpu_keeps_its_name_and_is_no_success() -> None:
    lost = replace(GPU, is_lost=True, groups={})
    state = read_state(replace(VIEW, gpus=(lost,)), expected=1)

    assert state[f"gpu_lost{{{DEVICE}}}"] == 1
    assert state[f"gpu_success{{{DEVICE}}}"] == 0
    assert state["gpu_answering"] == 0


def test_node_without_a_driver_has_no_gpu_unless_one_is_expected() -> None:
    absent = replace(VIEW, state=MonitorState.ABSENT, problem="no driver", gpus=(), count=None)

    with pytest.raises(NoSourceError):
        read(absent)
    with pytest.raises(NoSourceError):
        read_state(absent)
    with pytest.raises(SourceError, match="no driver"):
        read(absent, expected=8)
    state = read_state(absent, expected=8)
    assert (state["gpu_answering"], state["gpu_expected"]) == (0, 8)


def test_released_gpus_are_no_healthy_gpus() -> None:
    released = replace(VIEW, state=MonitorState.RELEASED, released_s=5.0, count=None)

    with pytest.raises(SourceError, match="released"):
        read(released)
    state = read_state(released, expected=1)
    assert state["gpu_collector_released"] == 1
    assert "gpu_answering" not in state
    assert not [name for name in state if name.startswith("gpu_success")]


def test_stuck_call_is_named_with_its_age() -> None:
    stuck = (StuckCall("nvmlDeviceGetTemperature", 3, 12.0), StuckCall("nvmlInitWithFlags", -1, 3))
    state = read_state(replace(VIEW, stuck=stuck))

    assert state["gpu_collector_stuck"] == 1
    assert state["gpu_call_stuck_seconds{nvmlDeviceGetTemperature,3}"] == 12
    assert state["gpu_call_stuck_seconds{nvmlInitWithFlags,}"] == 3


def test_gpu_that_is_left_out_does_not_answer() -> None:
    skipped = replace(GPU, is_skipped=True)
    state = read_state(replace(VIEW, gpus=(skipped,)))

    assert state["gpu_answering"] == 0
    assert state["gpu_collector_stuck"] == 1


def process(procfs: Path, pid: int, parent: int, name: str = "python") -> None:
    folder = procfs / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0\n")
    (folder / "comm").write_text(f"{name}\n")


def test_rank_is_joined_to_its_gpu_also_through_a_wrapper(tmp_path: Path) -> None:
    process(tmp_path, 300, parent=200, name="a) R 1 (b")
    process(tmp_path, 200, parent=100)
    process(tmp_path, 999, parent=1, name="stray")
    gpu = replace(GPU, processes=((300, 1000), (999, 50)))

    values = read(replace(VIEW, gpus=(gpu,)), ranks=[rank_sample(4, pid=100)], procfs=tmp_path)

    assert values[f"rank_gpu_info{{{JOB_ID},4,{DEVICE},300}}"] == 1
    assert values[f"rank_gpu_memory_bytes{{{JOB_ID},4,{DEVICE}}}"] == 1000
    assert values[f"gpu_processes{{{DEVICE}}}"] == 2
    assert values[f"gpu_foreign_processes{{{DEVICE}}}"] == 1
    assert values[f"gpu_process_memory_bytes{{{DEVICE},999,stray}}"] == 50


def test_process_that_has_gone_belongs_to_nobody(tmp_path: Path) -> None:
    gpu = replace(GPU, processes=((300, None),))

    values = read(replace(VIEW, gpus=(gpu,)), ranks=[rank_sample(4, pid=100)], procfs=tmp_path)

    assert values[f"gpu_foreign_processes{{{DEVICE}}}"] == 1
    assert not any(name.startswith("gpu_process_memory") for name in values)


def test_circle_of_parents_ends(tmp_path: Path) -> None:
    process(tmp_path, 300, parent=301)
    process(tmp_path, 301, parent=300)
    gpu = replace(GPU, processes=((300, 1),))

    values = read(replace(VIEW, gpus=(gpu,)), ranks=[rank_sample(4, pid=100)], procfs=tmp_path)

    assert values[f"gpu_foreign_processes{{{DEVICE}}}"] == 1


def test_value_that_no_metric_is_for_is_refused() -> None:
    groups = {"fast": GroupView(0.1, (("invented", (), 1.0),), 5)}

    with pytest.raises(SourceError, match="invented"):
        read(replace(VIEW, gpus=(replace(GPU, groups=groups),)))


def test_driver_that_was_replaced_says_nothing_of_the_gpus() -> None:
    """NVML 18: no GPU has been seen to be silent, and no collector is broken; the mismatch itself is the finding."""
    view = replace(
        VIEW,
        state=MonitorState.BROKEN,
        problem="NVML: Driver/library version mismatch",
        gpus=(replace(GPU, age_s=600.0),),
        count=None,
        is_mismatched=True,
    )

    state = read_state(view, expected=2)

    assert state["gpu_driver_mismatch"] == 1
    assert not [
        name for name in state if name.startswith(("gpu_success", "gpu_answering", "gpu_lost"))
    ]
    with pytest.raises(NoSourceError, match="replaced"):
        read(view, expected=2)
