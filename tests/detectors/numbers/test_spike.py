"""A spike stands out from a job's own past, and the noise of training is none."""

from collections.abc import Iterable

import numpy as np
import pytest

from detectors.numbers.wrong import Spike, SpikeWatch

STEADY = [1.0, 1.1, 0.9, 1.05, 0.95] * 4  # 20 steps


def found(values: Iterable[float]) -> list[Spike]:
    watch = SpikeWatch()
    taken = [watch.take(step, value) for step, value in enumerate(values)]
    return [spike for spike in taken if spike is not None]


def test_values_that_rise_and_stay_are_one_spike_from_their_first_step() -> None:
    (spike,) = found([*STEADY, 7.0, 8.0, 9.0, 9.0, 9.0, 9.0])

    assert (spike.step, spike.value, spike.usual) == (20, 7.0, 1.0)
    assert 5.0 <= spike.limit < 7.0


@pytest.mark.parametrize(
    "values",
    [
        [*STEADY, 7.0, 8.0],  # has not held yet
        [*STEADY, 7.0, 8.0, 1.0, 7.0, 8.0, 1.0],  # never holds
        [*STEADY, 4.9, 4.9, 4.9, 4.9],  # below five times the median
        [*STEADY[:19], 7.0, 8.0, 9.0],  # too little past
        [*STEADY, 0.01, 0.01, 0.01],  # a fall
        [0.0] * 50 + [1.0] * 10,  # nothing to be a multiple of
        [10.0 / (1 + step) for step in range(1000)],  # a loss that falls
        [0.001 * step for step in range(1000)],  # a slow rise
        [],
    ],
)
def test_what_is_no_spike(values: list[float]) -> None:
    assert found(values) == []


def test_second_spike_is_told_after_the_values_were_usual_again() -> None:
    spikes = found([*STEADY, 7.0, 8.0, 9.0, *STEADY, 7.0, 8.0, 9.0])

    assert [spike.step for spike in spikes] == [20, 43]


def test_past_that_swings_around_zero_has_its_own_limit() -> None:
    swing = [0.1, -0.1, 0.3, -0.2, 0.0] * 4

    assert found([*swing, 0.6, 0.6, 0.6]) == []
    assert [spike.step for spike in found([*swing, 50.0, 50.0, 50.0])] == [20]


def test_spike_is_found_in_noise() -> None:
    noise = np.exp(0.3 * np.random.default_rng(1).standard_normal(500))
    noise[400:403] = 30.0

    assert [spike.step for spike in found(noise.tolist())] == [400]


def _alarms(seeds: int, steps: int, sigma: float, warm_up: float = 0.0) -> int:
    count = 0
    for seed in range(seeds):
        noise = np.exp(sigma * np.random.default_rng(seed).standard_normal(steps))
        level = 1.0 + warm_up * np.exp(-np.arange(steps) / 200)
        count += len(found((level * noise).tolist()))
    return count


@pytest.mark.parametrize(("sigma", "warm_up"), [(0.3, 10.0), (0.5, 0.0), (1.0, 0.0)])
def test_noise_is_no_spike(sigma: float, warm_up: float) -> None:
    assert _alarms(5, 2_000, sigma, warm_up) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0])
def test_a_million_noisy_steps_hold_no_spike(sigma: float) -> None:
    assert _alarms(100, 10_000, sigma) == 0
