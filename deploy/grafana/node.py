"""Node: what one host reports, beside the median of its peers."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.panels import (
    BAD_ABOVE_ZERO,
    CLUSTER,
    DEVIATION,
    GREEN,
    LINES_MAX,
    NODE,
    RATIO_HIGH,
    RATIO_LOW,
    RED,
    ROWS_MAX,
    WARN_ABOVE_ZERO,
    lines,
    make,
    node_variable,
    number,
    row,
    rows,
    to_finding,
    to_job,
    top,
)

_ERRORS = (
    "symbol_errors",
    "link_error_recoveries",
    "link_downed",
    "receive_errors",
    "receive_remote_physical_errors",
    "transmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_UP = ((None, RED), (1, GREEN))


def _named(expression: str, label: str, name: str) -> str:
    return f'label_replace({expression}, "{label}", "{name}", "", "")'


def _deviations() -> str:
    """Return the deviations of all quantities, distinguished by the label `quantity`."""
    quantities = {
        "temperature": "rankmend_gpu_temperature_celsius",
        "power": "rankmend_gpu_power_watts",
        "SM clock": "rankmend_gpu_clock_hertz",
    }
    return " or ".join(
        _named(
            f"max by (gpu, uuid, model) (abs(gpu:{metric}:deviation{{{NODE}}}))", "quantity", name
        )
        for name, metric in quantities.items()
    )


def _port_errors() -> str:
    """Return how much each error counter of each port grew, distinguished by the label `error`."""
    return " or ".join(
        _named(
            f"max by (device, port) (increase(rankmend_nic_{error}_total{{{NODE}}}[$__range]))",
            "error",
            error,
        )
        for error in _ERRORS
    )


def node() -> Dashboard:
    made = make(
        "node",
        "node",
        "One node: its findings, its GPUs and ports beside the median of their peers, its host, and the ranks on it.",
        [node_variable()],
    )
    _now(made)
    _gpus(made)
    _network(made)
    _host(made)
    return made


def _now(made: Dashboard) -> None:
    made.with_row(row("Now"))
    for panel in (
        number(
            "Agent",
            f'min(up{{job="rankmend-agent",{NODE}}})',
            "1: it answers Prometheus. 0: nothing below is fresh.",
            steps=_UP,
        ),
        number(
            "Critical findings",
            f'count(rankmend_finding_active{{severity="critical",{NODE}}} == 1) or vector(0)',
            "The node should be drained, or a rank of it restarted: the table says which.",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "Warnings",
            f'count(rankmend_finding_active{{severity="warning",{NODE}}} == 1) or vector(0)',
            "Compute is being lost, or will be.",
            steps=WARN_ABOVE_ZERO,
        ),
        number(
            "GPUs that do not answer",
            f"count(rankmend_gpu_success{{{NODE}}} == 0) or vector(0)",
            "Lost, left out or silent.",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "Broken collectors",
            f"count(rankmend_collector_success{{{NODE}}} == 0) or vector(0)",
            "Sources that this node has and that can't be read: their values are missing below.",
            steps=WARN_ABOVE_ZERO,
        ),
        number(
            "Uptime",
            f"max(rankmend_host_uptime_seconds{{{NODE}}})",
            "Since the node booted.",
            unit="s",
        ),
        rows(
            "Findings",
            f"topk({ROWS_MAX}, max by (severity, check, uuid, device, action) (rankmend_finding_active{{{NODE}}} == 1))",
            "What the agent calls wrong, and the action that it advises. The check links to its runbook.",
            width=14,
            hidden=("Value",),
            links=(to_finding(),),
        ),
        rows(
            "Ranks on this node",
            f"topk({ROWS_MAX}, max by (job_name, job_id, rank, attempt) (rankmend_rank_info{{{NODE}}}))",
            "Also those of jobs that another launcher started and that are watched.",
            width=10,
            hidden=("Value",),
            links=(to_job(),),
        ),
    ):
        made.with_panel(panel)


def _gpus(made: Dashboard) -> None:
    made.with_row(row("GPUs"))
    for metric, extra, what, unit in (
        ("rankmend_gpu_temperature_celsius", "", "Temperature", "celsius"),
        ("rankmend_gpu_power_watts", "", "Power", "watt"),
        ("rankmend_gpu_clock_hertz", ',clock="sm"', "SM clock", "hertz"),
    ):
        own = f"max by (gpu) ({metric}{{{NODE}{extra}}})"
        peers = f"max(cluster_model:{metric}:median{{{CLUSTER}}})"
        made.with_panel(
            lines(
                what,
                [(top(own, 16), "GPU {{gpu}}"), (peers, "median of the fleet")],
                "Each GPU of the node, and the median of the busy GPUs of the fleet (the highest, where there are several models).",
                unit=unit,
                width=8,
            )
        )
    made.with_panel(
        rows(
            "Farthest from their peers",
            top(_deviations(), 16),
            "Robust standard deviations (1.4826 MAD) of temperature, power and SM clock from the median of the busy GPUs of the model.",
            width=8,
            steps=DEVIATION,
            value="deviation",
        )
    )
    made.with_panel(
        lines(
            "Utilization",
            [
                (
                    top(f"max by (gpu) (rankmend_gpu_utilization_ratio{{{NODE}}})", 16),
                    "GPU {{gpu}}",
                ),
            ],
            "Share of time with a kernel on the GPU. A rank that waits in a collective counts as busy.",
            unit="percentunit",
            width=8,
        )
    )
    made.with_panel(
        lines(
            "Held back",
            [
                (
                    top(
                        f"max by (gpu, reason) (rate(rankmend_gpu_clocks_event_seconds_total{{{NODE}}}[$__rate_interval]))"
                    ),
                    "GPU {{gpu}} {{reason}}",
                )
            ],
            "Share of time in which something held the clocks, by reason: heat, power, the power brake of the rack.",
            unit="percentunit",
            width=8,
        )
    )
    made.with_panel(
        rows(
            "XIDs",
            f"topk({ROWS_MAX}, max by (pci_bus_id, xid) (rankmend_gpu_xid_total{{{NODE}}}) or max by (pci_bus_id, xid) (rankmend_gpu_xid_events_total{{{NODE}}}))",
            "By the kernel log since boot, or, where the agent can't read that, by the driver's events since the agent began.",
            value="times",
            width=8,
            steps=WARN_ABOVE_ZERO,
        )
    )
    made.with_panel(
        rows(
            "Memory errors",
            f"topk({ROWS_MAX}, max by (gpu, kind, counter) (rankmend_gpu_ecc_errors_total{{{NODE}}}))",
            "Corrected and uncorrected; volatile since the driver was loaded, aggregate ever.",
            value="errors",
            width=8,
        )
    )
    made.with_panel(
        rows(
            "NVLinks that are down",
            f"count by (gpu) (rankmend_gpu_nvlink_up{{{NODE}}} == 0) or 0 * count by (gpu) (rankmend_gpu_nvlink_up{{{NODE}}})",
            "Links of each GPU that are not active.",
            value="down",
            width=8,
            steps=BAD_ABOVE_ZERO,
        )
    )


def _network(made: Dashboard) -> None:
    made.with_row(row("Network"))
    port = "max by (device, port)"
    for way, verb in (("transmit", "Sent"), ("receive", "Received")):
        made.with_panel(
            lines(
                f"{verb} over RDMA ports",
                [
                    (
                        top(
                            f"{port} (rate(rankmend_nic_{way}_bytes_total{{{NODE}}}[$__rate_interval]))",
                            16,
                        ),
                        "{{device}}/{{port}}",
                    )
                ],
                "All compute ports of a node carry alike in most jobs.",
                unit="Bps",
                width=8,
            )
        )
    made.with_panel(
        rows(
            "Ports against their peers",
            f"bottomk(16, max by (device, port, model) (nic:rankmend_nic_transmit_bytes:ratio_to_median{{{NODE}}}))",
            "What a busy port of the compute plane sends, against the median of its model in the cluster.",
            unit="percentunit",
            value="of median",
            steps=RATIO_LOW,
            width=8,
        )
    )
    made.with_panel(
        rows(
            "Link against what it ought to have",
            f"{port} (rankmend_nic_rate_bytes_per_second{{{NODE}}}) / {port} (rankmend_nic_rate_max_bytes_per_second{{{NODE}}})",
            "Below 1: the port has lost lanes or speed. No row: the port is down.",
            unit="percentunit",
            value="of expected",
            steps=RATIO_LOW,
            width=8,
        )
    )
    made.with_panel(
        rows(
            "Port errors in the time shown",
            f"topk({ROWS_MAX}, {_port_errors()})",
            "How much each error counter grew.",
            value="errors",
            steps=WARN_ABOVE_ZERO,
            width=8,
        )
    )
    made.with_panel(
        lines(
            "Network devices",
            [
                (
                    top(
                        f"max by (device) (rate(rankmend_network_receive_bytes_total{{{NODE}}}[$__rate_interval]))"
                    ),
                    "{{device}} received",
                ),
            ],
            "The ten devices of the kernel that receive most.",
            unit="Bps",
            width=8,
        )
    )


def _host(made: Dashboard) -> None:
    made.with_row(row("Host"))
    for panel in (
        lines(
            "CPU",
            [
                (
                    f'sum by (mode) (rate(rankmend_host_cpu_seconds_total{{mode!="idle",{NODE}}}[$__rate_interval])) / on () group_left () max(rankmend_host_cpus{{{NODE}}})',
                    "{{mode}}",
                )
            ],
            "Share of all CPUs, by mode.",
            unit="percentunit",
            width=8,
            is_stacked=True,
        ),
        lines(
            "Memory",
            [
                (
                    f"max(rankmend_host_memory_size_bytes{{{NODE}}}) - max(rankmend_host_memory_available_bytes{{{NODE}}})",
                    "in use",
                ),
                (f"max(rankmend_host_memory_shared_bytes{{{NODE}}})", "shared memory and tmpfs"),
                (f"max(rankmend_host_memory_size_bytes{{{NODE}}})", "memory"),
            ],
            "Snapshots of ranks are in shared memory.",
            unit="bytes",
            width=8,
        ),
        lines(
            "Pressure",
            [
                (
                    f"max by (resource) (rate(rankmend_pressure_some_seconds_total{{{NODE}}}[$__rate_interval]))",
                    "{{resource}}",
                )
            ],
            "Share of time in which at least one task waited for the resource.",
            unit="percentunit",
            width=8,
        ),
        rows(
            "File systems, fullest first",
            f"bottomk({LINES_MAX}, max by (mount) (rankmend_disk_available_bytes{{{NODE}}}) / max by (mount) (rankmend_disk_size_bytes{{{NODE}}} > 0))",
            "Share that is left for ordinary users.",
            unit="percentunit",
            value="left",
            steps=((None, RED), (0.1, GREEN)),
            width=8,
        ),
        lines(
            "Temperatures of the host",
            [
                (
                    top(
                        f"max by (device, sensor) (rankmend_thermal_temperature_celsius{{{NODE}}})"
                    ),
                    "{{device}} {{sensor}}",
                )
            ],
            "The ten hottest sensors of hwmon.",
            unit="celsius",
            width=8,
        ),
        rows(
            "Collectors, oldest answer first",
            f"topk({LINES_MAX}, max by (collector) (rankmend_collector_age_seconds{{{NODE}}}))",
            "A collector that does not answer grows older: what it measures is not known.",
            unit="s",
            value="age",
            width=8,
        ),
    ):
        made.with_panel(panel)
    made.with_panel(
        rows(
            "Ranks here against their job",
            top(f"rank:rankmend_rank_step_seconds:ratio_to_median{{{NODE}}}", 16),
            "Step time of each rank on this node against the median of its job.",
            unit="percentunit",
            value="of median",
            steps=RATIO_HIGH,
            width=24,
            links=(to_job(),),
        )
    )
