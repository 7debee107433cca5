"""Finds and reads the log files of a job's ranks on this machine, for `rankmend logs`.

A launcher names the folder of its run's log files in `run.json`; without `--tee` or `--redirects` it keeps none. Below it lie
`attempt_N/LOCAL_RANK/stdout.log` and `stderr.log`, and a file `rank` where the rank is not the local rank.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.errors import RankmendError
from recovery.journal.folder.job_folder import is_held, read_json
from recovery.launcher.ranks.rank_output import RANK_FILE

_ATTEMPT: Final = re.compile(r"attempt_(\d{1,9})")
_STREAMS: Final = (("stdout.log", "stdout"), ("stderr.log", "stderr"))
# One read; a page of a terminal is 4 kB.
CHUNK_BYTES: Final = 256 * 1024
# The start of a line's end is looked for this far back, for the last lines of a file.
TAIL_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RankLog:
    """One file with what a rank of one attempt wrote."""

    path: Path
    attempt: int
    rank: int
    stream: str  # stdout or stderr


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """What a launcher on this machine keeps of its ranks' output."""

    job: str
    job_id: str
    node: str
    is_running: bool
    folder: Path | None  # None: it keeps none
    is_older: bool  # the launcher did not say: an older version started the job

    def files(self) -> list[RankLog]:
        """Return the files that are there now, by attempt and rank."""
        if self.folder is None:
            return []
        found = []
        for attempt_folder in _listed(self.folder):
            named = _ATTEMPT.fullmatch(attempt_folder.name)
            if named is None:
                continue
            for rank_folder in _listed(attempt_folder):
                if not rank_folder.name.isdecimal():
                    continue
                rank = _rank_in(rank_folder)
                found += [
                    RankLog(rank_folder / name, int(named[1]), rank, stream)
                    for name, stream in _STREAMS
                    if (rank_folder / name).is_file()
                ]
        return sorted(found, key=lambda log: (log.attempt, log.rank, log.stream == "stderr"))


def kept_by(folder: Path) -> KeptLogs:
    """Return what the launcher with this state folder of a job keeps of its ranks' output."""
    job, run = _quietly_read(folder / "job.json"), _quietly_read(folder / "run.json")
    logs = run.get("logs")
    return KeptLogs(
        job=str(job.get("name") or folder.name),
        job_id=str(job.get("job_id") or ""),
        node=str(run.get("node") or ""),
        is_running=is_held(folder),
        folder=Path(logs) if isinstance(logs, str) and logs else None,
        is_older="logs" not in run,
    )


def last_words(folder: Path) -> list[Path]:
    """Return the files with the last lines of the newest incident's failed ranks: they are kept in any case."""
    incidents = _listed(folder / "incidents")
    newest = max(incidents, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return []
    return sorted(path for path in newest.rglob("std*-rank-*.txt") if path.is_file())


class LogReader:
    """Reads one file from a place on, whole lines at a time; the rest of a line waits for its end.

    A file that logrotate has emptied (copytruncate), or put another one in the place of, is read from its beginning.
    """

    def __init__(self, log: RankLog, last_lines: int | None = None) -> None:
        """``last_lines``: begin at so many lines before the end; None: at the beginning."""
        self.log = log
        self._rest = b""
        self._at = 0 if last_lines is None else _begin_of_last(log.path, last_lines)
        self._inode = _inode_and_size(log.path)[0]

    def read(self, *, is_last: bool = False) -> list[str] | None:
        """Return the next lines; None: nothing more is there. ``is_last``: a line without an end counts, too."""
        inode, size_bytes = _inode_and_size(self.log.path)
        if size_bytes < self._at or inode != self._inode:
            self._at, self._rest, self._inode = 0, b"", inode
        body = _read_at(self.log.path, self._at)
        self._at += len(body)
        *whole, self._rest = (self._rest + body).split(b"\n")
        if not body and not (is_last and self._rest):
            return None
        if not body:
            whole, self._rest = [self._rest], b""
        return [_shown(line) for line in whole]


def _shown(line: bytes) -> str:
    """Return a line as a terminal would show it: of a progress bar's redraws, the last."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")


def _inode_and_size(path: Path) -> tuple[int, int]:
    """Return both of the file itself; zeros where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size


def read_tail(path: Path, size_bytes_max: int) -> bytes:
    """Return the end of a file, from the beginning of a line; nothing where there is none."""
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return b""
    begin = max(0, size_bytes - size_bytes_max)
    body = _read_at(path, begin, size_bytes_max)
    return body.partition(b"\n")[2] if begin else body


def _begin_of_last(path: Path, lines: int) -> int:
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return 0
    begin = max(0, size_bytes - TAIL_BYTES_MAX)
    at, ends = size_bytes, 0
    while at > begin:
        before = max(begin, at - CHUNK_BYTES)
        body = _read_at(path, before, at - before)
        if at == size_bytes and body.endswith(b"\n"):
            body = body[:-1]  # ends the last line, and begins none
        place = len(body)
        while (place := body.rfind(b"\n", 0, place)) >= 0:
            ends += 1
            if ends == lines:
                return before + place + 1
        at = before
    return begin


def _read_at(path: Path, at: int, size_bytes: int = CHUNK_BYTES) -> bytes:
    """Return what is there, at most so much; nothing of what is not a plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return os.pread(descriptor, size_bytes, at)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _rank_in(folder: Path) -> int:
    reported = _read_at(folder / RANK_FILE, 0, 16).strip()
    return int(reported) if reported.isdigit() else int(folder.name)


def _listed(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def _quietly_read(path: Path) -> dict[str, object]:
    try:
        return read_json(path) or {}
    except RankmendError:
        return {}


def select(logs: Iterable[RankLog], attempt: int | None, rank: int | None) -> list[RankLog]:
    """Return the files of an attempt (None: the newest one) and a rank (None: all)."""
    of_rank = [log for log in logs if rank in (None, log.rank)]
    newest = max((log.attempt for log in of_rank), default=0)
    return [log for log in of_rank if log.attempt == (newest if attempt is None else attempt)]
