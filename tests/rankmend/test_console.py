"""What is written to the console, through pipes."""

import os

import pytest

from rankmend.console import Console

pytestmark = pytest.mark.process


def shown_by(console: Console, read_end: int) -> bytes:
    assert console.flush()
    return os.read(read_end, 65536)


def test_a_line_of_rankmend_stands_behind_no_progress_bar() -> None:
    read_end, write_end = os.pipe()
    console = Console(write_end, write_end)

    console.put(2, b"[rank 0] 10%\r[rank 0] 20%\r")
    console.put(2, b"rankmend: one\n", is_own=True)
    console.put(2, b"rankmend: two", is_own=True)
    console.put(2, b" and its end\n", is_own=True)
    console.put(1, b"[rank 0] 30%")
    console.put(2, b"rankmend: three\n", is_own=True)
    console.put(1, b"[rank 0] whole\n")
    console.put(2, b"rankmend: four\n", is_own=True)

    assert shown_by(console, read_end) == (
        b"[rank 0] 10%\r[rank 0] 20%\r\n"
        b"rankmend: one\n"
        b"rankmend: two and its end\n"
        b"[rank 0] 30%\n"
        b"rankmend: three\n"
        b"[rank 0] whole\n"
        b"rankmend: four\n"
    )


def test_a_bar_on_another_stream_cuts_no_line_of_rankmend() -> None:
    out_read, out_write = os.pipe()
    read_end, write_end = os.pipe()
    console = Console(out_write, write_end)

    console.put(1, b"[rank 0] 10%\r")
    console.put(2, b"rankmend: one\n", is_own=True)

    assert shown_by(console, read_end) == b"rankmend: one\n"
    assert os.read(out_read, 65536) == b"[rank 0] 10%\r"
