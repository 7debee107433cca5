"""Limits that hold ranks back: memory, OOM kills, CPU throttling and pids of their control groups,
and how long each was ready to run and had no CPU.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (memory.{current,max,events}, cpu.stat,
        pids.{current,max}) and cgroup-v1/memory.rst, scheduler/sched-bwc.rst (memory.
        {usage_in_bytes,limit_in_bytes,oom_control,failcnt}, cpu.stat in nanoseconds);
        <procfs>/<pid>/cgroup says where a rank is, <sysfs>/fs/cgroup is where they are mounted.
        scheduler/sched-stats.rst: the second number of <procfs>/<pid>/schedstat, nanoseconds.
Cost:   some 8 small reads a group, one a rank.

A limit can sit on any group above the rank (a job's, a container's), so each group on the way up
is read, without the root. A group stays watched after its ranks are gone, until its folder is:
the OOM kill of a rank is counted in a group that the rank has left by dying.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from agent.collectors.host import parse_number
from agent.metrics import Family, Metric, counter, gauge
from agent.ranks.table import RankSample
from rankmend.errors import NoSourceError, SourceError

GROUPS_MAX: Final = 64  # 8 ranks of one job share theirs; the newest found are kept
DEPTH_MAX: Final = 12  # Kubernetes and Slurm nest at most 8 deep
_BYTES_MAX: Final = 65_536
_V1_LIMIT_NONE: Final = 1 << 62  # no limit is LONG_MAX rounded down to a page

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("rank_cgroup_info", "", ("job_id", "rank", "cgroup"), "The rank's cgroup; always 1."),
    gauge(
        "cgroup_success",
        "",
        ("cgroup",),
        "1 when all files of the cgroup could be understood, 0 when one could not.",
    ),
    gauge("cgroup_memory_used_bytes", "bytes", ("cgroup",), "Memory charged to the cgroup."),
    gauge("cgroup_memory_limit_bytes", "bytes", ("cgroup",), "Its limit; no series without one."),
    counter("cgroup_memory_limit_hits", "", ("cgroup",), "Times that the limit was reached."),
    counter(
        "cgroup_oom_kills",
        "",
        ("cgroup",),
        "Processes killed for want of memory; v2 counts those of the cgroups below as well.",
    ),
    counter("cgroup_cpu_periods", "", ("cgroup",), "Scheduling periods in which it wanted to run."),
    counter(
        "cgroup_cpu_throttled_periods", "", ("cgroup",), "Periods in which its CPU quota ran out."
    ),
    counter(
        "cgroup_cpu_throttled_seconds",
        "seconds",
        ("cgroup",),
        "Time during which it was kept from running by its CPU quota, over all CPUs.",
    ),
    gauge("cgroup_pids", "", ("cgroup",), "Processes and threads of the cgroup."),
    gauge("cgroup_pids_limit", "", ("cgroup",), "Their limit; no series without one."),
)


@dataclass(frozen=True, slots=True)
class CgroupMembership:
    """The control groups of one process: its path in the v2 tree, and in the v1 tree of each controller."""

    unified: str | None
    by_controller: Mapping[str, str]

    @property
    def name(self) -> str:
        """The one path that says most to a person: where memory is accounted."""
        return self.by_controller.get("memory") or self.unified or "/"


def parse_membership(text: str) -> CgroupMembership:
    """Return what a ``/proc/<pid>/cgroup`` says."""
    unified, by_controller = None, {}
    for line in text.rstrip("\n").split("\n"):  # names may hold what splitlines splits at
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not number.isdigit() or not path.startswith("/"):
            raise SourceError(f"cgroup line is not '<id>:<controllers>:/<path>': {line[:200]!r}")
        if ".." in PurePosixPath(path).parts:
            raise SourceError(f"cgroup lies outside of this cgroup namespace: {path[:200]!r}")
        if number == "0" and not controllers:
            unified = path
        else:
            by_controller.update(dict.fromkeys(controllers.split(","), path))
    if unified is None and not by_controller:
        raise SourceError("the process is in no cgroup")
    return CgroupMembership(unified, by_controller)


def parse_flat(text: str) -> dict[str, int]:
    """Return a flat-keyed file such as memory.events: ``oom_kill 1``, a line a key."""
    table = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        table[key] = parse_number(value)
    return table


def parse_limit(text: str) -> int | None:
    """Return a limit, or None where there is none (``max``, or v1's largest number)."""
    if text == "max":
        return None
    limit = parse_number(text)
    return None if limit >= _V1_LIMIT_NONE else limit


@dataclass(frozen=True, slots=True)
class _Group:
    """One group by the folders in which its files are; equal names are one group."""

    name: str
    folders: tuple[tuple[str, Path], ...]  # (controller, folder)

    def folder(self, controller: str) -> Path | None:
        return dict(self.folders).get(controller)


class CgroupCollector:
    name = "cgroup"
    interval_s = 5.0

    def __init__(
        self,
        procfs_root: Path,
        sysfs_root: Path,
        ranks: Callable[[], Iterable[RankSample]],
    ) -> None:
        self._procfs_root = procfs_root
        self._root = sysfs_root / "fs" / "cgroup"
        self._ranks = ranks
        self._groups: dict[str, _Group] = {}  # oldest found first

    def collect(self) -> Iterator[Metric]:
        if not self._root.is_dir():
            raise NoSourceError(f"no control groups at {self._root}")
        for sample in self._ranks():
            labels = (
                ("job_id", str(sample.identity.job_id)),
                ("rank", str(sample.identity.rank)),
            )
            if (waited_s := self._run_queue_s(sample)) is not None:
                yield Metric("rankmend_rank_run_queue_seconds_total", waited_s, labels)
            if (membership := self._membership_of(sample)) is None:
                continue
            named = (*labels, ("cgroup", membership.name))
            yield Metric("rankmend_rank_cgroup_info", 1, named)
            self._watch(membership)
        for group in list(self._groups.values()):
            if not any(folder.is_dir() for _controller, folder in group.folders):
                del self._groups[group.name]
                continue
            yield from _read_group(group)

    def _run_queue_s(self, sample: RankSample) -> float | None:
        if not (pid := _pid_of(sample)):
            return None
        try:
            fields = _read(self._procfs_root / str(pid) / "schedstat").split()
        except (NoSourceError, SourceError):  # it has ended, or a kernel without CONFIG_SCHED_INFO
            return None
        return parse_number(fields[1]) / 1e9 if len(fields) > 1 else None

    def _membership_of(self, sample: RankSample) -> CgroupMembership | None:
        if not (pid := _pid_of(sample)):
            return None
        try:
            return parse_membership(_read(self._procfs_root / str(pid) / "cgroup"))
        except (NoSourceError, SourceError):  # the rank has ended, or is not ours to see
            return None

    def _watch(self, membership: CgroupMembership) -> None:
        """Note the group of a process and those above it."""
        path = PurePosixPath(membership.name)
        depth = min(len(path.parts) - 1, DEPTH_MAX)
        for up in range(depth):
            name = str(path.parents[up - 1]) if up else str(path)
            folders = tuple(self._folders(membership, up))
            if folders:
                self._groups.pop(name, None)  # the newest found goes to the end
                self._groups[name] = _Group(name, folders)
        while len(self._groups) > GROUPS_MAX:
            del self._groups[next(iter(self._groups))]

    def _folders(self, membership: CgroupMembership, up: int) -> Iterator[tuple[str, Path]]:
        for controller in ("memory", "cpu", "pids"):
            if (path := membership.by_controller.get(controller)) is not None:
                mounted = self._root / controller
                if not mounted.is_dir():
                    mounted = self._root / "cpu,cpuacct"  # without systemd's link
            elif (path := membership.unified) is not None:
                mounted = self._root / "unified"
                mounted = mounted if mounted.is_dir() else self._root
            else:
                continue
            parts = PurePosixPath(path).parts[1:]
            if len(parts) > up:  # never the root group: it has no limits
                yield controller, mounted.joinpath(*parts[: len(parts) - up])


def _pid_of(sample: RankSample) -> int:
    return sample.pid or (sample.progress.pid if sample.progress else 0)


def _read_group(group: _Group) -> Iterator[Metric]:
    labels = (("cgroup", group.name),)
    metrics: list[Metric] = []
    is_broken = False
    for controller, folder in group.folders:
        for read in _READERS[controller]:
            try:
                metrics.extend(
                    Metric(f"rankmend_cgroup_{name}", value, labels) for name, value in read(folder)
                )
            except NoSourceError:
                continue
            except SourceError:
                is_broken = True
    if metrics or is_broken:
        yield Metric("rankmend_cgroup_success", int(not is_broken), labels)
        yield from metrics


Values = Iterator[tuple[str, float]]


def _memory_used(folder: Path) -> Values:
    yield (
        "memory_used_bytes",
        parse_number(_read_either(folder, "memory.current", "memory.usage_in_bytes")),
    )


def _memory_limit(folder: Path) -> Values:
    limit = parse_limit(_read_either(folder, "memory.max", "memory.limit_in_bytes"))
    if limit is not None:
        yield "memory_limit_bytes", limit


def _memory_events(folder: Path) -> Values:
    events = parse_flat(_read(folder / "memory.events"))  # v2, with the groups below
    for name, key in (("oom_kills_total", "oom_kill"), ("memory_limit_hits_total", "max")):
        if key in events:
            yield name, events[key]


def _oom_control(folder: Path) -> Values:
    control = parse_flat(_read(folder / "memory.oom_control"))  # v1
    if "oom_kill" in control:  # since 4.13
        yield "oom_kills_total", control["oom_kill"]


def _failcnt(folder: Path) -> Values:
    yield "memory_limit_hits_total", parse_number(_read(folder / "memory.failcnt"))  # v1


def _cpu_stat(folder: Path) -> Values:
    stat = parse_flat(_read(folder / "cpu.stat"))
    for name, key in (("periods", "nr_periods"), ("throttled_periods", "nr_throttled")):
        if key in stat:
            yield f"cpu_{name}_total", stat[key]
    if "throttled_usec" in stat:  # v2
        yield "cpu_throttled_seconds_total", stat["throttled_usec"] / 1e6
    elif "throttled_time" in stat:  # v1
        yield "cpu_throttled_seconds_total", stat["throttled_time"] / 1e9


def _pids(folder: Path) -> Values:
    yield "pids", parse_number(_read(folder / "pids.current"))


def _pids_limit(folder: Path) -> Values:
    limit = parse_limit(_read(folder / "pids.max"))
    if limit is not None:
        yield "pids_limit", limit


_READERS: Final[Mapping[str, tuple[Callable[[Path], Values], ...]]] = {
    "memory": (_memory_used, _memory_limit, _memory_events, _oom_control, _failcnt),
    "cpu": (_cpu_stat,),
    "pids": (_pids, _pids_limit),
}


def _read_either(folder: Path, v2: str, v1: str) -> str:
    try:
        return _read(folder / v2)
    except NoSourceError:
        return _read(folder / v1)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).decode("utf-8").strip()
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError) as error:
        raise NoSourceError(f"no {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}") from error
