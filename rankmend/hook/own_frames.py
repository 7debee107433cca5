"""Removes rankmend's frames from the traceback of the exception that ends a script.

A rank out of the fork server runs below frames of ours, and calls that we measure go through one. A traceback that
is pasted into a report of a bug would accuse rankmend. What a script prints itself, by `traceback`, shows the
measured calls still: their line says what it is.

Standard library and Python 3.8 only. Nothing here raises.
"""

import sys

_EXCEPTIONS_MAX = 1000  # of a chain and its groups
_PREFIX = "rankmend.hook."
_RUNS_SCRIPT = ("rankmend.hook.becoming", "run")


def remove(value, trace):
    """Return the traceback without frames of ours, and remove them from all that the exception came from."""
    try:
        pending, seen = [value], set()
        while pending and len(seen) < _EXCEPTIONS_MAX:
            item = pending.pop()
            if item is None or id(item) in seen:
                continue
            seen.add(id(item))
            item.__traceback__ = _shortened(item, trace if item is value else item.__traceback__)
            pending += [item.__cause__, item.__context__]
            if type(getattr(item, "exceptions", None)) is tuple:  # a group
                pending += [part for part in item.exceptions if isinstance(part, BaseException)]
        if getattr(sys, "last_traceback", None) is not None:  # set before the hook is called
            sys.last_traceback = value.__traceback__
        return value.__traceback__
    except Exception:  # the script's own error is shown as it is
        return trace


def hide():
    """Have the present `sys.excepthook`, the script's own too, see a traceback without frames of ours."""
    try:
        show = sys.excepthook

        def excepthook(kind, value, trace):
            show(kind, value, remove(value, trace))  # rankmend removes its frames first

        sys.excepthook = excepthook
    except Exception:  # as above
        pass


def _shortened(value, trace):
    """Return the traceback from the script's first frame on; an error of ours alone stays whole."""
    first, last, begin = None, None, trace
    while begin is not None:  # below that frame all is ours, though `__main__` is the script's
        if (_module(begin), begin.tb_frame.f_code.co_name) == _RUNS_SCRIPT:
            trace = begin.tb_next
        begin = begin.tb_next
    whole = trace
    while trace is not None:
        following = trace.tb_next
        if not _module(trace).startswith(_PREFIX):
            if last is None:
                first = trace
            elif last.tb_next is not trace:
                last.tb_next = trace
            last = trace
        trace = following
    if last is not None:
        if last.tb_next is not None:
            last.tb_next = None
        return first
    return None if isinstance(value, SyntaxError) else whole


def _module(trace):
    return str(trace.tb_frame.f_globals.get("__name__"))
