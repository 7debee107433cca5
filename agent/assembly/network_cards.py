"""The collectors of network cards and of the topology, made from one part of the configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from agent.collectors.ethernet import EthernetCollector
from agent.collectors.ethtool import EthtoolCollector
from agent.collectors.nic import Labels, NicCollector
from agent.collectors.topology import TopologyCollector
from agent.collectors.transceiver import TransceiverCollector
from agent.sampling.collection import Collector
from agent.sampling.demand import Demand
from agent.sources.network_driver import DriverInfo, Ethtool, FecBlocks, PauseFrames
from agent.sources.pci_topology import Plane
from rankmend.clock import Clock
from rankmend.errors import ConfigError, NoSourceError

RATE_GBIT_MAX: Final = 10_000.0
RAIL_MAX: Final = 1023
COLLECTORS: Final = ("nic", "ethernet", "ethtool", "transceiver", "topology")


class NetworkCardSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which network cards there are and what they are for. docs/reference/nic.md

    All patterns are shell patterns of device (``mlx5_*``), port (``mlx5_0/1``) or network device.
    """

    exclude: tuple[str, ...] = ()  # never opened
    include: tuple[str, ...] = ()  # network devices without hardware that are shown nevertheless
    planes: dict[str, tuple[str, ...]] = {}  # plane to patterns
    rails: dict[str, int] = {}  # pattern to rail
    rates_gbit: dict[str, float] = {}  # pattern to the rate that the link ought to have

    def plane_by_pattern(self) -> dict[str, Plane]:
        return {
            pattern: Plane(plane) for plane, patterns in self.planes.items() for pattern in patterns
        }


def check(config: NetworkCardSettings) -> None:
    """Raise ConfigError for what the types alone don't refuse."""
    planes = [plane.value for plane in Plane if plane is not Plane.UNKNOWN]
    seen: dict[str, str] = {}
    for plane, patterns in config.planes.items():
        if plane not in planes:
            raise ConfigError(f"no network plane {plane!r}; there are {', '.join(planes)}")
        for pattern in patterns:
            if pattern in seen:
                raise ConfigError(f"{pattern!r} is in the planes {seen[pattern]} and {plane}")
            seen[pattern] = plane
    for pattern, rail in config.rails.items():
        if not 0 <= rail <= RAIL_MAX:
            raise ConfigError(f"rail {rail} of {pattern!r}: from 0 to {RAIL_MAX}")
    for pattern, rate_gbit in config.rates_gbit.items():
        if not 0 < rate_gbit <= RATE_GBIT_MAX:
            raise ConfigError(
                f"rate of {rate_gbit} Gbit/s for {pattern!r}: above 0, at most {RATE_GBIT_MAX:g}"
            )


def make_collectors(
    config: NetworkCardSettings,
    sysfs_root: Path,
    procfs_root: Path,
    read_memory: Callable[[str], bytes] | None = None,
    clock: Clock | None = None,
    demand: Demand | None = None,
    is_judged: Callable[[str, Labels], bool] = lambda _metric, _labels: True,
) -> tuple[Collector, ...]:
    """Return the collectors. Beside a recorded tree no driver of this machine is asked.

    ``read_memory`` reads a device's transceiver, for an agent without the right to do so itself.
    ``is_judged`` says whether a check reads a series.
    """
    exclude, include = config.exclude, config.include
    is_live = sysfs_root == Path("/sys")
    driver = Ethtool() if is_live else _NoDriver()
    if read_memory is None:  # over a socket of its own: it is used in another thread
        read_memory = (Ethtool() if is_live else _NoDriver()).module_memory
    return (
        NicCollector(sysfs_root, exclude, config.rates_gbit, clock, demand, is_judged),
        EthernetCollector(sysfs_root, exclude, include),
        EthtoolCollector(sysfs_root, driver, exclude, include),
        TransceiverCollector(sysfs_root, read_memory, exclude, include),
        TopologyCollector(
            sysfs_root, procfs_root, exclude, config.plane_by_pattern(), config.rails
        ),
    )


class _NoDriver:
    """Stands where there is no driver to be queried."""

    def driver_info(self, device: str) -> DriverInfo:
        raise self._absent(device)

    def statistics(self, device: str) -> dict[str, int]:
        raise self._absent(device)

    def pause_frames(self, device: str) -> PauseFrames:
        raise self._absent(device)

    def fec_blocks(self, device: str) -> FecBlocks:
        raise self._absent(device)

    def module_memory(self, device: str) -> bytes:
        raise self._absent(device)

    def forget(self, device: str) -> None:
        pass

    def _absent(self, device: str) -> NoSourceError:
        return NoSourceError(f"{device} belongs to a recorded tree")
