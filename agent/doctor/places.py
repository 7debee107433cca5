"""Where a host's files are: the live host, or a tree with the files of one; and in which container, if any.

Sources: /.dockerenv and /run/.containerenv (Docker, Podman), the variable ``container`` (systemd.io/CONTAINER_INTERFACE);
include/linux/proc_ns.h: the first PID namespace has the inode 0xEFFFFFFC.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from detectors.doctor.check import SourceFact, SourceState
from detectors.doctor.host import IN_KUBERNETES
from rankmend.errors import NoSourceError, SourceError

_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class Places:
    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    root: Path = Path("/")  # above dev, run, etc
    environment: Mapping[str, str] = field(default_factory=dict)
    is_live: bool = (
        True  # False: a recorded tree; this machine's devices, limits and clock are not its
    )

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def try_source(collect: Callable[[], Iterable[object]]) -> SourceFact:
    """Return what a collector of the agent says of its source."""
    try:
        for _metric in collect():
            pass
    except NoSourceError as error:
        return SourceFact(SourceState.ABSENT, str(error))
    except SourceError as error:
        return SourceFact(SourceState.BROKEN, str(error))
    return SourceFact(SourceState.MEASURED)


def find_container(places: Places) -> str:
    """Return which container this is, in a word; empty: none that is known."""
    if not places.is_live:
        return ""
    if "KUBERNETES_SERVICE_HOST" in places.environment:
        return IN_KUBERNETES
    if places.at(".dockerenv").exists():
        return "Docker"
    if places.at("run/.containerenv").exists():
        return "Podman"
    return places.environment.get("container", "")[:32]


def has_own_pids(places: Places) -> bool:
    """Return whether this is a PID namespace other than the host's."""
    try:
        return os.readlink(places.procfs / "self" / "ns" / "pid") != _FIRST_PID_NAMESPACE  # noqa: PTH115 - no path
    except OSError:
        return False
