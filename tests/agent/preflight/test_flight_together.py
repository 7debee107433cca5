"""A step in which other nodes take part is done once: they are there only at the begin."""

import os
import sys
from pathlib import Path

import pytest

from agent.preflight.children import LoadChildren
from agent.preflight.flight import Flight, FlightSetup
from detectors.preflight.levels import FlightLevel, FlightRound, FlightStep
from rankmend.clock import SystemClock

pytestmark = pytest.mark.process

TELL = """
import sys
with open(sys.argv[1], "a") as log:
    log.write(sys.argv[2])
print('{"verdict": "silent", "name": "%s", "part": "%s", "text": "nobody came"}' % (sys.argv[2], sys.argv[2]))
"""


def test_step_with_other_nodes_is_neither_repeated_nor_measured_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    steps = [
        FlightStep(
            name, (), 60.0, program=(sys.executable, "-c", TELL, str(log), name), needs_others=with_others
        )
        for name, with_others in (("together", True), ("alone", False))
    ]  # fmt: skip
    setup = FlightSetup(
        "me",
        FlightLevel.BURN_IN,
        600.0,
        sys.executable,
        os.environ,
        rounds_max=2,
        retest_pauses_s=(0.0, 0.0),
    )
    children = LoadChildren()
    plan = FlightRound(tuple((step,) for step in steps))
    clock = SystemClock()

    result = Flight(setup, plan, children, clock, None, lambda: False).run(clock.now_s())

    children.stop()
    assert result.rounds == 2
    assert log.read_text().count("together") == 1
    assert log.read_text().count("alone") >= 2
    assert [one.name for one in result.checks].count("together") == 1
