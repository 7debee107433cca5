from recovery.service.jobs.listening_clock import BEAT_S, COUNTED_S, Hearing
from tests.support.simulation import SimClock


def make() -> tuple[SimClock, Hearing]:
    clock = SimClock()
    return clock, Hearing(clock)


def pass_time(clock: SimClock, hearing: Hearing, seconds: float, each_s: float) -> float:
    """Return the listened seconds of a loop that goes round each ``each_s``."""
    before_s = hearing.listened_s()
    for _round in range(round(seconds / each_s)):
        clock.time_s += each_s
        hearing.beat()
    return hearing.listened_s() - before_s


def test_a_loop_that_goes_round_in_time_counts_all_of_it() -> None:
    clock, hearing = make()
    hearing.beat()

    listened_s = pass_time(clock, hearing, 100.0, BEAT_S)

    assert abs(listened_s - 100.0) < 1e-6
    assert hearing.unheard_s == 0.0


def test_of_a_round_that_takes_seconds_only_a_beat_is_counted() -> None:
    clock, hearing = make()
    hearing.beat()

    listened_s = pass_time(clock, hearing, 80.0, 8.0)

    assert abs(listened_s - 10 * COUNTED_S) < 1e-6
    assert abs(hearing.unheard_s - (80.0 - 10 * COUNTED_S)) < 1e-6


def test_time_stands_still_in_the_middle_of_a_long_round_too() -> None:
    clock, hearing = make()
    hearing.beat()
    before_s = hearing.now_s()

    clock.time_s += 30.0

    assert abs(hearing.now_s() - before_s - COUNTED_S) < 1e-6


def test_without_a_loop_that_beats_all_time_counts() -> None:
    clock, hearing = make()
    before_s = hearing.now_s()

    clock.time_s += 30.0

    assert hearing.now_s() - before_s == 30.0


def test_while_reports_are_turned_away_nothing_is_counted() -> None:
    clock, hearing = make()
    hearing.beat()

    hearing.refuse()
    deaf_s = pass_time(clock, hearing, 20.0, BEAT_S)
    hearing.admit()
    open_s = pass_time(clock, hearing, 20.0, BEAT_S)

    assert deaf_s == 0.0
    assert abs(open_s - 20.0) < 1e-6


def test_while_reports_wait_the_time_is_that_of_the_oldest() -> None:
    clock, hearing = make()
    hearing.beat()
    arrived_s = hearing.listened_s()
    pass_time(clock, hearing, 20.0, BEAT_S)

    hearing.hear_through(arrived_s)
    waiting_s = hearing.now_s()
    hearing.hear_through(hearing.listened_s())

    assert waiting_s == arrived_s
    assert abs(hearing.now_s() - arrived_s - 20.0) < 1e-6


def test_time_never_falls() -> None:
    clock, hearing = make()
    hearing.beat()
    pass_time(clock, hearing, 20.0, BEAT_S)
    before_s = hearing.now_s()

    hearing.hear_through(before_s - 10.0)

    assert hearing.now_s() == before_s
