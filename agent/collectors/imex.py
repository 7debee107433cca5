"""The IMEX domain of a node: the daemon by which GPUs of several nodes share memory over NVLink (GB200 NVL72 and newer).

Source: <root>/etc/nvidia-imex/config.cfg and the list of nodes that it names (by default nodes_config.cfg beside it),
        <root>/dev/nvidia-caps-imex-channels/channel<N>, <procfs>/<pid>/comm, ``nvidia-imex-ctl -q`` and ``-N``
        (NVIDIA IMEX Service for NVLink Networks: "IMEX Service Command Service", "IMEX Channels").
Cost:   three small reads where no domain is configured; else a listing of /proc and two short programs a minute.
        No privilege where the daemon's command service listens on TCP.

A node without a list of nodes, or with an empty one, has no domain, and nothing is read of it: Kubernetes' driver for
compute domains runs the daemon only while a job needs it, and DCGM's check calls such idle nodes unhealthy (NVIDIA/aicr#2641).
A daemon that does not run is shown and is no finding: prologs of Slurm write the list and start it for each job, and leave the list behind.
The command service is off by default (IMEX_CMD_ENABLED=0): the daemon's state is then not known.
Proved on recorded outputs, not on a machine with a domain.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, gauge
from agent.root_helper.program_runner import Program, ProgramRunner
from agent.root_helper.questions import ProgramOutcome, ProgramResult
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

UNIT: Final = "nvidia-imex.service"
NODES_MAX: Final = 4096  # of a list; a domain has 18 nodes
FILE_BYTES_MAX: Final = 1 << 20
ANSWER_S_MAX: Final = 5.0  # of the program; prologs wait 6 s for it
STATE_CHARS_MAX: Final = 64
_FOLDER: Final = "etc/nvidia-imex"
_NODES_FILE: Final = "/etc/nvidia-imex/nodes_config.cfg"
_LOCAL: Final = ("/etc/", "/run/", "/var/")  # a list on a shared file system could hang its reader
_CHANNELS: Final = "dev/nvidia-caps-imex-channels"
_DAEMON: Final = "nvidia-imex"  # its comm
_PROGRAM: Final = ("/usr/bin/nvidia-imex-ctl",)  # of NVIDIA's package
_STATE: Final = re.compile(r"[A-Z][A-Z_]*")
_DOMAIN: Final = re.compile(r"^Domain State:\s*([A-Z_]+)", re.MULTILINE)
_NODE: Final = re.compile(r"^Node #\W*\d+\W*?\s+- .+? - ([A-Z_]+)", re.MULTILINE)
_DOMAIN_IDS: Final = {"DOWN": 0, "DEGRADED": 1, "UP": 2}
_READY: Final = "READY"

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("imex_nodes", "", (), "Nodes in the IMEX domain that is configured on this node."),
    gauge("imex_channels", "", (), "IMEX channels that this node's driver has made."),
    gauge("imex_daemon_running", "", (), "1 while the IMEX daemon runs."),
    gauge("imex_daemon_ready", "", (), "1 when the daemon calls itself READY, by nvidia-imex-ctl -q."),
    gauge("imex_daemon_info", "", ("state",), "The daemon's state in its own words; always 1."),
    gauge("imex_domain_state_id", "", (), "State of the whole domain, by nvidia-imex-ctl -N: 0 down, 1 degraded, 2 up."),
    gauge("imex_domain_nodes_ready", "", (), "Nodes of the domain that are READY, by nvidia-imex-ctl -N."),
)  # fmt: skip

RunProgram = Callable[[Program], ProgramResult]


@dataclass(frozen=True, slots=True)
class ImexDomain:
    nodes: int
    has_command_service: bool


@dataclass(frozen=True, slots=True)
class DomainStatus:
    state: str
    nodes_ready: int


def read_domain(root: Path) -> ImexDomain | None:
    """Return the IMEX domain that is configured on this node; None where there is none."""
    settings = {
        key.strip(): value.strip()
        for key, found, value in (
            line.partition("=") for line in _lines(root / _FOLDER / "config.cfg")
        )
        if found
    }
    place = settings.get("IMEX_NODE_CONFIG_FILE") or _NODES_FILE
    if not place.startswith(_LOCAL) or ".." in place:
        return None
    nodes = len(_lines(root / place.lstrip("/")))
    if not nodes:
        return None
    return ImexDomain(min(nodes, NODES_MAX), settings.get("IMEX_CMD_ENABLED") == "1")


def parse_daemon(text: str) -> str:
    """Return the state that ``nvidia-imex-ctl -q`` prints: one word."""
    words = text.split()
    if len(words) != 1 or not _STATE.fullmatch(words[0]) or len(words[0]) > STATE_CHARS_MAX:
        raise SourceError(f"nvidia-imex-ctl -q prints no state: {text[:80]!r}")
    return words[0]


def parse_domain(text: str) -> DomainStatus:
    """Return what ``nvidia-imex-ctl -N`` prints about all nodes of the domain."""
    found = _DOMAIN.search(text)
    if found is None:
        raise SourceError(f"nvidia-imex-ctl -N prints no state of the domain: {text[-80:]!r}")
    return DomainStatus(found[1], sum(state == _READY for state in _NODE.findall(text)))


def make_run_program(clock: Clock) -> RunProgram:
    """Return a function that runs nvidia-imex-ctl within bounds."""
    runner = ProgramRunner(clock)
    return lambda program: runner.run(program, clock.now_s() + program.timeout_s)


class ImexCollector:
    name = "imex"
    interval_s = 60.0

    def __init__(self, root: Path | None, procfs_root: Path, run_program: RunProgram) -> None:
        """``root``: of /etc and /dev; None beside a recorded tree that has neither."""
        self._root = root
        self._procfs = procfs_root
        self._run = run_program

    def collect(self) -> Iterator[Metric]:
        domain = None if self._root is None else read_domain(self._root)
        if domain is None or self._root is None:
            raise NoSourceError("no IMEX domain is configured on this node")
        yield Metric("rankmend_imex_nodes", domain.nodes)
        yield Metric("rankmend_imex_channels", _count_channels(self._root / _CHANNELS))
        is_running = _is_running(self._procfs)
        yield Metric("rankmend_imex_daemon_running", int(is_running))
        if is_running and domain.has_command_service:
            yield from self._state()

    def _state(self) -> Iterator[Metric]:
        text = self._ask("-q")
        if text is None:
            return
        state = parse_daemon(text)
        yield Metric("rankmend_imex_daemon_ready", int(state == _READY))
        yield Metric("rankmend_imex_daemon_info", 1, (("state", state),))
        text = self._ask("-N")
        if text is None:
            return
        status = parse_domain(text)
        yield Metric("rankmend_imex_domain_nodes_ready", status.nodes_ready)
        if status.state in _DOMAIN_IDS:  # any other word is of a newer version
            yield Metric("rankmend_imex_domain_state_id", _DOMAIN_IDS[status.state])

    def _ask(self, option: str) -> str | None:
        """Return what the program prints; None where it is not installed."""
        result = self._run(Program("imex", _PROGRAM, (option,), ANSWER_S_MAX))
        if result.outcome is ProgramOutcome.ABSENT:
            return None
        if result.outcome is ProgramOutcome.FAILED or result.exit_code != 0:
            why = result.error or f"exit code {result.exit_code}"
            raise SourceError(f"nvidia-imex-ctl {option} failed: {why[:200]}")
        return result.output


def _lines(path: Path) -> list[str]:
    """Return the lines that say something; none where there is no such file."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise NoSourceError(f"{path} is closed to this user") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}") from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _count_channels(folder: Path) -> int:
    try:
        return sum(entry.name.startswith("channel") for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise SourceError(f"cannot list {folder}") from error


def _is_running(procfs: Path) -> bool:
    for entry in procfs.iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "comm").read_bytes().strip() == _DAEMON.encode():
                    return True
            except OSError:
                continue  # it has ended
    return False
