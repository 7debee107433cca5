"""How the script of a rank has ended, as its progress file has it: a value of messages, detectors and the hook's reader."""

from enum import Enum


class ScriptEnd(Enum):
    """The end of a script whose process may still run. In the order of the codes in `rankmend.hook.layout`."""

    RUNNING = ""
    EXITED = (
        "exited"  # by sys.exit without a code of failure: perhaps in the middle of its training
    )
    RETURNED = "returned"  # it returned, or destroyed its default process group
    FAILED = "failed"  # by an exception or a code
