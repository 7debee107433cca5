"""Faults of a process: kill it, or stop or freeze it for a while. They work on any process, in a test host or not."""

import contextlib
import os
import select
import signal
import threading
from pathlib import Path
from typing import Protocol

from tests.support.eventually import eventually
from tests.support.faults.fault import Fault

_AGAIN_MS = 20


class Started(Protocol):
    """A process as `subprocess` or `tests.support.forked_cli` has started it."""

    @property
    def pid(self) -> int: ...


def kill(process: int | Started, number: int = signal.SIGKILL) -> None:
    """Send a signal that is never taken back to a process that is there."""
    os.kill(_pid(process), number)


def stop(process: int | Started) -> Fault:
    """Have a process stand still (state T) until the end."""
    pid = _pid(process)
    pidfd = os.pidfd_open(pid)  # the pid may be another process's by then
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    except BaseException:
        os.close(pidfd)
        raise

    def resume() -> None:
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)

    return Fault(f"process {pid} stopped", resume)


def make_wait(process: int | Started) -> Fault:
    """Have a process run only where nobody else wants a processor, until the end: as it dies, it frees its memory late."""
    pid = _pid(process)
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))

    def hurry() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: only root may
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))

    return Fault(f"process {pid} waits for all others", hurry)


def keep_stopped(pid: int) -> None:
    """Have a process stop again whenever it is told to go on, until it has gone: a stop that SIGCONT doesn't heal."""
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)

    def stop_again() -> None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(_AGAIN_MS):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        os.close(pidfd)

    threading.Thread(target=stop_again, daemon=True).start()


def freeze(process: int | Started) -> Fault:
    """Have a process stand still in a frozen cgroup, as `docker pause` does, until the end.

    Raises OSError where this user may not make a cgroup of version 2.
    """
    pid = _pid(process)
    home = _cgroup_of(pid)
    ice = home / f"frozen-by-a-test-{pid}"
    ice.mkdir()

    def thaw() -> None:
        (ice / "cgroup.freeze").write_text("0")
        for left in (ice / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (home / "cgroup.procs").write_text(left)

        def is_gone() -> bool:
            with contextlib.suppress(OSError):  # a dead process leaves its cgroup a little later
                ice.rmdir()
            return not ice.exists()

        eventually(is_gone, f"{ice} is empty")

    fault = Fault(f"process {pid} frozen", thaw)
    try:
        (ice / "cgroup.procs").write_text(str(pid))
        (ice / "cgroup.freeze").write_text("1")
    except BaseException:
        fault.end()
        raise
    return fault


def _cgroup_of(pid: int) -> Path:
    """Return the folder of a process's cgroup of version 2."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None:
        raise FileNotFoundError("no cgroup2 file system is mounted")
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    own = next(line for line in lines if line.startswith("0::"))
    return root / own.removeprefix("0::/")


def _pid(process: int | Started) -> int:
    return process if isinstance(process, int) else process.pid
