"""Records the uncaught exception of a rank's main thread as it happens, for the launcher.

So the launcher need not guess which of the tracebacks in the output ended the rank: threads, exit handlers,
destructors and other processes print theirs to the same stderr. The record has the type, the text, the
innermost frames with the module of each, and the exceptions that it came from. No source line is read: the
disk with the script may be what hangs.

Two ways lead to it. `sys.excepthook` is ours until the script sets its own; one that is set later runs alone, and
the exit handler then finds the exception in `sys.last_value`. The hook that was there before runs in any case.
Standard library and Python 3.8 only. Nothing here raises, and nothing runs before an exception ends the script.
"""

import atexit
import os
import sys
from _thread import get_ident

from rankmend.hook import layout, own_frames

_CHAIN_MAX = 8
_FRAMES_MAX = 24  # of each exception: the innermost
_TEXT_MAX = 2000
_PATH_MAX = 400
_RECORD_MAX = 262144  # as detectors.failed.error_text reads
_ATTACHED = b'{"attached": true'  # first in a record of the process that trains
_watched = None  # process, main thread, path
_is_recorded = False


def watch():
    """Record the exception that ends this process; never raise."""
    global _watched, _is_recorded
    try:
        path = os.environ.get(layout.ENV_PROGRESS_FILE)
        if not path or (_watched is not None and _watched[0] == os.getpid()):
            return
        _watched, _is_recorded = (os.getpid(), get_ident(), path + layout.RAISED_SUFFIX), False
        atexit.register(_record_last)
        show = sys.excepthook

        def excepthook(kind, value, trace):
            record(value, trace)
            show(kind, value, own_frames.remove(value, trace))

        sys.excepthook = excepthook
    except Exception:  # the launcher then reads the output
        pass


def record(value, trace):
    """Write the exception once, if it is the main thread's of a process that is watched; never raise."""
    global _is_recorded
    try:
        if _is_recorded or _watched is None or _watched[:2] != (os.getpid(), get_ident()):
            return
        path = _watched[2]
        is_attached = getattr(sys.modules.get("rankmend"), "_writer", None) is not None
        if not is_attached and _is_of_trainer(path):
            return  # what has started it fails in consequence
        attached = _ATTACHED if is_attached else b'{"attached": false'
        chain = _chain(value, trace)
        text = ', "pid": %d, "chain": %s}' % (os.getpid(), _json(chain))
        if len(attached) + len(text) > _RECORD_MAX:
            text = ', "pid": %d, "chain": %s}' % (os.getpid(), _json(chain[:1] + chain[-1:]))
        part = "%s.%d" % (path, os.getpid())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
            file.write(attached + text.encode("ascii"))
        os.rename(part, path)
        _is_recorded = True
    except Exception:  # as above
        pass


def _record_last():
    value = getattr(sys, "last_value", None)  # Python sets it before it calls the hook
    if value is not None:
        record(value, value.__traceback__)


def _is_of_trainer(path):
    try:
        with open(path, "rb") as file:
            return file.read(len(_ATTACHED)) == _ATTACHED
    except OSError:
        return False


def _json(value):
    # Not the module json: a script may have one of that name, and it would be found first or hidden.
    from _json import encode_basestring_ascii

    if isinstance(value, dict):
        return "{%s}" % ", ".join(
            "%s: %s" % (encode_basestring_ascii(name), _json(item)) for name, item in value.items()
        )
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(_json, value))
    return "%d" % value if isinstance(value, int) else encode_basestring_ascii(value)


def _chain(value, trace):
    """Return the exception and those that it came from, the newest first."""
    chain, seen = [], set()
    while value is not None and id(value) not in seen and len(chain) < _CHAIN_MAX:
        seen.add(id(value))
        first = _first_of_group(value)
        cause = value.__cause__ if first is None else first
        link = "cause" if cause is not None else "context"
        chain.append(
            {
                "type": _type_of(value),
                "text": _text_of(value),
                "frames": _frames(trace),
                "link": link,
            }
        )
        value = cause if cause is not None else _context_of(value)
        trace = getattr(value, "__traceback__", None)
    return chain


def _first_of_group(value):
    """Return the first exception of a group, which brought the group about; None where it is no group."""
    if not type(value).__name__.endswith("ExceptionGroup"):
        return None
    parts = getattr(value, "exceptions", None)
    first = parts[0] if type(parts) is tuple and parts else None
    return first if isinstance(first, BaseException) else None


def _context_of(value):
    return None if value.__suppress_context__ else value.__context__


def _type_of(value):
    kind = type(value)
    module = str(kind.__module__)
    name = kind.__qualname__
    return (name if module in ("builtins", "__main__") else "%s.%s" % (module, name))[:_PATH_MAX]


def _text_of(value):
    try:
        return str(value)[:_TEXT_MAX]
    except Exception:  # the exception's own code
        return "<the text of this exception can't be read>"


def _frames(trace):
    """Return file, line, function and module of the innermost frames, without those of rankmend."""
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__"))[:_PATH_MAX]
        if not module.startswith("rankmend.hook."):
            frames.append(
                (code.co_filename[-_PATH_MAX:], trace.tb_lineno, code.co_name[:_PATH_MAX], module)
            )
            del frames[:-_FRAMES_MAX]
        trace = trace.tb_next
    return frames
