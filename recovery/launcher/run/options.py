"""Turns the command line of `rankmend run` into the values that its parts need."""

import errno
import logging
import os
import re
import secrets
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from detectors.hang.live import HungLimits
from detectors.replicas.layout import ParallelLayout, parse_parallel
from rankmend.errors import ConfigError, LaunchError
from rankmend.toml_file import TomlFile, convert_table, refuse_unknown, table_of
from recovery.journal.folder.job_key import default_title
from recovery.journal.limits import Policy
from recovery.launcher.ranks.rank_output import OutputPlan, parse_streams
from recovery.messages.exchange import STOP_SIGNALS

log = logging.getLogger(__name__)

_BYTES_MAX: Final = 1024 * 1024

NODES_MAX: Final = 20_000  # the service's limit, too (recovery/api/wire.py)
MEETING_PORT: Final = 29400  # torchrun's own default for c10d
_DISK_TROUBLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
GRACE_S: Final = 60.0
PREFIX_TEMPLATE: Final = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_LAST_CALL: Final = "last_call_timeout"
LAST_CALL_S_MAX: Final = 300.0  # ten times `Policy.join_wait_s`, which a service allows, too
_SHUTDOWN_TIMEOUT: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_NEVER_S = 1e12

NEVER_HUNG = HungLimits(
    floor_s=_NEVER_S, ceil_s=_NEVER_S, stopped_floor_s=_NEVER_S, startup_s=_NEVER_S
)


def read_policy(path: Path | None) -> Policy:
    """Return the limits in a TOML file on top of the defaults; without a file, the defaults.

    The keys of its tables [policy] and [hang] are the fields of `recovery.journal.limits.Policy`
    and `detectors.hang.live.HungLimits`, which contain the defaults with their reasons. An unknown
    key is an error.
    """
    if path is None:
        return Policy()
    file = TomlFile(path, _BYTES_MAX, "the configuration")
    try:
        refuse_unknown("the file", (), file.tables, ("policy", "hang"))
        hung = convert_table(table_of(file.tables, "hang"), HungLimits, ("hang",))
        table = table_of(file.tables, "policy")
        return replace(convert_table(table, Policy, ("policy",), hidden=("hung",)), hung=hung)
    except ConfigError as error:
        raise file.named(error) from error


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line of `rankmend run`, parsed; meanings in rankmend/cli/run.py."""

    target: str
    arguments: tuple[str, ...] = ()
    nproc_per_node: str = "1"
    nnodes: str = "1"
    spares: int = 0  # of these nodes
    slurm: bool = True  # take from a Slurm step what is not given
    slurm_requeue_s: float | None = None  # seconds without a usable node; None: only reported
    slurm_run: str = (
        ""  # names this start of a step, where Slurm's nodes choose their meeting place
    )
    standalone: bool = False
    node_rank: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_conf: str | None = None
    controller: str | None = None  # URLs, with commas between
    token_file: Path | None = None
    ca_file: Path | None = None
    pod_token_file: Path | None = None  # None: POD_TOKEN_FILE, where that is there
    grow_every_s: float | None = None  # None: as the policy has it, which is never
    passed_preflight: bool = False  # this node, just now; no option
    shrink_multiple: int | None = None  # None: 1 for --nnodes MIN:MAX, as torchrun has it
    parallel: str | None = None  # tp=2,dp=4
    sharded_parts: str | None = None  # with commas between
    local_addr: str | None = None
    node_name: str | None = None
    max_restarts: int | None = None
    is_module: bool = False
    no_python: bool = False
    python_path: str | None = None
    rank_prefix: str | None = None  # what runs in front of each rank, as a shell would split it
    rank_prefix_env: str | None = None
    rdzv_id: str | None = None
    role: str = "default"
    master_addr: str | None = None
    master_port: int | None = None
    port_range: str | None = None
    store: str = "auto"
    standby: str | None = None
    fork_server: bool | None = None  # None: unless there are standbys
    snapshots: bool = True
    snapshot_copies: int | None = None
    copy_rate_bytes_per_s: float | None = None  # 0: no limit
    log_dir: Path | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str | None = None
    prefix: bool = True
    job: str | None = None
    checkpoint_dir: Path | None = None
    checkpoint_marker: str | None = None
    checkpoint_names: tuple[str, ...] = ()  # shell patterns; `!PATTERN` leaves out
    check_rate_bytes_per_s: float | None = None
    check_wait_s: float | None = None
    state_dir: Path | None = None
    time_limit: float | None = None
    grace_s: float | None = None
    shutdown_timeout: float | None = None  # seconds; torchrun's name for the grace
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    logs_specs: str | None = None
    run_path: bool = False
    duplicate_stdout_filters: str | None = None
    duplicate_stderr_filters: str | None = None
    hang_min_s: float | None = None
    hang_max_s: float | None = None
    hang_multiple: float | None = None
    hang_stopped_s: float | None = None
    no_hang_detection: bool = False
    auto: bool = True
    step_work: str | None = None  # recovery.launcher.ranks.launch_plan
    agent_socket: Path | None = None
    agent_url: str | None = None
    observe: bool = False
    drills: bool = False  # `rankmend inject` may break this job
    reset_budgets: bool = False
    start_from_scratch: bool = False
    take_over: bool = False
    config_path: Path | None = None
    quiet: bool = False


class Mode(Enum):
    """The host of the controller."""

    STANDALONE = "standalone"  # this process, for this node alone
    MEETING = "meeting"  # the launcher at the rendezvous endpoint
    SERVICE = "service"  # `rankmend controller`


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the launchers of one job meet, without a service."""

    host: str
    port: int
    # whether this launcher hosts; None: the launcher on the machine with the address does
    is_host: bool | None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def choose_mode(options: RunOptions) -> Mode:
    """Return who hosts the controller, or raise ConfigError where options contradict each other."""
    least, most = node_range(options)
    last_call_s(options)  # refused before anything starts
    _refuse_growth(options)
    if options.rdzv_backend not in (None, "c10d", "static") and not options.standalone:
        raise ConfigError(  # on one node, too, and with a service: torchrun would fail there as well
            f"--rdzv-backend {options.rdzv_backend}: rankmend hosts the rendezvous itself; leave the option out "
            f"or give c10d, with --rdzv-endpoint HOST:PORT or --controller URL on several nodes"
        )
    if options.controller is not None:
        if options.standalone or options.rdzv_endpoint:
            other = "--standalone" if options.standalone else "--rdzv-endpoint"
            raise ConfigError(f"--controller and {other} are mutually exclusive")
        return Mode.SERVICE
    if options.standalone and (least > 1 or options.spares):
        raise ConfigError(
            f"--standalone is for one node, but --nnodes is {options.nnodes}"
            + (f" with --spares {options.spares}" if options.spares else "")
        )
    return Mode.STANDALONE if most == 1 or options.standalone else Mode.MEETING


def _refuse_growth(options: RunOptions) -> None:
    """Raise ConfigError where --grow-every could never have an effect."""
    if options.grow_every_s is None:
        return
    if ":" not in options.nnodes or options.standalone:
        raise ConfigError(
            f"--grow-every takes in nodes that join later, up to MAX: give --nnodes MIN:MAX, not {options.nnodes}"
            + (" with --standalone" if options.standalone else "")
        )
    if options.checkpoint_dir is None:
        raise ConfigError(
            "--grow-every restarts the job right after a save: name with --checkpoint-dir the folder where it saves"
        )


def make_layout(options: RunOptions) -> ParallelLayout | None:
    """Return the parallel sizes of --parallel, or None."""
    if options.parallel is not None:
        try:
            return parse_parallel(options.parallel, options.sharded_parts or "")
        except ConfigError as error:
            raise ConfigError(f"--parallel {options.parallel!r:.80}: {error}") from error
    if options.sharded_parts is not None:
        raise ConfigError(
            f"--sharded-parts {options.sharded_parts} names what replicas divide among them: "
            "declare with --parallel which ranks are replicas"
        )
    return None


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How many nodes a job takes, and on how many of them it trains."""

    least: int
    most: int  # with the spares
    spares: int  # the job never trains on more than ``most - spares`` nodes
    multiple: int  # the number of ranks is a multiple of it; 0: ``least`` nodes train, always


def count_nodes(options: RunOptions) -> NodeCounts:
    """Return the numbers of nodes of --nnodes, --spares and --shrink-multiple, or raise ConfigError.

    ``MIN:MAX`` trains on all nodes that join, up to MAX, as torchrun does (`torch.distributed.run`: "MIN:MAX
    nodes"); --spares holds back some of MAX. A plain number is a fixed size.
    """
    least, most = parse_nodes(options.nnodes)
    spares, multiple = options.spares, options.shrink_multiple
    if not 0 <= spares < most:
        raise ConfigError(
            f"--spares {spares}: of {most} nodes at least one has to train, so at most "
            f"{most - 1} can be spare"
        )
    is_range = ":" in options.nnodes
    if multiple is not None and multiple < 0:
        raise ConfigError(f"--shrink-multiple {multiple}: it can't be negative")
    if multiple and not is_range:
        raise ConfigError(
            f"--shrink-multiple needs --nnodes MIN:MAX, but --nnodes is {options.nnodes}"
        )
    if not is_range:
        return NodeCounts(most - spares, most, spares, 0)
    if most - spares < least:
        raise ConfigError(
            f"--spares {spares} of --nnodes {options.nnodes} leaves {most - spares} nodes to train on, fewer than "
            f"the minimum: give at most {most - least}"
        )
    if multiple == 0:
        raise ConfigError(
            f"--shrink-multiple 0 with --nnodes {options.nnodes}: for a fixed number of nodes give "
            f"--nnodes {most} --spares {most - least}"
            if most > least
            else f"--shrink-multiple 0: give --nnodes {most}"
        )
    return NodeCounts(least, most, spares, multiple or 1)


def node_range(options: RunOptions) -> tuple[int, int]:
    """Return the minimum and maximum of nodes, from --nnodes and --spares."""
    counts = count_nodes(options)
    return counts.least, counts.most


def read_rdzv_conf(options: RunOptions) -> dict[str, str]:
    """Return the settings of --rdzv-conf, ``name=value,...`` in torchrun's form, which quotes may surround.

    Raises ConfigError, as torchrun does, for what has no value.
    """
    found = {}
    for item in (options.rdzv_conf or "").strip("'\"").split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        if name and value:
            found[name] = value
        elif name or value:
            raise ConfigError(f"--rdzv-conf {item.strip()!r:.100}: write it as NAME=VALUE,...")
    return found


def last_call_s(options: RunOptions) -> float | None:
    """Return for how long the first attempt waits for nodes above the minimum; None: as the policy has it.

    torchrun's ``last_call_timeout`` (`torch.distributed.elastic.rendezvous.dynamic_rendezvous`): 30 s by default, as
    `Policy.join_wait_s`.
    """
    text = read_rdzv_conf(options).get(_LAST_CALL)
    if text is None:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= LAST_CALL_S_MAX:
        raise ConfigError(
            f"--rdzv-conf {_LAST_CALL}={text!r:.40} is not a number of seconds from 0 to {LAST_CALL_S_MAX:g}"
        )
    return wait_s


def parse_nodes(text: str) -> tuple[int, int]:
    """Return the minimum and maximum of --nnodes N or MIN:MAX."""
    least, separator, most = text.partition(":")
    if not separator:
        most = least
    if not (text.isascii() and least.isdigit() and most.isdigit() and len(text) <= 11):
        raise ConfigError(f"--nnodes {text!r} is neither a number nor MIN:MAX")
    if not 1 <= int(least) <= int(most) <= NODES_MAX:
        raise ConfigError(f"--nnodes {text}: want 1 <= MIN <= MAX <= {NODES_MAX}")
    return int(least), int(most)


def parse_meeting(options: RunOptions) -> Meeting:
    """Return where the launchers meet, from --rdzv-endpoint or torchrun's older --master-addr."""
    is_host = None
    if (value := read_rdzv_conf(options).get("is_host")) is not None:
        is_host = value.lower() in ("1", "true", "t", "yes", "y")
    if options.rdzv_backend == "static" and options.node_rank is not None:
        is_host = options.node_rank == 0
    if options.rdzv_endpoint:
        host, port = _split_endpoint(options.rdzv_endpoint)
    elif options.master_addr:
        host, port = options.master_addr, options.master_port or MEETING_PORT
        if is_host is None and options.node_rank is not None:
            is_host = options.node_rank == 0
    else:
        raise ConfigError(
            f"--nnodes {options.nnodes}: name the place where the nodes meet, with --rdzv-endpoint HOST:PORT "
            f"(the launcher on HOST then hosts the controller) or with --controller URL"
        )
    return Meeting(host, port, is_host)


def _split_endpoint(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or (":" in host and not host.startswith("[")):  # a bare IPv6 address
        host, port = text, str(MEETING_PORT)
    host = host.strip("[]")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"--rdzv-endpoint {text!r} is not HOST:PORT")
    return host, int(port)


def command_line(options: RunOptions) -> tuple[str, ...]:
    """Return what distinguishes the runs of a sweep: working folder, script and arguments."""
    return (str(Path.cwd()), options.target, *options.arguments)


def title_of(options: RunOptions) -> str:
    """Return what to call the job where nobody has named it."""
    return default_title(Path.cwd(), options.target, is_module=options.is_module)


def grace_s(options: RunOptions, environment: Mapping[str, str]) -> float:
    """Return the time from SIGTERM to SIGKILL: --grace, --shutdown-timeout, torch's variable, 60 s."""
    for given in (options.grace_s, options.shutdown_timeout):
        if given is not None:
            return given
    text = environment.get(_SHUTDOWN_TIMEOUT)
    if not text:
        return GRACE_S
    if not (text.isascii() and text.isdigit() and int(text) < 1e9):
        raise ConfigError(f"{_SHUTDOWN_TIMEOUT}={text!r} is not a number of seconds")
    return float(text)


def stop_signals(options: RunOptions) -> tuple[signal.Signals, ...]:
    """Return the signals that request a planned stop."""
    names = [name.strip() for name in options.signals_to_handle.split(",")]
    for name in names:
        if name not in STOP_SIGNALS:
            known = ", ".join(STOP_SIGNALS)
            raise ConfigError(
                f"--signals-to-handle {options.signals_to_handle!r}: {name!r} is not one of {known}"
            )
    return tuple(signal.Signals[name] for name in dict.fromkeys(names))


def refuse_logs_specs(options: RunOptions) -> None:
    """Refuse a user-defined class for log files: the launcher runs no foreign code."""
    if options.logs_specs not in (None, "default"):
        raise ConfigError(
            f"--logs-specs {options.logs_specs}: rankmend loads no plug-in into its launcher. Choose "
            f"what is logged with --log-dir, --redirects, --tee and --duplicate-stdout-filters"
        )


def count_ranks(
    text: str, environment: Mapping[str, str], count_devices: Callable[[str], int]
) -> int:
    """Return the number of ranks for --nproc-per-node: a number, gpu, xpu, cpu, auto ...

    ``count_devices`` queries the ranks' PyTorch for devices of a kind; that takes seconds, so it is called
    only if the NVIDIA driver's own list doesn't answer.
    """
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    processors = len(os.sched_getaffinity(0))
    if text == "cpu":
        return processors
    if text in ("gpu", "auto") and (gpus := _count_gpus(environment)):
        return gpus
    if not re.fullmatch(r"[a-z][a-z0-9_]{1,31}", text):
        raise ConfigError(
            f"--nproc-per-node {text!r} is not a number above 0, gpu, xpu, cpu or auto"
        )
    try:
        devices = count_devices(text)
    except LaunchError as error:
        if text == "auto":
            return processors
        raise ConfigError(f"--nproc-per-node {text}: {error}") from error
    if not devices and text != "auto":
        raise ConfigError(
            f"--nproc-per-node {text!r}: PyTorch sees no such device here; give a number above 0, gpu, xpu, "
            f"cpu or auto"
        )
    return devices or processors


def _count_gpus(environment: Mapping[str, str]) -> int:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() not in ("", "-1")])
    gpus = Path("/proc/driver/nvidia/gpus")  # the driver makes one folder per GPU
    return len(list(gpus.iterdir())) if gpus.is_dir() else 0


def make_policy(options: RunOptions) -> Policy:
    """Return the limits: the defaults, then --config, then the flags."""
    policy = read_policy(options.config_path)
    given = {
        "multiple": options.hang_multiple,
        "floor_s": options.hang_min_s,
        "ceil_s": options.hang_max_s,
        "stopped_floor_s": options.hang_stopped_s,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if options.hang_max_s is not None:  # settings that the user did not name give way
        for name in ("floor_s", "stopped_floor_s"):
            changes.setdefault(name, min(options.hang_max_s, getattr(policy.hung, name)))
    hung = replace(policy.hung, **changes)
    if options.max_restarts is not None:
        policy = replace(policy, restarts_max=options.max_restarts)
    if (wait_s := last_call_s(options)) is not None:
        policy = replace(policy, join_wait_s=wait_s)
    if options.grow_every_s is not None:
        policy = replace(policy, grow_every_s=options.grow_every_s)
    policy = replace(policy, observe=policy.observe or options.observe)
    return replace(policy, hung=NEVER_HUNG if options.no_hang_detection else hung)


def make_output_plan(options: RunOptions, world_size: int) -> OutputPlan:
    redirects = parse_streams(options.redirects, world_size)
    tee = parse_streams(options.tee, world_size)
    shown = None
    if options.local_ranks_filter is not None:
        words = options.local_ranks_filter.split(",")
        if not all(word.isdigit() for word in words):
            raise ConfigError(
                f"--local-ranks-filter {options.local_ranks_filter!r} is not a list such as 0,1"
            )
        shown = frozenset(int(word) for word in words)
    refuse_logs_specs(options)
    folder = options.log_dir.absolute() if options.log_dir else None
    filters = (
        parse_filters(options.duplicate_stdout_filters),
        parse_filters(options.duplicate_stderr_filters),
    )
    plan = OutputPlan(folder, redirects, tee, shown, options.prefix, filters, role=options.role)
    template = os.environ.get(PREFIX_TEMPLATE)
    return plan if template is None else replace(plan, prefix_template=template)


def parse_filters(text: str | None) -> tuple[bytes, ...]:
    """Return the texts of a comma-separated list; ,, stands for a comma."""
    items = (text or "").replace(",,", "\0").split(",")
    return tuple(item.replace("\0", ",").encode() for item in items if item)


def make_log_folder(plan: OutputPlan, run_name: str) -> OutputPlan:
    """Return the plan with a new folder for this run's log files, if it has any.

    As with torchrun, runs may share --log-dir; without it the folder is a temporary one.
    """
    if not any((*plan.redirects, *plan.tee, *plan.filters)):
        return replace(plan, log_folder=None)
    prefix = re.sub(r"[^\w.-]+", "_", run_name)[:64] + "_"
    try:
        if plan.log_folder is not None:
            plan.log_folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=plan.log_folder))
    except OSError as error:
        where = plan.log_folder or Path(tempfile.gettempdir())
        if error.errno in _DISK_TROUBLE:  # train all the same; the files follow once there is room
            folder = where / f"{prefix}{secrets.token_hex(4)}"
            log.warning(
                "the ranks' output cannot be saved in %s for now: %s", folder, error.strerror
            )
            return replace(plan, log_folder=folder)
        raise ConfigError(
            f"can't make a folder for the ranks' log files in {where}: {error.strerror}; name "
            f"another one with --log-dir"
        ) from error
    return replace(plan, log_folder=folder)
