"""The agent's handle of one collector child: its process, its end of the connection, its page."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from agent.nvml.child_protocol import make_page, read_call
from agent.nvml.driver_call import NvmlCall
from rankmend.parts_path import program

DEATH_S_MAX: Final = 0.2  # from the end of a connection to the end of the process


class ChildProcess:
    """One collector child with its end of the connection and its page."""

    def __init__(
        self,
        interval_s: float,
        skipped: Sequence[int],
        now_s: float,
        *,
        has_profiling: bool = True,
    ) -> None:
        self.started_at_s = self.heard_at_s = now_s
        self.page = make_page()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        command = [sys.executable, *program("agent.nvml.child")]
        command += [str(theirs.fileno()), str(self.page)]
        command += [str(interval_s), str(int(has_profiling)), *map(str, skipped)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a stuck child must not keep the agent's stderr open
                pass_fds=(theirs.fileno(), self.page),
                start_new_session=True,  # Ctrl-C ends the agent, and the agent ends the child
            )
        except OSError:
            self.disconnect()
            os.close(self.page)
            raise
        finally:
            theirs.close()
        self.is_connected = True
        self.stuck_call: NvmlCall | None = None
        self.killed_at_s: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self) -> NvmlCall | None:
        return read_call(self.page)

    def disconnect(self) -> None:
        """Close the connection: the child ends as soon as it is out of its call."""
        self.is_connected = False
        self.channel.close()

    def is_gone(self) -> bool:
        return self.process.poll() is not None

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait until the process has ended, at most this long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)

    def status_text(self) -> str:
        """Return how the process ended after it closed its connection; empty if unknown."""
        try:
            code = self.process.wait(DEATH_S_MAX)
        except subprocess.TimeoutExpired:
            return ""
        return f" of signal {-code}" if code < 0 else f" with status {code}"

    def close(self) -> None:
        if self.is_connected:
            self.disconnect()
        os.close(self.page)
