"""Tells what the tests of each file cost: `pytest --cpu-seconds 30` prints the 30 files that took most CPU time.

Each worker counts in a cgroup of its own, so that what it starts is counted however it was started, and whoever reaps it.
Where no cgroup can be made, only the worker and the children that it has waited for are counted, and the table says so.
What several files share (the process that forks launchers, a Kubernetes) counts for whoever runs while it works.
"""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

_CGROUPS: Final = Path("/sys/fs/cgroup")
_NAME: Final = "rankmend-tests"
_MOUNTS: Final = (_CGROUPS / "unified", _CGROUPS)  # version 2, beside version 1 or alone


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-seconds",
        type=int,
        metavar="N",
        help="print the N files that took most CPU time, with all that their tests started",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Count in the processes that run tests, and add up in the one that has all reports."""
    rows_max = config.getoption("--cpu-seconds")
    if not rows_max:
        return
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", default=None):
        config.pluginmanager.register(CpuOfTests())
    if not is_worker:
        _remove_old_cgroups()
        config.pluginmanager.register(CpuTable(rows_max))


class CpuMeter:
    """Reads the CPU time of this process and all that it has started."""

    def __init__(self) -> None:
        self._cgroup = _own_cgroup()
        self.is_whole = self._cgroup is not None

    def seconds(self) -> float:
        if self._cgroup is None:
            return sum(os.times()[:4])
        text = (self._cgroup / "cpu.stat").read_text(encoding="ascii")
        return int(text.split()[1]) / 1e6  # usage_usec, the first line

    def close(self) -> None:
        """Remove the cgroup, unless something that a test has started outlives all tests."""
        if self._cgroup is not None:
            with contextlib.suppress(OSError):
                (self._cgroup.parent / "cgroup.procs").write_text("0", encoding="ascii")
                self._cgroup.rmdir()


def _own_cgroup() -> Path | None:
    """Move this process to a new cgroup, and return it."""
    mount = next((path for path in _MOUNTS if (path / "cgroup.procs").exists()), None)
    if mount is None:
        return None
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        within = next(line[3:] for line in lines if line.startswith("0::"))
        cgroup = mount / within.lstrip("/") / f"{_NAME}-{os.getpid()}"
        cgroup.mkdir()
        (cgroup / "cgroup.procs").write_text("0", encoding="ascii")
    except (OSError, StopIteration):
        return None
    return cgroup


class CpuOfTests:
    """The part of the process that runs tests: gives each report the CPU time since the one before."""

    def __init__(self) -> None:
        self._meter = CpuMeter()
        self._before_s = self._meter.seconds()

    def pytest_runtestloop(self) -> None:
        self._before_s = self._meter.seconds()  # collecting is no file's

    def pytest_unconfigure(self) -> None:
        self._meter.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now_s = self._meter.seconds()
        report.cpu_s = now_s - self._before_s  # type: ignore[attr-defined]  # pytest-xdist sends it
        report.cpu_is_whole = self._meter.is_whole  # type: ignore[attr-defined]
        self._before_s = now_s
        return report


def _remove_old_cgroups() -> None:
    """Remove those of earlier runs: what a worker has started may outlive it by a moment."""
    for mount in _MOUNTS:
        for cgroup in mount.glob(f"**/{_NAME}-*") if (mount / "cgroup.procs").exists() else ():
            with contextlib.suppress(OSError):  # it is in use
                cgroup.rmdir()


@dataclass(slots=True)
class Cost:
    wall_s: float = 0.0
    cpu_s: float = 0.0


class CpuTable:
    """The part of the process that has all reports."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._costs: dict[str, Cost] = defaultdict(Cost)  # by file
        self._is_whole = True
        self._began_s = time.monotonic()
        self._idle_before_s = _idle_core_seconds()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self._costs[report.nodeid.partition("::")[0]]
        cost.wall_s += report.duration
        cost.cpu_s += getattr(report, "cpu_s", 0.0)
        self._is_whole = self._is_whole and getattr(report, "cpu_is_whole", True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        took_s = time.monotonic() - self._began_s
        idle_s = _idle_core_seconds() - self._idle_before_s
        cpu_s = sum(cost.cpu_s for cost in self._costs.values())
        terminalreporter.section(f"{self._rows_max} files that took most CPU time")
        if not self._is_whole:
            terminalreporter.write_line("no cgroup: without what was not waited for")
        for line in rows(self._costs, self._rows_max):
            terminalreporter.write_line(line)
        terminalreporter.write_line(
            f"all files: {cpu_s:.0f} CPU-seconds in {took_s / 60:.1f} min; "
            f"{idle_s:.0f} core-seconds of the machine were idle"
        )


def rows(costs: dict[str, Cost], rows_max: int) -> list[str]:
    """Return a line for each of the dearest files: CPU-seconds, seconds, name."""
    dearest = sorted(costs.items(), key=lambda row: -row[1].cpu_s)[:rows_max]
    return [f"{cost.cpu_s:7.1f} CPU-s {cost.wall_s:7.1f} s  {file}" for file, cost in dearest]


def _idle_core_seconds() -> float:
    """Return how long the machine's cores have been idle since it started, added up."""
    with contextlib.suppress(OSError):
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[1])
    return 0.0
