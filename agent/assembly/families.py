"""Every metric that the agent serves by itself: the families that its modules declare, in the order of the page.

`make docs` writes the table of docs/reference/metrics.md from this list. Plugins add their own.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Final

from agent import plugins
from agent.collectors import (
    agent,
    bonding,
    cgroup,
    clock,
    disk,
    disk_health,
    edac,
    ethernet,
    ethtool,
    gpu_families,
    gpu_jobs,
    host,
    hwmon,
    imex,
    inventory,
    ipmi,
    kernel_log,
    md,
    mounts,
    net_stack,
    network,
    nfs,
    nic_families,
    pcie_aer,
    planes,
    preflight,
    pressure,
    processes,
    pstore,
    rank_families,
    rank_nics,
    redfish,
    services,
    thermal,
    topology,
    transceiver,
    versions,
)
from agent.findings import collector as findings
from agent.metrics import Family
from agent.plugins import PluginCollector
from agent.sampling import runner

_MODULES: Final = (
    runner,
    plugins,
    agent,
    host,
    processes,
    cgroup,
    edac,
    pcie_aer,
    mounts,
    clock,
    services,
    imex,
    versions,
    preflight,
    pstore,
    disk,
    md,
    bonding,
    net_stack,
    nfs,
    network,
    nic_families,
    ethernet,
    ethtool,
    transceiver,
    topology,
    pressure,
    thermal,
    hwmon,
    ipmi,
    redfish,
    disk_health,
    kernel_log,
    findings,
    rank_families,
    gpu_families,
    gpu_jobs,
    rank_nics,
    planes,
    inventory,
)
_ALL: Final = tuple(chain.from_iterable(module.FAMILIES for module in _MODULES))
FAMILIES: Final = {family.name: family for family in _ALL}
assert len(FAMILIES) == len(_ALL), "two modules declare the same family"


def with_plugins(collectors: Iterable[PluginCollector]) -> dict[str, Family]:
    """Return all families that an agent with these plugins can show, its own first."""
    return FAMILIES | {
        family.name: family for collector in collectors for family in collector.families
    }
