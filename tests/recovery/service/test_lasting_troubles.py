"""A loop of the controller that fails each second fills no log."""

import logging
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from recovery.journal.postgres.database import DatabaseAwayError
from recovery.journal.postgres.leases import Leases
from recovery.service.controller_config import Config
from recovery.service.http.request_errors import FullError
from recovery.service.pager import Look, Pager
from recovery.service.paging.causes import CauseChanges
from tests.support.clocks import FakeClock

MINUTES = 10


class StuckWorker:
    """A deciding thread that has no time until ``found`` is there."""

    is_taken_up = True

    def __init__(self) -> None:
        self.found: Look | None = None

    def call(self, _act: object) -> "Future[Any]":
        if self.found is None:
            raise FullError("the controller has more to do than it can")
        done: Future[Any] = Future()
        done.set_result(self.found)
        return done


class AwayDatabase:
    """PostgreSQL without a network; its users see that at each statement."""

    away_s = 1.0

    def probe(self) -> None:
        raise DatabaseAwayError("PostgreSQL does not answer: no route to host")


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_pager_whose_controller_does_not_answer_writes_a_line_a_minute_and_one_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, worker = FakeClock(), StuckWorker()
    pager = Pager(worker, clock, Config(state_dir=str(tmp_path)))  # type: ignore[arg-type]

    for _second in range(60 * MINUTES):
        pager.turn()
        clock.time_s += 1.0
    failing = messages(caplog)
    worker.found = Look((), CauseChanges((), (), (), ()), (), (), {}, unrecorded="no lease")
    for _second in range(60):
        pager.turn()
        clock.time_s += 1.0

    assert failing == ["cannot notify people now"] * MINUTES
    assert messages(caplog)[MINUTES:] == [
        "over: cannot notify people now",
        "messages are not in the journal",
    ]


@pytest.mark.safety
def test_a_controller_without_its_database_logs_once_that_its_leases_have_run_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    leases = Leases(AwayDatabase(), clock, lease_s=8.0, has_thread=False)  # type: ignore[arg-type]

    for _second in range(60 * MINUTES):
        leases.turn()
        clock.time_s += 1.0

    lines = messages(caplog)
    assert lines.count("leases not renewed") == MINUTES
    assert lines.count("the leases have run out: another controller may take the jobs") == 1
    assert len(lines) == MINUTES + 1
