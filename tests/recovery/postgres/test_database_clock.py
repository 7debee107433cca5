"""The clock by which all controllers of one database date what they decide."""

import pytest

from recovery.postgres.database_clock import DatabaseClock


class HandClock:
    def __init__(self) -> None:
        self.time_s, self.wall_s = 100.0, 5e8

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return self.wall_s


def test_it_says_the_databases_time_and_goes_on_by_the_monotonic_clock() -> None:
    host = HandClock()
    clock = DatabaseClock(host)
    host.time_s = 100.2

    clock.note(1.7e9, asked_at_s=100.0)
    host.time_s, host.wall_s = 160.1, 0.0  # a minute later, and the wall clock was set

    assert clock.unix_s() == pytest.approx(1.7e9 + 60.0)
    assert clock.now_s() == 160.1


def test_before_the_first_reading_it_is_the_hosts_clock() -> None:
    assert DatabaseClock(HandClock()).unix_s() == 5e8


def test_a_reading_that_took_long_replaces_none_but_is_better_than_none() -> None:
    host = HandClock()
    clock = DatabaseClock(host)
    host.time_s = 104.0
    clock.note(1.7e9, asked_at_s=100.0)
    assert clock.unix_s() == 1.7e9 + 2.0

    host.time_s = 110.1
    clock.note(1.7e9 + 8.0, asked_at_s=110.0)
    assert clock.unix_s() == pytest.approx(1.7e9 + 8.05)

    host.time_s = 124.0
    clock.note(1.7e9 + 14.0, asked_at_s=120.0)
    assert clock.unix_s() == pytest.approx(1.7e9 + 21.95)
