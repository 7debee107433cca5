"""Which modules this process has imported itself, and not the one that it was forked from.

A look at a module writes to its page (a reference count), which the kernel then copies: a forked rank that looked at
each module of PyTorch would copy 10 MB, and take 10 to 60 ms for it. So the fork server looks before it forks, and the
rank looks at the rest.

Standard library and Python 3.8 only.
"""

import sys

_inherited = frozenset()  # type: frozenset[str]
_last = None  # the newest of these


def note():
    """Note the modules of this process: those that it imports from now on are new."""
    global _inherited, _last
    _last = next(reversed(sys.modules))
    _inherited = frozenset(sys.modules)


def find():
    """Return (name, module) of what was imported since `note`; of all modules if that was never called."""
    if _last is None:
        return list(sys.modules.items())
    names = []
    try:
        for name in reversed(sys.modules):  # the newest first
            if name == _last:
                break
            names.append(name)
    except RuntimeError:  # another thread imports
        names = list(sys.modules)
    new = [name for name in reversed(names) if name not in _inherited]
    return [(name, sys.modules[name]) for name in new if name in sys.modules]
