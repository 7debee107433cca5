"""What a launcher does about a guardian that stands still."""

from collections.abc import Sequence

import pytest

from recovery.launcher.guardian.keeper import END_S, WAKE_S, Care, GuardianWatch

pytestmark = pytest.mark.safety


def looks(letters: Sequence[str], *, is_needed: bool, every_s: float = 0.5) -> list[Care]:
    """Return what each look says, one for each letter."""
    watch = GuardianWatch()
    return [
        watch.look(letter, lambda: is_needed, 100.0 + every_s * number)
        for number, letter in enumerate(letters)
    ]


@pytest.mark.parametrize("letter", ["S", "R", "D", ""])
def test_a_guardian_that_runs_is_left_alone(letter: str) -> None:
    assert set(looks([letter] * 100, is_needed=True)) == {Care.NOTHING}


def test_a_stopped_guardian_is_woken_after_a_second_and_again() -> None:
    found = looks("TTTTTT", is_needed=False)

    assert [number for number, care in enumerate(found) if care is Care.WAKE] == [2, 4]


def test_a_short_stop_that_ends_by_itself_wakes_nobody() -> None:
    assert Care.WAKE not in looks("TTSTTSTT", is_needed=True)


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_guardian_that_stays_stopped_is_ended_where_it_is_needed(letter: str) -> None:
    found = looks(letter * 40, is_needed=True)

    assert found.index(Care.END) == END_S / 0.5
    assert WAKE_S < END_S


def test_a_guardian_below_a_debugger_that_owes_nothing_is_left_alone() -> None:
    assert set(looks("t" * 100, is_needed=False)) == {Care.NOTHING}
