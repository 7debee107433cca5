"""Reads whether the node agent is set up and runs here.

The agent's configuration knows every collector: its module takes 0.4 s of a processor to import. It is imported only where there
is a file to read, since each group of checks runs in a process of its own.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.doctor.places import Places
from detectors.doctor.agent import AgentFacts, ConfigState, FolderFacts, SocketState
from rankmend.agent_page import read_agent
from rankmend.agent_socket import socket_paths
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.listening import parse_listen

if TYPE_CHECKING:
    from agent.config import AgentConfig

CONFIG: Final = "/etc/rankmend/agent.toml"  # as in deploy/systemd
SERVICE_STATE_DIR: Final = "/var/lib/rankmend-agent"  # as agent.config has it
_ANSWER_S_MAX: Final = 1.0
_PAGE_BYTES_MAX: Final = 1_000_000
_ACS_ANSWER_S_MAX: Final = 2.0
_METRICS_BYTES_MAX: Final = 16 << 20  # a node of 8 GPUs has some 1 MB


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What the checks need of the agent's configuration. The values are those of an agent without any."""

    listen: str = "127.0.0.1:9476"
    socket: str | None = None
    node: str | None = None
    state_dir: str | None = None
    has_tls: bool = False
    certificates: tuple[str, ...] = ()  # files
    keys: tuple[str, ...] = ()
    alerts_ca_file: str | None = None
    controller: str | None = None  # URL that hears of watched jobs
    gpus: int | None = None  # that this node is meant to have
    nics_left_out: tuple[str, ...] = ()
    kubelet_checkpoint: str | None = None


def setup_of(config: "AgentConfig") -> AgentSetup:
    """Return what the checks need of a configuration."""
    from agent.config import expected_gpus  # noqa: PLC0415 - see the top

    alerts, tls = config.alerts, config.tls
    certificates = [alerts.ca_file, alerts.cert_file]
    keys = [alerts.key_file]
    if tls is not None:
        certificates += [tls.cert_file, tls.client_ca_file]
        keys.append(tls.key_file)
    return AgentSetup(
        listen=config.listen,
        socket=config.socket,
        node=config.node,
        state_dir=config.state_dir,
        has_tls=tls is not None,
        certificates=tuple(name for name in certificates if name),
        keys=tuple(name for name in keys if name),
        alerts_ca_file=alerts.ca_file,
        controller=config.watch.controller,
        gpus=expected_gpus(config),
        nics_left_out=config.nic.exclude,
        kubelet_checkpoint=config.gpu.kubelet_checkpoint,
    )


def load_setup(path: Path) -> tuple[AgentSetup | None, ConfigState, str]:
    """Return what the checks need of the agent's configuration, or why there is none."""
    try:
        if not path.exists():
            return None, ConfigState.ABSENT, ""
        if not os.access(path, os.R_OK):
            return None, ConfigState.HIDDEN, f"this user may not read {path}"
        from agent import config as configuration  # noqa: PLC0415 - see the top

        return setup_of(configuration.load(path)), ConfigState.GOOD, ""
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
    config, state, error = load_setup(path)
    chosen = config or AgentSetup()
    sockets = _sockets(places, chosen)
    found = next((item for item in sockets if item.exists()), sockets[0])
    page, page_error = _fetch_page(chosen)
    folder = Path(chosen.state_dir) if chosen.state_dir else places.at(SERVICE_STATE_DIR)
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


def _sockets(places: Places, config: AgentSetup) -> list[Path]:
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


def page_address(config: AgentSetup) -> str:
    """Return where a program of this host finds the agent's page; raise ConfigError."""
    host, port = _own_address(config)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_address(config: AgentSetup) -> tuple[str, int]:
    host, port = parse_listen(config.listen)
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), port  # noqa: S104 - to ask


def _fetch_page(config: AgentSetup) -> tuple[str, str]:
    """Return the page's address, and why it is not served; empty: it is."""
    try:
        host, port = _own_address(config)
        address = page_address(config)
    except RankmendError as error:
        return config.listen, str(error)
    try:
        socket.create_connection((host, port), _ANSWER_S_MAX).close()
    except OSError as error:
        return address, f"nobody listens there: {error.strerror or error}"
    if config.has_tls:  # it may ask for a certificate that we don't have: that it listens will do
        return address, ""
    try:
        read_agent(f"http://{address}/", bytes_max=_PAGE_BYTES_MAX, timeout_s=_ANSWER_S_MAX)
    except SourceError as error:
        return address, str(error)
    return address, ""


def ask_agents_acs(config: AgentSetup) -> dict[str, str]:
    """Return by bridge which redirects of ACS are on, as the agent, whose helper has root's rights, exports them.

    Nothing where no agent answers. A page by TLS is not requested: it may want a certificate that this user lacks.
    """
    if config.has_tls:
        return {}
    try:
        url = f"http://{page_address(config)}/metrics"
        page = read_agent(url, bytes_max=_METRICS_BYTES_MAX, timeout_s=_ACS_ANSWER_S_MAX)
        return _redirects_in(page.decode("utf-8"))
    except (RankmendError, ValueError, ImportError):
        return {}


def _redirects_in(page: str) -> dict[str, str]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - 30 ms

    labels: list[Mapping[str, str]] = [
        sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "rankmend_version_info"
    ]
    return {
        label["device"]: label["version"] for label in labels if label["component"] == "pcie_acs"
    }
