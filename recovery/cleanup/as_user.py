"""Runs a function with the rights of a job's user, in a child process.

Root sees all of a job, but a user may exchange a folder for a link at any moment. With the user's own rights nothing is
reached that the user could not remove, and no other user's process gets a signal.
"""

import os
import pwd
from collections.abc import Callable
from typing import Any, Final

from rankmend.child_call import call_in_child

_NOGROUP: Final = 65534


def call_as_user(uid: int, function: Callable[[], Any], timeout_s: float) -> Any:
    """Return what the function returns, which must be JSON; raise SourceError."""
    group = _group_of(uid)

    def act() -> Any:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(uid, uid, uid)
        assert os.getresuid() == (uid, uid, uid), "the rights are the user's alone"
        return function()

    return call_in_child(act, timeout_s)


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return _NOGROUP
