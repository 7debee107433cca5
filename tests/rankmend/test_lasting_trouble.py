"""A trouble of a loop is logged as it begins, once a minute, and as it ends."""

import logging

import pytest

from rankmend.lasting_trouble import LastingTrouble
from tests.support.clocks import FakeClock

log = logging.getLogger("tests.lasting_trouble")


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int | None]]:
    return [
        (record.getMessage(), getattr(record, "times", None))
        for record in caplog.records
        if record.name == log.name
    ]


def test_a_trouble_of_each_second_is_logged_as_it_begins_and_then_once_a_minute_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    trouble = LastingTrouble(log, "not done", clock)

    for _second in range(122):
        trouble.note("no answer")
        clock.time_s += 1.0

    assert lines(caplog) == [("not done", None), ("not done", 61), ("not done", 121)]


def test_the_end_of_a_trouble_is_logged_once_and_the_next_one_is_a_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    trouble = LastingTrouble(log, "not done", clock)
    trouble.end()  # there was none
    trouble.note("no answer")
    trouble.note("no answer")

    trouble.end()
    trouble.end()
    trouble.note("no answer")

    assert lines(caplog) == [("not done", None), ("over: not done", 2), ("not done", None)]


def test_an_error_without_a_text_is_logged_by_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    LastingTrouble(log, "not done", FakeClock()).note(TimeoutError())

    assert [getattr(record, "error", None) for record in caplog.records] == ["TimeoutError"]
