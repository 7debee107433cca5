"""Asks file systems how full they are, in a process that can be left behind.

A program of its own, run as ``python -I -S mount_probe_child.py MOUNT...`` (10 ms to start, standard
library only): statvfs(2) on a dead NFS or FUSE mount waits in state D, where no signal reaches it.

Writes a line ``B <i>`` before mount i is asked, then ``R <i> <fragment size> <blocks> <available
blocks> <inodes> <available inodes> <microseconds>`` or ``E <i> <errno>``.
"""

import os
import sys
import time


def main() -> None:
    for index, mount in enumerate(sys.argv[1:]):
        _write_line(f"B {index}")
        began_s = time.monotonic()
        try:
            fs = os.statvfs(mount)
        except OSError as error:
            _write_line(f"E {index} {error.errno or 0}")
            continue
        took_us = int((time.monotonic() - began_s) * 1e6)
        figures = (fs.f_frsize, fs.f_blocks, fs.f_bavail, fs.f_files, fs.f_favail, took_us)
        _write_line(" ".join(["R", str(index), *map(str, figures)]))


def _write_line(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
