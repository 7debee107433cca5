"""The launcher's side of its guardian, the process that forks and outlives the ranks.

`Guardian` may be used from several threads, `read_events` only from one. Its calls only send requests: the
answers are events, and `fileno` is readable when there are any. After `GuardianLost` the ranks
are dead, and `processes.process_tree.fence_leftovers` finds the processes that they had started.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeGuard

from rankmend.errors import LaunchError, SourceError
from rankmend.hook.layout import ENV_ATTEMPT, ENV_JOB_ID
from rankmend.milestones import ENV_MILESTONES_FD, milestones_descriptor
from rankmend.parts_path import PACKAGE_ROOT, PARTS_ROOT, program
from recovery.launcher.guardian.packets import (
    PACKET_BYTES_MAX,
    TEXT_MAX,
    AdoptCommand,
    Command,
    DismissCommand,
    Event,
    ForkCommand,
    GuardianLost,
    KillCommand,
    LastWordCommand,
    LeaseCommand,
    Message,
    ProgressHolder,
    Ready,
    SignalCommand,
    SpawnCommand,
    decode,
    encode,
)
from recovery.launcher.guardian.rank_process import BODY_BYTES_MAX, SpawnBody, encode_body
from recovery.launcher.processes.process_tree import ENV_GUARDIAN, ENV_LAUNCHER, ENV_NODE
from recovery.launcher.processes.standing import own_mark

# 0.05 s measured; an interpreter on a cold network disk takes seconds, on a node with a load of 60 a processor more than 10.
START_S_MAX: Final = 60.0
LAST_S_MAX: Final = (
    5.0  # its socket closes a moment before the process ends; seconds on a busy node
)
SEND_S_MAX: Final = 10.0  # the guardian takes a command in about 2 ms
CLOSE_S_MAX: Final = 30.0  # 40 ms of teardown for each GB of a rank
_LOG_BYTES_MAX: Final = 1 << 20
_EVENTS_A_READ: Final = 4096


@dataclass(frozen=True, slots=True)
class Spawn:
    """One rank to be started. Its descriptors stay the caller's."""

    attempt: int
    rank: int
    argv: Sequence[str]
    env: Mapping[str, str]  # the whole environment, with the marks that rankmend.hook.layout names
    cwd: str
    stdout_fd: int
    stderr_fd: int
    stdin_fd: int | None = None  # None: /dev/null
    cpus: Sequence[int] = ()  # processors to bind the rank to; empty: not bound
    is_contained: bool = False  # the rank runs behind the program, perhaps in a container


class Guardian:
    def __init__(
        self, link: socket.socket, process: subprocess.Popen[bytes], log: IO[bytes]
    ) -> None:
        """Take over the process and socket from `start`."""
        self._link = link
        self._process = process
        self._log = log  # the guardian's stderr: empty until it fails
        self._lock = threading.Lock()
        self._is_lost = False

    @classmethod
    def start(
        cls,
        job_id: str,
        executable: str = sys.executable,
        node: str | None = None,
        process_list: Path | None = None,
        held_open: Collection[int] = (),
    ) -> "Guardian":
        """Start a guardian for this process and return once it serves.

        ``node``: it kills marked processes that name this node or none; None: all of the job's.
        ``process_list``: the file in which it lists its descendants (`processes.process_list`).
        ``held_open``: descriptors that it and the ranks keep open until they end.
        """
        if not executable:
            raise LaunchError("cannot start the guardian: the path of this Python is unknown")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = [theirs.fileno(), *held_open]
        if (milestones := milestones_descriptor()) is not None:
            descriptors.append(milestones)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the guardian
        with theirs:
            argv = [executable, "-I", "-S", *program("recovery.launcher.guardian.main")]
            argv += [str(theirs.fileno()), str(os.getpid()), job_id, node or ""]
            argv.append("" if process_list is None else str(process_list.absolute()))
            try:
                with _signals_blocked():
                    process = subprocess.Popen(
                        argv,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=log,
                        env=_guardian_environment(job_id, node),
                        pass_fds=descriptors,
                        start_new_session=True,
                    )
            except OSError as error:
                ours.close()
                log.close()
                raise LaunchError(f"cannot start the guardian {argv}: {error.strerror}") from error
        ours.setblocking(False)
        guardian = cls(ours, process, log)
        guardian._await_ready()
        return guardian

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are events."""
        return self._link.fileno()

    def spawn(self, spawn: Spawn) -> None:
        """Ask for one rank: `Spawned` or `SpawnFailed` follows."""
        if not spawn.argv or not spawn.argv[0]:
            raise LaunchError(f"rank {spawn.rank} has no program to run")
        folder = str(Path(spawn.cwd).absolute())
        body = encode_body(SpawnBody(spawn.argv, spawn.env, folder, spawn.cpus))
        if len(body) > BODY_BYTES_MAX:
            raise LaunchError(
                f"arguments and environment of rank {spawn.rank} are {len(body)} bytes as JSON, "
                f"the limit is {BODY_BYTES_MAX}"
            )
        with _anonymous_file(body) as file:
            descriptors = [file.fileno(), spawn.stdout_fd, spawn.stderr_fd]
            if spawn.stdin_fd is not None:
                descriptors.append(spawn.stdin_fd)
            command = SpawnCommand(spawn.attempt, spawn.rank, spawn.is_contained)
            self._send(command, descriptors)

    def expect_fork(self, attempt: int, rank: int, link_fd: int, within_s: float) -> None:
        """Have the guardian expect a rank that reports through this link.

        `Spawned` follows once it runs the program, or `SpawnFailed`, after ``within_s`` at the latest.
        """
        self._send(ForkCommand(attempt, rank, within_s), [link_fd])

    def adopt(self, slot: int, attempt: int, rank: int) -> None:
        """Make the standby that was spawned as ``(STANDBY_ATTEMPT, slot)`` a rank.

        `Spawned` follows, or `SpawnFailed` with ESRCH if the standby is gone.
        """
        self._send(AdoptCommand(slot, attempt, rank))

    def signal(
        self,
        attempt: int,
        signum: int,
        ranks: Collection[int] | None = None,
        holders: Collection[ProgressHolder] = (),
    ) -> None:
        """Send a signal to running ranks, SIGKILL to their process groups; None means all of them.

        ``holders`` of progress files receive it in place of their leaders (`rank_signals`).
        """
        chosen = None if ranks is None else tuple(ranks)
        self._send(SignalCommand(attempt, int(signum), chosen, tuple(holders)))

    def kill_through(self, attempt: int) -> None:
        """Kill every process of all attempts up to this one: `Emptied` follows the proof.

        That includes all descendants of ranks, in any session; no rank of these attempts starts
        afterwards. `KillPending` names processes that don't go.
        """
        self._send(KillCommand(attempt))

    def lease(self, attempt: int, until_s: float | None) -> None:
        """Let all attempts up to this one be killed at ``until_s`` (CLOCK_BOOTTIME), unless prolonged.

        The guardian does it by itself, even if this process is stopped, and reports `LeaseExpired`.
        None cancels the lease.
        """
        self._send(LeaseCommand(attempt, until_s))

    def wake(self) -> None:
        """Continue a stopped guardian (SIGCONT); a running one is unaffected."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill the guardian and with it its ranks: `GuardianLost` follows."""
        self._process.kill()

    def leave_word(self, body: bytes) -> None:
        """Have `last_word` sent with this body if this process is killed; the newest body counts.

        The body may contain a token: it never goes on a command line, into an environment or a named file.
        """
        # Run like the guardian, with this process's import paths; ours may be a hook's.
        entries = (PARTS_ROOT, *sys.path, PACKAGE_ROOT)
        paths = [str(Path(entry).absolute()) for entry in entries]
        argv = (sys.executable, "-I", "-S", str(Path(__file__).with_name("last_word.py")), *paths)
        with _anonymous_file(body) as file:
            self._send(LastWordCommand(argv), [file.fileno()])

    def read_events(self) -> list[Event]:
        """Return the events since the last call, without waiting."""
        events: list[Event] = []
        while not self._is_lost and len(events) < _EVENTS_A_READ:
            try:
                message = self._receive()
            except BlockingIOError:
                break
            except (ConnectionError, SourceError) as error:
                self._is_lost = True
                events.append(GuardianLost(self._describe_loss(error)))
            else:
                if _is_event(message):
                    events.append(message)
        return events

    def close(self, timeout_s: float = CLOSE_S_MAX) -> bool:
        """Let the guardian kill all remaining processes and exit; return whether it proved that none is left.

        If it is not done in time, it continues by itself, for at most 10 minutes.
        """
        with contextlib.suppress(LaunchError):  # the guardian is gone
            self._send(DismissCommand())
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        self._link.close()
        self._log.close()
        return code == 0

    def _await_ready(self) -> None:
        reason = f"it sent nothing for {START_S_MAX:.0f} s"
        if self._wait(select.POLLIN, START_S_MAX):
            try:
                if isinstance(self._receive(), Ready):
                    return
                reason = "it did not report that it is ready"
            except (ConnectionError, SourceError) as error:
                reason = self._describe_loss(error)
        self._process.kill()
        self.close()
        raise LaunchError(f"cannot start the guardian: {reason}")

    def _wait(self, mask: int, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._link, mask)
        return bool(poll.poll(timeout_s * 1000))

    def _receive(self) -> Message:
        packet = self._link.recv(PACKET_BYTES_MAX)
        if not packet:
            raise ConnectionResetError(errno.ECONNRESET, "the socket was closed")
        return decode(packet)

    def _send(self, command: Command, descriptors: Sequence[int] = ()) -> None:
        packet = encode(command)
        deadline_s = time.monotonic() + SEND_S_MAX
        with self._lock:
            while True:
                try:
                    socket.send_fds(self._link, [packet], descriptors)
                except OSError as error:
                    # The socket is full, or (ETOOMANYREFS) too many descriptors are in flight.
                    if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS):
                        raise LaunchError(
                            f"{command} did not reach the guardian: {error}"
                        ) from error
                    if time.monotonic() >= deadline_s:
                        reason = f"it has accepted no command for {SEND_S_MAX:.0f} s"
                        raise LaunchError(
                            f"{command} did not reach the guardian: {reason}"
                        ) from error
                else:
                    return
                self._wait(select.POLLOUT, 0.1)
                time.sleep(0.001)  # with too many descriptors the socket stays writable

    def _describe_loss(self, error: Exception) -> str:
        try:
            code = self._process.wait(LAST_S_MAX)
        except subprocess.TimeoutExpired:
            return f"{error}, and its process {self.pid} still runs"
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        self._log.seek(0)
        said = self._log.read(_LOG_BYTES_MAX).decode("utf-8", "replace").strip()[-TEXT_MAX:]
        return f"{how}: {said}" if said else how


def _is_event(message: Message) -> TypeGuard[Event]:
    return isinstance(message, Event)


def _guardian_environment(job_id: str, node: str | None) -> dict[str, str]:
    """Return our environment (an interpreter may need LD_LIBRARY_PATH) with a guardian's mark."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (ENV_JOB_ID, ENV_ATTEMPT, ENV_NODE)
    }
    environment[ENV_GUARDIAN] = job_id
    environment[ENV_LAUNCHER] = own_mark()
    if node is not None:
        environment[ENV_NODE] = node
    if (descriptor := milestones_descriptor()) is not None:
        environment[ENV_MILESTONES_FD] = str(descriptor)
    return environment


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals, so that a process started meanwhile gets none before it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _anonymous_file(content: bytes) -> Iterator[IO[bytes]]:
    """Give an unnamed file with this content, in memory if this Python can."""
    try:
        file: IO[bytes] = os.fdopen(os.memfd_create("rankmend-spawn"), "w+b")
    except (OSError, AttributeError):
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    with file:
        file.write(content)
        file.flush()
        yield file
