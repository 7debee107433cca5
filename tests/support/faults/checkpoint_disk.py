"""A FUSE file system for checkpoints that can hang as a dead server does, or refuse hard links."""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support.eventually import fault_lasts
from tests.support.faults.fuse_mount import fuse_mount

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointDisk:
    """A mounted folder. A fault is told by an empty file in the folder of faults."""

    point: Path
    served: Path
    faults: Path

    def hang(self) -> None:
        """Let every call wait, but those that the kernel answers by itself."""
        (self.faults / "hang").touch()

    def hang_in(self, name: str) -> None:
        """Let every call wait whose path has this name in it."""
        (self.faults / f"hang-{name}").touch()

    @property
    def is_waiting(self) -> bool:
        """Return whether a call has hung since the disk was healed last."""
        return (self.faults / "waiting").exists()

    def refuse_links(self) -> None:
        (self.faults / "no-links").touch()

    def heal(self) -> None:
        for fault in self.faults.iterdir():
            fault.unlink()


@contextmanager
def checkpoint_disk(folder: Path) -> Iterator[CheckpointDisk]:
    """Mount an empty folder below ``folder``; skip the test where FUSE is not usable."""
    disk = CheckpointDisk(folder / "point", folder / "served", folder / "faults")
    module = "tests.support.faults.checkpoint_disk"
    with fuse_mount(module, disk.point, disk.served, disk.faults, disk.heal):
        yield disk


def _serve(mountpoint: str, served: Path, faults: Path) -> None:
    import mfusepy

    def at(path: str) -> Path:
        while (faults / "hang").exists() or any(
            (faults / f"hang-{name}").exists() for name in path.split("/")
        ):
            (faults / "waiting").touch()
            fault_lasts(0.02)
        return served / path.lstrip("/")

    def told(call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from error

    class Disk(mfusepy.Operations):
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            found = told(at(path).lstat)
            names = ("st_mode", "st_size", "st_uid", "st_gid", "st_nlink", "st_ino")
            status = {name: getattr(found, name) for name in names}
            return status | {
                "st_mtime": found.st_mtime_ns,
                "st_atime": found.st_atime_ns,
                "st_ctime": found.st_ctime_ns,
            }

        def readdir(self, path: str, fh: int) -> Sequence[str]:
            return [".", "..", *told(lambda: [one.name for one in at(path).iterdir()])]

        def create(self, path: str, mode: int, fi: object = None) -> int:
            return told(lambda: os.open(at(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode))

        def open(self, path: str, flags: int) -> int:
            return told(lambda: os.open(at(path), flags & ~os.O_CREAT))

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            at(path)
            return told(lambda: os.pread(fh, size, offset))

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            at(path)
            return told(lambda: os.pwrite(fh, data, offset))

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            told(lambda: os.truncate(at(path), length))
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            at(path)
            return 0

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def unlink(self, path: str) -> int:
            told(at(path).unlink)
            return 0

        def rename(self, old: str, new: str) -> int:
            told(lambda: at(old).rename(at(new)))
            return 0

        def mkdir(self, path: str, mode: int) -> int:
            told(lambda: at(path).mkdir(mode))
            return 0

        def rmdir(self, path: str) -> int:
            told(at(path).rmdir)
            return 0

        def link(self, target: str, source: str) -> int:
            if (faults / "no-links").exists():
                raise mfusepy.FuseOSError(errno.EPERM)
            told(lambda: os.link(at(source), at(target)))
            return 0

        def chmod(self, path: str, mode: int) -> int:
            told(lambda: at(path).chmod(mode))
            return 0

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
            told(lambda: os.utime(at(path), ns=times))
            return 0

    mfusepy.FUSE(Disk(), mountpoint, foreground=True, fsname="nas:/ckpt")


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
