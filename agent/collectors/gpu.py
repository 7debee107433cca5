"""GPUs: what NVML says of each, who is on them, and how the collector itself fares.

Source: NVML, in a child of its own (`agent/nvml/monitor.py`): nothing here can block.
Cost:   see docs/reference/gpu.md.

Two collectors: `gpu` is broken when NVML does not answer, and its values then leave the page;
`gpu_state` says all the while which GPUs answer, and how old the newest answer of each is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from operator import is_
from pathlib import Path
from typing import Final

from agent.collectors.gpu_families import FAMILIES
from agent.metrics import Metric
from agent.nvml.fields import FAST_SHOWN, NO_GPU, PERIOD_S_BY_GROUP
from agent.nvml.known_gpus import GPUS_MAX, GpuView, MonitorState, MonitorView, Values
from agent.nvml.monitor import GpuMonitor
from agent.ranks.rank_processes import find_rank
from agent.ranks.table import RankSample
from agent.sampling.collection import STALE_INTERVALS, STALE_S_MIN
from rankmend.errors import NoSourceError, SourceError
from rankmend.progress import RankIdentity

FIRST_ANSWER_S_MAX: Final = 8.0  # for the first run: less than `--once` waits
SHOWN_METRICS: Final = frozenset(
    {
        "rankmend_gpu_clock_hertz",
        "rankmend_gpu_fan_ratio",
        "rankmend_gpu_memory_reserved_bytes",
        "rankmend_gpu_memory_size_bytes",
        "rankmend_gpu_memory_used_bytes",
        "rankmend_gpu_performance_state_id",
        *(f"rankmend_gpu_{field.name}" for field in FAST_SHOWN),
    }
)
LISTED_PROCESSES_MAX: Final = 32  # a GPU, with pid and name
PROCESS_RUNS: Final = 3  # a process is looked up this seldom, as the driver is asked for processes
UNREAD_RUNS_MAX: Final = 2  # values that have become old leave the page so much later
SKIPPED_RUNS_MAX: Final = (
    2  # in a row, while nothing is new: the driver's child reports its sweeps as seldom
)
_FAMILY_BY_NAME: Final = {family.name: family for family in FAMILIES}

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Part:
    """All metrics of one GPU, with what they were made of."""

    basis: tuple[object, ...]
    metrics: tuple[Metric, ...]
    seen: tuple[object, ...]  # what is cheap to compare: no message has come about this GPU
    runs: int = 0  # since they were made
    unread_runs: int = 0  # since the ages of its groups were looked at


@dataclass(frozen=True, slots=True)
class _Made:
    """The metrics of one group of values."""

    revision: int
    labels: Labels
    values: Values
    metrics: tuple[Metric, ...]


_NOTHING_MADE: Final = _Made(-1, (), (), ())


class _Standing:
    """Knows an answer for as long as nothing is new about the GPUs but the age of their values."""

    def __init__(self, monitor: GpuMonitor) -> None:
        self._monitor = monitor
        self._basis: object = None
        self._answer: tuple[Metric, ...] = ()
        self.skipped = 0  # runs since the answer was made

    def find(self, *basis: object) -> tuple[Metric, ...] | None:
        """Return the answer if it still holds. ``basis``: what it is made of besides the GPUs."""
        number = self._monitor.steady_number()
        now = None if number is None else (number, *basis)
        is_same = self._answer and now is not None and now == self._basis
        if is_same and self.skipped < SKIPPED_RUNS_MAX:
            self.skipped += 1
            return self._answer
        self._basis, self._answer = now, ()  # none stays if the run fails
        return None

    def keep(self, answer: tuple[Metric, ...]) -> tuple[Metric, ...]:
        self._answer, self.skipped = answer, 0
        return answer


class GpuCollector:
    name = "gpu"
    interval_s = 1.0

    def __init__(
        self,
        monitor: GpuMonitor,
        interval_s: float,
        expected_count: int | None,
        ranks: Callable[[], Sequence[RankSample]],
        procfs_root: Path,
    ) -> None:
        self._monitor = monitor
        self._sampled_every_s = interval_s
        self._expected_count = expected_count
        self._ranks = ranks
        self._procfs = procfs_root
        self._made: dict[tuple[int, str], _Made] = {}  # by GPU and group
        self._counted: dict[int, tuple[tuple[object, ...], list[Metric]]] = {}  # by GPU
        self._parts: dict[int, _Part] = {}  # by GPU
        self._given: tuple[tuple[tuple[Metric, ...], ...], tuple[Metric, ...]] = ((), ())
        self._kept = _Standing(monitor)
        self._is_first = True

    def collect(self) -> Sequence[Metric]:
        rank_by_pid = self._rank_by_pid()
        ranks = [(pid, rank.identity) for pid, rank in rank_by_pid.items()]
        if (standing := self._kept.find(ranks)) is not None:
            return standing
        wait_s, self._is_first = FIRST_ANSWER_S_MAX if self._is_first else 0.0, False
        view = self._monitor.view(wait_s)
        if view.state is MonitorState.ABSENT and self._expected_count is None:
            raise NoSourceError(view.problem)
        if view.count == 0 and not self._expected_count:
            raise NoSourceError("the driver lists no GPU")
        if (
            view.is_mismatched
        ):  # one finding says so (gpu_driver_mismatch); the GPUs are well for all that is known
            raise NoSourceError(f"the driver was replaced under its module: {view.problem}")
        if view.released_s is not None:
            raise SourceError(f"an operator has released the GPUs {view.released_s:.0f} s ago")
        if not any(is_fresh(gpu, self._sampled_every_s) for gpu in view.gpus):
            raise SourceError(view.problem or "no GPU has answered")
        parts = tuple([self._part(gpu, rank_by_pid, ranks) for gpu in view.gpus])
        before, given = self._given
        if len(parts) != len(before) or not all(map(is_, parts, before)):
            given = tuple(chain.from_iterable(parts))
            self._given = (parts, given)
        return self._kept.keep(given)

    def _part(
        self,
        gpu: GpuView,
        rank_by_pid: dict[int, RankSample],
        ranks: list[tuple[int, RankIdentity]],
    ) -> tuple[Metric, ...]:
        """Return the metrics of a GPU: the same tuple as before where nothing has changed."""
        fresh = is_fresh(gpu, self._sampled_every_s)
        part = self._parts.get(gpu.index)
        seen = (gpu.revision, fresh, ranks if gpu.processes else ())
        if (
            part is not None
            and part.unread_runs < UNREAD_RUNS_MAX
            and gpu.revision
            and part.seen == seen
        ):
            part.unread_runs += 1 + self._kept.skipped
            part.runs += 1 + self._kept.skipped
            return part.metrics
        groups = self._fresh_groups(gpu) if fresh else []
        basis = (
            *(labels_of(gpu), gpu.errors, gpu.last_xid, gpu.events, gpu.xids, gpu.seconds),
            *(fresh, gpu.is_lost, gpu.needs_reset),
            [(group, gpu.groups[group].revision) for group in groups],
            gpu.processes,
            ranks if gpu.processes else (),
        )
        if part is not None and part.basis == basis:
            part.seen, part.unread_runs = seen, 0
            part.runs += 1 + self._kept.skipped
            if not gpu.processes or part.runs < PROCESS_RUNS:
                return part.metrics
        found = [*self._counters(gpu)]
        if fresh:
            self._readings(gpu, groups, found)
            found += self._processes(gpu, rank_by_pid)
        if part is None or [*part.metrics] != found:
            part = _Part(basis, tuple(found), seen)
        part.basis, part.seen, part.runs, part.unread_runs = basis, seen, 0, 0
        self._parts[gpu.index] = part
        return part.metrics

    def _fresh_groups(self, gpu: GpuView) -> list[str]:
        """Return the groups of values that are not too old."""
        fresh = []
        for group, read in gpu.groups.items():
            period_s = max(PERIOD_S_BY_GROUP.get(group, 0.0), self._sampled_every_s)
            if read.age_s <= max(STALE_INTERVALS * period_s, STALE_S_MIN):
                fresh.append(group)
        return fresh

    def stop(self) -> None:
        """End the collector child: a GPU that nobody holds can be reset."""
        self._monitor.stop()

    def _counters(self, gpu: GpuView) -> Sequence[Metric]:
        """Return what was counted; what stands where it stood was made before."""
        counted = (labels_of(gpu), gpu.errors, gpu.last_xid, gpu.events, gpu.xids, gpu.seconds)
        before, made = self._counted.get(gpu.index, ((), []))
        if counted != before:
            now = [*_counters(gpu)]
            if len(now) == len(made):
                now = [old if old == new else new for old, new in zip(made, now, strict=True)]
            made = now
            self._counted[gpu.index] = (counted, made)
        return made

    def _readings(self, gpu: GpuView, groups: Sequence[str], found: list[Metric]) -> None:
        labels = labels_of(gpu)
        if not gpu.is_lost:
            found.append(Metric("rankmend_gpu_reset_required", int(gpu.needs_reset), labels))
        for group in groups:
            read = gpu.groups[group]
            made = self._made.get((gpu.index, group), _NOTHING_MADE)
            if made.revision != read.revision:  # most groups are read less often than shown
                if made.labels != labels or len(made.values) != len(read.values):
                    made = _NOTHING_MADE
                metrics = tuple(_metrics(labels, read.values, made.values, made.metrics))
                made = self._made[gpu.index, group] = _Made(
                    read.revision, labels, read.values, metrics
                )
            found += made.metrics

    def _rank_by_pid(self) -> dict[int, RankSample]:
        return {rank.pid: rank for rank in self._ranks() if rank.pid}

    def _processes(self, gpu: GpuView, rank_by_pid: dict[int, RankSample]) -> Iterator[Metric]:
        if gpu.processes is None:
            return
        labels = labels_of(gpu)
        yield Metric("rankmend_gpu_processes", len(gpu.processes), labels)
        foreign = 0
        memory_by_rank: dict[Labels, int] = {}
        for place, (pid, memory_bytes) in enumerate(gpu.processes):
            if memory_bytes is not None and place < LISTED_PROCESSES_MAX:
                about = (*labels, ("pid", str(pid)), ("process", self._process_name(pid)))
                yield Metric("rankmend_gpu_process_memory_bytes", memory_bytes, about)
            rank = find_rank(self._procfs, pid, rank_by_pid)
            if rank is None:
                foreign += 1
                continue
            identity = rank.identity
            place_of_rank = (("job_id", str(identity.job_id)), ("rank", str(identity.rank)))
            about = (*place_of_rank, *labels, ("pid", str(pid)))
            yield Metric("rankmend_rank_gpu_info", 1, about)
            if memory_bytes is not None:
                key = (*place_of_rank, *labels)
                memory_by_rank[key] = memory_by_rank.get(key, 0) + memory_bytes
        yield Metric("rankmend_gpu_foreign_processes", foreign, labels)
        for key, memory_bytes in memory_by_rank.items():
            yield Metric("rankmend_rank_gpu_memory_bytes", memory_bytes, key)

    def _process_name(self, pid: int) -> str:
        try:
            text = (self._procfs / str(pid) / "comm").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "".join(c if c.isprintable() else "?" for c in text.strip())


class GpuStateCollector:
    name = "gpu_state"
    interval_s = 1.0

    def __init__(
        self, monitor: GpuMonitor, sampled_every_s: float, expected_count: int | None
    ) -> None:
        self._monitor = monitor
        self._sampled_every_s = sampled_every_s
        self._expected_count = expected_count
        self._kept = _Standing(monitor)
        self._is_first = True

    def collect(self) -> Sequence[Metric]:
        if (standing := self._kept.find()) is not None:
            return standing
        wait_s, self._is_first = FIRST_ANSWER_S_MAX if self._is_first else 0.0, False
        return self._kept.keep(tuple(self._metrics(self._monitor.view(wait_s))))

    def _metrics(self, view: MonitorView) -> Iterator[Metric]:
        is_absent = view.state is MonitorState.ABSENT or view.count == 0
        if is_absent and self._expected_count is None:
            raise NoSourceError(view.problem or "the driver lists no GPU")
        if view.released_s is None and not view.is_mismatched:
            yield from self._standing(view)
        if self._expected_count is not None:
            yield Metric("rankmend_gpu_expected", self._expected_count)
        is_stuck = bool(view.stuck) or any(gpu.is_skipped for gpu in view.gpus)
        yield Metric("rankmend_gpu_collector_stuck", int(is_stuck))
        for call in view.stuck:
            gpu = "" if call.gpu == NO_GPU else str(call.gpu)
            labels = (("call", call.name), ("gpu", gpu))
            yield Metric("rankmend_gpu_call_stuck_seconds", call.age_s, labels)
        yield Metric("rankmend_gpu_collector_released", int(view.released_s is not None))
        yield Metric("rankmend_gpu_driver_mismatch", int(view.is_mismatched))
        yield Metric("rankmend_gpu_collector_restarts_total", view.restarts)
        if view.sweep_s is not None:
            yield Metric("rankmend_gpu_sweep_seconds", view.sweep_s)

    def _standing(self, view: MonitorView) -> Iterator[Metric]:
        """Return which GPUs answer now: an old answer is none, whatever was known before."""
        answering = 0
        for gpu in view.gpus:
            answers = (
                is_fresh(gpu, self._sampled_every_s) and not gpu.is_lost and not gpu.is_skipped
            )
            answering += answers
            labels = labels_of(gpu)
            yield Metric("rankmend_gpu_success", int(answers), labels)
            yield Metric("rankmend_gpu_lost", int(gpu.is_lost), labels)
            yield Metric("rankmend_gpu_sample_age_seconds", gpu.age_s, labels)
        if view.count is not None:
            answering = min(answering, view.count)
        if view.state is not MonitorState.STARTING or answering:
            yield Metric("rankmend_gpu_answering", answering)


def is_fresh(gpu: GpuView, sampled_every_s: float) -> bool:
    """Return whether a GPU has answered of late."""
    return gpu.age_s <= max(STALE_INTERVALS * sampled_every_s, STALE_S_MIN)


@lru_cache(maxsize=GPUS_MAX)
def _labels_of(index: int, uuid: str, pci_bus_id: str) -> Labels:
    return (("gpu", str(index)), ("uuid", uuid), ("pci_bus_id", pci_bus_id))


def labels_of(gpu: GpuView) -> Labels:
    """Return the labels that every series of a GPU has."""
    return _labels_of(gpu.index, gpu.uuid, gpu.pci_bus_id)


@lru_cache(maxsize=64 * GPUS_MAX)  # 9 types of events, 11 reasons, and XIDs of a bad GPU
def _with(labels: Labels, name: str, value: str) -> Labels:
    return (*labels, (name, value))


def _counters(gpu: GpuView) -> Iterator[Metric]:
    """Return what was counted, also of a GPU that does not answer any more."""
    labels = labels_of(gpu)
    yield Metric("rankmend_gpu_read_errors_total", gpu.errors, labels)
    for event, count in gpu.events.items():
        yield Metric("rankmend_gpu_events_total", count, _with(labels, "event", event))
    yield Metric("rankmend_gpu_last_xid_id", gpu.last_xid, labels)
    for code, count in gpu.xids.items():
        yield Metric("rankmend_gpu_xid_events_total", count, _with(labels, "xid", str(code)))
    for reason, seconds in gpu.seconds.items():
        about = _with(labels, "reason", reason)
        yield Metric("rankmend_gpu_clocks_event_seconds_total", seconds, about)


def _metrics(
    labels: Labels, values: Values, before: Values, made: tuple[Metric, ...]
) -> Iterator[Metric]:
    """Return the metrics of one group; what is as it was ``before`` was ``made`` then."""
    for value_now, value_before, known in zip_longest(values, before, made):
        if value_now == value_before:
            yield known
            continue
        name, texts, value = value_now
        if value_before is not None and value_before[:2] == (name, texts):
            yield Metric(known.name, value, known.labels)
            continue
        family = _FAMILY_BY_NAME.get(f"rankmend_gpu_{name}")
        if family is None or len(family.labels) != len(labels) + len(texts):
            raise SourceError(f"the collector of the GPUs has sent {name} with {texts}")
        about = (*labels, *zip(family.labels[len(labels) :], texts, strict=True))
        yield Metric(family.name, value, about)
