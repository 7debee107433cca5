"""Checkpoints of nodes that have their checkpoint folders each on its own disk, as one verdict on each."""

from dataclasses import replace

from recovery.controller.job.restore.checkpoint_reports import (
    homes_of,
    join_checkpoints,
    readers_of,
)
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Member
from recovery.messages.candidates import (
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    HeldPart,
    Hindrance,
)

PLACEMENT = (Placement("a", (0, 1)), Placement("b", (2, 3)))
MEMBERS = {
    node: Member(node, "", "", 2, None, 0.0, 1, 1, 0, folder_id=f"disk of {node}") for node in "abc"
}


def session(*parts: tuple[int, int, int], defect: str = "") -> CheckpointVerdict:
    """Return what a launcher tells of these parts: step, rank and holder."""
    candidate = Candidate("/local/session", 20, CheckpointFormat.NVRX_LOCAL, 100, 20.0)
    hindrance = Hindrance.DAMAGED if defect else None
    told = tuple(HeldPart(*part) for part in parts)
    return CheckpointVerdict(candidate, not defect, defect or "whole", hindrance, parts=told)


def join(
    told: dict[str, CheckpointVerdict | None],
    placement: tuple[Placement, ...] = PLACEMENT,
    saved_by: int = 4,
) -> CheckpointVerdict:
    """Return the joined verdict; None: the node has answered, and its disk is empty."""
    answers = {node: () if one is None else (one,) for node, one in told.items()}
    readers = readers_of(placement, MEMBERS)
    (joined,) = join_checkpoints(readers, answers, homes_of(placement, MEMBERS), saved_by)
    return joined


A = session((20, 0, 0), (20, 1, 1))
B = session((20, 2, 2), (20, 3, 3))


def test_a_save_is_whole_once_every_node_has_its_own_part() -> None:
    joined = join({"a": A, "b": B})

    assert joined.is_valid
    assert joined.candidate.step == 20
    assert joined.candidate.size_bytes == 200
    assert joined.reason == "complete: iteration 20, the parts of 4 ranks, on 2 nodes"


def test_a_save_whose_part_went_with_its_node_is_not_whole_and_names_rank_and_node() -> None:
    joined = join({"a": A, "c": None}, (PLACEMENT[0], Placement("c", (2, 3))))

    assert not joined.is_valid
    assert joined.hindrance is Hindrance.DAMAGED
    assert joined.reason == (
        "the part of rank 2 is not on the disk of c, where it is to run (iteration 20)"
    )


def test_a_save_that_a_fault_cut_short_does_not_hide_which_part_is_missing() -> None:
    cut_short = session((20, 0, 0), (20, 1, 1), (40, 0, 0))
    joined = join({"a": cut_short, "c": None}, (PLACEMENT[0], Placement("c", (2, 3))))

    assert joined.reason == (
        "the part of rank 2 is not on the disk of c, where it is to run (iteration 20)"
    )


def test_a_node_that_has_not_answered_is_waited_for() -> None:
    joined = join({"a": A})

    assert joined.hindrance is Hindrance.UNREAD
    assert joined.reason == "b, where rank 2 is to run, has not reported its parts yet"


def test_the_newest_step_that_all_have_is_chosen() -> None:
    a = session((20, 0, 0), (20, 1, 1), (40, 0, 0), (40, 1, 1))
    b = session((20, 2, 2), (20, 3, 3), (40, 2, 2))  # killed before rank 3 had saved

    joined = join({"a": a, "b": b})

    assert (joined.is_valid, joined.candidate.step) == (True, 20)


def test_a_replica_counts_where_a_rank_finds_it() -> None:
    replicas = session((20, 0, 0), (20, 1, 1), (20, 2, 0), (20, 3, 1))
    placement = (PLACEMENT[0], Placement("c", (2, 3)))

    assert join({"a": replicas, "c": None}, placement).is_valid


def test_a_part_in_the_folder_of_a_rank_that_runs_elsewhere_is_found_by_nobody() -> None:
    swapped = (Placement("b", (0, 1)), Placement("a", (2, 3)))

    joined = join({"a": A, "b": B}, swapped)

    assert not joined.is_valid
    assert "the part of rank 0 is not on the disk of b" in joined.reason


def test_folders_that_other_ranks_have_left_on_a_disk_do_no_harm() -> None:
    left = session((20, 2, 2), (20, 3, 3), (10, 0, 0), (10, 1, 1), defect="no iteration is whole")

    joined = join({"a": A, "b": left})

    assert (joined.is_valid, joined.candidate.step) == (True, 20)


def test_a_damaged_part_is_told_with_its_node() -> None:
    torn = session(defect="3/iter_0000020_3_local.pt: CRC does not fit")

    joined = join({"a": A, "b": torn})

    assert joined.reason == "b: 3/iter_0000020_3_local.pt: CRC does not fit"
    assert joined.hindrance is Hindrance.DAMAGED


def test_a_save_of_more_ranks_than_are_to_run_is_not_restored() -> None:
    placement = (Placement("a", (0,)), Placement("b", (1,)))
    a, b = session((20, 0, 0)), session((20, 1, 1))

    joined = join({"a": a, "b": b}, placement, saved_by=4)

    assert not joined.is_valid
    assert joined.reason == "saved by 4 ranks, and 2 are to run"
    assert join({"a": a, "b": b}, placement, saved_by=2).is_valid


def test_what_is_still_written_on_one_node_is_not_whole() -> None:
    writing = replace(B, is_valid=False, reason="still being written", hindrance=Hindrance.WRITING)

    joined = join({"a": A, "b": writing})

    assert (joined.hindrance, joined.reason) == (Hindrance.WRITING, "b: still being written")


FILE = replace(
    session(), candidate=Candidate("/local/step-20.pt", 20, CheckpointFormat.TORCH, 100, 20.0)
)


def test_a_single_file_counts_on_the_disk_where_rank_0_is_to_run() -> None:
    assert join({"a": FILE, "b": None}).is_valid

    joined = join({"a": None, "b": FILE})

    assert not joined.is_valid
    assert joined.reason == "only on the disk of b, and rank 0 is to run on a"
    assert join({"b": FILE}).hindrance is Hindrance.UNREAD


def dcp(*ranks: int, defect: str = "") -> CheckpointVerdict:
    """Return what a launcher tells of a DCP save with a marker of each rank."""
    candidate = Candidate("/local/step-30", 30, CheckpointFormat.DCP, 100, 30.0)
    told = tuple(HeldPart(0, rank, rank) for rank in ranks)
    hindrance = Hindrance.DAMAGED if defect else None
    return CheckpointVerdict(candidate, not defect, defect or "whole", hindrance, parts=told)


def test_a_save_that_is_one_candidate_keeps_its_step() -> None:
    joined = join({"a": dcp(0, 1), "b": dcp(2, 3, defect="__0_0.distcp is missing")})

    assert (joined.is_valid, joined.candidate.step) == (True, 30)
    assert joined.reason == "complete: the parts of 4 ranks, on 2 nodes"

    lost = join({"a": dcp(0, 1), "c": None}, (PLACEMENT[0], Placement("c", (2, 3))))
    assert lost.reason == "the part of rank 2 is not on the disk of c, where it is to run"
