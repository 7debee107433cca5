"""A FUSE file system over a folder whose writes and syncs are slow, or wait for ever: a worn disk, a dead server.

The folder of faults holds what goes wrong now: ``slow`` (seconds a write or sync takes, as text), ``hang`` (any file:
statfs, writes and syncs wait for as long as it exists), ``flip`` (any file: what is read has one bit changed).
"""

import os
import sys
import time
from pathlib import Path

import mfusepy


class SlowDisk(mfusepy.Operations):
    use_ns = True

    def __init__(self, served: str, faults: str) -> None:
        self._served = served
        self._faults = Path(faults)

    def _suffer(self) -> None:
        while (self._faults / "hang").exists():
            time.sleep(0.02)
        try:
            time.sleep(float((self._faults / "slow").read_text()))
        except (OSError, ValueError):
            return

    def _path(self, path: str) -> str:
        return self._served + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, object]:
        try:
            found = Path(self._path(path)).lstat()
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from error
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_atime", "st_mtime")
        return {name: getattr(found, name) for name in names}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(one.name for one in Path(self._path(path)).iterdir())]

    def statfs(self, path: str) -> dict[str, int]:
        self._suffer()
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 10**7, "f_bavail": 10**7}

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return os.open(self._path(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._path(path), flags)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._suffer()
        return os.pwrite(fh, data, offset)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        data = os.pread(fh, size, offset)
        if data and (self._faults / "flip").exists():
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._suffer()
        os.fsync(fh)
        return 0

    def unlink(self, path: str) -> None:
        Path(self._path(path)).unlink()

    def rename(self, old: str, new: str) -> None:
        Path(self._path(old)).rename(self._path(new))

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


if __name__ == "__main__":
    mountpoint, served, faults = sys.argv[1:]
    mfusepy.FUSE(SlowDisk(served, faults), mountpoint, foreground=True, fsname="slow:/disk")
