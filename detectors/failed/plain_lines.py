"""A rank's output as Python wrote it: without colours, prefixes of launchers, and what tools draw around a traceback. Pure.

A line stays a line: places in the result are places in the output.
"""

import re
from collections.abc import Sequence
from typing import Final

LINE_CHARS_MAX: Final = 4_000

ANSI: Final = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]{0,200}\x07|[()][A-Z0-9])")
# torch.distributed prefixes a traceback with "[rank1]: ", its elastic agent with "[default0]:"
# ... mpirun with "[1,3]<stderr>:", SageMaker's with "[1,mpirank:3,algo-1]<stderr>:", Ray and vLLM with "(Worker pid=8929, ip=10.0.0.7) "
# and "(Worker rank=2 pid=8929) ", containers' logs with a stamp.
_PREFIX: Final = re.compile(
    r"^(?:\[(?:default|rank)\d{1,9}\]: ?|\[\d{1,9},(?:mpirank:)?\d{1,9}(?:,[\w-]{1,60})?\]<std(?:err|out)>: ?|\(\w[\w.<>: =]{0,80} pid=\d{1,9}(?:, ip=[\w.:]{1,45})?\) ?"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d) (?:std(?:err|out) [FP] )?)+"
)
_PREFIX_STARTS: Final = frozenset("[(0123456789")
_GROUP: Final = re.compile(r"^ {2,40}(?:\| |\+ (?=Exception Group))")
HEADER: Final = re.compile(r"^(?:Exception Group )?Traceback \(most recent call last\):")
FRAME: Final = re.compile(r'^ +File "([^"]+)", line \d+(?:, in (.+))?$')
PATH_CHARS_MAX: Final = (
    400  # also of a function's name and a line of code: patterns look for words in pairs there
)

# Rich draws a box around a traceback, with one line of the message or more below it.
# Source: rich/traceback.py, Traceback.__rich_console__ and _render_stack.
_BOX_TOP: Final = re.compile(r"^[╭┌+][─-]+ Traceback \(most recent call last\) [─-]+[╮┐+]$")
_BOX_END: Final = re.compile(r"^[╰└+][─-]+[╯┘+]$")
_BOX_FRAME: Final = re.compile(r"^([/~.\w][^\n]{0,400}?):(\d{1,9})(?: in ([\w<>.]+))?$")
_BOX_CODE: Final = re.compile(r"^❱ +\d+ (.*)$")
_BOX_LINES_MAX: Final = 400
_NOTHING: Final = (
    "    ^"  # a line of a traceback that says nothing: it keeps lines and prefixes in step
)


def plain_lines(newest: Sequence[str]) -> list[str]:
    """Return lines without colours and prefixes, and tracebacks as Python prints them, one line for each line.

    Rich's boxes and loguru's marks are taken away: what stands in them is Python's own.
    """
    lines = [clean_line(line) for line in newest]
    _drop_prefixes(lines)
    for number, line in enumerate(lines):
        if _BOX_TOP.match(line):
            _open_box(lines, number)
        elif line[:1] in ("╰", "└") and (first := _start_of_cut_box(lines, number)) is not None:
            _open_box(lines, first)
        elif HEADER.match(line) and not "".join(lines[number + 1 : number + 2]):
            _unmark(lines, number + 1)
    return lines


_PREFIXED_HEADER: Final = re.compile(r"^(.{2,100}?)Traceback \(most recent call last\):$")
_PREFIXES_MAX: Final = 4
_DIGIT: Final = re.compile(r"\d")


def _drop_prefixes(lines: list[str]) -> None:
    """Drop what a tool puts before each line: a node's name, a rank, a stamp, a logger's level.

    Such a prefix stands before a traceback and before its first frame, and differs in digits at most.
    """
    dropped = 0
    for number, line in enumerate(lines[:-1]):
        if not line.endswith("last):"):
            continue
        match = _PREFIXED_HEADER.match(line)
        if match is None or dropped >= _PREFIXES_MAX:
            continue
        form, size = _DIGIT.sub("0", match[1]), len(match[1])
        below = lines[number + 1]
        if _DIGIT.sub("0", below[:size]) != form or not FRAME.match(below[size:]):
            continue
        dropped += 1
        for at, other in enumerate(lines):
            if _DIGIT.sub("0", other[:size]).rstrip() == form.rstrip():
                lines[at] = other[size:]


def _start_of_cut_box(lines: list[str], end: int) -> int | None:
    """Return where the box begins that ends here and lacks its top, or None where it holds no traceback."""
    start = end
    while start > max(0, end - _BOX_LINES_MAX) and lines[start - 1][:1] == "│":
        start -= 1
    return start if any("❱" in line for line in lines[start:end]) else None


def _open_box(lines: list[str], number: int) -> None:
    """Replace a box by the traceback that it holds; without its end it stays."""
    stop = min(len(lines), number + _BOX_LINES_MAX)
    end = next((at for at in range(number + 1, stop) if _BOX_END.match(lines[at])), None)
    if end is None:
        return
    lines[number] = "Traceback (most recent call last):"
    cut = ""  # a path that fills its line goes on in the next one
    for at in range(number + 1, end):
        text = lines[at].strip("│| ")[:PATH_CHARS_MAX]
        frame, code = _BOX_FRAME.match(cut + text), _BOX_CODE.match(text)
        cut = text if not frame and not code and text[:1] == "/" else ""
        lines[at] = _NOTHING
        if frame is not None:
            lines[at] = f'  File "{frame[1]}", line {frame[2]}, in {frame[3] or "<module>"}'
        elif code is not None:
            lines[at] = f"    {code[1].strip('│ ')}"
    lines[end] = _NOTHING


# Source: loguru/_better_exceptions.py: a blank line behind each frame, "> File" where it was caught, values below "│" and "└".
_MARKED: Final = re.compile(r'^> (?=File ")')


def _unmark(lines: list[str], number: int) -> None:
    """Take loguru's marks from the traceback whose frames begin here, and its blank lines up to the error."""
    for at in range(number, min(len(lines), number + _BOX_LINES_MAX)):
        line = lines[at]
        if not line or line.lstrip()[:1] in ("│", "└"):
            lines[at] = _NOTHING
        elif _MARKED.match(line):
            lines[at] = _MARKED.sub("  ", line)
        elif line[:1] != " ":
            return


def clean_line(line: str) -> str:
    """Return a line without colours, prefixes and what no text file can hold."""
    text = line[:LINE_CHARS_MAX]
    if not text.isascii():
        text = printable(text)
    if "\x1b" in text:
        text = ANSI.sub("", text)
    text = text.rstrip()
    if text[:1] in _PREFIX_STARTS:
        text = _PREFIX.sub("", text)
    return _GROUP.sub("", text) if text[:2] == "  " else text


def printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
