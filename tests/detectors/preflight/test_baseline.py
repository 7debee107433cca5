"""What nodes of one model usually reach, and when there is too little to say."""

import pytest

from detectors.preflight.baseline import (
    EMPTY,
    SAMPLES_MAX,
    Baseline,
    BaselineSample,
    Expectation,
    TooFewSamples,
    add,
    expect,
    is_worse,
    merge,
)
from detectors.preflight.figures import KINDS, LoadFigure

NAME = "memory_copy_bytes_per_s"
KEY = (NAME, "host A")
FIGURE = LoadFigure(NAME, 100.0, "memory", "host A")


def fleet(values: dict[str, list[float]]) -> Baseline:
    samples = [
        BaselineSample(node, float(number), value)
        for node, some in values.items()
        for number, value in enumerate(some)
    ]
    return Baseline({KEY: tuple(samples)})


def test_three_other_nodes_are_too_few_and_the_answer_says_how_many() -> None:
    baseline = fleet({"a": [100.0], "b": [100.0], "c": [100.0], "me": [1.0]})

    assert expect(baseline, "me", FIGURE, KINDS[NAME]) == TooFewSamples(3, 1)


def test_a_node_is_not_judged_by_its_own_samples_where_the_fleet_is_known() -> None:
    baseline = fleet({**{name: [100.0] for name in "abcd"}, "me": [50.0] * 8})

    expected = expect(baseline, "me", FIGURE, KINDS[NAME])

    assert isinstance(expected, Expectation)
    assert (expected.centre, expected.nodes, expected.samples) == (100.0, 4, 4)


def test_a_node_of_a_small_fleet_is_held_against_its_own_past() -> None:
    baseline = fleet({"me": [100.0] * 8})

    expected = expect(baseline, "me", FIGURE, KINDS[NAME])

    assert isinstance(expected, Expectation)
    assert expected.is_own


def test_a_fleet_that_agrees_allows_the_share_of_the_kind_and_no_less() -> None:
    expected = expect(fleet({name: [100.0] for name in "abcd"}), "me", FIGURE, KINDS[NAME])

    assert isinstance(expected, Expectation)
    assert expected.limit == 80.0
    assert not is_worse(KINDS[NAME], 80.0, expected.limit)
    assert is_worse(KINDS[NAME], 79.9, expected.limit)


def test_the_spread_has_what_differs_from_run_to_run() -> None:
    steady = fleet({name: [100.0, 100.0, 100.0] for name in "abcd"})
    unsteady = fleet({name: [95.0, 100.0, 105.0] for name in "abcd"})

    assert _limit(steady) == 80.0
    assert _limit(unsteady) == pytest.approx(100.0 - 6 * 1.4826 * 5.0)


def test_samples_that_differ_too_much_judge_nobody() -> None:
    expected = expect(
        fleet({name: [50.0, 100.0, 150.0] for name in "abcd"}), "me", FIGURE, KINDS[NAME]
    )

    assert isinstance(expected, Expectation)
    assert expected.is_unsteady


def test_a_node_that_is_checked_often_counts_once() -> None:
    values = {"slow": [50.0] * SAMPLES_MAX, **{name: [100.0] for name in "abcd"}}

    expected = expect(fleet(values), "me", FIGURE, KINDS[NAME])

    assert isinstance(expected, Expectation)
    assert expected.centre == 100.0


def test_more_is_worse_for_a_time() -> None:
    kind = KINDS["disk_sync_s"]
    samples = tuple(BaselineSample(name, 0.0, 0.001) for name in "abcd")
    figure = LoadFigure("disk_sync_s", 0.1, "disk", "ext4")

    expected = expect(Baseline({("disk_sync_s", "ext4"): samples}), "me", figure, kind)

    assert isinstance(expected, Expectation)
    assert is_worse(kind, 0.1, expected.limit)
    assert not is_worse(kind, 0.0001, expected.limit)


def test_a_merge_has_each_sample_once_and_the_newest_of_a_node() -> None:
    many = fleet({"a": [float(number) for number in range(SAMPLES_MAX + 3)]})

    merged = merge(many, many, fleet({"b": [1.0]}))

    values = [one.value for one in merged.samples[KEY] if one.node == "a"]
    assert values == [float(number) for number in range(3, SAMPLES_MAX + 3)]
    assert len(merged.samples[KEY]) == SAMPLES_MAX + 1


def test_several_parts_of_one_model_give_one_sample() -> None:
    figures = [LoadFigure(NAME, value, "memory", "host A") for value in (1.0, 2.0, 9.0)]

    added = add(EMPTY, "a", 5.0, figures)

    assert added.samples[KEY] == (BaselineSample("a", 5.0, 2.0),)


def _limit(baseline: Baseline) -> float:
    expected = expect(baseline, "me", FIGURE, KINDS[NAME])
    assert isinstance(expected, Expectation)
    return expected.limit
