"""Fleet: is anything broken now, and what differs from its peers."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.panels import (
    BAD_ABOVE_ZERO,
    CLUSTER,
    DEVIATION,
    GREEN,
    LINES_MAX,
    RATIO_HIGH,
    RATIO_LOW,
    RED,
    ROWS_MAX,
    WARN_ABOVE_ZERO,
    YELLOW,
    lines,
    make,
    number,
    row,
    rows,
    to_finding,
    to_job,
    to_node,
    to_notice,
    top,
)

_NODES = f"cluster:rankmend_nodes:count{{{CLUSTER}}}"
_SHARE = ((None, RED), (0.95, YELLOW), (0.99, GREEN))


def fleet() -> Dashboard:
    made = make(
        "fleet",
        "fleet",
        "Is anything broken now, what does a person have to do, and which node, GPU, port or rank differs from its peers.",
    )
    _broken(made)
    _findings(made)
    _peers(made)
    _site(made)
    _spread(made)
    return made


def _broken(made: Dashboard) -> None:
    made.with_row(row("Is anything broken now?"))
    for panel in (
        number(
            "Healthy nodes",
            f"sum(cluster:rankmend_nodes_healthy:ratio{{{CLUSTER}}} * {_NODES}) / sum({_NODES})",
            "Nodes whose agent answers and that have no critical finding, of all nodes that Prometheus knows.",
            unit="percentunit",
            steps=_SHARE,
        ),
        number(
            "Silent nodes",
            f"sum({_NODES}) - sum(cluster:rankmend_nodes_up:sum{{{CLUSTER}}})",
            "Nodes whose agent does not answer Prometheus (RankmendAgentDown).",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "Nodes with a critical finding",
            f"sum(cluster:rankmend_nodes_faulty:count{{{CLUSTER}}})",
            "The table of findings below names them.",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "GPUs that do not answer",
            f"sum(cluster:rankmend_gpus:count{{{CLUSTER}}}) - sum(cluster:rankmend_gpus_answering:sum{{{CLUSTER}}})",
            "GPUs that an agent knows and that are lost, left out or silent.",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "Waits for a person",
            f"sum(max by (cluster, instance, notice) (rankmend_controller_notices{{{CLUSTER}}})) or vector(0)",
            "Notices of controllers that are active: incidents that were given up, plans that wait, spent budgets, slow and hung jobs.",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "Controllers that do not answer",
            f'count(max by (cluster, instance) (up{{job="rankmend-controller",{CLUSTER}}}) == 0) or vector(0)',
            "Training continues without a controller, but no failure is recovered.",
            steps=BAD_ABOVE_ZERO,
        ),
        rows(
            "Firing alerts",
            f'topk({ROWS_MAX}, max by (alertname, severity, cluster, node, uuid, device, job_id, instance) (ALERTS{{alertname=~"Rankmend.+",alertstate="firing",{CLUSTER}}}))',
            "All alerts of rankmend that fire now, of the rules that this Prometheus evaluates.",
            width=16,
            hidden=("Value",),
            links=(to_node(), to_job()),
        ),
        rows(
            "Notices of the controllers",
            f"max by (cluster, notice) (rankmend_controller_notices{{{CLUSTER}}}) > 0",
            "What waits for a person, by kind; empty when nothing does. The runbook has a section for each.",
            width=8,
            steps=WARN_ABOVE_ZERO,
            value="active",
            links=(to_notice(),),
        ),
    ):
        made.with_panel(panel)


def _findings(made: Dashboard) -> None:
    made.with_row(row("Findings of the node agents"))
    active = "max by (cluster, node, severity, check, uuid, device, action)"
    made.with_panel(
        rows(
            "Active findings",
            f"topk({ROWS_MAX}, {active} (rankmend_finding_active{{{CLUSTER}}} == 1))",
            "What the agents call wrong, with the action that they advise. At most 50 rows.",
            width=16,
            hidden=("Value",),
            links=(to_node(), to_finding()),
        )
    )
    made.with_panel(
        lines(
            "Active findings by check",
            [
                (
                    top(
                        f"sum by (check) (cluster_check_severity:rankmend_finding_active:count{{{CLUSTER}}})"
                    ),
                    "{{check}}",
                )
            ],
            "The ten checks with the most findings. Many at once of one check point to something shared: a switch, cooling, a driver.",
            width=8,
        )
    )


def _peers(made: Dashboard) -> None:
    made.with_row(row("Who differs from its peers?"))
    spread = "Robust standard deviations (1.4826 MAD) from the median of the busy GPUs of the same model. Beyond 4 look at it; a cold GPU with low power is a slow one."
    for metric, what in (
        ("rankmend_gpu_temperature_celsius", "GPU temperature"),
        ("rankmend_gpu_power_watts", "GPU power"),
        ("rankmend_gpu_clock_hertz", "SM clock"),
    ):
        made.with_panel(
            rows(
                f"{what}, farthest from the median",
                top(f"abs(gpu:{metric}:deviation{{{CLUSTER}}})"),
                spread,
                width=8,
                steps=DEVIATION,
                value="deviation",
                hidden=("gpu",),
                links=(to_node(),),
            )
        )
    made.with_panel(
        rows(
            "Network ports that send least",
            f"bottomk(10, nic:rankmend_nic_transmit_bytes:ratio_to_median{{{CLUSTER}}})",
            "What a busy port of the compute plane sends, against the median of its model. All ports of a job should send alike.",
            unit="percentunit",
            width=12,
            steps=RATIO_LOW,
            value="of median",
            links=(to_node(),),
        )
    )
    made.with_panel(
        rows(
            "Ranks that compute longest",
            top(f"rank:rankmend_rank_compute_seconds:ratio_to_median{{{CLUSTER}}}"),
            "A rank's own compute in a step, against the median of its job. Needs sections in the script. All ranks of a job have the same step time, but only the slow one computes longer.",
            unit="percentunit",
            width=12,
            steps=RATIO_HIGH,
            value="of median",
            links=(to_node(), to_job()),
        )
    )


def _site(made: Dashboard) -> None:
    made.with_row(row("Cooling and power of the site"))
    unit, feed = (
        f"max by (cluster, {label}) (rankmend_controller_{{}}{{{{{CLUSTER}}}}})"
        for label in ("unit", "feed")
    )
    bad = " or ".join(
        f"{by.format(name)} > 0"
        for by, name in ((unit, "coolant_unit_state_id"), (feed, "power_feed_state_id"))
    )
    made.with_panel(
        rows(
            "Coolant units and power feeds not in order",
            f"topk({ROWS_MAX}, {bad})",
            "1 not in order, 2 broken (harms nodes, leaks, has tripped or calls itself critical), 3 not known: its reading is older than 10 minutes.",
            width=8,
            steps=WARN_ABOVE_ZERO,
            value="state",
        )
    )
    for title, expression, legend, about, shown in (
        (
            "Coolant units with the least flow",
            f"bottomk({LINES_MAX}, {unit.format('coolant_unit_flow_liters_per_second')}) * 60",
            "{{unit}}",
            "Litres per minute. A line ends where the unit is no longer read.",
            "flowlpm",
        ),
        (
            "Coolant units with the highest temperature rise",
            top(unit.format("coolant_unit_rise_kelvin")),
            "{{unit}}",
            "Return less supply: the heat of the racks over the flow.",
            "kelvin",
        ),
        (
            "Power feeds with the highest load",
            top(feed.format("power_feed_load_ratio")),
            "{{feed}}",
            "Highest current of a feed's circuits, of what these are rated for.",
            "percentunit",
        ),
        (
            "Power feeds with the most power",
            top(feed.format("power_feed_watts")),
            "{{feed}}",
            "Power that a feed carries.",
            "watt",
        ),
    ):
        made.with_panel(lines(title, [(expression, legend)], about, unit=shown, width=8))


def _spread(made: Dashboard) -> None:
    made.with_row(row("The fleet's spread"))
    for metric, what, unit in (
        ("rankmend_gpu_temperature_celsius", "GPU temperature", "celsius"),
        ("rankmend_gpu_power_watts", "GPU power", "watt"),
        ("rankmend_gpu_utilization_ratio", "GPU utilization", "percentunit"),
    ):
        series = f"max by (cluster, node, uuid) ({metric}{{{CLUSTER}}})"
        made.with_panel(
            lines(
                what,
                [
                    (f"quantile({q}, {series})", name)
                    for q, name in ((0.01, "1 %"), (0.5, "median"), (0.99, "99 %"), (1, "highest"))
                ],
                "Quantiles over all GPUs, instead of a line for each.",
                unit=unit,
                width=8,
            )
        )
