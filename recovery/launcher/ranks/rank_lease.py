"""Writes into a rank's progress file until when it may run, for the hook to keep (`rankmend.hook.lease`).

The launcher writes it, not the guardian: a guardian that a debugger holds ends no rank whose launcher reaches somebody.
"""

import mmap
import os
from pathlib import Path
from typing import Final

from rankmend.hook import layout
from rankmend.hook.lease import (
    ENDED_WORD,
    ENDS_WORD,
    NAMESPACE_WORD,
    PUBLISHES_WORD,
    read_namespace,
)
from recovery.launcher.membership.node_membership import RankDeadline

_NS_A_S: Final = 1_000_000_000


class RankLease:
    """The lease in one progress file."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._map = mmap.mmap(descriptor, layout.FILE_SIZE)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")
        self._words[NAMESPACE_WORD] = read_namespace()

    def set(self, deadline: RankDeadline) -> None:
        """Have the rank publish and step until these times."""
        self._words[PUBLISHES_WORD] = _word(deadline.until_s)
        self._words[ENDS_WORD] = 0 if deadline.ends_s is None else _word(deadline.ends_s)

    @property
    def has_ended_rank(self) -> bool:
        """Return whether the rank has ended itself by this lease."""
        return self._words[ENDED_WORD] != 0

    def close(self) -> None:
        self._words.release()
        self._map.close()


def _word(at_s: float) -> int:
    """Return a time as a word; never 0, which says that there is no lease."""
    return max(1, int(max(at_s, 0.0) * _NS_A_S))
