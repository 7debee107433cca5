"""The rendezvous of the ranks: for every attempt a fresh port and a fresh store.

A rank that reads a dead attempt's addresses can't find its peers (pytorch#135712; torchrun
2.13 on gloo restarts into exactly that), so nothing of a store outlives its attempt. The
stores live in one process of their own, under the user's interpreter and its torch, and so
outlive rank 0. Where there is no torch, or that process has died, rank 0 hosts the store as
it does without a launcher. docs/use/several-nodes.md says what ranks see.

Not for several threads. Start it from the main thread: the kernel ends the process with the
thread that forked it.
"""

import json
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.hook import store_host
from recovery.launcher.host.interpreter import ask_interpreter
from recovery.launcher.ranks.environment import Rendezvous
from recovery.launcher.rendezvous.ports import PortRange, ReservedPort, reserve, reserve_exactly
from recovery.messages.exchange import Endpoint

PROBE_S_MAX: Final = 30.0  # python and one look-up: 0.02 s here; a cold network file system
FIRST_SERVE_S_MAX: Final = 300.0  # with `import torch`: 1.2 s warm here; minutes on a cold one
SERVE_S_MAX: Final = 30.0  # torch is there: milliseconds; CONNECT_S_MAX of the host
DROP_S_MAX: Final = 5.0  # milliseconds
SEND_S_MAX: Final = 5.0  # the pair's buffer holds hundreds of messages, so it never waits
EXIT_S_MAX: Final = 5.0  # from SIGKILL to gone: milliseconds
DYING_S_MAX: Final = 1.0  # from the end of its socket to its exit status
STDERR_TAIL_BYTES: Final = 2_000

HOSTS_FROM: Final = (2, 0)  # TCPStore(master_listen_fd=...)
FORGIVES_FROM: Final = (2, 8)  # pytorch#147465 of February 2025; seen in 2.9, tested with 2.13

# Prefixes of what torchrun and we tell ranks. The host is no rank, and whatever carries an
# attempt in its environment is fenced with it.
_RANKS_ONLY: Final = ("RANKMEND_", "TORCHELASTIC_", "MASTER_")
_NO_DEVICES: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # torch 2.5+: other vendors' packages stay unloaded
    "OMP_NUM_THREADS": "1",
}
_PROBE: Final = """
import importlib.util, os, re, sys
sys.path[:] = [entry for entry in sys.path if entry]
spec = importlib.util.find_spec("torch")
if spec is None or spec.origin is None:
    print("absent")
else:
    with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
        print("torch", re.search(r"__version__\\s*=\\s*['\\"]([^'\\"]+)", file.read()).group(1))
"""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The torch of an interpreter."""

    version: str  # "2.13.0+cpu"

    @property
    def _major_minor(self) -> tuple[int, int]:
        words = self.version.split(".")
        return int(words[0]), int(words[1])

    @property
    def is_old(self) -> bool:
        """Whether its flight recorder is off unless switched on by an older name."""
        return self._major_minor < (2, 7)

    @property
    def can_host(self) -> bool:
        """Whether its store can be served on a socket of ours."""
        return self._major_minor >= HOSTS_FROM

    @property
    def agent_store(self) -> str:
        """The value of TORCHELASTIC_USE_AGENT_STORE for ranks whose store we host.

        Python reads exactly "True" as "every rank is a client, at whatever address", and a
        store of the script's own then never gets a server (pytorch#191957). C++ reads any
        case, and as "at MASTER_PORT a failed bind is no error". In lower case only C++ holds:
        rank 0 becomes a client at our port, and still hosts at every other one.
        """
        return "true" if self._major_minor >= FORGIVES_FROM else "True"


def probe_torch(
    python: str, environment: Mapping[str, str], timeout_s: float = PROBE_S_MAX
) -> TorchBuild | None:
    """Return the torch that ``python`` would import, or None where it has none.

    Nothing is imported: torch takes a second, and ranks are waiting.
    """
    try:
        told = ask_interpreter(python, _PROBE, (), host_environment(environment), timeout_s)
    except LaunchError as error:
        raise LaunchError(f"can't ask {python} for its torch: {error}") from error
    words = told.words
    if told.exit_code == 0 and words == ["absent"]:
        return None
    if told.exit_code == 0 and len(words) == 2 and words[0] == "torch":
        try:
            build = TorchBuild(words[1])
            _ = build.can_host
        except (ValueError, IndexError) as error:
            raise LaunchError(f"{python} has torch of version {words[1]!r}") from error
        return build
    said = (told.error or told.line)[-STDERR_TAIL_BYTES:]
    raise LaunchError(f"can't ask {python} for its torch: exit code {told.exit_code}: {said}")


def host_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without what is for ranks only, and without devices."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_RANKS_ONLY)}
    return {**kept, **_NO_DEVICES}


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """The process of the stores has failed: from now on rank 0 hosts."""

    text: str
    attempts: tuple[int, ...]  # whose stores were lost with it


@dataclass(slots=True)
class _Host:
    """The process, our end of its socket, and what it owes us."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    stderr: IO[bytes]
    agent_store: str
    serving: set[int]
    asked_at_s: dict[int, float]  # attempt -> when it was to be served
    undropped: set[int]
    has_served: bool = False
    error: str | None = None  # why it is lost


class RendezvousStore:
    """Opens one store an attempt, on ports that it holds from the moment of choice.

    ``ports`` is a range, or one port that the user insists on. ``address`` is what ranks
    connect to, ``bind_address`` where the socket listens (empty: on every address).
    """

    def __init__(
        self, ports: PortRange | int, clock: Clock, *, address: str, bind_address: str
    ) -> None:
        self._ports = ports
        self._clock = clock
        self._address = address
        self._bind_address = bind_address
        self._host: _Host | None = None
        self._agent_store = "True"  # for a store that another node hosts, until our torch is known
        self._last_port: int | None = None
        self._proposed: ReservedPort | None = None

    @property
    def is_hosting(self) -> bool:
        """Whether the next attempt's store will be ours."""
        return self._host is not None and self._host.error is None

    def start(self, python: str, environment: Mapping[str, str], torch: TorchBuild) -> None:
        """Start the process that serves the stores; it is ready when torch is imported."""
        assert self._host is None, "started once"
        if not torch.can_host:
            raise LaunchError(f"torch {torch.version} can't serve a store on our socket")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            process = subprocess.Popen(
                [python, str(Path(store_host.__file__).resolve())],
                env=host_environment(environment),
                stdin=theirs.fileno(),
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            stderr.close()
            raise LaunchError(f"can't start the rendezvous store with {python}: {error}") from error
        finally:
            theirs.close()
        ours.settimeout(SEND_S_MAX)
        self._host = _Host(process, ours, stderr, torch.agent_store, set(), {}, set())
        self._agent_store = torch.agent_store

    def propose(self) -> Endpoint:
        """Return where another attempt could meet, on a port that is held until it is opened."""
        if self._proposed is None:
            self._proposed = self._reserve_next()
            if self.is_hosting:
                self._proposed.listen()  # ranks of other nodes may come early
        return Endpoint(self._address, self._proposed.port, self.is_hosting)

    def withdraw(self) -> None:
        """Give up the place that was proposed; the next proposal is another one."""
        if self._proposed is not None:
            self._proposed.release()
            self._proposed = None

    def join_attempt(self, endpoint: Endpoint) -> Rendezvous:
        """Return what ranks are told whose attempt meets at another node."""
        self._drop_all()
        agent_store = self._agent_store if endpoint.is_hosted else "False"
        return Rendezvous(endpoint.address, endpoint.port, endpoint.is_hosted, agent_store)

    def open_attempt(self, attempt: int, port: int | None = None) -> Rendezvous:
        """Return where the ranks of ``attempt`` meet, and drop the store of every other one.

        ``port``: the one that was proposed for it. Call it just before the ranks start: where
        rank 0 hosts, the port is free from now on. A store process that turns out dead is no
        error here; `poll` tells of it.
        """
        self._drop_all()
        if port is None:
            reserved = self._reserve_next()
        elif self._proposed is not None and self._proposed.port == port:
            reserved, self._proposed = self._proposed, None
        else:
            reserved = reserve_exactly(port, self._bind_address)
        try:
            host = self._host
            is_hosted = (
                host is not None and host.error is None and self._serve(host, attempt, reserved)
            )
        finally:
            reserved.release()
        if is_hosted:
            assert host is not None
            return Rendezvous(self._address, reserved.port, True, host.agent_store)
        return Rendezvous(self._address, reserved.port, False)

    def drop(self, attempt: int) -> None:
        """Close the store of ``attempt``, with every connection to it. Safe to repeat."""
        host = self._host
        if host is None or host.error is not None or attempt not in host.serving:
            return
        host.serving.discard(attempt)
        host.asked_at_s.pop(attempt, None)
        host.undropped.add(attempt)
        self._send(host, {"do": "drop", "attempt": attempt})

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `poll` has news; None where rank 0 hosts.

        It closes when `poll` has returned a failure, and in `close`.
        """
        return None if self._host is None else self._host.channel.fileno()

    def poll(self) -> StoreFailure | None:
        """Return the failure of the store process, once. Never waits.

        Call it when `fileno` is readable and, to see a process that hangs, now and then.
        """
        host = self._host
        if host is None:
            return None
        self._read_replies(host, 0.0)
        limit_s = SERVE_S_MAX if host.has_served else FIRST_SERVE_S_MAX
        for attempt, asked_at_s in host.asked_at_s.items():
            age_s = self._clock.now_s() - asked_at_s
            if host.error is None and age_s > limit_s:
                host.error = f"no answer for {age_s:.0f} s to serving attempt {attempt}"
        if host.error is None:
            return None
        self._host = None
        return StoreFailure(self._end(host), tuple(sorted(host.serving)))

    def close(self) -> None:
        """End the store process and every store."""
        self.withdraw()
        if self._host is not None:
            self._host.process.kill()
            self._end(self._host)
            self._host = None

    def _drop_all(self) -> None:
        if self._host is not None:
            for attempt in tuple(self._host.serving):
                self.drop(attempt)

    def _reserve_next(self) -> ReservedPort:
        host = self._host
        if isinstance(self._ports, PortRange):
            first = None if self._last_port is None else self._last_port + 1
            reserved = reserve(self._ports, self._bind_address, first)
            self._last_port = reserved.port
            return reserved
        deadline_s = self._clock.now_s() + DROP_S_MAX
        while host is not None and host.undropped and host.error is None:
            left_s = deadline_s - self._clock.now_s()
            if left_s <= 0:
                raise LaunchError(
                    f"port {self._ports} is still held by the store of attempt"
                    f" {min(host.undropped)}, {DROP_S_MAX:.0f} s after it was dropped"
                )
            self._read_replies(host, left_s)
        return reserve_exactly(self._ports, self._bind_address)

    def _serve(self, host: _Host, attempt: int, reserved: ReservedPort) -> bool:
        if not self._send(host, {"do": "serve", "attempt": attempt}, reserved.listen().fileno()):
            return False
        host.serving.add(attempt)
        host.asked_at_s[attempt] = self._clock.now_s()
        return True

    def _send(self, host: _Host, command: dict[str, object], *descriptors: int) -> bool:
        try:
            socket.send_fds(host.channel, [json.dumps(command).encode("ascii")], descriptors)
        except OSError as error:
            host.error = f"cannot be asked to {command['do']} attempt {command['attempt']}: {error}"
            host.process.kill()  # a hanging one: its end makes `fileno` readable
            return False
        return True

    def _read_replies(self, host: _Host, wait_s: float) -> None:
        """Take in what the process has said; wait at most ``wait_s`` for a first word."""
        while host.error is None:
            host.channel.settimeout(wait_s)
            try:
                data = host.channel.recv(store_host.MESSAGE_BYTES_MAX)
            except (BlockingIOError, TimeoutError):
                return
            except OSError as error:
                host.error = f"has closed its socket: {error}"
                return
            finally:
                host.channel.settimeout(SEND_S_MAX)
            wait_s = 0.0
            if data:
                _note_reply(host, json.loads(data))
            else:
                host.error = "has ended"

    def _end(self, host: _Host) -> str:
        """Reap the process, and return what is known of its end."""
        host.channel.close()
        try:
            host.process.wait(DYING_S_MAX)
        except subprocess.TimeoutExpired:
            host.process.kill()
            try:
                host.process.wait(EXIT_S_MAX)
            except subprocess.TimeoutExpired:
                host.error = f"{host.error}; still there {EXIT_S_MAX:.0f} s after SIGKILL"
        with host.stderr:
            size = host.stderr.seek(0, 2)
            host.stderr.seek(max(0, size - STDERR_TAIL_BYTES))
            said = host.stderr.read().decode("utf-8", "replace").strip()
        code = host.process.returncode
        end = "" if code is None else f" ({_describe_exit(code)})"
        return f"the rendezvous store {host.error}{end}" + (f": {said}" if said else "")


def _note_reply(host: _Host, reply: dict[str, object]) -> None:
    if "serving" in reply:
        host.has_served = True
        host.asked_at_s.pop(_attempt(reply["serving"]), None)
    elif "dropped" in reply:
        host.undropped.discard(_attempt(reply["dropped"]))
    else:
        host.error = f"can't serve: {reply.get('error')}"


def _attempt(value: object) -> int:
    assert isinstance(value, int), "our own program at the other end"
    return value


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"
