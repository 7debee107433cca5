"""Every metric that the agent serves: the one list, compared with docs/metrics.md by a test.

Names: rankmend_<subject>_<quantity>_<unit>[_total], base units. Device series carry device
labels only, rank series ``job_id`` and ``rank``; the rest is joined from an info metric.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class MetricType(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample: a name out of `FAMILIES` and its labels in the order given there."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    type: MetricType
    unit: str  # empty: a plain number
    labels: tuple[str, ...]
    help: str


def _counter(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(f"rankmend_{name}_total", MetricType.COUNTER, unit, labels, text)


def _gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(f"rankmend_{name}", MetricType.GAUGE, unit, labels, text)


_DISK = ("device", "mount")
_FINDING = ("check", "component", "uuid", "device", "severity", "action")
_SENSOR = ("device", "sensor")
_RANK = ("job_id", "rank")

_ALL: Final = (
    # the runner, for each collector
    _gauge(
        "collector_success",
        "",
        ("collector",),
        "1 when the last finished run measured, 0 when its source was broken; no series when the node has no such source.",
    ),
    _gauge(
        "collector_present",
        "",
        ("collector",),
        "1 when this node has the collector's source, 0 when it has none.",
    ),
    _gauge(
        "collector_duration_seconds",
        "seconds",
        ("collector",),
        "How long the last finished run took.",
    ),
    _gauge(
        "collector_age_seconds",
        "seconds",
        ("collector",),
        "Age of the collector's newest answer; grows while it is stuck or broken.",
    ),
    _counter("collector_failures", "", ("collector",), "Runs that found their source broken."),
    _gauge(
        "collector_stale",
        "",
        ("collector",),
        "1 when the newest answer is so old that its values have left the page.",
    ),
    # agent/collectors/agent.py
    _gauge("agent_info", "", ("version", "python"), "Version of the agent; always 1."),
    _gauge("agent_uptime_seconds", "seconds", (), "Time since the agent started."),
    _gauge("agent_memory_bytes", "bytes", (), "Resident memory of the agent."),
    _counter("agent_cpu_seconds", "seconds", (), "CPU time that the agent has used."),
    _gauge("agent_threads", "", (), "Threads of the agent."),
    _gauge("agent_descriptors", "", (), "Open file descriptors of the agent."),
    _gauge("agent_connections", "", (), "Launchers connected to the agent's socket."),
    _counter(
        "agent_connections_refused",
        "",
        (),
        "Connections that the agent closed: a bad message, a foreign file, a bound reached.",
    ),
    # agent/collectors/host.py
    _gauge("host_uptime_seconds", "seconds", (), "Time since the node booted."),
    _gauge("host_cpus", "", (), "Logical CPUs that are online."),
    _counter(
        "host_cpu_seconds",
        "seconds",
        ("mode",),
        "CPU time of all CPUs by mode; user contains guest.",
    ),
    _gauge(
        "host_load_processes",
        "processes",
        ("window",),
        "Load average: processes that run or wait, over 1m, 5m and 15m.",
    ),
    _gauge("host_memory_size_bytes", "bytes", (), "Memory of the node."),
    _gauge(
        "host_memory_available_bytes",
        "bytes",
        (),
        "Memory that can be had without swapping (MemAvailable).",
    ),
    _gauge(
        "host_memory_shared_bytes",
        "bytes",
        (),
        "Shared memory and tmpfs, /dev/shm among it (Shmem).",
    ),
    _gauge("host_swap_size_bytes", "bytes", (), "Swap space of the node."),
    _gauge("host_swap_used_bytes", "bytes", (), "Swap space in use."),
    _counter("host_swap_in_bytes", "bytes", (), "Read back from swap since boot."),
    _counter("host_swap_out_bytes", "bytes", (), "Written to swap since boot."),
    # agent/collectors/disk.py
    _gauge("disk_size_bytes", "bytes", _DISK, "Size of a mounted file system on a disk."),
    _gauge("disk_available_bytes", "bytes", _DISK, "Space left for ordinary users."),
    _gauge(
        "disk_usage_success",
        "",
        _DISK,
        "1 when the file system answered how full it is, 0 when it failed.",
    ),
    _counter("disk_read_bytes", "bytes", ("device",), "Read from the disk since boot."),
    _counter("disk_written_bytes", "bytes", ("device",), "Written to the disk since boot."),
    _counter("disk_reads", "", ("device",), "Finished reads since boot."),
    _counter("disk_writes", "", ("device",), "Finished writes since boot."),
    _counter(
        "disk_busy_seconds",
        "seconds",
        ("device",),
        "Time during which the disk had something to do.",
    ),
    # agent/collectors/network.py
    *(
        _counter(f"network_{way}_{what}", unit, ("device",), f"{text} since the device came up.")
        for way, verb in (("receive", "received"), ("transmit", "sent"))
        for what, unit, text in (
            ("bytes", "bytes", f"Bytes {verb}"),
            ("packets", "", f"Packets {verb}"),
            ("errors", "", f"Packets not {verb} because of errors"),
            ("drops", "", f"Packets dropped instead of being {verb}"),
        )
    ),
    # agent/collectors/pressure.py
    _counter(
        "pressure_some_seconds",
        "seconds",
        ("resource",),
        "Time during which at least one task waited for cpu, memory or io.",
    ),
    _counter(
        "pressure_full_seconds",
        "seconds",
        ("resource",),
        "Time during which all tasks waited for it at once.",
    ),
    # agent/collectors/thermal.py
    _gauge("thermal_temperature_celsius", "celsius", _SENSOR, "Temperature of a hwmon sensor."),
    _gauge("thermal_max_celsius", "celsius", _SENSOR, "The sensor's upper limit (temp_max)."),
    _gauge("thermal_crit_celsius", "celsius", _SENSOR, "The sensor's critical limit (temp_crit)."),
    _gauge("thermal_fan_rpm", "revolutions per minute", _SENSOR, "Speed of a fan."),
    _gauge(
        "thermal_sensor_info",
        "",
        ("device", "sensor", "label"),
        "The driver's own name for a sensor; always 1.",
    ),
    _gauge(
        "thermal_sensor_success",
        "",
        _SENSOR,
        "1 when the sensor could be read, 0 when its driver refused or gave no number.",
    ),
    _gauge(
        "thermal_zone_temperature_celsius",
        "celsius",
        ("device", "type"),
        "Temperature of a kernel thermal zone.",
    ),
    # agent/collectors/kernel_log.py
    _counter(
        "kernel_log_messages",
        "",
        ("kind",),
        "Faults and changes that the kernel told of since boot, by kind (docs/kernel-log.md).",
    ),
    _counter(
        "kernel_log_device_messages",
        "",
        ("kind", "device"),
        "The same for each network device, disk or PCI address that was named.",
    ),
    _counter(
        "gpu_xid",
        "",
        ("pci_bus_id", "xid"),
        "XIDs of a GPU since boot; the address is as sysfs writes it, 0000:3b:00.0.",
    ),
    _counter("nvswitch_sxid", "", ("pci_bus_id", "sxid"), "SXIDs of an NVSwitch since boot."),
    _counter("kernel_log_records", "", (), "Records of the kernel log that were read."),
    _counter(
        "kernel_log_lost",
        "",
        (),
        "Records that the kernel overwrote before they were read, from the start of the boot on.",
    ),
    _counter("kernel_log_broken", "", (), "Records in no form that the kernel documents."),
    _counter(
        "kernel_log_untrusted",
        "",
        (),
        "Records that look like a fault and were written by a process, not by the kernel.",
    ),
    _counter(
        "kernel_log_overflow",
        "",
        (),
        "Messages counted without their device because too many devices had trouble.",
    ),
    # agent/findings.py
    _gauge(
        "finding_active",
        "",
        _FINDING,
        "1 for what is found wrong with this node now, unless it is silenced (docs/findings.md).",
    ),
    _gauge(
        "finding_rank_info",
        "",
        ("job_id", "rank", "check", "uuid", "device"),
        "Which rank a finding hits; always 1.",
    ),
    _gauge("finding_silenced", "", (), "Findings that the configuration silences."),
    _gauge("finding_checks", "", (), "Checks of the policy table."),
    _gauge(
        "finding_checks_blocked",
        "",
        (),
        "Checks that can't run because their collector is broken or stuck.",
    ),
    _counter(
        "finding_raised", "", ("check", "severity"), "Findings raised since the agent started."
    ),
    _gauge(
        "finding_raised_last_day",
        "",
        ("severity",),
        "Findings raised in the last 24 hours, as far as the agent has run.",
    ),
    _counter(
        "finding_overflow", "", (), "Findings not kept because too many things were wrong at once."
    ),
    _gauge(
        "finding_journal_success",
        "",
        (),
        "1 when the last change of a finding was written to disk, 0 when that failed.",
    ),
    # agent/alerting.py
    _counter("alert_sent", "", ("target",), "Alerts that the target took, repeats among them."),
    _counter("alert_failures", "", ("target",), "Messages that the target did not take."),
    _counter(
        "alert_dropped", "", ("target",), "Ended alerts whose end the target was not told in time."
    ),
    _gauge(
        "alert_ended_waiting",
        "",
        ("target",),
        "Ended alerts that the target is still to be told of.",
    ),
    _gauge(
        "alert_success",
        "",
        ("target",),
        "1 when the target took the last message, 0 when it did not.",
    ),
    # agent/collectors/ranks.py
    _gauge(
        "rank_info",
        "",
        ("job_id", "rank", "pid", "attempt", "job_name"),
        "What belongs to a rank; always 1.",
    ),
    _gauge(
        "rank_progress_success",
        "",
        _RANK,
        "1 when the rank's progress file could be read, 0 when it is broken.",
    ),
    _gauge("rank_step_number", "", _RANK, "Number of the newest finished step."),
    _counter("rank_steps", "", _RANK, "Steps finished in this attempt."),
    _gauge("rank_step_last_seconds", "seconds", _RANK, "Duration of the newest step."),
    _gauge(
        "rank_step_median_seconds",
        "seconds",
        _RANK,
        "Median duration of the newest steps, at most 32.",
    ),
    _gauge("rank_step_age_seconds", "seconds", _RANK, "Time since the newest step ended."),
    _gauge(
        "rank_section_ratio",
        "ratio",
        ("job_id", "rank", "section"),
        "Share of the time of the newest steps (at most 32) spent in a section; idle is outside of all.",
    ),
    _gauge(
        "rank_section_age_seconds",
        "seconds",
        ("job_id", "rank", "section"),
        "How long the rank has been in the section where it is now.",
    ),
    _counter("rank_collectives_entered", "", _RANK, "Collectives entered in this attempt."),
    _counter("rank_collectives_completed", "", _RANK, "Collectives completed in this attempt."),
)

FAMILIES: Final = {family.name: family for family in _ALL}


def markdown_table() -> str:
    """Return the list as docs/metrics.md shows it."""
    rows = ["| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    for family in FAMILIES.values():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(
            f"| `{family.name}` | {family.type.value} | {family.unit} | {labels} | {family.help} |"
        )
    return "\n".join(rows) + "\n"
