"""Hangs from the lines of PyTorch's watchdogs, in the forms of several versions."""

import pytest

from detectors.job_log.kinds import LogDecision, LogKind
from detectors.job_log.lines import LogSource
from detectors.job_log.verdict import LogVerdict, diagnose_log

CAUGHT = (
    "[rank{rank}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType={kind}, NumelIn=46, NumelOut=46, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)
OLD = "[E ProcessGroupNCCL.cpp:737] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={kind}, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out."
STATUS_2_3 = "[rank{rank}]:[E321 02:07:08.46 ProcessGroupNCCL.cpp:1664] [PG 0 Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
STATUS_2_6 = "[rank{rank}]:[E1213 17:24:49.08 ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}"


def diagnose(*lines: str) -> LogVerdict:
    return diagnose_log([LogSource("job.log", [line.encode() for line in lines])])


def lines_of(
    form: str, sequences: dict[int, int], kinds: dict[int, str] | None = None
) -> list[str]:
    return [
        form.format(
            rank=rank,
            seq=seq,
            kind=(kinds or {}).get(rank, "ALLREDUCE"),
            enqueued=seq + 3,
            completed=seq - 1,
        )
        for rank, seq in sequences.items()
    ]


@pytest.mark.parametrize(
    ("form", "status"), [(CAUGHT, STATUS_2_3), (CAUGHT, STATUS_2_6), (OLD, "")]
)
def test_rank_that_has_not_completed_what_its_peers_have_is_stuck(form: str, status: str) -> None:
    sequences = dict.fromkeys(range(8), 808) | {5: 806}
    lines = lines_of(form, sequences) + (lines_of(status, sequences) if status else [])

    verdict = diagnose(*lines)

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG_DEVICE, (5,))
    assert verdict.victims == (0, 1, 2, 3, 4, 6, 7)
    assert verdict.decision is LogDecision.RESTART


def test_rank_that_lives_and_reports_nothing_has_not_launched() -> None:
    sequences = {rank: 808 for rank in range(8) if rank != 5}

    verdict = diagnose("[rank5]: epoch 3", *lines_of(CAUGHT, sequences))

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG_HOST, (5,))


def test_rank_that_says_nothing_at_all_is_gone() -> None:
    sequences = {rank: 808 for rank in range(8) if rank != 5}

    verdict = diagnose("world_size=8", *lines_of(CAUGHT, sequences))

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG_GONE, (5,))


def test_many_silent_ranks_are_not_accused() -> None:
    verdict = diagnose("world_size=8", *lines_of(CAUGHT, {0: 808, 1: 808, 2: 808}))

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG, ())


def test_idle_rank_that_reports_its_status_has_not_launched() -> None:
    idle = (
        "[rank3]:[E1213 17:24:49.3 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective "
        "timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 807, last completed NCCL work: 807."
    )
    sequences = dict.fromkeys(range(3), 808)

    verdict = diagnose(*lines_of(CAUGHT, sequences), *lines_of(STATUS_2_6, sequences), idle)

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG_HOST, (3,))


def test_same_place_on_all_ranks_names_nobody() -> None:
    sequences = dict.fromkeys(range(8), 808)

    verdict = diagnose(*lines_of(CAUGHT, sequences), *lines_of(STATUS_2_6, sequences))

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG, ())


def test_odd_one_of_different_operations_at_one_place_is_named() -> None:
    sequences = dict.fromkeys(range(4), 808)

    verdict = diagnose(*lines_of(CAUGHT, sequences, {2: "BROADCAST"}))

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG_MISMATCH, (2,))


def test_one_number_for_several_groups_is_not_judged() -> None:
    lines = [
        f"[rank{rank}]:[E321 02:07:08.46 ProcessGroupNCCL.cpp:1664] [PG 3 Rank {rank % 2}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {seq}, last completed NCCL work: {seq - 1}."
        for rank, seq in ((0, 10), (1, 10), (2, 7), (3, 7))
    ]

    verdict = diagnose(*lines)

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG, ())


def test_member_between_those_of_a_group_that_report_is_waited_for() -> None:
    lines = [
        f"[rank{rank}]:[E1213 17:24:49.0 ProcessGroupNCCL.cpp:2241] [PG ID 2 PG GUID 5(tp) Rank {rank // 8}]  failure detected by watchdog at work sequence id: 9 PG status: last enqueued work: 9, last completed work: 8"
        for rank in (1, 9, 25)
    ]

    verdict = diagnose("[rank17]: epoch 3", "world_size=28", *lines)

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.HANG_HOST, (17,))


def test_barrier_and_desync_report_name_their_ranks() -> None:
    barrier = diagnose(
        "[rank0]: RuntimeError: Rank 0: Rank 2 failed to pass monitoredBarrier in 30000 ms"
    )
    desync = diagnose(
        "[rank0]: Watchdog caught collective operation timeout: desync report",
        "\t - [3] finished collective #4, but didn't join collective #5 (count from 1)",
    )

    assert barrier.culprit_ranks == (2,)
    assert desync.culprit_ranks == (3,)


def test_error_of_a_rank_explains_the_timeouts_behind_it() -> None:
    verdict = diagnose(
        "[rank6]: Traceback (most recent call last):",
        '[rank6]:   File "/w/train.py", line 7, in main',
        "[rank6]: RuntimeError: CUDA error: an illegal memory access was encountered",
        *lines_of(CAUGHT, dict.fromkeys(range(6), 808)),
    )

    assert (verdict.kind, verdict.culprit_ranks) == (LogKind.ILLEGAL_ACCESS, (6,))


@pytest.mark.parametrize(
    "behind",
    [{}, {7: 806}, {7: 806, 8: 806}, dict.fromkeys(range(20), 807), {7: None}, {7: None, 9: 806}],
)
def test_hang_of_4000_ranks_is_judged_like_that_of_400(behind: dict[int, int | None]) -> None:
    told = []
    for world in (400, 4_000):
        everyone: dict[int, int | None] = dict.fromkeys(range(world), 808)
        sequences = everyone | behind
        heard = {rank: seq for rank, seq in sequences.items() if seq is not None}
        lines = lines_of(CAUGHT, heard) + lines_of(STATUS_2_6, heard)
        told.append(diagnose(f"world_size: {world}", *lines))

    few, many = told
    assert (many.kind, many.culprit_ranks, many.confidence) == (
        few.kind,
        few.culprit_ranks,
        few.confidence,
    )
    assert many.reason.replace("4000", "400") == few.reason
    assert not set(many.victims) ^ set(range(4_000)) - set(many.culprit_ranks) - behind.keys()


def test_reason_that_counts_ranks_counts_those_that_stand_alike() -> None:
    idle = (
        "[rank{rank}]:[E1213 17:24:49.3 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective "
        "timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 807, last completed NCCL work: 807."
    )
    waiting = dict.fromkeys(range(20), 808)
    lines = lines_of(CAUGHT, waiting) + lines_of(STATUS_2_6, waiting)

    verdict = diagnose(*lines, *(idle.format(rank=rank) for rank in range(20, 4_000)))

    assert "waits for 3980 of 4000 ranks" in verdict.reason
    assert verdict.culprit_ranks == ()


def test_timeout_that_pytorch_says_twice_is_read_once() -> None:
    again = "[rank{rank}]:[E321 02:07:08.47 ProcessGroupNCCL.cpp:1709] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    first = again.replace(
        "Timeout at NCCL work: {seq}",
        "Exception (either an error or timeout) detected by watchdog at work: {seq}",
    )
    sequences = dict.fromkeys(range(4_500), 808) | {2_300: 806}
    alone = diagnose(*lines_of(again, sequences))

    both = diagnose(*lines_of(first, sequences), *lines_of(again, sequences))

    assert (alone.kind, alone.culprit_ranks) == (LogKind.HANG_DEVICE, (2_300,))
    assert (both.kind, both.culprit_ranks) == (LogKind.HANG_DEVICE, (2_300,))
    assert both.victims == alone.victims
