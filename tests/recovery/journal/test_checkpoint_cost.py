"""The best checkpoint interval and what an interval costs: by hand, and against a simulated job."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.journal.checkpoint_cost import (
    PRIOR_RANK_S,
    Costs,
    best_interval_s,
    cost_of,
    failure_interval_s,
)


def test_best_interval_is_dalys_higher_order_estimate() -> None:
    # sqrt(2 x 60 x 36,000) = 2078.46; q = 60 / 72,000: sqrt(q) / 3 = 0.009623, q / 9 = 0.0000926
    costs = Costs(stall_s=60.0, save_s=60.0, failure_interval_s=36_000.0)

    assert best_interval_s(costs) == pytest.approx(2078.461 * 1.0097151, abs=0.01)


def test_stall_longer_than_twice_the_failure_interval_trains_for_one_of_these() -> None:
    assert best_interval_s(Costs(10.0, 10.0, 4.0)) == 14.0


def test_best_interval_lets_no_two_saves_be_under_way() -> None:
    # Young: sqrt(2 x 1 x 36,000) = 268 s, and the files take 600 s.
    assert best_interval_s(Costs(stall_s=1.0, save_s=600.0, failure_interval_s=36_000.0)) == 600.0


def test_cost_of_an_interval_is_what_the_model_says_by_hand() -> None:
    # x = 720 / 11,520 = 0.0625; x / (e^x - 1) = 0.969076; stalls are 14.4 / 720 = 2 % of that.
    cost = cost_of(720.0, Costs(14.4, 14.4, 11_520.0))

    assert cost.stalls == pytest.approx(0.0193815, abs=1e-6)
    assert cost.recomputed == pytest.approx(0.030924, abs=1e-6)
    assert cost.restarts == 0.0
    assert cost.total == pytest.approx(0.0503055, abs=1e-6)


def test_restarts_and_files_that_follow_the_stall_cost_their_share_of_the_failure_interval() -> (
    None
):
    # e^(-115.2 / 11,520) = 0.990050; what is saved 1,152 s after its stall is lost in 1 of 10 failures' time.
    plain = cost_of(720.0, Costs(14.4, 14.4, 11_520.0))
    cost = cost_of(720.0, Costs(14.4, 14.4 + 1152.0, 11_520.0, repair_s=115.2))

    assert cost.restarts == pytest.approx(1 - 0.990050, abs=1e-6)
    kept = 0.990050 * math.exp(-0.1)
    assert cost.stalls == pytest.approx(kept * plain.stalls, abs=1e-6)
    assert cost.recomputed == pytest.approx(0.990050 - kept * 0.969076, abs=1e-5)


@given(
    st.floats(1.0, 1e6),
    st.floats(0.001, 1e5),
    st.floats(0.0, 1e5),
    st.floats(1.0, 1e9),
    st.floats(0.0, 1e6),
)
def test_costs_are_shares_of_the_wall_time(
    interval_s: float, stall_s: float, behind_s: float, mean_s: float, repair_s: float
) -> None:
    cost = cost_of(interval_s, Costs(stall_s, stall_s + behind_s, mean_s, repair_s))

    assert all(0 <= part <= 1 for part in (cost.stalls, cost.recomputed, cost.restarts))
    assert 0 <= cost.total <= 1 + 1e-9


def test_rate_before_the_first_failure_is_the_published_one() -> None:
    assert failure_interval_s(0.0, 3600.0, 16_384) == pytest.approx(1.8 * 3600)
    assert failure_interval_s(0.0, 3600.0, 1024) == pytest.approx(PRIOR_RANK_S / 1024)


def test_rate_is_measured_as_far_as_there_are_failures() -> None:
    # 4 failures in 4 h against a published 1.8 h: 3600 x 1.8^(1/5) = 4049 s.
    assert failure_interval_s(4.0, 4 * 3600.0, 16_384) == pytest.approx(4049.1, abs=0.1)
    # One failure in 0.45 h: halfway on a logarithmic scale, sqrt(0.45 x 1.8) = 0.9 h.
    assert failure_interval_s(1.0, 0.45 * 3600, 16_384) == pytest.approx(0.9 * 3600)


def simulate(interval_s: float, costs: Costs, gaps_s: list[float]) -> float:
    """Return the share of time lost by a job that lives through these failures, event by event.

    Training steps and saves are walked through one after the other; a save that runs in the background
    can be restored once its files are there.
    """
    useful_s = 0.0  # in the newest restorable checkpoint
    for gap_s in gaps_s:
        now_s, done_s = costs.repair_s, useful_s
        in_flight: list[tuple[float, float]] = []  # when it can be restored, and what it holds
        while now_s < gap_s:
            now_s += interval_s - costs.stall_s
            done_s += interval_s - costs.stall_s
            in_flight.append((now_s + costs.save_s, done_s))
            now_s += costs.stall_s
        useful_s = max([useful_s, *(holds_s for at_s, holds_s in in_flight if at_s <= gap_s)])
    return 1.0 - useful_s / sum(gaps_s)


@pytest.mark.parametrize(
    "costs",
    [
        Costs(stall_s=20.0, save_s=20.0, failure_interval_s=3600.0, repair_s=90.0),
        Costs(stall_s=20.0, save_s=80.0, failure_interval_s=3600.0, repair_s=90.0),
        Costs(stall_s=120.0, save_s=120.0, failure_interval_s=1200.0),
    ],
)
def test_simulated_job_loses_least_near_the_best_interval_and_as_much_as_told(costs: Costs) -> None:
    random = Random(7)
    gaps_s = [random.expovariate(1 / costs.failure_interval_s) for _failure in range(4000)]
    best_s = best_interval_s(costs)
    tried_s = [best_s * 1.15**exponent for exponent in range(-8, 9)]

    lost = {interval_s: simulate(interval_s, costs, gaps_s) for interval_s in tried_s}

    least_s = min(tried_s, key=lost.__getitem__)
    assert best_s / 1.4 < least_s < best_s * 1.4
    assert lost[best_s] - lost[least_s] < 0.003
    for interval_s in tried_s:
        assert lost[interval_s] == pytest.approx(cost_of(interval_s, costs).total, abs=0.015)
