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

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from agent.collectors.nic_files import (
    BYTES_OF_GBIT,
    COUNTERS,
    QUICK_COUNTERS,
    SHOWN_COUNTERS,
    USED_COUNTERS,
    PortCounter,
    parse_counter,
    parse_rate,
    parse_state,
)
from agent.metrics import Metric
from agent.sampling.demand import UNREAD_S_MAX, Demand
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
WHOLE_RESCAN_RUNS: Final = (
    10 * RESCAN_RUNS
)  # how often all is found anew where the files are the same: 30 ms for 10 ports
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
    rate_path: str
    states: tuple[tuple[str, str], ...]  # path, metric
    info: Metric
    group: str  # ports of one board and link layer, which ought to have one rate
    counters: tuple[tuple[str, PortCounter, str], ...]  # path, counter, name
    slow_counters: tuple[tuple[str, PortCounter, str], ...]
    shown_counters: tuple[tuple[str, PortCounter, str], ...]
    hardware: tuple[tuple[str, str, Labels], ...]  # path, metric, labels
    shown_hardware: tuple[tuple[str, str, Labels], ...]
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

    With a clock, the counters of errors and of the hardware are read every `SLOW_S`; with a demand, those of
    traffic, and all that no check reads by ``is_judged``, before somebody is expected to look.
    """

    name = "nic"
    interval_s = 1.0

    def __init__(
        self,
        sysfs_root: Path,
        excluded: Sequence[str] = (),
        rates_gbit: Mapping[str, float] | None = None,
        clock: Clock | None = None,
        demand: Demand | None = None,
        is_judged: Callable[[str, Labels], bool] = lambda _metric, _labels: True,
    ) -> None:
        self._is_judged = is_judged
        self._clock = clock
        self._demand = demand
        self._shown: dict[str, tuple[tuple[Metric, ...], list[str]]] = {}  # as below
        self._shown_at_s = float("-inf")
        self._slow: dict[str, tuple[tuple[Metric, ...], list[str]]] = {}  # by folder, with failures
        self._slow_at_s = float("-inf")
        self._root = sysfs_root / "class" / "infiniband"
        self._modules = sysfs_root / "module"
        self._excluded = tuple(excluded)
        self._rates_gbit = dict(rates_gbit or {})
        self._files = KeptFiles()
        self._made: dict[str, tuple[str, Metric]] = {}  # what a file's text was made into
        self._rates: dict[str, tuple[str, float]] = {}  # the same of the files `rate`
        self._devices: dict[str, _Device] = {}
        self._rate_max_by_group: dict[str, float] = {}
        self._names: frozenset[str] = frozenset()
        self._shapes: list[tuple[object, ...]] = []  # of the devices as they were found
        self._run = 0
        self._given: tuple[Metric, ...] = ()  # the newest answer
        self._quick_paths: tuple[str, ...] = ()  # what it may change with at the next run
        self._slow_paths: tuple[str, ...] = ()  # the same each `SLOW_S`
        self._shown_paths: tuple[str, ...] = ()

    def collect(self) -> Sequence[Metric]:
        if not self._root.is_dir():
            raise NoSourceError(f"no RDMA devices at {self._root}")
        self._files.begin_run()
        names = read_names(self._root)
        is_due = self._run % RESCAN_RUNS == 0
        if names != self._names or (is_due and self._is_other(names)):
            self._shapes = self._shapes_of(names)
            self._rescan()
            self._names = names
        if not self._devices:
            raise NoSourceError(f"no RDMA device at {self._root} that is not excluded")
        self._run += 1
        has_more = self._forget_changed()
        if self._quick_paths and not has_more and self._files.are_unchanged(self._quick_paths):
            return self._given  # as in nearly all seconds
        rates = self._read_rates()
        found: list[Metric] = []
        failures = 0
        for device in self._devices.values():
            found.append(device.info)
            for port in device.ports:
                failures += self._read_port(port, rates, found)
            if device.hardware or device.unlisted:
                metrics, unread = self._read_slow(device.folder, (), device.labels, device.hardware)
                failed = [*device.unlisted, *unread]
                failures += len(failed)
                found += metrics
                found.append(Metric("rankmend_nic_unreadable_files", len(failed), device.labels))
        self._find_paths(has_failed=failures > 0)
        given = self._given
        if len(given) != len(found) or any(
            new != old for new, old in zip(found, given, strict=True)
        ):
            self._given = tuple(found)
        return self._given

    def _find_paths(self, *, has_failed: bool) -> None:
        """Note the files that were read; what a port lacks is looked for with the next `_rescan`."""
        self._quick_paths = self._slow_paths = self._shown_paths = ()
        if has_failed:
            return  # what failed is tried again each time
        quick, slow, shown = [], [], []
        for device in self._devices.values():
            slow += [path for path, *_rest in device.hardware]
            for port in device.ports:
                quick += [port.rate_path, *(path for path, _metric in port.states)]
                quick += [path for path, *_rest in port.counters]
                slow += [path for path, *_rest in (*port.slow_counters, *port.hardware)]
                shown += [path for path, *_rest in (*port.shown_counters, *port.shown_hardware)]
        is_read = self._files.remembers
        self._quick_paths = tuple(filter(is_read, quick))
        self._slow_paths, self._shown_paths = (
            tuple(filter(is_read, slow)),
            tuple(filter(is_read, shown)),
        )

    def _forget_changed(self) -> bool:
        """Forget what is due to be read again and has changed; return whether there is anything."""
        now_s = self._clock.now_s() if self._clock else 0.0
        has_read, has_changed = bool(self._quick_paths), False
        # the interval of 1 s is kept to some milliseconds
        if self._clock is None or now_s - self._slow_at_s >= SLOW_S - 0.5:
            self._slow_at_s = now_s
            if not has_read or not self._files.are_unchanged(self._slow_paths):
                self._slow, has_changed = {}, True
        if (
            self._demand is None
            or self._demand.is_expected(0.0, self.interval_s)
            or now_s - self._shown_at_s >= UNREAD_S_MAX - 0.5
        ):
            self._shown_at_s = now_s
            if not has_read or not self._files.are_unchanged(self._shown_paths):
                self._shown, has_changed = {}, True
        return has_changed

    def _is_other(self, names: Iterable[str]) -> bool:
        """Return whether a device has other files than at the last look, or none of it was found anew for long."""
        return self._shapes != self._shapes_of(names) or self._run % WHOLE_RESCAN_RUNS == 0

    def _shapes_of(self, names: Iterable[str]) -> list[tuple[object, ...]]:
        kept = sorted(name for name in names if not is_excluded(name, self._excluded))
        return [_shape_of(f"{self._root}/{name}") for name in kept]

    def _rescan(self) -> None:
        self._slow, self._shown = {}, {}
        self._quick_paths = self._slow_paths = self._shown_paths = ()
        self._made, self._rates = {}, {}
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
        shown = {
            name
            for _path, counter, name in counters
            if name in SHOWN_COUNTERS or not self._is_judged(counter.metric, labels)
        } - USED_COUNTERS
        folders = [folder / "counters", folder / "hw_counters"]
        hardware = _find_hardware(folders, labels, unlisted)
        judged = tuple(item for item in hardware if self._is_judged(*item[1:]))
        return _Port(
            device=device,
            number=folder.name,
            folder=str(folder),
            labels=labels,
            rate_path=str(folder / "rate"),
            states=tuple((str(folder / name), metric) for name, metric in _STATES),
            info=Metric("rankmend_nic_port_info", 1, info),
            group=f"{board} {link_layer}" if board else "",
            counters=tuple(counter for counter in counters if counter[2] in QUICK_COUNTERS),
            slow_counters=tuple(
                counter for counter in counters if counter[2] not in QUICK_COUNTERS | shown
            ),
            shown_counters=tuple(counter for counter in counters if counter[2] in shown),
            hardware=judged,
            shown_hardware=tuple(item for item in hardware if item not in judged),
            unlisted=tuple(dict.fromkeys(unlisted)),
        )

    def _read_rates(self) -> dict[str, float | None]:
        """Return the rate by port folder (None: broken), and learn what each kind of port can do."""
        rates: dict[str, float | None] = {}
        for device in self._devices.values():
            for port in device.ports:
                try:
                    text = self._files.read(port.rate_path)
                    known = self._rates.get(port.rate_path)
                    if known is None or known[0] is not text:
                        known = self._rates[port.rate_path] = (text, parse_rate(text))
                except NoSourceError:
                    continue
                except SourceError:
                    rates[port.folder] = None
                    continue
                rate = known[1]
                rates[port.folder] = rate
                if port.group:
                    most = self._rate_max_by_group.get(port.group, 0.0)
                    self._rate_max_by_group[port.group] = max(most, rate)
        return rates

    def _read_port(
        self, port: _Port, rates: Mapping[str, float | None], found: list[Metric]
    ) -> int:
        """Add what a port's files hold; return how many could not be read."""
        failed = list(port.unlisted)
        found.append(port.info)
        for path, metric in port.states:
            try:
                text = self._files.read(path)
                known = self._made.get(path)
                if known is None or known[0] is not text:
                    made = Metric(metric, parse_state(text), port.labels)
                    known = self._made[path] = (text, made)
                found.append(known[1])
            except NoSourceError:
                continue
            except SourceError:
                failed.append(path)
        rate = rates.get(port.folder)
        if rate is not None:
            found.append(Metric("rankmend_nic_rate_bytes_per_second", rate, port.labels))
        elif port.folder in rates:
            failed.append(port.rate_path)
        rate_max = self._rate_max(port)
        if rate_max is not None:
            found.append(Metric("rankmend_nic_rate_max_bytes_per_second", rate_max, port.labels))
        self._read_counters(port.counters, port.labels, failed, found)
        shown = self._shown.get(port.folder)
        if shown is None:
            unshown: list[str] = []
            newest: list[Metric] = []
            self._read_counters(port.shown_counters, port.labels, unshown, newest)
            self._read_hardware(port.shown_hardware, unshown, newest)
            shown = self._shown[port.folder] = (tuple(newest), unshown)
        found += shown[0]
        failed += shown[1]
        metrics, unread = self._read_slow(
            port.folder, port.slow_counters, port.labels, port.hardware
        )
        failed += unread
        found += metrics
        found.append(Metric("rankmend_nic_unreadable_files", len(failed), port.labels))
        return len(failed)

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
            found: list[Metric] = []
            self._read_counters(counters, labels, failed, found)
            self._read_hardware(hardware, failed, found)
            known = self._slow[folder] = (tuple(found), failed)
        return known

    def _read_counters(
        self,
        counters: tuple[tuple[str, PortCounter, str], ...],
        labels: Labels,
        failed: list[str],
        found: list[Metric],
    ) -> None:
        for path, counter, name in counters:
            made = self._read_made(path, counter.metric, counter.factor, labels, failed)
            if made is None:
                continue
            found.append(made)
            ceiling = counter.saturates_at
            if ceiling is not None and made.value == ceiling * counter.factor:
                found.append(Metric("rankmend_nic_saturated", 1, (*labels, ("counter", name))))

    def _read_hardware(
        self,
        hardware: tuple[tuple[str, str, Labels], ...],
        failed: list[str],
        found: list[Metric],
    ) -> None:
        for path, metric, labels in hardware:
            if (made := self._read_made(path, metric, 1, labels, failed)) is not None:
                found.append(made)

    def _read_made(
        self, path: str, metric: str, factor: int, labels: Labels, failed: list[str]
    ) -> Metric | None:
        """Return a counter's sample: the one before where the file holds the same text."""
        try:
            text = self._files.read(path, holds_back=True)
            known = self._made.get(path)
            if known is None or known[0] is not text:
                made = Metric(metric, parse_counter(text) * factor, labels)
                known = self._made[path] = (text, made)
        except NoSourceError:
            return None
        except SourceError:
            failed.append(path)
            return None
        return known[1]

    def _rate_max(self, port: _Port) -> float | None:
        """Return what a port can do: as configured, else the most that its kind has done here."""
        for pattern, gbit in self._rates_gbit.items():
            if fnmatchcase(port.device, pattern) or fnmatchcase(
                f"{port.device}/{port.number}", pattern
            ):
                return gbit * BYTES_OF_GBIT
        return self._rate_max_by_group.get(port.group)


def _shape_of(folder: str) -> tuple[object, ...]:
    """Return what tells one device and its files from another: a few reads, where finding all takes hundreds."""
    shape: list[object] = [_target_of(folder), _target_of(f"{folder}/device")]
    shape += [read_text(Path(f"{folder}/{name}")) for name in ("fw_ver", "board_id")]
    shape += [_listed(folder), ports := _listed(f"{folder}/ports")]
    for port in ports:
        own = f"{folder}/ports/{port}"
        shape += [_listed(own), _listed(f"{own}/counters"), _listed(f"{own}/hw_counters")]
        shape += [read_text(Path(f"{own}/{name}")) for name in ("link_layer", "gid_attrs/ndevs/0")]
    return tuple(shape)


def _target_of(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - Path is dear
    except OSError:
        return ""


def _listed(folder: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))  # noqa: PTH208 - Path is dear
    except OSError:
        return ()


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
