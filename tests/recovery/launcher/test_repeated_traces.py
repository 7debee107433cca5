"""A traceback that several ranks of a node print is shown once, and nothing else is kept back."""

from recovery.launcher.ranks.rank_output import TRACE_LINES_MAX as LINES_MAX
from recovery.launcher.ranks.rank_output import RepeatedTraces

TRACE = [
    b"Traceback (most recent call last):\n",
    b'  File "train.py", line 4, in <module>\n',
    b'    prnt("hello")\n',
    b"NameError: name 'prnt' is not defined. Did you mean: 'print'?\n",
]
HEADS = (b"[rank 0] ", b"[rank 1] ", b"[rank 2] ")


def shown(
    traces: RepeatedTraces, rank: int, lines: list[bytes], head: bytes | None = None
) -> bytes:
    before = HEADS[rank] if head is None else head
    return b"".join(traces.take(rank, before, line) for line in lines)


def torch_prefixed(rank: int) -> list[bytes]:
    return [b"[rank%d]: " % rank + line for line in TRACE]


def test_the_first_rank_is_shown_as_it_printed_and_the_others_in_one_line() -> None:
    traces = RepeatedTraces()

    first = shown(traces, 0, torch_prefixed(0))
    second = shown(traces, 1, torch_prefixed(1))
    third = shown(traces, 2, TRACE, b"")

    assert first == b"".join(b"[rank 0] " + line for line in torch_prefixed(0))
    assert second == b"[rank 1] the same traceback as rank 0's\n"
    assert third == b"rank 2: the same traceback as rank 0's\n"


def test_tracebacks_that_differ_are_all_shown() -> None:
    traces = RepeatedTraces()
    other = [*TRACE[:-1], b"NameError: name 'x' is not defined\n"]

    shown(traces, 0, TRACE)

    assert shown(traces, 1, other) == b"".join(b"[rank 1] " + line for line in other)


def test_a_rank_that_prints_its_traceback_again_is_shown_again() -> None:
    traces = RepeatedTraces()

    first, again = shown(traces, 0, TRACE), shown(traces, 0, TRACE)

    assert first == again
    assert first.count(b"NameError") == 1


def test_another_attempt_shows_its_own() -> None:
    traces = RepeatedTraces()
    shown(traces, 0, TRACE)

    traces.forget()

    assert b"NameError" in shown(traces, 1, TRACE)


def test_other_lines_pass_at_once() -> None:
    traces = RepeatedTraces()

    assert traces.take(0, b"[rank 0] ", b"step 7\n") == b"[rank 0] step 7\n"
    assert traces.take(0, b"[rank 0] ", b"  indented\n") == b"[rank 0]   indented\n"
    assert traces.held() == ()


def test_a_traceback_without_an_end_is_held_no_longer_than_its_bounds() -> None:
    traces = RepeatedTraces()
    begun = [TRACE[0], *([TRACE[1]] * LINES_MAX)]

    said = shown(traces, 0, begun)

    assert said.count(b"\n") == LINES_MAX + 1
    assert traces.held() == ()


def test_what_is_held_comes_when_it_is_asked_for() -> None:
    traces = RepeatedTraces()

    assert shown(traces, 0, TRACE[:2]) == b""
    assert traces.held() == (0,)
    assert traces.flush(0) == b"[rank 0] " + TRACE[0] + b"[rank 0] " + TRACE[1]
    assert traces.flush(0) == b""


def test_the_error_that_the_console_has_is_known_also_with_pythons_hint() -> None:
    traces = RepeatedTraces()
    shown(traces, 0, torch_prefixed(0))

    assert traces.has_shown("NameError: name 'prnt' is not defined")
    assert not traces.has_shown("KeyError: 'a'")
