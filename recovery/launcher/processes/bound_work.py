"""Work that leaves no process behind, whichever process is killed: what it has started ends with the program.

    program -> sweeper -> worker -> all that the work starts, whatever sessions that makes

Program and sweeper are subreapers: what has left the worker is a child of the sweeper, or of the program once somebody has killed
the sweeper. A pipe shows the sweeper that the program has ended, and the worker is killed with the sweeper. Only who kills both at
once leaves something.
"""

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from rankmend.signals import SIGNALS, Stopping, take_signals
from recovery.launcher.processes.prctl import become_subreaper, die_with_parent
from recovery.launcher.processes.process_tree import (
    KernelProcess,
    ProcessRef,
    descendants,
    read_processes,
    send_kill,
)

SPARED_S_MAX: Final = 130.0  # an injector's supervisor undoes its fault within 120 s
_GONE_S_MAX: Final = 30.0  # for what was killed to be gone
_LOOK_S: Final = 0.1
_INTERRUPT: Final = b"i"

IsSpared = Callable[[int], bool]


def run_bound(
    work: Callable[[], int], *, grace_s: float = 0.0, is_spared: IsSpared | None = None
) -> int:
    """Run ``work`` in a child and return its exit code once all that it has started is gone.

    A signal that asks to end interrupts the work (KeyboardInterrupt), which has ``grace_s`` seconds for its end; a second one ends it at
    once. ``is_spared``: processes that end by themselves as soon as the others are gone; they are waited for.
    Called before the program has a second thread. The child doesn't return from here, and runs nothing of `atexit`.
    """
    become_subreaper()
    pipe = os.pipe2(os.O_CLOEXEC)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with take_signals() as stopping:  # before there is work that a signal could leave behind
        sweeper = os.fork()
        if sweeper == 0:
            os.close(pipe[1])
            _sweep(pipe[0], work, is_spared, handlers)
        os.close(pipe[0])
        status = _await(sweeper, pipe[1], stopping, grace_s)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:  # somebody has killed it
            end_below(os.getpid(), is_spared)
    return stopping.exit_code if stopping.signal_number is not None else abs(code)


def _await(sweeper: int, writer: int, stopping: Stopping, grace_s: float) -> int:
    """Return the sweeper's status; tell it of signals."""
    until_s = None
    while True:
        if select.select([stopping.wake], [], [], _LOOK_S)[0]:
            os.read(stopping.wake, 64)
            if until_s is None:
                until_s = time.monotonic() + grace_s
                with contextlib.suppress(OSError):
                    os.write(writer, _INTERRUPT)
            else:
                until_s = 0.0
        if until_s is not None and writer >= 0 and time.monotonic() >= until_s:
            os.close(writer)
            writer = -1
        pid, status = os.waitpid(sweeper, os.WNOHANG)
        if pid == sweeper:
            if writer >= 0:
                os.close(writer)
            return status


def _sweep(
    reader: int,
    work: Callable[[], int],
    is_spared: IsSpared | None,
    handlers: Mapping[signal.Signals, Any],
) -> None:
    """Fork the worker, wait for its end or the program's, and end all that is below."""
    me = os.getpid()
    os.setsid()  # a terminal's Ctrl-C is the program's
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    # An interrupt that comes before the worker has its handlers waits for them: here it is ignored.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    worker = os.fork()
    if worker == 0:
        os.close(reader)
        die_with_parent(me)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _work(work, unblocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    try:
        code = _follow(worker, reader)
        left = end_below(me, is_spared)
        for process in left:
            print(
                f"rankmend: still there: process {process.pid} ({process.command})", file=sys.stderr
            )
    except BaseException:  # noqa: BLE001 - the frames above are the program's
        code = 1
    os._exit(code)


def _work(work: Callable[[], int], unblocked: Collection[int]) -> None:
    """``unblocked``: the mask of signals under which to work."""
    code: int | str | None = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        code = work()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - the frames above are the program's
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def _follow(worker: int, reader: int) -> int:
    """Return the worker's exit code; 1 where the program has ended first."""
    while True:
        if select.select([reader], [], [], _LOOK_S)[0]:
            if not os.read(reader, 1):
                return 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGINT)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == worker:
                    return abs(os.waitstatus_to_exitcode(found[1]))


def end_below(pid: int, is_spared: IsSpared | None = None) -> list[KernelProcess]:
    """Kill all processes below this one until none is left, and return those that don't go.

    What is spared is killed only where it doesn't end by itself in SPARED_S_MAX.
    """
    spared_until_s = time.monotonic() + (0.0 if is_spared is None else SPARED_S_MAX)
    until_s = time.monotonic() + _GONE_S_MAX
    while True:
        _reap()
        left = [
            descendant
            for descendant in descendants(pid, read_processes())
            if not descendant.is_gone
        ]
        now_s = time.monotonic()
        struck = left
        if is_spared is not None and now_s < spared_until_s:
            struck = [descendant for descendant in left if not is_spared(descendant.pid)]
        for descendant in struck:
            send_kill(ProcessRef(descendant.pid, descendant.start_ticks))
        if not struck:
            until_s = now_s + _GONE_S_MAX
        if not left or now_s > until_s:
            _reap()  # what has died since the look
            return left
        time.sleep(_LOOK_S / 2)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
