"""Parallel groups from sizes and descriptions, against Megatron-LM's own numbering."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.parallel_groups import Parallelism, Sizes, layout_groups, parallelism_of, places_of
from rankmend.errors import ConfigError


def members(sizes: Sizes, parallelism: Parallelism) -> list[tuple[int, ...]]:
    return [group.ranks for group in layout_groups(sizes) if group.parallelism is parallelism]


def test_groups_of_16_ranks_are_those_of_megatron() -> None:
    sizes = Sizes(tensor=2, pipeline=4, data=2)

    assert members(sizes, Parallelism.TENSOR)[:2] == [(0, 1), (2, 3)]
    assert members(sizes, Parallelism.DATA)[:3] == [(0, 2), (1, 3), (4, 6)]
    assert members(sizes, Parallelism.PIPELINE)[:2] == [(0, 4, 8, 12), (1, 5, 9, 13)]


def test_experts_are_spread_over_data_parallel_ranks() -> None:
    sizes = Sizes(tensor=2, data=4, expert=2)

    assert members(sizes, Parallelism.EXPERT) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert members(sizes, Parallelism.DATA) == [(0, 2, 4, 6), (1, 3, 5, 7)]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_groups_of_one_direction_hold_each_rank_once(
    tensor: int, context: int, data: int, pipeline: int
) -> None:
    sizes = Sizes(tensor=tensor, context=context, data=data, pipeline=pipeline)

    for parallelism in (Parallelism.TENSOR, Parallelism.CONTEXT, Parallelism.PIPELINE):
        ranks = sorted(rank for group in members(sizes, parallelism) for rank in group)
        assert ranks in ([], list(range(sizes.ranks)))


def test_stage_and_replica_of_a_rank_come_from_its_groups() -> None:
    groups = layout_groups(Sizes(tensor=2, pipeline=4, data=2))

    place = places_of(groups, [15])[15]

    assert (place.stage, place.dp_rank) == (3, 1)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("default_pg", Parallelism.WORLD),
        ("TENSOR_MODEL_PARALLEL_GROUP", Parallelism.TENSOR),
        ("DATA_PARALLEL_GROUP_WITH_CP", Parallelism.DATA),
        ("EXPERT_MODEL_PARALLEL_GROUP", Parallelism.EXPERT),
        ("mesh_dp_shard", Parallelism.DATA),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", Parallelism.OTHER),
        ("EXPERT_DATA_PARALLEL_GROUP", Parallelism.OTHER),
    ],
)
def test_description_names_one_direction_or_none(description: str, expected: Parallelism) -> None:
    assert parallelism_of(description) is expected


@pytest.mark.parametrize("sizes", [{"tensor": 0}, {"data": 3, "expert": 2}, {"data": 2_000_000}])
def test_sizes_that_make_no_layout_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Sizes(**sizes)
