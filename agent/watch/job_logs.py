"""What the log files of a watched job say, where the site names them (`[watch] logs`).

Source: the ends of the files at the site's patterns, judged as `rankmend diagnose log` does.
Cost:   at most 1 MiB read a job and node, and 0.4 s of CPU, once a hang; no privilege beyond the agent's own.

Names come from the job's user, and so does what lies in its folders. A file counts only if it is a regular one, belongs to that
user, and lies below the folder that the pattern names before its first variable part, wherever symbolic links lead.
"""

import glob
import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from agent.ranks.watched import WatchedJob
from rankmend.errors import ConfigError

log = logging.getLogger(__name__)

TAIL_BYTES_MAX: Final = 65_536  # of a file: 600 lines, of which a traceback takes 60
TAIL_BYTES_MIN: Final = 8_192
LOG_BYTES_MAX: Final = 1 << 20  # of a job on this node
FILES_MAX: Final = LOG_BYTES_MAX // TAIL_BYTES_MIN
LISTED_MAX: Final = 4_096
PATTERNS_MAX: Final = 16
_FIELDS: Final = ("slurm_job", "job_id", "job", "user")
_OF_ONE_JOB: Final = ("{slurm_job}", "{job_id}", "{job}")
_VARIABLE: Final = re.compile(r"[*?\[{]")
# No separator, and no name of another folder such as "..".
_VALUE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")


@dataclass(frozen=True, slots=True)
class LogPattern:
    """Where the files of a job are, by a pattern of the site's."""

    text: str
    root: str  # the folder before the first variable part; no file outside counts


def parse_patterns(patterns: Sequence[str]) -> tuple[LogPattern, ...]:
    """Return the site's patterns, or raise `ConfigError`."""
    if len(patterns) > PATTERNS_MAX:
        raise ConfigError(f"watch.logs has {len(patterns)} patterns; at most {PATTERNS_MAX}")
    return tuple(map(_parse_pattern, patterns))


def _parse_pattern(text: str) -> LogPattern:
    unknown = set(re.findall(r"\{([^{}]*)\}", text)) - set(_FIELDS)
    if unknown or text.count("{") != text.count("}"):
        raise ConfigError(
            f"watch.logs: {text!r}: known fields are {', '.join(f'{{{each}}}' for each in _FIELDS)}"
        )
    if not any(field in text for field in _OF_ONE_JOB):
        raise ConfigError(
            f"watch.logs: {text!r} names the files of every job; add one of {', '.join(_OF_ONE_JOB)}"
        )
    variable = _VARIABLE.search(text)
    root = text[: variable.start()].rpartition("/")[0] if variable else ""
    if not root.startswith("/") or ".." in text.split("/"):
        raise ConfigError(
            f"watch.logs: {text!r} must be an absolute path without .., below a folder with a fixed name"
        )
    return LogPattern(text, root)


class JobLogs:
    """Judges the log files of one job on this node. Reads files: not for a thread that others wait for."""

    def __init__(self, patterns: Sequence[LogPattern]) -> None:
        self._patterns = tuple(patterns)

    def judge(self, job: WatchedJob, uid: int) -> tuple[str, ...]:
        """Return what the files of this user's job say; nothing where there are none, or no failure is in them."""
        tails = self.read(job, uid)
        if not tails:
            return ()
        from detectors.job_log.kinds import LogKind  # noqa: PLC0415 - memory, for a job that hangs
        from detectors.job_log.lines import LogSource  # noqa: PLC0415
        from detectors.job_log.verdict import diagnose_log, in_words  # noqa: PLC0415

        verdict = diagnose_log([LogSource(name, tail.split(b"\n")) for name, tail in tails.items()])
        if verdict.kind is LogKind.NO_FAILURE:
            return ()
        shown = (f"{Path(line.file).name}:{line.line}: {line.text}" for line in verdict.evidence)
        return in_words(verdict), *islice(shown, 2)

    def read(self, job: WatchedJob, uid: int) -> Mapping[str, bytes]:
        """Return the ends of the job's files by name: those that were written to last."""
        files: dict[str, tuple[float, int]] = {}  # when it was written to, and its descriptor
        try:
            for pattern in self._patterns:
                filled = _fill(pattern.text, job)
                found = () if filled is None else glob.iglob(filled)  # noqa: PTH207 - Path.glob takes no absolute pattern
                paths = islice(found, LISTED_MAX)
                for path in sorted(paths, key=_written_at_s)[-FILES_MAX:]:
                    if path not in files and len(files) < FILES_MAX:
                        descriptor = _open(path, pattern.root, uid)
                        if descriptor is not None:
                            files[path] = os.fstat(descriptor).st_mtime, descriptor
            share = min(TAIL_BYTES_MAX, LOG_BYTES_MAX // max(1, len(files)))
            tails = {name: _tail(descriptor, share) for name, (_at, descriptor) in files.items()}
        finally:
            for _at, descriptor in files.values():
                os.close(descriptor)
        return {name: tail for name, tail in tails.items() if tail}


def _fill(text: str, job: WatchedJob) -> str | None:
    """Return the pattern of one job; None where it has no such name, or one that leads elsewhere."""
    values = {
        "slurm_job": job.slurm_job,
        "job_id": str(job.job_id),
        "job": job.name,
        "user": job.user,
    }
    for field, value in values.items():
        if f"{{{field}}}" not in text:
            continue
        if not _VALUE.fullmatch(value):
            return None
        text = text.replace(f"{{{field}}}", value)
    return text


def _written_at_s(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _open(path: str, root: str, uid: int) -> int | None:
    """Open a regular file of this user that lies below the root; None for anything else.

    What the path leads to is looked at first: merely to open a device or a pipe can have effects.
    """
    try:
        seen = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(seen)
        place = Path(f"/proc/self/fd/{seen}").readlink()
        is_inside = place.is_relative_to(Path(root).resolve())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or not is_inside:
            return None
        return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(seen)


def _tail(descriptor: int, size_bytes_max: int) -> bytes:
    """Return the end of a file, from the beginning of a line."""
    try:
        begin = max(0, os.fstat(descriptor).st_size - size_bytes_max)
        body = os.pread(descriptor, size_bytes_max, begin)
    except OSError:
        return b""
    return body.partition(b"\n")[2] if begin else body
