"""File systems of a test's own: one on tmpfs, one that can be made to hang."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S, eventually


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "rankmend-test", str(folder)], check=False
    )
    if made.returncode != 0:
        pytest.skip("tmpfs can't be mounted here (needs root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass
class HangingMount:
    point: Path
    hang: Path

    def stop_answering(self) -> None:
        self.hang.touch()

    def is_waited_for(self) -> bool:
        """Return whether a process waits for an answer: from now on, no signal ends it."""
        return self.hang.read_text() != ""

    def answer_again(self) -> None:
        self.hang.unlink(missing_ok=True)


@contextmanager
def hanging_mount(folder: Path) -> Iterator[HangingMount]:
    """Mount a file system that can be made to hang."""
    if shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("FUSE is not usable here (fuse3, /dev/fuse)")
    pytest.importorskip("mfusepy", reason="mfusepy is not installed")
    from tests.support.faults import hanging_disk

    point, hang = folder / "point", folder / "hang"
    point.mkdir(parents=True)
    program = hanging_disk.__file__
    server = subprocess.Popen([sys.executable, program, str(point), str(hang)])
    try:
        eventually(lambda: os.path.ismount(point), "the FUSE mount")
        yield HangingMount(point, hang)
    finally:
        hang.unlink(missing_ok=True)  # before anything that may wait for it
        subprocess.run(["fusermount3", "-u", "-z", str(point)], timeout=DEADLINE_S, check=False)
        server.kill()  # SIGTERM doesn't end one that a process still has a file of
        server.wait(DEADLINE_S)
