"""Whether there is room for a snapshot file: on its file system, in the cgroup, in the machine.

Pages of shared memory count as memory of the cgroup whose process has touched them first, and a
limit passed kills the rank. So nothing is allocated that does not clearly fit, and what the other ranks of
the node will need counts as taken.
Sources: cgroup-v2.rst (memory.current, memory.stat), cgroup-v1/memory.rst (memory.usage_in_bytes).
"""

import collections
import os

from rankmend.hook.snapshots.layout import BUFFERS

RESERVE_BYTES_MAX = 256 << 20
RESERVE_RATIO = 0.05
SUFFIX_NEW = ".new"

# (limit, use, prefix of the fields in memory.stat) of cgroups of version 2 and 1
_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)

Room = collections.namedtuple("Room", "free_bytes limited_by total_bytes")


def read(folder, proc="/proc", cgroups="/sys/fs/cgroup"):
    """Return the room for new files in a folder. Raises OSError or ValueError where the kernel tells nothing."""
    system = os.statvfs(folder)
    found = [(system.f_bavail * system.f_frsize, "the file system of %s" % folder)]
    total, available = _machine(proc)
    found.append((available, "the memory of this machine"))
    found += _cgroups(proc, cgroups)
    free, limited_by = min(found)
    return Room(max(free, 0), limited_by, total)


def reserve(total_bytes):
    """Return what stays free."""
    return min(RESERVE_BYTES_MAX, int(total_bytes * RESERVE_RATIO))


def _machine(proc):
    with open("%s/meminfo" % proc, encoding="ascii") as file:
        sizes = {}
        for line in file:
            name, _colon, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes[name] = int(rest.split()[0]) * 1024
    if len(sizes) != 2:
        raise ValueError("%s/meminfo has no MemAvailable" % proc)
    return sizes["MemTotal"], sizes["MemAvailable"]


def _cgroups(proc, cgroups):
    """Yield what each cgroup of this process, and each above, may still take."""
    with open("%s/self/cgroup" % proc, encoding="utf-8", errors="replace") as file:
        for line in file:
            _number, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            folder = os.path.join(cgroups, "memory") if controllers else cgroups
            for part in ["", *(part for part in path.split("/") if part)]:
                folder = os.path.join(folder, part) if part else folder
                for files in _FILES:
                    free = _free(folder, *files)
                    if free is not None:
                        yield free, "the memory limit of the cgroup %s" % folder


def _free(folder, limit_name, use_name, prefix):
    try:
        with open(os.path.join(folder, limit_name), encoding="ascii") as file:
            limit = int(file.read())
        with open(os.path.join(folder, use_name), encoding="ascii") as file:
            used = int(file.read())
    except (OSError, ValueError):  # not there; "max"
        return None
    return limit - used + _reclaimable(os.path.join(folder, "memory.stat"), prefix)


def _reclaimable(path, prefix):
    """Return how much of the use is cache of files that the kernel drops before a limit hurts."""
    inactive, active = prefix + "inactive_file", prefix + "active_file"
    sizes = {inactive: 0, active: 0}
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _space, value = line.partition(" ")
                if name in sizes:
                    sizes[name] = int(value)
    except (OSError, ValueError):
        pass
    # As for MemAvailable, half of what is in use counts as lasting (mm/show_mem.c).
    return sizes[inactive] + sizes[active] // 2


def promised(folder, rank, size, buffers, local_world_size):
    """Return the bytes that other ranks of this node will still take for as many buffers of this size."""
    files, missing = {}, 0
    for entry in os.scandir(folder):
        owner = _owner(entry.name)
        if owner is None or owner == rank:
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        missing += max(status.st_size - status.st_blocks * 512, 0)  # sized, not yet allocated
        files[owner] = files.get(owner, 0) + 1
    counts = sorted(files.values(), reverse=True)[: max(local_world_size - 1, 0)]
    counts += [0] * (local_world_size - 1 - len(counts))
    return missing + size * sum(max(buffers - count, 0) for count in counts)


def _owner(name):
    """Return the rank whose snapshot file has this name, or None."""
    parts = name.split(".")
    if len(parts) < 3 or parts[2] != "snapshot" or not parts[0].startswith("rank-"):
        return None
    number = parts[0][len("rank-") :]
    return int(number) if number.isdigit() and parts[1] in map(str, range(BUFFERS)) else None
