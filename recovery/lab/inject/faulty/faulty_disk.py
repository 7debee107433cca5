"""Covers a folder with a FUSE file system that serves what lies below it, and misbehaves: MODE FOLDER.

MODE: ``full`` (what would take room fails with ENOSPC), ``error`` (every call fails with EIO), ``hang`` (no call comes
back). Files that were open before go on as they were. Needs mfusepy, of the extra ``inject``.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from recovery.lab.inject.faulty.lifeline import end_with_pipe, say_ready, wait_for_go
from recovery.lab.inject.system_calls import count_mounts

_T = TypeVar("_T")
_READY_S_MAX: Final = 20.0
_POLL_S: Final = 0.02
_STATUS: Final = (
    *("st_mode", "st_size", "st_uid", "st_gid", "st_nlink", "st_ino", "st_blocks"),
    *("st_atime", "st_mtime", "st_ctime"),
)
FILE_SYSTEM: Final = "rankmend-inject"


def main(arguments: Sequence[str]) -> None:
    mode, folder = arguments
    wait_for_go()
    served = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # before it is covered
    before = count_mounts(folder)
    end_with_pipe()
    threading.Thread(target=_report_when_mounted, args=(folder, before), daemon=True).start()
    _serve(mode, folder, served)


def _report_when_mounted(folder: str, before: int) -> None:
    pause = threading.Event()
    for _ in range(round(_READY_S_MAX / _POLL_S)):
        if count_mounts(folder) > before:
            say_ready()
            return
        pause.wait(_POLL_S)


def _serve(mode: str, folder: str, served: int) -> None:
    import mfusepy  # noqa: PLC0415 - of an extra

    root = f"/proc/self/fd/{served}"

    def fail(number: int) -> NoReturn:
        raise mfusepy.FuseOSError(number)

    def at(path: str) -> str:
        if mode == "hang":
            threading.Event().wait()
        if mode == "error":
            fail(errno.EIO)
        return root if path == "/" else root + path

    def room(path: str) -> str:
        """Return the path for a call that takes room."""
        if mode == "full":
            fail(errno.ENOSPC)
        return at(path)

    def told(call: Callable[[], _T]) -> _T:
        try:
            return call()
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from error

    class FaultyDisk(mfusepy.Operations):  # type: ignore[misc]
        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            place = at(path)
            found = told(lambda: os.stat(place) if path == "/" else os.lstat(place))  # noqa: PTH116
            return {name: getattr(found, name) for name in _STATUS}

        def access(self, path: str, amode: int) -> int:
            if mode == "full" and amode & os.W_OK:
                return 0
            place = at(path)
            return 0 if os.access(place, amode) else fail(errno.EACCES)

        def statfs(self, path: str) -> dict[str, int]:
            place = at("/" if mode == "full" else path)
            found = told(lambda: os.statvfs(place))
            names = ("f_bsize", "f_frsize", "f_blocks", "f_files", "f_namemax")
            free = 0 if mode == "full" else found.f_bavail
            return {name: getattr(found, name) for name in names} | {
                "f_bfree": free, "f_bavail": free, "f_ffree": found.f_ffree, "f_favail": found.f_favail
            }  # fmt: skip

        def readdir(self, path: str, fh: int) -> Sequence[str]:
            place = at(path)
            return [".", "..", *told(lambda: os.listdir(place))]  # noqa: PTH208

        def readlink(self, path: str) -> str:
            place = at(path)
            return told(lambda: os.readlink(place))  # noqa: PTH115

        def open(self, path: str, flags: int) -> int:
            place = at(path)
            return told(lambda: os.open(place, flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)))

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            at(path)
            return told(lambda: os.pread(fh, size, offset))

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def unlink(self, path: str) -> int:
            place = at(path)
            told(lambda: os.unlink(place))  # noqa: PTH108
            return 0

        def rmdir(self, path: str) -> int:
            place = at(path)
            told(lambda: os.rmdir(place))  # noqa: PTH106
            return 0

        def rename(self, old: str, new: str) -> int:
            places = at(old), at(new)
            told(lambda: os.rename(*places))  # noqa: PTH104
            return 0

        def chmod(self, path: str, mode: int) -> int:
            place = at(path)
            told(lambda: os.chmod(place, stat.S_IMODE(mode)))  # noqa: PTH101
            return 0

        def create(self, path: str, mode: int, fi: object = None) -> int:
            place = room(path)
            return told(lambda: os.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode))

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            room(path)
            return told(lambda: os.pwrite(fh, data, offset))

        def mkdir(self, path: str, mode: int) -> int:
            place = room(path)
            told(lambda: os.mkdir(place, mode))  # noqa: PTH102
            return 0

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            place = at(path)
            told(lambda: os.truncate(place, length))
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            at(path)
            told(lambda: os.fsync(fh))
            return 0

        def utimens(self, path: str, times: tuple[float, float] | None = None) -> int:
            place = at(path)
            told(lambda: os.utime(place, times))
            return 0

        def flush(self, path: str, fh: int) -> int:
            return 0

    mfusepy.FUSE(
        FaultyDisk(), folder, foreground=True, fsname=FILE_SYSTEM,
        allow_other=os.geteuid() == 0,
    )  # fmt: skip
