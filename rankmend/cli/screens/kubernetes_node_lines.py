"""Lines about nodes as Kubernetes has them: cordons of ours and of others, readiness, conditions, taints, and what is under way there."""

from typing import TYPE_CHECKING, Final

from rankmend.cli.screens.slurm_node_lines import render_slurm_nodes
from rankmend.cli.slurm import say_requests
from rankmend.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from recovery.api import wire

MANAGER: Final = "Kubernetes"
_OURS: Final = "cordoned by rankmend"
_SHOWN: Final = 200  # nodes


def render_kubernetes_nodes(view: "wire.SlurmView | None") -> "list[RenderableType]":
    """Return the lines of `rankmend status --nodes`: what is under way, our cordons, and what else Kubernetes says of nodes."""
    from rich.text import Text

    if view is None or not view.enabled:
        return []
    lines: list[RenderableType] = []
    if view.problem:
        lines.append(Text(printable(f"{MANAGER} does not answer: {view.problem}"), style="red"))
    under_way = [request for request in view.requests if not request.outcome]
    if under_way:
        lines += [Text(line) for line in say_requests(under_way, with_all=False, manager=MANAGER)]
    lines += render_slurm_nodes(view.nodes, MANAGER)
    return lines + render_states(view)


def render_states(view: "wire.SlurmView") -> "list[RenderableType]":
    from rich.text import Text

    from detectors.wording import counted

    # Our own cordons are told of before, with their history.
    noted = [state for state in view.states if say_state(state) not in ("", _OURS)]
    noted.sort(key=lambda state: (state.ready == "True", state.node))
    lines: list[RenderableType] = [
        Text(
            printable(f"{state.node} in {MANAGER}: {say_state(state)}"),
            style="yellow" if state.ready == "True" else "red",
        )
        for state in noted[:_SHOWN]
    ]
    if len(noted) > _SHOWN:
        lines.append(Text(f"and {len(noted) - _SHOWN} more nodes: GET /v1/kubernetes"))
    if ready := sum(not say_state(state) for state in view.states):
        text = f"ready in {MANAGER}, with nothing to say: {counted(ready, 'node')}"
        lines.append(Text(text, style="dim"))
    return lines


def say_state(view: "wire.KubernetesNodeView") -> str:
    """Return what is to be said of a node; nothing: it is ready."""
    parts = []
    if view.is_cordoned:
        by = view.cordoned_by or "somebody else"
        parts.append(_OURS if view.is_ours else f"cordoned by {by}")
    parts += view.conditions
    if view.taints:
        parts.append(f"tainted {', '.join(view.taints)}")
    return "; ".join(parts)
