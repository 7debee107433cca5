"""The place where the launchers of a job meet: its settings and addresses."""

import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from recovery.api.contact import is_loopback
from recovery.checkpoints.budget_writer import BudgetWriter
from recovery.journal.job_key import JobKey
from recovery.journal.limits import Policy
from recovery.run.meeting_note import HostFolder
from recovery.run.options import Meeting
from recovery.run.slurm.own_allocation import OwnSlurm


@dataclass(frozen=True, slots=True)
class Site:
    """The meeting, as this launcher's command line and node describe it."""

    meeting: Meeting
    key: JobKey
    folder: HostFolder | None  # None: no shared storage, so no other launcher can take over
    secret: str | None  # from a token file
    name: str
    address: str
    state: Path
    policy: Policy
    budgets: BudgetWriter | None
    slurm: OwnSlurm | None = None  # the Slurm job in which the nodes meet


def has_address(host: str) -> bool:
    """Return whether an address of ``host`` is one of this machine's."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
    }
    return bool(found & own) or any(is_loopback(address) for address in found)


def url_of(host: str, port: int) -> str:
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def bind_address(address: str) -> str:
    """Return the address on which to listen: only loopback stays loopback, all else is every address."""
    return address if is_loopback(address) else ""
