"""The ledger of a time account answers what it is asked as the whole fold would."""

from dataclasses import replace
from random import Random

import pytest

from recovery.accounting.goodput.job_standing import going_on
from recovery.accounting.goodput.time_ledger import TimeLedger
from recovery.accounting.goodput.timeline import TimePart
from recovery.journal.attempt_records import (
    AttemptStarted,
    CheckpointSeen,
    Milestone,
    RelativeMilestone,
)
from recovery.journal.fold.entry_fold import fold
from recovery.journal.ledger import Ledger
from recovery.journal.records import Entry, Record
from tests.support.goodput_jobs import BEGIN, entries_of
from tests.support.old_journals import JOBS, read


def with_progress(entries: list[Entry], random: Random) -> list[Entry]:
    """Return the journal with progress and checkpoints between its records."""
    found: list[Entry] = []
    for entry in entries:
        found.append(entry)
        for _ in range(random.randrange(3)):
            step = random.randrange(1, 200)
            floor = random.choice((None, step - 1))
            more: Record = random.choice(
                (
                    Milestone(1, step, floor),
                    RelativeMilestone(1, step, floor),
                    CheckpointSeen(f"/c/{step}", step, "torch", "torch", 0.0, "complete"),
                )
            )
            found.append(replace(entry, record=more))
    return [replace(entry, number=number) for number, entry in enumerate(found, start=1)]


@pytest.mark.parametrize("case", JOBS)
def test_it_tells_what_a_job_does_and_how_far_it_came_as_a_whole_fold(case: str) -> None:
    for seed in range(3):
        whole, mine = Ledger(), TimeLedger()
        for entry in with_progress(read(case).entries(), Random(seed)):
            whole = fold(whole, entry)
            _before, after = mine.take(entry)

            assert going_on(after) == going_on(whole), entry
            if isinstance(entry.record, AttemptStarted):
                assert after.highest_step == whole.highest_step
                assert (after.reach, after.is_base_known) == (whole.reach, whole.is_base_known)
                assert (after.adopted is None) == (whole.adopted is None)


def test_progress_alone_is_not_folded() -> None:
    ledger = TimeLedger()
    for entry in entries_of(*BEGIN):
        ledger.take(entry)
    standing = ledger.standing

    for number in range(100, 200):
        ledger.take(Entry(number, 0.0, 0.0, "boot-1", Milestone(1, number, number)))

    assert ledger.standing is standing


def test_a_step_ends_the_wait_for_a_person_who_had_set_the_failure_aside() -> None:
    ledger = TimeLedger()
    for entry in entries_of(*BEGIN):
        ledger.take(entry)
    ledger.standing = replace(ledger.standing, paused_by="ann", set_aside=1)
    assert going_on(ledger.standing).part is TimePart.WAIT_PERSON

    ledger.take(Entry(99, 6001.0, 1001.0, "boot-1", Milestone(1, 500, 500)))

    assert going_on(ledger.standing).part is TimePart.UNDIVIDED
