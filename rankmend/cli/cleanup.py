"""`rankmend cleanup`: for Slurm's epilog, or by hand."""

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.options import examples, fail, json_option, print_json, size
from rankmend.cli.output import echo
from rankmend.cli.units import DurationBetween
from rankmend.errors import RankmendError, StorageError
from rankmend.node import node_name

if TYPE_CHECKING:
    from recovery.launcher.cleanup.cleaner import CleanupResult

UNUSABLE: Final = 64  # EX_USAGE in sysexits.h
INCOMPLETE: Final = 1
SQUEUE_S_MAX: Final = 2.0


@click.command(epilog=examples("rankmend cleanup --slurm-job 4711 --dry-run"))
@json_option
@click.option(
    "--slurm-job", envvar="SLURM_JOB_ID", metavar="NUMBER",
    help="Slurm job that has ended on this node. [default: $SLURM_JOB_ID]",
)  # fmt: skip
@click.option(
    "--user", envvar=["SLURM_JOB_UID", "SLURM_JOB_USER"], metavar="NAME|UID",
    help="The job's user. [default: $SLURM_JOB_UID; without root, yourself]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@click.option(
    "--grace", "grace_s", type=DurationBetween(0, 300), default="2s", show_default=True, help="Time between SIGTERM and SIGKILL.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=DurationBetween(1, 600), default="20s", show_default=True, help="Stop waiting for processes that SIGKILL does not end.",
)  # fmt: skip
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Log of clean-ups. [default: /var/log/rankmend/node-actions.jsonl for root]",
)
def cleanup(
    slurm_job: str | None,
    user: str | None,
    as_json: bool,
    dry_run: bool,
    grace_s: float,
    timeout_s: float,
    log: Path | None,
) -> None:
    """Remove what a Slurm job has left on this node: processes, shared memory, snapshots.

    Removes only what is proved to be this job's, with the rights of its user. Never touches
    root's processes or other jobs of the same user.

    Exit codes: 0 nothing of the job is left, 1 something is, 64 wrong usage.
    """
    from recovery.launcher.cleanup.cleaner import Cleanup, clean_up

    if slurm_job is None:
        fail("name the job that has ended: --slurm-job", UNUSABLE)
    uid = _uid_of(user)
    if not slurm_job.isdecimal():
        fail(f"{slurm_job!r:.80} is not the number of a Slurm job", UNUSABLE)
    try:
        result = clean_up(
            Cleanup(slurm_job, uid, grace_s, timeout_s, dry_run),
            lambda: _other_jobs(slurm_job, uid),
        )
    except RankmendError as error:
        fail(str(error), UNUSABLE)
    if not dry_run and not result.is_empty:
        _log(log, slurm_job, uid, result)
    if as_json:
        print_json({"job": slurm_job, "uid": uid, "is_dry_run": dry_run, "cleanup": result})
    else:
        _print(slurm_job, result, is_dry=dry_run)
    if not result.is_clean:
        raise SystemExit(INCOMPLETE)


def _uid_of(user: str | None) -> int:
    own = os.geteuid()
    if user is None:
        if own == 0:
            fail("root must name the job's --user", UNUSABLE)
        return own
    try:
        uid = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError:
        fail(f"there is no user {user!r:.80}", UNUSABLE)
    if own not in (0, uid):
        fail(f"only root may clean up for uid {uid}", UNUSABLE)
    return uid


def _other_jobs(job: str, uid: int) -> Sequence[str]:
    from agent.slurm.commands import NodeSlurmCommands

    slurm = NodeSlurmCommands(time.monotonic() + SQUEUE_S_MAX, os.environ)
    return [other for other in slurm.jobs_of(uid, node_name()) if other != job]


def _log(log: Path | None, job: str, uid: int, result: "CleanupResult") -> None:
    from dataclasses import asdict

    from rankmend.action_log import ACTION_LOG, append_action

    path = log or (ACTION_LOG if os.geteuid() == 0 else None)
    if path is None:
        return
    try:
        append_action(path, "cleanup", {"slurm_job": job, "uid": uid, **asdict(result)})
    except StorageError as error:
        echo(f"rankmend: {error}", err=True)


def _print(job: str, result: "CleanupResult", *, is_dry: bool) -> None:
    from detectors.wording import counted

    would = "would " if is_dry else ""
    for item in result.ended:
        echo(f"{would}end{'' if is_dry else 'ed'} process {item.pid} ({item.command})")
    for path in result.removed:
        echo(f"{would}remove{'' if is_dry else 'd'} {path}")
    for retained in result.kept:
        echo(f"left {retained.what}: {retained.why}")
    for item in result.alive:
        echo(f"rankmend: process {item.pid} ({item.command}) does not end", err=True)
    for error in result.errors:
        echo(f"rankmend: {error}", err=True)
    echo(
        f"job {job}: {counted(len(result.ended), 'process', 'processes')}, {counted(len(result.removed), 'file or folder', 'files and folders')},"
        f" {size(result.freed_bytes)}"
    )
