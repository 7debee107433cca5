"""Faults of a processor: a core that others take. Needs root."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.eventually import DEADLINE_S

_NICE_MOST = -20


def prefer(pid: int) -> None:
    """Give a process and its session the largest weight, so that load of the machine hardly slows it."""
    os.setpriority(os.PRIO_PROCESS, pid, _NICE_MOST)
    group = Path(f"/proc/{pid}/autogroup")
    with contextlib.suppress(OSError):  # a kernel without groups by session
        group.write_text(str(_NICE_MOST))


@contextlib.contextmanager
def taken_core(core: int, *, share: float, limit_s: float) -> Iterator[None]:
    """Take a share of one core by a real-time task: no other load and no priority changes that.

    It ends with the block, and by itself after ``limit_s``.
    """
    hog = subprocess.Popen(
        [
            "stress-ng",
            "--quiet",
            *("--cpu", "1", "--cpu-load", str(round(100 * share))),
            *("--taskset", str(core), "--sched", "fifo", "--sched-prio", "1"),
            *("--timeout", str(round(limit_s))),
        ],
        start_new_session=True,
    )
    try:
        yield
    finally:
        hog.terminate()
        hog.wait(DEADLINE_S)
