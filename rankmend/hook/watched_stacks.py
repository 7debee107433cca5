"""Lets the agent ask a watched rank where its Python threads are: only where the job's owner wants that.

The agent is another user, and may signal nobody. So this process has the kernel signal it: it holds a pipe that everybody may
write to, and at a byte the kernel sends `layout.STACKS_SIGNAL` to its owner, and to nobody else, as long as it lives and holds
the pipe (F_SETOWN, F_SETSIG). `faulthandler` answers from C into another pipe, which holds 64 kB at most: whoever asks without end
gets no more than that. And it takes 16 requests, since it is full then and never emptied: signals that found no room in the
kernel's queue would come as SIGIO, which ends a process. Before Linux 5.14 a byte in a pipe that is not empty signals nobody:
there nothing is offered.
"""

import fcntl
import os

from rankmend.hook import layout, stacks
from rankmend.hook.watched_layout import ASK_SUFFIX, STACKS_SUFFIX

_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ: fcntl has the name from Python 3.10 on
_REQUESTS_BYTES = 4096  # one page: the least
_REQUESTS_MAX = 16
_KERNEL_MIN = (5, 14)
_ANSWER_BYTES = 65536
_held = None  # the descriptors: open as long as the process lives


def offer(path):
    """Answer requests beside the progress file with this path, from now on only there; never raise."""
    global _held
    made, descriptors, is_registered = [], [], False
    try:
        if tuple(int(part) for part in os.uname().release.split(".")[:2]) < _KERNEL_MIN:
            return
        for suffix, mode, size in (
            (STACKS_SUFFIX, 0o644, _ANSWER_BYTES),
            (ASK_SUFFIX, 0o622, _REQUESTS_BYTES),
        ):
            made.append(_make_pipe(path + suffix, mode))
            opened = os.open(path + suffix, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            descriptors.append(stacks.moved_up(opened))
            fcntl.fcntl(descriptors[-1], _SET_PIPE_SIZE, size)
        answers, requests = descriptors
        os.write(requests, bytes(_REQUESTS_BYTES - _REQUESTS_MAX))
        fcntl.fcntl(requests, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(requests, fcntl.F_SETSIG, layout.STACKS_SIGNAL)
        flags = fcntl.fcntl(requests, fcntl.F_GETFL)
        before, _held = _held, None
        if before is not None:  # its files are gone
            stacks.unregister()
            for descriptor in before:
                os.close(descriptor)
        is_registered = stacks.register(answers)
        if not is_registered:
            raise OSError("the signal is the script's")
        fcntl.fcntl(requests, fcntl.F_SETFL, flags | fcntl.FASYNC)
        _held = descriptors
    except Exception:
        if is_registered:
            stacks.unregister()
        for descriptor in descriptors:
            os.close(descriptor)
        for name in made:
            os.unlink(name)


def _make_pipe(path, mode):
    try:
        os.unlink(path)  # of an earlier attempt
    except FileNotFoundError:
        pass
    os.mkfifo(path, mode)
    os.chmod(path, mode)  # whatever the umask
    return path
