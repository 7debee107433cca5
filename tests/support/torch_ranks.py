"""Ranks of real PyTorch that share one import of it.

An import of torch takes two seconds of CPU, most of the time of a short test with four ranks. Here
one process imports it, and each rank is a fork of that process with its own pipes, arguments and
environment. Start a rank as a program of its own if the test is about the import of torch, or about
a variable that torch reads then.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

_MODULES = ["torch", "torch.distributed", __name__]
_CONTEXT = multiprocessing.get_context("forkserver")


class TorchRank:
    """A process that runs Python source: what tests use of `subprocess.Popen`, as text."""

    def __init__(
        self, source: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        _CONTEXT.set_forkserver_preload(_MODULES)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `communicate`
        (stdin, write), (read, stdout) = os.pipe(), os.pipe()
        self.stdin = os.fdopen(write, "w")
        self.stdout = os.fdopen(read, "r")
        ends = [
            Connection(stdin, writable=False),
            Connection(stdout, readable=False),
            Connection(os.dup(self._errors.fileno())),
        ]
        self._process = _CONTEXT.Process(
            target=_run, args=(source, list(arguments), dict(environment), ends), daemon=True
        )
        self._process.start()
        for end in ends:
            end.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what the process has printed and not yet been read."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        self.stdin.close()
        with self.stdout, self._errors:
            self._errors.seek(0)
            return self.stdout.read(), self._errors.read().decode(errors="replace")

    def wait(self) -> None:
        self._process.join()


def _run(
    source: str, arguments: list[str], environment: dict[str, str], ends: list[Connection]
) -> None:
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    exec(compile(source, "<rank>", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
