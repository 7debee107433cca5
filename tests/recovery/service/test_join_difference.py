"""What a launcher is told that joins a job with other settings."""

from typing import Any

import pytest

from recovery.api.wire import ParallelSizes
from recovery.service.http.request_errors import CallConflictError
from recovery.service.jobs.join_difference import refuse_difference
from tests.support.service import join_of


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ({"slots": 8, "shrink_multiple": 4}, {"slots": 1, "shrink_multiple": 4}, "with 8 ranks a node (--nproc-per-node), and this launcher has 1 rank a node"),
        ({"nodes_max": 4}, {"nodes_max": 3}, "with at most 4 nodes (--nnodes), and this launcher has at most 3 nodes"),
        ({"nodes_min": 1}, {"nodes_min": 2}, "with at least 1 node (--nnodes), and"),
        ({"has_checkpoints": True}, {}, "with --checkpoint-dir, and this launcher has no --checkpoint-dir:"),
        (
            {"parallel": ParallelSizes(tp=2, dp=4, sharded_parts=["optimizer"])},
            {},
            "with --parallel tp=2,dp=4 --sharded-parts optimizer, and this launcher has no --parallel:",
        ),
        (
            {"policy": {"restarts_max": 3.0, "tries_max": 2.0}},
            {"policy": {"restarts_max": 5.0, "tries_max": 2.0}},
            "with restarts_max = 3 in [policy], and this launcher has restarts_max = 5 in [policy]:",
        ),
        (
            {"policy": {"restarts_max": 3.0}},
            {},
            "with restarts_max = 3 in [policy], and this launcher has no such line in [policy]:",
        ),
        ({"grace_s": 30.0}, {"grace_s": 2.5}, "with --grace 30 s, and this launcher has --grace 2.5 s:"),
        ({"name": "llama"}, {"name": "x\x1b[2J"}, "with the name 'llama', and this launcher has the name 'x"),
    ],
)  # fmt: skip
def test_difference_is_said_in_the_words_of_the_command(
    first: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    with pytest.raises(CallConflictError) as refused:
        refuse_difference(join_of("n1", **first), join_of("n2", **other))

    assert said in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert "ParallelSizes" not in str(refused.value)


def test_equal_settings_are_no_conflict() -> None:
    refuse_difference(join_of("n1"), join_of("n2"))


@pytest.mark.parametrize("multiple", [0, 1])
def test_nodes_may_have_different_numbers_of_ranks(multiple: int) -> None:
    refuse_difference(
        join_of("n1", slots=8, shrink_multiple=multiple),
        join_of("n2", slots=7, shrink_multiple=multiple),
    )
