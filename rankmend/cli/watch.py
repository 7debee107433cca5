"""`rankmend watch`: watch jobs that other launchers have started."""

import os
from pathlib import Path

import click

from rankmend.cli.options import examples, fail
from rankmend.cli.output import echo
from rankmend.errors import ConfigError


@click.group()
def watch() -> None:
    """Watch jobs that torchrun, srun or mpirun start."""


def default_folder() -> Path:
    """Return where the hook folder lies: one for all users where root makes it."""
    if os.geteuid() == 0:
        return Path("/var/lib/rankmend/hook")
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "rankmend" / "hook"


@watch.command(epilog=examples('eval "$(rankmend watch env)"'))
@click.option(
    "--for",
    "place",
    type=click.Choice(["shell", "taskprolog", "container", "pod"]),
    default="shell",
    show_default=True,
    help="Where the lines go: a shell or an sbatch script, Slurm's TaskProlog, the options of a "
    "container, or a Kubernetes pod.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where to put the hook: a path that also exists on the job's nodes. "
    "[default: /var/lib/rankmend/hook for root, else ~/.local/share/rankmend/hook]",
)
@click.option(
    "--python",
    "pythons",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Another Python that many programs use: also compile the hook for it (repeatable).",
)
@click.option(
    "--any",
    "is_any",
    is_flag=True,
    help="Also watch programs without a launcher: `python train.py`, alone or as Lightning and "
    "torch.multiprocessing.spawn start ranks.",
)
@click.option(
    "--evidence",
    is_flag=True,
    help="Let ranks show where their Python threads are when the job hangs: they then answer "
    "a signal.",
)
@click.option("--drills", is_flag=True, help="Let `rankmend inject` break the ranks.")
@click.option("--users", help="For a TaskProlog: only jobs of these users, as a,b.")
@click.option(
    "--partitions",
    help="For a TaskProlog: only jobs in these partitions; with --users, jobs of either.",
)
def env(
    place: str,
    folder: Path | None,
    pythons: tuple[Path, ...],
    is_any: bool,
    evidence: bool,
    drills: bool,
    users: str | None,
    partitions: str | None,
) -> None:
    """Print the variables that make rankmend watch a job: eval "$(rankmend watch env)".

    Makes the hook folder, or brings it up to date.
    """
    from rankmend.watch.hook_folder import make_hook_folder
    from rankmend.watch.lines import Canary, WatchPlace, lines_for, parse_names

    chosen = (folder or default_folder()).absolute()
    for option, given in (("--users", users), ("--partitions", partitions)):
        if given is not None and WatchPlace(place) is not WatchPlace.TASKPROLOG:
            fail(f"{option} is for --for taskprolog: a {place} is of one user")
    try:
        canary = Canary(
            parse_names(users, "user") if users is not None else (),
            parse_names(partitions, "partition") if partitions is not None else (),
        )
        make_hook_folder(chosen, pythons)
    except ConfigError as error:
        fail(str(error))
    lines = lines_for(
        WatchPlace(place),
        str(chosen),
        canary,
        has_evidence=evidence,
        is_any=is_any,
        allows_drills=drills,
    )
    echo(lines.removesuffix("\n"))
