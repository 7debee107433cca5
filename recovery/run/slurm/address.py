"""Finds the addresses of a Slurm job's nodes: by name, and where names mean nothing, by asking Slurm."""

import os
import re
import socket
from typing import Final

from rankmend.errors import ConfigError
from recovery.slurm.commands import SlurmCommands

ASK_S_MAX: Final = 20.0
_ADDRESS: Final = re.compile(r"(?:^|\s)NodeAddr=([A-Za-z0-9._:-]{1,255})(?:\s|$)")


def node_address(node: str) -> str:
    """Return a name or an address at which other nodes reach ``node``."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        ask = SlurmCommands(ASK_S_MAX, os.environ)
        return parse_address(node, ask(["scontrol", "--oneliner", "show", "node", node]))
    return node


def parse_address(node: str, told: str) -> str:
    """Return the address of a node in what `scontrol show node` says of it."""
    found = _ADDRESS.search(told)
    if found is None:
        raise ConfigError(
            f"node {node} of the Slurm job has no address: its name can't be resolved, and Slurm names "
            f"none; say where the nodes meet with --rdzv-endpoint HOST:PORT"
        )
    return found[1]
