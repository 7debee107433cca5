"""What rankmend's processes use: memory, descriptors, threads, and the bytes of journals.

Source: proc(5), proc_pid_smaps(5). PSS is what a process would free: pages that several share count in parts, so it also
moves with other processes. What a process has allocated itself is anonymous memory, and only that tells of a leak.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.soak.stage import Stage
from recovery.launcher.processes.process_tree import KernelProcess, descendants, read_processes

_HELPERS: Final = (
    (b"recovery.launcher.guardian.main", "guardian"),
    (b"rankmend.hook.fork_server", "fork server"),
)
_RANK: Final = b"training.py"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one kind of process of one part used at one time."""

    at_s: float  # since the soak began
    part: str  # "controller", "launcher n1", "guardian of launcher n1" ...
    life: int  # pid of the part's own process: it begins anew where that was killed
    processes: int
    pss_bytes: int
    rss_bytes: int
    own_bytes: int  # anonymous: what it has allocated itself
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What lay on disk and in shared memory at one time, in bytes."""

    at_s: float
    incidents: int
    controller: int  # its journals
    launchers: int  # their state folders
    runtime: int  # /dev/shm


def take_samples(stage: Stage, began_s: float) -> list[Sample]:
    """Return a sample of each kind of process that runs."""
    processes = read_processes()
    at_s = time.monotonic() - began_s
    found = []
    for part in stage.parts:
        pid = part.pid
        if pid is None or pid not in processes:
            continue
        groups: dict[str, list[KernelProcess]] = {part.name: [processes[pid]]}
        for process in descendants(pid, processes):
            helper = _helper_of(process.pid)
            if helper:
                groups.setdefault(f"{helper} of {part.name}", []).append(process)
        for name, group in groups.items():
            used = [one for one in (_usage(member) for member in group) if one is not None]
            if used:
                sums = [sum(column) for column in zip(*used, strict=True)]
                found.append(Sample(at_s, name, pid, len(used), *sums))
    return found


def _helper_of(pid: int) -> str:
    """Return what a process below a part is for; empty for a rank and what it has started."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    if not line or _RANK in line:
        return ""
    return next((name for text, name in _HELPERS if text in line), "")


def _usage(process: KernelProcess) -> tuple[int, int, int, int, int] | None:
    """Return PSS, RSS and anonymous memory in bytes, descriptors and threads, or None where it has just ended."""
    folder = Path(f"/proc/{process.pid}")
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        descriptors = sum(1 for _one in (folder / "fd").iterdir())
    except OSError:
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    if "Pss" not in sizes:
        return None
    return sizes["Pss"], sizes["Rss"], sizes["Anonymous"], descriptors, process.threads


def measure_stored(
    stage: Stage, began_s: float, incidents: int, runtimes: Iterable[Path]
) -> Stored:
    return Stored(
        time.monotonic() - began_s,
        incidents,
        sum(_sizes(stage.journals)),
        sum(size for part in stage.launchers for size in _sizes(stage.state_of(part.name.split()[1]))),
        sum(size for folder in runtimes for size in _sizes(folder)),
    )  # fmt: skip


def _sizes(folder: Path) -> Iterator[int]:
    for base, folders, names in os.walk(folder):  # what goes meanwhile is left out
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                yield Path(base, name).lstat().st_blocks * 512
