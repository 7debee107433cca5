"""The list of every process below a guardian, for the next guardian if this one is killed.

A daemon that a rank started with an empty environment carries no mark of the job. While the guardian
lives, it finds the daemon by its parentage. The guardian writes the list to shared memory every few
seconds, so that a launcher that starts after both were killed still finds the daemon.

A daemon that starts within the last seconds before both are killed is in no list. Standard library only: the guardian runs this without site-packages.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Final

from recovery.launcher.processes.process_tree import (
    ProcessRef,
    descendants,
    is_alive,
    is_of_this_user,
    read_processes,
)

NAME: Final = "processes"
# Ranks start their daemons early: look often at first, then less and less.
FIRST_S: Final = 1.0
EVERY_S: Final = 10.0
# Reading 1,000 processes takes 15 to 20 ms. After the first looks this may take at most this share of a
# core.
COST_SHARE: Final = 0.002
LISTED_MAX: Final = 20_000
_BYTES_MAX: Final = 1 << 20


class ProcessList:
    """Keeps the list in one file up to date. If the file can't be written, there is simply no list."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listed: frozenset[tuple[int, int]] = frozenset()
        self._pause_s = FIRST_S
        self.due_s = 0.0  # monotonic

    def hurry(self) -> None:
        """Look soon: a rank has started."""
        self._pause_s = FIRST_S
        self.due_s = min(self.due_s, time.monotonic() + FIRST_S)

    def update(self) -> None:
        """Write the processes below this one, if they have changed."""
        began_s = time.monotonic()
        below = [state for state in descendants(os.getpid(), read_processes()) if not state.is_gone]
        listed = frozenset((state.pid, state.start_ticks) for state in below[:LISTED_MAX])
        if listed != self._listed:
            with contextlib.suppress(OSError):
                write_list(self._path, listed)
                self._listed = listed
        now_s = time.monotonic()
        if self._pause_s < EVERY_S:
            self.due_s = now_s + self._pause_s
            self._pause_s *= 2
        else:
            self.due_s = now_s + max(EVERY_S, (now_s - began_s) / COST_SHARE)


def write_list(path: str, listed: Iterable[tuple[int, int]]) -> None:
    """Replace the list: one line that identifies boot and namespace, then one line per process."""
    lines = [_world(), *(f"{pid} {start_ticks}" for pid, start_ticks in sorted(listed))]
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123
        file.write("\n".join(lines) + "\n")
    os.replace(temporary, path)  # noqa: PTH105 - no pathlib in the guardian


def read_list(path: str) -> tuple[ProcessRef, ...]:
    """Return the listed processes that still run; none if the list is missing or invalid.

    A list from another boot or PID namespace means other processes, and counts as missing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123
            world, *lines = file.read(_BYTES_MAX).decode("ascii").split("\n")
        if world != _world() or os.stat(path).st_uid != os.getuid():  # noqa: PTH116
            return ()
        pairs = [line.split() for line in lines if line]
        refs = [ProcessRef(int(pid), int(start_ticks)) for pid, start_ticks in pairs]
    except (OSError, ValueError):
        return ()
    return tuple(ref for ref in refs if _is_ours(ref))


def _is_ours(ref: ProcessRef) -> bool:
    return ref.pid > 1 and is_alive(ref) and (os.getuid() == 0 or is_of_this_user(ref.pid))


def _world() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
        boot_id = file.read().strip()
    return f"{boot_id} {os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
