"""`rankmend run`: the drop-in for torchrun. Parses the command line and nothing else."""

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from rankmend.errors import ConfigError, JobHeldError, JournalError, RankmendError

_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Duration(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.3
    """Seconds, or a number with s, m, h or d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip()
        unit = _UNIT_SECONDS.get(text[-1:], 0)
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e9:
            self.fail(f"{text!r} is no duration such as 90, 90s, 30m or 12h", param, ctx)
        return seconds


DURATION = _Duration()

# Flags of torchrun that a launch line may carry, for parts that work otherwise here: there is no
# rendezvous of agents on one node, no polling, and ranks are always programs of their own.
_IGNORED: Final = (
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_conf",
    "monitor_interval",
    "start_method",
    "node_rank",
    "local_addr",
    "event_log_handler",
    "shutdown_timeout",
)


def _both(name: str) -> tuple[str, ...]:
    """torchrun takes its flags with dashes and with underscores."""
    return tuple(dict.fromkeys((name, "--" + name[2:].replace("-", "_"))))


@click.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    epilog="""\b
Examples:
  rankmend run --standalone --nproc-per-node 4 train.py --lr 0.1
  rankmend run --nproc-per-node gpu --checkpoint-dir ckpt train.py --resume {checkpoint}
  rankmend run --nproc-per-node 2 -m my.package.train
  rankmend run --nproc-per-node 2 --no-python ./solver
""",
)
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    *_both("--nproc-per-node"),
    default="1",
    show_default=True,
    metavar="N|gpu|cpu|auto",
    help="Ranks on this node.",
)
@click.option("--nnodes", default="1", show_default=True, help="Nodes; this version runs one.")
@click.option("--standalone", is_flag=True, help="One node, no service (the default).")
@click.option(
    *_both("--max-restarts"),
    type=click.IntRange(min=0),
    help="Restarts in the life of the job, kept over restarts of rankmend. [default: 100]",
)
@click.option(
    "-m", "--module", "is_module", is_flag=True, help="TARGET is a module, as with python -m."
)
@click.option(*_both("--no-python"), is_flag=True, help="TARGET is a program, not a Python script.")
@click.option("--python", "python_path", metavar="PATH", help="Interpreter of the ranks.")
@click.option(*_both("--rdzv-id"), help="Names the job where --job does not.")
@click.option(*_both("--rdzv-backend"), hidden=True)
@click.option(*_both("--rdzv-endpoint"), hidden=True)
@click.option(*_both("--rdzv-conf"), hidden=True)
@click.option(*_both("--monitor-interval"), type=float, hidden=True)
@click.option(*_both("--start-method"), hidden=True)
@click.option(*_both("--node-rank"), hidden=True)
@click.option(*_both("--local-addr"), hidden=True)
@click.option(*_both("--event-log-handler"), hidden=True)
@click.option(*_both("--shutdown-timeout"), type=float, hidden=True)
@click.option(
    *_both("--role"), default="default", show_default=True, help="ROLE_NAME of the ranks."
)
@click.option(
    *_both("--master-addr"),
    default="127.0.0.1",
    show_default=True,
    help="MASTER_ADDR of the ranks.",
)
@click.option(
    *_both("--master-port"),
    type=click.IntRange(1, 65535),
    help="Fixed MASTER_PORT. [default: a fresh one out of --port-range for every attempt]",
)
@click.option("--port-range", metavar="A-B", help="Where MASTER_PORT is taken from.")
@click.option(
    "--store",
    type=click.Choice(["auto", "launcher", "ranks"]),
    default="auto",
    show_default=True,
    help="Who hosts the rendezvous store.",
)
@click.option(
    "--standby",
    metavar="MODULES",
    help="Keep a process a rank that has imported these, such as torch, to restart ranks from.",
)
@click.option(
    *_both("--log-dir"),
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the ranks' output.",
)
@click.option(
    "-r",
    *_both("--redirects"),
    default="0",
    help="Output to files only: 0 none, 1 stdout, 2 stderr, 3 both, or a list such as 0:3,1:2.",
)
@click.option("-t", *_both("--tee"), default="0", help="Output to files as well; same form.")
@click.option(
    *_both("--local-ranks-filter"),
    metavar="0,1",
    help="Show only these local ranks on the console.",
)
@click.option("--prefix/--no-prefix", default=True, help="Begin each line of a rank with [rank N].")
@click.option("--job", metavar="NAME", help="Name under which the job is known again.")
@click.option(
    "--checkpoint-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the script writes its checkpoints; the newest valid one is handed to the ranks.",
)
@click.option(
    "--checkpoint-marker",
    metavar="NAME",
    help="File that says a checkpoint folder is complete. [default: .metadata]",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Local folder for journals. [default: ~/.local/state/rankmend]",
)
@click.option("--time-limit", type=DURATION, help="Stop the job, with a save, after this long.")
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    default="60",
    show_default=True,
    help="From SIGTERM to SIGKILL when a stop was asked for.",
)
@click.option(
    "--hang-min",
    "hang_min_s",
    type=DURATION,
    help="Never call ranks hung before this. [default: 5m]",
)
@click.option(
    "--hang-max",
    "hang_max_s",
    type=DURATION,
    help="Always call ranks hung after this. [default: 30m]",
)
@click.option(
    "--hang-multiple",
    type=click.FloatRange(min=2),
    help="Hung after this many of the job's own step times. [default: 20]",
)
@click.option(
    "--hang-stopped",
    "--hang-stopped-s",
    "hang_stopped_s",
    type=DURATION,
    help="The same where a rank is stopped or a zombie. [default: 5s]",
)
@click.option("--no-hang-detection", is_flag=True, help="Never call ranks hung.")
@click.option(
    "--auto/--no-auto", default=True, help="See the steps of an unchanged PyTorch script."
)
@click.option("--agent-socket", type=click.Path(path_type=Path), help="Socket of the node agent.")
@click.option("--reset-budgets", is_flag=True, help="Forget the restarts counted so far.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with [policy] and [hang] tables.",
)
@click.option("--quiet", "-q", is_flag=True, help="Only warnings and errors from rankmend itself.")
def run(**options: Any) -> None:
    """Start the ranks of a training job, and bring them back when one fails or hangs.

    TARGET is a script, a module (-m) or a program, with its ARGUMENTS. {checkpoint} in an
    argument becomes the checkpoint to resume from; without one the argument is left out.

    Exit codes: 0 all ranks done; the code of the first failed rank (128 + signal for a signal)
    when rankmend gives up; 93 when a rank says so itself; 124 time limit; 130 and 143 stopped
    by SIGINT and SIGTERM; 2 wrong usage or configuration; 75 the job is held by another
    launcher.
    """
    from recovery.run_options import RunOptions

    for name in _IGNORED:
        if options.pop(name) is not None:
            flag = "--" + name.replace("_", "-")
            click.echo(f"rankmend: {flag} has no meaning here and is ignored", err=True)
    from recovery.standalone import run_standalone

    try:
        code = run_standalone(RunOptions(**options), os.environ)
    except JobHeldError as error:
        click.echo(f"rankmend: {error}", err=True)
        code = 75
    except (ConfigError, JournalError) as error:
        click.echo(f"rankmend: {error}", err=True)
        code = 2
    except RankmendError as error:
        click.echo(f"rankmend: {error}", err=True)
        code = 1
    sys.exit(code)
