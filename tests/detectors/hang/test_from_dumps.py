"""Who a hung job waits for: recorded hangs, a simulated job with injected faults, hard negatives."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scoreboard.hang_jobs import Fault, hang
from detectors.diagnosis import Diagnosis, Verdict
from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import CollectiveShape, FlightDump, Operation, OperationState
from detectors.hang.from_dumps import diagnose_hang
from detectors.hang.standings import GroupStanding, JobStandings, RankStandings, view_job
from detectors.parallel_groups import Group, Sizes

DATASETS = os.environ.get("RANKMEND_DATASETS")
RECORDED = {
    "gpu_error_1st": ({12, 14}, "device-stuck"),
    "lock_gil_2nd": ({10, 15}, "host-stuck"),
}
LAYOUTS = [
    Sizes(tensor=2, data=2),
    Sizes(tensor=4, data=2),
    Sizes(data=4),
    Sizes(tensor=2, pipeline=2, data=2),
    Sizes(tensor=2, pipeline=4, data=2),
    Sizes(tensor=2, pipeline=2, data=4, expert=2),
    Sizes(tensor=1, pipeline=2, data=4),
]
needs_datasets = pytest.mark.skipif(DATASETS is None, reason="RANKMEND_DATASETS is unset")


def named(diagnosis: Diagnosis) -> set[int | None]:
    return {culprit.rank for culprit in diagnosis.culprits}


@cache
def recorded(case: str) -> Mapping[int, FlightDump]:
    assert DATASETS is not None
    folder = Path(DATASETS) / "nvrx-fr-dumps" / case
    return {
        int(re.sub(r"\D", "", file.name)): parse_dump(file.read_bytes())
        for file in folder.glob("_dump_*")
    }


@needs_datasets
@pytest.mark.parametrize("case", RECORDED)
def test_recorded_hang_names_exactly_the_injected_ranks_with_their_class(case: str) -> None:
    culprits, cause = RECORDED[case]

    diagnosis = diagnose_hang(view_job(recorded(case)))

    assert (named(diagnosis), diagnosis.cause) == (culprits, cause)
    assert diagnosis.confidence > 0.9
    assert diagnosis.culprits[0].stage is not None


@needs_datasets
@pytest.mark.parametrize("lost", range(16))
@pytest.mark.parametrize("case", RECORDED)
def test_recorded_hang_without_one_dump_accuses_no_healthy_rank(case: str, lost: int) -> None:
    culprits, _cause = RECORDED[case]
    dumps = {rank: dump for rank, dump in recorded(case).items() if rank != lost}
    complete = diagnose_hang(view_job(recorded(case)))

    diagnosis = diagnose_hang(view_job(dumps))

    assert named(diagnosis) <= culprits
    assert named(diagnosis) >= culprits - {lost}
    assert diagnosis.confidence < complete.confidence


@needs_datasets
@pytest.mark.parametrize("case", RECORDED)
def test_dump_that_cannot_be_read_is_not_a_process_that_is_gone(case: str) -> None:
    culprits, _cause = RECORDED[case]
    lost = max(culprits)
    dumps = {rank: dump for rank, dump in recorded(case).items() if rank != lost}

    diagnosis = diagnose_hang(view_job(dumps, frozenset({lost})))

    assert named(diagnosis) <= culprits
    assert "process-gone" not in {culprit.cause for culprit in diagnosis.culprits}


@st.composite
def host_faults(draw: st.DrawFn) -> tuple[Sizes, dict[int, Fault], int]:
    sizes = draw(st.sampled_from(LAYOUTS))
    ranks = draw(st.lists(st.integers(0, sizes.ranks - 1), min_size=1, max_size=2, unique=True))
    faults = {rank: Fault("host", draw(st.integers(0, 25))) for rank in ranks}
    return sizes, faults, draw(st.integers(1, 9))


@given(host_faults())
def test_host_that_stops_launching_is_named_and_nobody_else(
    case: tuple[Sizes, dict[int, Fault], int],
) -> None:
    sizes, faults, ahead = case
    hung = hang(sizes, faults, ahead=ahead)

    diagnosis = diagnose_hang(hung.job)

    if not hung.effective:
        assert diagnosis.verdict is Verdict.NOBODY
    elif len(hung.effective) == 1:
        assert named(diagnosis) == hung.effective
    else:  # the second may be one that nobody has come to wait for yet
        assert named(diagnosis) <= hung.effective
    assert {culprit.cause for culprit in diagnosis.culprits} <= {"host-stuck"}


@st.composite
def device_faults(draw: st.DrawFn) -> tuple[Sizes, dict[int, Fault], int]:
    sizes = draw(st.sampled_from(LAYOUTS))
    ranks = draw(st.lists(st.integers(0, sizes.ranks - 1), min_size=1, max_size=2, unique=True))
    faults = {
        rank: Fault("device", draw(st.integers(0, 15)), draw(st.integers(0, 6))) for rank in ranks
    }
    return sizes, faults, draw(st.integers(7, 12))


@given(device_faults())
def test_stuck_device_is_named_or_nobody_is(case: tuple[Sizes, dict[int, Fault], int]) -> None:
    sizes, faults, ahead = case
    hung = hang(sizes, faults, ahead=ahead)

    diagnosis = diagnose_hang(hung.job)

    assert named(diagnosis) <= set(faults)
    assert {culprit.cause for culprit in diagnosis.culprits} <= {"device-stuck"}


@given(device_faults())
def test_stuck_device_is_named_where_devices_tell_what_they_begin(
    case: tuple[Sizes, dict[int, Fault], int],
) -> None:
    sizes, faults, ahead = case
    hung = hang(sizes, faults, ahead=ahead, is_timed=True)

    assert named(diagnose_hang(hung.job)) <= set(faults)


def test_device_that_peers_have_overtaken_is_named_with_its_class() -> None:
    hung = hang(Sizes(tensor=2, pipeline=2, data=2), {5: Fault("device", 6, 3)}, ahead=8)

    diagnosis = diagnose_hang(hung.job)

    assert (named(diagnosis), diagnosis.cause) == ({5}, "device-stuck")


@given(st.sampled_from(LAYOUTS[:2]), st.integers(0, 3), st.integers(1, 10), st.integers(1, 9))
@settings(deadline=None)
def test_process_without_a_dump_is_gone(sizes: Sizes, rank: int, at: int, ahead: int) -> None:
    hung = hang(sizes, {rank: Fault("gone", at)}, ahead=ahead)

    diagnosis = diagnose_hang(hung.job)

    assert named(diagnosis) == {rank}
    assert diagnosis.cause == "process-gone"


# -- what no machine is to blame for


def waiting(
    rank: int,
    *calls: tuple[str, int],
    kind: str = "all_reduce",
    size: int = 8,
    state: OperationState = OperationState.ENQUEUED,
    done: Mapping[str, int] | None = None,
) -> RankStandings:
    """Return a rank that has launched these (group, sequence), the oldest first."""
    standings = [
        GroupStanding(
            group,
            sequence,
            sequence - 1,
            Operation(
                group,
                sequence,
                kind,
                record,
                state,
                CollectiveShape(((size,),), ((size,),), ("F",)),
            ),
        )
        for record, (group, sequence) in enumerate(calls)
    ]
    standings += [
        GroupStanding(group, number, number, None) for group, number in (done or {}).items()
    ]
    return RankStandings(rank, tuple(standings), ())


WORLD = (Group("w", (0, 1, 2, 3)),)


def test_collective_that_all_have_begun_is_the_networks_and_nobodys() -> None:
    views = tuple(waiting(rank, ("w", 7), state=OperationState.STARTED) for rank in range(4))

    diagnosis = diagnose_hang(JobStandings(WORLD, views))

    assert (diagnosis.verdict, diagnosis.cause) == (Verdict.NOBODY, "network")


def test_collective_that_all_have_launched_and_none_tells_of_beginning_is_unknown() -> None:
    views = tuple(waiting(rank, ("w", 7)) for rank in range(4))

    diagnosis = diagnose_hang(JobStandings(WORLD, views))

    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNKNOWN, ())


def test_rank_that_has_not_begun_what_the_others_have_is_stuck_in_its_device() -> None:
    views = [waiting(rank, ("w", 7), state=OperationState.STARTED) for rank in range(4)]
    views[2] = waiting(2, ("w", 7))

    diagnosis = diagnose_hang(JobStandings(WORLD, tuple(views)))

    assert (named(diagnosis), diagnosis.cause) == ({2}, "device-stuck")


@pytest.mark.parametrize(
    "odd", [waiting(3, ("w", 7), kind="broadcast"), waiting(3, ("w", 7), size=16)]
)
def test_other_operation_or_size_at_the_same_place_is_the_programs(odd: RankStandings) -> None:
    views = (*(waiting(rank, ("w", 7)) for rank in range(3)), odd)

    diagnosis = diagnose_hang(JobStandings(WORLD, views))

    assert (diagnosis.verdict, diagnosis.cause) == (Verdict.NOBODY, "program")


def test_uneven_all_to_all_is_no_mismatch() -> None:
    views = tuple(waiting(rank, ("w", 7), kind="all_to_all", size=rank) for rank in range(4))

    assert diagnose_hang(JobStandings(WORLD, views)).verdict is Verdict.UNKNOWN


PAIRS = (Group("a", (0, 1)), Group("b", (0, 1)))


@pytest.mark.parametrize(
    "views",
    [
        (waiting(0, ("a", 5), done={"b": 5}), waiting(1, ("b", 6), done={"a": 4})),
        (waiting(0, ("a", 5), ("b", 6)), waiting(1, ("b", 6), ("a", 5))),
    ],
    ids=["hosts wait", "hosts launch ahead"],
)
def test_ranks_that_launch_in_different_orders_are_a_deadlock(
    views: tuple[RankStandings, ...],
) -> None:
    diagnosis = diagnose_hang(JobStandings(PAIRS, views))

    assert (diagnosis.verdict, diagnosis.cause) == (Verdict.NOBODY, "deadlock")


def test_more_than_half_of_the_ranks_absent_is_not_their_machines() -> None:
    views = (waiting(0, ("w", 7)), *(waiting(rank, done={"w": 6}) for rank in (1, 2, 3)))

    diagnosis = diagnose_hang(JobStandings(WORLD, views))

    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNKNOWN, ())


def test_one_rank_ahead_of_all_others_makes_them_no_culprits() -> None:
    groups = (*WORLD, Group("x", (4, 5, 6, 7)))
    others = (waiting(rank, done={"x": 3}) for rank in groups[1].ranks)
    views = (*(waiting(rank, ("w", 7)) for rank in range(3)), waiting(3, ("w", 8)), *others)

    diagnosis = diagnose_hang(JobStandings(groups, views))

    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNKNOWN, ())


def test_transfer_that_both_sides_have_launched_accuses_neither() -> None:
    hung = hang(Sizes(data=4, pipeline=2), {3: Fault("device", 4)}, ahead=1, microbatches=1)

    diagnosis = diagnose_hang(hung.job)

    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNKNOWN, ())
    assert "ranks 3 and 7" in diagnosis.reason


def test_job_in_which_nothing_is_outstanding_accuses_nobody() -> None:
    views = tuple(waiting(rank, done={"w": 6}) for rank in range(4))

    assert diagnose_hang(JobStandings(WORLD, views)).verdict is Verdict.NOBODY


def test_job_of_one_rank_is_unknown() -> None:
    job = JobStandings((Group("w", (0,)),), (waiting(0, ("w", 3)),))

    assert diagnose_hang(job).verdict is Verdict.UNKNOWN


def test_half_of_the_dumps_calls_nobody_gone() -> None:
    views = tuple(waiting(rank, ("w", 7)) for rank in (0, 1))

    assert diagnose_hang(JobStandings(WORLD, views)).culprits == ()


@needs_datasets
def test_dumps_of_an_earlier_attempt_are_left_out_and_said() -> None:
    dumps = dict(recorded("lock_gil_2nd"))
    old = recorded("gpu_error_1st")[3]
    shifted = tuple(replace(op, enter_s=(op.enter_s or 0) - 86400) for op in old.operations)
    dumps[3] = replace(old, operations=shifted)

    diagnosis = diagnose_hang(view_job(dumps))

    assert named(diagnosis) == {10, 15}
    assert any("earlier attempt" in line.text for line in diagnosis.evidence)


@needs_datasets
@pytest.mark.parametrize("case", RECORDED)
@pytest.mark.parametrize("rank", [0, 4, 9])
def test_dump_of_a_hang_some_minutes_before_or_after_names_no_healthy_rank(
    case: str, rank: int
) -> None:
    (other,) = set(RECORDED) - {case}
    dumps = {**recorded(case), rank: recorded(other)[rank]}

    diagnosis = diagnose_hang(view_job(dumps))

    assert named(diagnosis) == RECORDED[case][0]
    assert diagnosis.confidence < 0.9
    assert any("counts and times" in line.text for line in diagnosis.evidence)


@needs_datasets
@pytest.mark.parametrize("case", RECORDED)
def test_counters_of_pipeline_groups_are_not_compared_where_no_transfer_is_left(case: str) -> None:
    dumps = {
        rank: replace(
            dump,
            operations=tuple(op for op in dump.operations if op.kind not in {"send", "recv"}),
        )
        for rank, dump in recorded(case).items()
    }

    assert named(diagnose_hang(view_job(dumps))) == RECORDED[case][0]


@needs_datasets
def test_dump_under_another_ranks_name_is_left_out_and_said() -> None:
    dumps = dict(recorded("lock_gil_2nd"))
    dumps[3] = dumps[4]

    diagnosis = diagnose_hang(view_job(dumps))

    assert named(diagnosis) == {10, 15}
    assert any("members" in line.text for line in diagnosis.evidence)


def test_rank_whose_dump_is_empty_and_counts_nothing_is_absent() -> None:
    views = (*(waiting(rank, ("w", 7)) for rank in range(3)), RankStandings(3, (), ()))

    diagnosis = diagnose_hang(JobStandings(WORLD, views))

    assert (named(diagnosis), diagnosis.cause) == ({3}, "host-stuck")


@needs_datasets
def test_recorded_stuck_hosts_are_named_without_the_counters_of_their_groups() -> None:
    dumps = {r: replace(dump, statuses=()) for r, dump in recorded("lock_gil_2nd").items()}

    assert named(diagnose_hang(view_job(dumps))) == {10, 15}
