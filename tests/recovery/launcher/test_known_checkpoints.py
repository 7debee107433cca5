"""Which of the checkpoints that it knows a launcher reports during training."""

import pytest

from recovery.launcher.membership.checkpoint_access import newest_known
from tests.support.job_ledgers import verdict


@pytest.mark.parametrize(
    ("valid", "restored", "reported"),
    [
        ((), None, [90, 80, 70, 60]),
        ((60, 50, 40), None, [90, 80, 70, 60]),
        ((50, 40), None, [90, 80, 70, 50]),
        ((50, 40), 40, [90, 80, 50, 40]),
        ((60, 50, 40), 40, [90, 80, 60, 40]),
        ((90, 80), 90, [90, 80, 70, 60]),
        ((), 40, [90, 80, 70, 40]),
        ((50,), 30, [90, 80, 70, 50]),  # what was restored has been deleted
    ],
)
def test_the_newest_that_could_be_restored_is_reported_with_those_that_are_too_young(
    valid: tuple[int, ...], restored: int | None, reported: list[int]
) -> None:
    known = [verdict(step, is_valid=step in valid) for step in (90, 80, 70, 60, 50, 40)]
    path = None if restored is None else verdict(restored).candidate.path

    assert [item.candidate.step for item in newest_known(known, path)] == reported


def test_few_are_reported_as_they_are() -> None:
    known = [verdict(20, is_valid=False), verdict(10)]

    assert newest_known(known, None) == known
    assert newest_known((), "/c/10") == []
