"""Fills in from Slurm what the command line of `rankmend run` leaves open. docs/use/slurm.md."""

import os
import re
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from detectors.wording import counted
from rankmend.errors import ConfigError
from recovery.launcher.run.options import MEETING_PORT, RunOptions
from recovery.launcher.run.route import route_address
from recovery.launcher.run.slurm.step import SlurmStep, count_allocated, count_gpus, read_step
from recovery.schedulers.slurm.commands import SlurmCommands

ASK_S_MAX: Final = 20.0
_ADDRESS: Final = re.compile(r"(?:^|\s)NodeAddr=([A-Za-z0-9._:-]{1,255})(?:\s|$)")

_SWITCH: Final = "--no-slurm ignores Slurm"
# Each says where the nodes meet, or that they don't.
_MEETING_OPTIONS: Final = frozenset({"rdzv_endpoint", "master_addr", "controller", "standalone"})


def node_address(node: str) -> str:
    """Return a name or an address at which other nodes reach ``node``: where its name means nothing, Slurm's address."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        ask = SlurmCommands(ASK_S_MAX, os.environ)
        return parse_address(node, ask(["scontrol", "--oneliner", "show", "node", node]))
    return node


def parse_address(node: str, reported: str) -> str:
    """Return the address of a node in what `scontrol show node` says of it."""
    found = _ADDRESS.search(reported)
    if found is None:
        raise ConfigError(
            f"node {node} of the Slurm job has no address: its name can't be resolved, and Slurm names "
            f"none; name the place where the nodes meet with --rdzv-endpoint HOST:PORT"
        )
    return found[1]


def take_from_slurm(
    options: RunOptions,
    given: Collection[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> RunOptions:
    """Return the options with what is not ``given`` taken from the Slurm step, and say what was taken."""
    step = read_step(environment)
    if step is None:
        _hint_at_srun(options, given, environment, say)
        return options
    if _tasks_a_node(step) > 1:
        _refuse_tasks(step, options, say)
        return options
    taken: list[str] = []
    if "nnodes" not in given and not options.standalone:
        options = replace(options, nnodes=str(len(step.nodes)))
        taken.append(_nodes_text(step, options))
    if "nproc_per_node" not in given and (gpus := count_gpus(environment)):
        options = replace(options, nproc_per_node=str(gpus))
        taken.append(f"a rank for each of {gpus} GPUs" if gpus > 1 else "a rank for its GPU")
    is_meeting = len(step.nodes) > 1 and options.nnodes != "1"
    if is_meeting and not any(_is_given(name, options) for name in _MEETING_OPTIONS):
        options = _meet(options, step)
        taken.append(f"they meet at {step.nodes[0]}")
    if taken and step.is_first:  # the others take the same
        say(f"from {_named(step)}: {', '.join(taken)} ({_SWITCH})")
    return options


def _meet(options: RunOptions, step: SlurmStep) -> RunOptions:
    """Return the options with the first node of the step as the host of the controller."""
    host = node_address(step.nodes[0])
    other = host if not step.is_first else node_address(step.nodes[1])
    return replace(
        options,
        rdzv_endpoint=f"[{host}]:{MEETING_PORT}" if ":" in host else f"{host}:{MEETING_PORT}",
        rdzv_conf=",".join(filter(None, (options.rdzv_conf, f"is_host={int(step.is_first)}"))),
        local_addr=options.local_addr or route_address(other, MEETING_PORT),
        slurm_run=step.run,
    )


def _is_given(name: str, options: RunOptions) -> bool:
    return bool(getattr(options, name))


def _tasks_a_node(step: SlurmStep) -> int:
    return -(-step.task_count // len(step.nodes))


def _refuse_tasks(step: SlurmStep, options: RunOptions, say: Callable[[str], None]) -> None:
    """Say that srun started several launchers on a node; raise where they would be in each other's way."""
    tasks = f"srun started {step.task_count} tasks on {counted(len(step.nodes), 'node')}"
    if len(step.nodes) == 1:
        if not options.standalone:
            say(
                f"srun started {step.task_count} tasks on this node: each is a separate job. For one job "
                f"give srun --ntasks-per-node=1"
            )
        return
    if not any(_is_given(name, options) for name in _MEETING_OPTIONS):
        raise ConfigError(
            f"{tasks}, but a node has one launcher, which starts all its ranks: give srun "
            f"--ntasks-per-node=1 ({_SWITCH})"
        )


def _hint_at_srun(
    options: RunOptions,
    given: Collection[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    nodes = count_allocated(environment)
    is_chosen = "nnodes" in given or any(_is_given(name, options) for name in _MEETING_OPTIONS)
    if nodes > 1 and not is_chosen:
        say(
            f"this Slurm job has {nodes} nodes, and this launcher uses one: srun starts one on each"
        )


def _nodes_text(step: SlurmStep, options: RunOptions) -> str:
    count = len(step.nodes)
    if not options.spares:
        return counted(count, "node")
    return f"{count} nodes, of which {options.spares} spare"


def _named(step: SlurmStep) -> str:
    name = f"Slurm job {step.job}, step {step.number}"
    return f"{name}, restart {step.restarts}" if step.restarts else name
