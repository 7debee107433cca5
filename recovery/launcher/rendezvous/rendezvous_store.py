"""The rendezvous of the ranks: for every attempt a fresh port and a fresh store.

A rank that reads a dead attempt's addresses can't find its peers (pytorch#135712; torchrun
2.13 on gloo restarts into exactly that), so nothing of a store outlives its attempt. The
stores live in one process of their own, under the user's interpreter and its torch, and so
outlive rank 0. Where there is no torch, or that process has died, rank 0 hosts the store as
it does without a launcher. docs/use/several-nodes.md says what ranks see.

That process is forked by the node's fork server where one has torch: it shares the server's
memory (1.7 MiB of its own, ready in 23 ms), where one that loads torch by itself takes 74 MiB
and 1 s of a processor (measured with PyTorch 2.13 for the CPU). Until a server is ready
it is started by path, and the next attempt after that moves to a forked one. Of two processes only one
is ever given an attempt's socket: another one may get it when the end of the first one's channel proves
that nobody holds that channel any more, or the guardian that nothing was forked.

Not for several threads. Start it from the main thread: the kernel ends the process with the
thread that forked it.
"""

import json
import logging
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.hook import store_host
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Event, SpawnFailed
from recovery.launcher.host.interpreter import ask_interpreter
from recovery.launcher.ranks.environment import Rendezvous
from recovery.launcher.rendezvous.ports import PortRange, ReservedPort, reserve, reserve_exactly
from recovery.messages.exchange import Endpoint

log = logging.getLogger(__name__)

PROBE_S_MAX: Final = 30.0  # python and one look-up: 0.02 s here; a cold network file system
FIRST_SERVE_S_MAX: Final = 300.0  # with `import torch`: 1.2 s warm here; minutes on a cold one
SERVE_S_MAX: Final = 30.0  # torch is there: milliseconds; CONNECT_S_MAX of the host
DROP_S_MAX: Final = 5.0  # milliseconds
SEND_S_MAX: Final = 5.0  # the pair's buffer holds hundreds of messages, so it never waits
EXIT_S_MAX: Final = 5.0  # from SIGKILL to gone: milliseconds
DYING_S_MAX: Final = 1.0  # from the end of its socket to its exit status
FORKED_LOST_MAX: Final = 3  # forked processes that ended by themselves; after that none is forked
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
        reported = ask_interpreter(python, _PROBE, (), host_environment(environment), timeout_s)
    except LaunchError as error:
        raise LaunchError(f"can't query the torch of {python}: {error}") from error
    words = reported.words
    if reported.exit_code == 0 and words == ["absent"]:
        return None
    if reported.exit_code == 0 and len(words) == 2 and words[0] == "torch":
        try:
            build = TorchBuild(words[1])
            _ = build.can_host
        except (ValueError, IndexError) as error:
            raise LaunchError(f"{python} has torch of version {words[1]!r}") from error
        return build
    said = (reported.error or reported.line)[-STDERR_TAIL_BYTES:]
    raise LaunchError(f"can't query the torch of {python}: exit code {reported.exit_code}: {said}")


def host_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without what is for ranks only, and without devices."""
    retained = {
        name: value for name, value in environment.items() if not name.startswith(_RANKS_ONLY)
    }
    return {**retained, **_NO_DEVICES}


@dataclass(frozen=True, slots=True)
class StoreFork:
    """How the node's fork server forks a process for stores."""

    fork: Callable[
        [int, int], int | None
    ]  # from channel and output to its slot; None: impossible now
    kill: Callable[[int], None]  # by its slot


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """The process of the stores has failed. The text says who hosts from now on."""

    text: str
    attempts: tuple[int, ...]  # whose stores were lost with it


@dataclass(frozen=True, slots=True)
class _Origin:
    """With what a process is started."""

    python: str
    environment: Mapping[str, str]
    torch: TorchBuild


@dataclass(slots=True)
class _Host:
    """The process, our end of its socket, and what it owes us."""

    process: subprocess.Popen[bytes] | None  # None: forked, and a child of the guardian
    slot: int | None  # by which the guardian knows a forked one
    kill: Callable[[], None]
    channel: socket.socket
    stderr: IO[bytes]
    agent_store: str
    serving: set[int] = field(default_factory=set)
    asked_at_s: dict[int, float] = field(
        default_factory=dict
    )  # attempt -> when it was to be served
    listeners: dict[int, socket.socket] = field(default_factory=dict)  # of those, if forked
    undropped: set[int] = field(default_factory=set)
    has_served: bool = False
    error: str | None = None  # why it is lost
    is_gone: bool = False  # nobody holds the other end of its channel, or ever will


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
        self._origin: _Origin | None = None  # None: rank 0 hosts, unless there is a host
        self._host: _Host | None = None
        self._next_host: _Host | None = None  # a forked one, for the attempt after the present one
        self._ended: list[_Host] = []  # killed, and perhaps not reaped yet
        self._forked_lost = 0
        self._agent_store = "True"  # for a store that another node hosts, until our torch is known
        self._last_port: int | None = None
        self._proposed: ReservedPort | None = None

    @property
    def is_hosting(self) -> bool:
        """Whether the next attempt's store will be ours."""
        if self._host is None:
            return self._origin is not None
        return self._host.error is None

    @property
    def is_forked(self) -> bool:
        """Whether the process that serves now shares the memory of the fork server."""
        return self._host is not None and self._host.process is None

    def prepare(self, python: str, environment: Mapping[str, str], torch: TorchBuild) -> None:
        """Leave the start of the process to the first attempt, which can have it forked."""
        if not torch.can_host:
            raise LaunchError(f"torch {torch.version} can't serve a store on our socket")
        self._origin = _Origin(python, environment, torch)
        self._agent_store = torch.agent_store

    def start(self, python: str, environment: Mapping[str, str], torch: TorchBuild) -> None:
        """Start the process that serves the stores; it is ready when torch is imported."""
        assert self._host is None, "started once"
        self.prepare(python, environment, torch)
        self._start_host()

    def move(self, forked: StoreFork | None) -> None:
        """Have a process forked for the next attempt, where the present one has torch for itself alone.

        Call it when the fork server is ready and the ranks train.
        """
        host = self._host
        is_own = host is not None and host.process is not None
        if is_own and self._next_host is None and forked is not None:
            self._next_host = self._fork_host(forked)

    def take_event(self, event: Event) -> None:
        """Note from the guardian that a process was not forked: then there is none."""
        if not isinstance(event, SpawnFailed) or event.attempt != STANDBY_ATTEMPT:
            return
        for host in (self._host, self._next_host):
            if host is not None and host.slot == event.rank and host.error is None:
                host.error, host.is_gone = f"was not forked: {event.message}", True

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
        """Return the settings of ranks whose attempt meets at another node."""
        self._drop_all()
        agent_store = self._agent_store if endpoint.is_hosted else "False"
        return Rendezvous(endpoint.address, endpoint.port, endpoint.is_hosted, agent_store)

    def open_attempt(
        self, attempt: int, port: int | None = None, forked: StoreFork | None = None
    ) -> Rendezvous:
        """Return where the ranks of ``attempt`` meet, and drop the store of every other one.

        ``port``: the one that was proposed for it. Call it just before the ranks start: where
        rank 0 hosts, the port is free from now on. A store process that turns out dead is no
        error here; `poll` returns it. ``forked``: how the process can be had, if it isn't there.
        """
        self._drop_all()
        self._choose_host(forked)
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
        if (listener := host.listeners.pop(attempt, None)) is not None:
            listener.close()
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
        self._look_after_others()
        if host.error is None:
            return None
        self._host = None
        return self._take_loss(host)

    def close(self) -> None:
        """End the store process and every store."""
        self.withdraw()
        for host in (self._host, self._next_host, *self._ended):
            if host is not None:
                host.kill()
                self._end(host)
        self._host = self._next_host = self._origin = None
        self._ended.clear()

    # The processes.

    def _start_host(self) -> None:
        """Start a process that imports torch by itself."""
        assert self._origin is not None, "prepared"
        python = self._origin.python
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            process = subprocess.Popen(
                [python, str(Path(store_host.__file__).resolve())],
                env=host_environment(self._origin.environment),
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
        self._host = _Host(process, None, process.kill, ours, stderr, self._agent_store)

    def _fork_host(self, forked: StoreFork) -> _Host | None:
        if self._origin is None or self._forked_lost >= FORKED_LOST_MAX:
            return None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        with theirs:
            slot = forked.fork(theirs.fileno(), stderr.fileno())
        if slot is None:
            ours.close()
            stderr.close()
            return None
        ours.settimeout(SEND_S_MAX)
        return _Host(None, slot, lambda: forked.kill(slot), ours, stderr, self._agent_store)

    def _choose_host(self, forked: StoreFork | None) -> None:
        """Take the process for the next attempt: a forked one, else the present one, else a new one."""
        self._look_after_others()
        if self._next_host is not None:
            if self._host is not None:
                self._retire(self._host)
            self._host, self._next_host = self._next_host, None
        host = self._host
        if host is not None and host.process is None:
            self._read_replies(host, 0.0)
            if host.error is not None:
                self._host = None
                self._take_loss(host)  # it serves nothing now
        if self._host is not None or self._origin is None:
            return
        if forked is not None:
            self._host = self._fork_host(forked)
        if self._host is None:
            try:
                self._start_host()
            except LaunchError as error:
                self._origin = None
                log.warning("%s; rank 0 hosts the rendezvous store", error)

    def _retire(self, host: _Host) -> None:
        """End a process whose stores nobody uses any more, without waiting until its memory is freed."""
        host.kill()
        if isinstance(self._ports, PortRange):
            self._ended.append(host)
        else:
            self._end(host)  # the next store listens on the same port

    def _look_after_others(self) -> None:
        """Forget a process for the next attempt that has ended, and reap those that were killed."""
        waiting = self._next_host
        if waiting is not None:
            self._read_replies(waiting, 0.0)
            if waiting.error is not None:
                self._next_host = None
                self._forked_lost += 1
                log.info("%s; it had served no attempt", self._end(waiting))
        for host in [
            item for item in self._ended if item.process and item.process.poll() is not None
        ]:
            self._ended.remove(host)
            self._end(host)

    def _take_loss(self, host: _Host) -> StoreFailure | None:
        """Replace a forked process that is lost; return what was lost with it."""
        if host.process is not None:
            self._origin = None if self._next_host is None else self._origin
            hosts_next = "rank 0" if self._origin is None else "another process"
            text = f"{self._end(host)}; {hosts_next} hosts the store from the next attempt on"
            return StoreFailure(text, tuple(sorted(host.serving)))
        self._forked_lost += 1
        owed = {}
        if host.is_gone:
            owed, host.listeners = host.listeners, {}
        else:
            host.kill()  # it hangs, and may yet accept a connection: nobody else gets its socket
        text = f"{self._end(host)}; another process hosts the store from the next attempt on"
        lost = tuple(sorted(host.serving - owed.keys()))
        if not owed:
            return StoreFailure(text, lost)
        try:
            self._start_host()
        except LaunchError as error:
            self._origin = None
            for listener in owed.values():
                listener.close()
            return StoreFailure(f"{text}: {error}", tuple(sorted(host.serving)))
        for attempt, listener in owed.items():  # its ranks wait in the backlog
            assert self._host is not None, "just started"
            with listener:
                self._hand_over(self._host, attempt, listener)
        if lost:
            return StoreFailure(text, lost)
        log.info("%s; a new process has taken over, and no rank notices", text)
        return None

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
        return self._hand_over(host, attempt, reserved.listen())

    def _hand_over(self, host: _Host, attempt: int, listener: socket.socket) -> bool:
        if not self._send(host, {"do": "serve", "attempt": attempt}, listener.fileno()):
            return False
        if host.process is None:  # it may never come
            host.listeners[attempt] = listener.dup()
        host.serving.add(attempt)
        host.asked_at_s[attempt] = self._clock.now_s()
        return True

    def _send(self, host: _Host, command: dict[str, object], *descriptors: int) -> bool:
        try:
            socket.send_fds(host.channel, [json.dumps(command).encode("ascii")], descriptors)
        except OSError as error:
            host.error = f"cannot be asked to {command['do']} attempt {command['attempt']}: {error}"
            host.kill()  # a hanging one: its end makes `fileno` readable
            return False
        return True

    def _read_replies(self, host: _Host, wait_s: float) -> None:
        """Process the messages of the process; wait at most ``wait_s`` for a first one."""
        while host.error is None:
            host.channel.settimeout(wait_s)
            try:
                data = host.channel.recv(store_host.MESSAGE_BYTES_MAX)
            except (BlockingIOError, TimeoutError):
                return
            except OSError as error:
                host.error, host.is_gone = f"has closed its socket: {error}", True
                return
            finally:
                host.channel.settimeout(SEND_S_MAX)
            wait_s = 0.0
            if data:
                _note_reply(host, json.loads(data))
            else:
                host.error, host.is_gone = "has ended", True

    def _end(self, host: _Host) -> str:
        """Reap the process, and return what is known of its end."""
        host.channel.close()
        for listener in host.listeners.values():
            listener.close()
        process = host.process
        if process is not None:
            try:
                process.wait(DYING_S_MAX)
            except subprocess.TimeoutExpired:
                host.kill()
                try:
                    process.wait(EXIT_S_MAX)
                except subprocess.TimeoutExpired:
                    host.error = f"{host.error}; still there {EXIT_S_MAX:.0f} s after SIGKILL"
        with host.stderr:
            size = host.stderr.seek(0, 2)
            host.stderr.seek(max(0, size - STDERR_TAIL_BYTES))
            text = host.stderr.read().decode("utf-8", "replace").strip()
        code = None if process is None else process.returncode
        end = "" if code is None else f" ({_describe_exit(code)})"
        return f"the rendezvous store {host.error}{end}" + (f": {text}" if text else "")


def _note_reply(host: _Host, reply: dict[str, object]) -> None:
    if "serving" in reply:
        host.has_served = True
        attempt = _attempt(reply["serving"])
        host.asked_at_s.pop(attempt, None)
        if (listener := host.listeners.pop(attempt, None)) is not None:
            listener.close()
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
