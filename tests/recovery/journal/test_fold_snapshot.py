"""Snapshots of the fold: the same ledger with one as without, and no start that rests on one that does not fit."""

import logging
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmend.clock import SystemClock
from recovery.controller.job.situation import JobMemory
from recovery.journal import fold_snapshot
from recovery.journal.attempt_records import Milestone
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.fold_snapshot import CODE, EVERY, FILE, Foundation, decode, encode
from recovery.journal.job_records import JobOpened
from recovery.journal.journal_rows import verify_rows
from recovery.journal.ledger import Ledger
from recovery.journal.pen import AheadPen
from recovery.journal.records import Entry, Record
from recovery.journal.store import Journal
from tests.support.simulation import SimWorld, draw_scenario
from tests.support.simulation_nodes import Cluster, draw_setting

pytestmark = [pytest.mark.process, pytest.mark.safety]

JOB: Record = JobOpened("6f1c0a5e-0000-4000-8000-000000000001", "digits")


@cache
def journal_of(seed: int) -> tuple[Entry, ...]:
    if seed % 2:
        rows = SimWorld(draw_scenario(seed)).run().disk.rows
    else:
        rows = Cluster(draw_setting(seed)).run().control.disk.rows
    return tuple(verify_rows(rows, "journal")[0])


@given(seed=st.integers(1, 12), cut=st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_a_snapshot_and_the_rest_fold_to_what_all_folds_to(seed: int, cut: float) -> None:
    entries = journal_of(seed)
    through = round(cut * len(entries))
    kept = Foundation(fold_all(entries[:through]), b"x" * 16, 1.7e9)

    again = decode(encode(kept))

    assert again == kept
    assert fold_all(entries[through:], again.ledger) == fold_all(entries)


def open_journal(folder: Path) -> Journal:
    return Journal(folder / "journal.db", SystemClock(), "boot-1", uses_snapshot=True)


def ledger_of(journal: Journal) -> Ledger:
    known = journal.foundation
    return fold_all(journal.opened, None if known is None else known.ledger)


def write(folder: Path, steps: range, *, keeps: bool = True) -> Ledger:
    """Write milestones, and keep the fold; return it."""
    journal = open_journal(folder)
    ledger = ledger_of(journal)
    first: list[Record] = [] if ledger.number else [JOB]
    entries = journal.append_many([*first, *(Milestone(0, step) for step in steps)])
    ledger = fold_all(entries, ledger)
    if keeps:
        journal.hold_fold(ledger)
        journal.save_fold()
    journal.close()
    return ledger


def refusal(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.reason  # type: ignore[attr-defined]
        for record in caplog.records
        if record.getMessage() == "snapshot of the fold not used"
    ]


def test_a_start_reads_only_what_follows_the_snapshot(tmp_path: Path) -> None:
    write(tmp_path, range(1, 50))
    expected = write(tmp_path, range(50, 60), keeps=False)

    journal = open_journal(tmp_path)

    assert [entry.number for entry in journal.opened] == list(range(51, 61))
    assert journal.foundation is not None
    assert (journal.foundation.number, journal.last_number) == (50, 60)
    assert ledger_of(journal) == expected
    assert journal.append(Milestone(0, 61)).number == 61
    journal.close()
    whole = Journal(tmp_path / "journal.db", SystemClock(), "boot-1")
    assert len(whole.opened) == 61
    assert whole.began_unix_s == journal.foundation.began_unix_s
    whole.close()


def test_no_snapshot_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, range(1, 5), keeps=False)

    journal = open_journal(tmp_path)

    assert journal.foundation is None
    assert len(journal.opened) == 5
    assert refusal(caplog) == []
    journal.close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda body: b"", "can't be read"),
        (lambda body: body[: len(body) // 2], "can't be read"),
        (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "it is damaged"),
        (lambda body: body.replace(fold_snapshot.maker().encode(), b"0" * len(fold_snapshot.maker())), "it was made by"),
    ],
    ids=["empty", "cut off", "one bit", "other code"],
)  # fmt: skip
def test_a_snapshot_that_can_not_be_used_is_told_once_and_all_is_folded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: object, reason: str
) -> None:
    expected = write(tmp_path, range(1, 20))
    path = tmp_path / FILE
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]

    with caplog.at_level(logging.WARNING):
        journal = open_journal(tmp_path)

    assert journal.foundation is None
    assert ledger_of(journal) == expected
    assert [reason in one for one in refusal(caplog)] == [True]
    journal.close()


def test_an_older_snapshot_fits_and_a_newer_or_foreign_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    write(ours, range(1, 10))
    older = (ours / FILE).read_bytes()
    expected = write(ours, range(10, 20))
    newer = (ours / FILE).read_bytes()
    write(others, range(1, 30))
    foreign = (others / FILE).read_bytes()

    (ours / FILE).write_bytes(older)
    journal = open_journal(ours)
    assert journal.foundation is not None
    assert ledger_of(journal) == expected
    journal.close()
    (ours / FILE).write_bytes(foreign)
    journal = open_journal(ours)
    assert journal.foundation is None
    assert ledger_of(journal) == expected
    journal.close()
    fresh = tmp_path / "restored"  # an older copy of the journal, and a snapshot from after it
    fresh.mkdir()
    before = write(fresh, range(1, 5), keeps=False)
    (fresh / FILE).write_bytes(newer)
    journal = open_journal(fresh)
    assert journal.foundation is None
    assert ledger_of(journal) == before
    journal.close()
    assert ["the journal has no such record" in one for one in refusal(caplog)] == [True, True]


def test_a_snapshot_is_kept_only_of_what_the_journal_has(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    entries = journal.append_many([JOB, Milestone(0, 1)])
    behind = fold_all(entries[:1])

    journal.hold_fold(behind)
    owes_behind = journal.owes_fold
    journal.hold_fold(fold_all(entries))
    journal.save_fold()

    assert not owes_behind
    assert not journal.owes_fold
    assert (tmp_path / FILE).exists()
    journal.close()


class AtOnce:
    quick_s = 0.0

    def take(self, pen: AheadPen, *, is_urgent: bool) -> None:
        pen.commit()
        pen.save_fold()


def test_a_controller_keeps_its_fold_now_and_then(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append_many([JOB, *(Milestone(0, step) for step in range(1, EVERY))])
    journal.close()
    journal = open_journal(tmp_path)
    pen = AheadPen(journal, AtOnce(), SystemClock(), "boot-1", journal)
    book = JobMemory(pen, None)
    pen.go_ahead()

    book.settle()
    book.write([Milestone(0, EVERY)], lambda _before: None)
    book.push()
    book.settle()
    pen.close()

    again = open_journal(tmp_path)
    assert again.foundation is not None
    assert again.foundation.number == EVERY
    assert ledger_of(again) == book.ledger
    again.close()


def test_a_snapshot_names_all_code_that_the_fold_runs() -> None:
    root = Path(fold_snapshot.__file__).parents[2]
    source = (
        "import sys, recovery.journal.fold.entry_fold, recovery.journal.fold_snapshot\n"
        "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=root
    ).stdout.splitlines()
    ours = {Path(path) for path in loaded if Path(path).is_relative_to(root)}
    ours = {path for path in ours if path.stat().st_size and ".venv" not in path.parts}

    named = {path for pattern in CODE for path in root.glob(pattern)}

    assert ours
    assert ours - named == set()
