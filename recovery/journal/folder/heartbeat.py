"""When the launcher of a job on one node was last alive: `alive` in the job's state folder.

Its ranks end with it, and a launcher that is killed writes no record. The next one journals how long ago
that was, so that the time in between is not taken for training. Written in place about once a second and
never synced: kill -9 loses none of it, a power cut what the kernel had not written yet.
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
_BYTES_MAX: Final = 256


class Heartbeat:
    """The file of one job; a folder that takes no file goes without."""

    def __init__(self, folder: Path, clock: Clock, boot_id: str) -> None:
        self._folder = folder
        self._is_removed = False
        self._clock = clock
        self._boot_id = boot_id
        self._beat_at_s = -math.inf
        self._descriptor: int | None = None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):
            self._descriptor = os.open(folder / FILE, flags, 0o600)

    def age_s(self) -> float | None:
        """Return how long ago the launcher before was alive; None: not known."""
        if self._descriptor is None:
            return None
        with contextlib.suppress(OSError):
            last = _parse(os.pread(self._descriptor, _BYTES_MAX, 0))
            return None if last is None else last.until_s(self._now())
        return None

    def beat(self) -> None:
        """Note that this process lives, at most once in `BEAT_S`."""
        now = self._now()
        if self._descriptor is None or now.monotonic_s - self._beat_at_s < BEAT_S:
            return
        self._beat_at_s = now.monotonic_s
        line = f"{now.monotonic_s:.3f} {now.unix_s:.3f} {now.boot_id}\n"
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, line.encode("ascii", "replace")[:_BYTES_MAX], 0)
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
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _parse(os.pread(descriptor, _BYTES_MAX, 0))
    except OSError:
        return None
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
