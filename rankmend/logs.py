"""One formatter for the log lines of every process, in three shapes with the same fields.

- daemons: ``time=... level=info message="..." key=value``, or the same as an object of JSON
- `rankmend run`, whose lines stand between those of the ranks: ``rankmend: WARNING: ... key=value``

Where standard error is the journal, each line begins with its priority (``<4>``, sd-daemon(3)).
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Final

from rankmend import console
from rankmend.printable import printable, printable_lines

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# syslog(3), which `journalctl -p` knows
_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
_DEBUG_PRIORITY: Final = 7


class LogShape(Enum):
    """The format of a log line."""

    DAEMON = "daemon"
    LAUNCHER = "launcher"
    JSON = "json"  # one object a line, with the fields of DAEMON


class LineFormatter(logging.Formatter):
    """``has_priority``: for a reader that takes ``<4>`` at the beginning of a line as its level."""

    def __init__(self, shape: LogShape = LogShape.DAEMON, *, has_priority: bool = False) -> None:
        super().__init__()
        self._shape = shape
        self._has_priority = has_priority

    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record)
        if not self._has_priority:
            return line
        # A traceback has many lines, and each of them is a message of its own in the journal.
        prefix = f"<{_priority(record.levelno)}>"
        return "\n".join(prefix + part for part in line.split("\n"))

    def _line(self, record: logging.LogRecord) -> str:
        own = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        trace = None
        if record.exc_info and record.exc_info[0] is not None:
            trace = printable_lines(self.formatException(record.exc_info))
        if self._shape is LogShape.LAUNCHER:
            reported = f"rankmend: {record.levelname}: {printable(record.getMessage())}"
            line = f"{reported}: {_pairs(own)}" if own else reported
            return printable_lines(line if trace is None else f"{line}\n{trace}")
        at = datetime.fromtimestamp(record.created, timezone.utc)
        fields: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **own,
        }
        if trace is not None:
            fields["traceback"] = trace
        if self._shape is LogShape.JSON:
            return json.dumps(fields, default=str)
        return _pairs(fields)


def _priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG_PRIORITY)


def _pairs(fields: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if text and is_plain else json.dumps(text)


def configure(shape: LogShape = LogShape.DAEMON, *, is_daemon: bool = True) -> None:
    """Send the logs of this process to standard error; a daemon never waits for it."""
    if is_daemon:
        console.take_over()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(shape, has_priority=is_journal(2)))
    level = logging.WARNING if shape is LogShape.LAUNCHER else logging.INFO
    logging.basicConfig(level=level, handlers=[handler], force=True)


def use(shape: LogShape) -> None:
    """Write the logs of this process in another shape from now on, as its configuration asks."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LineFormatter(shape, has_priority=is_journal(2)))


def is_journal(descriptor: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a descriptor goes to the journal, by what systemd has set (systemd.exec(5))."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))
