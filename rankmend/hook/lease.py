"""The third keeper of a lease: ends a rank whose launcher and guardian both stand still (docs/operate/fencing.md).

In a job of several nodes the launcher writes into the progress file until when the rank may run. The guardian kills it then.
Where that stands still with its launcher (swap, a frozen cgroup, a stop of both), the rank itself ends where it counts its
next step, once the time that a kill may take is over, too; so before the controller takes the node for empty. That is
the only thing by which the hook touches training. In a job of one node there is no lease.

Standard library and Python 3.8 only. Nothing here raises.
"""

import os
from time import CLOCK_BOOTTIME, clock_gettime_ns

from rankmend.hook import layout

# A lease is prolonged about once a second, and a look costs 1 us. A machine that was suspended steps on for so long at most.
LOOK_NS = 100000000
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h
ENDS_WORD, PUBLISHES_WORD, NAMESPACE_WORD, ENDED_WORD = range(
    layout.LEASE_AT // 8, layout.LEASE_AT // 8 + 4
)
_NAMESPACE = "/proc/self/ns/time"
_TEXT = (
    b"rankmend: this rank ends itself (exit code %d): its launcher and its guardian stand still, and its lease is over. "
    b"The controller may start the next attempt\n"
)


def boot_ns():
    """Return CLOCK_BOOTTIME."""
    return clock_gettime_ns(CLOCK_BOOTTIME)


def read_namespace():
    """Return which time namespace this process is in; 0: not known. Other namespaces have other boot clocks."""
    try:
        return os.stat(_NAMESPACE).st_ino
    except OSError:
        return 0


class MappedLease:
    """The lease in a mapped progress file, as 8-byte words."""

    __slots__ = ("_is_ours", "_words")

    def __init__(self, words):
        self._words = words
        self._is_ours = words[NAMESPACE_WORD] == read_namespace()

    def look(self):
        """End this process if its time is over; else return after how many ns at the latest to look again."""
        ends_ns = self._words[ENDS_WORD]
        if not ends_ns or not self._is_ours:
            return LOOK_NS
        left_ns = ends_ns - boot_ns()
        if left_ns > 0:
            return min(left_ns, LOOK_NS)
        self._words[ENDED_WORD] = boot_ns()
        return _end()

    def is_over(self):
        """Return whether this rank is to publish nothing more: its guardian was due to kill it."""
        ends_ns = self._words[PUBLISHES_WORD]
        return bool(ends_ns) and self._is_ours and boot_ns() >= ends_ns


def is_over(path):
    """Return the same for any process of the rank; False: not known."""
    try:
        with open(path, "rb") as file:
            file.seek(layout.LEASE_AT)
            body = file.read(layout.LEASE.size)
        return MappedLease(memoryview(bytes(layout.LEASE_AT) + body).cast("Q")).is_over()
    except Exception:  # no such file: then the fence alone decides
        return False


def _end():
    try:
        # The launcher reads the other end, and stands still: a full pipe must not hold this up.
        os.set_blocking(2, False)
        os.write(2, _TEXT % EXIT_CODE)
    except Exception:  # then only the exit code tells
        pass
    os._exit(EXIT_CODE)
