"""Whether the node agent is set up and runs. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.doctor.check import (
    HostCheck,
    HostPart,
    HostVerdict,
    broken,
    hidden,
    lacking,
    not_applicable,
    ok,
    quoted,
    unknown,
)

SMALL_BYTES: Final = (
    64 << 20
)  # findings, inventory, kernel log: some MB; the rest is room for a full disk's log


class ConfigState(Enum):
    ABSENT = "absent"
    GOOD = "good"
    WRONG = "wrong"
    HIDDEN = "hidden"  # this user may not read it


class SocketState(Enum):
    LISTENS = "listens"
    ABSENT = "absent"
    DEAD = "dead"  # the file is there, nobody listens
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder in which rankmend writes."""

    path: str
    is_there: bool = True
    error: str = ""  # why nothing can be written there
    is_forbidden: bool = False  # to this user; the service may be another one
    file_system: str = ""
    is_network: bool = False
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AgentFacts:
    config: str  # the file
    config_state: ConfigState
    config_error: str
    socket: str
    socket_state: SocketState
    is_page_served: bool
    page: str  # its address
    page_error: str
    state: FolderFacts | None  # None: no folder is kept
    is_in_container: bool = False


def _config(facts: AgentFacts) -> HostVerdict:
    match facts.config_state:
        case ConfigState.GOOD:
            return ok(facts.config)
        case ConfigState.ABSENT:
            if facts.is_in_container:
                return not_applicable("the agent runs on the host")
            return lacking(f"no {facts.config}", f"rankmend agent init {quoted(facts.config)}")
        case ConfigState.WRONG:
            return broken(
                facts.config_error, "systemctl reload rankmend-agent  # once it is corrected"
            )
        case ConfigState.HIDDEN:
            return unknown(facts.config_error, f"chmod 644 {quoted(facts.config)}", "root reads it")


def _socket(facts: AgentFacts) -> HostVerdict:
    start = "systemctl enable --now rankmend-agent  # or for yourself: rankmend agent"
    match facts.socket_state:
        case SocketState.LISTENS:
            return ok(facts.socket)
        case SocketState.ABSENT:
            mend = "mount /run/rankmend into the container" if facts.is_in_container else start
            return lacking(f"no {facts.socket}", mend)
        case SocketState.DEAD:
            return broken(f"nobody listens on {facts.socket}", "systemctl restart rankmend-agent")
        case SocketState.FORBIDDEN:
            return broken(
                f"this user may not connect to {facts.socket}",
                "chmod 755 /run/rankmend  # RuntimeDirectoryMode= of the unit",
                "root may connect",
            )


def _page(facts: AgentFacts) -> HostVerdict:
    if facts.is_page_served:
        return ok(f"http://{facts.page}")
    if facts.socket_state is not SocketState.LISTENS:
        return lacking(f"no page at {facts.page}", "systemctl enable --now rankmend-agent")
    return broken(
        f"the agent runs, and {facts.page} does not answer: {facts.page_error}",
        "systemctl status rankmend-agent  # and compare listen in agent.toml with the address",
    )


def judge_folder(folder: FolderFacts, owner: str, make: str) -> HostVerdict:
    """Return the verdict of a folder for state. ``owner``: whose it should be; ``make``: the line that makes it."""
    path = folder.path
    if folder.is_network:
        return broken(
            f"{path} lies on {folder.file_system}, a network file system",
            "name a folder on a local disk",
        )
    if not folder.is_there:
        return lacking(f"no {path}", make)
    if folder.error:
        return broken(folder.error, f"chown {owner} {quoted(path)}; df {quoted(path)}")
    if folder.file_system in ("tmpfs", "ramfs"):
        return lacking(
            f"{path} lies on {folder.file_system}: a reboot empties it",
            "name a folder on a local disk",
        )
    return _judge_room(folder)


def _judge_room(folder: FolderFacts) -> HostVerdict:
    if folder.free_bytes is not None and folder.free_bytes < SMALL_BYTES:
        left = f"{folder.path}: {folder.free_bytes >> 20} MiB left"
        return broken(left, f"df {quoted(folder.path)}  # and make room")
    if folder.is_forbidden:
        theirs = f"{folder.path} belongs to another user"
        return hidden(theirs, "root sees whether it can be written to")
    return ok(f"{folder.path} ({folder.file_system or 'file system unknown'})")


def _state(facts: AgentFacts) -> HostVerdict:
    if facts.state is None:
        return not_applicable("no agent is set up as a service here")
    make = (
        "systemctl enable --now rankmend-agent  # makes it; for an agent of your own set state_dir"
    )
    return judge_folder(facts.state, "rankmend-agent", make)


_P: Final = HostPart.AGENT
AGENT_CHECKS: Final[tuple[HostCheck[AgentFacts], ...]] = (
    HostCheck(
        "agent_config",
        _P,
        "configuration",
        "the agent's start; what this node should have",
        _config,
    ),
    HostCheck(
        "agent_socket",
        _P,
        "agent's socket",
        "figures of ranks in the agent's metrics, and hardware as the cause of a slow rank",
        _socket,
    ),
    HostCheck("agent_page", _P, "agent's page", "metrics and findings of this node", _page),
    HostCheck(
        "agent_state", _P, "agent's state", "findings, latches and devices over a restart", _state
    ),
)
