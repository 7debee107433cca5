"""`rankmend drain` and `confirm-gone`: a person's commands about a node."""

from typing import TYPE_CHECKING

import click

from rankmend.cli.options import json_option
from rankmend.cli.output import echo
from rankmend.cli.sources.controller_names import complete_job, complete_node
from rankmend.cli.sources.controller_options import (
    Access,
    asking,
    confirm,
    controller_options,
    expected_option,
    explain,
    find_job,
    new_key,
    reason_option,
    tell,
    yes_option,
)
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.api import wire


@click.command(
    epilog="""\b
Examples:
  rankmend drain gpu-17 --reason "fan 3 is loud"
  rankmend drain gpu-17 --reason "must be off by noon" --now
  rankmend resume --node gpu-17        returns it to service
"""
)
@click.argument("node", shell_complete=complete_node)
@reason_option(required=True)
@click.option(
    "--now", is_flag=True, help="Also move its ranks to other nodes now, by restarting their jobs."
)
@expected_option
@yes_option
@controller_options
@json_option
def drain(
    node: str, reason: str, now: bool, expected: bool, yes: bool, access: Access, as_json: bool
) -> None:
    """Stop placing ranks on NODE until it is resumed.

    Its ranks keep running until the next restart, which leaves the node; with --now their jobs restart at
    once. The controller refuses a node that it does not know, unless you give --expected.
    """
    from recovery.api.controller_errors import ConflictError
    from recovery.messages.outside import PersonAct

    with asking(access) as client:
        views = [item for item in client.nodes() if item.node == node and item.ranks]
        if now and views:
            confirm(
                f"{_ranks_text(views)}. Restart them elsewhere from the newest checkpoint?", yes=yes
            )
        reported, refused = [client.drain(node, reason, is_expected=expected).text], []
        for view in views if now else ():
            try:
                done = client.command(
                    view.job_id, PersonAct.LEAVE_NODE, reason=reason, node=node, key=new_key()
                )
                reported.append(f"job {view.job_id}: {done.text}")
            except ConflictError as error:
                refused.append(f"job {view.job_id} stays on the node: {explain(error, access)}")
        if views and not now:
            reported.append(f"{_ranks_text(views)}: --now moves them")
    tell(
        reported,
        as_json=as_json,
        refused=refused,
        ranks={item.job_id: item.ranks for item in views},
    )
    for problem in refused:
        echo(printable(f"rankmend: {problem}"), err=True)
    if refused:
        raise SystemExit(1)


def _ranks_text(views: "list[wire.NodeView]") -> str:
    from detectors.wording import counted

    jobs = ", ".join(f"{counted(len(view.ranks), 'rank')} of job {view.job_id}" for view in views)
    return f"{views[0].node} runs {jobs}"


@click.command(
    "confirm-gone",
    epilog="Example: rankmend confirm-gone gpu-17 --job llama --reason 'its power cable is out'",
)
@click.argument("node", shell_complete=complete_node)
@click.option(
    "--job",
    required=True,
    metavar="JOB",
    shell_complete=complete_job,
    help="Name or UUID of the waiting job.",
)
@reason_option(required=False)
@yes_option
@controller_options
@json_option
def confirm_gone(
    node: str, job: str, reason: str, yes: bool, access: Access, as_json: bool
) -> None:
    """Confirm that no process of JOB is left on NODE.

    The next attempt of a job waits until the ranks on a silent node are proved gone. Power the node
    off, or check it yourself, before you confirm. A scheduler that reports it as down is no proof.
    """
    from recovery.messages.outside import PersonAct

    with asking(access) as client:
        found = find_job(client, job)
        confirm(
            f"Are you certain that no process of job {found.name} is left on {node}? Confirming starts "
            "the next attempt, and surviving ranks would overwrite its checkpoints.",
            yes=yes,
        )
        done = client.command(
            found.job_id, PersonAct.CONFIRM_GONE, reason=reason, node=node, key=new_key()
        )
    tell(f"{node} counts as gone for job {found.name}: {done.text}", as_json=as_json)
