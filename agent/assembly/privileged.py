"""The collectors that ask the root helper or the BMC, made from one part of the configuration."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.collectors.disk_health import DiskHealthCollector
from agent.collectors.ipmi import IpmiCollector, IpmiEventsCollector
from agent.collectors.redfish import RedfishCollector
from agent.root_helper.client import (
    Ask,
    HelperClient,
    SeldomAsked,
    TransceiverMemories,
    ask_acs,
)
from agent.root_helper.questions import SOCKET_PATH, HelperAnswer, HelperQuery
from agent.sampling.collection import Collector
from agent.sources.pcie_acs import BridgeAcs, list_bridges, read_acs
from rankmend.clock import Clock
from rankmend.errors import ConfigError, NoSourceError
from rankmend.redfish_session import parse_url

COLLECTORS: Final = ("ipmi", "ipmi_events", "disk_health", "redfish")


class RedfishSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """This node's BMC. docs/reference/thermal.md"""

    url: str | None = None  # https://HOST[:PORT]; None: no BMC is asked by network
    credentials_file: str | None = None  # TOML with user and password, 0600
    ca_file: str | None = None  # PEM; None: the system's CAs
    verify: bool = True  # False: the BMC's certificate is not checked


def check(helper_socket: str | None, redfish: RedfishSettings) -> None:
    """Raise ConfigError for what the types alone don't refuse."""
    if helper_socket is not None and not helper_socket.startswith("/"):
        raise ConfigError(f"helper_socket is not an absolute path: {helper_socket!r}")
    if redfish.url is not None:
        parse_url(redfish.url)
        if redfish.credentials_file is None:
            raise ConfigError("redfish.url needs redfish.credentials_file")
    elif redfish != RedfishSettings():
        raise ConfigError("[redfish] has settings but no url")


def make_ask(helper_socket: str | None, clock: Clock, is_live: bool) -> Ask:
    """Return the way to the root helper. Beside a recorded tree this machine is not queried."""
    if not is_live:
        return _refuse_recorded
    client = HelperClient(Path(helper_socket) if helper_socket else SOCKET_PATH, clock)
    return SeldomAsked(client.ask, clock).ask


def make_read_memory(
    ask: Ask, helper_socket: str | None, clock: Clock
) -> Callable[[str], bytes] | None:
    """Return how transceivers are read; None: by the agent itself, being root with no helper."""
    path = Path(helper_socket) if helper_socket else SOCKET_PATH
    if os.geteuid() == 0 and not path.exists():
        return None
    return TransceiverMemories(ask, clock).read


def make_read_acs(
    ask: Ask, helper_socket: str | None, sysfs_root: Path, excluded_nics: Sequence[str]
) -> Callable[[], list[BridgeAcs]]:
    """Return how the ACS of bridges is read: by the root helper, or by the agent itself, being root with no helper."""
    path = Path(helper_socket) if helper_socket else SOCKET_PATH

    def read() -> list[BridgeAcs]:
        bridges = list_bridges(sysfs_root, excluded_nics)
        if bridges and os.geteuid() == 0 and not path.exists():
            return list(read_acs(sysfs_root, bridges))
        return ask_acs(ask) if bridges else []

    return read


def make_collectors(redfish: RedfishSettings, ask: Ask, clock: Clock) -> tuple[Collector, ...]:
    return (
        IpmiCollector(ask),
        IpmiEventsCollector(ask),
        DiskHealthCollector(ask),
        RedfishCollector(redfish, clock),
    )


def _refuse_recorded(query: HelperQuery) -> HelperAnswer:
    raise NoSourceError(f"{query.value}: the root helper is not used with a recorded tree")
