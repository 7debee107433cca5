"""Faults of a process: kill it, or stop it for a while. They work on any process, in a test host or not."""

import contextlib
import os
import signal
import subprocess

from tests.support.faults.fault import Fault


def kill(process: int | subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal that is never taken back to a process that is there."""
    os.kill(_pid(process), number)


def stop(process: int | subprocess.Popen[bytes]) -> Fault:
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


def _pid(process: int | subprocess.Popen[bytes]) -> int:
    return process if isinstance(process, int) else process.pid
