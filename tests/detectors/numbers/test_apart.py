"""Numbers that were equal on all ranks and no longer are."""

from collections.abc import Mapping

import pytest

from detectors.numbers.wrong import ApartWatch
from detectors.replicas.divergence import Divergence

Values = Mapping[int, float]


def equal(steps: int, ranks: int = 3) -> list[Values]:
    return [dict.fromkeys(range(ranks), 1.0 + 0.1 * step) for step in range(steps)]


def found(steps: list[Values]) -> list[Divergence]:
    watch = ApartWatch("gradient norm")
    return [one for step, values in enumerate(steps) for one in watch.take(step, values)]


def apart(*steps: Values) -> list[Values]:
    return list(steps)


def test_odd_rank_of_three_is_named_with_the_first_step() -> None:
    steps = [
        *equal(30),
        {0: 9.0, 1: 9.0, 2: 9.5},
        {0: 8.0, 1: 8.0, 2: 8.5},
        {0: 7.0, 1: 7.0, 2: 6.0},
    ]

    assert found(steps) == [Divergence(30, "gradient norm", (0, 1, 2), (2,))]


def test_of_two_ranks_nobody_knows_which_is_wrong() -> None:
    (one,) = found([*equal(30, 2), *[{0: 9.0 + step, 1: 9.5 + step} for step in range(9)]])

    assert (one.step, one.group, one.odd) == (30, (0, 1), ())


@pytest.mark.parametrize(
    "steps",
    [
        equal(100),
        [*equal(30), {0: 9.0, 1: 9.0, 2: 9.5}, {0: 8.0, 1: 8.0, 2: 8.5}, *equal(30)],  # rounded once
        [*equal(15), *[{0: 9.0 + n, 1: 9.0 + n, 2: 9.5 + n} for n in range(9)]],  # too little past
        [dict.fromkeys(range(3), 0.0)] * 50 + [{0: 1.0, 1: 2.0, 2: 3.0}] * 9,  # equal by chance
        [{rank: rank + 0.1 * step for rank in range(3)} for step in range(100)],  # own batches
        [{0: 0.1 * n, 1: 0.1 * n} for n in range(30)] + equal(9),  # a rank that tells later
    ],
)  # fmt: skip
def test_what_is_no_difference(steps: list[Values]) -> None:
    assert found(steps) == []


def test_own_losses_that_are_equal_by_chance_are_never_accused() -> None:
    own = [{rank: rank + 0.1 * step for rank in range(3)} for step in range(100)]
    own[50] = {0: 1.0, 1: 1.0, 2: 2.0}

    assert found(own) == []


def test_pipeline_of_two_groups_is_compared_within_each() -> None:
    def step(number: int, odd: float) -> Values:
        return {
            0: 1.0 + number,
            1: 1.0 + number,
            2: 1.0 + number + odd,
            3: 0.5 * number,
            4: 0.5 * number,
        }

    steps = [step(number, 0.0 if number < 40 else 0.25) for number in range(60)]

    assert [(one.group, one.odd) for one in found(steps)] == [((0, 1, 2), (2,))]
