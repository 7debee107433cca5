"""Who differs from the fleet, and who fails again and again."""

from detectors.node.fleet_drift import find_drift
from detectors.node.job_libraries import LibraryShare, RankLibrary, find_mixed_jobs
from detectors.node.lemons import DAY_S, BlamedNode, find_lemons

NOW_S = 100 * DAY_S


def test_the_node_with_another_driver_is_named() -> None:
    versions = {f"n{number}": {"nvidia": "570.1", "kernel": "6.1"} for number in range(4)}
    versions["odd"] = {"nvidia": "550.9", "kernel": "6.1"}

    (drift,) = find_drift(versions)

    assert (drift.component, drift.usual) == ("nvidia", "570.1")
    assert drift.others == (("odd", "550.9"),)


def test_without_a_majority_nobody_differs() -> None:
    versions = {"a": {"bios": "1"}, "b": {"bios": "1"}, "c": {"bios": "2"}, "d": {"bios": "2"}}

    (drift,) = find_drift(versions)

    assert (drift.usual, drift.others) == (None, ())
    assert drift.counts == (("1", 2), ("2", 2))


def test_of_two_nodes_neither_is_the_odd_one() -> None:
    (drift,) = find_drift({"a": {"bios": "1"}, "b": {"bios": "2"}})

    assert drift.usual is None


def test_lemons_are_counted_by_kind_within_the_days() -> None:
    faults = [BlamedNode("bad", "device", NOW_S - DAY_S * n) for n in (0, 1, 27)]
    faults += [BlamedNode("bad", "hung", NOW_S), BlamedNode("bad", "device", NOW_S - 29 * DAY_S)]
    faults += [BlamedNode("good", "device", NOW_S), BlamedNode("", "device", NOW_S)]

    (lemon,) = find_lemons(faults, NOW_S)

    assert (lemon.node, lemon.faults) == ("bad", 4)
    assert lemon.kinds == (("device", 3), ("hung", 1))


def test_two_faults_make_no_lemon() -> None:
    assert find_lemons([BlamedNode("n", "device", NOW_S)] * 2, NOW_S) == []


def rank_library(rank: int, version: str, job: str = "j1", attempt: int = 1) -> RankLibrary:
    versions = tuple(version.split()) if version else ()
    return RankLibrary(f"n{rank // 2}", job, f"name of {job}", attempt, rank, versions)


def test_a_job_whose_ranks_have_loaded_two_versions_of_nccl_is_told_with_its_ranks() -> None:
    ranks = [rank_library(rank, "2.27.3") for rank in range(6)]
    ranks += [rank_library(rank, "2.21.5") for rank in (6, 7)]

    (mixed,) = find_mixed_jobs(ranks)

    assert (mixed.job_id, mixed.job_name) == ("j1", "name of j1")
    assert mixed.shares == (
        LibraryShare("2.27.3", ("n0", "n1", "n2"), (0, 1, 2, 3, 4, 5)),
        LibraryShare("2.21.5", ("n3",), (6, 7)),
    )
    assert mixed.in_words() == (
        "job name of j1 (j1) has loaded 2 versions of NCCL: 2.27.3 in ranks 0, 1, 2, 3, 4 and 5 on 3 nodes (n0, n1, n2); "
        "2.21.5 in ranks 6 and 7 on 1 node (n3)"
    )


def test_jobs_may_differ_from_each_other() -> None:
    ranks = [rank_library(0, "2.27.3", "j1"), rank_library(1, "2.21.5", "j2")]

    assert find_mixed_jobs(ranks) == []


def test_ranks_that_all_have_loaded_the_same_two_are_alike_and_one_that_has_one_of_them_is_not() -> (
    None
):
    ranks = [rank_library(0, "2.21.5 2.27.3"), rank_library(1, "2.27.3 2.21.5")]
    assert find_mixed_jobs(ranks) == []

    (mixed,) = find_mixed_jobs([*ranks, rank_library(2, "2.27.3")])

    assert [one.version for one in mixed.shares] == ["2.21.5 and 2.27.3", "2.27.3"]


def test_what_an_earlier_attempt_or_a_rank_without_nccl_told_does_not_count() -> None:
    ranks = [
        rank_library(0, "2.27.3", attempt=2),
        rank_library(1, "2.21.5", attempt=1),
        rank_library(2, "", attempt=3),
    ]

    assert find_mixed_jobs(ranks) == []
