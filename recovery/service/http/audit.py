"""One line of JSON for each request that acts: who, what, and with which result.

In a file of its own, bounded (`AUDIT_BYTES_MAX` in `AUDIT_FILES` pieces), and in the log. Secrets have no way in:
a line holds the subject's name, the method, the path and a sentence.
"""

import json
import logging
from datetime import datetime, timezone
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import ConfigError

log = logging.getLogger(__name__)

AUDIT_BYTES_MAX: Final = 16 * 1024 * 1024  # a piece: 60,000 lines, years of a person's commands
AUDIT_FILES: Final = 5


class Audit:
    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        try:
            path.touch(mode=0o600)
            self._handler = RotatingFileHandler(
                path, maxBytes=AUDIT_BYTES_MAX, backupCount=AUDIT_FILES - 1, encoding="utf-8"
            )
        except OSError as error:
            raise ConfigError(f"cannot write the audit file {path}: {error.strerror}") from error
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(
        self, who: str, how: str, what: str, result: str, peer: str, detail: str = ""
    ) -> None:
        """Add a line; a disk that is full costs the line, which then is in the log alone."""
        at = datetime.fromtimestamp(self._clock.unix_s(), timezone.utc)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "who": who,
            "how": how,
            "what": what,
            "result": result,
            "peer": peer,
        }
        if detail:
            line["detail"] = detail[:2000]
        fields = {name: value for name, value in line.items() if name != "time"}
        log.info("audit", extra=fields)
        record = logging.makeLogRecord({"msg": json.dumps(line), "args": ()})
        self._handler.handle(record)

    def close(self) -> None:
        self._handler.close()
