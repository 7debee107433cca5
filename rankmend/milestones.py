"""Names what rankmend's own processes have reached, on a descriptor that a test passes to them.

A test waits for such a line instead of for a time. Without `RANKMEND_MILESTONES_FD` every call returns at once. A line is
``PROCESS PID MILESTONE NUMBER``, as in ``guardian 4711 killed 2``, shorter than PIPE_BUF: lines of several processes don't mix.
The launcher passes the descriptor on to its guardian, and to nobody else: a rank inherits neither it nor the variable.
"""

import os
from enum import Enum
from typing import Final

ENV_MILESTONES_FD: Final = "RANKMEND_MILESTONES_FD"


class ProcessMilestone(Enum):
    READY = "ready"  # serves: guardian, fork server, agent, controller
    REPORTED = "reported"  # launcher: sent this report
    KILLED = "killed"  # guardian: no process of the attempts up to this one is left
    DIGESTED = "digested"  # launcher: knows the digests of so many snapshots
    FENCED = "fenced"  # launcher: knows that nothing is left up to this attempt
    ORDER_SENT = "order_sent"  # controller: sent the orders of this revision
    STEP_SEEN = "step_seen"  # controller: a rank has reported this step, the newest yet


class _Channel:
    """The descriptor of this process, or none."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        text = os.environ.pop(ENV_MILESTONES_FD, "")
        if text.isdecimal():
            try:
                os.set_inheritable(int(text), False)
            except OSError:
                return  # closed by who started this process
            self.descriptor = int(text)


_channel = _Channel()


def name_milestone(process: str, milestone: ProcessMilestone, number: int = 0) -> None:
    """Write one line, where a test reads; never block and never raise."""
    if _channel.descriptor is None:
        return
    line = f"{process} {os.getpid()} {milestone.value} {number}\n"
    try:
        os.write(_channel.descriptor, line.encode("ascii"))
    except OSError:  # nobody reads any more, or too slowly
        _channel.descriptor = None


def milestones_descriptor() -> int | None:
    """Return the descriptor to pass on to a process of ours, with the variable that names it."""
    return _channel.descriptor
