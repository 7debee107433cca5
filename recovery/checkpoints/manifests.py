"""Sidecar manifests: what a launcher has read to its end, kept beside the checkpoints.

`<folder>/.rankmend/manifests/<checkpoint>/<number>-of-<count>.json` holds size, time and digests of each
file of one share. It saves reading, and it proves nothing more than that: names and structure are
always checked, a sample of the blocks is read again, and a manifest that is damaged, foreign or
out of date costs a read. Only launchers write one.
"""

import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import RankmendError, SourceError, StorageError
from rankmend.files import read_if_there, replace_file
from rankmend.own_folder import ROOT_UID, refuse_foreign_link
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import DIGEST_BYTES, blocks_of, digest_of_text
from recovery.checkpoints.marks import BESIDE
from recovery.messages.candidates import Share

log = logging.getLogger(__name__)

FOLDER: Final = "manifests"
BYTES_MAX: Final = 64 << 20  # one manifest: 100,000 files, or 16 TB in one share
_ALL_BYTES_MAX: Final = 256 << 20  # of one checkpoint
_SHARES_MAX: Final = 16_384  # launchers of one job
_GONE_MAX: Final = 1000  # folders of manifests looked at in one removal
_UNIX_S_END: Final = 2.0**36  # the year 4147: what can be shown as a date
_VERSION: Final = 1
_MODE: Final = 0o644
_NAME: Final = re.compile(r"([0-9]{1,5})-of-([0-9]{1,5})\.json")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,99}")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._=+-]")

Stamp = tuple[tuple[str, int, int, int], ...]  # name, inode, size and time of each manifest


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file as it was when it was read to its end."""

    size_bytes: int
    modified_ns: int
    checked_unix_s: float
    digests: bytes  # of its blocks (`digests.BLOCK_BYTES`)


class _File(msgspec.Struct, frozen=True):
    size_bytes: int
    modified_ns: int
    checked_unix_s: float
    digests: str  # in hexadecimal


class _Manifest(msgspec.Struct, frozen=True):
    version: int
    checkpoint: str  # relative to the folder
    files: dict[str, _File]  # by their names relative to the checkpoint


class Manifests:
    """The manifests of all checkpoints in one folder.

    ``is_writer``: keep some, too. ``trusts``: take what they say for read; else they only add a
    comparison to what is read anyway.
    """

    def __init__(self, folder: Path, *, is_writer: bool = False, trusts: bool = True) -> None:
        self.is_writer = is_writer
        self.trusts = trusts
        self._root = folder.absolute()
        self._folder = self._root / BESIDE / FOLDER
        self._loaded: dict[str, tuple[Stamp, Mapping[str, FileRecord]]] = {}
        self._has_warned = False

    def load(self, checkpoint: str, deadline: Deadline) -> tuple[Stamp, Mapping[str, FileRecord]]:
        """Return the records of one checkpoint by the names of its files, and what they were read from."""
        relative = self._relative(checkpoint)
        folder = self._folder / _folder_name(relative)
        try:
            for place in (self._folder.parent, self._folder, folder):
                refuse_foreign_link(place, SourceError)
            stamp = _stamp(folder, deadline)
        except (OSError, SourceError) as error:
            self._warn(f"manifests can't be read: {error}")
            return (), {}
        known = self._loaded.get(checkpoint)
        if known is None or known[0] != stamp:
            known = (stamp, self._read(folder, stamp, relative, deadline))
            self._loaded[checkpoint] = known
        return known

    def save(self, checkpoint: str, share: Share, records: Mapping[str, FileRecord]) -> None:
        """Keep the records of one share; where that can't be done, say so once and go on."""
        relative = self._relative(checkpoint)
        files = {
            name: _File(
                record.size_bytes, record.modified_ns, record.checked_unix_s, record.digests.hex()
            )
            for name, record in records.items()
            if name.isprintable()  # others are no valid UTF-8, or nobody's checkpoint
        }
        content = msgspec.json.encode(_Manifest(_VERSION, relative, files))
        folder = self._folder / _folder_name(relative)
        try:
            if len(content) > BYTES_MAX:
                raise StorageError(f"{len(content)} bytes, more than {BYTES_MAX}")
            for place in (self._folder.parent, self._folder, folder):
                place.mkdir(exist_ok=True)
                refuse_foreign_link(place, StorageError)
            path = folder / f"{share.number}-of-{share.count}.json"
            replace_file(path, content, StorageError, mode=_MODE)
        except (OSError, RankmendError) as error:
            self._warn(f"no manifest of {relative}: {error}")

    def forget_gone(self, checkpoints: Collection[str]) -> None:
        """Forget what was loaded of checkpoints that are not among these any more."""
        self._loaded = {path: it for path, it in list(self._loaded.items()) if path in checkpoints}

    def remove_gone(self, checkpoints: Collection[str], deadline: Deadline) -> None:
        """Remove the manifests of checkpoints that are not among these any more."""
        names = {_folder_name(self._relative(checkpoint)) for checkpoint in checkpoints}
        try:
            refuse_foreign_link(self._folder, StorageError)
            with os.scandir(self._folder) as scan:
                found = list(islice(scan, _GONE_MAX))
            for entry in found:
                deadline.check()
                if entry.name not in names and entry.is_dir(follow_symlinks=False):
                    _remove(Path(entry.path))
        except FileNotFoundError:  # none yet, or another launcher was quicker
            return
        except (OSError, RankmendError) as error:
            self._warn(f"old manifests can't be removed: {error}")

    def _relative(self, checkpoint: str) -> str:
        return os.path.relpath(checkpoint, self._root)

    def _read(
        self, folder: Path, stamp: Stamp, relative: str, deadline: Deadline
    ) -> dict[str, FileRecord]:
        records: dict[str, FileRecord] = {}
        left_bytes = _ALL_BYTES_MAX
        check = _owner_check(self._root)
        for name, _inode, size_bytes, _time in stamp:
            deadline.check()
            left_bytes -= size_bytes
            if left_bytes < 0:
                break
            path = folder / name
            try:
                content = read_if_there(
                    path, BYTES_MAX, SourceError, follow_link=False, check=check
                )
                found = _parse(content or b"", relative)
            except (OSError, RankmendError, msgspec.MsgspecError, ValueError) as error:
                _log_unusable(path, error)
                continue
            for file, record in found.items():
                other = records.get(file)
                if other is None or other.checked_unix_s < record.checked_unix_s:
                    records[file] = record
        return records

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            log.warning("%s; later starts read the checkpoints again", text)
        self._has_warned = True


def _folder_name(relative: str) -> str:
    """Return a file name for a checkpoint: its own where that is plain, else one with a digest."""
    if _PLAIN_NAME.fullmatch(relative):
        return relative
    return f"{_NO_NAME.sub('_', relative)[:80].lstrip('.')}~{digest_of_text(relative)}"


def _stamp(folder: Path, deadline: Deadline) -> Stamp:
    found: list[tuple[str, int, int, int]] = []
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                deadline.check()
                if len(found) == _SHARES_MAX:
                    break
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
    except FileNotFoundError:
        return ()
    return tuple(sorted(found))


def _owner_check(root: Path) -> Callable[[os.stat_result], None]:
    """Return a check that a manifest is from whom the checkpoints are from, too."""
    trusted = {os.geteuid(), ROOT_UID, root.stat().st_uid}

    def check(status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise SourceError("not a regular file")
        if status.st_uid not in trusted or status.st_mode & 0o022:
            raise SourceError(f"owned by uid {status.st_uid}, mode {status.st_mode & 0o7777:o}")

    return check


def _parse(content: bytes, relative: str) -> dict[str, FileRecord]:
    manifest = msgspec.json.decode(content, type=_Manifest)
    if manifest.version != _VERSION or manifest.checkpoint != relative:
        raise SourceError(f"of {manifest.checkpoint!r:.100}, version {manifest.version}")
    records = {}
    for name, file in manifest.files.items():
        digests = bytes.fromhex(file.digests)
        is_dated = 0 <= file.checked_unix_s < _UNIX_S_END
        if is_dated and len(digests) == blocks_of(file.size_bytes) * DIGEST_BYTES:
            records[name] = FileRecord(
                file.size_bytes, file.modified_ns, file.checked_unix_s, digests
            )
    return records


def _remove(folder: Path) -> None:
    with os.scandir(folder) as scan:
        names = [entry.name for entry in islice(scan, _SHARES_MAX)]
    for name in names:
        if _NAME.fullmatch(name) or name.endswith(".new"):
            (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _log_unusable(path: Path, error: Exception) -> None:
    log.info("a manifest can't be used", extra={"path": str(path), "error": str(error)})
