"""The collectors of the host, made from one part of the configuration."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.collectors.bonding import BondingCollector
from agent.collectors.cgroup import CgroupCollector
from agent.collectors.clock import ClockCollector
from agent.collectors.disk import DiskCollector
from agent.collectors.edac import EdacCollector
from agent.collectors.host import HostCollector
from agent.collectors.imex import ImexCollector, make_run_program
from agent.collectors.md import MdCollector
from agent.collectors.mounts import MountsCollector
from agent.collectors.net_stack import NetStackCollector
from agent.collectors.nfs import NfsCollector
from agent.collectors.pcie_aer import PcieAerCollector
from agent.collectors.preflight import PreflightCollector
from agent.collectors.pressure import PressureCollector
from agent.collectors.processes import ProcessesCollector
from agent.collectors.pstore import ARCHIVE, PstoreCollector
from agent.collectors.services import ServicesCollector, Systemctl
from agent.collectors.versions import VersionsCollector, load_baseline
from agent.preflight.result_file import SERVICE_FOLDER
from agent.ranks.table import RankSample
from agent.sampling.collection import Collector
from agent.sampling.demand import Demand
from agent.sources.mount_prober import MountProber, read_space
from agent.sources.pcie_acs import BridgeAcs
from rankmend.clock import Clock
from rankmend.errors import ConfigError

NAMES_MAX: Final = 64
COLLECTORS: Final = (
    "host",
    "pressure",
    "disk",
    "md",
    "mounts",
    "nfs",
    "net_stack",
    "bonding",
    "processes",
    "cgroup",
    "edac",
    "pcie_aer",
    "clock",
    "services",
    "imex",
    "versions",
    "preflight",
    "pstore",
)


class HostSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What this host should have. docs/reference/host.md"""

    mounts: tuple[str, ...] = ()  # places where something must be mounted
    mounts_ignored: tuple[str, ...] = ()  # shell patterns of mount points, never queried
    services: tuple[str, ...] = ()  # systemd units that must run
    modules: tuple[str, ...] = ()  # kernel modules that must be loaded
    baseline: str | None = None  # TOML file of the versions that there may be


def check(config: HostSettings) -> None:
    """Raise ConfigError for what the types alone don't refuse."""
    for place in config.mounts:
        if not place.startswith("/"):
            raise ConfigError(f"host.mounts: {place!r} is not an absolute path")
    for key, names in (("services", config.services), ("modules", config.modules)):
        if len(names) > NAMES_MAX:
            raise ConfigError(f"host.{key}: {len(names)} names, at most {NAMES_MAX}")
        for name in names:
            if not name or name.startswith("-") or "/" in name or not name.isprintable():
                raise ConfigError(f"host.{key}: {name!r} is not a name")
    if config.baseline is not None:
        load_baseline(Path(config.baseline))


def make_collectors(
    config: HostSettings,
    procfs_root: Path,
    sysfs_root: Path,
    clock: Clock,
    ranks: Callable[[], Iterable[RankSample]],
    excluded_nics: Sequence[str] = (),
    read_acs: Callable[[], Sequence[BridgeAcs]] | None = None,
    demand: Demand | None = None,
) -> tuple[Collector, ...]:
    """Return the collectors. Beside a recorded tree this machine's own mounts, services and clock
    are not queried."""
    is_live = procfs_root == Path("/proc")
    baseline = load_baseline(Path(config.baseline)) if config.baseline else None
    return (
        HostCollector(procfs_root, clock, demand),
        PressureCollector(procfs_root),
        DiskCollector(procfs_root),
        MdCollector(sysfs_root),
        MountsCollector(
            procfs_root,
            clock,
            MountProber(clock).probe if is_live else None,
            config.mounts,
            config.mounts_ignored,
            read_space,
        ),
        NfsCollector(procfs_root),
        NetStackCollector(procfs_root),
        BondingCollector(sysfs_root),
        ProcessesCollector(procfs_root, clock),
        CgroupCollector(procfs_root, sysfs_root, ranks),
        EdacCollector(sysfs_root),
        PcieAerCollector(sysfs_root),
        ClockCollector(sysfs_root, is_live=is_live),
        ServicesCollector(
            sysfs_root,
            Systemctl() if is_live else None,
            config.services,
            config.modules,
            root=Path("/"),
        ),
        ImexCollector(Path("/") if is_live else None, procfs_root, make_run_program(clock)),
        VersionsCollector(
            procfs_root,
            sysfs_root,
            baseline,
            excluded_nics,
            Path("/") if is_live else None,
            read_acs,
        ),
        PreflightCollector(SERVICE_FOLDER if is_live else None, clock),
        PstoreCollector(sysfs_root, procfs_root, ARCHIVE if is_live else None),
    )
