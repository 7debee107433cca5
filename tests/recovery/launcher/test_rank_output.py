import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rankmend.errors import ConfigError
from recovery.launcher.ranks.rank_output import (
    LINE_BYTES_MAX,
    LINES_MAX,
    Output,
    OutputPlan,
    Streams,
    parse_streams,
)
from tests.support.console import FakeConsole
from tests.support.eventually import eventually

pytestmark = pytest.mark.process


def make_plan(
    folder: Path | None = None,
    redirects: str = "0",
    tee: str = "0",
    shown: frozenset[int] | None = None,
    prefix: bool = True,
) -> OutputPlan:
    return OutputPlan(folder, parse_streams(redirects, 2), parse_streams(tee, 2), shown, prefix)


def fill(descriptor: int) -> None:
    """Write until a non-blocking descriptor takes no more, which nobody reads."""
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"." * 4095 + b"\n")


def write_and_close(output: Output, rank: int, out: bytes, err: bytes = b"") -> None:
    out_fd, err_fd = output.open_rank(1, rank, rank)
    os.write(out_fd, out)
    os.write(err_fd, err)
    os.close(out_fd)
    os.close(err_fd)


def test_each_line_of_a_rank_is_prefixed_on_the_stream_it_came_from() -> None:
    console = FakeConsole()
    output = Output(make_plan(), console)

    write_and_close(output, 1, b"one\ntwo\nno end", b"bad\n")
    output.close()

    assert console.shown[1] == b"[rank 1] one\n[rank 1] two\n[rank 1] no end\n"
    assert console.shown[2] == b"[rank 1] bad\n"


def test_a_progress_bar_is_shown_before_its_line_ends() -> None:
    console = FakeConsole()
    output = Output(make_plan(), console)
    out_fd, err_fd = output.open_rank(1, 0, 0)

    os.write(err_fd, b"10%\r")

    eventually(lambda: console.shown[2] == b"[rank 0] 10%\r")
    os.close(out_fd)
    os.close(err_fd)
    output.close()


def test_the_last_lines_hold_what_was_written_a_moment_before_the_death() -> None:
    output = Output(make_plan(), FakeConsole())
    out_fd, err_fd = output.open_rank(1, 0, 0)

    os.write(err_fd, b"".join(b"line %d\n" % number for number in range(100)))
    lines = output.last_lines(0)[1]

    assert lines == tuple(f"line {number}" for number in range(100 - LINES_MAX, 100))
    os.close(out_fd)
    os.close(err_fd)
    output.close()
    assert output.last_lines(0)[1] == lines


def test_a_console_that_is_slow_holds_up_the_rank_and_no_reader_of_last_lines() -> None:
    console = FakeConsole()
    console.is_slow = True
    output = Output(make_plan(), console)
    out_fd, err_fd = output.open_rank(1, 0, 0)
    os.set_blocking(out_fd, False)

    fill(out_fd)

    assert console.shown[1] == b""
    assert output.last_lines(0)[0][-1] == "." * LINE_BYTES_MAX
    console.is_slow = False
    os.set_blocking(out_fd, True)
    os.write(out_fd, b"last\n")
    eventually(lambda: console.shown[1].endswith(b"[rank 0] last\n"))
    os.close(out_fd)
    os.close(err_fd)
    output.close()


def test_redirected_output_goes_to_the_file_only_and_teed_output_to_both(tmp_path: Path) -> None:
    console = FakeConsole()
    output = Output(make_plan(tmp_path, redirects="0:1", tee="1:1"), console)

    write_and_close(output, 0, b"zero\n")
    write_and_close(output, 1, b"one\n")
    output.close()

    assert (tmp_path / "attempt_1" / "0" / "stdout.log").read_bytes() == b"zero\n"
    assert (tmp_path / "attempt_1" / "1" / "stdout.log").read_bytes() == b"one\n"
    assert console.shown[1] == b"[rank 1] one\n"


@pytest.mark.parametrize(
    ("redirects", "tee", "shown"),
    [
        (
            "3",
            "0:3",
            b"[rank 0] out\n",
        ),  # all to files, rank 0 also to the console: what people type
        ("3", "3", b"[rank 0] out\n[rank 1] out\n"),
        ("3", "1:1", b"[rank 1] out\n"),
        ("3", "0", b""),
        ("0", "3", b"[rank 0] out\n[rank 1] out\n"),
    ],
)
def test_a_teed_stream_is_shown_although_it_is_redirected(
    tmp_path: Path, redirects: str, tee: str, shown: bytes
) -> None:
    console = FakeConsole()
    output = Output(make_plan(tmp_path, redirects=redirects, tee=tee), console)

    write_and_close(output, 0, b"out\n")
    write_and_close(output, 1, b"out\n")
    output.close()

    lines = sorted(bytes(console.shown.get(1, b"")).splitlines(keepends=True))
    assert b"".join(lines) == shown
    for local_rank in (0, 1):
        file = tmp_path / "attempt_1" / str(local_rank) / "stdout.log"
        assert file.read_bytes() == b"out\n"


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("[${role_name}|${rank}]: ", b"[trainer|5]: out\n"),
        ("[$role_name$local_rank]:", b"[trainer1]:out\n"),
        ("$nobody ", b"$nobody out\n"),
        ("", b"out\n"),
    ],
)
def test_the_prefix_is_torchruns_template_where_one_is_set(template: str, line: bytes) -> None:
    console = FakeConsole()
    plan = replace(make_plan(), prefix_template=template, role="trainer")
    output = Output(plan, console)

    out_fd, err_fd = output.open_rank(1, 5, 1)
    os.write(out_fd, b"out\n")
    os.close(out_fd)
    os.close(err_fd)
    output.close()

    assert console.shown[1] == line


def test_ranks_left_out_by_the_filter_are_not_shown_and_keep_their_last_lines() -> None:
    console = FakeConsole()
    output = Output(make_plan(shown=frozenset({0}), prefix=False), console)

    write_and_close(output, 0, b"zero\n")
    write_and_close(output, 1, b"one\n")
    output.close()

    assert console.shown[1] == b"zero\n"
    assert output.last_lines(1)[0] == ("one",)


def test_a_new_attempt_takes_the_place_of_the_old_pipes() -> None:
    console = FakeConsole()
    output = Output(make_plan(), console)
    old_out, old_err = output.open_rank(1, 0, 0)

    write_and_close(output, 0, b"new\n")
    output.close()

    assert console.shown[1] == b"[rank 0] new\n"
    with pytest.raises(BrokenPipeError):
        os.write(old_out, b"zombie\n")
    os.close(old_out)
    os.close(old_err)


def test_streams_are_read_as_torchrun_reads_them() -> None:
    assert parse_streams("3", 2) == (Streams.ALL, Streams.ALL)
    assert parse_streams("0:1,1:2", 2) == (Streams.OUT, Streams.ERR)


@pytest.mark.parametrize("text", ["4", "x", "0:9", "5:1", "", "0:1,"])
def test_streams_that_are_none_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=repr(text) if text else "neither"):
        parse_streams(text, 2)
