"""Versions of kernel, drivers and firmware, and whether they are those of a baseline.

Source: <procfs>/sys/kernel/osrelease, <procfs>/driver/nvidia/version (NVIDIA driver README,
        "proc interface"), and in sysfs (Linux Documentation/ABI): class/dmi/id/bios_version,
        devices/system/cpu/cpu0/microcode/version, module/<driver>/version,
        class/infiniband/<device>/{fw_ver,hca_type}, class/nvme/<device>/{firmware_rev,model}.
        NCCL: the names of the system's own libraries; what ranks load is `rankmend_rank_nccl_info` (agent/ranks/series.py).
        Settings that slow GPUDirect as an old driver would: bus/pci/devices/<GPU or NIC>/iommu_group/type
        (testing/sysfs-kernel-iommu_groups), and the ACS of the bridges above (agent/sources/pcie_acs.py).
Cost:   some 20 small reads, 3 folders and the PCI topology, once a minute; no privilege but for ACS, which the root helper reads.

Nodes of one job that differ in a version are slow or wrong in ways that no single node shows.
The baseline is a TOML file: a component, and the versions that it may have (docs/reference/host.md).
"""

import fnmatch
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agent.metrics import Family, Metric, gauge
from agent.sources.pci_topology import is_excluded, list_known, read_text, read_topology
from agent.sources.pcie_acs import BridgeAcs
from detectors.formats.pcie_acs import OFF, redirects_in_words
from rankmend.errors import ConfigError, NoSourceError, SourceError

DRIVERS: Final = (
    "nvidia",
    "nvidia_peermem",
    "gdrdrv",
    "amdgpu",
    "mlx5_core",
    "mlx5_ib",
    "ib_core",
    "bnxt_en",
    "bnxt_re",
    "ice",
    "irdma",
    "efa",
    "nvme",
    "lustre",
)
IOMMU_RUNS: Final = 10  # ten minutes
_BYTES_MAX: Final = 1024
_NVRM: Final = re.compile(r"NVRM version:.*? (\d{3,4}\.\d+(?:\.\d+)?) ")
_NCCL: Final = re.compile(r"libnccl\.so\.(\d{1,3}\.\d{1,3}\.\d{1,3})")
_LIBRARY_FOLDERS: Final = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/local/lib")
_NOTHING: Final = frozenset({"", "(null)", "N/A"})

log = logging.getLogger(__name__)

Baseline = Mapping[str, tuple[str, ...]]

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "version_info",
        "",
        ("component", "device", "version"),
        "Version of the kernel, a driver or a firmware, or a setting of the hardware (iommu, pcie_acs); always 1.",
    ),
    gauge(
        "version_matches_baseline",
        "",
        ("component", "device"),
        "1 when it is one of the baseline's, 0 when not or when the component is missing.",
    ),
)


@dataclass(frozen=True, slots=True)
class InstalledVersion:
    component: str  # what the baseline calls it: kernel, driver:mlx5_core, nic_firmware:MT4129
    device: str  # empty: the node
    version: str


def load_baseline(path: Path) -> Baseline:
    """Return the versions that each component may have; raise ConfigError for a wrong file."""
    try:
        rows = msgspec.toml.decode(path.read_bytes(), type=dict[str, str | list[str]])
    except OSError as error:
        raise ConfigError(f"cannot read the baseline {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    baseline = {
        component: (allowed,) if isinstance(allowed, str) else tuple(allowed)
        for component, allowed in rows.items()
    }
    for component, allowed in baseline.items():
        if not allowed or not all(allowed):
            raise ConfigError(f"{path}: {component} may have no version at all")
    return baseline


def parse_nvidia_version(text: str) -> str | None:
    """Return the driver's version from the NVRM line, or None when there is none."""
    found = _NVRM.search(" ".join(text.split()) + " ")
    return found.group(1) if found else None


class VersionsCollector:
    name = "versions"
    interval_s = 60.0

    def __init__(
        self,
        procfs_root: Path,
        sysfs_root: Path,
        baseline: Baseline | None = None,
        excluded_nics: Sequence[str] = (),
        system_root: Path | None = None,
        read_acs: Callable[[], Sequence[BridgeAcs]] | None = None,
    ) -> None:
        """``system_root``: where the system's libraries are; ``read_acs``: asks for the bridges' ACS. None: not looked for."""
        self._system_root = system_root
        self._read_acs = read_acs
        self._acs_problem = ""  # as logged
        self._runs = 0
        self._iommu: tuple[InstalledVersion, ...] = ()
        self._procfs_root = procfs_root
        self._sysfs_root = sysfs_root
        self._baseline = baseline or {}
        self._excluded_nics = tuple(excluded_nics)  # never opened

    def collect(self) -> Iterator[Metric]:
        versions = list(self._read())
        if not versions and not self._baseline:
            raise NoSourceError(f"no version under {self._procfs_root} and {self._sysfs_root}")
        for found in versions:
            labels = (("component", found.component), ("device", found.device))
            yield Metric("rankmend_version_info", 1, (*labels, ("version", found.version)))
            if found.component in self._baseline:
                allowed = self._baseline[found.component]
                is_allowed = any(fnmatch.fnmatchcase(found.version, item) for item in allowed)
                yield Metric("rankmend_version_matches_baseline", int(is_allowed), labels)
        for component in sorted(self._baseline.keys() - {found.component for found in versions}):
            labels = (("component", component), ("device", ""))
            yield Metric("rankmend_version_matches_baseline", 0, labels)  # it ought to be there

    def _read(self) -> Iterator[InstalledVersion]:
        if kernel := _read(self._procfs_root / "sys" / "kernel" / "osrelease"):
            yield InstalledVersion("kernel", "", kernel)
        nvidia = _read(self._procfs_root / "driver" / "nvidia" / "version")
        if nvidia and (version := parse_nvidia_version(nvidia)):
            yield InstalledVersion("nvidia_kernel_module", "", version)
        for component, name in (
            ("bios", "class/dmi/id/bios_version"),
            ("embedded_controller", "class/dmi/id/ec_firmware_release"),
            ("microcode", "devices/system/cpu/cpu0/microcode/version"),
        ):
            if version := _read(self._sysfs_root / name):
                yield InstalledVersion(component, "", version)
        for driver in DRIVERS:
            if version := _read(self._sysfs_root / "module" / driver / "version"):
                yield InstalledVersion(f"driver:{driver}", "", version)
        yield from self._read_nccl()
        yield from self._read_devices("infiniband", "nic_firmware", "fw_ver", "hca_type")
        yield from self._read_devices("nvme", "nvme_firmware", "firmware_rev", "model")
        yield from self._read_iommu()
        yield from self._read_bridges()

    def _read_iommu(self) -> Iterator[InstalledVersion]:
        """Return how the IOMMU treats GPUs and network cards: ``off``, ``identity`` (it lets them pass) or ``DMA...``.

        It is set when the node boots: read each `IOMMU_RUNS`.
        """
        if self._runs % IOMMU_RUNS == 0:
            self._iommu = tuple(self._look_at_iommu())
        self._runs += 1
        yield from self._iommu

    def _look_at_iommu(self) -> Iterator[InstalledVersion]:
        try:
            topology = read_topology(self._sysfs_root, self._excluded_nics)
        except SourceError:  # the collector `topology` says so
            return
        devices = [*topology.gpus, *(nic.pci for nic in topology.nics)]
        addresses = [device.bus_id for device in devices if device.bus_id]
        functions = self._sysfs_root / "bus" / "pci" / "devices"
        types = {
            read_text(functions / address / "iommu_group" / "type") or "" for address in addresses
        }
        for version in sorted(types - {""}):
            yield InstalledVersion("iommu", "", version)
        if addresses and types == {""} and not list_known(self._sysfs_root / "class/iommu", []):
            yield InstalledVersion("iommu", "", OFF)

    def _read_bridges(self) -> Iterator[InstalledVersion]:
        """Return which redirects of ACS are on at each bridge above a GPU or a network card."""
        try:
            bridges = self._read_acs() if self._read_acs is not None else []
            problem = "; ".join(sorted({bridge.error for bridge in bridges if bridge.error}))
        except NoSourceError:
            return
        except SourceError as error:
            bridges, problem = [], str(error)
        if problem and problem != self._acs_problem:
            log.warning("the ACS of PCIe bridges can't be read", extra={"error": problem[:500]})
        self._acs_problem = problem
        for bridge in bridges:
            if not bridge.error:
                yield InstalledVersion(
                    "pcie_acs", bridge.bridge, redirects_in_words(bridge.control)
                )

    def _read_nccl(self) -> Iterator[InstalledVersion]:
        """Return the versions of NCCL that a program of this node finds if it brings none of its own."""
        if self._system_root is None:
            return
        for pattern in _LIBRARY_FOLDERS:
            for path in sorted(self._system_root.glob(f"{pattern}/libnccl.so.*")):
                if found := _NCCL.fullmatch(path.name):
                    folder = path.parent.relative_to(self._system_root)
                    yield InstalledVersion("nccl", f"/{folder}", found[1])

    def _read_devices(
        self, kind: str, component: str, version_file: str, model_file: str
    ) -> Iterator[InstalledVersion]:
        """Return the firmware of each device; its model is part of the component's name."""
        excluded = self._excluded_nics if kind == "infiniband" else ()
        for folder in sorted((self._sysfs_root / "class" / kind).glob("*")):
            if is_excluded(folder.name, excluded):
                continue
            if version := _read(folder / version_file):
                model = _read(folder / model_file) or "unknown"
                yield InstalledVersion(f"{component}:{model}", folder.name, version)


def _read(path: Path) -> str:
    """Return the text of a file in one line; empty where there is none or it says nothing."""
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
    text = " ".join(text.split())
    return "" if text in _NOTHING else text
