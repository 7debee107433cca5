"""A FUSE file system that takes every write and fails in close(), as a network file system over quota does."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import mfusepy


class LateFailing(mfusepy.Operations):
    """Serves a folder; `flush`, which close(2) waits for, fails while the file ``fails`` exists."""

    def __init__(self, served: Path, fails: Path) -> None:
        self._served = served
        self._fails = fails

    def _at(self, path: str) -> Path:
        return self._served / path.lstrip("/")

    def getattr(self, path: str, fh: int | None = None) -> dict[str, float]:
        try:
            found = self._at(path).lstat()
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
        names = ("st_mode", "st_size", "st_uid", "st_gid", "st_mtime", "st_nlink")
        return {name: getattr(found, name) for name in names}

    def readdir(self, path: str, fh: int) -> Sequence[str]:
        return [".", "..", *(one.name for one in self._at(path).iterdir())]

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def flush(self, path: str, fh: int) -> int:
        if self._fails.exists():
            raise mfusepy.FuseOSError(errno.EDQUOT)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def unlink(self, path: str) -> int:
        self._at(path).unlink()
        return 0

    def rename(self, old: str, new: str) -> int:
        self._at(old).replace(self._at(new))
        return 0


if __name__ == "__main__":
    mountpoint, served, fails = sys.argv[1:]
    mfusepy.FUSE(LateFailing(Path(served), Path(fails)), mountpoint, foreground=True)
