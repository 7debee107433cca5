"""Undoes one injection when its injector says so or dies, and when its time is over: FOLDER ID LOCK_DESCRIPTOR.

A process of its own session, started before the fault is made. Standard input is a pipe of the injector's: a byte means that
the fault is made, and its time begins; its end means "undo". It says ``ready`` once it watches, and at the end one line of JSON. No signal but SIGKILL ends it before.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from recovery.lab.inject.mending import Mended, mend, undo_all
from recovery.lab.inject.undo import Injection
from recovery.lab.inject.undo_journal import UndoFolder

READY: Final = b"ready\n"
MADE: Final = b"m"
_MODULE: Final = b"recovery.lab.inject.supervisor"  # a word of its command line
_LOOK_S: Final = 1.0  # a machine that slept has another CLOCK_BOOTTIME


class UndoVerdict(msgspec.Struct, frozen=True):
    """What the supervisor says at the end."""

    ended_by: str  # time, or injector
    problems: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    folder, injection_id = UndoFolder(Path(arguments[0])), arguments[1]
    os.fstat(
        int(arguments[2])
    )  # inherited: holds the injection's lock for as long as this process lives
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    injection = folder.read(injection_id)
    _write_out(READY)
    ended_by, is_made = _wait(injection)
    if ended_by == "time" and not is_made:
        undo_all(injection)  # of what there is by now
        os.read(0, 1)  # the injector is stuck, or slow: what it makes after this is undone as well
    mended = mend(injection, folder)
    _write_out(msgspec.json.encode(UndoVerdict(ended_by, mended.problems)) + b"\n")
    return _exit_code(mended)


def is_supervisor(pid: int) -> bool:
    """Return whether a process is a supervisor: it ends by itself once its injector has."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return _MODULE in words


def _exit_code(mended: Mended) -> int:
    return 1 if mended.problems else 0


def _wait(injection: Injection) -> tuple[str, bool]:
    """Return what ends the fault, and whether the injector has said that it is made."""
    until_s, is_made = injection.until_boot_s, False
    while True:
        left_s = until_s - time.clock_gettime(time.CLOCK_BOOTTIME)
        if left_s <= 0:
            return "time", is_made
        if select.select([0], [], [], min(left_s, _LOOK_S))[0]:
            if not os.read(0, 1):
                return "injector", is_made
            is_made = True
            until_s = min(until_s, time.clock_gettime(time.CLOCK_BOOTTIME) + injection.for_s)


def _write_out(data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody is left to hear it
        os.write(1, data)
