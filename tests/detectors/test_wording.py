from detectors.wording import (
    counted,
    names_in_words,
    rank_ranges,
    ranks_in_words,
    reasons_in_words,
)


def test_names_are_listed_up_to_a_bound_and_the_rest_counted() -> None:
    assert names_in_words(["n1"]) == "n1"
    assert names_in_words(["n1", "n2"], shown_max=2) == "n1, n2"
    assert names_in_words(["n1", "n2", "n3"], shown_max=2) == "n1, n2 and 1 more"


def test_reasons_are_listed_up_to_a_bound_and_the_rest_counted() -> None:
    assert reasons_in_words(["a: silent", "b: drained"], shown_max=2) == "a: silent; b: drained"
    assert reasons_in_words(["a: silent", "b: drained"], shown_max=1) == "a: silent; and 1 more"


def test_ranks_are_listed_up_to_a_bound_and_the_rest_counted() -> None:
    assert ranks_in_words([2]) == "rank 2"
    assert ranks_in_words([3, 0, 1]) == "ranks 0, 1 and 3"
    assert ranks_in_words(range(18)).endswith("14, 15 and 2 more")


def test_one_thing_is_singular_and_a_plural_of_its_own_is_kept() -> None:
    assert [counted(count, "node") for count in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert counted(1, "process", "processes") == "1 process"
    assert counted(2, "process", "processes") == "2 processes"


def test_ranks_of_a_table_are_shown_as_ranges() -> None:
    assert rank_ranges([8, 0, 1, 2, 9]) == "0-2, 8-9"
    assert rank_ranges([4]) == "4"
    assert rank_ranges([]) == "-"
