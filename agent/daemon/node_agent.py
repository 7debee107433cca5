"""All collectors of one node with what they share, run at their intervals or once. No sockets, no signals."""

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from prometheus_client import generate_latest

from agent import config as configuration
from agent import plugins
from agent.assembly import host, network_cards, privileged
from agent.assembly.families import FAMILIES, with_plugins
from agent.collectors import rank_nics
from agent.collectors.agent import AgentCollector
from agent.collectors.gpu import SHOWN_METRICS as GPU_SHOWN
from agent.collectors.gpu import GpuCollector, GpuStateCollector
from agent.collectors.gpu_jobs import GpuJobsCollector, JobPlaces
from agent.collectors.host import SHOWN_METRICS as HOST_SHOWN
from agent.collectors.inventory import InventoryCollector
from agent.collectors.kernel_log import KernelLogCollector
from agent.collectors.network import NetworkCollector
from agent.collectors.nic_files import SHOWN_METRICS as NIC_SHOWN
from agent.collectors.planes import PlanesCollector
from agent.collectors.rank_nics import RankNicsCollector
from agent.collectors.ranks import RanksCollector
from agent.collectors.thermal import ThermalCollector
from agent.config import AgentConfig
from agent.findings.collector import FindingsCollector
from agent.findings.policy_files import load_checks, load_policy
from agent.jobs import job_map, kubelet
from agent.jobs.processes import RankPods
from agent.nvml.children import ChildProcess, ReleaseFile, read_traces
from agent.nvml.monitor import GpuMonitor
from agent.page.application import make_registry
from agent.plugins import PluginCollector, PluginContext, PluginsCollector
from agent.ranks.table import RankSample, RankTable
from agent.ranks.watched import WatchedRanks
from agent.sampling.collection import Collector
from agent.sampling.demand import UNREAD_S_MAX, Demand
from agent.sampling.runner import Runner
from agent.sampling.schedule import Schedule
from agent.sources.remembered_devices import InventoryFile
from rankmend.clock import Clock
from rankmend.injected_log import INJECTED_LOG
from rankmend.node import is_name_given, node_name

log = logging.getLogger(__name__)

ONCE_S_MAX: Final = 10.0  # for `--once`; what has not answered by then is missing on the page

# How seldom collectors run until a reader is expected. No check of the shipped table reads the first one; of the others,
# checks read the growth over a minute or more.
UNREAD_S: Final = {
    "rank_nics": UNREAD_S_MAX,
    "network": 5.0,
    "pressure": 5.0,
}
# What waits for a reader. A site's own check of any of these has everything read all the time; one of the shipped table
# would do so on every node (tests/agent/test_demand.py).
SHOWN_METRICS: Final = frozenset(
    (*GPU_SHOWN, *NIC_SHOWN, *HOST_SHOWN, *(family.name for family in rank_nics.FAMILIES))
)


@runtime_checkable
class Stoppable(Protocol):
    """A collector that holds a thread, a child or state."""

    def stop(self) -> None: ...


class NodeAgent:
    """The collectors of one node, their schedule and their newest answers."""

    def __init__(self, config: AgentConfig, clock: Clock) -> None:
        self._clock = clock
        self.config = config
        self.demand = Demand(clock.now_s)
        self.node = node_name(config.node)
        self.table = RankTable()
        self._procfs_root, self._sysfs_root = Path(config.procfs), Path(config.sysfs)
        # Beside a recorded tree of another node, the jobs and helpers of this one are none of its.
        self._is_live = (config.procfs, config.sysfs) == (AgentConfig().procfs, AgentConfig().sysfs)
        watched = WatchedRanks() if config.watched_jobs and self._is_live else None
        self.ranks = RanksCollector(
            self.table, clock, config.progress_glob, watched, _rank_pods(config)
        )
        plugged = plugins.load(
            plugins.choose(config.plugins),
            PluginContext(self._procfs_root, self._sysfs_root, self._is_live, clock),
            FAMILIES,
        )
        self.families = with_plugins(plugged)
        self.kernel_policy = load_policy(
            Path(config.kernel_policy) if config.kernel_policy else None
        )
        self.kernel_log = self._make_kernel_log()
        self.findings = FindingsCollector(
            clock,
            self.node,
            load_checks(self.families, _policy_path(config), self.kernel_policy),
            config.findings.silenced,
            self.kernel_log,
            self.kernel_policy,
        )
        self._settle_demand()
        self._gpu_interval_s = configuration.interval_of(config, "gpu", GpuCollector.interval_s)
        self.gpus = self._make_gpu_monitor()
        self.rank_nics = RankNicsCollector()
        self.planes = PlanesCollector(clock)
        self.gpu_jobs = GpuJobsCollector(
            self.gpus,
            self._gpu_interval_s,
            self._rank_samples,
            lambda: self.ranks.newest_watched.jobs,
            self._procfs_root,
            _job_places(config, self._is_live),
        )
        self.inventory = self._make_inventory()
        self.collectors = self._order_collectors(plugged)
        self.schedule = Schedule(clock)
        self.runner = Runner(
            self.collectors,
            clock,
            self.schedule,
            self.families,
            self._intervals_s(),
            set(config.disabled),
            self.demand,
            UNREAD_S,
        )
        for collector in (self.findings, self.rank_nics, self.planes, self.inventory):
            collector.watch(self.runner.views)

    def _rank_samples(self) -> tuple[RankSample, ...]:
        return self.ranks.newest.samples

    def _read_name(self) -> Callable[[], str] | None:
        """Return how to read the node's name again, unless somebody has given it."""
        is_given = is_name_given(self.config.node, os.environ) or not self._is_live
        return None if is_given else node_name

    def _make_kernel_log(self) -> KernelLogCollector:
        config = self.config
        return KernelLogCollector(
            self._clock,
            self.kernel_policy,
            _kernel_log_path(config),
            saved_path=_state_path(config, "kernel-log.json"),
            trusts_user=config.kmsg_trusts_user,
            injected_path=INJECTED_LOG if config.injected_kernel_log else None,
            on_events=lambda _events: self.runner.hurry(self.findings.name),
        )

    def _make_gpu_monitor(self) -> GpuMonitor:
        release_path = _state_path(self.config, "gpu-release.json")
        return GpuMonitor(
            self._clock,
            self._gpu_interval_s,
            self.config.gpu.call_s_max,
            partial(ChildProcess, has_profiling=self.config.gpu.profiling),
            kept=ReleaseFile(release_path) if release_path else None,
            on_events=lambda: self.runner.hurry("gpu_state", "gpu", self.findings.name),
            demand=self.demand,
            read_traces=partial(read_traces, self._sysfs_root),
        )

    def _make_inventory(self) -> InventoryCollector:
        config, kept_path = self.config, _state_path(self.config, "inventory.json")
        return InventoryCollector(
            self._sysfs_root,
            self._procfs_root,
            self._clock,
            config.expect,
            config.nic.exclude,
            config.nic.plane_by_pattern(),
            InventoryFile(kept_path) if kept_path else None,
        )

    def _order_collectors(self, plugged: Sequence[PluginCollector]) -> tuple[Collector, ...]:
        """Return all collectors in the order of the page; makes those that nothing else here needs."""
        config, clock = self.config, self._clock
        procfs_root, sysfs_root = self._procfs_root, self._sysfs_root
        expected_gpus = configuration.expected_gpus(config)
        ask_helper = privileged.make_ask(config.helper_socket, clock, self._is_live)
        read_acs = read_memory = None
        if self._is_live:
            read_acs = privileged.make_read_acs(
                ask_helper, config.helper_socket, sysfs_root, config.nic.exclude
            )
            read_memory = privileged.make_read_memory(ask_helper, config.helper_socket, clock)
        return (
            self.ranks,
            *host.make_collectors(
                config.host,
                procfs_root,
                sysfs_root,
                clock,
                self._rank_samples,
                config.nic.exclude,
                read_acs,
                self.demand,
            ),
            NetworkCollector(procfs_root),
            ThermalCollector(sysfs_root),
            GpuCollector(
                self.gpus, self._gpu_interval_s, expected_gpus, self._rank_samples, procfs_root
            ),
            GpuStateCollector(self.gpus, self._gpu_interval_s, expected_gpus),
            self.gpu_jobs,
            *network_cards.make_collectors(
                config.nic,
                sysfs_root,
                procfs_root,
                read_memory,
                clock,
                self.demand,
                self.findings.reads,
            ),
            self.rank_nics,
            self.planes,
            self.inventory,
            *privileged.make_collectors(config.redfish, ask_helper, clock),
            self.kernel_log,
            *plugged,
            *((PluginsCollector(plugged),) if plugged else ()),
            AgentCollector(clock, self.table, read_name=self._read_name()),
            self.findings,
        )

    def collect_page(self) -> str:
        """Run every collector once, return the page, and let go of everything."""
        self.collect_once(ONCE_S_MAX)
        self.stop()
        return generate_latest(make_registry(self.runner.views, self.families)).decode()

    def collect_once(self, timeout_s: float) -> None:
        """Run every collector once, then those that go by what the others have answered."""
        after = {self.inventory.name, self.rank_nics.name, self.planes.name, self.gpu_jobs.name}
        names = {collector.name for collector in self.collectors} - after - {self.findings.name}
        for some in (names, after, {self.findings.name}):
            self.runner.collect_once(timeout_s, some)

    def stop(self) -> None:
        """Let every collector that holds something end what it does."""
        for collector in self.collectors:
            if isinstance(collector, Stoppable):
                collector.stop()

    def reload(self, config: AgentConfig) -> None:
        """Take over what can change while running, and say what needs a restart."""
        # before anything changes: it may refuse
        checks = load_checks(self.families, _policy_path(config), self.kernel_policy)
        for name in AgentConfig.__struct_fields__:
            old, new = getattr(self.config, name), getattr(config, name)
            if old != new and name not in configuration.RELOADABLE:
                fields = {"key": name, "kept": old, "wanted": new}
                log.warning("this setting needs a restart", extra=fields)
        self.findings.reload(checks, config.findings.silenced)
        self.config = config
        self._settle_demand()
        self.runner.reload(self._intervals_s(), set(config.disabled))
        log.info("configuration reloaded")

    def _settle_demand(self) -> None:
        """Read everything all the time where a site's own check or a controller reads it."""
        self.demand.is_constant = self.config.watch.controller is not None or not (
            self.findings.metrics.isdisjoint(SHOWN_METRICS)
        )

    def _intervals_s(self) -> dict[str, float]:
        return {
            collector.name: configuration.interval_of(
                self.config, collector.name, collector.interval_s
            )
            for collector in self.collectors
        }


def _state_path(config: AgentConfig, name: str) -> Path | None:
    """Return where the agent keeps a file over restarts, or None where it has no such place."""
    return Path(config.state_dir) / name if config.state_dir else None


def _policy_path(config: AgentConfig) -> Path | None:
    return Path(config.findings.policy) if config.findings.policy else None


def _rank_pods(config: AgentConfig) -> RankPods:
    is_live = config.procfs == AgentConfig().procfs
    return RankPods(Path(config.procfs), kubelet.POD_LOGS if is_live else None)


def _job_places(config: AgentConfig, is_live: bool) -> JobPlaces:
    """Return where jobs of GPUs are looked up; not on this node beside a recorded tree of another."""

    def place(chosen: str | None, default: Path) -> Path | None:
        return Path(chosen) if chosen else default if is_live else None

    return JobPlaces(
        job_map=place(config.gpu.job_map, job_map.DEFAULT),
        kubelet_checkpoint=place(config.gpu.kubelet_checkpoint, kubelet.DEFAULT),
        pod_logs=place(None, kubelet.POD_LOGS),
        cgroups=Path(config.sysfs) / "fs" / "cgroup",
    )


def _kernel_log_path(config: AgentConfig) -> Path | None:
    """Return this node's kernel log, but not beside a recorded tree of another node."""
    if config.kmsg is not None:
        return Path(config.kmsg)
    return Path("/dev/kmsg") if config.procfs == AgentConfig().procfs else None
