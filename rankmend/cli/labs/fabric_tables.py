"""The output of `rankmend fabric` for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rankmend.cli.options import size
from rankmend.cli.output import console, echo
from rankmend.cli.times import say_time

if TYPE_CHECKING:
    from detectors.fabric.collisions import PathPlan
    from detectors.fabric.fabric_verdict import FabricVerdict, SlowPart
    from recovery.lab.fabric.fabric_report import (
        FabricNodeRecord,
        FabricReport,
        PathTrial,
        RunningFlows,
    )

_ROWS_MAX: Final = 40  # nodes in the table, the slowest first


def rate(value_bytes_per_s: float | None) -> str:
    return "-" if value_bytes_per_s is None else f"{size(value_bytes_per_s)}/s"


def show_report(report: "FabricReport") -> None:
    if report.verdict is not None and len(report.network.nodes) > 2:
        _show_verdict(report.verdict)
    elif report.verdict is not None:
        echo("Two nodes: if a test is slow, either may be the cause.")
    if report.total_bytes_per_s is not None:
        echo(f"all {len(report.readings)} flows at once: {rate(report.total_bytes_per_s)} together")
    if how := _transport(report):
        echo(how)
    if report.readings:
        _show_nodes(report)
    if report.collectives:
        _show_collectives(report)
    if report.paths is not None:
        _show_paths(report.paths)
    if report.running is not None:
        _show_running(report.running)
    if report.unmeasured:
        echo(f"not measured, so not judged: {', '.join(report.unmeasured)}")
    if report.absent:
        echo(f"did not answer, so not judged: {', '.join(report.absent)}")


def _transport(report: "FabricReport") -> str:
    """Return over what was measured, where that is not plain."""
    from recovery.lab.fabric.fabric_messages import Transport

    if report.transport is Transport.RDMA:
        return f"Measured over RDMA, {report.transport_reason}."
    return f"Measured over TCP, {report.transport_reason}." if report.transport_reason else ""


def _show_verdict(verdict: "FabricVerdict") -> None:
    from detectors.fabric.fabric_verdict import FabricOutcome

    tests = f"{verdict.rounds} rounds, usual rate {rate(verdict.usual_bytes_per_s)}"
    if verdict.outcome is FabricOutcome.SOUND:
        echo(f"No part of the network is slower than the rest ({tests}).")
    elif verdict.outcome is FabricOutcome.UNCLEAR:
        echo(
            f"Nobody is accused: {verdict.slow_ratio:.0%} of the tests were slow, and no part explains them ({tests})."
        )
    for part in verdict.parts:
        echo(f"{_part(part)} ({tests}).")
    if verdict.unconfirmed:
        echo(
            f"{len(verdict.unconfirmed)} pairs were slow and not tested often enough; `rankmend fabric test pairs` tests them all."
        )


def _part(part: "SlowPart") -> str:
    from detectors.fabric.fabric_verdict import Direction

    way = {Direction.BOTH: "", Direction.SENDS: " to send", Direction.RECEIVES: " to receive"}
    text = f"Slow {part.kind.value} {part.name}: takes {part.delay_ratio:.1f} times as long as usual{way[part.direction]}"
    if part.resent_ratio is not None and part.resent_ratio >= 0.001:
        text += f"; {part.resent_ratio:.1%} of the segments were sent again"
    if part.paths:
        text += f", with source port number {', '.join(map(str, part.paths))}"
    return text


def _show_nodes(report: "FabricReport") -> None:
    from rich.table import Table

    from recovery.lab.fabric.fabric_report import node_rates

    rates = node_rates(report)
    order = sorted(rates, key=lambda node: min(item or 0.0 for item in rates[node]))
    table = Table()
    for name in ("node", "leaf switch", "sends", "receives"):
        table.add_column(name, justify="right" if name in ("sends", "receives") else "left")
    for node in order[:_ROWS_MAX]:
        sends, receives = rates[node]
        leaf = report.network.leaf(node) or "-"
        table.add_row(report.network.nodes[node], leaf, rate(sends), rate(receives))
    console(is_wide=True).print(table)
    if len(order) > _ROWS_MAX:
        echo(f"{len(order) - _ROWS_MAX} faster nodes are not shown")


def _show_collectives(report: "FabricReport") -> None:
    from rich.table import Table

    table = Table()
    for name in ("collective", "size", "time", "bus bandwidth", "expected", "in preferred order"):
        table.add_column(name, justify="left" if name == "collective" else "right")
    for collective in report.collectives:
        table.add_row(
            collective.operation, size(collective.size_bytes), _milliseconds(collective.seconds), rate(collective.bus_bytes_per_s),
            _milliseconds(collective.expected_s), _milliseconds(collective.preferred_s),
        )  # fmt: skip
    console(is_wide=True).print(table)
    if report.preferred_order != report.network.nodes:
        echo(f"preferred order of nodes: {', '.join(report.preferred_order)}")


def _milliseconds(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1e3:.3g} ms"


def _show_collisions(plan: "PathPlan") -> None:
    for shared in plan.collisions:
        idle = f", while {', '.join(shared.idle)} carry none" if shared.idle else ""
        echo(
            f"{len(shared.flows)} flows share the link to {shared.link}{idle}: {', '.join(shared.flows)}"
        )


def _show_running(found: "RunningFlows") -> None:
    from rich.table import Table

    table = Table()
    for name in ("flow", "protocol", "program", "source port", "rate"):
        table.add_column(name, justify="right" if name in ("source port", "rate") else "left")
    for flow in found.flows[:_ROWS_MAX]:
        name = "RoCE" if flow.protocol == "udp" else "TCP"
        table.add_row(
            flow.name, name, flow.program or "-", str(flow.source_port), rate(flow.bytes_per_s)
        )
    console(is_wide=True).print(table)
    if len(found.flows) > _ROWS_MAX:
        echo(f"{len(found.flows) - _ROWS_MAX} more flows are not shown")
    for node, port in found.ports:
        if port.ecn_marked_per_s or port.cnp_sent_per_s or port.cnp_handled_per_s:
            echo(
                f"{node} {port.interface}: congested; each second {port.ecn_marked_per_s or 0:.0f} packets came with an ECN mark, "
                f"{port.cnp_sent_per_s or 0:.0f} CNPs were sent and {port.cnp_handled_per_s or 0:.0f} slowed this port down"
            )
        for pause in port.pauses:
            what = f"of priority {pause.priority}" if pause.priority else "of the whole link"
            meaning = (
                "the switch, or what is behind it, takes too slowly"
                if pause.is_received
                else "this node takes too slowly, and its switch holds back others' packets, too"
            )
            came = "received" if pause.is_received else "sent"
            echo(
                f"{node} {port.interface}: {came} {pause.frames_per_s:.0f} pauses {what} each second: {meaning}"
            )
    if found.unpaired:
        echo(
            f"{found.unpaired} queue pairs are not judged: no single node names the other end of each"
        )
    if found.untraced:
        echo(f"no path is known for {len(found.untraced)} flows: {', '.join(found.untraced[:8])}")
    for reason in found.reasons:
        echo(f"can't trace: {reason} (traces of running flows need CAP_NET_RAW)")
    if found.plan is not None:
        _show_running_plan(found.plan)


def _show_running_plan(plan: "PathPlan") -> None:
    _show_collisions(plan)
    if not plan.collisions:
        echo("No flows share a link while an alternative link carries none.")
        return
    loss = 1 - plan.expected_before_ratio / plan.expected_after_ratio
    echo(
        f"expected of a flow: {plan.expected_before_ratio:.0%} of a link, {plan.expected_after_ratio:.0%} if other ports "
        f"spread them: {loss:.0%} is lost"
    )
    echo(
        "A program that binds its source port can take another one (--json has a plan). NCCL and UCX name none: over RoCE, try "
        "NCCL_IB_QPS_PER_CONNECTION with NCCL_IB_SPLIT_DATA_ON_QPS=1, or UCX_IB_NUM_PATHS; over TCP, NCCL_NSOCKS_PERTHREAD. Then look again."
    )


def _show_paths(trial: "PathTrial") -> None:
    plan = trial.plan
    before, after = sum(trial.before_bytes_per_s), sum(trial.after_bytes_per_s)
    _show_collisions(plan)
    echo(
        f"fullest link: {plan.worst_before} flows, {plan.worst_after} with the plan's source ports"
    )
    echo(f"throughput of {len(plan.ports)} flows: {rate(before)}, {rate(after)} with the plan")
    echo(
        f"expected of a flow: {plan.expected_before_ratio:.0%} of a link, {plan.expected_after_ratio:.0%} with the plan"
    )
    if plan.single_path:
        echo("No source port changed any path: there is one path, or a tunnel hides the others.")


def show_history(node: str, records: "Sequence[FabricNodeRecord]") -> None:
    from rich.table import Table

    table = Table(title=node)
    for name in ("time", "test", "over", "sends", "receives", "usual", "verdict"):
        table.add_column(
            name, justify="right" if name in ("sends", "receives", "usual") else "left"
        )
    for record in records:
        verdict = "; ".join(f"slow {name}" for name in record.accused) or "-"
        table.add_row(
            say_time(record.at_unix_s), record.kind,
            record.transport.value, rate(record.sends_bytes_per_s), rate(record.receives_bytes_per_s), rate(record.usual_bytes_per_s), verdict,
        )  # fmt: skip
    console(is_wide=True).print(table)
