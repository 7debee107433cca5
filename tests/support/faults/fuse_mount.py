"""Mounts a FUSE file system that a module of this folder serves in a process of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S, eventually


@contextmanager
def fuse_mount(
    module: str, point: Path, served: Path, faults: Path, heal: Callable[[], None]
) -> Iterator[None]:
    """Run ``python -m module point served faults``; skip the test where FUSE is not usable.

    ``heal`` ends every fault: it is called first at the end, so that nothing waits for one.
    """
    if shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("FUSE is not usable here (fuse3, /dev/fuse)")
    if find_spec("mfusepy") is None:
        pytest.skip("mfusepy is not installed")
    for path in (point, served, faults):
        path.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen([sys.executable, "-m", module, str(point), str(served), str(faults)])
    try:
        eventually(lambda: os.path.ismount(point), "the FUSE mount")
        yield
    finally:
        heal()
        subprocess.run(["fusermount3", "-u", "-z", str(point)], timeout=DEADLINE_S, check=False)
        server.terminate()
        try:
            server.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            server.kill()
