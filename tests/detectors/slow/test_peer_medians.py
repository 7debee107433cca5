"""Medians of peers: equal to the plain ones, whichever way they are found."""

from itertools import product

import numpy as np
import pytest

from detectors.slow.peers import log_ratios, row_medians


def test_medians_of_five_are_those_of_sorting_for_every_order_and_tie() -> None:
    every = np.array(list(product(range(5), repeat=5)), dtype=np.float32)

    assert row_medians(every).tolist() == np.sort(every, axis=1)[:, 2].tolist()
    assert row_medians(every).dtype == every.dtype


@pytest.mark.parametrize("rows", [1, 8_191, 8_192, 8_193, 20_000])
def test_medians_of_five_do_not_depend_on_the_blocks(rows: int) -> None:
    values = np.random.default_rng(rows).standard_normal((rows, 5), dtype=np.float32)

    assert (row_medians(values) == np.partition(values, 2, axis=1)[:, 2]).all()


def test_rows_of_five_with_a_missing_value_have_the_median_of_the_others() -> None:
    values = np.array([[1, np.nan, 3, 2, np.nan], [np.nan] * 5])

    medians = row_medians(values)

    assert medians[0] == 2
    assert np.isnan(medians[1])


def test_a_step_of_which_most_peers_tell_nothing_compares_with_nobody() -> None:
    seconds = np.ones((4, 3))
    seconds[:3, 1] = np.nan
    seconds[0, 2] = np.nan

    ratios = log_ratios(seconds, [np.arange(4)])

    assert ratios[3].tolist()[::2] == [0.0, 0.0]
    assert np.isnan(ratios[:, 1]).all()
