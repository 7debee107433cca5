"""A figure that is too bad is measured again, with pauses, before a node is accused."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agent.preflight.children import LoadChildren
from agent.preflight.flight import RETEST_PAUSES_S, Flight, FlightSetup
from agent.preflight.result_file import FlightResult
from detectors.preflight.baseline import EMPTY, Baseline, add, merge
from detectors.preflight.figures import LoadFigure
from detectors.preflight.levels import FlightLevel, FlightRound, FlightStep
from detectors.preflight.verdicts import FlightOutcome
from rankmend.clock import SystemClock

pytestmark = pytest.mark.process

LOOKS_BESIDE_PAUSES = 20  # more than a flight makes between a measurement and its next one
PART, MODEL, USUAL_S = "checkpoints", "host, disk", 0.01
# Tells a slow disk the first so many times.
TELL = """
import json, sys
log, slow = sys.argv[1], int(sys.argv[2])
with open(log, "a+") as file:
    file.seek(0)
    before = len(file.read())
    file.write("x")
print(json.dumps({"figure": "disk_sync_s", "part": "checkpoints", "model": "disk", "value": 1.0 if before < slow else 0.01}))
"""


def fleet() -> Baseline:
    """What twelve sound nodes told."""
    known = EMPTY
    for number in range(12):
        usual = LoadFigure("disk_sync_s", USUAL_S * (1 + number / 100), PART, MODEL)
        known = merge(known, add(EMPTY, f"n{number}", 1e9 + number, [usual]))
    return known


def check(
    log: Path,
    slow: int,
    pauses_s: tuple[float, ...],
    is_stopped: Callable[[], bool] = lambda: False,
    bound_s: float = 600.0,
) -> FlightResult:
    step = FlightStep(PART, (), 60.0, program=(sys.executable, "-c", TELL, str(log), str(slow)))
    setup = FlightSetup(
        "me",
        FlightLevel.QUICK,
        bound_s,
        sys.executable,
        os.environ,
        host_model="host",
        baseline=fleet(),
        retest_pauses_s=pauses_s,
    )
    children = LoadChildren()
    clock = SystemClock()
    plan = FlightRound(((step,),))
    try:
        return Flight(setup, plan, children, clock, None, is_stopped).run(clock.now_s())
    finally:
        children.stop()


def test_disk_that_another_program_holds_for_a_while_is_not_accused(tmp_path: Path) -> None:
    found = check(tmp_path / "log", slow=3, pauses_s=(0.0, 0.1, 0.1))

    assert found.outcome is FlightOutcome.PASSED
    assert len((tmp_path / "log").read_text()) == 4


def test_disk_that_stays_slow_is_accused_after_the_last_measurement(tmp_path: Path) -> None:
    found = check(tmp_path / "log", slow=100, pauses_s=(0.0, 0.1, 0.1))

    assert found.outcome is FlightOutcome.FAILED
    assert len((tmp_path / "log").read_text()) == 1 + len(RETEST_PAUSES_S)


def test_a_pause_that_leaves_no_time_is_not_waited_for(tmp_path: Path) -> None:
    found = check(tmp_path / "log", slow=100, pauses_s=(10_000.0,))

    assert found.outcome is FlightOutcome.FAILED
    assert len((tmp_path / "log").read_text()) == 1


def test_a_signal_ends_the_pause(tmp_path: Path) -> None:
    log, own, looks = tmp_path / "log", psutil.Process(), 0
    others = set(own.children())

    def is_stopped() -> bool:
        nonlocal looks
        if log.exists() and set(own.children()) <= others:  # the measurement has ended
            looks += 1
        return looks > LOOKS_BESIDE_PAUSES

    found = check(log, slow=100, pauses_s=(1000.0,), bound_s=5000.0, is_stopped=is_stopped)

    assert found.outcome is FlightOutcome.STOPPED
