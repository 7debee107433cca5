"""Processes by state, and those that have been in state D for long.

Source: <root>/<pid>/stat, proc_pid_stat(5); <root>/sys/kernel/{pid_max,threads-max}, Linux
        Documentation/admin-guide/sysctl/kernel.rst.
Cost:   16 us a process under load: 10 ms for 600, hence every 10 s; no privilege (with ``hidepid`` on /proc
        only the agent's own processes are seen).

A process is stuck when every look has found it in state D since ``STUCK_S_MIN``: a disk, a server
or a driver does not answer it, and no signal ends it. A node on which ranks write checkpoints has
processes in state D at any moment; the same one for a minute is no ordinary write.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from agent.collectors.host import parse_number
from agent.metrics import Family, Metric, gauge
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

STUCK_S_MIN: Final = 50.0  # gpud asks for 5 checks in a row (os/threshold.go); ours are 10 s apart
STUCK_SHOWN_MAX: Final = 16
_STAT_BYTES_MAX: Final = 4096
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "disk_sleep",
    "Z": "zombie",
    "T": "stopped",
    "t": "traced",
    "I": "idle",
    "X": "dead",
    "P": "parked",
}
_STATE_BYTES: Final = {f"{letter} ".encode(): state for letter, state in _STATES.items()}
_WAITING: Final = "disk_sleep"
_STAT: Final = re.compile(r"(\d{1,10}) \((.*)\) (\S) (.*)", re.DOTALL)

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("host_processes", "", ("state",), "Processes by state; disk_sleep is state D."),
    gauge(
        "host_processes_stuck", "", (), "Processes that each look has found in state D for 50 s."
    ),
    gauge(
        "host_process_stuck_seconds",
        "seconds",
        ("pid", "process"),
        "How long at least a stuck process has been in state D; of the 16 longest.",
    ),
    gauge("host_pid_max", "", (), "Process numbers that there are."),
    gauge("host_threads_max", "", (), "Threads that the kernel lets run."),
)


class ProcessState(NamedTuple):
    pid: int
    name: str
    state: str
    started_ticks: int  # since boot; with the pid it names one process


def parse_stat(text: str) -> ProcessState:
    """Return what a ``/proc/<pid>/stat`` says. The name may hold spaces and parentheses."""
    found = _STAT.fullmatch(text.strip())
    fields = found.group(4).split(None, 19) if found else []
    if found is None or len(fields) < 19:
        raise SourceError(f"stat is not '<pid> (<name>) <state> ...': {text[:80]!r}")
    return ProcessState(
        pid=parse_number(found.group(1)),
        name=found.group(2),
        state=_STATES.get(found.group(3), "other"),
        started_ticks=parse_number(fields[18]),
    )


def read_state(data: bytes) -> str | None:
    """Return the state alone, which is all that is asked of most; None where it is in no known place."""
    at = data.rfind(b") ")  # the name is the only field that may hold one
    return _STATE_BYTES.get(data[at + 2 : at + 4]) if at > 0 else None


class ProcessesCollector:
    name = "processes"
    interval_s = 10.0

    def __init__(self, procfs_root: Path, clock: Clock) -> None:
        self._root = procfs_root
        self._clock = clock
        self._waiting_since_s: dict[tuple[int, int], float] = {}

    def collect(self) -> Iterator[Metric]:
        counts = dict.fromkeys([*_STATES.values(), "other"], 0)
        waiting: dict[tuple[int, int], ProcessState] = {}
        for data in self._read_all():
            state = read_state(data)
            if state is None or state == _WAITING:
                try:
                    process = parse_stat(data.decode("utf-8", "replace"))
                except SourceError:
                    continue
                state = process.state
                if state == _WAITING:
                    waiting[process.pid, process.started_ticks] = process
            counts[state] += 1
        if not any(counts.values()):
            raise NoSourceError(f"no processes under {self._root}")
        for state, count in counts.items():
            if count or state not in ("parked", "dead", "other"):
                yield Metric("rankmend_host_processes", count, (("state", state),))
        yield from self._look_for_stuck(waiting)
        for name, file in (("pid_max", "pid_max"), ("threads_max", "threads-max")):
            try:
                text = (self._root / "sys" / "kernel" / file).read_text(encoding="ascii")
                yield Metric(f"rankmend_host_{name}", parse_number(text.strip()))
            except (OSError, UnicodeDecodeError, SourceError):
                continue  # absent in a recorded tree

    def _look_for_stuck(self, waiting: dict[tuple[int, int], ProcessState]) -> Iterator[Metric]:
        now_s = self._clock.now_s()
        self._waiting_since_s = {key: self._waiting_since_s.get(key, now_s) for key in waiting}
        ages_s = {key: now_s - since_s for key, since_s in self._waiting_since_s.items()}
        stuck = sorted(
            (key for key, age_s in ages_s.items() if age_s >= STUCK_S_MIN),
            key=lambda key: (-ages_s[key], key),
        )
        yield Metric("rankmend_host_processes_stuck", len(stuck))
        for key in stuck[:STUCK_SHOWN_MAX]:
            labels = (("pid", str(key[0])), ("process", waiting[key].name[:64]))
            yield Metric("rankmend_host_process_stuck_seconds", ages_s[key], labels)

    def _read_all(self) -> Iterator[bytes]:
        try:
            names = os.listdir(self._root)  # noqa: PTH208 - half the time of Path.iterdir
        except OSError as error:
            raise SourceError(f"cannot list {self._root}") from error
        for name in names:
            if not name.isdigit():
                continue
            try:
                descriptor = os.open(f"{self._root}/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # it has ended since
            try:
                data = os.read(descriptor, _STAT_BYTES_MAX)
            except OSError:
                continue
            finally:
                os.close(descriptor)
            yield data
