"""What rankmend itself keeps beside the checkpoints, in `<folder>/.rankmend/`.

Small files, replaced as a whole: a reader sees the old content or the new one, also after a power cut. Only the launcher
that holds the job writes them; every launcher of the job writes the fence.
"""

import errno
import hashlib
import logging
import os
import re
import shlex
import time
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError, JobHeldError, RankmendError, SourceError, StorageError
from rankmend.files import create_file, read_if_there, replace_file
from rankmend.own_folder import open_new, refuse_foreign_link
from recovery.checkpoints.names import shown
from recovery.checkpoints.unwritable import explain_unwritable, free_bytes, short_of_room

log = logging.getLogger(__name__)

BESIDE: Final = ".rankmend"  # folder of ours in the checkpoint folder
_FENCE_BYTES_MAX: Final = 64  # what rankmend.may_publish reads
BUDGETS_BYTES_MAX: Final = 1 << 20
_MODE: Final = 0o644
_PATH_SHOWN_MAX: Final = 400
_FOLDER_ID: Final = re.compile(rb"[0-9a-f]{32}\n")
_ID_SEEN_S: Final = (
    5.0  # a network file system may hide for seconds what another node has just made
)
_ID_PAUSE_S: Final = 0.1


class FenceFile:
    """The attempt that may publish checkpoints. `rankmend.may_publish` compares it with its own."""

    def __init__(self, path: Path, *, is_beside: bool = True) -> None:
        """``is_beside``: it lies beside checkpoints, where a job may wait for room."""
        self.path = path
        self._is_beside = is_beside
        self._attempt: int | None = None  # the newest that was let publish from here

    def advance(self, attempt: int) -> None:
        """Let this attempt publish and no older one; return when that is on stable storage.

        A damaged fence is replaced: the attempt comes from the journal, which is the authority.
        """
        if attempt < 0:
            raise ValueError(f"an attempt is not negative: {attempt}")
        content = _read(self.path, _FENCE_BYTES_MAX)
        current = _parse_attempt(content) if content is not None else None
        if current is not None and current > attempt:
            raise JobHeldError(
                f"{self.path} is at attempt {current}: another launcher went beyond {attempt}"
            )
        if current != attempt:
            self._write(b"%d\n" % attempt)
        self._attempt = attempt

    def check_room(self) -> None:
        """Raise UnwritableError if the next attempt could not be let publish for lack of room; of other trouble `advance` tells."""
        probe = self.path.with_name(f"probe-{os.urandom(8).hex()}.tmp")
        try:
            _make_folder(probe)
            try:
                _write(probe, b"rankmend\n")
            finally:
                probe.unlink(missing_ok=True)
        except (OSError, StorageError) as error:
            self._refuse_unwritable(error)

    def refuse_short(self, wanted_bytes: int) -> None:
        """Raise UnwritableError if a save of this size does not fit beside the fence."""
        folder = self.path.parent.parent
        short = short_of_room(str(folder), self.free_bytes(), wanted_bytes)
        if short is not None:
            raise short

    def free_bytes(self) -> int | None:
        """Return what can be written beside the fence; None: not known, or no checkpoints lie there."""
        return free_bytes(self.path.parent) if self._is_beside else None

    def _write(self, content: bytes) -> None:
        try:
            _replace(self.path, content)
        except StorageError as error:
            self._refuse_unwritable(error)
            raise

    def _refuse_unwritable(self, error: Exception) -> None:
        """Raise UnwritableError if the error is one that room or a person mends."""
        if not self._is_beside:
            return
        known = explain_unwritable(self.path.parent, error.__cause__ or error)
        if known is not None:
            raise known from error

    def restore(self) -> bool:
        """Make the fence again where somebody has removed it; return whether it was gone.

        Without it no rank may publish, and after `rm -rf` of the folder a job would train on without
        a checkpoint. One that is there is never written: it may be another launcher's.
        """
        if self._attempt is None or _read(self.path, _FENCE_BYTES_MAX) is not None:
            return False
        _make_folder(self.path, parents=True)
        try:
            create_file(self.path, b"%d\n" % self._attempt, StorageError, mode=_MODE)
        except FileExistsError:
            return False
        return True

    def read(self) -> int | None:
        """Return the attempt that may publish, or None before the first."""
        content = _read(self.path, _FENCE_BYTES_MAX)
        if content is None:
            return None
        attempt = _parse_attempt(content)
        if attempt is None:
            raise SourceError(
                f"fence {self.path} does not hold an attempt number: {content[:32]!r}"
            )
        return attempt


class BudgetCopy:
    """A copy of the job's budgets, for a job whose state folder was lost."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, content: bytes) -> None:
        """Replace the copy; return when it is on stable storage."""
        if len(content) > BUDGETS_BYTES_MAX:
            raise StorageError(
                f"{self.path} would have {len(content)} bytes, more than {BUDGETS_BYTES_MAX}"
            )
        _replace(self.path, content)

    def load(self) -> bytes | None:
        """Return the copy, or None when there is none."""
        return _read(self.path, BUDGETS_BYTES_MAX)


def identify_folder(beside: Path) -> str:
    """Return an id that all nodes that see this checkpoint folder share; empty where it can't be told.

    ``beside``: its `.rankmend`. The first node makes the id. Its file is named after the folder's path, so that a copy of the folder in
    another place (shared storage to local disks) is another one.
    """
    place = hashlib.sha256(os.fsencode(beside)).hexdigest()[:8]
    path = beside / f"folder-id.{place}"
    made = os.urandom(16).hex()
    try:
        _make_folder(path)
        until_s = time.monotonic() + _ID_SEEN_S
        while (content := _read(path, _FENCE_BYTES_MAX)) is None:
            try:
                create_file(path, made.encode() + b"\n", StorageError, mode=_MODE)
                return made
            except FileExistsError:
                if time.monotonic() >= until_s:
                    raise SourceError(f"{path} exists, but can't be accessed") from None
                time.sleep(_ID_PAUSE_S)
    except (OSError, RankmendError) as error:
        log.warning("which checkpoint folder this is can't be told: %s", error)
        return ""
    if _FOLDER_ID.fullmatch(content) is None:
        log.warning("which checkpoint folder this is can't be told: %s holds no id", path)
        return ""
    return content.decode().strip()


def check_writable(named: Path) -> None:
    """Create the folder if it is missing, and prove that a file in it reaches the storage.

    The folders above it are made only below the working folder: above an absolute path, a missing one may be storage that is
    not mounted. The path must be UTF-8, since the journal, claims and messages hold it.
    """
    folder = named.absolute()
    try:
        path = str(folder.resolve())
        f"{folder}{path}".encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"checkpoint folder {shown(path, _PATH_SHOWN_MAX)} can't be used: its path is not UTF-8, and "
            "the journal could not hold it. Rename it"
        ) from error
    # No process id in it: launchers in containers have the same one on every node.
    probe = folder / f".rankmend-probe-{os.urandom(8).hex()}.tmp"
    try:
        folder.mkdir(parents=not named.is_absolute(), exist_ok=True)
        try:
            _write(probe, b"rankmend\n")
        finally:
            probe.unlink(missing_ok=True)
        refuse_foreign_link(folder / BESIDE, ConfigError)
    except OSError as error:
        missing = _first_missing(folder) if error.errno == errno.ENOENT else None
        if missing is not None:
            raise ConfigError(
                f"checkpoint folder {folder} can't be made: {missing} does not exist. If its storage is "
                f"mounted here, make it: mkdir -p {shlex.quote(str(folder))}"
            ) from error
        name = errno.errorcode.get(error.errno or 0, "unknown error")
        raise ConfigError(
            f"checkpoint folder {folder} can't be written: {name} ({error.strerror or error})"
        ) from error


def _first_missing(folder: Path) -> Path | None:
    """Return the highest folder above this one that is not there."""
    return next((parent for parent in reversed(folder.parents) if not parent.exists()), None)


def _parse_attempt(content: bytes) -> int | None:
    text = content.strip()
    return int(text) if text.isdigit() else None


def _read(path: Path, bytes_max: int) -> bytes | None:
    return read_if_there(path, bytes_max, SourceError, follow_link=False)


def _replace(path: Path, content: bytes) -> None:
    _make_folder(path)
    replace_file(path, content, StorageError, mode=_MODE)


def _make_folder(path: Path, *, parents: bool = False) -> None:
    try:
        path.parent.mkdir(parents=parents, exist_ok=True)
        refuse_foreign_link(path.parent, StorageError)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(open_new(path, _MODE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
