"""Prints lines on the rank's stderr; the launcher adds the rank's number."""

import sys


def warn(text, *values):
    """Print one line, ``values`` put into ``text`` by ``%``; never raise."""
    try:
        sys.stderr.write("rankmend: %s\n" % (text % tuple("%.200s" % (value,) for value in values)))
        sys.stderr.flush()
    except Exception:  # stderr may be closed or full: then nobody can be told
        pass
