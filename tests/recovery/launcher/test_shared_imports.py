"""What the launcher makes of the ranks' lists of imports."""

from typing import Any

import pytest

from recovery.launcher.ranks.rank_imports import share

A, B, C, OWN = (["a", "/a.py"], ["b", "/b.py"], ["c", "/c.py"], ["own", "/own.py"])


def told(
    modules: list[list[str]],
    changes: list[Any] | None = None,
    by_imports: dict[str, Any] | None = None,
    touched: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "modules": modules,
        "changes": changes or [],
        "by_imports": by_imports or {},
        "touched": touched or {},
        "environment": {"ORDERED": "1"},
    }


def test_a_change_that_all_ranks_made_before_the_same_module_is_kept_with_its_place() -> None:
    one = told([A, OWN, B], [[1, {"X": "1"}], [2, {"X": "1", "Y": None}]])
    other = told([A, B], [[1, {"X": "1", "Y": None}]])

    shared = share([one, other])

    assert shared["modules"] == [("a", "/a.py"), ("b", "/b.py")]
    assert shared["changes"] == [(1, {"X": "1", "Y": None}, [])]
    assert shared["environment"] == {}


@pytest.mark.parametrize(
    "other",
    [
        [[1, {"X": "2", "Y": "1"}]],
        [[1, {"X": None, "Y": "1"}]],
        [[1, {"Y": "1"}]],
        [[1, {"Y": "1"}], [2, {"X": "1", "Y": "1"}]],
    ],
)
def test_a_change_that_differs_at_a_module_is_named_there(other: list[Any]) -> None:
    shared = share([told([A, B, C], [[1, {"X": "1", "Y": "1"}]]), told([A, B, C], other)])

    assert shared["changes"][0] == (1, {"Y": "1"}, ["X"])  # type: ignore[index]


def test_a_change_that_is_taken_back_ends_its_section() -> None:
    shared = share([told([A, B, C], [[1, {"X": "1"}], [2, {}]])])

    assert shared["changes"] == [(1, {"X": "1"}, []), (2, {}, [])]


def test_what_an_import_changes_in_some_ranks_only_differs() -> None:
    one = told([A], by_imports={"a": {"X": "1"}, "own": {"Y": "1"}})
    other = told([A], by_imports={"a": {"X": "1"}})

    shared = share([one, other])

    assert shared["by_imports"] == {"a": ({"X": "1"}, []), "own": ({}, ["Y"])}


def test_changes_of_a_rank_that_knows_no_order_are_passed_on() -> None:
    shared = share([told([A]), {**told([A]), "changes": None}])

    assert shared["environment"] == {"ORDERED": "1"}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        None,
        {**told([A]), "modules": [["a"]]},
        {**told([A]), "modules": 3},
        {**told([A]), "changes": [[0]]},
        {**told([A]), "changes": [["0", {}]]},
        {**told([A]), "changes": [[0, {"X": 1}]]},
        {**told([A]), "by_imports": {"a": 1}},
    ],
)
def test_a_list_that_no_rank_writes_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        share([told([A]), wrong])
