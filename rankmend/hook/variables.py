"""Follows what a script changes in ``os.environ``, up to the first step of its rank.

`Touched` notes the names, in a rank from which the fork server learns (`rankmend.hook.import_order`). `Expected`, in a
forked rank, compares them with what was learned: the server's imports have read the variables as they were then. Where
the script now sets one to another value (a folder named after the Slurm job) or sets one that it didn't, the rank
starts itself afresh, in the same process: a library must not go on with another run's value.

Standard library and Python 3.8 only. Nothing here raises into the script.
"""

import os
import sys
import time

ENDS_AFTER_S = (
    30.0  # later no import of the script's beginning is meant, and starting again costs more
)
VALUES_MAX = 8  # of one variable
# Read by torch._dynamo, which the server of a first run imports before the script would (at its first optimizer).
_READ_LATE = ("TORCH", "PYTORCH", "TRITON", "AOT")
_followed = None


def follow(watched):
    """Put this dict in the place of the environment's own."""
    global _followed
    _followed = watched
    os.environ._data = os.environb._data = watched


def end():
    """Follow no longer; return what followed, or None."""
    global _followed
    watched, _followed = _followed, None
    if watched is not None and os.environ._data is watched:
        os.environ._data = os.environb._data = dict(watched)
    return watched


class _Followed(dict):  # type: ignore[type-arg]
    def __setitem__(self, key, value):
        dict.__setitem__(self, key, value)
        self._tell(key, value)

    def __delitem__(self, key):
        dict.__delitem__(self, key)
        self._tell(key, None)

    def __reduce__(self):  # a copy follows nothing
        return (dict, (dict(self),))

    def _tell(self, key, value):
        try:
            if self is _followed:
                self.note(os.fsdecode(key), None if value is None else os.fsdecode(value))
        except Exception:  # the script's change of its environment has gone through
            pass


class Touched(_Followed):
    """The environment of a rank that tells what it imports."""

    def __init__(self, variables):
        dict.__init__(self, variables)
        self.values = {}  # name: what it was set to; None where that is too much to tell

    def note(self, name, value):
        seen = self.values.setdefault(name, [])
        if seen is not None and value not in seen:
            seen.append(value)
            if len(seen) > VALUES_MAX:
                self.values[name] = None


class Expected(_Followed):
    """The environment of a forked rank."""

    def __init__(self, variables, expected, start_afresh):
        """``expected``: name: values that are as learned, or None: any. ``start_afresh`` does not return."""
        dict.__init__(self, variables)
        self._began = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
        self._expected = expected
        self._start_afresh = start_afresh
        self._pid = os.getpid()
        self._until_s = time.monotonic() + ENDS_AFTER_S

    def note(self, name, value):
        values = self._expected.get(name, ())
        if values is None or value in values or value == self._began.get(name):
            return
        if os.getpid() != self._pid:  # a child that the script has forked
            return
        if time.monotonic() >= self._until_s or _has_met_others():
            self._give_up()
            return
        self._start_afresh()

    def _give_up(self):
        end()


class _AnyBut:
    """What the variables may be set to of a script in its first run: its first imports came before any of its lines."""

    def get(self, name, default):
        return default if name.startswith(_READ_LATE) else None


class Guessed(Expected):
    """The environment of a forked rank in its script's first run; it tells what it imports, as a fresh one."""

    def __init__(self, variables, start_afresh):
        Expected.__init__(self, variables, _AnyBut(), start_afresh)
        self._touched = Touched({})

    @property
    def values(self):
        return self._touched.values

    def note(self, name, value):
        self._touched.note(name, value)
        Expected.note(self, name, value)

    def _give_up(self):
        pass  # what it tells is wanted still


def _has_met_others():
    """Return whether the ranks have met: starting again would leave the others waiting."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized()
