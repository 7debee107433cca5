"""Asks a program of the site's what it thinks of a log's verdict, for `rankmend diagnose log --second-opinion`.

The program gets one JSON object on standard input: the bounded, scrubbed object that `--json` prints. What it writes to standard output
is shown beside the verdict, never in its place. It is run by its words, without a shell, and ended with all its
children after a timeout.
"""

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.errors import ConfigError
from rankmend.printable import printable

# A language model takes 20 to 63 s for a log: NVIDIA's resiliency extension, pull request 390.
TIMEOUT_S: Final = 120.0
ANSWER_BYTES_MAX: Final = 16_384  # a page; the program is ended once it has written more
LINES_MAX: Final = 100
_READ_BYTES: Final = 4_096
_END_S: Final = 2.0  # for a killed program to be reaped; one that hangs in the kernel is left


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """What a program of the site's answered."""

    program: str
    answer: str  # printable, bounded
    problem: str  # why there is no whole answer; empty: it is whole


def words_of(command: str) -> list[str]:
    """Return a command's words as a shell would split them; no shell runs it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--second-opinion {command!r}: {error}") from error
    if not words:
        raise ConfigError("--second-opinion is empty: give a program, such as './ask-model --json'")
    return words


def ask_program(
    words: Sequence[str], page: Mapping[str, object], timeout_s: float = TIMEOUT_S
) -> SecondOpinion:
    """Return the program's answer, or why there is none; never raises for what the program does."""
    until_s = time.monotonic() + timeout_s
    with tempfile.TemporaryFile() as question:  # a pipe would block where the program reads nothing
        question.write(json.dumps(page).encode())
        question.seek(0)
        try:
            child = subprocess.Popen(
                words,
                stdin=question,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            return SecondOpinion(words[0], "", f"{printable(words[0])} can't be run: {reason}")
        try:
            body, problem = _read(child, until_s, timeout_s)
        finally:  # Ctrl-C ends it, too
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_END_S)
            assert child.stdout is not None, "it was requested"
            child.stdout.close()
    return SecondOpinion(words[0], _shown(body), problem)


def _read(child: "subprocess.Popen[bytes]", until_s: float, timeout_s: float) -> tuple[bytes, str]:
    """Return what a program writes until it ends, and what went wrong."""
    assert child.stdout is not None, "it was requested"
    body = b""
    while len(body) <= ANSWER_BYTES_MAX:
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            return body, f"it was ended after {timeout_s:g} s"
        piece = os.read(child.stdout.fileno(), _READ_BYTES)
        if not piece:
            break
        body += piece
    else:
        return body, f"its answer was cut at {ANSWER_BYTES_MAX} bytes"
    try:
        code = child.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return body, f"it was ended after {timeout_s:g} s"
    return body, f"it ended with exit code {code}" if code else ""


def _shown(body: bytes) -> str:
    lines = body[:ANSWER_BYTES_MAX].decode("utf-8", "replace").strip().splitlines()
    return "\n".join(printable(line) for line in lines[:LINES_MAX])
