"""Saves the release of the GPUs, so that it survives a restart of the agent.

One small file, replaced atomically. It is valid for the boot in which it was written: after a reboot, a
reset or a change of the MIG mode is over. An invalid file means no release.
"""

import logging
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import read_boot_id
from rankmend.errors import StorageError
from rankmend.files import read_if_there, replace_file

_BYTES_MAX: Final = 1_000

log = logging.getLogger(__name__)


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boot_id: str
    since_s: float  # CLOCK_MONOTONIC of that boot
    until_s: float


class ReleaseFile:
    def __init__(self, path: Path, boot_id: str | None = None) -> None:
        self._path = path
        self._boot_id = read_boot_id() if boot_id is None else boot_id

    def load(self, now_s: float) -> Release | None:
        """Return the release that is still in force, if any."""
        try:
            body = read_if_there(self._path, _BYTES_MAX, StorageError)
            if body is None:
                return None
            release = msgspec.json.decode(body, type=Release)
        except (StorageError, msgspec.MsgspecError) as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("saved release of the GPUs ignored", extra=fields)
            return None
        holds = release.boot_id == self._boot_id and release.since_s <= now_s < release.until_s
        return release if holds else None

    def save(self, since_s: float, until_s: float) -> None:
        """Write the file, or raise StorageError."""
        body = msgspec.json.encode(Release(self._boot_id, since_s, until_s))
        replace_file(self._path, body, StorageError, mode=0o644, durable=False)

    def clear(self) -> None:
        """Remove the release: the agent reads the GPUs again."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("saved release of the GPUs not removed", extra=fields)
