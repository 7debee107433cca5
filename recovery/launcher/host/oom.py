"""Counts out-of-memory kills in this process's cgroup.

Sources: Documentation/admin-guide/cgroup-v2.rst (memory.events, oom_kill) and
Documentation/admin-guide/cgroup-v1/memory.rst (memory.oom_control, oom_kill, Linux 4.13).
Both count kills in the cgroup whatever ran out: its own limit, an ancestor's, or the host.
"""

from pathlib import Path

from rankmend.errors import NoSourceError, SourceError


def find_oom_file(proc_cgroup: Path, cgroup_root: Path) -> Path:
    """Return the file that counts OOM kills for the process whose cgroup file is given."""
    try:
        lines = proc_cgroup.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise NoSourceError(f"cannot read {proc_cgroup}: {error.strerror}") from error
    candidates = []
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if "memory" in controllers.split(","):
            candidates.append(cgroup_root / "memory" / inside / "memory.oom_control")
            candidates.append(cgroup_root / "memory" / "memory.oom_control")
        elif not controllers:
            candidates.append(cgroup_root / inside / "memory.events")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise NoSourceError(f"no memory cgroup with an OOM counter for {proc_cgroup}")


def read_oom_kills(path: Path) -> int:
    """Return the number of OOM kills counted so far."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            name, _space, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    raise SourceError(f"no oom_kill line in {path}")


class OomCounter:
    """Counts OOM kills since the last look; on a node without the counter, always none."""

    def __init__(
        self,
        proc_cgroup: Path = Path("/proc/self/cgroup"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        try:
            self._path: Path | None = find_oom_file(proc_cgroup, cgroup_root)
            self._seen = read_oom_kills(self._path)
        except (NoSourceError, SourceError, ValueError):
            self._path = None
            self._seen = 0

    def take_new_kills(self) -> int:
        if self._path is None:
            return 0
        try:
            kills = read_oom_kills(self._path)
        except SourceError:
            return 0
        new, self._seen = kills - self._seen, kills
        return max(new, 0)
