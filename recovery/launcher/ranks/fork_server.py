"""The launcher's side of the fork server of its node (`rankmend.hook.fork_server`).

Its life: learn what the ranks import (they tell at their first step), start the server once all ranks train, fork
from it whenever ranks start, and start another one when it has ended. Like a standby it is a child of the guardian
with a mark above all attempts, and dies with it. Whatever goes wrong with it, ranks start without it.
"""

import contextlib
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.foreign_links import open_new
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Event, Exited, Spawned, SpawnFailed
from recovery.launcher.guardian.rank_process import SpawnBody, encode_body
from recovery.launcher.ranks.shared_imports import share
from recovery.launcher.ranks.standbys import WAITING_MAIN, log_end, waiting_environment

log = logging.getLogger(__name__)

FIRST_SLOT: Final = 1 << 20  # above those of standbys
TRY_S_MAX: Final = 300.0  # to import one package, perhaps from a cold network file system
READY_S_MAX: Final = (
    1500.0  # 900 s in which it begins to try a package, the last one, and 300 s more
)
FAILURES_MAX: Final = 3  # servers that ended by themselves or forked no rank; after that no more
FORGIVEN_AFTER_S: Final = 600.0  # a server that has been ready so long clears those before it
RETRY_S: Final = 60.0  # until the next try where this process has no room for a server
_IMPORTS_BYTES_MAX: Final = 8 << 20  # 3,500 modules of lightning take 0.4 MB
_WORD_BYTES_MAX: Final = 128 << 10
_SHOWN_MAX: Final = 20
_MAIN: Final = WAITING_MAIN + "from rankmend.hook.fork_server import main; main()"


class ServerState(Enum):
    """What the fork server of a node can do."""

    LEARNING = "learning"  # no list of imports yet
    WAITING = "waiting"  # has the list, and is started once all ranks train
    STARTING = "starting"  # imports
    READY = "ready"
    ENDING = "ending"  # has closed its socket; the guardian will say how it ended
    GIVEN_UP = "given up"


_ALIVE: Final = (ServerState.STARTING, ServerState.READY, ServerState.ENDING)


class ForkServer:
    """For the launcher's thread alone."""

    def __init__(
        self,
        python: str,
        count: int,
        job_id: str,
        environment: Mapping[str, str],
        folder: Path,
        site: Path,
        clock: Clock,
        node: str | None = None,
        *,
        try_s_max: float = TRY_S_MAX,
    ) -> None:
        """``count``: ranks of this node. ``folder``: private to this user, for a list and the output.

        ``try_s_max``: seconds to import one package, before it is left out. The server runs in the folder
        of this process, as ranks do.
        """
        self._python = python
        self._count = count
        self._job_id = job_id
        self._environment = environment
        self._folder = folder
        self._site = site
        self._clock = clock
        self._node = node
        self._try_s_max = try_s_max
        self._sources: list[Path] = []  # in which the ranks tell of their imports
        self._imports = b""
        self._slot = FIRST_SLOT - 1  # of the newest server
        self._pid = 0
        self._channel: socket.socket | None = None
        self._started_at_s = 0.0
        self._ready_at_s: float | None = None
        self._not_before_s = 0.0
        self._failures = 0
        self.state = ServerState.LEARNING
        self.why_not = "no rank has made a step yet, so what they import isn't known"
        """Why no rank is forked now; empty when all goes well."""
        self.left_out: dict[str, str] = {}  # package: why each rank imports it by itself

    @property
    def is_learning(self) -> bool:
        return self.state is ServerState.LEARNING

    @property
    def pid(self) -> int:
        """The server's process; 0: none."""
        return self._pid

    def learn_from(self, sources: Iterable[Path]) -> None:
        """Read what the ranks import from these files once all have been written."""
        self._sources = list(sources)

    def tick(self, guardian: Guardian, *, may_start: bool) -> None:
        """Take in what the server says, and start one if there is none."""
        self._hear()
        now_s = self._clock.now_s()
        if self.state is ServerState.STARTING and now_s - self._started_at_s >= READY_S_MAX:
            self._stop(guardian, f"it was not ready within {READY_S_MAX:g} s")
        if not may_start:
            return
        if self.state is ServerState.LEARNING:
            self._learn()
        if self.state is ServerState.WAITING and now_s >= self._not_before_s:
            self._start(guardian, now_s)

    def fork(self, guardian: Guardian, spawn: Spawn) -> bool:
        """Have this rank forked; False if that is impossible now (`why_not` says why)."""
        self._hear()
        if self.state is not ServerState.READY or spawn.argv[0] != self._python:
            return False
        assert self._channel is not None
        request = json.dumps({"attempt": spawn.attempt}).encode()
        with contextlib.ExitStack() as stack:
            try:
                body = _memory_file(SpawnBody(spawn.argv, spawn.env, spawn.cwd, spawn.cpus))
                stack.callback(os.close, body)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            except OSError as error:
                self.why_not = f"this launcher can't order a fork: {error.strerror}"
                return False
            stack.enter_context(ours)
            stack.enter_context(theirs)
            self.why_not = ""
            # The guardian first: if the server does not get it, the guardian sees that the link is closed.
            guardian.expect_fork(spawn.attempt, spawn.rank, ours.fileno())
            descriptors = [theirs.fileno(), body, spawn.stdout_fd, spawn.stderr_fd]
            if spawn.stdin_fd is not None:
                descriptors.append(spawn.stdin_fd)
            try:
                socket.send_fds(self._channel, [request], descriptors)
            except OSError as error:  # dead or stopped: the guardian says that no rank came
                log.warning("the fork server took no order: %s", error)
        return True

    def note_failed_fork(self, guardian: Guardian, failed: SpawnFailed) -> None:
        """Take a server that has forked no rank out of use."""
        self._hear()  # it may have ended, and said why
        if self.state is ServerState.READY and failed.errno in (errno.ETIMEDOUT, errno.ESRCH):
            self._stop(guardian, failed.message)

    def take_event(self, event: Event) -> bool:
        """Note the guardian's report on a server; False if it is about another process."""
        match event:
            case Spawned(rank=slot, pid=pid) if slot >= FIRST_SLOT:
                if slot == self._slot:
                    self._pid = pid
            case SpawnFailed(rank=slot, message=message) if slot >= FIRST_SLOT:
                self._note_end(slot, message)
            case Exited(rank=slot, exit_code=code, signal=signum) if slot >= FIRST_SLOT:
                self._note_end(slot, f"exit code {code}" if signum is None else f"signal {signum}")
            case _:
                return False
        return True

    def forget(self) -> None:
        """Forget a server that died with its guardian."""
        self._drop_channel()
        if self.state in _ALIVE:
            self._wait_for_calm("the fork server ended with its guardian")

    def close(self) -> None:
        self._drop_channel()

    # The list of imports.

    def _learn(self) -> None:
        told = []
        for path in self._sources:
            try:
                with path.open("rb") as file:
                    told.append(json.loads(file.read(_IMPORTS_BYTES_MAX)))
            except OSError:
                self.why_not = "the ranks have not told what they import"
                return
            except ValueError:
                self._give_up(f"{path.name} is no list of imports")
                return
        if told:
            try:
                self._imports = json.dumps(share(told)).encode()
            except ValueError as error:
                self._give_up(f"a rank has told {error}")
                return
            self._wait_for_calm("the fork server has not started yet")

    # The server.

    def _start(self, guardian: Guardian, now_s: float) -> None:
        self._slot += 1
        imports = self._folder / "imports.json"
        numbers = (str(self._try_s_max), str(self._count))
        argv = (self._python, "-u", "-c", _MAIN, str(imports), *numbers)
        environment = waiting_environment(
            self._environment, self._site, self._job_id, self._node, self._count
        )
        with contextlib.ExitStack() as stack:
            try:
                imports.write_bytes(self._imports)
                output = open_new(self._log())
                stack.callback(os.close, output)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.enter_context(theirs)
                spawn = Spawn(
                    attempt=STANDBY_ATTEMPT,
                    rank=self._slot,
                    argv=argv,
                    env=environment,
                    cwd=str(Path.cwd()),
                    stdout_fd=output,
                    stderr_fd=output,
                    stdin_fd=theirs.fileno(),
                )
            except OSError as error:  # for now: no room, or no descriptor left
                self._not_before_s = now_s + RETRY_S
                self._wait_for_calm(f"the fork server can't start: {error}")
                log.warning("%s", self.why_not)
                return
            try:
                guardian.spawn(spawn)
            except LaunchError as error:
                ours.close()
                self._note_failure(str(error))
                return
        ours.setblocking(False)
        self._channel, self._started_at_s, self._pid = ours, now_s, 0
        self._ready_at_s = None
        self.state = ServerState.STARTING
        self.why_not = "the fork server is still importing"

    def _hear(self) -> None:
        """Take in what the server has said; its end comes as an event of the guardian."""
        while self._channel is not None:
            try:
                word = json.loads(self._channel.recv(_WORD_BYTES_MAX) or b"{}")
            except (BlockingIOError, ConnectionError):
                return
            except ValueError:
                word = {}
            match word:
                case {"left_out": dict(left_out), "imported": int(count)}:
                    self._note_ready(left_out, count)
                case {"failed": str(reason)}:
                    self._give_up(reason)
                case {"stale": str(path)}:
                    self._drop_channel()
                    self.state = ServerState.LEARNING
                    self.why_not = f"{path} has changed since the fork server imported it"
                    log.warning("%s: the ranks start without it", self.why_not)
                case _:  # closed
                    self._drop_channel()
                    self.state = ServerState.ENDING
                    self.why_not = "the fork server has ended"

    def _note_ready(self, left_out: dict[str, str], count: int) -> None:
        self.state = ServerState.READY
        self._ready_at_s = self._clock.now_s()
        self.why_not = ""
        self.left_out = left_out
        with contextlib.suppress(OSError):
            self._log().unlink()
        log.info("the fork server is ready, with %d modules", count)
        for package, reason in list(left_out.items())[:_SHOWN_MAX]:
            log.warning("the fork server leaves out %s: it %s", package, reason)

    def _note_end(self, slot: int, how: str) -> None:
        if slot != self._slot:
            return
        self._hear()
        self._pid = 0
        if self.state in _ALIVE:
            self._note_failure(f"{how}: {log_end(self._log())}")

    def _stop(self, guardian: Guardian, reason: str) -> None:
        with contextlib.suppress(LaunchError):  # the guardian is gone, and the server with it
            guardian.signal(STANDBY_ATTEMPT, signal.SIGKILL, [self._slot])
        self._slot += 1  # its end is expected
        self._note_failure(reason)

    def _note_failure(self, reason: str) -> None:
        self._drop_channel()
        now_s = self._clock.now_s()
        if self._ready_at_s is not None and now_s - self._ready_at_s >= FORGIVEN_AFTER_S:
            self._failures = 0
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._give_up(reason)
            return
        log.warning("the fork server ended: %s", reason)
        self._wait_for_calm("the fork server has ended")

    def _wait_for_calm(self, why_not: str) -> None:
        self.state = ServerState.WAITING
        self.why_not = why_not

    def _give_up(self, reason: str) -> None:
        self._drop_channel()
        self.state = ServerState.GIVEN_UP
        self.why_not = reason
        log.warning("no rank will be forked: %s", reason)

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _log(self) -> Path:
        return self._folder / f"fork-server-{self._slot - FIRST_SLOT}.log"


def _memory_file(body: SpawnBody) -> int:
    """Return a descriptor of an unnamed file with this body."""
    descriptor = os.memfd_create("rankmend-fork", os.MFD_CLOEXEC)
    try:
        left = memoryview(encode_body(body))
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
