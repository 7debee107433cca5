"""Answers of NCCL's RAS, in the form that its sources write."""

import pytest

from detectors.formats.nccl_ras import RasRank, ras_evidence, read_ras
from rankmend.errors import SourceError
from tests.support.nccl import RAS_TEXT, ras_answer


def test_rank_that_has_launched_fewer_collectives_is_named_with_host_and_process() -> None:
    (found,) = read_ras(ras_answer([50, 50, 49, 50]))

    assert found == RasRank(2, "10.0.0.2", 102, 2, "AllReduce", 49, 50)
    (line,) = ras_evidence((found,))
    assert line.text == "rank 2 (process 102 on 10.0.0.2): 49 AllReduce launched, others 50"


def test_rank_that_is_ahead_accuses_nobody() -> None:
    assert read_ras(ras_answer([51, 50, 50, 50])) == ()


def test_equal_ranks_accuse_nobody_and_smaller_communicators_are_not_looked_at() -> None:
    assert read_ras(ras_answer([50, 50, 50, 50])) == ()


def test_rank_that_does_not_answer_is_named() -> None:
    gone = {"rank": 3, "host": "10.0.0.3", "pid": 7, "cuda_dev": 3, "nvml_dev": 3,
            "status": {"unresponsive": True, "considered_dead": True}}  # fmt: skip

    (found,) = read_ras(ras_answer([50, 50, 50], missing=[gone]))

    assert (found.rank, found.is_missing, found.is_dead) == (3, True, True)
    assert ras_evidence((found,))[0].text == "rank 3 (process 7 on 10.0.0.3): counted as dead"


def test_rank_that_answers_and_has_left_the_communicator_is_not_named() -> None:
    left = {"rank": 3, "host": "h", "pid": 7, "cuda_dev": 3, "nvml_dev": 3,
            "status": {"unresponsive": False, "considered_dead": False}}  # fmt: skip

    assert read_ras(ras_answer([50, 50, 50], missing=[left])) == ()


def test_text_names_its_outliers() -> None:
    listed, first, second = read_ras(RAS_TEXT)

    assert listed == RasRank(0, "172.16.64.210", 483072, 0, "AllReduce", 6649, 6650)
    assert first == RasRank(7, "172.16.64.210", 483079, 7, "AllReduce", 6648, 6650)
    assert second == RasRank(9, "fd00::7", 5, 1, "AllReduce", 0, 6650)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"connection refused",
        b"{",
        b'{"nccl_version": 3}',
        ras_answer([1], communicators=[{"hash": 1}]),
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError):
        read_ras(data)


def test_answer_without_communicators_accuses_nobody() -> None:
    assert read_ras(ras_answer([1], communicators=[])) == ()
