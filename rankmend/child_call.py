"""Runs a function in a child process that can be left behind when it hangs.

A read of a dead NFS mount or a stuck driver blocks in state D: not even SIGKILL ends it. The child holds none of the
caller's streams, since whoever waits for their end, as slurmd does for its prolog's, would wait for the child.
The number of children that may hang is bounded by slots: a stuck child keeps its slot.

Call it while the process has one thread: the child is a fork.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rankmend.errors import RankmendError, SourceError

SLOTS: Final = 4
_REAP_S_MAX: Final = 0.2  # for a child that has been killed; one in state D stays
_ALONE_S: Final = 2.0  # a child whose caller was killed ends so long after the timeout
_CHUNK_BYTES: Final = 1 << 16
_ANSWER_BYTES_MAX: Final = 32_000_000
_DESCRIPTORS_MAX: Final = 4096


class ChildSilentError(SourceError):
    """The child did not answer in time, or earlier ones still hang."""


def call_in_child(
    function: Callable[[], Any], timeout_s: float, slot_folder: Path | None = None
) -> Any:
    """Return what the function returns, which must be JSON; raise its RankmendError as a SourceError.

    ``slot_folder``: private folder of the slots, made if it is missing. If it can't be made (an ordinary user), there are none.
    """
    until_s = time.monotonic() + timeout_s
    return _finish(_start_in_slot(function, slot_folder, timeout_s), until_s, timeout_s)


def call_in_children(
    functions: Mapping[str, Callable[[], Any]], timeout_s: float, slot_folder: Path | None = None
) -> dict[str, Any | SourceError]:
    """Run the functions side by side; return by name what each returns, or the error of `call_in_child`.

    All together end by ``timeout_s``: one that hangs costs the others nothing. Each has slots of its own.
    """
    until_s = time.monotonic() + timeout_s
    children: dict[str, tuple[int, int]] = {}
    answers: dict[str, Any | SourceError] = {}
    try:
        for name, function in functions.items():
            try:
                folder = slot_folder / name if slot_folder is not None else None
                children[name] = _start_in_slot(function, folder, timeout_s)
            except SourceError as error:
                answers[name] = error
        for name in list(children):
            try:
                answers[name] = _finish(children.pop(name), until_s, timeout_s)
            except SourceError as error:
                answers[name] = error
    finally:  # Ctrl-C: they are in sessions of their own and would go on
        for pid, reader in children.values():
            os.close(reader)
            _end(pid)
    return answers


def _start_in_slot(
    function: Callable[[], Any], slot_folder: Path | None, timeout_s: float
) -> tuple[int, int]:
    slot = _take_slot(slot_folder) if slot_folder is not None else None
    try:
        return _start(function, slot, timeout_s)
    finally:
        if slot is not None:
            os.close(slot)


def _start(function: Callable[[], Any], slot: int | None, timeout_s: float) -> tuple[int, int]:
    """Return the child's pid and the descriptor of its answer."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _answer(function, writer, slot, timeout_s)
    os.close(writer)
    return pid, reader


def _finish(child: tuple[int, int], until_s: float, timeout_s: float) -> Any:
    pid, reader = child
    ended_by = None
    try:
        data = _read_until(reader, until_s)
    finally:
        os.close(reader)
        ended_by = _end(pid)
    # A caller that got no processor for so long finds a child that has ended itself by then.
    if data is None or ended_by == signal.SIGALRM:
        raise ChildSilentError(f"no answer within {timeout_s:g} s")
    return _result(data)


def _result(data: bytes) -> Any:
    try:
        reported = json.loads(data)
    except ValueError:
        raise ChildSilentError("the check ended without an answer") from None
    if "error" in reported:
        raise SourceError(reported["error"])
    return reported["result"]


def _answer(function: Callable[[], Any], writer: int, slot: int | None, timeout_s: float) -> None:
    """Run in the child; never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, timeout_s + _ALONE_S)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        begin = 3
        for descriptor in sorted(kept for kept in (writer, slot) if kept is not None):
            os.closerange(begin, descriptor)
            begin = descriptor + 1
        os.closerange(begin, _DESCRIPTORS_MAX)
        try:
            reported = {"result": function()}
        except RankmendError as error:
            reported = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - a defect of ours must not look like a defect of the node
            reported = {"error": f"internal error: {type(error).__name__}: {error}"}
        with os.fdopen(writer, "wb") as file:
            file.write(json.dumps(reported).encode())
    finally:
        os._exit(0)


def _read_until(reader: int, until_s: float) -> bytes | None:
    chunks: list[bytes] = []
    size = 0
    while size <= _ANSWER_BYTES_MAX:
        left_s = max(0.0, until_s - time.monotonic())  # what lies there is read even then
        if not select.select([reader], [], [], left_s)[0]:
            return None
        chunk = os.read(reader, _CHUNK_BYTES)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
    return None


def _end(pid: int) -> int | None:
    """Kill the child and what it started; reap it if it goes. Return the signal that has ended it, if any did."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + _REAP_S_MAX
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() >= until_s:
            return None
        time.sleep(0.005)
    return os.WTERMSIG(found[1]) if os.WIFSIGNALED(found[1]) else None


def _take_slot(folder: Path) -> int | None:
    """Return a descriptor whose lock is the slot; raise if earlier children hold all of them."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for number in range(SLOTS):
            descriptor = os.open(folder / f"check-{number}.lock", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                os.close(descriptor)
    except OSError:
        return None
    raise ChildSilentError(f"{SLOTS} earlier checks still run or hang: no further one was started")
