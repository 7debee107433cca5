"""Output of a failed rank, as Python writes it, and the error that is read from it."""

from detectors.failed.error_text import ErrorText, parse_error

HEADER = "Traceback (most recent call last):"
FRAME = ('  File "/home/a/train.py", line 12, in <module>', "    step(batch)", "    ^^^^^^^^^^^")
DIRECT = "The above exception was the direct cause of the following exception:"


def traceback_of(*errors: str, chain: str = DIRECT) -> list[str]:
    lines: list[str] = []
    for error in errors:
        lines += ["", chain, ""] if lines else []
        lines += [HEADER, *FRAME, *error.split("\n")]
    return lines


def error_in(*lines: str) -> ErrorText:
    error = parse_error(lines)
    assert error is not None
    return error
