"""The progress files that a path pattern names: opened without following links, and only where file and folder have one owner."""

import logging
import os
import stat
from itertools import islice
from pathlib import Path

from agent.ranks.table import RANKS_MAX, ShownRank
from rankmend.errors import SourceError
from rankmend.progress import ProgressReader, open_owned

log = logging.getLogger(__name__)


class PathSource:
    """Progress files found by a path pattern, kept open for as long as they are there."""

    def __init__(self, pattern: str) -> None:
        assert pattern.startswith("/"), "the configuration takes only an absolute pattern"
        self._pattern = pattern.lstrip("/")
        self._open: dict[tuple[str, int, int], ShownRank | None] = {}  # None: refused

    def ranks(self) -> list[ShownRank]:
        """Return the ranks of the files that match now."""
        found: dict[tuple[str, int, int], ShownRank | None] = {}
        for path in islice(Path("/").glob(self._pattern), RANKS_MAX):
            try:
                about = path.lstat()
            except OSError:
                continue  # removed since it was listed
            key = (str(path), about.st_dev, about.st_ino)
            found[key] = self._open.pop(key) if key in self._open else _open_rank(path, about)
        for rank in self._open.values():
            if rank is not None:
                rank.reader.close()
        self._open = found
        return [rank for rank in found.values() if rank is not None]


def _open_rank(path: Path, about: os.stat_result) -> ShownRank | None:
    try:
        descriptor = _open_regular(path, about)
        return ShownRank(ProgressReader(descriptor, str(path)), pid=0, job_name="")
    except (SourceError, OSError) as error:
        # no progress file, or one that somebody has put into another's folder; said once a file
        log.warning("progress file refused", extra={"path": str(path), "error": str(error)})
        return None


def _open_regular(path: Path, about: os.stat_result) -> int:
    if not stat.S_ISREG(about.st_mode):
        raise SourceError(f"{path} is not a regular file")
    return open_owned(path, path.parent.lstat().st_uid)
