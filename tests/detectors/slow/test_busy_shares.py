"""Who works while the others wait, by the processor times of main threads."""

import pytest

from detectors.slow.busy_shares import BusyWindow, ShareLimits, judge_shares

LIMITS = ShareLimits()


def window(rank: int, share: float, *, steps: int = 20, usual_s: float | None = 0.5, ready: float = 0.0) -> BusyWindow:  # fmt: skip
    return BusyWindow(rank, 10.0, steps, 10.0 * (share - ready), 10.0 * ready, usual_s)


def named(*shares: float) -> list[int]:
    look = judge_shares([window(rank, share) for rank, share in enumerate(shares)], LIMITS)
    assert look is not None
    return [one.rank for one in look.slow]


@pytest.mark.parametrize(
    ("shares", "ranks"),
    [
        ((0.5, 0.5, 0.9, 0.5), [2]),
        ((0.9, 0.5), [0]),  # of two ranks, too
        ((0.5, 0.5, 0.69, 0.5), []),  # below 1.4 times the others
        ((0.5, 0.5, 0.71, 0.5), [2]),
        ((0.2, 0.2, 0.5, 0.2), []),  # it waits half of the time itself
        ((1.0, 1.0, 1.0, 1.0), []),  # all spin
        ((0.9, 0.9, 0.5, 0.5), [0, 1]),
        ((0.9, 0.9, 0.9, 0.5, 0.5), []),  # more than half: it is the others that do less
    ],
)
def test_rank_is_named_by_its_share_beside_its_peers(
    shares: tuple[float, ...], ranks: list[int]
) -> None:
    assert sorted(named(*shares)) == ranks


def test_rank_that_waits_for_a_processor_is_named_and_that_is_said() -> None:
    look = judge_shares([window(0, 0.9, ready=0.5), window(1, 0.4), window(2, 0.4)], LIMITS)

    assert look is not None
    (slow,) = look.slow
    assert (slow.rank, slow.ready_share) == (0, pytest.approx(0.5))


def test_window_with_an_evaluation_is_left_out() -> None:
    paused = [window(rank, 0.9 if rank == 0 else 0.1, steps=13) for rank in range(4)]

    assert judge_shares(paused, LIMITS) is None


def test_too_few_windows_say_nothing() -> None:
    assert judge_shares([window(0, 0.9)], LIMITS) is None
    assert judge_shares([window(0, 0.9), window(1, 0.3), *(window(r, 0.3, steps=0) for r in (2, 3))], LIMITS) is None  # fmt: skip


def test_ranks_whose_usual_step_is_not_known_are_judged() -> None:
    look = judge_shares([window(0, 0.9, usual_s=None), window(1, 0.4, usual_s=None)], LIMITS)

    assert look is not None
    assert [one.rank for one in look.slow] == [0]


@pytest.mark.parametrize("bad", [{"ratio": 1.0}, {"share_min": 0.0}, {"window_s": 0.0}, {"long_step": 1.0}])  # fmt: skip
def test_limits_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"ratio|windows"):
        ShareLimits(**bad)  # type: ignore[arg-type]
