"""The folder of standing faults: one file each, written before the fault is made, removed once it is undone.

<folder>/lock            shared by whoever makes a fault, alone by whoever looks for those that nobody undoes
<folder>/<id>.json       an `Injection`; locked (flock) by its injector and its supervisor for as long as one lives
<folder>/<id>.copy       what will be put back; <id>.damaged: what will take its place
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import ConfigError, StorageError
from rankmend.files import create_file, read_capped, sync_folder
from rankmend.own_folder import make_private
from recovery.lab.inject.undo import FORMAT, Injection

ROOT_FOLDER: Final = Path("/var/lib/rankmend/inject")
BYTES_MAX: Final = 8 << 20  # the routes of an interface are in it
LOCK_S_MAX: Final = 30.0
_LISTED_MAX: Final = 1000
_POLL_S: Final = 0.05
_NAME: Final = re.compile(r"([0-9a-f]{16})\.(json|copy|damaged)")


class UndoFolder:
    """Where the faults of this user on this machine lie."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {self.path.parent}: {error.strerror}") from error
        make_private(self.path, StorageError, is_secret=True)

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Keep others from taking what is being prepared for what was left behind."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path / "lock", flags, 0o600)
        try:
            until_s = time.monotonic() + LOCK_S_MAX
            while not _lock(descriptor, kind):
                if time.monotonic() > until_s:
                    raise StorageError(f"{self.path} is in use by another rankmend inject")
                time.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)

    def write(self, injection: Injection) -> int:
        """Put an injection on disk, and return a descriptor that holds its lock, which a child may inherit."""
        path = self._path(injection.injection_id)
        create_file(path, msgspec.json.encode(injection), StorageError)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not _lock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            raise StorageError(f"{path} is held by another process")
        return descriptor

    def read(self, injection_id: str) -> Injection:
        path = self._path(injection_id)
        data = read_capped(path, BYTES_MAX, StorageError, follow_link=False, check=_check_owner)
        try:
            found = msgspec.json.decode(data, type=Injection)
        except msgspec.MsgspecError as error:
            raise StorageError(f"{path} is not a record of an injection: {error}") from error
        if found.format != FORMAT or found.injection_id != injection_id:
            raise StorageError(f"{path} is of format {found.format}, or of another injection")
        return found

    def remove(self, injection_id: str) -> None:
        """Forget an injection of which all is undone."""
        for kind in ("damaged", "copy", "json"):
            (self.path / f"{injection_id}.{kind}").unlink(missing_ok=True)
        sync_folder(self.path)

    def standing(self) -> list[str]:
        """Return the ids of all injections that are on disk."""
        return [name for name, kind in self._names() if kind == "json"]

    @contextlib.contextmanager
    def orphans(self) -> Iterator[list[str]]:
        """Give the injections whose injector and supervisor are both gone, held for the block."""
        if not self.path.is_dir():
            yield []
            return
        held: list[int] = []
        with self._locked(fcntl.LOCK_EX):
            self._remove_strays()
            found = []
            for injection_id in self.standing():
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(self._path(injection_id), flags)
                if _lock(descriptor, fcntl.LOCK_EX):
                    held.append(descriptor)
                    found.append(injection_id)
                else:
                    os.close(descriptor)
            try:
                yield found
            finally:
                for descriptor in held:
                    os.close(descriptor)

    def _remove_strays(self) -> None:
        """Remove copies of an injector that was killed before it wrote its injection: nothing was changed."""
        names = self._names()
        known = {name for name, kind in names if kind == "json"}
        for name, kind in names:
            if name not in known:
                (self.path / f"{name}.{kind}").unlink(missing_ok=True)

    def _names(self) -> list[tuple[str, str]]:
        try:
            matches = [_NAME.fullmatch(path.name) for path in self.path.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot list {self.path}: {error.strerror}") from error
        return sorted((item[1], item[2]) for item in matches if item is not None)[:_LISTED_MAX]

    def _path(self, injection_id: str) -> Path:
        if _NAME.fullmatch(f"{injection_id}.json") is None:
            raise ConfigError(f"{injection_id!r:.80} is not the id of an injection")
        return self.path / f"{injection_id}.json"


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StorageError(f"cannot lock: {error.strerror}") from error
    return True


def _check_owner(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StorageError(f"it belongs to uid {found.st_uid}, or others may write to it")
