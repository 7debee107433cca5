"""CPU time, load, memory, swap, OOM kills, descriptors and kernel taint of the node.

Source: Linux Documentation/filesystems/proc.rst and proc(5): <root>/{uptime,stat,loadavg,meminfo,
        vmstat}; Documentation/admin-guide/sysctl/fs.rst: sys/fs/file-nr;
        Documentation/admin-guide/tainted-kernels.rst: sys/kernel/tainted.
Cost:   0.3 ms a run through kept descriptors, most of it in the kernel; no privilege.

A file that makes no sense costs its own values only and is named by ``host_file_success``.
"""

import os
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from agent.sampling.demand import UNREAD_S_MAX, Demand
from agent.sources.kept_files import KeptFiles
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

FILE_BYTES_MAX: Final = 1 << 20  # /proc/stat of 1,024 CPUs has 150 kB
# guest and guest_nice are left out: the kernel counts them in user and nice as well
_CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_LOAD_WINDOWS: Final = ("1m", "5m", "15m")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# by bit: Documentation/admin-guide/tainted-kernels.rst
TAINTS: Final = (
    "proprietary_module",
    "forced_module",
    "out_of_spec_system",
    "forced_unload",
    "machine_check",
    "bad_page",
    "user_request",
    "oops",
    "acpi_override",
    "warning",
    "staging_driver",
    "firmware_workaround",
    "out_of_tree_module",
    "unsigned_module",
    "soft_lockup",
    "live_patch",
    "auxiliary",
    "randstruct",
    "test",
    "fwctl",
)

_MEMORY: Final = (  # metric, field of meminfo in kB
    ("size", "MemTotal"),
    ("available", "MemAvailable"),
    ("shared", "Shmem"),
    ("dirty", "Dirty"),
    ("writeback", "Writeback"),
    ("unreclaimable", "SUnreclaim"),
    ("corrupted", "HardwareCorrupted"),
)
_MEMINFO: Final = frozenset(field for _name, field in _MEMORY) | {
    "SwapTotal",
    "SwapFree",
    "Hugepagesize",
    "HugePages_Total",
    "HugePages_Free",
}
_VMSTAT: Final = frozenset({"pswpin", "pswpout", "oom_kill"})

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("host_uptime_seconds", "seconds", (), "Time since the node booted."),
    gauge("host_cpus", "", (), "Logical CPUs that are online."),
    counter(
        "host_cpu_seconds",
        "seconds",
        ("mode",),
        "CPU time of all CPUs by mode; user contains guest.",
    ),
    gauge(
        "host_load_processes",
        "processes",
        ("window",),
        "Load average: processes that run or wait, over 1m, 5m and 15m.",
    ),
    gauge("host_memory_size_bytes", "bytes", (), "Memory of the node."),
    gauge(
        "host_memory_available_bytes",
        "bytes",
        (),
        "Memory that can be had without swapping (MemAvailable).",
    ),
    gauge(
        "host_memory_shared_bytes",
        "bytes",
        (),
        "Shared memory and tmpfs, /dev/shm among it (Shmem).",
    ),
    gauge("host_swap_size_bytes", "bytes", (), "Swap space of the node."),
    gauge("host_swap_used_bytes", "bytes", (), "Swap space in use."),
    counter("host_swap_in_bytes", "bytes", (), "Read back from swap since boot."),
    counter("host_swap_out_bytes", "bytes", (), "Written to swap since boot."),
    gauge(
        "host_file_success",
        "",
        ("file",),
        "1 when a file of /proc could be understood, 0 when not: its values are then missing.",
    ),
    gauge("host_threads", "", (), "Threads of all processes."),
    gauge("host_tasks_running", "", (), "Threads that run or could run now."),
    gauge("host_tasks_blocked", "", (), "Threads that wait for a disk or a server now."),
    gauge("host_memory_dirty_bytes", "bytes", (), "Written by programs and not yet to disk."),
    gauge("host_memory_writeback_bytes", "bytes", (), "Being written to disk now."),
    gauge(
        "host_memory_unreclaimable_bytes",
        "bytes",
        (),
        "Kernel memory that can't be reclaimed (SUnreclaim); grows with a leak in a driver.",
    ),
    gauge(
        "host_memory_corrupted_bytes",
        "bytes",
        (),
        "Memory that the kernel has taken out of use after memory errors (HardwareCorrupted).",
    ),
    gauge("host_huge_pages_size_bytes", "bytes", (), "Huge pages of the default size."),
    gauge("host_huge_pages_available_bytes", "bytes", (), "Huge pages that nobody uses."),
    counter("host_oom_kills", "", (), "Processes killed for want of memory since boot."),
    gauge("host_descriptors", "", (), "Open files of the whole node (file-nr)."),
    gauge("host_descriptors_max", "", (), "Files that the node can have open (file-max)."),
    gauge("host_kernel_taint", "", (), "The kernel's taint bits as one number, 0 when untainted."),
    gauge(
        "host_kernel_taint_info",
        "",
        ("reason",),
        "One reason why the kernel is tainted; always 1.",
    ),
)


def parse_number(text: str) -> int:
    """Return a decimal number of at most 64 bits."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise SourceError(f"no decimal number: {text[:80]!r}")
    return int(text)


def parse_seconds(text: str) -> float:
    """Return a number such as ``350735.47``: digits, a point, digits."""
    whole, point, part = text.partition(".")
    parse_number(whole)
    if point:
        parse_number(part)
    return float(text)


def parse_table(text: str, wanted: AbstractSet[str]) -> dict[str, int]:
    """Return the wanted lines such as ``MemTotal:  16384 kB`` or ``oom_kill 0``, name to number.

    Lines that nobody wants cost nothing and, whatever they hold, take no other with them.
    """
    table = {}
    text = f"\n{text}\n"
    for name in wanted:  # a search for each is a tenth of looking at vmstat's 180 lines
        for begin in (f"\n{name}:", f"\n{name} "):
            if (at := text.rfind(begin)) >= 0:
                rest = text[at + len(begin) : text.index("\n", at + 1)]
                table[name] = parse_number(rest.removesuffix(" kB").strip())
                break
    return table


def decode_taint(mask: int) -> list[str]:
    """Return the names of the reasons for which a kernel is tainted."""
    names = [name for bit, name in enumerate(TAINTS) if mask >> bit & 1]
    unknown = mask >> len(TAINTS)
    return [*names, *(f"bit_{len(TAINTS) + bit}" for bit in range(64) if unknown >> bit & 1)]


def read_uptime(text: str) -> Iterator[Metric]:
    yield Metric("rankmend_host_uptime_seconds", parse_seconds(text.partition(" ")[0]))


def read_stat(text: str) -> Iterator[Metric]:
    cpus, rows = 0, {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in ("cpu", "procs_running", "procs_blocked"):
            rows[name] = [parse_number(word) for word in rest.split()]
        cpus += name.startswith("cpu") and name[3:].isdigit()
    if len(rows.get("cpu", ())) < 4 or not cpus:
        raise SourceError(f"stat has no CPU: {text[:80]!r}")
    for mode, ticks in zip(_CPU_MODES, rows["cpu"], strict=False):  # old kernels have fewer
        labels = (("mode", mode),)
        yield Metric("rankmend_host_cpu_seconds_total", ticks / _TICKS_PER_S, labels)
    yield Metric("rankmend_host_cpus", cpus)
    for state in ("running", "blocked"):
        if len(numbers := rows.get(f"procs_{state}", [])) == 1:
            yield Metric(f"rankmend_host_tasks_{state}", numbers[0])


def read_loadavg(text: str) -> Iterator[Metric]:
    words = text.split()
    if len(words) < 4:
        raise SourceError(f"loadavg is not '<1m> <5m> <15m> <running>/<all> ...': {text[:80]!r}")
    for window, word in zip(_LOAD_WINDOWS, words[:3], strict=True):
        yield Metric("rankmend_host_load_processes", parse_seconds(word), (("window", window),))
    yield Metric("rankmend_host_threads", parse_number(words[3].partition("/")[2]))


def read_meminfo(text: str) -> Iterator[Metric]:
    table = parse_table(text, _MEMINFO)
    if "MemTotal" not in table:
        raise SourceError(f"meminfo has no MemTotal: {text[:80]!r}")
    for name, field in _MEMORY:
        if field in table:  # a kernel without it has no such value: absent, not 0
            yield Metric(f"rankmend_host_memory_{name}_bytes", table[field] * 1024)
    if "SwapTotal" in table and "SwapFree" in table:
        used = max(0, table["SwapTotal"] - table["SwapFree"])
        yield Metric("rankmend_host_swap_size_bytes", table["SwapTotal"] * 1024)
        yield Metric("rankmend_host_swap_used_bytes", used * 1024)
    page_bytes = table.get("Hugepagesize", 0) * 1024
    if page_bytes and "HugePages_Total" in table and "HugePages_Free" in table:
        total, free = table["HugePages_Total"], table["HugePages_Free"]
        yield Metric("rankmend_host_huge_pages_size_bytes", total * page_bytes)
        yield Metric("rankmend_host_huge_pages_available_bytes", free * page_bytes)


def read_vmstat(text: str) -> Iterator[Metric]:
    table = parse_table(text, _VMSTAT)
    if not table:
        raise SourceError(f"vmstat has none of {', '.join(sorted(_VMSTAT))}: {text[:80]!r}")
    for name, field in (("in", "pswpin"), ("out", "pswpout")):
        if field in table:
            yield Metric(f"rankmend_host_swap_{name}_bytes_total", table[field] * _PAGE_BYTES)
    if "oom_kill" in table:  # since 4.13
        yield Metric("rankmend_host_oom_kills_total", table["oom_kill"])


def read_file_nr(text: str) -> Iterator[Metric]:
    words = text.split()
    if len(words) != 3:
        raise SourceError(f"file-nr is not '<allocated> <free> <max>': {text[:80]!r}")
    allocated, free, most = (parse_number(word) for word in words)
    yield Metric("rankmend_host_descriptors", allocated - free)
    yield Metric("rankmend_host_descriptors_max", most)


def read_tainted(text: str) -> Iterator[Metric]:
    mask = parse_number(text)
    yield Metric("rankmend_host_kernel_taint", mask)
    for reason in decode_taint(mask):
        yield Metric("rankmend_host_kernel_taint_info", 1, (("reason", reason),))


_FILES: Final[tuple[tuple[str, Callable[[str], Iterator[Metric]]], ...]] = (
    ("uptime", read_uptime),
    ("stat", read_stat),
    ("loadavg", read_loadavg),
    ("meminfo", read_meminfo),
    ("vmstat", read_vmstat),
    ("sys/fs/file-nr", read_file_nr),
    ("sys/kernel/tainted", read_tainted),
)
# No check reads them, and `stat` is the dearest: the kernel adds up each CPU's interrupts for it.
SHOWN_FILES: Final = frozenset({"uptime", "stat"})
# Checks read them over minutes, or go by what stays until the next boot; the kernel's log tells of OOM kills at once.
SLOW_FILES: Final = frozenset({"vmstat", "sys/kernel/tainted"})
SLOW_S: Final = 5.0
SHOWN_METRICS: Final = frozenset(
    {
        "rankmend_host_uptime_seconds",
        "rankmend_host_cpu_seconds_total",
        "rankmend_host_cpus",
        "rankmend_host_tasks_running",
        "rankmend_host_tasks_blocked",
    }
)


class HostCollector:
    name = "host"
    interval_s = 1.0

    def __init__(
        self, procfs_root: Path, clock: Clock | None = None, demand: Demand | None = None
    ) -> None:
        """With clock and demand, `SHOWN_FILES` are read before somebody is expected to look, `SLOW_FILES` also each `SLOW_S`."""
        self._root = procfs_root
        self._clock = clock
        self._demand = demand
        self._shown_at_s = self._slow_at_s = float("-inf")
        self._made: dict[str, tuple[str, tuple[Metric, ...]]] = {}  # by file, with its text
        self._files = KeptFiles(bytes_max=FILE_BYTES_MAX)

    def collect(self) -> Iterator[Metric]:
        self._files.begin_run()
        left_out = self._left_out()
        errors: list[str] = []
        found: list[Metric] = []
        is_measured = False
        for name, read in _FILES:
            if name in left_out and name in self._made:
                found += self._made[name][1]
                is_measured = True
                continue
            labels = (("file", name),)
            try:
                text = self._files.read(f"{self._root}/{name}")
                made = self._made.get(name)
                if made is None or made[0] != text:
                    metrics = (Metric("rankmend_host_file_success", 1, labels), *read(text))
                    made = self._made[name] = (text, metrics)
            except NoSourceError as error:
                self._made.pop(name, None)
                errors.append(str(error))
                continue
            except SourceError as error:
                self._made.pop(name, None)
                errors.append(f"{name}: {error}")
                found.append(Metric("rankmend_host_file_success", 0, labels))
                continue
            is_measured = True
            found += made[1]
        if not is_measured:  # every node has these files
            raise SourceError("; ".join(errors))
        return iter(found)

    def _left_out(self) -> AbstractSet[str]:
        """Return the files that are not read in this run."""
        if self._clock is None or self._demand is None:
            return frozenset()
        now_s = self._clock.now_s()
        # the interval of 1 s is kept to some milliseconds
        is_due = now_s - self._shown_at_s >= UNREAD_S_MAX - 0.5
        if is_due or self._demand.is_expected(0.0, self.interval_s):
            self._shown_at_s = self._slow_at_s = now_s
            return frozenset()
        if now_s - self._slow_at_s >= SLOW_S - 0.5:
            self._slow_at_s = now_s
            return SHOWN_FILES
        return SHOWN_FILES | SLOW_FILES
