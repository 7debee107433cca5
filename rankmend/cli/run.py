"""`rankmend run`: the drop-in for torchrun. Parses the command line and nothing else."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from rankmend.cli.options import NAME, NAME_OR_EMPTY, checkpoint_name_option
from rankmend.cli.output import echo
from rankmend.cli.torchrun_options import (
    VARIABLE_PREFIX,
    RunCommand,
    both,
    read_variables_of_torchrun,
    warn_unknown_variables,
)
from rankmend.cli.units import DURATION, RATE, WAIT
from rankmend.errors import ConfigError, JobHeldError, JournalError, RankmendError
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.launcher.run.options import RunOptions

# torchrun options that are accepted and ignored: rankmend does not poll, and every rank is a separate program.
_IGNORED: Final = ("monitor_interval", "start_method", "event_log_handler")
# As in torchrun.
SIGNALS: Final = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
NUMA_MODES: Final = ("node", "socket", "exclusive", "core-complex")
# Ignored on one node, where launchers have no rendezvous.
_IGNORED_ALONE: Final = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf", "node_rank", "local_addr")

_CONTROLLER_VARIABLE: Final = "RANKMEND_CONTROLLER"
# Each says where the nodes meet, or that they don't: given, the variable above does not count.
_WITHOUT_SERVICE: Final = ("standalone", "rdzv_endpoint", "master_addr")
# Headings of `--help`, and the options below each; those that a first job needs come first.
OPTION_GROUPS: Final = {
    "First": (
        *("nproc-per-node", "checkpoint-dir", "job", "nnodes", "rdzv-endpoint", "controller"),
        *("spares", "max-restarts"),
    ),
    "Program": ("module", "no-python", "run-path", "python", "rank-prefix", "rank-prefix-env"),
    "Checkpoints": (
        *("checkpoint-name", "checkpoint-marker", "checkpoint-check-rate"),
        *("checkpoint-check-wait", "start-from-scratch", "take-over"),
    ),
    "Snapshots and quick restarts": (
        *("snapshots", "snapshot-copies", "snapshot-copy-rate", "parallel", "sharded-parts"),
        *("fork-server", "standby", "store"),
    ),
    "Failures, hangs and ends": (
        *("hang-min", "hang-max", "hang-multiple", "hang-stopped", "no-hang-detection"),
        *("observe", "drills", "reset-budgets", "time-limit", "grace", "shutdown-timeout"),
        "signals-to-handle",
    ),
    "Nodes": (
        *("standalone", "slurm", "slurm-requeue", "token-file", "ca-file", "pod-token-file"),
        *("shrink-multiple", "grow-every", "node-name", "local-addr", "preflight"),
        "preflight-baseline",
    ),
    "Ranks": (
        *("role", "master-addr", "master-port", "port-range", "rdzv-id", "virtual-local-rank"),
        *("numa-binding", "auto", "step-work", "agent-socket", "agent-url"),
    ),
    "Output and files": (
        *("log-dir", "redirects", "tee", "duplicate-stdout-filters", "duplicate-stderr-filters"),
        *("local-ranks-filter", "prefix", "quiet", "state-dir", "config"),
    ),
}


@click.command(
    cls=RunCommand,
    groups=OPTION_GROUPS,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    epilog="""\b
Examples:
  rankmend run --standalone --nproc-per-node 4 train.py --lr 0.1
  rankmend run --nproc-per-node gpu --checkpoint-dir ckpt train.py --resume {checkpoint}
  rankmend run --nproc-per-node 2 -m my.package.train
  rankmend run --nproc-per-node 2 --no-python ./solver
  rankmend run --nnodes 2 --nproc-per-node 8 --rdzv-endpoint node1:29400 train.py
  rankmend run --nnodes 4 --spares 1 --nproc-per-node 8 --controller https://controller.example:9477 train.py
""",
)
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    *both("--nproc-per-node"),
    default="1",
    show_default=True,
    metavar="N|gpu|xpu|cpu|auto",
    help="Number of ranks on this node.",
)
@click.option(
    *both("--nnodes"),
    default="1",
    show_default=True,
    metavar="N|MIN:MAX",
    help="Number of nodes. MIN:MAX trains on all that join, up to MAX, and goes on with fewer.",
)
@click.option(
    "--spares",
    type=click.IntRange(min=0),
    default=0,
    metavar="S",
    help="Number of these nodes that wait as spares until a node fails.",
)
@click.option(
    "--slurm/--no-slurm",
    default=True,
    show_default=True,
    help="Under srun, take unset options from Slurm: nodes, where they meet, ranks by GPUs.",
)
@click.option(
    "--slurm-requeue",
    "slurm_requeue_s",
    type=DURATION,
    help="Have Slurm requeue the job, without the bad nodes, if it waits this long for a "
    "usable node.",
)
@click.option(
    *both("--standalone"),
    is_flag=True,
    help="Run on one node without a controller service (the default).",
)
@click.option(
    *both("--rdzv-endpoint"),
    metavar="HOST[:PORT]",
    help="Where the nodes meet; the launcher on HOST hosts the controller. [default port: 29400]",
)
@click.option(
    "--controller",
    metavar="URL[,URL]",
    envvar=_CONTROLLER_VARIABLE,
    help="One or more controllers that run as a service.  [env: RANKMEND_CONTROLLER]",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="RANKMEND_TOKEN_FILE",
    help="File (mode 0600) with the token that authenticates this job to the controller.  [env: RANKMEND_TOKEN_FILE]",
)
@click.option(
    "--ca-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="RANKMEND_CA_FILE",
    help="CA that signed the controller's certificate.  [env: RANKMEND_CA_FILE; default: the system's]",
)
@click.option(
    "--pod-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="RANKMEND_POD_TOKEN_FILE",
    help="Projected service-account token that proves this pod to the controller.  "
    "[env: RANKMEND_POD_TOKEN_FILE; default: /var/run/secrets/rankmend/token, if it is there]",
)
@click.option(
    "--shrink-multiple",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --nnodes MIN:MAX, train only on a number of ranks that is a multiple of N, such as TP x PP. [default: 1]",
)
@click.option(
    "--grow-every",
    "grow_every_s",
    type=DURATION,
    help="With --nnodes MIN:MAX, restart at most this often, right after a save, to take in healthy nodes that joined later. "
    "Implies --preflight quick. [default: only at restarts after failures]",
)
@click.option(
    "--parallel",
    metavar="tp=N,dp=N,...",
    help="Declare the parallel sizes tp, cp, ep, dp and pp. Ranks that differ only in dp and "
    "cp are replicas, and their snapshots must be equal. "
    "[default: rankmend learns which ranks are equal]",
)
@click.option(
    "--sharded-parts",
    metavar="KEY,KEY",
    help="Keys of the snapshot that these replicas shard, such as ZeRO's optimizer; these are not compared.",
)
@click.option(
    "--node-name",
    metavar="NAME",
    type=NAME,
    help="Name of this node. [default: the short host name]",
)
@click.option(
    *both("--max-restarts"),
    type=click.IntRange(min=0),
    help="Restart budget for the whole life of the job; restarting rankmend does not reset it. [default: 10000]",
)
@click.option(
    "-m",
    *both("--module"),
    "is_module",
    is_flag=True,
    help="TARGET is a module, as with python -m.",
)
@click.option(*both("--no-python"), is_flag=True, help="TARGET is a program, not a Python script.")
@click.option(
    *both("--run-path"), is_flag=True, help="Treat TARGET as a script, overriding other options."
)
@click.option("--python", "python_path", metavar="PATH", help="Python interpreter for the ranks.")
@click.option(
    "--rank-prefix",
    metavar="COMMAND",
    help="Run each rank as COMMAND PYTHON TARGET, e.g. in a container; split into words as by a shell. {runtime}, {cwd}, "
    "{rank}, {local_rank}, {attempt} and {job_id} in it are filled in. Then --python is python3 of the container by default.",
)
@click.option(
    "--rank-prefix-env",
    metavar="NAMES",
    help="Variables of this environment to pass through --rank-prefix, separated by commas; NCCL_* is a pattern. "
    "All users see them on the command line. Variables that rankmend sets are always passed.",
)
@click.option(
    *both("--rdzv-id"),
    type=NAME_OR_EMPTY,
    help="TORCHELASTIC_RUN_ID; also names the job if --job and --checkpoint-dir don't.",
)
@click.option(*both("--rdzv-backend"), hidden=True)
@click.option(*both("--rdzv-conf"), hidden=True)
@click.option(*both("--monitor-interval"), type=float, hidden=True)
@click.option(
    *both("--start-method"), type=click.Choice(("spawn", "fork", "forkserver")), hidden=True
)
@click.option(*both("--node-rank"), type=click.IntRange(min=0), hidden=True)
@click.option(
    *both("--local-addr"),
    metavar="ADDRESS",
    help="Address at which other nodes reach this one. [default: the source address of the route to the controller]",
)
@click.option(*both("--event-log-handler"), hidden=True)
@click.option(
    *both("--shutdown-timeout"),
    type=DURATION,
    help="Same as --grace; --grace wins if both are given.",
)
@click.option(
    *both("--signals-to-handle"),
    metavar="NAMES",
    default=SIGNALS,
    show_default=True,
    help="Signals that trigger a planned stop.",
)
@click.option(
    *both("--virtual-local-rank"),
    is_flag=True,
    help="Show each rank only its own GPU (LOCAL_RANK=0, CUDA_VISIBLE_DEVICES).",
)
@click.option(
    *both("--numa-binding"),
    type=click.Choice(NUMA_MODES),
    help="Bind each rank to the CPUs near its GPU, chosen as PyTorch does.",
)
@click.option(*both("--logs-specs"), hidden=True)
@click.option("--use-env", "--use_env", "use_env", is_flag=True, hidden=True, expose_value=False)
@click.option(
    *both("--role"), default="default", show_default=True, help="ROLE_NAME for the ranks."
)
@click.option(
    *both("--master-addr"),
    help="MASTER_ADDR for the ranks; with --nnodes, same as --rdzv-endpoint. [default: 127.0.0.1]",
)
@click.option(
    *both("--master-port"),
    type=click.IntRange(1, 65535),
    help="Fixed MASTER_PORT. [default: a fresh port from --port-range for each attempt]",
)
@click.option("--port-range", metavar="A-B", help="Range from which MASTER_PORT is chosen.")
@click.option(
    "--store",
    type=click.Choice(["auto", "launcher", "ranks"]),
    default="auto",
    show_default=True,
    help="Which process hosts the rendezvous store.",
)
@click.option(
    "--standby",
    metavar="MODULES",
    help="Keep one pre-warmed process per rank with these modules imported (e.g. torch), so ranks restart faster.",
)
@click.option(
    "--fork-server/--no-fork-server",
    default=None,
    help="Keep one process per node that imports what Python ranks import, and forks them. "
    "[default: on, unless --standby is given]",
)
@click.option(
    "--snapshots/--no-snapshots",
    default=True,
    show_default=True,
    help="Keep in memory what the script passes to rankmend.snapshot(), and continue from it "
    "after a failure.",
)
@click.option(
    "--snapshot-copies",
    metavar="N",
    type=click.IntRange(0, 8),
    help="Keep copies of each snapshot in the memory of N other nodes, so that N nodes can "
    "be lost at once. "
    "[default: 1 where there are several nodes]",
)
@click.option(
    "--snapshot-copy-rate",
    "copy_rate_bytes_per_s",
    metavar="RATE",
    type=RATE,
    help="Send these copies no faster, in bytes per second and node: 500M, 2G; 0 is no limit. "
    "[default: 5 % of the link's speed]",
)
@click.option(
    *both("--log-dir"),
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the log files of -r and -t; each run creates its own subfolder.",
)
@click.option(
    "-r",
    *both("--redirects"),
    default="0",
    help="Redirect output to files: 0 none, 1 stdout, 2 stderr, 3 both, or per local rank, e.g. 0:3,1:2.",
)
@click.option(
    "-t", *both("--tee"), default="0", help="Copy output to files as well; same form as -r."
)
@click.option(
    *both("--duplicate-stdout-filters"),
    metavar="TEXT,TEXT",
    help="Copy stdout lines that contain one of these texts to a file; write ,, for a comma.",
)
@click.option(*both("--duplicate-stderr-filters"), metavar="TEXT,TEXT", help="Same for stderr.")
@click.option(
    *both("--local-ranks-filter"),
    metavar="0,1",
    help="Show only these local ranks on the console.",
)
@click.option(
    "--prefix/--no-prefix", default=True, help="Prefix each line of a rank's output with [rank N]."
)
@click.option(
    "--job",
    metavar="NAME",
    type=NAME,
    help="Name that identifies the job across restarts. [default: the script's folder and name, as in gpt2-train]",
)
@click.option(
    "--checkpoint-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the script writes its checkpoints; ranks restart from the newest valid one.",
)
@click.option(
    "--checkpoint-marker",
    metavar="NAME",
    help="File that the script writes last into a checkpoint folder. [default: by format]",
)
@checkpoint_name_option
@click.option(
    "--checkpoint-check-rate",
    "check_rate_bytes_per_s",
    metavar="RATE",
    type=RATE,
    help="Read checkpoints no faster than this during training, in bytes per second: 500M, 2G; 0 is no limit. "
    "[default: 12.5M for each CPU, at most 200M]",
)
@click.option(
    "--checkpoint-check-wait",
    "check_wait_s",
    type=WAIT,
    help="How long a restart waits for the content of checkpoints to be checked, beyond their structure; the rest is checked while "
    "the ranks restore. [default: 15s]",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Local folder for journals. [default: ~/.local/state/rankmend]",
)
@click.option(
    "--time-limit", type=DURATION, help="Stop the job after this long, leaving it time to save."
)
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    help="Time between SIGTERM and SIGKILL in a planned stop. [default: 60s]",
)
@click.option(
    "--hang-min",
    "hang_min_s",
    type=DURATION,
    help="Never report ranks as hung before this long. [default: 5m]",
)
@click.option(
    "--hang-max",
    "hang_max_s",
    type=DURATION,
    help="Always report ranks as hung after this long. [default: 30m]",
)
@click.option(
    "--hang-multiple",
    type=click.FloatRange(min=2),
    help="Report ranks as hung after this many times the job's own step time. [default: 20]",
)
@click.option(
    "--hang-stopped",
    "--hang-stopped-s",
    "hang_stopped_s",
    type=DURATION,
    help="How long a rank may be stopped or a zombie before it counts as hung. [default: 5s]",
)
@click.option("--no-hang-detection", is_flag=True, help="Disable hang detection.")
@click.option(
    "--auto/--no-auto", default=True, help="Count the steps of an unmodified PyTorch script."
)
@click.option(
    "--step-work",
    metavar="flops=F,tokens=T,...",
    help="Work of all ranks together in one step, for throughput and MFU in `rankmend report`.",
)
@click.option("--agent-socket", type=click.Path(path_type=Path), help="Socket of the node agent.")
@click.option(
    "--agent-url", help="URL of the node agent's metrics. [default: http://127.0.0.1:9476/metrics]"
)
@click.option(
    "--observe",
    is_flag=True,
    help="Only watch: journal what rankmend would do. A rank that fails ends the job, as with torchrun.",
)
@click.option(
    "--drills",
    is_flag=True,
    help="Let `rankmend inject` and `rankmend drill` break this job on purpose.",
)
@click.option(
    "--preflight",
    type=click.Choice(["quick", "job"]),
    help="Put this node under load before the ranks start, for at most 60 s or 5 min; a node that fails gets no ranks.",
)
@click.option(
    "--preflight-baseline",
    type=click.Path(path_type=Path),
    help="File or folder with the results of other nodes (rankmend preflight merge).",
)
@click.option("--reset-budgets", is_flag=True, help="Reset the job's restart budget.")
@click.option(
    "--start-from-scratch",
    is_flag=True,
    help="Start from the beginning if no checkpoint can be restored, instead of waiting for one.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Take over the checkpoint folder from an owner that died without releasing it.",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with [policy] and [hang] tables.",
)
@click.option(
    "--quiet",
    "-q",
    is_flag=True,
    help="Of rankmend's own messages, print only warnings and errors.",
)
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Start the ranks of a training job, and restart them when one fails or hangs.

    TARGET is a script, a module (-m) or a program, with its ARGUMENTS. {checkpoint} in an
    argument becomes the path of the checkpoint to resume from; without one, the argument is left out.
    {checkpoint_dir}, {checkpoint_step} and {checkpoint_tag} become its folder, step and name, for
    frameworks that want these separately.

    Exit codes: 0 all ranks finished; when rankmend gives up, the exit code of the first failed rank
    (128 + N if signal N killed it); 93 a rank asked not to be restarted; 124 time limit; 128 + N stopped
    by signal N (130 SIGINT, 143 SIGTERM); 2 wrong usage or configuration; 69 this node failed its pre-flight check;
    75 another launcher holds the job.
    """
    from rankmend import console
    from recovery.launcher.run.options import Mode, RunOptions, choose_mode

    level, baseline = options.pop("preflight"), options.pop("preflight_baseline")
    if level is None and options["grow_every_s"] is not None:
        level = "quick"  # only a node that has passed it is taken into a job that trains
    if level is None:
        console.take_over()
    try:
        warn_unknown_variables(context)
        for name in _IGNORED:
            _warn_ignored(context, name, options.pop(name))
        _leave_meeting_to_controller(context, options)
        _take_controller(context, options)
        _warn_unused_conf(RunOptions(**options))
        requested = _take_from_slurm(context, RunOptions(**options))
        _warn_of_other_launcher(requested)
        mode = choose_mode(requested)
        if level is not None:
            from rankmend.cli.preflights.run_preflight import check_first

            requested = check_first(level, baseline, requested)
            console.take_over()  # it may start a thread, and the check forks
        if mode is Mode.STANDALONE:
            for name in _IGNORED_ALONE:
                _warn_ignored(context, name, options[name])
            if requested.nnodes.startswith("1:") and not requested.quiet:
                echo(
                    f"rankmend: --standalone waits for no other node of --nnodes {requested.nnodes}",
                    err=True,
                )
            from recovery.launcher.run.one_node import run_standalone

            code = run_standalone(requested, os.environ)
        elif mode is Mode.MEETING:
            from recovery.launcher.run.meeting import run_meeting

            code = run_meeting(requested, os.environ)
        else:
            from recovery.launcher.run.many_nodes import run_with_service

            code = run_with_service(requested, os.environ)
    except JobHeldError as error:
        echo(f"rankmend: {error}", err=True)
        code = 75
    except (ConfigError, JournalError) as error:
        echo(f"rankmend: {error}", err=True)
        code = 2
    except RankmendError as error:
        echo(f"rankmend: {error}", err=True)
        code = 1
    sys.exit(code)


def _take_controller(context: click.Context, options: dict[str, Any]) -> None:
    """Leave out a controller that only a variable names where an option says otherwise; else say where it is from."""
    source = context.get_parameter_source
    if options["controller"] is None or source("controller") is not ParameterSource.ENVIRONMENT:
        return
    if any(
        options[name] and source(name) is not ParameterSource.DEFAULT for name in _WITHOUT_SERVICE
    ):
        options["controller"] = None
    elif not options["quiet"]:
        echo(
            f"rankmend: the controller is {printable(options['controller'])} ({_CONTROLLER_VARIABLE}; "
            f"--standalone runs a job of one node without it)",
            err=True,
        )


def _leave_meeting_to_controller(context: click.Context, options: dict[str, Any]) -> None:
    """Take no meeting place from variables where a controller is given: operators of Kubernetes set them for torchrun."""
    source = context.get_parameter_source("rdzv_endpoint")
    if options["controller"] is not None and source is ParameterSource.ENVIRONMENT:
        _warn_ignored(context, "rdzv_endpoint", options["rdzv_endpoint"])
        options["rdzv_endpoint"] = None


def _take_from_slurm(context: click.Context, requested: "RunOptions") -> "RunOptions":
    if not requested.slurm or not os.environ.get("SLURM_JOB_ID"):
        return requested
    from recovery.launcher.run.slurm.taking import take_from_slurm

    source = context.get_parameter_source
    given = {name for name in context.params if source(name) is not ParameterSource.DEFAULT}

    def say(text: str) -> None:
        if not requested.quiet:
            echo(f"rankmend: {text}", err=True)

    return take_from_slurm(requested, given, os.environ, say)


def _warn_of_other_launcher(requested: "RunOptions") -> None:
    from rankmend.hook.nested_launchers import named_by

    name = named_by(requested.target, requested.is_module and not requested.run_path)
    if name is not None:
        echo(
            f"rankmend: {printable(name)} starts ranks of its own, which rankmend watches and restarts as one rank. To have each rank "
            "watched, give the script itself: rankmend run --nproc-per-node N SCRIPT",
            err=True,
        )


def _warn_unused_conf(requested: "RunOptions") -> None:
    """Warn about settings of torchrun's meeting that change nothing here."""
    from recovery.launcher.run.options import read_rdzv_conf

    unused = sorted(read_rdzv_conf(requested).keys() - {"is_host", "last_call_timeout"})
    if unused and requested.nnodes not in ("1", "1:1") and not requested.standalone:
        echo(
            f"rankmend: --rdzv-conf {printable(', '.join(unused))}: no meaning here, ignored",
            err=True,
        )


def _warn_ignored(context: click.Context, name: str, value: object) -> None:
    if value is None:
        return
    said = "--" + name.replace("_", "-")
    if context.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
        said = VARIABLE_PREFIX + name.upper()
    echo(f"rankmend: {said} has no meaning here and is ignored", err=True)


read_variables_of_torchrun(run)
