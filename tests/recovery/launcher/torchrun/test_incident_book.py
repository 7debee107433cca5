"""What torchrun's meetings become in the journal, with a real journal."""

from pathlib import Path
from typing import Any

import pytest

from recovery.journal.accounting import account_all
from recovery.journal.attempt_records import AttemptStarted, Cause
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.incident_machine import Phase
from recovery.journal.job_records import JobEnded, LauncherStarted, OutcomeKind
from recovery.journal.records import Entry
from recovery.journal.store import Journal
from recovery.launcher.torchrun.handler import BookEvent
from recovery.launcher.torchrun.incident_book import IncidentBook
from tests.support.clocks import FakeClock

pytestmark = [pytest.mark.process, pytest.mark.safety]

MET = (BookEvent.MET, {"group_rank": 0, "groups": 2, "checkpoint": ""})
RUNNING = (BookEvent.RUNNING, {"world_size": 16})
AGAIN = (BookEvent.MEET, {"is_first": False, "fault_age_s": 0.5})
GOOD_END = (BookEvent.END, {"outcome": ""})
FAILED = (BookEvent.END, {"outcome": "ChildFailedError"})
Told = tuple[BookEvent, dict[str, Any]]


def journaled(folder: Path, *told: Told) -> tuple[Entry, ...]:
    """Return what the journal of one torchrun in this folder holds after these events."""
    clock = FakeClock()
    journal = Journal(folder / "journal.db", clock, "boot-1")
    book = IncidentBook(journal, "7aaa791a-cdce-4c17-b626-0b9d5b6cc145", "llama", "n1")
    for event, fields in told:
        clock.time_s += 1.0
        book.take(event, fields)
    journal.close()
    again = Journal(folder / "journal.db", clock, "boot-1")
    again.close()
    return again.opened


def kinds(entries: tuple[Entry, ...]) -> list[str]:
    return [type(entry.record).__name__ for entry in entries]


def test_a_restart_is_one_incident_from_the_last_look_to_the_next(tmp_path: Path) -> None:
    entries = journaled(tmp_path, MET, RUNNING, AGAIN, MET, RUNNING, GOOD_END)

    (account,) = account_all(entries)
    assert account.incident_id == "7aaa791a-1"
    assert account.state.phase is Phase.RECOVERED
    assert account.total_s == 2.5  # 0.5 s before it, one to the meeting and one until they run
    (ended,) = [entry.record for entry in entries if isinstance(entry.record, JobEnded)]
    assert ended.outcome.kind is OutcomeKind.DONE
    fold_all(entries)  # it is a journal as any other


def test_the_number_of_ranks_is_that_of_the_workers(tmp_path: Path) -> None:
    entries = journaled(tmp_path, MET, RUNNING)

    (started,) = [entry.record for entry in entries if isinstance(entry.record, LauncherStarted)]
    assert started.world_size == 16


def test_workers_that_fail_again_before_they_run_are_a_second_incident(tmp_path: Path) -> None:
    entries = journaled(tmp_path, MET, RUNNING, AGAIN, MET, AGAIN, MET, RUNNING)

    phases = [account.state.phase for account in account_all(entries)]
    assert phases == [Phase.ESCALATED, Phase.RECOVERED]
    fold_all(entries)


def test_a_torchrun_that_gives_up_ends_the_job(tmp_path: Path) -> None:
    entries = journaled(tmp_path, MET, RUNNING, FAILED)

    assert kinds(entries)[-2:] == ["AttemptEnded", "JobEnded"]
    (ended,) = [entry.record for entry in entries if isinstance(entry.record, JobEnded)]
    assert ended.outcome.kind is OutcomeKind.ESCALATED
    assert "ChildFailedError" in ended.outcome.reason


@pytest.mark.parametrize("outcome", ["RendezvousGracefulExitError", "RendezvousError"])
def test_a_torchrun_that_never_met_writes_nothing(tmp_path: Path, outcome: str) -> None:
    assert journaled(tmp_path, (BookEvent.END, {"outcome": outcome})) == ()


def test_a_second_start_goes_on_in_the_journal_of_the_first(tmp_path: Path) -> None:
    journaled(tmp_path, MET, RUNNING)  # killed
    entries = journaled(tmp_path, MET, RUNNING, AGAIN, MET, RUNNING, GOOD_END)

    started = [entry.record for entry in entries if isinstance(entry.record, AttemptStarted)]
    assert [(one.attempt, one.cause) for one in started] == [
        (1, Cause.FIRST),
        (2, Cause.RESUMED),
        (3, Cause.INCIDENT),
    ]
    assert kinds(entries).count("JobOpened") == 1
    fold_all(entries)
