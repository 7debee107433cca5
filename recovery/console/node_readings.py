"""What the agents of an incident's blamed nodes said, as tables for its page: the blamed device first. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rankmend.printable import duration
from recovery.accounting.readings.reading import NodeReading, ReadAt, Sample

_WHEN: Final = {ReadAt.OPENED: "When it opened", ReadAt.CLOSED: "When it was over"}
_GIB: Final = 1024.0**3
# Clocks that are held for these reasons are as they ought to be.
_CALM_REASONS: Final = frozenset({"gpu_idle", "low_utilization", "application_clocks"})
_PORT_STATES: Final = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active deferred"}
_DEVICES_MAX: Final = 64  # of one node

Counts: TypeAlias = Mapping[str, float]  # by name

_NODE: Final = "The node"

_TIME: Final = "\0s"  # marks a count of seconds


@dataclass(frozen=True, slots=True)
class Column:
    """One reading."""

    title: str
    unix_s: float
    problem: str


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    cells: tuple[str, ...]  # one for each column; "-": not reported


@dataclass(frozen=True, slots=True)
class DeviceTable:
    title: str
    is_blamed: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class NodeTables:
    node: str
    columns: tuple[Column, ...]
    devices: tuple[DeviceTable, ...]
    is_cut: bool


class _Series:
    """The samples of one device in one reading."""

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self.samples = samples

    def value(self, metric: str, **labels: str) -> float | None:
        for sample in self.samples:
            if sample.metric == f"rankmend_{metric}" and labels.items() <= sample.labels.items():
                return sample.value
        return None

    def by(self, metric: str, label: str, **labels: str) -> dict[str, float]:
        return {
            sample.labels.get(label, ""): sample.value
            for sample in self.samples
            if sample.metric == f"rankmend_{metric}" and labels.items() <= sample.labels.items()
        }


_Words: TypeAlias = Callable[[_Series], str]
_Counted: TypeAlias = Callable[[_Series], Counts | None]


def view_readings(
    readings: Sequence[NodeReading], accused: Sequence[tuple[str, str]]
) -> tuple[NodeTables, ...]:
    """Return the tables of each node that was read; ``accused``: nodes and their devices that alerts name."""
    nodes = dict.fromkeys(reading.node for reading in readings)
    return tuple(
        _view_node(
            node,
            sorted(
                (reading for reading in readings if reading.node == node),
                key=lambda reading: reading.unix_s,
            ),
            {device for named, device in accused if named == node and device},
        )
        for node in nodes
    )


def _view_node(node: str, readings: Sequence[NodeReading], blamed: set[str]) -> NodeTables:
    columns = tuple(Column(_WHEN[item.at], item.unix_s, item.problem) for item in readings)
    aliases = _aliases(readings)
    by_device: dict[str, list[_Series]] = {"": []}
    for place, reading in enumerate(readings):
        found: dict[str, list[Sample]] = {}
        for sample in reading.samples:
            found.setdefault(_device_of(sample, aliases), []).append(sample)
        for device, samples in found.items():
            retained = by_device.setdefault(device, [])
            retained += [_Series() for _missing in range(place - len(retained))]
            retained.append(_Series(samples))
    tables = []
    for device, series in by_device.items():
        series += [_Series() for _missing in range(len(readings) - len(series))]
        title, rows = _table_of(device, series)
        if rows:
            names = {device, *(name for name, meant in aliases.items() if meant == device)}
            tables.append(DeviceTable(title, not blamed.isdisjoint(names), rows))
    tables.sort(key=lambda table: (not table.is_blamed, table.title != _NODE, table.title))
    return NodeTables(
        node, columns, tuple(tables[:_DEVICES_MAX]), any(item.is_cut for item in readings)
    )


def _aliases(readings: Sequence[NodeReading]) -> dict[str, str]:
    """Return which GPU a PCI address means: kernel messages name no UUID."""
    return {
        sample.labels["pci_bus_id"]: sample.device
        for reading in readings
        for sample in reading.samples
        if sample.device and sample.labels.get("pci_bus_id")
    }


def _device_of(sample: Sample, aliases: Mapping[str, str]) -> str:
    if sample.metric.startswith("rankmend_thermal_"):
        return ""  # sensors of the host
    bus = sample.labels.get("pci_bus_id", "")
    return sample.device or aliases.get(bus, bus)


def _table_of(device: str, series: Sequence[_Series]) -> tuple[str, tuple[Row, ...]]:
    if not device:
        return _NODE, _rows(_NODE_ROWS, _NODE_COUNTS, series)
    metrics = {sample.metric for item in series for sample in item.samples}
    if any(metric.startswith("rankmend_gpu_") for metric in metrics):
        return _gpu_title(device, series), _rows(_GPU_ROWS, _GPU_COUNTS, series)
    rows = _rows(_NIC_ROWS, _NIC_COUNTS, series)
    if all(set(row.cells) <= {"none", "-"} for row in rows):
        rows = ()  # lo, and what else has no link and no error
    return f"NIC {device}", rows


def _gpu_title(device: str, series: Sequence[_Series]) -> str:
    labels: dict[str, str] = {}
    for item in series:
        for sample in item.samples:
            labels.update(sample.labels)
    named = [labels.get("model", ""), device, labels.get("pci_bus_id", "")]
    about = ", ".join(name for name in dict.fromkeys(named) if name)
    return f"GPU {labels.get('gpu', '?')} ({about})"


def _rows(
    words: Mapping[str, _Words], counts: Mapping[str, _Counted], series: Sequence[_Series]
) -> tuple[Row, ...]:
    rows = [Row(name, tuple(say(item) for item in series)) for name, say in words.items()]
    rows += [Row(name, _count_cells(read, series)) for name, read in counts.items()]
    return tuple(row for row in rows if any(cell != "-" for cell in row.cells))


def _count_cells(read: _Counted, series: Sequence[_Series]) -> tuple[str, ...]:
    """Return counts in words, each with what it has grown by since the reading before."""
    cells, before = [], None
    for item in series:
        now = read(item) if item.samples else None
        cells.append("-" if now is None else _count_words(now, before))
        before = now if now is not None else before
    return tuple(cells)


def _count_words(now: Counts, before: Counts | None) -> str:
    parts = []
    for name, value in sorted(now.items(), key=lambda item: -item[1]):
        if value <= 0:
            continue
        grown = value - (value if before is None else before.get(name, 0.0))
        is_time = name.endswith(_TIME)
        shown = duration(value) if is_time else f"{value:,.0f}"
        more = "" if grown <= 0 else f" (+{duration(grown) if is_time else format(grown, ',.0f')})"
        parts.append(f"{name.removesuffix(_TIME).replace('_', ' ')}: {shown}{more}")
    return ", ".join(parts[:12]) or "none"


def _answers(series: _Series) -> str:
    success, is_lost = series.value("gpu_success"), series.value("gpu_lost")
    if is_lost:
        return "no: the driver says that it is lost"
    if success is None:
        return "-"
    if not success:
        return "no"
    return "yes, and asks for a reset" if series.value("gpu_reset_required") else "yes"


def _temperature(series: _Series) -> str:
    core, memory = (
        series.value("gpu_temperature_celsius"),
        series.value("gpu_memory_temperature_celsius"),
    )
    if core is None:
        return "-"
    return f"{core:.0f} °C" + ("" if memory is None else f", memory {memory:.0f} °C")


def _clock(series: _Series) -> str:
    now, most = (series.value(f"gpu_clock{what}_hertz", clock="sm") for what in ("", "_max"))
    return _of(now, most, 1e6, "MHz")


def _of(now: float | None, most: float | None, unit: float, name: str, digits: int = 0) -> str:
    if now is None:
        return "-"
    whole = "" if most is None else f" of {most / unit:,.{digits}f}"
    return f"{now / unit:,.{digits}f}{whole} {name}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _held_back(series: _Series) -> Counts | None:
    """Return the seconds for which each reason has held the clocks; by the driver's own counters where it has any."""
    found = series.by("gpu_clocks_event_seconds_total", "reason")
    found |= series.by("gpu_clocks_limited_seconds_total", "reason")
    if not found and series.value("gpu_clock_hertz") is None:
        return None
    return {f"{name}{_TIME}": value for name, value in found.items() if name not in _CALM_REASONS}


def _ecc(series: _Series) -> Counts | None:
    found = series.by("gpu_ecc_errors_total", "kind", counter="volatile")
    found |= {
        f"{kind}, ever": count
        for kind, count in series.by("gpu_ecc_errors_total", "kind", counter="aggregate").items()
    }
    return found if found or series.value("gpu_success") else None


def _xids(series: _Series) -> Counts | None:
    """Return how often each XID came: by the kernel's log since boot, else by the driver."""
    found = series.by("gpu_xid_total", "xid") or series.by("gpu_xid_events_total", "xid")
    if not found and series.value("gpu_success") is None:
        return None
    return {f"XID {xid}": count for xid, count in found.items()}


def _remapping(series: _Series) -> str:
    pending, failed = (
        series.value("gpu_remapped_rows_pending"),
        series.value("gpu_remapped_rows_failed"),
    )
    if pending is None and failed is None:
        return "-"
    if failed:
        return "failed"
    return "waits for a reset" if pending else "nothing waits"


def _port_state(series: _Series) -> str:
    state, carrier = series.value("nic_port_state_id"), series.value("ethernet_carrier")
    if state is not None:
        return _PORT_STATES.get(int(state), f"{state:g}")
    return "-" if carrier is None else "up" if carrier else "down"


def _rate(series: _Series) -> str:
    now = series.value("nic_rate_bytes_per_second")
    if now is None:
        now = series.value("ethernet_speed_bytes_per_second")
    return _of(now, series.value("nic_rate_max_bytes_per_second"), 1e9 / 8, "Gbit/s")


def _nic_errors(series: _Series) -> Counts | None:
    found: dict[str, float] = {}
    is_told = False
    for sample in series.samples:
        name = sample.metric.removeprefix("rankmend_").removesuffix("_total")
        kind = name.removeprefix("nic_").removeprefix("network_")
        if name.startswith("ethernet_"):
            kind = sample.labels.get("kind", "") or name.removeprefix("ethernet_")
        if sample.metric.endswith("_total"):
            is_told = True
            found[kind] = found.get(kind, 0.0) + sample.value
    return found if is_told else None


def _load(series: _Series) -> str:
    load, cpus = series.value("host_load_processes", window="1m"), series.value("host_cpus")
    if load is None:
        return "-"
    return f"{load:.1f}" + ("" if cpus is None else f" on {cpus:.0f} CPUs")


def _memory(series: _Series) -> str:
    available, size = (series.value(f"host_memory_{what}_bytes") for what in ("available", "size"))
    return _of(available, size, _GIB, "GiB available", 1)


def _hottest(series: _Series) -> str:
    sensors = [
        sample
        for sample in series.samples
        if sample.metric == "rankmend_thermal_temperature_celsius"
    ]
    if not sensors:
        return "-"
    top = max(sensors, key=lambda sample: sample.value)
    return f"{top.value:.0f} °C ({top.device} {top.labels.get('sensor', '')})".replace(" )", ")")


def _uptime(series: _Series) -> str:
    return duration(series.value("host_uptime_seconds"))


def _host_counts(series: _Series) -> Counts | None:
    kills = series.value("host_oom_kills_total")
    return None if kills is None else {"killed for want of memory": kills}


def _blocked(series: _Series) -> str:
    blocked = series.value("host_tasks_blocked")
    return "-" if blocked is None else f"{blocked:.0f}"


_GPU_ROWS: Final[Mapping[str, _Words]] = {
    "Answers": _answers,
    "Temperature": _temperature,
    "SM clock": _clock,
    "Power": lambda item: _of(
        item.value("gpu_power_watts"), item.value("gpu_power_limit_watts"), 1.0, "W"
    ),
    "Busy": lambda item: _share(item.value("gpu_utilization_ratio")),
    "Memory in use": lambda item: _of(
        item.value("gpu_memory_used_bytes"), item.value("gpu_memory_size_bytes"), _GIB, "GiB", 1
    ),
    "Row remapping": _remapping,
    "PCIe lanes": lambda item: _of(
        item.value("gpu_pcie_width_lanes"), item.value("gpu_pcie_width_max_lanes"), 1.0, ""
    ).rstrip(),
}
_GPU_COUNTS: Final[Mapping[str, _Counted]] = {
    "Clocks held back": _held_back,
    "ECC errors": _ecc,
    "XIDs": _xids,
}
_NIC_ROWS: Final[Mapping[str, _Words]] = {"Link": _port_state, "Rate": _rate}
_NIC_COUNTS: Final[Mapping[str, _Counted]] = {"Errors": _nic_errors}
_NODE_ROWS: Final[Mapping[str, _Words]] = {
    "Load (1 min)": _load,
    "Memory": _memory,
    "Hottest sensor": _hottest,
    "Tasks that wait for I/O": _blocked,
    "Up for": _uptime,
}
_NODE_COUNTS: Final[Mapping[str, _Counted]] = {"Processes": _host_counts}
