"""Reads whether the node agent is set up and runs here."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent import config as configuration
from agent.config import SERVICE_STATE_DIR, AgentConfig
from agent.doctor.places import Places
from agent.page.http_server import parse_address
from detectors.doctor.agent import AgentFacts, ConfigState, FolderFacts, SocketState
from rankmend.agent_page import read_agent
from rankmend.agent_socket import socket_paths
from rankmend.errors import ConfigError, RankmendError, SourceError

CONFIG: Final = "/etc/rankmend/agent.toml"  # as in deploy/systemd
_ANSWER_S_MAX: Final = 1.0
_PAGE_BYTES_MAX: Final = 1_000_000


def load_config(path: Path) -> tuple[AgentConfig | None, ConfigState, str]:
    """Return the agent's configuration, or why there is none."""
    try:
        if not path.exists():
            return None, ConfigState.ABSENT, ""
        if not os.access(path, os.R_OK):
            return None, ConfigState.HIDDEN, f"this user may not read {path}"
        return configuration.load(path), ConfigState.GOOD, ""
    except PermissionError:
        return None, ConfigState.HIDDEN, f"this user may not look into {path.parent}"
    except ConfigError as error:
        return None, ConfigState.WRONG, str(error)


def read_agent_facts(
    places: Places,
    path: Path,
    look: Callable[[Path], FolderFacts],
    *,
    is_in_container: bool = False,
) -> AgentFacts:
    """``look`` reads a folder for state."""
    config, state, error = load_config(path)
    chosen = config or AgentConfig()
    sockets = _sockets(places, chosen)
    found = next((one for one in sockets if one.exists()), sockets[0])
    page, page_error = _ask_page(chosen)
    folder = Path(chosen.state_dir) if chosen.state_dir else places.at(str(SERVICE_STATE_DIR))
    is_service = state is not ConfigState.ABSENT or folder.exists()
    return AgentFacts(
        config=str(path),
        config_state=state,
        config_error=error,
        socket=str(found),
        socket_state=_socket_state(found),
        is_page_served=not page_error,
        page=page,
        page_error=page_error,
        state=look(folder) if is_service else None,
        is_in_container=is_in_container,
    )


def _sockets(places: Places, config: AgentConfig) -> list[Path]:
    if config.socket:
        return [Path(config.socket)]
    service, *own = socket_paths(places.environment)
    return [places.at(str(service)), *own]


def _socket_state(path: Path) -> SocketState:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_S_MAX)
        try:
            connection.connect(str(path))
        except PermissionError:
            return SocketState.FORBIDDEN
        except (FileNotFoundError, NotADirectoryError):
            return SocketState.ABSENT
        except OSError:
            return SocketState.DEAD
    return SocketState.LISTENS


def page_address(config: AgentConfig) -> str:
    """Return where a program of this host finds the agent's page; raise ConfigError."""
    host, port = _own_address(config)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_address(config: AgentConfig) -> tuple[str, int]:
    host, port = parse_address(config.listen)
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), port  # noqa: S104 - to ask


def _ask_page(config: AgentConfig) -> tuple[str, str]:
    """Return the page's address, and why it is not served; empty: it is."""
    try:
        host, port = _own_address(config)
        address = page_address(config)
    except RankmendError as error:
        return config.listen, str(error)
    if (
        config.tls is not None
    ):  # it may ask for a certificate that we don't have: that it listens will do
        with contextlib.suppress(OSError), socket.create_connection((host, port), _ANSWER_S_MAX):
            return address, ""
        return address, "nobody listens there"
    try:
        read_agent(f"http://{address}/", bytes_max=_PAGE_BYTES_MAX, timeout_s=_ANSWER_S_MAX)
    except SourceError as error:
        return address, str(error)
    return address, ""
