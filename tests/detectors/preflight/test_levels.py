"""The steps of each level fit its bound, whatever hangs."""

import pytest

from detectors.preflight.levels import (
    HEALTH_S,
    MARGIN_S,
    PREPARE_S,
    FlightLevel,
    FlightStep,
    NodeParts,
    plan_round,
)
from detectors.preflight.levels import (
    TestedStorage as Folder,
)
from rankmend.errors import ConfigError

BOTH = (Folder("/var/tmp", "disk", 1), Folder("/ckpt", "checkpoints", 1))


@pytest.mark.parametrize("level", FlightLevel)
@pytest.mark.parametrize("gpus", [0, 1, 8, 16])
def test_a_round_with_every_step_at_its_deadline_ends_within_the_bound(
    level: FlightLevel, gpus: int
) -> None:
    made = plan_round(level, NodeParts(gpus, BOTH, True))

    assert made.bound_s + PREPARE_S + HEALTH_S + MARGIN_S <= level.bound_s


def test_gpus_take_up_their_power_one_after_the_other() -> None:
    parts = NodeParts(4, (), True, (700.0,) * 4)

    made = plan_round(FlightLevel.JOB, parts, ramp_watts_per_s=350.0)

    assert [step.waits_s for step in made.stages[1]] == [0.0, 2.0, 4.0, 6.0]


def test_a_ramp_that_does_not_fit_the_bound_is_refused_with_both_times() -> None:
    parts = NodeParts(8, BOTH, True, (700.0,) * 8)

    with pytest.raises(ConfigError, match=r"could take \d+ s, and 46 s are allowed"):
        plan_round(FlightLevel.QUICK, parts, ramp_watts_per_s=100.0)


def test_every_pair_of_gpus_is_measured_once_at_level_job() -> None:
    made = plan_round(FlightLevel.JOB, NodeParts(8, (), True))

    pairs = [load["part"] for load in made.stages[-1][0].loads]
    assert len(pairs) == len(set(pairs)) == 28


@pytest.mark.parametrize("level", [FlightLevel.JOB, FlightLevel.BURN_IN])
def test_what_all_nodes_do_together_comes_first_and_fits(level: FlightLevel) -> None:
    together = FlightStep("network", (), 60.0, program=("probe",), needs_others=True)

    made = plan_round(level, NodeParts(8, BOTH, True), first=[together])

    assert [one.name for one in made.stages[0]] == ["network"]
    assert made.bound_s + MARGIN_S + HEALTH_S + PREPARE_S <= level.bound_s
