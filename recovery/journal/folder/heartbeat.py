"""When the launcher of a job on one node was last alive: `alive` in the job's state folder.

Its ranks end with it, and a launcher that is killed writes no record. The next one journals how long ago
that was, so that the time in between is not taken for training. Written in place about once a second and
never synced: kill -9 loses none of it, a power cut what the kernel had not written yet.

Its second line says why the launcher can't decide now, for `rankmend status`: its journal can't be written. The file has its
full size from the first beat on, so a full disk takes the line.
"""

import contextlib
import logging
import math
import os
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from recovery.journal.ledger import Moment

log = logging.getLogger(__name__)

FILE: Final = "alive"
BEAT_S: Final = 1.0
_BYTES: Final = 1024


class Heartbeat:
    """The file of one job; a folder that takes no file goes without."""

    def __init__(self, folder: Path, clock: Clock, boot_id: str) -> None:
        self._folder = folder
        self._is_removed = False
        self._clock = clock
        self._boot_id = boot_id
        self._beat_at_s = -math.inf
        self._trouble = ""
        self._descriptor: int | None = None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):
            self._descriptor = os.open(folder / FILE, flags, 0o600)

    def age_s(self) -> float | None:
        """Return how long ago the launcher before was alive; None: not known."""
        if self._descriptor is None:
            return None
        with contextlib.suppress(OSError):
            last = _parse(os.pread(self._descriptor, _BYTES, 0))
            return None if last is None else last.until_s(self._now())
        return None

    def beat(self, trouble: str = "") -> None:
        """Note that this process lives, at most once in `BEAT_S`, and at once what keeps it from deciding."""
        now = self._now()
        if self._descriptor is None:
            return
        if trouble == self._trouble and now.monotonic_s - self._beat_at_s < BEAT_S:
            return
        self._beat_at_s, self._trouble = now.monotonic_s, trouble
        line = f"{now.monotonic_s:.3f} {now.unix_s:.3f} {now.boot_id}\n"
        body = line.encode("ascii", "replace") + " ".join(trouble.split()).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, body[: _BYTES - 1].ljust(_BYTES, b"\n"), 0)
            if not self._is_removed and os.fstat(self._descriptor).st_nlink == 0:
                self._is_removed = True
                log.warning(
                    "this job's state folder was removed: the job goes on, no other command sees it any more, "
                    "and its journal is lost when this launcher ends",
                    extra={"folder": str(self._folder)},
                )

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _now(self) -> Moment:
        return Moment(self._clock.unix_s(), self._clock.now_s(), self._boot_id)


def read_heartbeat(folder: Path) -> Moment | None:
    """Return when a job's launcher was last alive; None: not known."""
    return _parse(_read(folder))


def read_trouble(folder: Path) -> str | None:
    """Return what kept a job's launcher from deciding when it was last alive; None: nothing, or not known."""
    body = _read(folder)
    lines = body.decode("utf-8", "replace").split("\n")
    return lines[1] or None if len(lines) > 1 and _parse(body) is not None else None


def _read(folder: Path) -> bytes:
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, _BYTES, 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _parse(body: bytes) -> Moment | None:
    words = body.decode("ascii", "replace").split("\n")[0].split(" ")
    if len(words) != 3:
        return None
    try:
        monotonic_s, unix_s = float(words[0]), float(words[1])
    except ValueError:
        return None
    if not (math.isfinite(monotonic_s) and math.isfinite(unix_s)):
        return None
    return Moment(unix_s, monotonic_s, words[2])
