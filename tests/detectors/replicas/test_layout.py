"""Declared parallel sizes say which ranks are replicas, and refuse a job that they don't fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.replicas.divergence import TOLD_MAX, DeclaredReplicas, Divergence
from detectors.replicas.layout import ParallelLayout, parse_parallel
from rankmend.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "ranks", "replicas"),
    [
        ("dp=4", 4, ((0, 1, 2, 3),)),
        ("dp=2,tp=2", 4, ((0, 2), (1, 3))),
        ("tp=2,dp=2,pp=1", 4, ((0, 2), (1, 3))),
        ("pp=2,dp=2", 4, ((0, 1), (2, 3))),
        ("tp=2,pp=2", 8, ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("cp=2,tp=2", 4, ((0, 2), (1, 3))),
        ("ep=2,dp=4", 4, ((0, 2), (1, 3))),
        ("tp=4", 4, ()),
        ("pp=4,dp=1", 4, ()),
    ],
)
def test_ranks_that_differ_only_in_data_and_sequence_are_replicas(
    text: str, ranks: int, replicas: tuple[tuple[int, ...], ...]
) -> None:
    assert parse_parallel(text).replicas(ranks) == replicas


@pytest.mark.parametrize(
    ("text", "ranks", "said"),
    [
        ("dp=2,tp=2", 6, "tp=2,dp=2 don't fit: they make 4 ranks, and there are 6"),
        ("tp=4", 6, "tp=4 don't fit: 6 ranks are not a multiple of 4"),
        ("dp=3,ep=2", 3, "ep=2,dp=3 don't fit: ep doesn't divide dp=3"),
    ],
)
def test_sizes_that_do_not_fit_the_job_are_refused_by_name(
    text: str, ranks: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_parallel(text).sizes(ranks)
    assert parse_parallel(text).replicas(ranks) == ()


@pytest.mark.parametrize(
    "text",
    ["", "dp", "dp=", "dp=two", "zp=2", "dp=2,dp=2", "dp=0", "dp=-1", "dp=2,", "tp=99999999"],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_parallel(text)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_a_layout_or_refused(text: str, parts: str) -> None:
    try:
        layout = parse_parallel(text, parts)
    except ConfigError:
        return
    assert parse_parallel(str(layout)) == ParallelLayout(
        layout.tp, layout.cp, layout.ep, layout.dp, layout.pp
    )


HALVES = DeclaredReplicas(frozenset({frozenset({0, 2}), frozenset({1, 3})}))


def test_difference_in_the_first_snapshot_is_found_and_told_once() -> None:
    def at(step: int) -> dict[int, dict[str, str]]:
        return {rank: {"model": f"{step}-{rank % 2 if rank < 3 else 'x'}"} for rank in range(4)}

    history, found = HALVES.take(1, at(1))
    _history, again = history.take(2, at(2))

    assert found == (Divergence(1, "model", (1, 3), ()),)
    assert again == ()
    assert history.differing(2, at(2)) == (Divergence(2, "model", (1, 3), ()),)


def test_part_that_replicas_divide_or_that_one_alone_has_is_not_compared() -> None:
    digests = {rank: {"optimizer": f"{rank}"} for rank in range(4)}
    digests[0]["average"] = "a"
    history = DeclaredReplicas(HALVES.declared, frozenset({"optimizer"}))

    assert history.take(1, digests)[1] == ()


def test_findings_of_a_wrong_declaration_are_bounded() -> None:
    pairs = frozenset(frozenset({rank, rank + 1}) for rank in range(0, 1000, 2))
    history = DeclaredReplicas(pairs)
    digests = {rank: {"model": f"{rank}"} for rank in range(1000)}

    history, found = history.take(1, digests)

    assert len(found) == TOLD_MAX
    assert history.take(2, digests)[1] == ()
    assert len(history.differing(2, digests)) == 500
