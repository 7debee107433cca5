"""A run has settled once nothing is open for as long as a controller and a launcher need to find each other."""

from collections.abc import Callable, Iterator

import pytest

from bench.jepsen.settling import LOOK_S, Standing, settle

CALM = Standing(journals=2, open=0, unheard=0)
OPEN = Standing(journals=2, open=1, unheard=0)
UNHEARD = Standing(journals=2, open=0, unheard=1)
YOUNG = Standing(journals=1, open=0, unheard=0)
CALM_S, WITHIN_S = 12.0, 60.0


class Stage:
    """Stands at each look as the script has it, and then is calm; time passes in sleeps only."""

    def __init__(self, *looks: Standing | Exception) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self._looks: Iterator[Standing | Exception] = iter(looks)

    def look(self) -> Standing:
        seen = next(self._looks, CALM)
        if isinstance(seen, Exception):
            raise seen
        return seen

    def sleep(self, for_s: float) -> None:
        self.now += for_s

    def settle(self) -> float:
        look: Callable[[], Standing] = self.look
        return settle(
            look,
            lambda: self.now,
            self.sleep,
            self.said.append,
            jobs=2,
            calm_s=CALM_S,
            within_s=WITHIN_S,
        )


def test_a_calm_run_has_settled_after_the_time_without_a_break() -> None:
    stage = Stage()

    assert stage.settle() == CALM_S
    assert len(stage.said) == CALM_S / LOOK_S


@pytest.mark.parametrize("late", [OPEN, UNHEARD, YOUNG], ids=["open", "unheard", "young"])
@pytest.mark.parametrize("after", [1, 3])
def test_what_shows_late_makes_the_calm_begin_anew(late: Standing, after: int) -> None:
    stage = Stage(*[CALM] * after, late)

    assert stage.settle() == (after + 1) * LOOK_S + CALM_S


@pytest.mark.parametrize("never", [OPEN, UNHEARD, YOUNG], ids=["open", "unheard", "young"])
def test_a_run_that_never_is_calm_takes_all_the_time_and_no_more(never: Standing) -> None:
    stage = Stage(*[never] * 100)

    assert stage.settle() == WITHIN_S


def test_a_database_that_does_not_answer_is_no_calm_by_itself_and_no_break() -> None:
    away = OSError("starting up")

    assert Stage(*[away] * 3).settle() == 3 * LOOK_S + CALM_S
    assert Stage(CALM, away).settle() == CALM_S
    assert Stage(*[away] * 100).settle() == WITHIN_S
    assert Stage(CALM, away, OPEN).settle() == 3 * LOOK_S + CALM_S
