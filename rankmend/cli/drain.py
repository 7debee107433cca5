"""`rankmend drain` and `confirm-gone`: what a person says of a node."""

from typing import TYPE_CHECKING

import click

from rankmend.cli.controller_names import complete_job, complete_node
from rankmend.cli.controller_options import (
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
from rankmend.cli.options import json_option
from rankmend.cli.output import echo
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.api import wire


@click.command(
    epilog="""\b
Examples:
  rankmend drain gpu-17 --reason "fan 3 is loud"
  rankmend drain gpu-17 --reason "must be off by noon" --now
  rankmend resume --node gpu-17        takes it back
"""
)
@click.argument("node", shell_complete=complete_node)
@reason_option(required=True)
@click.option("--now", is_flag=True, help="Also restart the jobs that have ranks there, elsewhere.")
@expected_option
@yes_option
@controller_options
@json_option
def drain(
    node: str, reason: str, now: bool, expected: bool, yes: bool, access: Access, as_json: bool
) -> None:
    """Stop placing ranks on NODE until it is resumed.

    Ranks there keep running, and the next restart leaves the node. With --now the jobs leave it at once. The
    controller refuses a node that it does not know, unless --expected marks it as a future one.
    """
    from recovery.api.controller_errors import ConflictError
    from recovery.messages.outside import PersonAct

    with asking(access) as client:
        views = [one for one in client.nodes() if one.node == node and one.ranks]
        if now and views:
            confirm(f"{_say_ranks(views)}. Restart from the newest checkpoint elsewhere?", yes=yes)
        told, refused = [client.drain(node, reason, is_expected=expected).text], []
        for view in views if now else ():
            try:
                done = client.command(
                    view.job_id, PersonAct.LEAVE_NODE, reason=reason, node=node, key=new_key()
                )
                told.append(f"job {view.job_id}: {done.text}")
            except ConflictError as error:
                refused.append(f"job {view.job_id} stays: {explain(error, access)}")
        if views and not now:
            told.append(f"{_say_ranks(views)}: --now moves them")
    tell(
        told,
        as_json=as_json,
        refused=refused,
        ranks={one.job_id: one.ranks for one in views},
    )
    for problem in refused:
        echo(printable(f"rankmend: {problem}"), err=True)
    if refused:
        raise SystemExit(1)


def _say_ranks(views: "list[wire.NodeView]") -> str:
    jobs = ", ".join(f"{len(one.ranks)} ranks of job {one.job_id}" for one in views)
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

    For a node that is silent while nothing proves its ranks gone: the next attempt waits for that.
    Switch it off, or look for yourself; that a scheduler calls it down is no proof.
    """
    from recovery.messages.outside import PersonAct

    with asking(access) as client:
        found = find_job(client, job)
        confirm(
            f"Is it certain that no process of job {found.name} is left on {node}? Your answer starts "
            "the next attempt, and ranks that still run would overwrite its checkpoints.",
            yes=yes,
        )
        done = client.command(
            found.job_id, PersonAct.CONFIRM_GONE, reason=reason, node=node, key=new_key()
        )
    tell(f"{node} counts as gone for job {found.name}: {done.text}", as_json=as_json)
