"""`rankmend approve`, `reject`, `cancel`, `acknowledge` and `plan`: a person's decisions about a recovery."""

from typing import TYPE_CHECKING, Any

import click

from rankmend.cli.options import fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.cli.sources.controller_names import (
    complete_job,
    complete_node,
    complete_open,
    complete_plan,
    complete_story,
)
from rankmend.cli.sources.controller_options import (
    Access,
    JobClient,
    asking,
    asking_job,
    confirm,
    controller_options,
    find_job,
    job_options,
    new_key,
    reason_option,
    tell,
    yes_option,
)
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.api import wire

_PLAN_FIELDS = ("step", "without", "try_number")

_JUDGEMENTS = {"allowed": "allowed", "wait": "waits", "refused": "refused"}


@click.command(
    epilog="""\b
Examples:
  rankmend status                      lists pending plans
  rankmend approve 4f1c2d3e-7
  rankmend approve 4f1c2d3e-7 --yes --reason "spare checked"
"""
)
@click.argument("incident", shell_complete=complete_plan)
@reason_option(required=False)
@yes_option
@job_options
@json_option
def approve(incident: str, reason: str, yes: bool, access: Access, as_json: bool) -> None:
    """Approve the pending plan of INCIDENT, or the held start of the job with this name or UUID.

    Shows the plan and asks for confirmation. Approval also releases a plan held by a pause.
    """
    from recovery.messages.outside import PersonAct

    with asking_job(access) as client:
        plan = _waiting(client, incident)
        echo(describe(plan), err=True)
        confirm("Carry out this plan?", yes=yes)
        _check_same(plan, _waiting(client, incident))
        done = client.command(
            plan.job_id,
            PersonAct.APPROVE,
            reason=reason,
            incident_id=plan.incident_id or None,
            key=new_key(),
            plan_id="" if plan.incident_id else plan.plan_id,
        )
    tell(f"{incident} is approved: {done.text}", as_json=as_json, plan=_json(plan))


@click.command(epilog="Example: rankmend reject 4f1c2d3e-7 --reason 'the node is healthy'")
@click.argument("incident", shell_complete=complete_plan)
@reason_option(required=False)
@yes_option
@job_options
@json_option
def reject(incident: str, reason: str, yes: bool, access: Access, as_json: bool) -> None:
    """Reject the pending plan of INCIDENT: this gives up the incident and ends the job.

    To keep a job as it is, cancel the incident instead (rankmend cancel).
    """
    from recovery.messages.outside import PersonAct

    with asking_job(access) as client:
        plan = _waiting(client, incident)
        if not plan.incident_id:
            fail(f"the start of job {plan.job} has no incident: rankmend stop {plan.job} ends it")
        echo(describe(plan), err=True)
        confirm(f"Reject this plan? This stops the remaining ranks of job {plan.job}.", yes=yes)
        done = client.command(
            plan.job_id, PersonAct.REJECT, reason=reason, incident_id=incident, key=new_key()
        )
    tell(f"{incident} is rejected: {done.text}", as_json=as_json, plan=_json(plan))


@click.command(epilog="Example: rankmend cancel 4f1c2d3e-7 --reason 'debugging by hand'")
@click.argument("incident", shell_complete=complete_open)
@reason_option(required=False)
@job_options
@json_option
def cancel(incident: str, reason: str, access: Access, as_json: bool) -> None:
    """Cancel the recovery of INCIDENT and leave its job as it is.

    rankmend takes no action on the job until you resume it (rankmend resume --job JOB).
    """
    from recovery.messages.outside import PersonAct

    with asking_job(access) as client:
        jobs = client.jobs()
        job = next((item for item in jobs if item.incident_id == incident), None)
        if job is None:
            known = sorted(item.incident_id for item in jobs if item.incident_id is not None)
            fail(f"incident {incident!r} is not open" + _listed("open", known) + client.searched)
        done = client.command(
            job.job_id, PersonAct.CANCEL, reason=reason, incident_id=incident, key=new_key()
        )
    tell(f"{incident} of job {job.name}: {done.text}", as_json=as_json)


@click.command(epilog="Example: rankmend acknowledge 4f1c2d3e-7 --reason 'on it'")
@click.argument("incident", shell_complete=complete_story)
@reason_option(required=False)
@controller_options
@json_option
def acknowledge(incident: str, reason: str, access: Access, as_json: bool) -> None:
    """Acknowledge INCIDENT, which was given up, and stop its notifications."""
    with asking(access) as client:
        done = client.acknowledge(incident, reason)
    tell(done.text, as_json=as_json)


@click.command(
    epilog="""\b
Examples:
  rankmend plan llama                  if a rank failed now
  rankmend plan llama --node gpu-17    if that node were lost
"""
)
@click.argument("job", shell_complete=complete_job)
@click.option(
    "--node",
    metavar="NAME",
    shell_complete=complete_node,
    help="Simulate losing this node. [default: losing a rank]",
)
@job_options
@json_option
def plan(job: str, node: str | None, access: Access, as_json: bool) -> None:
    """Show what rankmend would do if JOB failed now. A dry run: it changes nothing.

    JOB is a name or UUID, or the beginning of one. If the job has a pending plan, shows that plan.
    """
    with asking_job(access) as client:
        found = find_job(client, job)
        shown = client.dry_run(found.job_id, node)
        is_waiting = any(
            (item.job_id, item.incident_id) == (shown.job_id, shown.incident_id)
            for item in client.plans()
        )
    if as_json:
        print_json({"plan": _json(shown), "is_waiting": is_waiting})
        return
    if is_waiting:
        echo("a plan is already pending:")
    else:
        echo(f"if node {node} were lost now:" if node else "if a rank failed now:")
    echo(describe(shown))


def describe(plan: "wire.PlanView") -> str:
    """Return a plan in words, with one line each for the step, the cause and the approval."""
    about = f"incident {plan.incident_id} of job {plan.job}, try {plan.try_number}"
    lines = [f"{about if plan.incident_id else f'job {plan.job}'}: {plan.step.replace('_', ' ')}"]
    if plan.without:
        lines.append(f"  without {', '.join(plan.without)}")
    lines.append(f"  because: {plan.reason}")
    lines.append(f"  {_JUDGEMENTS.get(plan.judgement, plan.judgement)}: {plan.judgement_reason}")
    return "\n".join(printable(line) for line in lines)


def _waiting(client: JobClient, incident: str) -> "wire.PlanView":
    plans = client.plans()
    found = next((plan for plan in plans if incident in _names_of(plan)), None)
    if found is None:
        known = [f"{plan.incident_id} ({plan.job})".strip() for plan in plans]
        fail(_ended_text(client, incident) + _listed("pending", known) + client.searched)
    return found


def _names_of(plan: "wire.PlanView") -> tuple[str, ...]:
    """Return what a person may call the plan: its incident; a start has none."""
    return (plan.incident_id,) if plan.incident_id else (plan.job, plan.job_id)


def _ended_text(client: JobClient, incident: str) -> str:
    """Return that the incident has no pending plan, or that its job has ended."""
    from recovery.console.views.state_words import word_of
    from recovery.journal.job_records import OutcomeKind

    ended = {kind.value for kind in OutcomeKind}
    beginning = incident.rpartition("-")[0]  # of the job's UUID
    for job in client.jobs(with_ended=True) if beginning else ():
        if job.job_id.startswith(beginning) and job.state in ended:
            return f"incident {incident}: job {job.name} {job.job_id} has ended: {word_of(job.state)}: {job.reason}"
    return f"incident {incident!r} has no pending plan"


def _listed(what: str, names: list[str]) -> str:
    return f"; {what}: {printable(', '.join(names[:20]))}" if names else f"; none is {what}"


def _check_same(shown: "wire.PlanView", now: "wire.PlanView") -> None:
    """End the command if the plan has changed since the person saw it."""
    if any(getattr(shown, name) != getattr(now, name) for name in _PLAN_FIELDS):
        fail(f"the plan has changed, and nothing was approved; the new plan:\n{describe(now)}")


def _json(plan: "wire.PlanView") -> Any:
    import msgspec

    return msgspec.to_builtins(plan)
