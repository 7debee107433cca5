"""The `rankmend` command. Each sub-command has its own module, imported on use."""

import errno
import os
import sys
from typing import Any, Final, NoReturn

import click

from rankmend.cli.output import echo, failure, misuse
from rankmend.cli.suggestions import SuggestingGroup
from rankmend.errors import MissingPackageError
from rankmend.parts_path import PARTS_ROOT, put_on_path
from rankmend.version import RANKMEND_VERSION

_NO_MORE_FITS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS = {
    "run": ("rankmend.cli.run", "run", "Start, watch and recover the ranks of a job."),
    "controller": (
        "rankmend.cli.controller",
        "controller",
        "Run and set up the controller of a cluster's jobs.",
    ),
    "agent": ("rankmend.cli.agent", "agent", "Run the node agent."),
    "agent-helper": (
        "rankmend.cli.agent_helper",
        "agent_helper",
        "Run the root helper of the node agent.",
    ),
    "agent-kubernetes": (
        "rankmend.cli.agent_kubernetes",
        "agent_kubernetes",
        "Report the agent's findings to Kubernetes.",
    ),
    "status": ("rankmend.cli.screens.status", "status", "Show jobs, attempts and ranks."),
    "checkpoints": (
        "rankmend.cli.checkpoints",
        "checkpoints",
        "Show what a restart could restore.",
    ),
    "incidents": (
        "rankmend.cli.screens.incidents",
        "incidents",
        "List what went wrong, and what it cost.",
    ),
    "report": (
        "rankmend.cli.screens.report",
        "report",
        "Show where the time of jobs went: goodput, MTTR, lost GPU-hours.",
    ),
    "logs": ("rankmend.cli.screens.logs", "logs", "Show what the ranks of a job wrote."),
    "why": ("rankmend.cli.screens.incidents", "why", "Explain why rankmend acted as it did."),
    "approve": ("rankmend.cli.acts.approve", "approve", "Approve a pending plan."),
    "reject": ("rankmend.cli.acts.approve", "reject", "Reject a pending plan."),
    "cancel": ("rankmend.cli.acts.approve", "cancel", "Cancel the recovery of an incident."),
    "acknowledge": (
        "rankmend.cli.acts.approve",
        "acknowledge",
        "Acknowledge an incident that was given up.",
    ),
    "plan": (
        "rankmend.cli.acts.approve",
        "plan",
        "Show what rankmend would do if a rank or node failed now.",
    ),
    "pause": (
        "rankmend.cli.acts.pause",
        "pause",
        "Pause automation for the cluster, a job or a node.",
    ),
    "resume": ("rankmend.cli.acts.pause", "resume", "Resume automation; return a node to service."),
    "drain": ("rankmend.cli.acts.drain", "drain", "Stop placing ranks on a node."),
    "confirm-gone": (
        "rankmend.cli.acts.drain",
        "confirm_gone",
        "Confirm that no rank of a job is left on a node.",
    ),
    "maintenance": (
        "rankmend.cli.acts.drain_maintenance",
        "maintenance",
        "Manage maintenance windows.",
    ),
    "stop": ("rankmend.cli.acts.stop_restart", "stop", "Stop a job, leaving it time to save."),
    "restart": ("rankmend.cli.acts.stop_restart", "restart", "Restart the ranks of a job."),
    "reset-budgets": (
        "rankmend.cli.acts.stop_restart",
        "reset_budgets",
        "Reset a job's restart budget.",
    ),
    "bundle": (
        "rankmend.cli.bundle",
        "bundle",
        "Pack an incident's evidence into one file, without secrets.",
    ),
    "check": ("rankmend.cli.checks.check", "check", "Check this node, or a recorded log, once."),
    "preflight": (
        "rankmend.cli.preflights.preflight",
        "preflight",
        "Put this node under a bounded load, and say whether it is fit.",
    ),
    "doctor": (
        "rankmend.cli.doctor",
        "doctor",
        "Show what this host has and lacks, and how to fix it.",
    ),
    "cleanup": (
        "rankmend.cli.cleanup",
        "cleanup",
        "Remove what a Slurm job has left on this node.",
    ),
    "diagnose": (
        "rankmend.cli.diagnosis.diagnose",
        "diagnose",
        "Find the failed, hung or slow rank in logs and recordings of a job.",
    ),
    "simulate": (
        "rankmend.cli.labs.simulate",
        "simulate",
        "Simulate a large job for months: ETTR, spares, checkpoint interval.",
    ),
    "inject": (
        "rankmend.cli.labs.inject",
        "inject",
        "Break a job or a node on purpose, for a bounded time.",
    ),
    "drill": (
        "rankmend.cli.labs.drill",
        "drill",
        "Break a job on purpose, and check that it recovers as it must.",
    ),
    "fabric": (
        "rankmend.cli.labs.fabric",
        "fabric",
        "Test the network between nodes: the slow part, paths that collide.",
    ),
    "slurm": ("rankmend.cli.slurm", "slurm", "Show requests to Slurm, and drained nodes."),
    "kubernetes": (
        "rankmend.cli.kubernetes",
        "kubernetes",
        "Show requests to Kubernetes, and cordoned nodes.",
    ),
    "console": (
        "rankmend.cli.console",
        "console",
        "Open the jobs of this machine in a browser.",
    ),
    "watch": ("rankmend.cli.watch", "watch", "Watch jobs that other launchers start."),
    "completion": ("rankmend.cli.completion", "completion", "Print a shell's completion script."),
}

GROUPS: Final = {
    "Start a job": ("run", "watch"),
    "Look": (
        *("status", "incidents", "why", "logs", "report", "checkpoints", "console", "bundle"),
        "diagnose",
    ),
    "Act": (
        *("stop", "restart", "plan", "approve", "reject", "cancel", "acknowledge", "pause"),
        *("resume", "reset-budgets"),
    ),
    "Node": (
        *("agent", "check", "preflight", "doctor", "cleanup", "agent-helper", "agent-kubernetes"),
    ),
    "Cluster": ("controller", "drain", "confirm-gone", "maintenance", "slurm", "kubernetes"),
    "Test": ("drill", "inject", "fabric", "simulate"),
    "Shell": ("completion",),
}
"""Headings of `rankmend --help`, and the commands below each."""


def _print_version(ctx: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or ctx.resilient_parsing:
        return
    echo(f"rankmend, version {RANKMEND_VERSION}")
    ctx.exit()


class _LazyGroup(SuggestingGroup):
    """Imports a sub-command's module when it is called, so that `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        from importlib import import_module

        module, attribute, _help = COMMANDS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        try:
            return super().make_context(*given, **named)
        except click.UsageError as error:
            raise misuse(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise misuse(error) from error
        except MissingPackageError as error:
            raise failure(error) from error
        except ModuleNotFoundError as error:
            from rankmend.packages import explain_missing

            text = explain_missing(error.name, f"rankmend {ctx.invoked_subcommand}")
            if text is None:
                raise
            raise failure(text) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, COMMANDS[name][2]) for name in names])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Find the failed, hung or slow rank, restart the job, and account for the time lost."""


def main(args: list[str] | None = None) -> Any:
    if not os.path.isdir(PARTS_ROOT):  # noqa: PTH112 - pathlib takes 5 ms of a start
        echo(f"rankmend: can't run from an archive: install {PARTS_ROOT} with pip", err=True)
        sys.exit(os.EX_CONFIG)
    put_on_path()
    try:
        cli(args=args, prog_name="rankmend")
    except SystemExit as done:
        _flush_output(done.code)
        raise
    except OSError as error:
        if error.errno not in _NO_MORE_FITS or error.filename is not None:
            raise
        _drop_output(error)


def _flush_output(code: object) -> None:
    """Write what is left of the output: Python says of a full disk nothing that a person understands."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno in _NO_MORE_FITS and not code:
            _drop_output(error)


def _drop_output(error: OSError) -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again as it ends
    echo(f"rankmend: the output can't be written: {error.strerror}", err=True)
    sys.exit(os.EX_IOERR)
