"""Which node of a fabric test this is, and where its nodes meet, by Slurm's or torchrun's variables or by options.

The nodes share a secret as the launchers of a job do: in a token file, or in a folder that all of them see and only their
user can read, where the first node leaves its address.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError
from rankmend.own_folder import make_private
from recovery.launcher.run.meeting_site import HostFolder
from recovery.launcher.run.slurm.meeting_folder import make_meeting_folder
from recovery.launcher.run.slurm.step import read_step
from recovery.service.meeting_secret import read_secret

NODES_MAX: Final = 20_000
_ENDPOINT: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]+):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class FabricPlace:
    rank: int
    count: int
    host: str | None = None  # of the coordinator; None: the note says
    port: int = 0
    secret: str | None = None  # from a token file; None: the note has it
    folder: HostFolder | None = None
    run: str = ""  # tells the note of this start from an old one
    other: str = (
        ""  # name of another node, where it is known: the way to it shows the interface to test
    )

    @property
    def is_coordinator(self) -> bool:
        return self.rank == 0


def find_place(
    environment: Mapping[str, str],
    *,
    nnodes: int | None = None,
    node_rank: int | None = None,
    endpoint: str | None = None,
    token_file: Path | None = None,
    shared: Path | None = None,
) -> FabricPlace | None:
    """Return this node's place; None for a further process of a node, which has nothing to do.

    Options come before the environment. Raises ConfigError where something is missing or contradicts.
    """
    step = read_step(environment) if nnodes is None and "RANK" not in environment else None
    secret = read_secret(token_file) if token_file is not None else None
    if step is not None:
        if _number("SLURM_LOCALID", environment, 0):
            return None
        folder = None
        if secret is None or endpoint is None:
            base = shared or make_meeting_folder(
                environment, f"fabric-{step.run.replace(':', '-')}"
            )
            folder = HostFolder(base)
        host, port = _endpoint(endpoint) if endpoint is not None else (None, 0)
        other = next((name for at, name in enumerate(step.nodes) if at != step.place), "")
        count = len(step.nodes)
        return FabricPlace(step.place, count, host, port, secret, folder, step.run, other)
    if nnodes is None and _number("LOCAL_RANK", environment, 0):
        return None
    count, rank = _count_and_rank(environment, nnodes, node_rank)
    if endpoint is None and "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        endpoint = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    host, port = _endpoint(endpoint) if endpoint is not None else (None, 0)
    if shared is not None:
        make_private(shared, ConfigError, is_secret=True)
        run = environment.get("TORCHELASTIC_RUN_ID", "")
        return FabricPlace(rank, count, host, port, secret, HostFolder(shared), run)
    if host is None:
        raise ConfigError(
            "where do the nodes meet? Start this under srun, or give --rdzv-endpoint HOST:PORT of the first node "
            "(or MASTER_ADDR and MASTER_PORT), or --shared with a folder that all nodes see"
        )
    if secret is None:
        raise ConfigError(
            f"the nodes share no secret for {host}:{port}: give each the same --token-file (mode 0600; "
            f"openssl rand -hex 32 makes one), or --shared with a folder that all nodes see"
        )
    return FabricPlace(rank, count, host, port, secret)


def _count_and_rank(
    environment: Mapping[str, str], nnodes: int | None, node_rank: int | None
) -> tuple[int, int]:
    if nnodes is None:
        name = "GROUP_WORLD_SIZE" if "GROUP_WORLD_SIZE" in environment else "WORLD_SIZE"
        if name not in environment:
            raise ConfigError("how many nodes take part? Give --nnodes, or start this under srun")
        nnodes = _number(name, environment, 0)
    if node_rank is None:
        name = "GROUP_RANK" if "GROUP_RANK" in environment else "RANK"
        if name not in environment:
            raise ConfigError("which node is this? Give --node-rank (from 0)")
        node_rank = _number(name, environment, 0)
    if not 2 <= nnodes <= NODES_MAX:
        raise ConfigError(f"{nnodes} nodes: a fabric test has 2 to {NODES_MAX}")
    if not 0 <= node_rank < nnodes:
        raise ConfigError(f"node {node_rank} of {nnodes}: nodes are numbered from 0")
    return nnodes, node_rank


def _number(name: str, environment: Mapping[str, str], default: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(f"{name}={text!r} is not a number")
    return int(text)


def _endpoint(text: str) -> tuple[str, int]:
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise ConfigError(f"--rdzv-endpoint {text!r} is not HOST:PORT")
    return found["host"].strip("[]"), int(found["port"])
