"""The ranks that a job's page names beside the map of all."""

from recovery.api import wire
from recovery.console.rank_table import slowest


def ranks_of(states: list[str], factors: list[float | None]) -> wire.RankMap:
    count = len(states)
    return wire.RankMap(
        "id", 1, 0.1, ["a"], list(range(count)), [0] * count, [7] * count, [1.0] * count, states, factors
    )  # fmt: skip


def test_while_the_job_trains_standing_and_slow_ranks_stand_out() -> None:
    ranks = ranks_of(["training", "standing", "training"], [1.0, None, 1.9])

    assert [row.rank for row in slowest(ranks, trains=True)] == [1, 2]


def test_of_a_job_that_does_not_train_only_the_failed_ranks_stand_out() -> None:
    ranks = ranks_of(["standing", "failed", "standing"], [1.0, 1.0, 1.9])

    assert [row.rank for row in slowest(ranks, trains=False)] == [1]
