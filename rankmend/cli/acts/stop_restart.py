"""`rankmend stop`, `restart` and `reset-budgets`: a person's commands to one job."""

import click

from rankmend.cli.options import json_option
from rankmend.cli.sources.controller_names import complete_job
from rankmend.cli.sources.controller_options import (
    Access,
    asking_job,
    confirm,
    find_job,
    job_options,
    new_key,
    reason_option,
    tell,
    yes_option,
)


@click.command(epilog="Example: rankmend stop llama --reason 'loss has diverged'")
@click.argument("job", shell_complete=complete_job)
@reason_option(required=False)
@yes_option
@job_options
@json_option
def stop(job: str, reason: str, yes: bool, access: Access, as_json: bool) -> None:
    """Stop JOB: send SIGTERM, allow time to save, then end it on every node.

    JOB is a name or UUID, or the beginning of one. `rankmend run --grace` sets the time to save.
    """
    from detectors.wording import counted
    from recovery.messages.outside import PersonAct

    with asking_job(access) as client:
        found = find_job(client, job)
        confirm(f"Stop job {found.name} ({counted(found.world_size, 'rank')})?", yes=yes)
        client.command(found.job_id, PersonAct.STOP, reason=reason, key=new_key())
    tell(f"job {found.name} saves its state and stops", as_json=as_json, job_id=found.job_id)


@click.command(epilog="Example: rankmend restart llama --reason 'new data mount'")
@click.argument("job", shell_complete=complete_job)
@reason_option(required=False)
@yes_option
@job_options
@json_option
def restart(job: str, reason: str, yes: bool, access: Access, as_json: bool) -> None:
    """Restart the ranks of JOB from its newest valid checkpoint.

    The job repeats the steps since that checkpoint. Restarting ends a pause of the job.
    """
    from detectors.wording import counted
    from recovery.messages.outside import PersonAct

    with asking_job(access) as client:
        found = find_job(client, job)
        step = "" if found.highest_step is None else f", at step {found.highest_step}"
        confirm(
            f"Kill the {counted(found.world_size, 'rank')} of job {found.name}{step} and start again from "
            "its newest checkpoint?",
            yes=yes,
        )
        done = client.command(found.job_id, PersonAct.RESTART, reason=reason, key=new_key())
    tell(f"job {found.name}: {done.text}", as_json=as_json, job_id=found.job_id)


@click.command(
    "reset-budgets", epilog="Example: rankmend reset-budgets llama --reason 'gpu-17 replaced'"
)
@click.argument("job", shell_complete=complete_job)
@reason_option(required=False)
@yes_option
@job_options
@json_option
def reset_budgets(job: str, reason: str, yes: bool, access: Access, as_json: bool) -> None:
    """Reset JOB's restart budget and the failures counted so far.

    If the job was adopted after its journal was lost, this also allows rankmend to recover it, on
    every node that is not drained.
    """
    from detectors.wording import counted
    from recovery.messages.outside import PersonAct

    with asking_job(access) as client:
        found = find_job(client, job)
        confirm(
            f"Reset the budget of job {found.name} ({counted(found.restarts, 'restart')} so far)?",
            yes=yes,
        )
        done = client.command(found.job_id, PersonAct.RESET_BUDGETS, reason=reason, key=new_key())
    tell(f"job {found.name}: {done.text}", as_json=as_json, job_id=found.job_id)
