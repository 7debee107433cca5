"""Notes before which import the environment had changed, and which import changed it itself.

A library may read a variable at import, so the fork server has to import each package with the variables that
the script had set by then. `watch` puts a finder first that finds nothing of its own: at each search for a module it
compares the environment with that of the last search. For a top-level package, and for what is imported from
outside all others, it lets the other finders find and follows the import through ``spec._initializing``, which Python
sets while it runs the module: what changes meanwhile is the work of that import, all else is the script's.

It stays until the first step, where the rank tells (`rankmend.hook.imports`). Costs 0.6 us for a
module of the package that is being imported, 2 us for another's. Without a lock: threads that import at once may each note the same change, to no effect.
"""

import os
import sys
from _thread import get_ident
from importlib.machinery import ModuleSpec

from rankmend.hook import layout, variables

SITE = "sitecustomize"  # to it belongs what happens before the script: .pth files, usercustomize
_SITE_MODULES = (SITE, "usercustomize")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + "/"
_IN_PYTHON = ("built-in", "frozen")
_watch = None


def watch():
    """Begin, where the launcher asks what this rank imports; called before any user code."""
    global _watch
    try:
        if os.environ.get(layout.ENV_IMPORTS_FILE) and _watch is None:
            _watch = _Watch()
            sys.meta_path.insert(0, _watch)
            variables.follow(variables.Touched(os.environ._data))
    except Exception:  # the imports of the script go on, and nothing is told of them
        pass


def watch_forked(touched):
    """Begin in a rank that was forked in its script's first run; ``touched``: what follows its variables."""
    global _watch
    _watch = _Watch(os.environ._data.copy(), ())
    sys.meta_path.insert(0, _watch)
    variables.follow(touched)


def note_site():
    """Note that what has changed so far was changed before the script's first line."""
    try:
        if _watch is not None:
            _watch.look(SITE)
    except Exception:  # as above
        pass


def take():
    """End, and return the notes as an `ImportOrder`; None: this process took none."""
    global _watch
    taken, _watch = _watch, None
    if taken is None:
        return None
    if taken in sys.meta_path:
        sys.meta_path.remove(taken)
    touched = variables.end()
    return ImportOrder(taken.looks, taken.found_in, {} if touched is None else touched.values)


def started_with():
    """Return the environment that this process was started with, as bytes."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if entry)
    return {name: value for name, _equals, value in pairs}


def difference(before, after):
    """Return the variables that have another value after, with that value; None: removed."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {os.fsdecode(name): _text(after.get(name)) for name in sorted(names)}


def _text(value):
    return None if value is None else os.fsdecode(value)


def is_installed(origin):
    """Return whether a module found there is of Python or of an installed package."""
    if type(origin) is not str:
        return False
    return is_pythons_own(origin) or any(part in origin for part in _INSTALLED)


def is_pythons_own(origin):
    """Return whether a module found there belongs to Python's own library."""
    if origin in _IN_PYTHON:
        return True
    return origin.startswith(_LIBRARY) and not any(part in origin for part in _INSTALLED)


class ImportOrder:
    """In which order modules were searched for and the environment changed."""

    def __init__(self, looks, found_in, touched):
        self.touched = touched  # name: the values that a variable was set to, or None: any
        self._looks = looks
        self._found_in = found_in

    def arrange(self, modules):
        """Return modules ([name, ...]) by the time of their search, and changes as [index, variables].

        From the module at that index on, these variables differed from those at the start.
        """
        last = len(self._looks) - 1  # for one that was not searched for where we could see it
        at = {module[0]: self._found_in.get(module[0], last) for module in modules}
        arranged = sorted(modules, key=lambda module: at[module[0]])
        start, changes, now = self._looks[0][0], [], 0
        for index, module in enumerate(arranged):
            if at[module[0]] != now:
                now = at[module[0]]
                changes.append([index, difference(start, self._looks[now][0])])
        return arranged, changes

    def by_imports(self):
        """Return which variables the import of a module has set itself, by the module's name."""
        found = {}
        before, _by = self._looks[0]
        for after, by in self._looks[1:]:
            if by is not None:
                found.setdefault(by, {}).update(difference(before, after))
            before = after
        return found


class _Watch:
    def __init__(self, began=None, modules=None):
        """``began``: the environment that the script begins with; None: the one of the process's start.

        ``modules``: imported before, and told; None: those of this process.
        """
        # (environment, module whose import had changed it or None), the newest last
        self.looks = [(started_with() if began is None else began, None)]
        self.found_in = dict.fromkeys(
            sys.modules if modules is None else modules, 0
        )  # module: the look at its last search
        self._open = {}  # thread: the imports that it is in
        self.look(SITE)
        if len(self.looks) == 1:  # equal: the same objects are compared four times as quickly
            self.looks[0] = (os.environ._data.copy(), None)

    def look(self, by):
        # Comparing and copying a dict of bytes is one operation under the GIL.
        environment = os.environ._data
        if environment != self.looks[-1][0]:
            self.looks.append((environment.copy(), by))

    def begin(self, name):
        self._open.setdefault(get_ident(), []).append(name)  # its search has just looked

    def end(self, name):
        self.look(name)
        self._open[get_ident()].remove(name)

    def find_spec(self, name, path=None, target=None):
        try:
            opened = self._open.get(get_ident())
            if not opened:
                self.look(None)
            elif not name.startswith(opened[-1] + "."):  # else a part of the package itself
                self.look(opened[-1])
            self.found_in[name] = len(self.looks) - 1
            if not opened or "." not in name:
                return self._find(name, path, target)
        except Exception:  # the others will meet it themselves
            pass
        return None

    def _find(self, name, path, target):
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            if find is None:  # of the older kind, which only Python itself asks
                return None
            spec = find(name, path, target)
            if spec is not None:
                is_followed = is_installed(spec.origin) or name in _SITE_MODULES
                if is_followed and type(spec) is ModuleSpec:
                    spec.__class__ = _FollowedSpec
                return spec
        return None


class _FollowedSpec(ModuleSpec):
    """A module's spec that tells when its import begins and ends, and then is an ordinary one again."""

    def __setattr__(self, name, is_running):
        object.__setattr__(self, name, is_running)
        if name != "_initializing":
            return
        try:
            if not is_running:
                self.__class__ = ModuleSpec
            if _watch is not None:
                name = SITE if self.name in _SITE_MODULES else self.name
                (_watch.begin if is_running else _watch.end)(name)
        except Exception:  # the import under way is the script's
            pass


_FollowedSpec.__name__ = _FollowedSpec.__qualname__ = "ModuleSpec"
