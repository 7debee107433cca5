"""The identity of one process of this boot, perhaps in another container. Pure.

A pid alone identifies nothing: the kernel reuses pids, and every container has its own. Together with
the start time and the namespaces of both, it identifies one process.

Source: proc(5), pid_namespaces(7), time_namespaces(7); PROC_PID_INIT_INO in include/linux/proc_ns.h.
The guardian runs this without site-packages.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC  # the machine's own namespace: it sees every process


class Standing(Enum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot."""

    pid: int
    start_ticks: int  # clock ticks since boot, in `time_namespace`
    pid_namespace: int  # inode; 0: not known
    time_namespace: int  # inode; 0: a kernel without them (before 5.6)
    boot_id: str

    def mark(self) -> str:
        """Return the launcher's mark, which ranks carry in their environment."""
        return f"{self.pid}:{self.start_ticks}:{self.pid_namespace}:{self.time_namespace}"


def parse_mark(text: str, boot_id: str) -> ProcessIdentity | None:
    """Return the launcher that a mark names in this boot, or None if it names none."""
    words = text.split(":")
    if len(words) != 4 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    pid, start_ticks, pid_namespace, time_namespace = map(int, words)
    return ProcessIdentity(pid, start_ticks, pid_namespace, time_namespace, boot_id)
