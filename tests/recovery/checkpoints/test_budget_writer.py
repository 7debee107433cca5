"""The copy of the budgets is written, and nobody waits for it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmend.errors import StorageError
from recovery.checkpoints.budget_writer import BudgetWriter
from recovery.checkpoints.marks import BudgetCopy
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [pytest.mark.process, pytest.mark.safety]


class SlowCopy(BudgetCopy):
    """A copy on storage that answers when the test lets it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_asked, self.answers = threading.Event(), threading.Event()
        self.saved: list[bytes] = []

    def save(self, content: bytes) -> None:
        self.is_asked.set()
        self.answers.wait(DEADLINE_S)
        self.saved.append(content)
        super().save(content)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[SlowCopy]:
    made = SlowCopy(tmp_path / ".rankmend" / "budgets.json")
    yield made
    made.answers.set()


def test_the_newest_copy_is_written_and_those_that_waited_are_dropped(copy: SlowCopy) -> None:
    writer = BudgetWriter(copy)

    writer.save(b"1")
    assert copy.is_asked.wait(DEADLINE_S)
    writer.save(b"2")
    writer.save(b"3")
    copy.answers.set()
    writer.close(DEADLINE_S)

    assert copy.saved == [b"1", b"3"]
    assert writer.load() == b"3"


def test_storage_that_hangs_is_left_to_itself(copy: SlowCopy) -> None:
    writer = BudgetWriter(copy)
    writer.save(b"1")

    writer.close(0.01)

    assert copy.saved == []


def test_an_error_is_told_at_the_next_write_and_over_once_one_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "budgets.json"
    path.parent.write_text("no folder")
    writer = BudgetWriter(BudgetCopy(path))

    save_until(writer, lambda error: "cannot write" in error)
    path.parent.unlink()
    path.parent.mkdir(exist_ok=True)  # the writer may have made it by now
    save_until(writer, lambda error: not error)

    writer.close(DEADLINE_S)
    assert path.read_bytes() == b"1"


class FaultyCopy(BudgetCopy):
    """A copy whose writing has a fault of its own."""

    is_mended = False

    def save(self, content: bytes) -> None:
        if not self.is_mended:
            raise ValueError("embedded null byte")
        super().save(content)


def test_an_error_that_nobody_expects_is_told_and_later_copies_are_written(tmp_path: Path) -> None:
    copy = FaultyCopy(tmp_path / ".rankmend" / "budgets.json")
    writer = BudgetWriter(copy)

    save_until(writer, lambda error: error.endswith(": ValueError: embedded null byte"))
    copy.is_mended = True
    save_until(writer, lambda error: not error)

    writer.close(DEADLINE_S)
    assert writer.load() == b"1"


def save_until(writer: BudgetWriter, is_enough: Callable[[str], bool]) -> None:
    def save() -> bool:
        try:
            writer.save(b"1")
        except StorageError as error:
            return is_enough(str(error))
        return is_enough("")

    eventually(save, "a save says of the one before what the test waits for")
