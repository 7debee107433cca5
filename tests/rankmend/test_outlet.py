"""Outlets with targets that hang, are slow, or fail."""

import errno
import threading
from collections.abc import Iterator

import pytest

from rankmend.console import OWN_BYTES, ROOM_BYTES, SLOW_BYTES_MAX, STUCK_S, Outlet
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

LINE = b"." * 1023 + b"\n"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reader:
    """A target that takes bytes while its gate is open, or fails."""

    def __init__(self) -> None:
        self.taken = b""
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.room_bytes: int | None = None  # then it is full
        self.is_closed = False
        self.is_waited_for = threading.Event()

    def write(self, data: memoryview) -> int:
        self.is_waited_for.set()
        self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        if self.room_bytes is not None and len(self.taken) >= self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken += data
        return len(data)

    def close(self) -> None:
        self.is_closed = True

    def describe_loss(self, lines: int, error: OSError | None) -> bytes:
        return f"[{lines} lost: {'no room' if error is None else error.strerror}]\n".encode()


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.gate.set()


def block(outlet: Outlet, reader: Reader) -> None:
    """Have the reader take nothing, with one line on its way."""
    reader.gate.clear()
    reader.is_waited_for.clear()
    outlet.put(reader, b"first\n")
    assert reader.is_waited_for.wait(DEADLINE_S)


def fill(outlet: Outlet, reader: Reader) -> int:
    taken = 0
    while outlet.put(reader, LINE):
        taken += 1
    return taken


def test_a_reader_that_is_stuck_loses_counted_lines_and_gets_the_count_in_their_place(
    reader: Reader,
) -> None:
    clock = Clock()
    outlet = Outlet("test", now_s=clock)
    block(outlet, reader)
    clock.now_s = STUCK_S

    taken = fill(outlet, reader)
    outlet.put(reader, b"lost\nlost, too\n" + LINE)
    reader.gate.set()
    eventually(lambda: reader.taken.endswith(b"lost: no room]\n"), "the count")
    outlet.put(reader, b"after\n")
    assert outlet.flush()

    assert taken == ROOM_BYTES // len(LINE) - 1
    assert reader.taken == b"first\n" + LINE * taken + b"[4 lost: no room]\nafter\n"


def test_the_count_comes_even_where_no_other_line_follows(reader: Reader) -> None:
    clock = Clock()
    outlet = Outlet("test", now_s=clock)
    block(outlet, reader)
    clock.now_s = STUCK_S
    fill(outlet, reader)

    reader.gate.set()

    eventually(lambda: reader.taken.endswith(b"[1 lost: no room]\n"), "the count")


def test_own_lines_find_room_where_those_of_ranks_do_not(reader: Reader) -> None:
    clock = Clock()
    outlet = Outlet("test", now_s=clock)
    block(outlet, reader)
    clock.now_s = STUCK_S
    fill(outlet, reader)

    assert outlet.put(reader, b"rankmend: restart\n", is_own=True)
    assert not outlet.put(reader, b"." * 2 * OWN_BYTES, is_own=True)


def test_a_reader_that_is_slow_is_worth_waiting_for_until_it_is_stuck(reader: Reader) -> None:
    clock = Clock()
    outlet = Outlet("test", now_s=clock)
    block(outlet, reader)
    assert outlet.has_room()

    for _line in range(ROOM_BYTES // len(LINE)):
        outlet.put(reader, LINE)

    assert not outlet.has_room()
    assert outlet.put(reader, LINE)  # of a rank that has died, which nobody can hold up
    assert fill(outlet, reader) < SLOW_BYTES_MAX // len(LINE)
    clock.now_s = STUCK_S
    assert outlet.has_room()


def test_a_target_that_fails_is_tried_again_and_told_what_it_missed(reader: Reader) -> None:
    heard: list[OSError | None] = []
    outlet = Outlet("test", on_loss=lambda _target, error: heard.append(error))
    reader.error = OSError(errno.ENOSPC, "No space left on device")
    outlet.put(reader, b"one\ntwo\n")
    outlet.put(reader, b"three\n")
    assert outlet.flush()

    reader.error = None
    outlet.put(reader, b"four\n")

    assert outlet.flush()
    assert reader.taken == b"[3 lost: No space left on device]\nfour\n"
    assert [error.errno for error in heard if error is not None] == [errno.ENOSPC]


@pytest.mark.parametrize("error", [ValueError("I/O on closed file"), TypeError("no bytes")])
def test_a_target_that_fails_in_another_way_loses_counted_lines_and_the_thread_goes_on(
    reader: Reader, error: Exception
) -> None:
    heard: list[OSError | None] = []
    other = Reader()
    outlet = Outlet("test", on_loss=lambda _target, error: heard.append(error))
    reader.error = error
    outlet.put(reader, b"one\ntwo\n")
    outlet.put(reader, b"three\n")
    outlet.put(other, b"other\n")
    assert outlet.flush()

    reader.error = None
    outlet.put(reader, b"four\n")

    assert outlet.flush()
    assert other.taken == b"other\n"
    assert reader.taken == f"[3 lost: {type(error).__name__}: {error}]\nfour\n".encode()
    assert len(heard) == 1


class Broken(Reader):
    """A target that can neither close nor describe a loss."""

    def close(self) -> None:
        raise ValueError("closed already")

    def describe_loss(self, lines: int, error: OSError | None) -> bytes:
        raise TypeError("no text")


def test_the_thread_goes_on_after_failures_of_all_that_it_calls() -> None:
    def fail(_target: object, _error: OSError | None) -> None:
        raise RuntimeError("the console is gone")

    broken, other = Broken(), Reader()
    outlet = Outlet("test", on_loss=fail)
    broken.error = ValueError("I/O on closed file")
    outlet.put(broken, b"one\n")
    assert outlet.flush()

    broken.error = None
    outlet.put(broken, b"two\n")
    outlet.finish(broken)
    outlet.put(other, b"other\n")

    assert outlet.flush()
    assert broken.taken == b"rankmend: 1 lines were dropped here\ntwo\n"
    assert other.taken == b"other\n"


def test_a_count_that_can_not_be_written_either_is_added_to_the_next(reader: Reader) -> None:
    outlet = Outlet("test")
    reader.error = OSError(errno.ENOSPC, "No space left on device")
    for data in (b"one\ntwo\n", b"three\n", b"four\n"):
        outlet.put(reader, data)
        assert outlet.flush()

    reader.error = None
    outlet.put(reader, b"five\n")

    assert outlet.flush()
    assert reader.taken == b"[4 lost: No space left on device]\nfive\n"


def test_a_target_that_fails_within_a_line_has_its_count_on_a_line_of_its_own(
    reader: Reader,
) -> None:
    outlet = Outlet("test")
    reader.room_bytes = 4096
    outlet.put(reader, LINE * 5)
    outlet.put(reader, b"six\n")
    assert outlet.flush()

    reader.room_bytes = None
    outlet.put(reader, b"seven\n")

    assert outlet.flush()
    assert reader.taken == LINE * 4 + b"\n[2 lost: No space left on device]\nseven\n"


def test_flush_gives_up_on_a_reader_that_takes_nothing(reader: Reader) -> None:
    outlet = Outlet("test")
    block(outlet, reader)

    assert not outlet.flush(stuck_s=0.01)


def test_a_target_is_closed_after_the_last_line_for_it(reader: Reader) -> None:
    other = Reader()
    outlet = Outlet("test")
    outlet.put(reader, b"last\n")

    outlet.finish(reader)
    outlet.put(other, b"other\n")

    assert outlet.close()
    assert (reader.taken, reader.is_closed, other.is_closed) == (b"last\n", True, False)
