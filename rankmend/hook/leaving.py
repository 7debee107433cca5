"""Reports that a rank has left its training: its script has returned, or has destroyed its default process group.

What still runs then is no training: a thread that uploads, an exit handler, `finish()` of a tracker. So a hang there
need not throw the job back. A script that an exception ends has not returned, nor one that exits with a code. Python calls
what is registered with `threading` before it waits for other threads (3.9); before that only exit handlers are told.

Standard library and Python 3.8 only. Nothing here raises.
"""

import sys

import rankmend
from rankmend.hook import layout

_has_exited = False  # `sys.exit` was called, whether or not it ended the script
_exit_code = None  # by this code


def watch(writer):
    """Have this writer report the end of the script."""
    try:
        import threading

        def mark():
            if rankmend._writer is writer:  # no forked child
                writer.mark_end(_how())

        register = getattr(threading, "_register_atexit", None)
        if register is None:  # Python 3.8
            from atexit import register
        register(mark)
        if getattr(sys.exit, "__module__", "sys") == "sys":  # not replaced before
            sys.exit = _noting(sys.exit)
    except Exception:  # a hang at the end is then one like others
        pass


def destroys(writer, group):
    """Report that the script destroys this process group; None: the default one, and so all."""
    try:
        if (
            group is None and sys.exc_info()[0] is None
        ):  # in a `finally`, an error may be on its way
            writer.mark_end(layout.END_RETURNED)
    except Exception:  # as above
        pass


def _how():
    """Return how the script has ended. That of ``raise SystemExit(1)`` can't be told from a return."""
    if getattr(sys, "last_value", None) is not None or _exit_code not in (None, 0):
        return layout.END_FAILED
    return layout.END_EXITED if _has_exited else layout.END_RETURNED


def _noting(original):
    def noting(*arguments):
        global _exit_code, _has_exited
        _has_exited = True
        _exit_code = arguments[0] if arguments else None
        original(*arguments)  # rankmend passes this on

    noting.__name__, noting.__doc__ = original.__name__, original.__doc__
    return noting
