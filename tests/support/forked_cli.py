"""Starts `rankmend ...`, and scripts with PyTorch, in forks of a process that has imported what they do.

Most of the CPU time of such a start is imports. What a test starts so is a process of its own: with its arguments,
environment, folder, session and signals, and an end that `wait` returns. It is a grandchild of the tests.
`tests/test_start_cost.py` and the tests of `rankmend.cli` start it afresh.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from rankmend.hook import becoming
from tests.support.eventually import DEADLINE_S

ROOT: Final = Path(__file__).parents[2]
_REQUEST_BYTES_MAX: Final = 1 << 17
_MODULE: Final = "rankmend.cli"
_HOOK: Final = "rankmend"  # a script's own: it reads variables when it is imported


class Stock(Enum):
    """What a process that forks has imported: what its forks have imported once they work."""

    LAUNCHER = (
        _MODULE,
        "rankmend.cli.run",
        "rankmend.cli.screens.status",
        "recovery.launcher.run.assembly",
        "recovery.launcher.run.one_node",
        "recovery.launcher.run.many_nodes",
    )
    # A launcher that meets others may host the job's controller.
    CONTROLLER = (
        _MODULE,
        "rankmend.cli.controller",
        "recovery.service.daemon",
        "rankmend.cli.run",
        "rankmend.cli.screens.status",
        "recovery.launcher.run.many_nodes",
        "recovery.launcher.run.meeting",
        "recovery.launcher.run.meeting_host",
    )
    TORCH = ("numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo")


# PyTorch reads these when it is imported.
_VARIABLES: Final = {Stock.TORCH: {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}}
_HEEDED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


class ForkedProcess:
    """What `subprocess.Popen` is of a process that it has started."""

    def __init__(self, argv: Sequence[str], pid: int, ends: socket.socket) -> None:
        self.args = list(argv)
        self.pid = pid
        self.returncode: int | None = None
        self._ends = ends

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._ends], [], [], timeout_s)[0]:
            with self._ends:
                self.returncode = int(self._ends.recv(64))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a fork heeds these variables: those for the interpreter and its loader come too late."""
    return not any(name.startswith(("LD_", "PYTHON")) for name in environment)


def start(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int | None = None,
    stdin: int = subprocess.DEVNULL,
) -> ForkedProcess:
    """Start `rankmend` with these arguments in a session of its own. ``stderr``: where it isn't ``stdout``."""
    meets = any(word.startswith("--nnodes") for word in arguments)
    stock = Stock.CONTROLLER if arguments[0] == "controller" or meets else Stock.LAUNCHER
    body = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment)}
    argv = [sys.executable, "-m", _MODULE, *arguments]
    return ForkedProcess(argv, *_ask(stock, body, stdin, stdout, stderr))


def run(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    check: bool = False,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `rankmend` with these arguments to its end, as `subprocess.run` does that captures its output."""
    surroundings = os.environ if environment is None else environment
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        started = start(
            arguments, cwd=cwd or Path.cwd(), environment=surroundings, stdout=out, stderr=error
        )
        try:
            code = started.wait(DEADLINE_S)
        finally:
            started.kill()
        for file in (out, error):
            file.seek(0)
        told = [file.read().decode() for file in (out, error)]
    done = subprocess.CompletedProcess(started.args, code, *told)
    if check:
        done.check_returncode()
    return done


def start_script(
    script: Path,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int | None = None,
    cwd: Path | None = None,
) -> ForkedProcess:
    """Start a script that needs PyTorch, as `python SCRIPT` does in a folder: with one thread, in a session of its own."""
    body = {
        "script": str(script),
        "arguments": list(arguments),
        "cwd": str(cwd or Path.cwd()),
        "environment": dict(environment),
    }
    argv = [sys.executable, str(script), *arguments]
    return ForkedProcess(argv, *_ask(Stock.TORCH, body, subprocess.DEVNULL, stdout, stderr))


def _ask(
    stock: Stock,
    body: Mapping[str, Any],
    stdin: int,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int | None,
) -> tuple[int, socket.socket]:
    """Have a process forked; return its pid, and what gives its exit code."""
    with contextlib.ExitStack() as stack:
        if stdin == subprocess.DEVNULL:
            stdin = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, stdin)
        out = stdout if isinstance(stdout, int) else stdout.fileno()
        error = out if stderr is None else stderr if isinstance(stderr, int) else stderr.fileno()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(theirs)
        request = json.dumps(body).encode()
        socket.send_fds(_server(stock), [request], [theirs.fileno(), stdin, out, error])
    pid = int(ours.recv(64) or b"0")
    assert pid, "the process that forks has ended: its error is above"
    return pid, ours


@cache
def _server(stock: Stock) -> socket.socket:
    """Return the channel to the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        code = f"from tests.support.forked_cli import main; main({stock.name!r})"
        subprocess.Popen(
            [sys.executable, "-c", code, becoming.ROOM_FOR_TITLE],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **_VARIABLES.get(stock, {})},
        )
    return ours


class _Server:
    """The process that forks."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[
            int, tuple[int, socket.socket]
        ] = {}  # pidfd: pid, who waits for its end

    def serve(self) -> dict[str, Any]:
        """Fork a process for each request, and return the request there, and only there."""
        while True:
            ready = select.select([self._channel, *self._children], [], [])[0]
            for pidfd in self._children.keys() & set(ready):
                self._reap(pidfd)
            if self._channel in ready and (request := self._take()) is not None:
                return request

    def _take(self) -> dict[str, Any] | None:
        packet, descriptors, _flags, _address = socket.recv_fds(
            self._channel, _REQUEST_BYTES_MAX, 4
        )
        if not packet:
            os._exit(0)
        asker = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if not pid:
            for number, descriptor in enumerate(descriptors[1:]):
                os.dup2(descriptor, number)
                os.close(descriptor)
            for one in (self._channel, asker, *(asker for _pid, asker in self._children.values())):
                one.close()
            for pidfd in self._children:
                os.close(pidfd)
            return json.loads(packet)
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        self._children[os.pidfd_open(pid)] = (pid, asker)
        asker.send(str(pid).encode())
        return None

    def _reap(self, pidfd: int) -> None:
        pid, asker = self._children.pop(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with asker, contextlib.suppress(OSError):  # a test that has ended waits no more
            asker.send(str(code).encode())


def main(stock: str) -> None:
    """Import, and fork a process for each request until the tests' process ends."""
    channel = socket.socket(fileno=os.dup(0))
    os.set_inheritable(channel.fileno(), False)
    for name in Stock[stock].value:
        importlib.import_module(name)
    gc.freeze()
    request = _Server(channel).serve()
    # Only a forked process comes here: it runs with nothing of ours on the stack but this.
    os.setsid()
    for number in _HEEDED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    arguments, script = request["arguments"], request.get("script")
    becoming.show_as([sys.executable, *([script] if script else ["-m", _MODULE]), *arguments])
    becoming.renew_standard_objects()
    if script is None:
        sys.argv[:] = [str(ROOT / "rankmend" / "cli" / "__main__.py"), *arguments]
        runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == _HOOK]:
        del sys.modules[name]
    runpy.run_path(script, run_name="__main__")
