"""The agent's own resource use. Source: /proc/self, always the real one."""

import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, RUSAGE_SELF, getpagesize, getrlimit, getrusage
from typing import Final

from agent.metrics import Family, Metric, MetricType, counter, gauge
from agent.ranks.table import RankTable
from rankmend.clock import Clock
from rankmend.errors import SourceError
from rankmend.version import RANKMEND_VERSION

FAMILIES: Final[tuple[Family, ...]] = (
    # Prometheus' own names for any process, and for a build: dashboards of all exporters have them
    Family(
        "process_cpu_seconds_total",
        MetricType.COUNTER,
        "seconds",
        (),
        "CPU time of the agent, without its children.",
    ),
    Family(
        "process_resident_memory_bytes",
        MetricType.GAUGE,
        "bytes",
        (),
        "Resident memory of the agent.",
    ),
    Family(
        "process_virtual_memory_bytes",
        MetricType.GAUGE,
        "bytes",
        (),
        "Virtual memory of the agent.",
    ),
    Family("process_open_fds", MetricType.GAUGE, "", (), "Open file descriptors of the agent."),
    Family(
        "process_max_fds",
        MetricType.GAUGE,
        "",
        (),
        "Most file descriptors that the agent may open.",
    ),
    Family(
        "process_start_time_seconds",
        MetricType.GAUGE,
        "seconds",
        (),
        "When the agent started, in seconds since 1970.",
    ),
    gauge(
        "build_info",
        "",
        ("version", "python"),
        "Version of rankmend that serves this page; always 1.",
    ),
    gauge("agent_info", "", ("version", "python"), "Version of the agent; always 1."),
    gauge("agent_uptime_seconds", "seconds", (), "Time since the agent started."),
    gauge("agent_memory_bytes", "bytes", (), "Resident memory of the agent."),
    counter("agent_cpu_seconds", "seconds", (), "CPU time that the agent has used."),
    gauge("agent_threads", "", (), "Threads of the agent."),
    gauge("agent_descriptors", "", (), "Open file descriptors of the agent."),
    gauge("agent_connections", "", (), "Launchers connected to the agent's socket."),
    counter(
        "agent_connections_refused",
        "",
        (),
        "Connections that the agent closed: a bad message, a foreign file, a bound reached.",
    ),
    gauge(
        "agent_node_renamed",
        "",
        (),
        "1 while the node has another name than the agent reports under. Absent where that name was configured.",
    ),
)


def _count_descriptors(folder: str) -> int:
    """Return how many descriptors are open: since Linux 6.2 the folder has that size."""
    return os.stat(folder).st_size or len(os.listdir(folder))  # noqa: PTH116, PTH208 - Path is dear


class AgentCollector:
    name = "agent"
    interval_s = 5.0

    def __init__(
        self,
        clock: Clock,
        table: RankTable,
        self_root: Path = Path("/proc/self"),
        read_name: Callable[[], str] | None = None,
    ) -> None:
        """``read_name`` returns the node's name of now; None: the name was configured and does not change."""
        self._clock = clock
        self._table = table
        self._root = self_root
        self._read_name = read_name
        self._name = None if read_name is None else read_name()
        self._started_at_s = clock.now_s()
        self._started_at_unix_s = clock.unix_s()
        self._info = (("version", RANKMEND_VERSION), ("python", platform.python_version()))

    def collect(self) -> Iterator[Metric]:
        try:
            pages = (self._root / "statm").read_text(encoding="ascii").split()
            virtual_pages, resident_pages = int(pages[0]), int(pages[1])
            descriptors = _count_descriptors(str(self._root / "fd"))
        except (OSError, ValueError, IndexError) as error:
            raise SourceError(f"cannot read {self._root}") from error
        used = getrusage(RUSAGE_SELF)
        yield Metric("process_cpu_seconds_total", used.ru_utime + used.ru_stime)
        yield Metric("process_resident_memory_bytes", resident_pages * getpagesize())
        yield Metric("process_virtual_memory_bytes", virtual_pages * getpagesize())
        yield Metric("process_open_fds", descriptors)
        yield Metric("process_max_fds", getrlimit(RLIMIT_NOFILE)[0])
        yield Metric("process_start_time_seconds", self._started_at_unix_s)
        yield Metric("rankmend_build_info", 1, self._info)
        yield Metric("rankmend_agent_info", 1, self._info)
        yield Metric("rankmend_agent_uptime_seconds", self._clock.now_s() - self._started_at_s)
        yield Metric("rankmend_agent_memory_bytes", resident_pages * getpagesize())
        yield Metric("rankmend_agent_cpu_seconds_total", used.ru_utime + used.ru_stime)
        yield Metric("rankmend_agent_threads", threading.active_count())
        yield Metric("rankmend_agent_descriptors", descriptors)
        yield Metric("rankmend_agent_connections", self._table.connection_count)
        yield Metric("rankmend_agent_connections_refused_total", self._table.refused_total)
        if self._read_name is not None:
            yield Metric("rankmend_agent_node_renamed", int(self._read_name() != self._name))
