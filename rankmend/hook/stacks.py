"""Lets the launcher ask this process where each of its Python threads is.

`faulthandler` answers a signal from C, without the interpreter's lock: also a process that is
blocked inside a collective tells its stacks. They go to a file of the launcher's, whose first
line says whose they are and through which descriptor, so that the launcher can make sure of
both before it sends the signal. Costs nothing until then. Whoever has a handler for this signal
keeps it, and no other signal is touched.
"""

import fcntl
import os
import signal

from rankmend.hook import layout
from rankmend.hook.writer import read_start_ticks

_DESCRIPTOR_LEAST = (
    512  # out of the way of scripts that count on low numbers; select(2) ends at 1,023
)
_held = None  # (process, open file): the signal is registered there


def offer(take_over=False):
    """Let this process answer requests for its stacks; never raise.

    The first Python process of a rank offers its own; one that attaches to the progress file
    takes over, for it is the one that trains.
    """
    global _held
    try:
        path = os.environ.get(layout.ENV_STACKS_FILE)
        if not path or (_held is not None and _held[0] == os.getpid()):
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = moved_up(os.open(path, flags))
        if (_is_taken(descriptor) and not take_over) or not register(descriptor):
            os.close(descriptor)
            return
        _held = (os.getpid(), descriptor)
        ticks = read_start_ticks(os.getpid()) or 0
        os.ftruncate(descriptor, 0)
        os.write(
            descriptor, (layout.STACKS_HEAD % (os.getpid(), descriptor, ticks)).encode("ascii")
        )
    except Exception:  # the launcher then has no stacks of this process
        pass


def moved_up(descriptor):
    """Return a descriptor of the same file with a high number, in the place of this one."""
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR_LEAST)
    except OSError:
        return descriptor  # this process may not have so many
    os.close(descriptor)
    return moved


def _is_taken(descriptor):
    """Return whether a living process has offered its stacks in this file."""
    words = os.pread(descriptor, layout.STACKS_HEAD_BYTES_MAX, 0).split(b"\n")[0].split()
    if len(words) != 4:
        return False
    return read_start_ticks(int(words[1])) == int(words[3])


def register(descriptor):
    """Have `faulthandler` answer the signal into this file, and return whether it does: whoever has a handler keeps it."""
    number = layout.STACKS_SIGNAL
    if signal.getsignal(number) != signal.SIG_DFL or _is_caught(number):
        return False
    import faulthandler

    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    return True


def unregister():
    """Leave the signal as it was before `register`."""
    import faulthandler

    faulthandler.unregister(layout.STACKS_SIGNAL)


def _is_caught(number):
    """Return whether a C library has installed a handler that Python doesn't know."""
    with open("/proc/self/status", "rb") as file:
        status = file.read()
    masks = [
        int(line.split()[1], 16)
        for line in status.split(b"\n")
        if line.startswith((b"SigCgt:", b"SigIgn:"))
    ]
    return not masks or any(mask >> (number - 1) & 1 for mask in masks)
