"""Evidence from the node at the time of an incident: the kernel log, the agent's findings.

Source: Linux Documentation/ABI/testing/dev-kmsg. With kernel.dmesg_restrict = 1 an ordinary user may not
read the log; the node agent may, but reports only its findings.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from detectors.node.charges import read_crash_library
from rankmend.agent_page import LISTENS_AT, read_agent
from rankmend.errors import SourceError

WINDOW_S: Final = 900.0  # covers most of a hang's own limit of 5 to 30 minutes
LINES_MAX: Final = 2000
FINDINGS_BYTES_MAX: Final = 1 << 20
AGENT_URL: Final = f"{LISTENS_AT}/api/v1/findings"
_ANSWER_S_MAX: Final = 1.0  # on the same machine, from memory: milliseconds
_RECORD_BYTES_MAX: Final = 16_384  # CONSOLE_EXT_LOG_MAX is 8192 (kernel/printk/printk.c)
_RECORDS_MAX: Final = 100_000
CRASH_WINDOW_S: Final = (
    10.0  # the kernel writes before the process dies; dumping a core of 100 GB takes longer
)
_CRASH_READ_S_MAX: Final = 0.2  # the launcher's own loop waits: 1 MiB of log takes 20 ms


def read_kernel_log(is_late: Callable[[], bool], path: Path = Path("/dev/kmsg")) -> str:
    """Return the newest lines of the kernel log, or raise SourceError with the reason why there are none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror}") from error
    # The kernel dates its records since boot, without the time spent suspended.
    since_us = (time.clock_gettime(time.CLOCK_MONOTONIC) - WINDOW_S) * 1e6
    lines: deque[str] = deque(maxlen=LINES_MAX)
    try:
        for _record in range(_RECORDS_MAX):
            if is_late():
                break
            try:
                record = os.read(descriptor, _RECORD_BYTES_MAX)
            except BrokenPipeError:
                continue  # overwritten before it was read; the next read continues after it
            except BlockingIOError:
                break
            if not record:
                break
            line = _line(record.decode("utf-8", "replace"), since_us)
            if line is not None:
                lines.append(line)
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return "".join(f"{line}\n" for line in lines)


def read_crashed_in(pids: Collection[int], path: Path = Path("/dev/kmsg")) -> str:
    """Return the library in which a rank has crashed just now, by the kernel's log; empty: nobody knows.

    The kernel names the thread, in its own process namespace: where no line has one of ``pids``, the lines of the last
    seconds count if they all name one library.
    """
    late_s = time.monotonic() + _CRASH_READ_S_MAX
    try:
        lines = read_kernel_log(lambda: time.monotonic() >= late_s, path).splitlines()
    except SourceError:
        return ""
    since_s = time.clock_gettime(time.CLOCK_MONOTONIC) - CRASH_WINDOW_S
    fresh = [line for line in lines if _stamp_s(line) >= since_s]
    if own := read_crash_library(fresh, pids):
        return own
    found = {library for line in fresh if (library := read_crash_library([line]))}
    return found.pop() if len(found) == 1 else ""


def _stamp_s(line: str) -> float:
    stamp = line.partition("[")[2].partition("]")[0]
    try:
        return float(stamp)
    except ValueError:
        return 0.0


def _line(record: str, since_us: float) -> str | None:
    head, _semicolon, text = record.partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not (fields[0].isdigit() and fields[2].isdigit()):
        return None
    stamp_us = int(fields[2])
    if stamp_us < since_us:
        return None
    return f"<{int(fields[0]) & 7}>[{stamp_us / 1e6:.6f}] {text.partition(chr(10))[0]}"


def read_agent_findings(url: str = AGENT_URL) -> bytes:
    """Return the current findings of the node's agent, or raise SourceError with the reason why there are none."""
    return read_agent(url, bytes_max=FINDINGS_BYTES_MAX, timeout_s=_ANSWER_S_MAX)
