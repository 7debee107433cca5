from itertools import pairwise

from recovery.controller.job.observation import KEPT, StepEnds


def test_the_newest_ends_are_kept_the_oldest_first() -> None:
    ends = StepEnds()
    assert (ends.newest_number, ends.newest_at_s, list(ends)) == (0, None, [])

    for number in range(1, 101):
        ends.append(number, 1000.0 + 0.25 * number)
        assert (ends.newest_number, ends.newest_at_s) == (number, 1000.0 + 0.25 * number)
        kept = list(ends)
        assert len(kept) == min(number, KEPT)
        assert kept[-1] == (number, 1000.0 + 0.25 * number)
        assert all(after[0] == before[0] + 1 for before, after in pairwise(kept))


def test_ranks_do_not_share_their_ends() -> None:
    first, second = StepEnds(), StepEnds()

    first.append(2**53, 7.5)

    assert list(first) == [(2**53, 7.5)]
    assert list(second) == []
