"""Hardware of this node: readings that explain why a rank is slow, and the kinds that failures are counted by.

Every 4 s: how long each rank's main thread waited for a CPU, the throttling of its control groups,
and the pressure on the node. So there is a past when a rank becomes slow, without an agent. Only if
an order requests it: the metrics of `detectors.slow.cause_table` from the node agent's page, three
times. A thread reads; the launcher's loop only picks up the results. The kinds of hardware are read
once, at the launcher's start.

Source: Linux Documentation/scheduler/sched-stats.rst (/proc/PID/schedstat, nanoseconds),
        admin-guide/cgroup-v2.rst (cpu.stat), scheduler/sched-bwc.rst (the same in version 1),
        accounting/psi.rst (/proc/pressure). Kinds: /proc/driver/nvidia/gpus/*/information (NVIDIA's driver: "Model: ..."),
        /sys/class/drm/card*/device/product_name (amdgpu, Linux Documentation/gpu/amdgpu/driver-misc.rst),
        /sys/class/infiniband/*/hca_type (Documentation/ABI/stable/sysfs-class-infiniband),
        /sys/class/dmi/id/{sys_vendor,product_name} (Documentation/ABI/testing/sysfs-firmware-dmi-tables). All are readable by everybody.
Cost:   three small files a rank and three a node, 0.2 ms a rank and 4 s; kinds: a small file for each GPU and NIC, below 1 ms.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Final

from detectors.formats.prometheus import read_page
from detectors.slow.cause_table import METRICS, SELECTIONS
from detectors.slow.hardware_reading import RUN_QUEUE, HardwareReading
from rankmend.agent_page import LISTENS_AT, read_agent
from rankmend.clock import Clock
from rankmend.errors import SourceError
from rankmend.printable import printable
from recovery.messages.exchange import KIND_MAX, Hardware, HardwareSeries, NodeKinds

log = logging.getLogger(__name__)

SAMPLE_S: Final = 4.0
KEPT: Final = 45  # samples: 3 minutes, of which a rank is slow for 10 s when it is named
PAGE_URL: Final = f"{LISTENS_AT}/metrics"
# The slowest device collectors run every 5 s: three pages over 12 s contain two of their runs.
PAGES: Final = 3
PAGE_PAUSE_S: Final = 6.0
PAGE_BYTES_MAX: Final = 8 << 20  # 0.5 MB for 8 GPUs with 18 NVLinks each
SERIES_MAX: Final = 2_000  # 1,000 for 8 GPUs with 18 NVLinks each
REPORTS_MAX: Final = 3  # reports that carry an answer, so that one may be lost
GROUPS_DEPTH_MAX: Final = 12  # Kubernetes and Slurm nest at most 8 deep
_STOP_S_MAX: Final = 2.0  # one read of a page
_ANSWER_S_MAX: Final = 1.0  # on the same machine, from memory: milliseconds
_FILE_BYTES_MAX: Final = 65_536
THROTTLED: Final = "rankmend_cgroup_cpu_throttled_seconds_total"
PRESSURE: Final = "rankmend_pressure_some_seconds_total"
CGROUP_INFO: Final = "rankmend_rank_cgroup_info"
OWN: Final = frozenset({RUN_QUEUE, THROTTLED, PRESSURE, CGROUP_INFO})  # not taken from a page

Labels = tuple[tuple[str, str], ...]
_Key = tuple[str, Labels]

_FILES_MAX: Final = 64
_MIXED: Final = "several"


def read_agent_page(url: str = PAGE_URL) -> str:
    """Return the page of this node's agent, or raise SourceError with the reason why there is none."""
    page = read_agent(url, bytes_max=PAGE_BYTES_MAX, timeout_s=_ANSWER_S_MAX)
    try:
        return page.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"the page at {url} is not UTF-8: {error}") from error


class HardwareWatch:
    """Keeps the newest readings of this node. All methods are for the launcher's thread."""

    def __init__(
        self,
        job_id: str,
        clock: Clock,
        read_agent: Callable[[], str] = read_agent_page,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        sample_s: float = SAMPLE_S,
        page_pause_s: float = PAGE_PAUSE_S,
    ) -> None:
        self._job_id = job_id
        self._clock = clock
        self._read_agent = read_agent
        self._reader = NodeReader(job_id, proc, cgroups)
        self._sample_s = sample_s
        self._page_pause_s = page_pause_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._should_stop = False
        self._pids: dict[int, int] = {}
        self._kept: dict[_Key, deque[tuple[float, float]]] = {}
        self._requested = 0  # number of the record that requests it; 0: none
        self._pages: list[tuple[float, list[HardwareReading]]] = []
        self._note = ""
        self._answered = 0
        self._reports_left = 0
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S_MAX)

    def watch(self, pids: Mapping[int, int]) -> None:
        """Watch these ranks from now on: rank and process."""
        with self._lock:
            self._pids = dict(pids)
            if not pids:
                self._kept.clear()

    def ask(self, number: int) -> None:
        """Request an answer for the record with this number; 0 requests none."""
        with self._lock:
            if number == self._requested:
                return
            self._requested, self._pages, self._note = number, [], ""
        self._wake.set()

    def take_report(self) -> Hardware | None:
        """Return the answer to the request, in the first reports after it was made."""
        with self._lock:
            if not self._requested or self._answered != self._requested or self._reports_left == 0:
                return None
            self._reports_left -= 1
            now_s, requested, note = self._clock.now_s(), self._requested, self._note
            series = {key: list(points) for key, points in self._kept.items()}
            pages = list(self._pages)
        for at_s, readings in pages:
            for reading in readings:
                series.setdefault(_key_of(reading), []).append((at_s, reading.value))
        if len(series) > SERIES_MAX:
            note = f"{len(series)} series; only {SERIES_MAX} are reported"
        rows = tuple(
            HardwareSeries(
                metric,
                labels,
                tuple((round(now_s - at_s, 3), value) for at_s, value in points),
            )
            for (metric, labels), points in list(series.items())[:SERIES_MAX]
        )
        return Hardware(requested, rows, note)

    # In the thread.

    def _run(self) -> None:
        due_s = self._clock.now_s()
        while not self._should_stop:
            try:
                self._sample()
                self._look_at_agent()
            except Exception:  # this only helps people: the ranks and the launcher work without it
                log.exception("hardware can't be read")
            due_s = max(due_s + self._sample_s, self._clock.now_s())
            while not self._should_stop and (left_s := due_s - self._clock.now_s()) > 0:
                if self._wake.wait(left_s):
                    self._wake.clear()
                    break  # there is a request

    def _sample(self) -> None:
        with self._lock:
            pids = dict(self._pids)
        if not pids:
            return
        read = list(self._reader.read(pids))
        now_s = self._clock.now_s()
        with self._lock:
            if pids != self._pids:
                return  # another attempt has started meanwhile
            for key, value in read:
                self._kept.setdefault(key, deque(maxlen=KEPT)).append((now_s, value))
            oldest_s = now_s - KEPT * self._sample_s
            for key in [key for key, retained in self._kept.items() if retained[-1][0] < oldest_s]:
                del self._kept[key]  # a group that the ranks have left

    def _look_at_agent(self) -> None:
        """If requested, read the agent's page a few times, then mark the request as done."""
        requested = self._requested
        if not requested or requested == self._answered:
            return
        for number in range(PAGES):
            if number:
                self._pause(self._page_pause_s)
            if self._should_stop or requested != self._requested:
                return
            try:
                text = self._read_agent()
                at_s = self._clock.now_s()
                wanted = METRICS - OWN
                readings = [
                    item for item in read_page(text, wanted, "here", at_s) if _is_of_a_cause(item)
                ]
            except SourceError as error:
                self._note = str(error)
                break
            with self._lock:
                if requested == self._requested:
                    self._pages.append((at_s, readings))
        self._sample()
        with self._lock:
            self._answered, self._reports_left = requested, REPORTS_MAX

    def _pause(self, seconds: float) -> None:
        until_s = self._clock.now_s() + seconds
        while not self._should_stop and (left_s := until_s - self._clock.now_s()) > 0:
            self._wake.wait(min(left_s, self._sample_s))
            self._wake.clear()
            self._sample()


def _is_of_a_cause(reading: HardwareReading) -> bool:
    """Return whether a reading belongs to the metrics of a cause."""
    chosen = SELECTIONS[reading.metric]
    is_chosen = chosen is None or dict(reading.labels).get(chosen[0]) in chosen[1]
    return is_chosen and isfinite(reading.value)


def _key_of(reading: HardwareReading) -> _Key:
    """Return metric and labels, with the device back among the labels under its own name."""
    labels = dict(reading.labels)
    if reading.device:
        named = "uuid" if "gpu" in labels or "pci_bus_id" in labels else "device"
        labels[named] = reading.device
    return reading.metric, tuple(sorted(labels.items()))


class NodeReader:
    """Reads without an agent: about ranks, their control groups and the node."""

    def __init__(self, job_id: str, proc: Path, cgroups: Path) -> None:
        self._job_id = job_id
        self._proc = proc
        self._cgroups = cgroups

    def read(self, pids: Mapping[int, int]) -> Iterator[tuple[_Key, float]]:
        """Return all current series, without those that can't be read."""
        groups: set[str] = set()
        for rank, pid in pids.items():
            labels = (("job_id", self._job_id), ("rank", str(rank)))
            fields = _read(self._proc / str(pid) / "schedstat").split()
            if len(fields) == 3 and fields[1].isdigit():
                yield (RUN_QUEUE, labels), int(fields[1]) / 1e9
            group = cpu_group(_read(self._proc / str(pid) / "cgroup"))
            if group is not None:
                yield (CGROUP_INFO, (("cgroup", group), *labels)), 1.0
                path = PurePosixPath(group)
                groups |= {str(parent) for parent in (path, *list(path.parents)[:GROUPS_DEPTH_MAX])}
        for group in sorted(groups):
            throttled_s = self._throttled_s(group)
            if throttled_s is not None:
                yield (THROTTLED, (("cgroup", group),)), throttled_s
        for resource in ("cpu", "io", "memory"):
            some = _read(self._proc / "pressure" / resource).partition("\n")[0]
            total = some.rpartition("total=")[2]
            if some.startswith("some ") and total.isdigit():
                yield (PRESSURE, (("resource", resource),)), int(total) / 1e6

    def _throttled_s(self, group: str) -> float | None:
        inside = group.lstrip("/")
        for mounted in ("cpu", "cpu,cpuacct", "unified", ""):
            text = _read(self._cgroups / mounted / inside / "cpu.stat")
            for line in text.splitlines():
                name, _space, value = line.partition(" ")
                if name in ("throttled_usec", "throttled_time") and value.isdigit():
                    return int(value) / (1e6 if name == "throttled_usec" else 1e9)
        # The machine's root group has no quota; in a container `/` is the container's group, which may have one.
        return 0.0 if group == "/" else None


def cpu_group(text: str) -> str | None:
    """Return the control group whose CPU quota limits a process, from the process's cgroup file."""
    unified = None
    for line in text.split("\n"):
        _number, _colon, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/") or ".." in PurePosixPath(path).parts:
            continue
        if "cpu" in controllers.split(","):
            return path  # a version 1 hierarchy, which has this controller
        if not controllers:
            unified = path
    return unified


def _read(path: Path) -> str:
    """Return a small file's text; empty if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def read_node_kinds(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> NodeKinds:
    """Return the kinds; empty where there is none, or it can't be read."""
    nvidia = (_model(_read(path)) for path in _find(proc / "driver/nvidia/gpus", "*/information"))
    amd = (_read(path).strip() for path in _find(sys / "class/drm", "card*/device/product_name"))
    nics = (_read(path).strip() for path in _find(sys / "class/infiniband", "*/hca_type"))
    dmi = sys / "class/dmi/id"
    return NodeKinds(
        gpu=_one([*nvidia, *amd]),
        nic=_one(nics),
        node=_one([f"{_read(dmi / 'sys_vendor').strip()} {_read(dmi / 'product_name').strip()}"]),
    )


def _find(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))[:_FILES_MAX]
    except OSError:
        return []


def _model(text: str) -> str:
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _colon, value in lines if name.strip() == "Model"), "")


def _one(names: Iterable[str]) -> str:
    known = {printable(name).strip()[:KIND_MAX] for name in names} - {""}
    return known.pop() if len(known) == 1 else _MIXED if known else ""
