"""The page beside other exporters: dcgm-exporter's names for our own samples, and what a site has twice.

Names, types and units: default-counters.csv of NVIDIA/dcgm-exporter (main, 2025: 4.x), whose fields the
standard dashboard (Grafana 12239) and most rules of sites read. Made from the same answers as our own
series, when somebody looks; nothing more is sampled. What we don't sample is left out: `NOT_SAMPLED`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.config import Exporter
from agent.metrics import Family, Metric, MetricType
from agent.sampling.collection import CollectorView

_MIB: Final = 1 << 20
_GPU: Final = "rankmend_gpu_"
LABELS: Final = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "DCGM_FI_DRIVER_VERSION",
)

_FREE: Final = "DEV_FB_FREE"
_FREE_HELP: Final = "Memory that is free in MiB."

NOT_SAMPLED: Final = (  # fields of dcgm-exporter's default list that have no sample here
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
)

# Families that node_exporter has by default under its own names: cpu, loadavg, meminfo, vmstat, netdev, infiniband, hwmon,
# filesystem, diskstats, edac, mdadm, conntrack, pressure, bonding, nfs (node_exporter's README, "Enabled by default").
_OF_NODE: Final = (
    "rankmend_host_cpu_seconds",
    "rankmend_host_load_",
    "rankmend_host_memory_",
    "rankmend_host_swap_",
    "rankmend_host_tasks_",
    "rankmend_host_descriptors",
    "rankmend_network_",
    "rankmend_nic_receive_",
    "rankmend_nic_transmit_",
    "rankmend_thermal_",
    "rankmend_mount_available_",
    "rankmend_mount_size_",
    "rankmend_mount_inodes",
    "rankmend_disk_available_",
    "rankmend_disk_size_",
    "rankmend_disk_inodes",
    "rankmend_edac_",
    "rankmend_conntrack_",
    "rankmend_pressure_",
)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: MetricType
    help: str
    metric: str  # ours, without rankmend_gpu_
    scale: float = 1.0
    of: tuple[tuple[str, str], ...] = ()  # labels behind those of the GPU


_FIELDS: Final = (
    _Field("DEV_SM_CLOCK", MetricType.GAUGE, "SM clock in MHz.", "clock_hertz", 1e-6, (("clock", "sm"),)),
    _Field("DEV_MEM_CLOCK", MetricType.GAUGE, "Memory clock in MHz.", "clock_hertz", 1e-6, (("clock", "memory"),)),
    _Field("DEV_MEMORY_TEMP", MetricType.GAUGE, "Memory temperature in C.", "memory_temperature_celsius"),
    _Field("DEV_GPU_TEMP", MetricType.GAUGE, "GPU temperature in C.", "temperature_celsius"),
    _Field("DEV_POWER_USAGE", MetricType.GAUGE, "Power draw in W.", "power_watts"),
    _Field("DEV_TOTAL_ENERGY_CONSUMPTION", MetricType.COUNTER, "Energy in mJ since the driver was loaded.", "energy_joules_total", 1e3),
    _Field("DEV_PCIE_REPLAY_COUNTER", MetricType.COUNTER, "PCIe replays.", "pcie_errors_total", of=(("kind", "replay"),)),
    _Field("DEV_GPU_UTIL", MetricType.GAUGE, "GPU utilization in %.", "utilization_ratio", 100.0),
    _Field("DEV_MEM_COPY_UTIL", MetricType.GAUGE, "Memory utilization in %.", "memory_utilization_ratio", 100.0),
    _Field("DEV_ENC_UTIL", MetricType.GAUGE, "Encoder utilization in %.", "engine_utilization_ratio", 100.0, (("engine", "encoder"),)),
    _Field("DEV_DEC_UTIL", MetricType.GAUGE, "Decoder utilization in %.", "engine_utilization_ratio", 100.0, (("engine", "decoder"),)),
    _Field("DEV_XID_ERRORS", MetricType.GAUGE, "Code of the last XID since the agent began; 0: none.", "last_xid_id"),
    _Field("DEV_FB_USED", MetricType.GAUGE, "Memory in use in MiB.", "memory_used_bytes", 1 / _MIB),
    _Field("DEV_FB_RESERVED", MetricType.GAUGE, "Memory that the driver keeps in MiB.", "memory_reserved_bytes", 1 / _MIB),
    _Field("DEV_UNCORRECTABLE_REMAPPED_ROWS", MetricType.COUNTER, "Rows remapped for uncorrectable errors.", "remapped_rows_total", of=(("cause", "uncorrected"),)),
    _Field("DEV_CORRECTABLE_REMAPPED_ROWS", MetricType.COUNTER, "Rows remapped for correctable errors.", "remapped_rows_total", of=(("cause", "corrected"),)),
    _Field("DEV_ROW_REMAP_FAILURE", MetricType.GAUGE, "1 where a row could not be remapped.", "remapped_rows_failed"),
    _Field("PROF_GR_ENGINE_ACTIVE", MetricType.GAUGE, "Share of time with a context at work.", "graphics_active_ratio"),
    _Field("PROF_PIPE_TENSOR_ACTIVE", MetricType.GAUGE, "Share of time in which tensor cores worked.", "pipe_active_ratio", of=(("pipe", "tensor"),)),
    _Field("PROF_DRAM_ACTIVE", MetricType.GAUGE, "Share of the memory bandwidth in use.", "dram_active_ratio"),
)  # fmt: skip


def _family(name: str, type_: MetricType, text: str) -> Family:
    return Family(f"DCGM_FI_{name}", type_, "", LABELS, text)


FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        *(_family(field.name, field.type, field.help) for field in _FIELDS),
        _family(_FREE, MetricType.GAUGE, _FREE_HELP),
    )
}


def dcgm_metrics(views: Iterable[CollectorView], hostname: str) -> Iterator[Metric]:
    """Return dcgm-exporter's fields of the GPUs in these answers. MIG instances are left out."""
    metrics = [metric for view in views if view.name == "gpu" for metric in view.metrics]
    about = {
        dict(metric.labels)["uuid"]: dict(metric.labels)
        for metric in metrics
        if metric.name == f"{_GPU}info"
    }
    values = {(metric.name, metric.labels): metric.value for metric in metrics}
    for gpu in dict.fromkeys(metric.labels[:3] for metric in metrics if _is_of_gpu(metric)):
        own = dict(gpu)
        known = about.get(own["uuid"], {})
        labels = (
            ("gpu", own["gpu"]),
            ("UUID", own["uuid"]),
            ("pci_bus_id", _long_address(own["pci_bus_id"])),
            ("device", f"nvidia{own['gpu']}"),
            ("modelName", known.get("model", "")),
            ("Hostname", hostname),
            ("DCGM_FI_DRIVER_VERSION", known.get("driver", "")),
        )
        for field in _FIELDS:
            value = values.get((_GPU + field.metric, (*gpu, *field.of)))
            if value is not None:
                yield Metric(f"DCGM_FI_{field.name}", value * field.scale, labels)
        memory = [
            values.get((f"{_GPU}memory_{part}_bytes", gpu)) for part in ("size", "used", "reserved")
        ]
        if memory[0] is not None and memory[1] is not None:
            free = memory[0] - memory[1] - (memory[2] or 0)
            yield Metric(f"DCGM_FI_{_FREE}", max(0.0, free) / _MIB, labels)


def _is_of_gpu(metric: Metric) -> bool:
    return metric.name.startswith(_GPU) and [name for name, _value in metric.labels[:3]] == [
        "gpu",
        "uuid",
        "pci_bus_id",
    ]


def _long_address(address: str) -> str:
    """Return a PCI address as NVML writes it: eight digits of domain, capitals."""
    domain, _colon, rest = address.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper() if rest else address


def hidden_families(beside: Sequence[Exporter], families: Iterable[str]) -> frozenset[str]:
    """Return the families that the page leaves out beside these exporters. Checks read them all the same."""
    hidden: set[str] = set()
    if Exporter.NODE in beside:
        hidden.update(name for name in families if name.startswith(_OF_NODE))
    if Exporter.DCGM in beside:
        hidden.update(f"{_GPU}{field.metric}" for field in _FIELDS if not field.of)
        hidden.update(f"{_GPU}{name}" for name in ("clock_hertz", "memory_size_bytes"))
    return frozenset(hidden)
