"""Lets gloo's threads finish before a process group is destroyed or the process ends.

A thread of gloo's that drops the last collective needs the GIL for it. The destructor of the group waits for that
thread with the GIL held, so that the rank hangs; at the end of the interpreter the thread aborts the process
(PyTorch 2.13; pytorch#56297, #179291). On a busy machine that is one end in ten.
"""

import os
from time import monotonic, sleep

_NAME = "pt_gloo_runloop"  # as PyTorch names them
_PAUSE_S = 0.01  # without the GIL, which a thread takes within microseconds of getting a processor
_CALM_LOOKS = 2  # in a row
_WAIT_S_MAX = 2.0


def let_go():
    """Release the GIL until none of gloo's threads runs, for two seconds at most; never raise."""
    try:
        threads = _find()
        until_s = monotonic() + _WAIT_S_MAX
        calm = 0
        while threads and calm < _CALM_LOOKS and monotonic() < until_s:
            sleep(_PAUSE_S)
            calm = 0 if any(map(_is_running, threads)) else calm + 1
    except Exception:  # PyTorch then ends its process groups as without rankmend
        pass


def _find():
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % thread) as file:
                if file.read().strip() == _NAME:
                    found.append(thread)
        except OSError:  # it has ended
            pass
    return found


def _is_running(thread):
    """Return whether a thread has a processor or waits for one."""
    try:
        with open("/proc/self/task/%s/stat" % thread) as file:
            return file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False
