"""The agent's configuration: a TOML file, read once into one value. docs/operate/agent.md lists the keys."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from agent import expected_devices, plugins
from agent.assembly import host, network_cards, privileged
from agent.assembly.host import HostSettings
from agent.assembly.network_cards import NetworkCardSettings
from agent.assembly.privileged import RedfishSettings
from agent.expected_devices import ExpectedDevices
from agent.sampling.runner import INTERVAL_S_MAX, INTERVAL_S_MIN
from rankmend.alerting import http_base
from rankmend.errors import ConfigError
from rankmend.links import RUNBOOKS, check_runbooks
from rankmend.watched_report import report_url

GPUS_MAX: Final = 64
GPU_CALL_S_MIN: Final = 0.5  # PCIe throughput alone takes 0.02 s
GPU_CALL_S_MAX: Final = 300.0
SERVICE_STATE_DIR: Final = Path("/var/lib/rankmend-agent")  # as in deploy/systemd
COLLECTORS: Final = (
    "ranks",
    *host.COLLECTORS,
    "network",
    "thermal",
    "gpu",
    "gpu_state",
    "gpu_jobs",
    *network_cards.COLLECTORS,
    "rank_nics",
    "planes",
    "inventory",
    *privileged.COLLECTORS,
    "kernel_log",
    "agent",
    "findings",
)
RELOADABLE: Final = frozenset({"interval_s", "intervals_s", "disabled", "findings", "tls"})


class GpuSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """GPUs. docs/reference/gpu.md"""

    expected_count: int | None = None  # None: nobody has said; a node without any is in order
    profiling: bool = True  # how busy SMs, tensor cores and DRAM are; a profiler may want it off
    job_map: str | None = None  # folder; None: NVIDIA's own, but not beside a recorded tree
    kubelet_checkpoint: str | None = None  # file; None: kubelet's own, but not beside such a tree
    call_s_max: float = 10.0  # NVML answers in milliseconds, on a bad GPU in 45 s or never


class PageNames(Enum):
    """Names of another exporter under which samples are given, too."""

    DCGM = "dcgm"


class Exporter(Enum):
    """An exporter that a site runs already."""

    NODE = "node_exporter"
    DCGM = "dcgm-exporter"


class PageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What /metrics shows. docs/operate/agent.md"""

    names: tuple[PageNames, ...] = ()  # other exporters' names for what is sampled, besides our own
    beside: tuple[
        Exporter, ...
    ] = ()  # exporters that run already: what they have is not shown twice


class FindingsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is held to be wrong. docs/operate/findings.md"""

    policy: str | None = None  # TOML with the site's own rows over the shipped table
    silenced: tuple[str, ...] = ()  # checks, or patterns of finding ids


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who is told."""

    urls: tuple[str, ...] = ()  # Alertmanagers, a controller
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    runbooks: str = RUNBOOKS  # absolute URL of the folder that alerts link to


class WatchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who judges the jobs of other launchers. docs/use/watch.md"""

    controller: str | None = None  # URL; with the certificate of [alerts]. None: nobody is notified
    logs: tuple[str, ...] | None = None  # patterns: `agent.watch.job_logs`


class EndpointTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """PEM files of the endpoint. docs/operate/agent.md"""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None  # with it, only clients with a certificate of this CA


class LogFormat(Enum):
    TEXT = "text"  # key=value
    JSON = "json"


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    listen: str = "127.0.0.1:9476"
    socket: str | None = None  # None: the first usable place of `agent_socket.socket_paths`
    node: str | None = None
    log_format: LogFormat = LogFormat.TEXT
    interval_s: float | None = None  # for collectors that intervals_s does not list
    intervals_s: dict[str, float] = {}
    disabled: tuple[str, ...] = ()
    progress_glob: str | None = None
    watched_jobs: bool = True  # those of other launchers (`rankmend watch env`)
    procfs: str = "/proc"
    sysfs: str = "/sys"
    nic: NetworkCardSettings = NetworkCardSettings()
    host: HostSettings = HostSettings()
    helper_socket: str | None = None  # the root helper's socket; None: its default path
    redfish: RedfishSettings = RedfishSettings()
    kmsg: str | None = None  # None: /dev/kmsg; no kernel log where procfs is a recorded tree
    kmsg_trusts_user: bool = False  # for tests: believe what processes write to /dev/kmsg
    injected_kernel_log: bool = False  # believe what `rankmend inject xid` tells, too
    kernel_policy: str | None = None  # CSV with the site's own rows (docs/reference/kernel-log.md)
    state_dir: str | None = None  # what outlives a restart; None: systemd's folder, else nothing
    tls: EndpointTls | None = None  # None: plain HTTP
    gpu: GpuSettings = GpuSettings()
    expect: ExpectedDevices = ExpectedDevices()
    findings: FindingsSettings = FindingsSettings()
    page: PageSettings = PageSettings()
    alerts: AlertSettings = AlertSettings()
    watch: WatchSettings = WatchSettings()
    plugins: dict[str, Any] = {}  # enabled, and a table for each plugin: docs/reference/plugins.md


def load(path: Path) -> AgentConfig:
    """Return the configuration in a TOML file, or raise ConfigError that names what is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    try:
        config = msgspec.toml.decode(data, type=AgentConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # names the key or the place
        raise ConfigError(f"{path}: {error}") from error
    try:
        check(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def with_state_dir(config: AgentConfig, environment: Mapping[str, str]) -> AgentConfig:
    """Return the configuration with the folder of StateDirectory= (systemd.exec(5)) by default."""
    folder = environment.get("STATE_DIRECTORY", "").partition(":")[0]  # the first of several
    return override(config, state_dir=folder) if folder and config.state_dir is None else config


def override(config: AgentConfig, **flags: object) -> AgentConfig:
    """Return the configuration with the flags that were given, checked."""
    given = {name: value for name, value in flags.items() if value is not None}
    changed = msgspec.structs.replace(config, **given)
    check(changed)
    return changed


def check(config: AgentConfig) -> None:
    """Raise ConfigError for what the types alone don't refuse."""
    check_runbooks(config.alerts.runbooks)
    for url in config.alerts.urls:
        http_base(url, "alerts.urls")
    if config.watch.controller is not None:
        report_url(config.watch.controller)
        if not config.watched_jobs:
            raise ConfigError(
                "watch.controller is set, but watched_jobs is false, so nothing would be reported"
            )
    if config.watch.logs:
        from agent.watch.job_logs import parse_patterns  # noqa: PLC0415 - memory

        parse_patterns(config.watch.logs)
    _check_collectors(config)
    intervals_s = dict(config.intervals_s)
    if config.interval_s is not None:
        intervals_s["interval_s"] = config.interval_s
    for name, interval_s in intervals_s.items():
        if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
            raise ConfigError(
                f"interval of {interval_s} s for {name}: from {INTERVAL_S_MIN} to {INTERVAL_S_MAX}"
            )
    _check_gpu(config)
    expected_devices.check(config.expect)
    if config.progress_glob is not None and not config.progress_glob.startswith("/"):
        raise ConfigError(f"progress_glob is not an absolute path: {config.progress_glob!r}")
    if config.state_dir is not None and not Path(config.state_dir).is_dir():
        raise ConfigError(f"state_dir is not a folder: {config.state_dir}")
    network_cards.check(config.nic)
    host.check(config.host)
    privileged.check(config.helper_socket, config.redfish)
    for name, root in (("procfs", config.procfs), ("sysfs", config.sysfs)):
        if not Path(root).is_dir():
            raise ConfigError(f"{name} is not a folder: {root}")


def _check_gpu(config: AgentConfig) -> None:
    """Raise ConfigError for GPUs that there can't be."""
    if config.gpu.expected_count is not None and not 0 <= config.gpu.expected_count <= GPUS_MAX:
        raise ConfigError(f"gpu.expected_count of {config.gpu.expected_count}: 0 to {GPUS_MAX}")
    if None not in (config.gpu.expected_count, config.expect.gpus) and (
        config.gpu.expected_count != config.expect.gpus
    ):
        raise ConfigError(
            f"gpu.expected_count of {config.gpu.expected_count} and expect.gpus of"
            f" {config.expect.gpus}: one is enough"
        )
    if not GPU_CALL_S_MIN <= config.gpu.call_s_max <= GPU_CALL_S_MAX:
        raise ConfigError(
            f"gpu.call_s_max of {config.gpu.call_s_max} s: {GPU_CALL_S_MIN} to {GPU_CALL_S_MAX}"
        )
    for name in ("job_map", "kubelet_checkpoint"):
        place = getattr(config.gpu, name)
        if place is not None and not place.startswith("/"):
            raise ConfigError(f"gpu.{name} is not an absolute path: {place!r}")


def _check_collectors(config: AgentConfig) -> None:
    """Raise ConfigError for a plugin or collector that there can't be."""
    enabled = plugins.choose(config.plugins).enabled
    for name in enabled:
        if name in (*COLLECTORS, "plugins"):
            raise ConfigError(f"plugins.enabled: {name!r} is a collector of the agent's own")
    collectors = (*COLLECTORS, *(("plugins", *enabled) if enabled else ()))
    for name in (*config.intervals_s, *config.disabled):
        if name not in collectors:
            raise ConfigError(f"no collector {name!r}; there are {', '.join(collectors)}")


def expected_gpus(config: AgentConfig) -> int | None:
    """Return how many GPUs this node is meant to have, where somebody has said it."""
    return config.gpu.expected_count if config.expect.gpus is None else config.expect.gpus


def interval_of(config: AgentConfig, name: str, own_s: float) -> float:
    """Return the interval of a collector whose own is ``own_s``."""
    return config.intervals_s.get(name, config.interval_s or own_s)
