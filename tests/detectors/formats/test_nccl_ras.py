"""Answers of NCCL's RAS, in the form that its sources write."""

import json
from typing import Any

import pytest

from detectors.formats.nccl_ras import RasRank, ras_evidence, read_ras
from rankmend.errors import SourceError

TEXT = b"""NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 7 has launched up to operation 6648 -- GPU 7 managed by process 483079 on node 172.16.64.210
  Rank 9 has not launched any operations -- GPU 1 (NVML 3) managed by process 5 on node fd00::7

"""


def answer(counts: list[int], **changes: Any) -> bytes:
    """Return what `ncclras -f json` prints of one communicator of all ranks, and one of two."""

    def communicator(ranks: list[int], missing: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "hash": "0x27a079b828ff1a75",
            "secondary_hash": "0x1:0x2",
            "size": len(ranks) + len(missing),
            "ranks_count": len(ranks),
            "missing_ranks_count": len(missing),
            "ranks": [
                {
                    "rank": rank,
                    "host": f"10.0.0.{rank}",
                    "pid": 100 + rank,
                    "cuda_dev": rank,
                    "nvml_dev": rank,
                    "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                    "collective_counts": {"Broadcast": 1, "AllReduce": count},
                }
                for rank, count in enumerate(ranks)
            ],
            "missing_ranks": missing,
        }

    told = {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 12090,
        "communicators_count": 2,
        "communicators": [
            communicator([1, 9], []),
            communicator(counts, changes.pop("missing", [])),
        ],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    return json.dumps({**told, **changes}).encode()


def test_rank_that_has_launched_fewer_collectives_is_named_with_host_and_process() -> None:
    (found,) = read_ras(answer([50, 50, 49, 50]))

    assert found == RasRank(2, "10.0.0.2", 102, 2, "AllReduce", 49, 50)
    (line,) = ras_evidence((found,))
    assert line.text == "rank 2 (process 102 on 10.0.0.2): 49 AllReduce launched, others 50"


def test_rank_that_is_ahead_accuses_nobody() -> None:
    assert read_ras(answer([51, 50, 50, 50])) == ()


def test_equal_ranks_accuse_nobody_and_smaller_communicators_are_not_looked_at() -> None:
    assert read_ras(answer([50, 50, 50, 50])) == ()


def test_rank_that_does_not_answer_is_named() -> None:
    gone = {"rank": 3, "host": "10.0.0.3", "pid": 7, "cuda_dev": 3, "nvml_dev": 3,
            "status": {"unresponsive": True, "considered_dead": True}}  # fmt: skip

    (found,) = read_ras(answer([50, 50, 50], missing=[gone]))

    assert (found.rank, found.is_missing, found.is_dead) == (3, True, True)
    assert ras_evidence((found,))[0].text == "rank 3 (process 7 on 10.0.0.3): counted as dead"


def test_rank_that_answers_and_has_left_the_communicator_is_not_named() -> None:
    left = {"rank": 3, "host": "h", "pid": 7, "cuda_dev": 3, "nvml_dev": 3,
            "status": {"unresponsive": False, "considered_dead": False}}  # fmt: skip

    assert read_ras(answer([50, 50, 50], missing=[left])) == ()


def test_text_names_its_outliers() -> None:
    listed, first, second = read_ras(TEXT)

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
        answer([1], communicators=[{"hash": 1}]),
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError):
        read_ras(data)


def test_answer_without_communicators_accuses_nobody() -> None:
    assert read_ras(answer([1], communicators=[])) == ()
