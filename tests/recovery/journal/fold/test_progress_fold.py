"""A run of progress that is folded at once gives the ledger of a fold one by one, to the last bit."""

from collections.abc import Sequence
from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.errors import JournalError
from recovery.journal.attempt_records import Milestone
from recovery.journal.fold.entry_fold import fold, fold_all
from recovery.journal.ledger import Ledger
from recovery.journal.records import Entry
from tests.support.goodput_jobs import BEGIN, END, FAILED, entries_of
from tests.support.long_journals import with_progress
from tests.support.old_journals import JOBS, read


def one_by_one(entries: Sequence[Entry]) -> Ledger:
    return reduce(fold, entries, Ledger())


@given(case=st.sampled_from(JOBS), seed=st.integers(0, 2**32), end=st.integers(0, 400))
def test_runs_of_progress_in_journals_of_old_versions(case: str, seed: int, end: int) -> None:
    entries = with_progress(read(case).entries(), Random(seed))[:end]

    assert fold_all(entries) == one_by_one(entries)


@given(seed=st.integers(0, 2**32), end=st.integers(0, 100))
def test_runs_of_progress_around_an_incident(seed: int, end: int) -> None:
    entries = with_progress(entries_of(*BEGIN, *FAILED, *END), Random(seed), 12)[:end]

    assert fold_all(entries) == one_by_one(entries)


def test_a_missing_record_within_a_run_is_refused() -> None:
    entries = entries_of(*BEGIN, *((20.0 + at, Milestone(1, at, at)) for at in range(1, 5)))

    with pytest.raises(JournalError, match="record 7 follows record 5"):
        fold_all(entries[:5] + entries[6:])
