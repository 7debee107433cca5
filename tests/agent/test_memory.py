"""The agent's memory: one arena for all threads, whatever the environment says."""

import os
import subprocess
import sys

import pytest

from tests.support.agent import ROOT
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

THREADS = """
import ctypes, sys, threading
from agent.daemon import memory
if sys.argv[1] == "one":
    assert memory.use_one_arena()
allocate = ctypes.CDLL(None).malloc
together = threading.Barrier(8)
def work():
    together.wait()
    for _ in range(1000):
        allocate(64)
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fdopen.restype = ctypes.c_void_p
out = libc.fdopen(1, b"w")
libc.malloc_info(0, out)
libc.fflush(ctypes.c_void_p(out))
"""


def arenas_of(mode: str) -> int:
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, mode],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_threads_share_one_arena_without_an_environment_variable() -> None:
    assert arenas_of("one") == 1
    assert arenas_of("as glibc does") > 1  # the test sees what it claims
