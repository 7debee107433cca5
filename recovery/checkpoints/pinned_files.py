"""Hard links to the files of one checkpoint, and putting back what was deleted from it.

    <checkpoint folder>/.rankmend/pinned/<attempt>/<name of the file or folder>

Links lie on the checkpoint's own file system, so they cost no space. Of several launchers that share
the folder, the one that makes `<attempt>` has the pin; where each node has a disk of its own, each
launcher has one. Every call may wait for the storage.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankmend.errors import RankmendError
from rankmend.own_folder import refuse_foreign_link
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.marks import BESIDE
from recovery.checkpoints.names import has_checkpoint_suffix, is_ignored, step_of
from recovery.checkpoints.saves import gather
from recovery.checkpoints.series import name_pattern
from recovery.messages.candidates import Candidate, CheckpointFormat

PINNED: Final = "pinned"  # folder in `.rankmend`
_AGAIN: Final = ".again"  # what is being put back, beside the links
# The second one for what is deleted in the same tick of the file system's clock (4 ms): the time of its
# folder is then the same as at the first.
_LOOKS_AFTER_A_CHANGE: Final = 2
_ATTEMPT: Final = re.compile(r"[0-9]{1,18}")
_NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)


class PinError(RankmendError):
    """The checkpoint can't be pinned; the message says why."""


class Pin:
    """One attempt's hold on the checkpoint that it restores."""

    def __init__(
        self, folder: Path, attempt: int, path: str, entries_max: int, depth_max: int
    ) -> None:
        self.attempt = attempt
        self.path = path  # the checkpoint's
        self._folder = folder
        self._entries_max = entries_max
        self._depth_max = depth_max
        self._entries = 0
        self._roots: dict[str, str] = {}  # files or folders of the checkpoint, with their links
        self._folders: dict[str, os.stat_result] = {}  # of the checkpoint, as they were
        self._times: dict[str, int | None] = {}  # of these folders and of single files
        self._missing: frozenset[str] = frozenset()
        self._looks_due = _LOOKS_AFTER_A_CHANGE
        self._made_ns = 0  # by the clock of the storage

    @property
    def place(self) -> Path:
        return self._folder / BESIDE / PINNED / str(self.attempt)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def make(self, deadline: Deadline) -> bool:
        """Link every file; return whether this launcher has the pin, and False where another one has.

        Raise `PinError`, `UnfinishedError` or OSError; nothing is left then.
        """
        is_below = Path(self.path) == self._folder or self._folder in Path(self.path).parents
        if not is_below or not os.path.lexists(self.path):
            return False  # it lies on another node
        beside = self._folder / BESIDE
        refuse_foreign_link(beside, PinError)
        beside.mkdir(exist_ok=True)
        refuse_foreign_link(beside / PINNED, PinError)
        (beside / PINNED).mkdir(mode=0o700, exist_ok=True)
        try:
            self.place.mkdir()
        except FileExistsError:
            return False
        self._made_ns = self.place.lstat().st_mtime_ns
        try:
            for source in (self.path, *_parts_of(self.path, self._entries_max)):
                target = f"{self.place}/{source.rpartition('/')[2]}"
                self._link(source, target, deadline, 0)
                self._roots[source] = target
        except BaseException:
            self.remove()
            raise
        return True

    def beside_changed_ns(self) -> int | None:
        """Return when an entry was last made or removed beside the checkpoint."""
        return _changed_ns(_folder_of(self.path))

    def is_there(self) -> bool:
        """Return whether the links still are: without them, nothing is to be put back.

        A person may have removed the whole checkpoint folder, or a newer attempt this pin.
        """
        return self.place.is_dir()

    def missing(self) -> frozenset[str]:
        """Return what is gone from the checkpoint: of a folder that is gone, the folder alone."""
        times = {path: _changed_ns(path) for path in self._times}
        if times != self._times:
            self._times, self._looks_due = times, _LOOKS_AFTER_A_CHANGE
        if self._looks_due or self._missing:
            self._looks_due = max(0, self._looks_due - 1)
            gone = (item for root, link in self._roots.items() for item in _missing(root, link))
            self._missing = frozenset(gone)
        return self._missing

    @property
    def is_gone(self) -> bool:
        """Return whether nothing at all was left of the checkpoint at the last look."""
        return all(root in self._missing for root in self._roots)

    def put_back(self, deadline: Deadline) -> int:
        """Link again what is gone; return how many files or whole folders came back.

        A folder comes back by a rename: no loader sees a part of it.
        """
        put_back = 0
        for root, link in self._roots.items():
            for path in list(_missing(root, link)):
                deadline.check()
                with contextlib.suppress(FileNotFoundError, FileExistsError, NotADirectoryError):
                    put_back += self._put_back(link + path[len(root) :], path, deadline)
        # It may be deleted again by now: no time that is read here says that all of it is there.
        self._missing, self._looks_due = frozenset(), _LOOKS_AFTER_A_CHANGE
        return put_back

    def is_superseded(self) -> bool:
        """Return whether a later checkpoint was saved since: then the ranks have read this one.

        By names alone, for jobs that tell of no steps: one of the same pattern, a greater number.
        """
        step = step_of(self.name)
        if step is None:
            return False
        pattern = name_pattern(_named(self.path))
        with os.scandir(_folder_of(self.path)) as scan:
            for entry in scan:
                number = step_of(entry.name)
                if number is None or number <= step or is_ignored(entry.name):
                    continue
                if name_pattern(_named(entry.path)) != pattern:
                    continue
                with contextlib.suppress(*_NOT_THERE):
                    if entry.stat(follow_symlinks=False).st_mtime_ns > self._made_ns:
                        return True
        return False

    def remove(self) -> None:
        """Remove the links; what they hold alone is deleted with them."""
        shutil.rmtree(self.place, ignore_errors=True)

    def _link(self, source: str, target: str, deadline: Deadline, depth: int) -> None:
        self._entries += 1
        if self._entries > self._entries_max:
            raise PinError(f"it has more than {self._entries_max} entries")
        deadline.check()
        status = os.lstat(source)
        if stat.S_ISREG(status.st_mode):
            os.link(source, target, follow_symlinks=False)
            if not depth:
                self._times[source] = status.st_mtime_ns
        elif stat.S_ISDIR(status.st_mode):
            if depth > self._depth_max:
                raise PinError(f"it has more than {self._depth_max} levels of folders")
            self._folders[source], self._times[source] = status, status.st_mtime_ns
            Path(target).mkdir(0o700)
            for name in _names(source):
                self._link(f"{source}/{name}", f"{target}/{name}", deadline, depth + 1)
            _take_status(target, status)

    def _put_back(self, link: str, path: str, deadline: Deadline) -> bool:
        """Make ``path`` anew from ``link``; nothing is written over."""
        if stat.S_ISDIR(os.lstat(link).st_mode):
            again = f"{self.place}/{_AGAIN}"
            shutil.rmtree(again, ignore_errors=True)
            _link_again(link, again, deadline)
            try:
                Path(again).rename(path)
            except OSError as error:
                shutil.rmtree(again, ignore_errors=True)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    return False  # somebody has made it meanwhile
                raise
        else:
            os.link(link, path, follow_symlinks=False)
        parent = self._folders.get(_folder_of(path))
        if parent is not None:
            _take_status(_folder_of(path), parent)
        return True


def remove_before(folder: Path, attempt: int) -> None:
    """Remove the pins of older attempts, also those that a launcher has left that was killed."""
    pinned = folder / BESIDE / PINNED
    if pinned.is_symlink():
        return
    with contextlib.suppress(*_NOT_THERE), os.scandir(pinned) as scan:
        for entry in list(scan):
            if _ATTEMPT.fullmatch(entry.name) and int(entry.name) < attempt:
                shutil.rmtree(entry.path, ignore_errors=True)


def _names(folder: str) -> list[str]:
    with os.scandir(folder) as scan:
        return [entry.name for entry in scan if entry.name != BESIDE]


def _changed_ns(path: str) -> int | None:
    try:
        return os.lstat(path).st_mtime_ns
    except _NOT_THERE:
        return None


def _missing(path: str, link: str) -> Iterator[str]:
    """Yield what the link has and the checkpoint has not."""
    try:
        status = os.lstat(path)
    except _NOT_THERE:
        yield path
        return
    if not (stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(os.lstat(link).st_mode)):
        return
    try:
        left = set(_names(path))
    except _NOT_THERE:
        yield path
        return
    with os.scandir(link) as scan:
        for entry in scan:
            if entry.name not in left:
                yield f"{path}/{entry.name}"
            elif entry.is_dir(follow_symlinks=False):
                yield from _missing(f"{path}/{entry.name}", entry.path)


def _link_again(source: str, target: str, deadline: Deadline) -> None:
    status = os.lstat(source)
    Path(target).mkdir(0o700)
    with os.scandir(source) as scan:
        for entry in scan:
            deadline.check()
            if entry.is_dir(follow_symlinks=False):
                _link_again(entry.path, f"{target}/{entry.name}", deadline)
            else:
                os.link(entry.path, f"{target}/{entry.name}", follow_symlinks=False)
    _take_status(target, status)


def _take_status(folder: str, status: os.stat_result) -> None:
    """Give a folder the mode and the times that it had: its time may date a checkpoint.

    Its owner may write in any case: it has to be renamed, or removed.
    """
    Path(folder).chmod(stat.S_IMODE(status.st_mode) | 0o700)
    with contextlib.suppress(PermissionError):  # another user's
        os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def _parts_of(path: str, entries_max: int) -> tuple[str, ...]:
    """Return the other files of a save whose files lie side by side, by their names."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return ()
    folder = _folder_of(path)
    names = _names(folder)
    if len(names) > entries_max:
        return ()
    files = [
        _named(f"{folder}/{name}")
        for name in names
        if has_checkpoint_suffix(name) and not is_ignored(name)
    ]
    for save in gather(files):
        if save.main.path == path:
            return tuple(other.path for other in save.others)
    return ()


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _named(path: str) -> Candidate:
    return Candidate(path, None, CheckpointFormat.UNKNOWN, 0, 0.0)
