"""The lines of `rankmend status --nodes` about nodes that rankmend has drained in Slurm: why they are out, and their past."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rankmend.cli.times import say_time
from rankmend.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from recovery.api import wire

_SHOWN: Final = 200  # nodes; those that are out come first
_EVENTS_SHOWN: Final = 6  # per node, the newest
_NEEDS_PERSON: Final = frozenset({"person", "offender"})


def render_slurm_nodes(
    nodes: "Sequence[wire.SlurmNodeView]", manager: str = "Slurm"
) -> "list[RenderableType]":
    from rich.text import Text

    lines: list[RenderableType] = []
    for node in sorted(nodes, key=_need)[:_SHOWN]:
        lines.append(Text(say_slurm_node(node, manager), style=_style(node)))
        left_out = len(node.history) - _EVENTS_SHOWN
        if left_out > 0:
            lines.append(
                Text(f"  {left_out} earlier events: GET /v1/{manager.lower()}", style="dim")
            )
        lines += [
            Text(printable(f"  {say_time(item.unix_s)} {item.kind}: {item.text}"), style="dim")
            for item in node.history[-_EVENTS_SHOWN:]
        ]
    if len(nodes) > _SHOWN:
        lines.append(
            Text(f"and {len(nodes) - _SHOWN} more nodes in {manager}: GET /v1/{manager.lower()}")
        )
    return lines


def say_slurm_node(node: "wire.SlurmNodeView", manager: str = "Slurm") -> str:
    """Return where a node stands, in one line."""
    if not node.is_ours:
        return printable(f"{node.node}: back in {manager}: {node.over}")
    line = f"{node.node}: drained in {manager}"
    if node.stay:
        line += f", {node.stay}: {node.stay_text}"
    if node.check_due_unix_s is not None:
        line += f" (next check {say_time(node.check_due_unix_s)})"
    return printable(line)


def _need(node: "wire.SlurmNodeView") -> tuple[bool, bool, str]:
    return not node.is_ours, node.stay not in _NEEDS_PERSON, node.node


def _style(node: "wire.SlurmNodeView") -> str:
    if not node.is_ours:
        return "dim"
    return "red" if node.stay in _NEEDS_PERSON else "yellow"
