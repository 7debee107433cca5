"""The name of this node: one rule for agent, launcher and controller."""

import ipaddress
import os
import socket
from collections.abc import Mapping


def node_name(configured: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Return the configured name, else Slurm's name for this node, else the short host name."""
    variables = os.environ if environment is None else environment
    return configured or variables.get("SLURMD_NODENAME") or short_name(socket.gethostname())


def is_name_given(configured: str | None, environment: Mapping[str, str]) -> bool:
    """Return whether the user or Slurm names this node: others know it by that name, so nothing may change it."""
    return bool(configured or environment.get("SLURMD_NODENAME"))


def short_name(host: str) -> str:
    """Return the first label of a host's name; an address, which some installers give as the name, stays whole."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.partition(".")[0]
    return host
