"""One log file of a rank. The thread that writes it also opens it, because a disk can hang."""

import contextlib
import errno
import logging
import os
from pathlib import Path
from typing import Final

from rankmend.errors import LaunchError
from rankmend.files import replace_file
from rankmend.foreign_links import open_to_append, refuse_foreign_link
from rankmend.outlet import OutletTarget

log = logging.getLogger(__name__)

RANK_FILE: Final = "rank"


class LogFile:
    """Opens itself and its folder at the first write; after a failure, the next write tries again."""

    def __init__(self, path: Path, rank: int | None = None) -> None:
        """``rank``: whose output it is, where its folder doesn't say so already; a file beside it does."""
        self.path = path
        self._rank = rank
        self._descriptor: int | None = None

    def write(self, data: memoryview) -> int:
        if self._descriptor is None:
            self._descriptor = self._open()
        return os.write(self._descriptor, data)

    def _open(self) -> int:
        """Open the file below the user's folder, without following links that others planted."""
        attempt = self.path.parent.parent
        attempt.parent.mkdir(parents=True, exist_ok=True)
        for folder in (attempt, self.path.parent):
            folder.mkdir(exist_ok=True)
            refuse_foreign_link(folder, lambda text: PermissionError(errno.EPERM, text))
        if self._rank is not None:
            mark = self.path.with_name(RANK_FILE)
            with contextlib.suppress(LaunchError):  # the lines matter more than whose they are
                replace_file(mark, f"{self._rank}\n".encode(), LaunchError, durable=False)
        return open_to_append(self.path)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def describe_loss(self, lines: int, error: OSError | None) -> bytes:
        why = "the disk took nothing" if error is None else f"of an error: {error.strerror}"
        return f"rankmend: {lines} lines are missing here because {why}\n".encode()


def tell_loss(target: OutletTarget, error: OSError | None) -> None:
    """Log that a file begins to lose lines; the ranks continue."""
    assert isinstance(target, LogFile)
    log.warning(
        "output lines of a rank are lost: cannot write its log file",
        extra={
            "path": str(target.path),
            "why": "the disk takes nothing" if error is None else error.strerror,
        },
    )
