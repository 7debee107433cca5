"""Tells the launcher, at the first step, which installed modules this rank has imported, and in which environment.

The fork server (`rankmend.hook.fork_server`) imports the same before it forks ranks. Only what lies in
Python's own library or in a folder of installed packages is told, never the user's own modules.
Costs 1 to 5 ms once: a look at each module, and one file. A forked rank looks at those alone that its server had not imported.
"""

import json
import os
import sys

from rankmend.hook import import_order, layout, new_modules, variables

_OURS = ("rankmend", "sitecustomize", "usercustomize", "__main__", "__mp_main__")
_is_told = False
_shared = None  # in a forked rank: the packages of which its server knows
_is_first = False  # in a rank that was forked in its script's first run
_path = None  # in a forked rank: the file that it writes


def begin_forked(packages):
    """Note that this rank was forked by a server that knows of these packages.

    The file is then the rank's alone: what its script starts, such as ranks of its own, was forked of no server, and would
    tell a list as if nothing were known.
    """
    global _shared, _path
    _shared = packages
    _path = os.environ.get(layout.ENV_IMPORTS_FILE)
    os.environ.pop(layout.ENV_IMPORTS_FILE, None)


def begin_first():
    """Note that this rank was forked in its script's first run: it tells what it imports after its server."""
    global _is_first
    begin_forked(frozenset())
    _is_first = True


def tell():
    """Write the list once, where the launcher asks for it; never raise."""
    global _is_told
    try:
        path = _path or os.environ.get(layout.ENV_IMPORTS_FILE)
        if not path or _is_told:
            return
        _is_told = True
        before = started_with()
        if _is_first:
            reported = describe(import_order.take(), before)
            reported["follows"] = True
        elif _shared is not None:
            variables.end()
            reported = {"more": sorted(_packages() - _shared)}
        elif before.get(layout.ENV_IMPORTS_FILE) == path:
            reported = describe(import_order.take(), before)
        else:
            return  # a standby that has become a rank: what it was started with tells nothing
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        part = path + ".part"
        with os.fdopen(os.open(part, flags, 0o600), "w", encoding="ascii") as file:
            file.write(json.dumps(reported))  # ten times as quick as json.dump
        os.rename(part, path)
    except Exception:  # the next start is slower for it, and no more
        pass


def describe(order, before):
    """Return what to tell; ``order``: None where nobody has noted it. ``before``: as started."""
    modules, in_order, by_imports, touched = installed_modules(), None, {}, {}
    if order is not None:
        modules, in_order = order.arrange(modules)
        by_imports, touched = order.by_imports(), order.touched
    return {
        "modules": modules,
        "changes": in_order,
        "by_imports": by_imports,
        "touched": touched,
        "environment": changes(before),
    }


def _packages():
    """Return the installed packages of which something new is imported, without Python's own."""
    own = import_order.is_pythons_own
    return {name.partition(".")[0] for name, origin in installed_modules() if not own(origin)}


def installed_modules():
    """Return [name, where it was found] of installed modules, in the order of their imports.

    In a forked rank only of those that are new there.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    own = {*_OURS, (getattr(main, "name", None) or "").partition(".")[0]}
    found = []
    for name, module in new_modules.find():
        if name.partition(".")[0] in own:
            continue
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if getattr(spec, "name", None) == name and import_order.is_installed(origin):
            found.append([name, origin])
    return found


def started_with():
    """Return the environment that this process was started with."""
    environment = import_order.started_with()
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def changes(before):
    """Return the variables that have changed since, with their values now; None: removed."""
    names = set(before) | set(os.environ)
    now = {name: os.environ.get(name) for name in names}
    return {name: now[name] for name in sorted(names) if now[name] != before.get(name)}
