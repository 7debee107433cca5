"""The claims beside the checkpoints, on storage that other nodes may share.

<checkpoint folder>/.rankmend/owner-<n>.json   the claim of the n-th owner; made once, by a link
<checkpoint folder>/.rankmend/owner-<n>.beat   a number that its owner counts up
<checkpoint folder>/.rankmend/<token>.lock      held by its owner's processes (`claim_lock`)

Only one of two launchers can make a name (link(2), atomic on NFS, too), and each reads back what is
there. The counter is written in place and opened anew for every look: that is what a network file
system answers from the server (close-to-open), and an owner on a full disk can still count.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import SourceError, StorageError
from rankmend.files import create_file, list_numbers, replace_file
from rankmend.own_folder import refuse_foreign_link
from recovery.launcher.ownership.claim import FolderClaim

BYTES_MAX: Final = 16 * 1024
KEPT: Final = 3  # claims; older ones are removed
_CLAIM: Final = re.compile(r"owner-(\d{1,9})\.json")
_NO_NAME: Final = re.compile(r"[^0-9A-Za-z-]")
_TOKEN_MAX: Final = 64
_BEAT_DIGITS: Final = 20
_RELEASED: Final = b"released".ljust(_BEAT_DIGITS) + b"\n"
_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class FoundClaim:
    """The newest claim of a folder."""

    generation: int
    claim: FolderClaim | None  # None: it can't be understood
    error: str = ""


class ClaimFolder:
    """Every call reaches the storage and may wait for it."""

    def __init__(self, beside: Path) -> None:
        self.beside = beside

    def path(self, generation: int) -> Path:
        return self.beside / f"owner-{generation}.json"

    def lock_path(self, token: str) -> Path:
        """Return the file that the owner of a claim locks; a claim's text names none elsewhere."""
        return self.beside / f"{_NO_NAME.sub('_', token[:_TOKEN_MAX])}.lock"

    def newest(self) -> FoundClaim | None:
        """Return the newest claim, or None where there is none."""
        for _again in range(KEPT):  # removed between the two looks: there is a newer one
            generation = max(self._generations(), default=0)
            if not generation:
                return None
            found = self._read(generation)
            if found is not None:
                return found
        return None

    def make(self, claim: FolderClaim) -> bool:
        """Make the claim of a generation, and return whether nobody else had it before.

        True also where it is the newest by then: else another owner went beyond it.
        """
        target = self.path(claim.generation)
        try:
            self.beside.mkdir(exist_ok=True)
            refuse_foreign_link(self.beside, StorageError)
        except OSError as error:
            raise StorageError(f"cannot write {target}: {error.strerror or error}") from error
        with contextlib.suppress(FileExistsError):
            create_file(target, msgspec.json.encode(claim), StorageError, mode=_MODE)
        # A server may have made the link although its answer was lost: what is there counts.
        found = self.newest()
        if found is None or found.generation != claim.generation or found.claim is None:
            return False
        if found.claim.token != claim.token:
            return False
        self._prune(claim.generation)
        return True

    def replace(self, claim: FolderClaim) -> None:
        """Replace one's own claim; return when it is on stable storage."""
        body = msgspec.json.encode(claim)
        replace_file(self.path(claim.generation), body, StorageError, mode=_MODE)

    def release(self, claim: FolderClaim) -> None:
        """Give the folder back; return when that is on stable storage.

        On a full disk no file can be made. Then the counter, which has its place, says it.
        """
        try:
            self.replace(msgspec.structs.replace(claim, is_released=True))
        except StorageError:
            self._write_beat(claim.generation, _RELEASED)

    def beat(self, generation: int, count: int) -> None:
        """Show that the owner lives."""
        self._write_beat(generation, b"%0*d\n" % (_BEAT_DIGITS, count))

    def _write_beat(self, generation: int, text: bytes) -> None:
        path = self._beat_path(generation)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags, _MODE)
            try:
                written = os.pwrite(descriptor, text, 0)
                if text == _RELEASED:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)  # a network file system reports a full disk here
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        if written != len(text):
            raise StorageError(f"cannot write {path}: {written} of {len(text)} bytes written")

    def read_beat(self, generation: int) -> int | None:
        """Return the owner's counter, or None before its first beat."""
        body = _read(self._beat_path(generation), _BEAT_DIGITS + 1)
        text = b"" if body is None else body.strip()
        return int(text) if text.isdigit() else None

    def _beat_path(self, generation: int) -> Path:
        return self.beside / f"owner-{generation}.beat"

    def _read(self, generation: int) -> FoundClaim | None:
        body = _read(self.path(generation), BYTES_MAX)
        if body is None:
            return None
        try:
            claim = msgspec.json.decode(body, type=FolderClaim)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return FoundClaim(generation, None, str(error))
        if claim.generation != generation:
            return FoundClaim(generation, None, f"it says generation {claim.generation}")
        if _read(self._beat_path(generation), len(_RELEASED)) == _RELEASED:
            claim = msgspec.structs.replace(claim, is_released=True)
        return FoundClaim(generation, claim)

    def _generations(self) -> list[int]:
        return list_numbers(self.beside, _CLAIM, SourceError)

    def _prune(self, newest: int) -> None:
        for generation in self._generations():
            if generation <= newest - KEPT:
                paths = [self.path(generation), self._beat_path(generation)]
                with contextlib.suppress(SourceError):
                    found = self._read(generation)
                    if found is not None and found.claim is not None:
                        paths.append(self.lock_path(found.claim.token))
                for path in paths:
                    with contextlib.suppress(OSError):
                        path.unlink()


def _read(path: Path, bytes_max: int) -> bytes | None:
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags), "rb") as file:
            return file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
