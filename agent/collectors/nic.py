"""RDMA ports (InfiniBand and RoCE): state, rate and every counter of the card.

Source: Linux Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c.
Files:  <root>/class/infiniband/<device>/{fw_ver,hca_type,board_id,hw_counters/*} and
        ports/<port>/{state,phys_state,rate,link_layer,counters/*,hw_counters/*}
Cost:   about 50 reads a port through kept descriptors; the card is asked at most every 10 ms
        (the file lifespan). No privilege.

A file that can't be read costs one value and is counted; it is then left alone for a while. An
excluded device is never opened: reading the counters of some (limited functions of a ConnectX-7)
writes an error into the kernel log each time.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from agent.collectors.nic_files import (
    BYTES_OF_GBIT,
    COUNTERS,
    QUICK_COUNTERS,
    PortCounter,
    parse_counter,
    parse_rate,
    parse_state,
)
from agent.metrics import Metric
from agent.sources.kept_files import KeptFiles
from agent.sources.pci_topology import (
    is_excluded,
    list_known,
    list_names,
    read_driver,
    read_names,
    read_pci,
    read_text,
)
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

RESCAN_RUNS: Final = 60  # how often files are looked for on devices that are known
SLOW_S: Final = 5.0  # between two reads of what is not read each time
FILES_MAX: Final = 512  # per folder of counters; an mlx5 has 50
_STATES: Final = (
    ("state", "rankmend_nic_port_state_id"),
    ("phys_state", "rankmend_nic_port_physical_state_id"),
)
_NO_COUNTERS: Final = frozenset({"lifespan"})  # a setting: how old a counter may be, in ms
_RESOURCE: Final = re.compile(r"(active|watermark)_.*")  # objects in use now (bnxt_re)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Port:
    device: str
    number: str
    folder: str
    labels: Labels
    info: Metric
    group: str  # ports of one board and link layer, which ought to have one rate
    counters: tuple[tuple[str, PortCounter, str], ...]  # path, counter, name
    slow_counters: tuple[tuple[str, PortCounter, str], ...]
    hardware: tuple[tuple[str, str, Labels], ...]  # path, metric, labels
    unlisted: tuple[str, ...]  # folders that could not be read


@dataclass(frozen=True, slots=True)
class _Device:
    folder: str
    labels: Labels  # for the device's own counters: without a port
    info: Metric
    ports: tuple[_Port, ...]
    hardware: tuple[tuple[str, str, Labels], ...]
    unlisted: tuple[str, ...]


class NicCollector:
    """``rates_gbit`` holds what the links ought to run at, by pattern of device or port.

    With a clock, the counters of errors and of the hardware are read every `SLOW_S`.
    """

    name = "nic"
    interval_s = 1.0

    def __init__(
        self,
        sysfs_root: Path,
        excluded: Sequence[str] = (),
        rates_gbit: Mapping[str, float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock
        self._slow: dict[str, tuple[tuple[Metric, ...], list[str]]] = {}  # by folder, with failures
        self._slow_at_s = float("-inf")
        self._root = sysfs_root / "class" / "infiniband"
        self._modules = sysfs_root / "module"
        self._excluded = tuple(excluded)
        self._rates_gbit = dict(rates_gbit or {})
        self._files = KeptFiles()
        self._devices: dict[str, _Device] = {}
        self._rate_max_by_group: dict[str, float] = {}
        self._names: frozenset[str] = frozenset()
        self._run = 0

    def collect(self) -> Iterator[Metric]:
        if not self._root.is_dir():
            raise NoSourceError(f"no RDMA devices at {self._root}")
        self._files.begin_run()
        names = read_names(self._root)
        if names != self._names or self._run % RESCAN_RUNS == 0:
            self._rescan()
            self._names = names
        if not self._devices:
            raise NoSourceError(f"no RDMA device at {self._root} that is not excluded")
        self._run += 1
        self._forget_slow()
        rates = self._read_rates()
        for device in self._devices.values():
            yield device.info
            for port in device.ports:
                yield from self._read_port(port, rates)
            if device.hardware or device.unlisted:
                metrics, unread = self._read_slow(device.folder, (), device.labels, device.hardware)
                failed = [*device.unlisted, *unread]
                yield from metrics
                yield Metric("rankmend_nic_unreadable_files", len(failed), device.labels)

    def _forget_slow(self) -> None:
        now_s = self._clock.now_s() if self._clock else 0.0
        # the interval of 1 s is kept to some milliseconds
        if self._clock is None or now_s - self._slow_at_s >= SLOW_S - 0.5:
            self._slow, self._slow_at_s = {}, now_s

    def _rescan(self) -> None:
        self._slow = {}
        names = [name for name in list_names(self._root) if not is_excluded(name, self._excluded)]
        for name in [name for name in self._devices if name not in names]:
            self._files.forget(self._devices[name].folder + "/")
        self._devices = {name: self._find(name) for name in names}

    def _find(self, name: str) -> _Device:
        folder = self._root / name
        link = folder / "device"
        pci, driver = read_pci(link), read_driver(link)
        board = read_text(folder / "board_id") or ""
        info = Metric(
            "rankmend_nic_device_info",
            1,
            (
                ("device", name),
                ("pci_bus_id", pci.bus_id),
                ("driver", driver),
                ("driver_version", read_text(self._modules / driver / "version") or ""),
                ("firmware", read_text(folder / "fw_ver") or ""),
                ("model", read_text(folder / "hca_type") or ""),
                ("board", board),
            ),
        )
        unlisted: list[str] = []
        ports = tuple(
            self._find_port(name, folder / "ports" / number, board)
            for number in list_known(folder / "ports", unlisted)
            if number.isdecimal()
        )
        labels = (("device", name), ("port", ""))
        hardware = _find_hardware([folder / "hw_counters"], labels, unlisted)
        return _Device(str(folder), labels, info, ports, hardware, tuple(unlisted))

    def _find_port(self, device: str, folder: Path, board: str) -> _Port:
        labels = (("device", device), ("port", folder.name))
        unlisted: list[str] = []
        link_layer = read_text(folder / "link_layer") or ""
        info = (
            *labels,
            ("link_layer", link_layer),
            ("network_device", _network_device(folder)),
        )
        counters = tuple(
            (str(folder / "counters" / name), COUNTERS[name], name)
            for name in list_known(folder / "counters", unlisted)
            if name in COUNTERS
        )
        folders = [folder / "counters", folder / "hw_counters"]
        return _Port(
            device=device,
            number=folder.name,
            folder=str(folder),
            labels=labels,
            info=Metric("rankmend_nic_port_info", 1, info),
            group=f"{board} {link_layer}" if board else "",
            counters=tuple(one for one in counters if one[2] in QUICK_COUNTERS),
            slow_counters=tuple(one for one in counters if one[2] not in QUICK_COUNTERS),
            hardware=_find_hardware(folders, labels, unlisted),
            unlisted=tuple(dict.fromkeys(unlisted)),
        )

    def _read_rates(self) -> dict[str, float | None]:
        """Return the rate by port folder (None: broken), and learn what each kind of port can do."""
        rates: dict[str, float | None] = {}
        for device in self._devices.values():
            for port in device.ports:
                try:
                    rate = parse_rate(self._files.read(f"{port.folder}/rate"))
                except NoSourceError:
                    continue
                except SourceError:
                    rates[port.folder] = None
                    continue
                rates[port.folder] = rate
                if port.group:
                    known = self._rate_max_by_group.get(port.group, 0.0)
                    self._rate_max_by_group[port.group] = max(known, rate)
        return rates

    def _read_port(self, port: _Port, rates: Mapping[str, float | None]) -> Iterator[Metric]:
        failed = list(port.unlisted)
        yield port.info
        for name, metric in _STATES:
            path = f"{port.folder}/{name}"
            try:
                yield Metric(metric, parse_state(self._files.read(path)), port.labels)
            except NoSourceError:
                continue
            except SourceError:
                failed.append(path)
        rate = rates.get(port.folder)
        if rate is not None:
            yield Metric("rankmend_nic_rate_bytes_per_second", rate, port.labels)
        elif port.folder in rates:
            failed.append(f"{port.folder}/rate")
        rate_max = self._rate_max(port)
        if rate_max is not None:
            yield Metric("rankmend_nic_rate_max_bytes_per_second", rate_max, port.labels)
        yield from self._read_counters(port.counters, port.labels, failed)
        metrics, unread = self._read_slow(
            port.folder, port.slow_counters, port.labels, port.hardware
        )
        failed += unread
        yield from metrics
        yield Metric("rankmend_nic_unreadable_files", len(failed), port.labels)

    def _read_slow(
        self,
        folder: str,
        counters: tuple[tuple[str, PortCounter, str], ...],
        labels: Labels,
        hardware: tuple[tuple[str, str, Labels], ...],
    ) -> tuple[tuple[Metric, ...], list[str]]:
        """Return these counters and the files that could not be read, as of their newest read."""
        known = self._slow.get(folder)
        if known is None:
            failed: list[str] = []
            metrics = (
                *self._read_counters(counters, labels, failed),
                *self._read_hardware(hardware, failed),
            )
            known = self._slow[folder] = (metrics, failed)
        return known

    def _read_counters(
        self,
        counters: tuple[tuple[str, PortCounter, str], ...],
        labels: Labels,
        failed: list[str],
    ) -> Iterator[Metric]:
        for path, port_counter, name in counters:
            value = self._read_counter(path, failed)
            if value is None:
                continue
            yield Metric(port_counter.metric, value * port_counter.factor, labels)
            if value == port_counter.saturates_at:
                yield Metric("rankmend_nic_saturated", 1, (*labels, ("counter", name)))

    def _read_hardware(
        self, files: tuple[tuple[str, str, Labels], ...], failed: list[str]
    ) -> Iterator[Metric]:
        for path, metric, labels in files:
            value = self._read_counter(path, failed)
            if value is not None:
                yield Metric(metric, value, labels)

    def _read_counter(self, path: str, failed: list[str]) -> int | None:
        try:
            return parse_counter(self._files.read(path, holds_back=True))
        except NoSourceError:
            return None
        except SourceError:
            failed.append(path)
            return None

    def _rate_max(self, port: _Port) -> float | None:
        """Return what a port can do: as configured, else the most that its kind has done here."""
        for pattern, gbit in self._rates_gbit.items():
            if fnmatchcase(port.device, pattern) or fnmatchcase(
                f"{port.device}/{port.number}", pattern
            ):
                return gbit * BYTES_OF_GBIT
        return self._rate_max_by_group.get(port.group)


def _find_hardware(
    folders: Sequence[Path], labels: Labels, unlisted: list[str]
) -> tuple[tuple[str, str, Labels], ...]:
    found: dict[str, tuple[str, str, Labels]] = {}
    for folder in folders:
        for name in list_known(folder, unlisted)[:FILES_MAX]:
            if name in COUNTERS or name in _NO_COUNTERS or name in found:
                continue  # hw_counters may repeat some of the folder counters
            is_resource = _RESOURCE.fullmatch(name) is not None
            metric = "rankmend_nic_resources" if is_resource else "rankmend_nic_hardware_total"
            found[name] = (str(folder / name), metric, (*labels, ("counter", name)))
    return tuple(found.values())


def _network_device(port: Path) -> str:
    """Return the network device of a RoCE or IPoIB port, or nothing."""
    named = read_text(port / "gid_attrs" / "ndevs" / "0")  # EINVAL where there is none
    if named:
        return named
    devices = port.parent.parent / "device" / "net"
    for name in list_known(devices, []):
        number = read_text(devices / name / "dev_port")
        if number is not None and number.isdecimal() and int(number) + 1 == int(port.name):
            return name
    return ""
