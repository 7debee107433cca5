"""Asks ranks for their Python stacks, and makes sure that it asks the right process.

`rankmend.hook.stacks` records in each file which process writes its stacks there, and through which
descriptor. A signal is sent only if that very process lives, catches it, and has the file open under
that descriptor: a script that closed it may have another file there, and a process without a handler
would die.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from rankmend.errors import SourceError
from rankmend.hook import layout
from recovery.launcher.processes.process_tree import ProcessRef, read_state

STACKS_BYTES_MAX: Final = 256 << 10  # 100 frames of 100 threads, as faulthandler's own bounds, fit
_STATUS_BYTES_MAX: Final = 8192
_DEAF: Final = frozenset("TtDZXx")  # a signal reaches none of these now


def ask_for_stacks(path: Path, training: ProcessRef | None = None) -> str | None:
    """Ask the process that offers its stacks in this file for them; return a reason if it was not asked.

    ``training``: as this host knows that process, where it has told its pid in a PID namespace of its own.
    """
    head = read_head(path)
    if head is None:
        return "it offers no Python stacks (not a Python process, or without our hook)"
    ref, descriptor = head
    if training is not None and training.start_ticks == ref.start_ticks:
        ref = training
    try:
        reason = _why_not(ref, descriptor, path)
        if reason is None:
            os.kill(ref.pid, layout.STACKS_SIGNAL)
    except (OSError, SourceError) as error:
        return f"process {ref.pid} can't be queried: {error}"
    return reason


def _why_not(ref: ProcessRef, descriptor: int, path: Path) -> str | None:
    state = read_state(ref.pid)
    if state is None or state.start_ticks != ref.start_ticks:
        return f"process {ref.pid} is gone"
    if state.letter in _DEAF:
        return f"process {ref.pid} is in state {state.letter} and handles no signals"
    if not is_open_in(ref.pid, descriptor, path):
        return f"process {ref.pid} has closed the file of its stacks"
    return (
        None if _catches(ref.pid) else f"process {ref.pid} no longer handles the signal for stacks"
    )


def is_open_in(pid: int, descriptor: int, path: Path) -> bool:
    """Return whether a process has this file open under this descriptor."""
    try:
        opened, wanted = Path(f"/proc/{pid}/fd/{descriptor}").stat(), path.stat()
    except FileNotFoundError:
        return False
    return (opened.st_dev, opened.st_ino) == (wanted.st_dev, wanted.st_ino)


def read_head(path: Path) -> tuple[ProcessRef, int] | None:
    """Return the process that offers its stacks in this file, and the number of its descriptor."""
    try:
        with path.open("rb") as file:
            words = file.read(layout.STACKS_HEAD_BYTES_MAX).partition(b"\n")[0].split()
    except OSError:
        return None
    if len(words) != 4 or words[0] != b"stacks" or not all(word.isdigit() for word in words[1:]):
        return None
    pid, descriptor, ticks = map(int, words[1:])
    return ProcessRef(pid, ticks), descriptor


def read_stacks(descriptor: int) -> bytes:
    """Return the text that the rank's `faulthandler` has written into this open file so far."""
    with contextlib.suppress(OSError):
        return os.pread(descriptor, STACKS_BYTES_MAX, 0).partition(b"\n")[2]
    return b""


def _catches(pid: int) -> bool:
    with Path(f"/proc/{pid}/status").open("rb") as file:
        status = file.read(_STATUS_BYTES_MAX)
    mask = status.partition(b"\nSigCgt:")[2].partition(b"\n")[0].strip()
    return bool(mask) and bool(int(mask, 16) >> (layout.STACKS_SIGNAL - 1) & 1)
