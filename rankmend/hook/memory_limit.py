"""How much memory this process and its cgroup may have: the least of the machine's and of each cgroup's limit.

Sources: Documentation/admin-guide/cgroup-v2.rst (memory.max), cgroup-v1/memory.rst (memory.limit_in_bytes).
Standard library and Python 3.8 only.
"""

import os

_FILES = ("memory.max", "memory.limit_in_bytes")


def read(proc="/proc", cgroups="/sys/fs/cgroup"):
    """Return bytes. Raises OSError or ValueError where the kernel tells nothing."""
    return min([_machine(proc), *_limits(proc, cgroups)])


def resident(proc="/proc"):
    """Return the bytes that this process has in memory."""
    with open("%s/self/statm" % proc, encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _machine(proc):
    with open("%s/meminfo" % proc, encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:"))


def _limits(proc, cgroups):
    """Return the limits of this process's cgroups and of those above."""
    found = []
    with open("%s/self/cgroup" % proc, encoding="utf-8", errors="replace") as file:
        for line in file:
            _number, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = os.path.join(cgroups, "memory") if controllers else cgroups
            parts = [part for part in path.split("/") if part]
            for depth in range(len(parts) + 1):
                folder = os.path.join(top, *parts[:depth])
                found += [limit for limit in map(_limit, _paths(folder)) if limit is not None]
    return found


def _paths(folder):
    return [os.path.join(folder, name) for name in _FILES]


def _limit(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # not there; "max"
        return None
