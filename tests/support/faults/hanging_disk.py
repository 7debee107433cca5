"""A FUSE file system whose statfs waits for as long as a file exists: a dead server, in small. It says in the file that it was asked."""

import contextlib
import select
import sys
from pathlib import Path

import mfusepy

ASKED = "asked"


class Hanging(mfusepy.Operations):
    def __init__(self, hang: Path) -> None:
        self._hang = hang

    def statfs(self, path: str) -> dict[str, int]:
        while self._hang.exists():
            with contextlib.suppress(FileNotFoundError), self._hang.open("r+") as hang:
                hang.write(ASKED)
            select.select([], [], [], 0.02)
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1000, "f_bavail": 250, "f_files": 0}


if __name__ == "__main__":
    mountpoint, hang = sys.argv[1:]
    mfusepy.FUSE(Hanging(Path(hang)), mountpoint, foreground=True, fsname="nas:/export")
