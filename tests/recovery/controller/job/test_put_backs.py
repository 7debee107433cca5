"""What launchers put back is journaled once, and told."""

import pytest

from recovery.controller.job.restore.put_backs import PutBackIntake
from recovery.journal.attempt_records import CheckpointPutBack
from recovery.journal.fold.entry_fold import fold
from recovery.journal.ledger import Ledger
from recovery.journal.narration.narrator import narrate
from recovery.journal.records import Entry
from recovery.messages.candidates import PutBack
from recovery.messages.exchange import VERSION, Report

PATH = "/c/step-10"


def report(node: str, put_back: PutBack | None) -> Report:
    return Report(VERSION, node, "boot", "job", 1, 2, (), 1, put_back=put_back)


def take(ledger: Ledger, *reports: Report) -> tuple[Ledger, list[CheckpointPutBack]]:
    """Return the ledger after the reports, and what they made of the journal."""
    intake = PutBackIntake()
    for one in reports:
        intake.receive(one)
    records = intake.due(ledger)
    for number, record in enumerate(records, start=ledger.number + 1):
        ledger = fold(ledger, Entry(number, 0.0, 0.0, "boot", record))
    return ledger, list(records)


def test_each_time_is_journaled_once_however_often_it_is_reported() -> None:
    ledger = Ledger(attempt=2)

    ledger, first = take(ledger, report("a", PutBack(2, PATH)))
    ledger, again = take(ledger, report("a", PutBack(2, PATH)), report("b", None))
    ledger, second = take(ledger, report("a", PutBack(2, PATH, 2)))
    ledger, late = take(ledger, report("a", PutBack(2, PATH)))

    assert first == [CheckpointPutBack(2, "a", PATH)]
    assert second == [CheckpointPutBack(2, "a", PATH, 2)]
    assert (again, late) == ([], [])


def test_the_end_of_the_attempt_before_is_news_and_older_ones_are_not() -> None:
    ledger = Ledger(attempt=3)

    _ledger, records = take(
        ledger, report("a", PutBack(2, PATH)), report("b", PutBack(1, PATH)), report("c", None)
    )

    assert records == [CheckpointPutBack(2, "a", PATH)]


def test_a_thousand_nodes_that_delete_at_once_make_eight_records() -> None:
    reports = [report(f"n{number}", PutBack(2, PATH)) for number in range(1000)]

    ledger, records = take(Ledger(attempt=2), *reports)
    _ledger, again = take(ledger, *reports)

    assert (len(records), again) == (8, [])


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            CheckpointPutBack(2, "a", PATH),
            "/c/step-10 was deleted while attempt 2 restored it: a has put it back",
        ),
        (
            CheckpointPutBack(2, "a", PATH, 3, is_given_up=True),
            "/c/step-10 was deleted while attempt 2 restored it, 4 times: a has left it so",
        ),
    ],
)
def test_the_story_says_what_was_put_back(record: CheckpointPutBack, line: str) -> None:
    assert narrate(record) == line
