"""Replicas that were equal and differ are found, and nothing else is accused."""

from hypothesis import given
from hypothesis import strategies as st

from detectors.replicas.divergence import (
    EQUAL_MIN,
    Digests,
    Divergence,
    ReplicaHistory,
)


def learned(
    *groups: tuple[int, ...], steps: int = EQUAL_MIN, part: str = "model"
) -> ReplicaHistory:
    history = ReplicaHistory()
    for step in range(steps):
        history, found = history.take(step, equal(*groups, step=step, part=part))
        assert found == ()
    return history


def equal(*groups: tuple[int, ...], step: int, part: str = "model") -> Digests:
    return {
        rank: {part: f"{step}-{number}"} for number, group in enumerate(groups) for rank in group
    }


def test_odd_one_of_three_is_named() -> None:
    digests = {0: {"model": "a"}, 1: {"model": "b"}, 2: {"model": "a"}}

    _history, found = learned((0, 1, 2)).take(9, digests)

    assert found == (Divergence(9, "model", (0, 1, 2), (1,)),)
    assert found[0].suspects == (1,)


def test_of_two_replicas_nobody_knows_which_is_wrong() -> None:
    _history, found = learned((0, 1)).take(9, {0: {"model": "a"}, 1: {"model": "b"}})

    assert found == (Divergence(9, "model", (0, 1), ()),)
    assert found[0].suspects == (0, 1)


def test_even_split_has_no_majority() -> None:
    digests = {rank: {"model": "ab"[rank % 2]} for rank in range(4)}

    _history, found = learned((0, 1, 2, 3)).take(9, digests)

    assert found[0].odd == ()


def test_only_the_replicas_of_one_shard_are_compared() -> None:
    history = learned((0, 2), (1, 3))

    _history, found = history.take(9, {**equal((0, 2), (1,), step=9), 3: {"model": "x"}})

    assert found == (Divergence(9, "model", (1, 3), ()),)


def test_shards_that_always_differ_are_never_accused() -> None:
    _history, found = learned((0,), (1,)).take(9, equal((0,), (1,), step=9))

    assert found == ()


def test_values_that_were_equal_but_never_changed_teach_nothing() -> None:
    history = ReplicaHistory()
    for step in range(9):
        history, _found = history.take(step, equal((0, 1, 2), step=0))

    _history, found = history.take(9, {0: {"model": "a"}, 1: {"model": "b"}, 2: {"model": "a"}})

    assert found == ()


def test_one_equal_snapshot_too_few_teaches_nothing() -> None:
    history = learned((0, 1, 2), steps=EQUAL_MIN - 1)

    _history, found = history.take(9, {0: {"model": "a"}, 1: {"model": "b"}, 2: {"model": "a"}})

    assert found == ()


def test_divergence_is_told_once() -> None:
    apart = [equal((0, 1), (2,), step=step) for step in range(9, 20)]

    history, found = learned((0, 1, 2)).take(9, apart[0])
    later = []
    for step, digests in enumerate(apart[1:], 10):
        history, more = history.take(step, digests)
        later += more

    assert len(found) == 1
    assert later == []


def test_older_step_is_judged_without_being_taken_in() -> None:
    history = learned((0, 1, 2))

    assert history.differing(1, equal((0, 1), (2,), step=1))[0].odd == (2,)
    assert history.take(1, equal((0, 1), (2,), step=1)) == (history, ())


def test_each_part_is_judged_by_itself() -> None:
    history = ReplicaHistory()
    for step in range(EQUAL_MIN):
        both = {rank: {"model": f"m{step}", "own": f"{step}-{rank}"} for rank in range(3)}
        history, _found = history.take(step, both)

    _history, found = history.take(
        9, {0: {"model": "a", "own": "1"}, 1: {"model": "a", "own": "2"}, 2: {"model": "b"}}
    )

    assert found == (Divergence(9, "model", (0, 1, 2), (2,)),)


@given(
    st.integers(2, 9),
    st.lists(st.integers(0, 3), min_size=9, max_size=9),
)
def test_whoever_is_named_is_never_of_the_majority(ranks: int, values: list[int]) -> None:
    group = tuple(range(ranks))
    digests = {rank: {"model": str(values[rank])} for rank in group}

    found = learned(group).differing(9, digests)

    held = [values[rank] for rank in group]
    majority = [value for value in held if 2 * held.count(value) > ranks]
    if len(set(held)) == 1:
        assert found == ()
    elif majority:
        assert found[0].odd == tuple(rank for rank in group if values[rank] != majority[0])
    else:
        assert found[0].suspects == group
