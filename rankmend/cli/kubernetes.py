"""`rankmend kubernetes`: what a controller has requested of Kubernetes, what came of it, its cordons, and what else Kubernetes says of nodes."""

import click

from rankmend.cli.options import json_option, print_json
from rankmend.cli.output import echo
from rankmend.cli.screens.kubernetes_node_lines import MANAGER, render_states
from rankmend.cli.screens.slurm_node_lines import render_slurm_nodes
from rankmend.cli.slurm import say_mode, say_requests
from rankmend.cli.sources.controller_options import Access, asking, console, controller_options


@click.command(
    epilog="""\b
Examples:
  rankmend kubernetes
  rankmend kubernetes --all --json
"""
)
@click.option("--all", "with_all", is_flag=True, help="Show all stored requests, also ended ones.")
@controller_options
@json_option
def kubernetes(with_all: bool, access: Access, as_json: bool) -> None:
    """Show the controller's requests to Kubernetes, and the nodes that it has cordoned there.

    Open requests come first, each with what it waits for, then ended requests, newest first. Last
    come nodes of jobs that others have cordoned or tainted, or that are not ready.
    """
    with asking(access) as client:
        view = client.kubernetes()
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(view))
        return
    echo(say_mode(view, MANAGER))
    for line in say_requests(view.requests, with_all=with_all, manager=MANAGER):
        echo(line)
    shown = console()
    for rendered in [*render_slurm_nodes(view.nodes, MANAGER), *render_states(view)]:
        shown.print(rendered)
