"""A FUSE file system that serves a folder, in which reading a named file fails or does not end."""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.eventually import fault_lasts
from tests.support.faults.fuse_mount import fuse_mount


@dataclass(frozen=True)
class UnreadableFiles:
    """A mounted folder. A fault of a file is told by an empty file in the folder of faults."""

    point: Path
    faults: Path

    def fail_reading(self, name: str) -> None:
        (self.faults / f"fail-{name}").touch()

    def lose_once(self, name: str) -> None:
        """Have the next open fail as on NFS, where the server has put another file in its place.

        The kernel tries a second time by itself.
        """
        for number in range(2):
            (self.faults / f"lose-{number}-{name}").touch()

    def hang_reading(self, name: str) -> None:
        (self.faults / f"hang-{name}").touch()

    def heal(self) -> None:
        for fault in self.faults.iterdir():
            fault.unlink()


@contextmanager
def unreadable_files(served: Path, folder: Path) -> Iterator[UnreadableFiles]:
    """Mount ``served`` below ``folder``; skip the test where FUSE is not usable."""
    disk = UnreadableFiles(folder / "point", folder / "faults")
    module = "tests.support.faults.unreadable_files"
    with fuse_mount(module, disk.point, served, disk.faults, disk.heal):
        yield disk


def _serve(mountpoint: str, served: Path, faults: Path) -> None:
    import mfusepy

    class Serving(mfusepy.Operations):
        def getattr(self, path: str, fh: int | None = None) -> dict[str, float]:
            try:
                found = (served / path.lstrip("/")).lstat()
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
            names = ("st_mode", "st_size", "st_uid", "st_gid", "st_mtime", "st_nlink")
            return {name: getattr(found, name) for name in names}

        def readdir(self, path: str, fh: int) -> Sequence[str]:
            return [".", "..", *(one.name for one in (served / path.lstrip("/")).iterdir())]

        def open(self, path: str, flags: int) -> int:
            for lost in faults.glob(f"lose-*-{path.rpartition('/')[2]}"):
                lost.unlink()
                raise mfusepy.FuseOSError(errno.ESTALE)
            return os.open(served / path.lstrip("/"), flags)

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            name = path.rpartition("/")[2]
            if (faults / f"fail-{name}").exists():
                raise mfusepy.FuseOSError(errno.EIO)
            while (faults / f"hang-{name}").exists():
                fault_lasts(0.02)
            return os.pread(fh, size, offset)

    mfusepy.FUSE(Serving(), mountpoint, foreground=True, fsname="nas:/export")


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
