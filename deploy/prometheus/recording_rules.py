"""The recording rules: fleet health, MTTR and how far devices and ranks are from their peers.

Names are level:metric:operation, as Prometheus recommends; the level lists the labels that are left: gpu, nic and
rank stand for all that names one. Every rule keeps `cluster`, so that several clusters can share a Prometheus, and counts a series once
though two replicas of Prometheus have written it: first a maximum over what names the thing, then the sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

PEERS_MIN: Final = 4  # of fewer, the median says little
BUSY_RATIO: Final = 0.5  # GPU utilization; idle GPUs are cooler and slower on purpose
TRAFFIC_MIN_BYTES_PER_S: Final = 1e6
MAD_TO_SIGMA: Final = 1.4826  # of a normal distribution

_UP: Final = 'max by (cluster, node) (up{job="rankmend-agent"})'
_CRITICAL: Final = (
    'max by (cluster, node) (rankmend_finding_active{severity="critical"} == 1)'  # nodes
)
_NO_NODE: Final = "0 * cluster:rankmend_nodes:count"

_MTTR: Final = "rankmend_controller_recovery_seconds"
_PHASE: Final = "rankmend_controller_recovery_phase_seconds"

_GPU_TIME: Final = "rankmend_controller_gpu_seconds_total"


@dataclass(frozen=True)
class RecordingRule:
    name: str
    expression: str
    meaning: str


@dataclass(frozen=True)
class RuleGroup:
    name: str
    interval: str
    rules: tuple[RecordingRule, ...]


@dataclass(frozen=True)
class _GpuQuantity:
    metric: str
    selector: str
    floor: str  # least spread that counts: what equal GPUs differ by
    what: str


FLEET: Final = (
    RecordingRule(
        "cluster:rankmend_nodes:count",
        f"count by (cluster) ({_UP})",
        "Nodes whose agents Prometheus knows.",
    ),
    RecordingRule(
        "cluster:rankmend_nodes_up:sum",
        f"sum by (cluster) ({_UP})",
        "Nodes whose agents answer.",
    ),
    RecordingRule(
        "cluster:rankmend_nodes_faulty:count",
        f"count by (cluster) ({_CRITICAL}) or on (cluster) {_NO_NODE}",
        "Nodes with a critical finding.",
    ),
    RecordingRule(
        "cluster:rankmend_nodes_healthy:ratio",
        f"(count by (cluster) (({_UP} == 1) unless on (cluster, node) {_CRITICAL}) or on (cluster) {_NO_NODE})"
        " / cluster:rankmend_nodes:count",
        "Share of the nodes whose agent answers and that have no critical finding.",
    ),
    RecordingRule(
        "cluster_check_severity:rankmend_finding_active:count",
        "count by (cluster, check, severity)"
        " (max by (cluster, node, check, severity, uuid, device) (rankmend_finding_active == 1))",
        "Active findings, by check and severity.",
    ),
    RecordingRule(
        "cluster:rankmend_gpus:count",
        "count by (cluster) (max by (cluster, node, uuid) (rankmend_gpu_success))",
        "GPUs that agents know.",
    ),
    RecordingRule(
        "cluster:rankmend_gpus_answering:sum",
        "sum by (cluster) (max by (cluster, node, uuid) (rankmend_gpu_success))",
        "GPUs that answer.",
    ),
)


def _increase(metric: str, labels: str, level: str) -> str:
    """Return the increase in a day, of all controllers of a cluster."""
    return (
        f"sum by (cluster, {labels}) (max by (cluster, instance, {level}) (increase({metric}[1d])))"
    )


def _mean(metric: str, labels: str) -> str:
    total, count = (
        f"sum by ({labels}) (increase({metric}_{part}[1d]))" for part in ("sum", "count")
    )
    return f"{total} / ({count} > 0)"


def _quantile(metric: str, quantile: str) -> str:
    return (
        f"histogram_quantile({quantile}, sum by (cluster, le) (increase({metric}_bucket[1d])))"
        f" and on (cluster) sum by (cluster) (increase({metric}_count[1d])) > 0"
    )


RECOVERY: Final = (
    RecordingRule(
        f"cluster:{_MTTR}:mean1d",
        _mean(_MTTR, "cluster"),
        "Mean MTTR of the incidents that recovered within a day; none without such an incident.",
    ),
    RecordingRule(
        f"cluster:{_MTTR}:p50_1d",
        _quantile(_MTTR, "0.5"),
        "Median MTTR of a day, out of the histogram.",
    ),
    RecordingRule(
        f"cluster:{_MTTR}:p90_1d",
        _quantile(_MTTR, "0.9"),
        "MTTR that nine of ten incidents of a day stayed below, out of the histogram.",
    ),
    RecordingRule(
        f"cluster_phase:{_PHASE}:mean1d",
        _mean(_PHASE, "cluster, phase"),
        "Mean length of each phase of MTTR within a day.",
    ),
    RecordingRule(
        "cluster_cause_outcome:rankmend_controller_incidents:increase1d",
        _increase("rankmend_controller_incidents_total", "cause, outcome", "cause, outcome"),
        "Incidents that ended within a day, by cause and outcome.",
    ),
    RecordingRule(
        "cluster_cause:rankmend_controller_gpu_seconds_lost:increase1d",
        _increase("rankmend_controller_gpu_seconds_lost_total", "cause", "cause"),
        "GPU time that incidents of a day cost from fault to first step, by cause.",
    ),
)


def _goodput(window: str) -> str:
    """Return the productive share of the GPU time of a window, of all controllers of a cluster."""

    def rate(only: str) -> str:
        once = "max by (cluster, instance, jobs, part)"
        return f"sum by (cluster, jobs) ({once} (rate({_GPU_TIME}{only}[{window}])))"

    return f"""{rate('{part="productive"}')} / ({rate("")} > 0)"""


GOODPUT: Final = (
    RecordingRule(
        "cluster_jobs:rankmend_goodput:ratio_rate1h",
        _goodput("1h"),
        "Share of the GPU time of an hour that was spent on new steps, of managed and of watched jobs.",
    ),
    RecordingRule(
        "cluster_jobs:rankmend_goodput:ratio_rate1d",
        _goodput("1d"),
        "The same of a day.",
    ),
    RecordingRule(
        "cluster_jobs_part:rankmend_controller_gpu_seconds:increase1d",
        _increase(_GPU_TIME, "jobs, part", "jobs, part"),
        "GPU time of a day, by part.",
    ),
    RecordingRule(
        "cluster_jobs_cause:rankmend_controller_gpu_seconds_unproductive:increase1d",
        _increase(
            "rankmend_controller_gpu_seconds_unproductive_total", "jobs, cause", "jobs, cause"
        ),
        "GPU time of a day that went into no new step, by cause.",
    ),
)

_GPU_QUANTITIES: Final = (
    _GpuQuantity("rankmend_gpu_temperature_celsius", "", "1", "Temperature"),
    _GpuQuantity("rankmend_gpu_power_watts", "", "5", "Power"),
    _GpuQuantity("rankmend_gpu_clock_hertz", '{clock="sm"}', "15e6", "SM clock"),
)


def _gpu_rules(one: _GpuQuantity) -> Iterator[RecordingRule]:
    metric = one.metric
    model = "max by (cluster, node, uuid, model) (rankmend_gpu_info)"
    busy = f"rankmend_gpu_utilization_ratio > {BUSY_RATIO:g}"
    yield RecordingRule(
        f"gpu:{metric}:busy",
        f"max by (cluster, node, uuid, gpu, model) ("
        f"({metric}{one.selector} and on (cluster, node, uuid) {busy})"
        f" * on (cluster, node, uuid) group_left (model) {model})",
        f"{one.what} of each GPU that is in use by more than half, with its model.",
    )
    yield RecordingRule(
        f"cluster_model:{metric}:median",
        f"quantile by (cluster, model) (0.5, gpu:{metric}:busy)"
        f" and on (cluster, model) count by (cluster, model) (gpu:{metric}:busy) >= {PEERS_MIN}",
        f"{one.what}: median of the busy GPUs of a model, of {PEERS_MIN} or more.",
    )
    apart = f"gpu:{metric}:busy - on (cluster, model) group_left () cluster_model:{metric}:median"
    yield RecordingRule(
        f"cluster_model:{metric}:mad",
        f"quantile by (cluster, model) (0.5, abs({apart}))",
        f"{one.what}: median of the absolute deviations from that median.",
    )
    yield RecordingRule(
        f"gpu:{metric}:deviation",
        f"({apart}) / on (cluster, model) group_left ()"
        f" clamp_min({MAD_TO_SIGMA} * cluster_model:{metric}:mad, {one.floor})",
        f"{one.what}: how many robust standard deviations ({MAD_TO_SIGMA} MAD, at least {float(one.floor):g}) a busy GPU is"
        " from the median of its model.",
    )


def _ratio_rules(level: str, metric: str, peers: str, what: str) -> Iterator[RecordingRule]:
    """Return the median of peers and each one's ratio to it, of ``level:metric``."""
    base = metric.partition(":")[0]
    median = f"{peers.replace(', ', '_')}:{base}:median"
    yield RecordingRule(
        median,
        f"quantile by ({peers}) (0.5, {level}:{metric})"
        f" and on ({peers}) count by ({peers}) ({level}:{metric}) >= {PEERS_MIN}",
        f"{what}: median of {PEERS_MIN} or more peers.",
    )
    yield RecordingRule(
        f"{level}:{base}:ratio_to_median",
        f"{level}:{metric} / on ({peers}) group_left () ({median} > 0)",
        f"{what}, against the median of its peers.",
    )


def _nic_rules() -> Iterator[RecordingRule]:
    where = "cluster, node, device, port"
    yield RecordingRule(
        "nic:rankmend_nic_transmit_bytes:rate5m",
        f"max by ({where}, model) ((rate(rankmend_nic_transmit_bytes_total[5m]) > {TRAFFIC_MIN_BYTES_PER_S:g}"
        f' and on ({where}) rankmend_topology_plane_info{{plane="compute"}})'
        " * on (cluster, node, device) group_left (model)"
        " max by (cluster, node, device, model) (rankmend_nic_device_info))",
        "What each port of the compute plane sends that is in use (more than 1 MB/s), with its model.",
    )
    yield from _ratio_rules(
        "nic", "rankmend_nic_transmit_bytes:rate5m", "cluster, model", "What a port sends"
    )


def _rank_rules() -> Iterator[RecordingRule]:
    rank = "cluster, node, job_id, rank"
    step = f"max by ({rank}) (rankmend_rank_step_median_seconds)"
    yield RecordingRule("rank:rankmend_rank_step_seconds:recent", step, "A rank's step time.")
    yield from _ratio_rules(
        "rank", "rankmend_rank_step_seconds:recent", "cluster, job_id", "A rank's step time"
    )
    yield RecordingRule(
        "rank:rankmend_rank_compute_seconds:recent",
        f'{step} * max by ({rank}) (rankmend_rank_section_ratio{{section="compute"}})',
        "A rank's own compute in a step. Ranks that wait for a slow one have its step time, but not its compute.",
    )
    yield from _ratio_rules(
        "rank",
        "rankmend_rank_compute_seconds:recent",
        "cluster, job_id",
        "A rank's compute in a step",
    )


GROUPS: Final = (
    RuleGroup("rankmend-record-fleet", "30s", FLEET),
    RuleGroup("rankmend-record-recovery", "1m", RECOVERY),
    RuleGroup("rankmend-record-goodput", "1m", GOODPUT),
    RuleGroup(
        "rankmend-record-peers",
        "30s",
        (
            *(rule for one in _GPU_QUANTITIES for rule in _gpu_rules(one)),
            *_nic_rules(),
            *_rank_rules(),
        ),
    ),
)


def recording_rules() -> Iterator[RecordingRule]:
    for group in GROUPS:
        yield from group.rules


def recording_rules_text() -> str:
    """Return the rule file."""
    lines = [
        "# Written by deploy/prometheus/generate.py from recording_rules.py: do not edit.",
        "groups:",
    ]
    for group in GROUPS:
        lines += [f"  - name: {group.name}", f"    interval: {group.interval}", "    rules:"]
        for rule in group.rules:
            expression = rule.expression.replace("'", "''")
            lines += [f"      - record: {rule.name}", f"        expr: '{expression}'"]
    return "\n".join(lines) + "\n"
