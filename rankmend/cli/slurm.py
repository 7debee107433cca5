"""`rankmend slurm`: what a controller has requested of Slurm, what came of it, and the nodes that it has drained there."""

from typing import TYPE_CHECKING

import click

from rankmend.cli.options import json_option, print_json
from rankmend.cli.output import echo
from rankmend.cli.screens.slurm_node_lines import render_slurm_nodes
from rankmend.cli.sources.controller_options import Access, asking, console, controller_options
from rankmend.cli.times import say_time
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.api import wire

_ENDED_SHOWN = 20
_NODES_SHOWN = 8  # of one request


@click.command(
    epilog="""\b
Examples:
  rankmend slurm
  rankmend slurm --all --json
"""
)
@click.option("--all", "with_all", is_flag=True, help="Show all stored requests, also ended ones.")
@controller_options
@json_option
def slurm(with_all: bool, access: Access, as_json: bool) -> None:
    """Show the controller's requests to Slurm, and the nodes that it has drained there.

    Open requests come first, each with what it waits for, then ended requests, newest first.
    """
    with asking(access) as client:
        view = client.slurm()
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(view))
        return
    echo(say_mode(view))
    for line in say_requests(view.requests, with_all=with_all):
        echo(line)
    shown = console()
    for rendered in render_slurm_nodes(view.nodes):
        shown.print(rendered)


def say_mode(view: "wire.SlurmView", manager: str = "Slurm") -> str:
    """Return whether the controller acts on the manager of nodes, and whether that answers."""
    table = f"[{manager.lower()}]"
    if not view.enabled:
        return f"{manager}: off ({table} enabled in controller.toml)"
    mode = "acts" if view.acts else f"dry: requests are shown and not carried out ({table} act)"
    return printable(
        f"{manager}: {mode}" + (f"; no answer: {view.problem}" if view.problem else "")
    )


def say_requests(
    requests: "list[wire.SlurmRequestView]", *, with_all: bool, manager: str = "Slurm"
) -> list[str]:
    """Return two lines for each request: what came of it, and why it was asked."""
    ended = [request for request in requests if request.outcome]
    retained = ended if with_all else ended[:_ENDED_SHOWN]
    lines = []
    for item in [*(request for request in requests if not request.outcome), *retained]:
        state = item.outcome or "open"
        lines.append(
            f"{say_time(item.asked_unix_s)} {state}: {_what(item)}: {item.text or 'begins'}"
        )
        if item.reason:
            lines.append(f"  because: {item.reason}")
    if len(retained) < len(ended):
        lines.append(f"and {len(ended) - len(retained)} older requests (--all)")
    return [printable(line) for line in lines] or [f"no request was sent to {manager}"]


def _what(view: "wire.SlurmRequestView") -> str:
    nodes = ", ".join(view.nodes[:_NODES_SHOWN])
    if len(view.nodes) > _NODES_SHOWN:
        nodes += f" and {len(view.nodes) - _NODES_SHOWN} more"
    if not view.slurm_job:
        return f"{view.action} {nodes}"
    if view.action == "evict":
        return f"evict the pods of job {view.slurm_job} from {nodes}"
    return f"{view.action} job {view.slurm_job}" + (f" without {nodes}" if nodes else "")
