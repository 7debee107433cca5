from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.errors import JournalError
from recovery.journal.attempt_records import AttemptAbandoned, Milestone
from recovery.journal.journal_rows import GROUP_ROWS_MAX
from recovery.journal.pen import PENDING_MAX, AheadPen, DirectPen
from recovery.journal.postgres.database import LeaseLostError
from recovery.journal.records import Entry, Record

pytestmark = pytest.mark.safety

NOTE, DECISION = Milestone(1, 1), AttemptAbandoned(1, "gone")


class FakeClock:
    time_s = 100.0

    def now_s(self) -> float:
        self.time_s += 1.0
        return self.time_s

    def unix_s(self) -> float:
        return 1.7e9 + self.time_s


class MemoryJournal:
    """A journal on a disk that fails as often as it is told to."""

    opened: tuple[Entry, ...] = ()

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.failures: list[Exception] = []
        self.commits = 0
        self.is_closed = False

    @property
    def last_number(self) -> int:
        return len(self.entries)

    def append_many(self, records: Sequence[Record]) -> tuple[Entry, ...]:
        made = [
            Entry(number, 1.7e9, 1.0, "boot-1", record)
            for number, record in enumerate(records, self.last_number + 1)
        ]
        self.append_entries(made)
        return tuple(made)

    def append_entries(self, entries: Sequence[Entry]) -> None:
        if self.failures:
            raise self.failures.pop()
        assert entries[0].number == self.last_number + 1, "written out of order"
        self.commits += 1
        self.entries += entries

    def close(self) -> None:
        self.is_closed = True


class Handed:
    """A committer that commits when the test says so."""

    quick_s = 0.0

    def __init__(self) -> None:
        self.taken: list[bool] = []  # urgent or not
        self.commits_at_once = False

    def take(self, pen: AheadPen, *, is_urgent: bool) -> None:
        self.taken.append(is_urgent)
        if self.commits_at_once:
            pen.commit()


def ahead(journal: MemoryJournal, handed: Handed | None = None) -> AheadPen:
    made = AheadPen(journal, handed or Handed(), FakeClock(), "boot-1")
    made.go_ahead()
    return made


def test_a_pen_waits_for_the_disk_until_it_is_to_go_ahead() -> None:
    journal = MemoryJournal()
    pen = AheadPen(journal, Handed(), FakeClock(), "boot-1")

    pen.write([DECISION])
    direct_commits, direct = journal.commits, pen.durable_number()
    pen.go_ahead()
    pen.write([DECISION])

    assert (direct_commits, direct) == (1, 1)
    assert (journal.commits, pen.durable_number()) == (1, 1)
    assert pen.owes_decision


def test_what_was_handed_in_is_one_commit_with_its_numbers_and_times() -> None:
    journal = MemoryJournal()
    pen = ahead(journal)
    made = [*pen.write([NOTE]), *pen.write([DECISION, NOTE])]

    assert pen.commit()

    assert journal.commits == 1
    assert journal.entries == made
    assert [entry.number for entry in made] == [1, 2, 3]
    assert pen.durable_number() == 3
    assert not pen.owes_decision


def test_only_a_decision_is_urgent() -> None:
    handed = Handed()
    pen = ahead(MemoryJournal(), handed)

    pen.write([NOTE])
    pen.push()
    pen.write([DECISION])
    pen.push()

    assert handed.taken == [False, True]


def test_a_failed_commit_is_told_and_tried_again_before_anything_newer() -> None:
    journal = MemoryJournal()
    pen = ahead(journal)
    first = pen.write([NOTE])
    journal.failures = [JournalError("the disk is full")]

    assert not pen.commit()
    with pytest.raises(JournalError, match="the disk is full"):
        pen.durable_number()
    newer = pen.write([DECISION])
    assert pen.commit()

    assert journal.entries == [*first, *newer]
    assert pen.durable_number() == 2


def test_a_lost_lease_ends_the_pen() -> None:
    journal = MemoryJournal()
    pen = ahead(journal)
    pen.write([DECISION])
    journal.failures = [LeaseLostError("another controller has the job")]

    pen.commit()

    with pytest.raises(LeaseLostError):
        pen.durable_number()
    with pytest.raises(LeaseLostError):
        pen.write([NOTE])
    assert pen.commit()  # and writes nothing
    assert journal.entries == []
    pen.close()
    assert journal.is_closed


def test_close_writes_what_was_handed_in_and_then_nothing_more() -> None:
    journal, handed = MemoryJournal(), Handed()
    pen = ahead(journal, handed)
    pen.write([NOTE])
    handed.commits_at_once = True

    pen.close()

    assert [entry.record for entry in journal.entries] == [NOTE]
    assert journal.is_closed
    with pytest.raises(JournalError, match="closed"):
        pen.write([NOTE])


def test_close_on_a_full_disk_does_not_raise_and_leaves_the_beginning() -> None:
    journal, handed = MemoryJournal(), Handed()
    pen = ahead(journal, handed)
    pen.write([NOTE])
    handed.commits_at_once = True
    journal.failures = [JournalError("the disk is full")]

    pen.close()

    assert journal.entries == []
    assert not pen.pending()


def test_a_record_that_is_too_large_is_refused_before_it_takes_a_number() -> None:
    pen = ahead(MemoryJournal())

    with pytest.raises(JournalError, match="over the limit"):
        pen.write([AttemptAbandoned(1, "x" * (5 * 1024 * 1024))])

    assert pen.write([NOTE])[0].number == 1


def test_a_commit_takes_whole_writes_up_to_the_size_of_one() -> None:
    journal, half = MemoryJournal(), GROUP_ROWS_MAX // 2 + 1
    pen = ahead(journal)
    pen.write([NOTE] * half)
    pen.write([DECISION] * half)

    pen.commit()
    after_first = len(journal.entries)
    pen.commit()

    assert (after_first, len(journal.entries)) == (half, 2 * half)


def test_bookkeeping_has_no_room_once_much_waits() -> None:
    pen = ahead(MemoryJournal())

    for _one in range(PENDING_MAX):
        pen.write([NOTE])

    assert pen.is_full
    pen.commit()
    assert not pen.is_full


def test_a_direct_pen_is_durable_at_once() -> None:
    journal = MemoryJournal()
    pen = DirectPen(journal)

    pen.write([NOTE, DECISION])

    assert pen.durable_number() == 2
    assert pen.wait_briefly()


@given(
    st.lists(
        st.one_of(
            st.lists(st.sampled_from([NOTE, DECISION]), min_size=1, max_size=4),
            st.sampled_from(["commit", "fail"]),
        ),
        max_size=40,
    )
)
def test_the_disk_has_the_beginning_of_what_was_handed_in_at_each_moment(
    acts: list[list[Record] | str],
) -> None:
    journal = MemoryJournal()
    pen = ahead(journal)
    handed_in: list[Entry] = []

    for act in acts:
        if isinstance(act, list):
            handed_in += pen.write(act)
        else:
            journal.failures = [JournalError("full")] if act == "fail" else []
            pen.commit()
            journal.failures = []
        assert journal.entries == handed_in[: len(journal.entries)]
    assert pen.commit()

    assert journal.entries == handed_in
    assert pen.durable_number() == len(handed_in)
