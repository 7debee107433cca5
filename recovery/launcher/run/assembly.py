"""Builds the parts of a launcher from the command line, on one node as on several."""

import logging
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from detectors.wording import counted
from rankmend.agent_socket import socket_paths
from rankmend.clock import Clock
from rankmend.errors import ConfigError, JobHeldError, LaunchError
from rankmend.printable import printable, printable_lines
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.finder import CheckpointFinder
from recovery.checkpoints.idle_reads import IdleReads
from recovery.checkpoints.manifests import Manifests
from recovery.checkpoints.names import refuse_url
from recovery.checkpoints.pins import CheckpointPins
from recovery.checkpoints.priority import check_rate
from recovery.launcher.agent_link import AgentLink
from recovery.launcher.host.hardware import PAGE_URL, HardwareWatch, read_agent_page
from recovery.launcher.host.interpreter import count_devices, read_bindings
from recovery.launcher.processes.process_list import read_list
from recovery.launcher.processes.process_tree import ProcessRef, fence_leftovers
from recovery.launcher.processes.standing import ForeignMarks, identify
from recovery.launcher.processes.written_files import WrittenFiles
from recovery.launcher.ranks.command import (
    PLACEHOLDERS,
    RankCommand,
    build_command,
    build_contained_command,
    choose_interpreter,
    may_use_torch,
)
from recovery.launcher.ranks.contained import parse_prefix
from recovery.launcher.ranks.fork_server import ForkServer
from recovery.launcher.ranks.rank_imports import KeptImports, read_first_imports
from recovery.launcher.ranks.runtime_folder import RuntimeFolder, default_root
from recovery.launcher.ranks.standbys import StandbyPool
from recovery.launcher.ranks.waiting_processes import WaitingProcesses
from recovery.launcher.rendezvous.ports import PortRange, read_default_range
from recovery.launcher.rendezvous.rendezvous_store import RendezvousStore, probe_torch
from recovery.launcher.run.options import RunOptions, count_ranks
from recovery.messages.candidates import CheckpointSettings

log = logging.getLogger(__name__)

_SHOWN_MAX = 8
LEFTOVER_S_MAX = 60.0  # as policy.fence_timeout_s: a process that lives longer will not go


def say(text: str) -> None:
    """Print one message on stderr. A launcher's stderr never blocks (`rankmend.console`)."""
    try:
        sys.stderr.write(f"rankmend: {printable_lines(text)}\n")
        sys.stderr.flush()
    except OSError:
        return


def make_command(options: RunOptions, environment: Mapping[str, str]) -> RankCommand:
    if options.checkpoint_dir is None:
        _refuse_placeholder(options.arguments)
    else:
        refuse_url(str(options.checkpoint_dir))
    if options.rank_prefix is not None:
        return _make_contained_command(options, options.rank_prefix, environment)
    if options.rank_prefix_env is not None:
        raise ConfigError("--rank-prefix-env is for --rank-prefix, which was not given")
    interpreter = choose_interpreter(
        options.python_path, environment, sys.executable, Path(sys.prefix)
    )
    return build_command(
        options.target,
        options.arguments,
        interpreter,
        is_module=options.is_module,
        no_python=options.no_python,
        is_script=options.run_path,
    )


def _refuse_placeholder(arguments: Sequence[str]) -> None:
    """Refuse a placeholder that would never be filled in: each restart would begin at step 0."""
    for name in PLACEHOLDERS:
        if any(name in argument for argument in arguments):
            raise ConfigError(
                f"{name} is among the script's arguments, and there is no --checkpoint-dir to find a checkpoint in: "
                "name the folder where the script saves"
            )


def _make_contained_command(
    options: RunOptions, prefix: str, environment: Mapping[str, str]
) -> RankCommand:
    """Return the command behind --rank-prefix; nothing of this host's Python counts in there."""
    here_only = {
        "--standby": options.standby is not None,
        "--fork-server": options.fork_server is True,
        "--numa-binding": options.numa_binding is not None,
        "--store launcher": options.store == "launcher",
    }
    for name, is_given in here_only.items():
        if is_given:
            raise ConfigError(
                f"{name} needs ranks that start on the host, not behind --rank-prefix"
            )
    return build_contained_command(
        options.target,
        options.arguments,
        options.python_path or environment.get("PYTHON_EXEC") or "python3",
        parse_prefix(prefix, options.rank_prefix_env, environment.get("PATH")),
        is_module=options.is_module,
        no_python=options.no_python,
        is_script=options.run_path,
    )


def count_local_ranks(
    options: RunOptions, environment: Mapping[str, str], command: RankCommand
) -> int:
    """Return the number of ranks on this node, counting devices as the ranks see them."""
    python = command.interpreter.path if command.interpreter else sys.executable
    return count_ranks(
        options.nproc_per_node, environment, partial(count_devices, python, environment)
    )


def choose_processors(
    options: RunOptions, environment: Mapping[str, str], command: RankCommand, count: int
) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each local rank, or nothing without --numa-binding."""
    if options.numa_binding is None:
        return ()
    python = command.interpreter.path if command.interpreter else sys.executable
    return read_bindings(python, environment, options.numa_binding, count)


def standard_input() -> int | None:
    """Return this process's standard input for the ranks, which inherit it as under torchrun."""
    try:
        is_null = os.path.samestat(os.fstat(0), os.stat(os.devnull))  # noqa: PTH116
    except OSError:
        return None
    return None if is_null else 0


def port_range(options: RunOptions) -> PortRange:
    return PortRange.parse(options.port_range) if options.port_range else read_default_range()


def clear_leftovers(
    job_id: str, clock: Clock, runtime: RuntimeFolder, node: str | None = None
) -> None:
    """Prove that no process of an earlier launcher of this job (and node) is left."""
    listed = read_list(str(runtime.process_list))
    until_s = clock.now_s() + LEFTOVER_S_MAX
    is_foreign = ForeignMarks(identify())
    left = fence_leftovers(job_id, None, until_s, node=node, listed=listed, is_foreign=is_foreign)
    if left.foreign:
        raise JobHeldError(_held_by(left.foreign, is_foreign))
    if left.killed:
        say(
            f"killed {counted(len(left.killed), 'process', 'processes')} that an earlier launcher left behind"
        )
    if left.alive:
        named = ", ".join(f"{item.pid} ({item.note or item.letter})" for item in left.alive)
        raise LaunchError(f"processes of an earlier start of this job remain: {named}")


def clear_former(former_id: str, job_id: str, clock: Clock) -> None:
    """Do the same for the job from which the checkpoint folder was taken, if it has another id."""
    try:
        former = uuid.UUID(former_id)
    except ValueError:
        return  # that job had no id yet
    if former_id != job_id:
        runtime = RuntimeFolder(default_root(), former)
        clear_leftovers(former_id, clock, runtime)
        runtime.remove()


def _held_by(foreign: Sequence[ProcessRef], is_foreign: ForeignMarks) -> str:
    """Return which launcher's processes carry the mark of this job, and what to do about them."""
    launcher = is_foreign.launcher(foreign[0].launcher)
    whose = f"process {launcher.pid}" if launcher is not None else "an unknown process"
    pids = ", ".join(str(ref.pid) for ref in foreign[:_SHOWN_MAX])
    return (
        f"another launcher of this job may be alive ({whose}, perhaps in another container), and its "
        f"processes run here: {pids}. Stop that launcher first; nothing was killed"
    )


def make_store(
    options: RunOptions,
    environment: Mapping[str, str],
    command: RankCommand,
    clock: Clock,
    ports: PortRange | int,
    address: str,
    bind_address: str,
    imports_torch: bool | None = None,
) -> tuple[RendezvousStore, bool]:
    """Host the ranks' rendezvous if they run PyTorch, else leave it to rank 0.

    ``imports_torch``: by an earlier run or the script itself; None: not known, so the process starts now,
    beside the ranks' imports. Where the fork server is about to have torch, the first attempt has it forked.
    Also return whether that PyTorch is an old one, whose flight recorder is off by default.
    """
    store = RendezvousStore(ports, clock, address=address, bind_address=bind_address)
    is_auto = options.store == "auto"
    if options.store == "ranks" or (is_auto and not may_use_torch(command)):
        return store, False
    python = command.interpreter.path if command.interpreter else sys.executable
    is_old = False
    try:
        torch = probe_torch(python, environment)
        is_old = torch is not None and torch.is_old
        if torch is not None and is_auto and imports_torch is False:
            pass  # no rank would come
        elif torch is not None and is_auto and torch.can_host and imports_torch:
            store.prepare(python, environment, torch)
        elif torch is not None and (torch.can_host or options.store == "launcher"):
            store.start(python, environment, torch)
        elif options.store == "launcher":
            raise LaunchError(f"--store launcher: {python} has no torch")
    except LaunchError as error:
        if options.store == "launcher":
            raise
        log.warning("%s; rank 0 hosts the rendezvous store", error)
    return store, is_old


def make_standbys(
    options: RunOptions,
    environment: Mapping[str, str],
    command: RankCommand,
    runtime: RuntimeFolder,
    count: int,
    job_id: str,
    clock: Clock,
    node: str | None = None,
) -> StandbyPool | None:
    """Return the standbys, not yet started: those requested, else those that stand in for a fork server."""
    modules = options.standby
    if command.interpreter is None:
        if modules is not None:
            raise ConfigError("--standby needs ranks that are Python processes")
        return None
    if modules is None and not may_fork(options):
        return None
    return StandbyPool(
        command.interpreter.path,
        None if modules is None else ",".join(module_names(modules)),
        count,
        job_id,
        environment,
        runtime.path,
        runtime.site,
        clock,
        node,
    )


def module_names(modules: str) -> list[str]:
    """Return the names of a list such as ``torch,numpy``. Raises ConfigError."""
    names = [name.strip() for name in modules.split(",") if name.strip()]
    if not names or not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ConfigError(f"--standby {modules!r} is not a list of modules such as torch,numpy")
    return names


def may_fork(options: RunOptions) -> bool:
    """Return whether to fork ranks; without an option they are forked unless there are standbys."""
    return options.standby is None if options.fork_server is None else options.fork_server


def make_fork_server(
    options: RunOptions,
    environment: Mapping[str, str],
    command: RankCommand,
    runtime: RuntimeFolder,
    count: int,
    job_id: str,
    clock: Clock,
    node: str | None = None,
    *,
    kept: KeptImports | None = None,
) -> ForkServer | None:
    """Return the fork server, not yet started, of ranks that are Python processes."""
    if not may_fork(options) or command.interpreter is None:
        return None
    return ForkServer(
        command.interpreter.path,
        count,
        job_id,
        environment,
        runtime.path,
        runtime.site,
        clock,
        node,
        kept=kept,
        first=() if command.script is None else read_first_imports(Path(command.script)),
        say=None if options.quiet else say,
    )


def make_waiting(
    options: RunOptions,
    environment: Mapping[str, str],
    command: RankCommand,
    runtime: RuntimeFolder,
    count: int,
    job_id: str,
    clock: Clock,
    node: str | None = None,
    *,
    state: Path,
) -> WaitingProcesses | None:
    """Return the processes that wait to become ranks or to fork them, if there are any. ``state``: its folder."""
    parts = (options, environment, command, runtime, count, job_id, clock, node)
    standbys = make_standbys(*parts)
    if command.interpreter is None:  # and there are no standbys
        return None
    retained = KeptImports(state, command, Path.cwd(), clock)
    server = make_fork_server(*parts, kept=retained)
    if standbys is None and server is None:
        return None
    return WaitingProcesses(standbys, server)


def make_watch(
    options: RunOptions,
    clock: Clock,
    job_id: str,
    node: str | None = None,
    *,
    world_size: int = 0,
) -> CheckpointWatch | None:
    """Return the background search for checkpoints, not yet started.

    ``node``: of which the ranks are, where several nodes of a job are on one machine; ``world_size``: 0 where it may change.
    """
    if options.checkpoint_dir is None:
        return None
    rate = options.check_rate_bytes_per_s
    usual = CheckpointSettings()
    wait_s = options.check_wait_s
    settings = CheckpointSettings(
        check_wait_s=usual.check_wait_s if wait_s is None else wait_s,
        marker=options.checkpoint_marker or None,
        names=options.checkpoint_names,
        world_size=world_size,
        check_rate_bytes_per_s=check_rate(len(os.sched_getaffinity(0))) if rate is None else rate,
    )
    folder = options.checkpoint_dir.absolute()
    manifests = Manifests(folder, is_writer=True)
    written = WrittenFiles(str(folder), job_id, node)
    finder = CheckpointFinder(
        *(folder, settings, clock, manifests, say, lambda: written.paths), IdleReads(clock)
    )
    return CheckpointWatch(finder, clock, written)


def checkpoint_folder(options: RunOptions) -> str:
    """Return where checkpoints are looked for, in words for people; empty: nowhere."""
    folder = options.checkpoint_dir
    return "" if folder is None else printable(str(folder.absolute()))


def make_pins(options: RunOptions, clock: Clock) -> CheckpointPins | None:
    """Return what holds the checkpoint that is restored, where the job has any."""
    if options.checkpoint_dir is None:
        return None
    return CheckpointPins(options.checkpoint_dir.absolute(), clock, say)


def make_hardware(options: RunOptions, job_id: str, clock: Clock) -> HardwareWatch:
    return HardwareWatch(job_id, clock, partial(read_agent_page, options.agent_url or PAGE_URL))


def make_agent_link(options: RunOptions, environment: Mapping[str, str], clock: Clock) -> AgentLink:
    named = options.agent_socket
    return AgentLink([named] if named else socket_paths(environment), clock)
