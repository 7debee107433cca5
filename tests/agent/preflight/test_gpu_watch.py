"""Clocks and temperatures of GPUs under load, by a stand-in of NVML, and what is said of them."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.preflight.children import LoadChildren
from agent.preflight.flight import Flight, FlightSetup
from agent.preflight.gpu_watch import name_gpus, watch_gpus
from detectors.preflight.baseline import Baseline, BaselineSample
from detectors.preflight.levels import FlightLevel, FlightRound, FlightStep
from detectors.preflight.verdicts import CheckStanding
from rankmend.clock import SystemClock
from tests.support.nvml_stub.fake import FakeNvml
from tests.support.nvml_stub.node import StubNode

pytestmark = pytest.mark.process

HEAT, BRAKE = 0x40, 0x80
LOOKS = 9  # more than it takes to judge
MODEL = "NVIDIA H100 80GB HBM3, quick"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> StubNode:
    node = StubNode(gpus=4)
    monkeypatch.setattr(pynvml, "nvmlLib", FakeNvml(node))
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 1)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    return node


def slow_down(node: StubNode, gpu: int, mhz: int, celsius: int, reasons: int) -> None:
    node.set(gpu, "nvmlDeviceGetClockInfo/1", mhz)
    node.set(gpu, "nvmlDeviceGetTemperature/0", celsius)
    node.set(gpu, "nvmlDeviceGetCurrentClocksEventReasons", reasons)


class Looks:
    """A clock that runs a quarter of a second from look to look, and tells after so many of them."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._looks = 0

    def now_s(self) -> float:
        self._looks += 1
        if self._looks == LOOKS:
            self._tell()
        return self._looks * 0.25


def fly(folder: Path, baseline: Baseline) -> list[Any]:
    """Run a check whose only load lasts until the stand-in's GPUs were looked at a few times."""
    done = folder / "done"
    load = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    step = FlightStep("host", (), 300.0, program=(sys.executable, "-c", load))
    setup = FlightSetup(
        "me", FlightLevel.QUICK, 600.0, sys.executable, dict(os.environ), baseline=baseline
    )

    def watch(until_end: int) -> Any:
        looks = Looks(done.touch)
        return watch_gpus(pynvml, range(4), "quick", looks.now_s, until_end, look_s=0.01)

    children = LoadChildren()
    try:
        flight = Flight(
            setup, FlightRound(((step,),)), children, SystemClock(), None, lambda: False, make_gpu_watch=watch
        )  # fmt: skip
        return list(flight.run(time.monotonic()).checks)
    finally:
        children.stop()


def test_a_gpu_that_heat_slows_is_named_beside_its_like_and_the_sound_ones_are_not(
    stub: StubNode, tmp_path: Path
) -> None:
    slow_down(stub, 2, 1200, 88, HEAT)

    checks = fly(tmp_path, Baseline({}))

    bad = {(one.name, one.part): one for one in checks if one.standing is CheckStanding.FAILED}
    assert set(bad) == {("gpu_clock_hertz", "cuda:2"), ("gpu_temperature_celsius", "cuda:2")}
    clock = bad["gpu_clock_hertz", "cuda:2"].reason
    assert clock.startswith(
        "1.2 GHz; 3 like parts of this node: median 1.98 GHz, limit 1.78 GHz; heat held its clocks down for"
    )
    hot = bad["gpu_temperature_celsius", "cuda:2"]
    assert (hot.value, hot.baseline, hot.limit) == (88.0, 45.0, 56.25)


def test_a_node_whose_gpus_are_all_slow_is_named_by_the_fleet(
    stub: StubNode, tmp_path: Path
) -> None:
    """The power brake takes all GPUs of a node: beside each other none of them is odd."""
    fleet = {
        (name, MODEL): tuple(BaselineSample(node, 1.0, value) for node in "abcde")
        for name, value in (("gpu_clock_hertz", 1.98e9), ("gpu_temperature_celsius", 60.0))
    }
    for gpu in range(4):
        slow_down(stub, gpu, 600, 40, BRAKE)

    checks = fly(tmp_path, Baseline(fleet))

    bad = [one for one in checks if one.standing is CheckStanding.FAILED]
    assert {(one.name, one.part) for one in bad} == {
        ("gpu_clock_hertz", f"cuda:{at}") for at in range(4)
    }
    assert (
        "5 nodes (5 samples): median 1.98 GHz, limit 1.82 GHz; the power brake held its clocks down for"
        in bad[0].reason
    )


def watched(gpus: list[int | str]) -> list[dict[str, Any]]:
    until_end, end = os.pipe()
    looks = Looks(lambda: os.close(end))
    try:
        return list(watch_gpus(pynvml, gpus, "job", looks.now_s, until_end, look_s=0.01)["lines"])
    finally:
        os.close(until_end)


def test_a_gpu_that_was_not_busy_has_no_figures_and_one_that_tells_less_has_fewer(
    stub: StubNode,
) -> None:
    stub.set(0, "nvmlDeviceGetUtilizationRates", 3, 1)
    stub.remove(1, "nvmlDeviceGetTemperature/0")
    stub.remove(2, "nvmlDeviceGetUtilizationRates")

    lines = watched([0, 1, 2])

    assert [(one.get("figure") or one.get("skip"), one["part"]) for one in lines] == [
        ("gpu_clocks", "cuda:0"),
        ("gpu_clock_hertz", "cuda:1"),
        ("gpu_clocks", "cuda:2"),
    ]


def test_a_driver_that_does_not_answer_leaves_the_clocks_out() -> None:
    class Gone:
        NVMLError = pynvml.NVMLError

        def nvmlInit(self) -> None:  # noqa: N802 - NVML's own name
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    (line,) = watch_gpus(Gone(), [0], "job", time.monotonic, -1)["lines"]

    assert (line["skip"], line["part"]) == ("gpu_clocks", "node")
    assert line["text"].startswith("NVML: ")


@pytest.mark.parametrize(
    ("visible", "named"),
    [(None, [0, 1]), ("3,1", [3, 1]), ("GPU-9, MIG-7", ["GPU-9", "MIG-7"]), ("", []), ("-1", [])],
)
def test_what_cuda_calls_0_is_the_first_that_is_visible(
    visible: str | None, named: list[int | str]
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert name_gpus(environment, 2) == named
