"""One log file of a rank. It is opened by the thread that writes it, because a disk can hang."""

import logging
import os
from pathlib import Path
from typing import Final

from rankmend.outlet import Target

log = logging.getLogger(__name__)

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class LogFile:
    """Opened with its folder at the first write; after a failure the next write tries again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def write(self, data: memoryview) -> int:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, _FLAGS, 0o644)
        return os.write(self._descriptor, data)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def describe_loss(self, lines: int, error: OSError | None) -> bytes:
        why = "the disk took nothing" if error is None else f"of an error: {error.strerror}"
        return f"rankmend: {lines} lines are missing here because {why}\n".encode()


def tell_loss(target: Target, error: OSError | None) -> None:
    """Log that a file begins to lose lines; the ranks go on."""
    assert isinstance(target, LogFile)
    log.warning(
        "lines of a rank are lost: its log file can't be written",
        extra={
            "path": str(target.path),
            "why": "the disk takes nothing" if error is None else error.strerror,
        },
    )
