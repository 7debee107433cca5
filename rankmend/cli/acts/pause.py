"""`rankmend pause` and `resume`: for the cluster, a job or a node."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from rankmend.cli.options import fail, json_option
from rankmend.cli.sources.controller_names import complete_job, complete_node
from rankmend.cli.sources.controller_options import (
    Access,
    JobClient,
    asking,
    asking_job,
    expected_option,
    find_job,
    job_options,
    new_key,
    reason_option,
    tell,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from recovery.api.operator_client import OperatorClient


def _scope_options(command: "Callable[..., None]") -> "Callable[..., None]":
    for option in (
        click.option(
            "--node", metavar="NAME", shell_complete=complete_node, help="This node, for every job."
        ),
        click.option(
            "--job",
            metavar="JOB",
            shell_complete=complete_job,
            help="Name or UUID of a job, or the beginning of one.",
        ),
        click.option("--cluster", is_flag=True, help="All jobs of the controller."),
    ):
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  rankmend pause --cluster --reason "core switch replacement"
  rankmend pause --job llama --reason "investigating"
  rankmend pause --node gpu-17 --reason "BMC update"
"""
)
@_scope_options
@reason_option(required=True)
@expected_option
@job_options
@json_option
def pause(
    cluster: bool,
    job: str | None,
    node: str | None,
    reason: str,
    expected: bool,
    access: Access,
    as_json: bool,
) -> None:
    """Pause automation for the cluster, a job or a node, until it is resumed.

    Ranks keep running. Failures are still detected and journaled, but recovery plans wait.
    """
    from recovery.messages.outside import PersonAct

    _check_one(cluster, job, node)
    if job is not None:
        with asking_job(access) as jobs:
            found = find_job(jobs, job)
            done = jobs.command(found.job_id, PersonAct.PAUSE, reason=reason, key=new_key())
        text = f"job {found.name}: {done.text}"
    else:
        with asking(access) as client:
            scope = "cluster" if node is None else f"node:{node}"
            text = client.pause(reason, scope, is_expected=expected).text
    tell(text, as_json=as_json)


@click.command(
    epilog="""\b
Examples:
  rankmend resume --cluster
  rankmend resume --job llama
  rankmend resume --node gpu-17 --reason "fan replaced"
"""
)
@_scope_options
@reason_option(required=False)
@job_options
@json_option
def resume(
    cluster: bool, job: str | None, node: str | None, reason: str, access: Access, as_json: bool
) -> None:
    """Resume automation; with --node, also return a node to service.

    With --node, ends a drain and a quarantine; jobs that left the node may use it again, and its
    active alerts are ignored until they end and fire again.
    """
    _check_one(cluster, job, node)
    if job is not None:
        with asking_job(access) as jobs:
            reported = _resume_job(jobs, job, reason)
    else:
        with asking(access) as client:
            reported = (
                [client.resume(reason).text] if node is None else _resume_node(client, node, reason)
            )
    tell(reported, as_json=as_json)


def _check_one(cluster: bool, job: str | None, node: str | None) -> None:
    if [cluster, job is not None, node is not None].count(True) != 1:
        raise click.UsageError("give exactly one of --cluster, --job and --node")


def _resume_job(client: JobClient, wanted: str, reason: str) -> list[str]:
    from recovery.messages.outside import PersonAct

    job = find_job(client, wanted)
    scope = f"job:{job.job_id}"
    is_paused = job.is_paused
    if any(item.scope == scope for item in client.cluster().paused):
        client.resume(reason, scope)
        is_paused = True
    if not is_paused:
        fail(f"job {job.name} is not paused")
    if job.is_paused:
        client.command(job.job_id, PersonAct.RESUME, reason=reason, key=new_key())
    return [f"job {job.name} is resumed"]


def _is_drained(client: "OperatorClient", node: str) -> bool:
    """Return whether the controller has drained the node in Slurm or Kubernetes, as far as this person may know."""
    from recovery.api.controller_errors import RefusedError

    for view in (client.slurm, client.kubernetes):
        try:
            if any(item.node == node and item.is_ours for item in view().nodes):
                return True
        except RefusedError as error:
            if error.status not in (403, 404):  # 404: an older controller
                raise
    return False


def _resume_node(client: "OperatorClient", node: str, reason: str) -> list[str]:
    from recovery.api.controller_errors import ConflictError, JobEndedError
    from recovery.controller.job.spelling import say_unknown
    from recovery.messages.outside import PersonAct, Refusal

    reported = []
    scope = f"node:{node}"
    before = client.cluster()
    if any(item.scope == scope for item in before.paused):
        reported.append(client.resume(reason, scope).text)
    if any(item.node == node for item in before.held) or _is_drained(client, node):
        reported.append(client.release(node, reason).text)
    windows = [window for window in before.windows if _covers(window.nodes, node)]
    refused = []
    for view in [item for item in client.nodes() if item.node == node]:
        try:
            client.command(view.job_id, PersonAct.RESUME, reason=reason, node=node, key=new_key())
            reported.append(f"job {view.job_id} may use {node} again")
        except ConflictError as error:
            if error.problem.refusal != Refusal.NOT_HELD.value:
                refused.append(f"job {view.job_id}: {error.problem.error}")
        except JobEndedError:
            continue  # it ended meanwhile
    if not reported:
        known = {item.node for item in client.nodes()} | {item.node for item in before.held}
        if not refused and not windows and node not in known:
            fail(say_unknown("node", node, known))
        retained = "".join(
            f"; maintenance window {window.window_id} names it" for window in windows
        )
        fail("; ".join(refused) or f"node {node} is neither paused nor held back{retained}")
    reported += refused
    reported += [
        f"maintenance window {window.window_id} names {node} (rankmend maintenance remove {window.window_id})"
        for window in windows
    ]
    return reported


def _covers(patterns: list[str], node: str) -> bool:
    return any(fnmatchcase(node, pattern) for pattern in patterns)
