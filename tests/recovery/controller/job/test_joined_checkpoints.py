"""What several launchers say of the checkpoints, as one verdict on each."""

from collections.abc import Sequence

import pytest

from recovery.controller.job.restore.checkpoint_reports import (
    READERS_MAX,
    divide,
    join_checkpoints,
    needs_another_look,
    readers_of,
)
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Member
from recovery.journal.node_records import CheckpointReader
from recovery.messages.candidates import (
    WHOLE,
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Hindrance,
    Share,
)

READERS = tuple(CheckpointReader(node, Share(at, 3), "disk") for at, node in enumerate("abc"))


def verdict(
    step: int = 10,
    share: Share = WHOLE,
    hindrance: Hindrance | None = None,
    reason: str = "whole",
) -> CheckpointVerdict:
    candidate = Candidate(f"/ckpt/step-{step}", step, CheckpointFormat.DCP, 100, float(step))
    return CheckpointVerdict(candidate, hindrance is None, reason, hindrance, share)


def shares(step: int = 10, nodes: str = "abc") -> dict[str, tuple[CheckpointVerdict, ...]]:
    return {one.node: (verdict(step, one.share),) for one in READERS if one.node in nodes}


def told(verdicts: Sequence[CheckpointVerdict]) -> list[tuple[int | None, bool, str]]:
    return [(one.candidate.step, one.is_valid, one.reason) for one in verdicts]


def test_a_checkpoint_is_valid_once_every_share_is() -> None:
    (joined,) = join_checkpoints(READERS, shares())

    assert joined.is_valid
    assert joined.share.is_whole
    assert joined.reason == "whole; read by 3 nodes"


def test_a_share_that_nobody_has_read_yet_keeps_it_from_being_valid() -> None:
    (joined,) = join_checkpoints(READERS, shares(nodes="ac"))

    assert not joined.is_valid
    assert joined.hindrance is Hindrance.UNREAD
    assert joined.reason == "b: no report of its share yet"
    assert needs_another_look([joined])


def test_one_launcher_that_speaks_for_the_whole_is_enough() -> None:
    (joined,) = join_checkpoints(READERS, {"b": (verdict(),)})

    assert told([joined]) == [(10, True, "whole")]
    assert not needs_another_look([joined])


def test_a_defect_in_one_share_is_told_with_the_node_that_found_it() -> None:
    answers = shares()
    answers["c"] = (verdict(hindrance=Hindrance.DAMAGED, reason="__5_0.distcp: CRC does not fit"),)
    answers["a"] = (verdict(),)  # speaks for the whole by what it read earlier

    (joined,) = join_checkpoints(READERS, answers)

    assert told([joined]) == [(10, False, "c: __5_0.distcp: CRC does not fit")]
    assert joined.hindrance is Hindrance.DAMAGED


def test_a_defect_that_every_node_sees_names_none() -> None:
    answers = {
        node: (verdict(hindrance=Hindrance.DAMAGED, reason=".metadata is missing"),)
        for node in "abc"
    }

    assert told(join_checkpoints(READERS, answers)) == [(10, False, ".metadata is missing")]


def test_a_node_that_can_not_read_in_time_is_named() -> None:
    late = verdict(hindrance=Hindrance.UNREADABLE, reason="not finished within 30 s")
    answers = {**shares(nodes="ab"), "c": (late,)}

    (joined,) = join_checkpoints(READERS, answers)

    assert told([joined]) == [(10, False, "c: not finished within 30 s")]
    assert joined.hindrance is Hindrance.UNREADABLE


def test_a_node_speaks_for_its_own_share_only() -> None:
    forged = verdict(share=READERS[1].share)  # the share of b, told by a

    (joined,) = join_checkpoints(READERS, {**shares(nodes="bc"), "a": (forged,)})

    assert told([joined]) == [(10, False, "a has not checked its share yet")]
    assert joined.hindrance is Hindrance.UNREAD


def test_one_that_a_node_does_not_see_yet_is_waited_for() -> None:
    answers = {node: (*shares(20)[node], *shares(10)[node]) for node in "abc"}
    answers["b"] = answers["b"][1:]  # its directory cache is old

    joined = join_checkpoints(READERS, answers)

    assert told(joined) == [
        (20, False, "b: does not see it yet"),
        (10, True, "whole; read by 3 nodes"),
    ]
    assert needs_another_look(joined)


def test_an_older_one_that_nobody_has_read_is_no_reason_to_look_again() -> None:
    answers = {node: (*shares(20)[node],) for node in "abc"}
    answers["a"] += (verdict(10, hindrance=Hindrance.UNREAD, reason="not checked: older"),)

    assert not needs_another_look(join_checkpoints(READERS, answers))


def test_a_single_reader_is_taken_at_its_word() -> None:
    alone = (CheckpointReader("a"),)
    said = (verdict(20, hindrance=Hindrance.DAMAGED, reason="torn"), verdict(10))

    assert join_checkpoints(alone, {"a": said}) == said


def member(node: str, folder_id: str) -> Member:
    return Member(node, "", "", 1, None, 0.0, 1, 1, 0, folder_id=folder_id)


def readers(folders: dict[str, str]) -> list[tuple[str, int, int]]:
    placement = [Placement(node, (rank,)) for rank, node in enumerate(folders)]
    members = {node: member(node, folder) for node, folder in folders.items()}
    found = readers_of(placement, members)
    return [(one.node, one.share.number, one.share.count) for one in found]


def test_nodes_that_see_one_folder_share_it() -> None:
    assert readers({"a": "x", "b": "x"}) == [("a", 0, 2), ("b", 1, 2)]


def test_a_node_that_does_not_say_which_folder_it_sees_shares_that_of_the_others() -> None:
    assert readers({"a": "", "b": "x"}) == [("a", 0, 2), ("b", 1, 2)]


def test_each_of_several_folders_is_read_by_its_own_nodes() -> None:
    assert readers({"a": "x", "b": "y", "c": "x"}) == [("a", 0, 2), ("b", 0, 1), ("c", 1, 2)]


def test_of_many_nodes_some_read_spread_evenly_with_the_first_among_them() -> None:
    found = readers({f"n{number}": "x" for number in range(64)})

    assert len(found) == READERS_MAX
    assert found[0] == ("n0", 0, READERS_MAX)
    assert found[1] == ("n4", 1, READERS_MAX)


def test_fewer_readers_share_anew() -> None:
    left = divide((READERS[0], READERS[2]))

    assert [(one.node, one.share) for one in left] == [("a", Share(0, 2)), ("c", Share(1, 2))]


@pytest.mark.parametrize("times", [(20.0, 10.0), (10.0, 20.0)])
def test_files_that_are_overwritten_in_turn_stay_ordered_by_time(
    times: tuple[float, float],
) -> None:
    def slot(number: int, share: Share) -> CheckpointVerdict:
        path, unix_s = f"/ckpt/ckpt_{number}.pt", times[number]
        candidate = Candidate(path, None, CheckpointFormat.TORCH, 100, unix_s)
        return CheckpointVerdict(candidate, True, "whole", None, share)

    answers = {one.node: (slot(0, one.share), slot(1, one.share)) for one in READERS}

    joined = join_checkpoints(READERS, answers)

    assert [one.candidate.modified_unix_s for one in joined] == [20.0, 10.0]
