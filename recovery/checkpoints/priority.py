"""Lets training go first: the priority and the rate of a thread that reads beside it."""

import contextlib
import os
import threading
from typing import Final

# Not more: a reader that gets no processor while it holds the interpreter's lock stops the
# launcher's other threads. Beside a busy thread of nice 0, nice 5 still gets a quarter of a core.
NICE: Final = 5
# A reader's checksums and system calls take 0.4 s of a processor for each GB (bench/checkpoint_shares.py): this is
# 0.5 % of each processor. The slowest of ranks that fill them all loses a few times that.
RATE_PER_CPU: Final = 12.5e6  # bytes per second
RATE_MAX: Final = 200e6  # for the storage, which other jobs use, too


def check_rate(cpus: int) -> float:
    """Return how many bytes per second to read at most, beside training on this many processors."""
    return min(RATE_PER_CPU * cpus, RATE_MAX)


def yield_to_training() -> None:
    """Lower the calling thread's priority for processors and disks, for good: it can't be raised again.

    The idle class counts where the disk's scheduler knows priorities (BFQ, mq-deadline), and never for
    network storage: there the rate alone protects training.
    """
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # Linux: of one thread, although POSIX says of the process
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
    lower_disk_priority()


def lower_disk_priority() -> None:
    """Put the calling thread into the idle class for disks."""
    import psutil  # noqa: PLC0415 - no start of a job waits for it

    with contextlib.suppress(OSError, psutil.Error):
        psutil.Process(threading.get_native_id()).ionice(psutil.IOPRIO_CLASS_IDLE)
