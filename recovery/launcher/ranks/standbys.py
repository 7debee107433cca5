"""Standbys: processes that have imported the framework and can become ranks at once.

One per rank of this node, started one after another once all ranks train, so that they never
compete with a start. Like ranks they are children of the guardian and die with it. Their mark has an
attempt number above all others, so they belong to no attempt until they are promoted. They run
`rankmend.hook.standby`.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.hook import layout
from rankmend.hook.becoming import ROOM_FOR_TITLE
from rankmend.own_folder import open_new
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Event, Exited, Spawned, SpawnFailed
from recovery.launcher.guardian.rank_process import SpawnBody, encode_body
from recovery.launcher.processes.process_tree import ENV_LAUNCHER, ENV_NODE
from recovery.launcher.processes.standing import own_mark

log = logging.getLogger(__name__)

READY_S_MAX: Final = 300.0  # to import the framework from a cold network file system
FAILURES_MAX: Final = 3  # standbys that ended by themselves; after that no more are started
_SEND_S_MAX: Final = 1.0  # a ready standby accepts its message in well under a millisecond
_TAIL_BYTES: Final = 2000
_WORD_BYTES_MAX: Final = 64
# The folder in which Python runs is no place for the modules of a rank; that of its script is (`becoming.run`).
WAITING_MAIN: Final = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
_MAIN: Final = WAITING_MAIN + "from rankmend.hook.standby import main; main()"


@dataclass(slots=True)
class _Standby:
    slot: int
    started_at_s: float
    channel: socket.socket  # its standard input, until it has become a rank
    pid: int = 0
    is_ready: bool = False


def waiting_environment(
    base: Mapping[str, str], site: Path, job_id: str, node: str | None, count: int
) -> dict[str, str]:
    """Return the environment of a process that waits to become one of ``count`` ranks.

    Without what differs between ranks and attempts. Its mark belongs to no attempt.
    """
    environment = {
        name: value
        for name, value in base.items()
        if not name.startswith("RANKMEND_") and name not in layout.RANK_VARIABLES
    }
    path = base.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{site}{os.pathsep}{path}" if path else str(site)
    environment[layout.ENV_JOB_ID] = job_id
    environment[layout.ENV_ATTEMPT] = str(STANDBY_ATTEMPT)
    environment[ENV_LAUNCHER] = own_mark()
    if node is not None:
        environment[ENV_NODE] = node
    if count > 1:
        # like a rank, because it is read at import
        environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return environment


def log_end(path: Path) -> str:
    """Return the last lines that a waiting process has printed into its log."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip() or "it sent nothing"
    except OSError:
        return "it sent nothing"


class StandbyPool:
    """The standbys of one node. For the launcher's thread alone."""

    def __init__(
        self,
        python: str,
        imports: str | None,
        count: int,
        job_id: str,
        environment: Mapping[str, str],
        folder: Path,
        site: Path,
        clock: Clock,
        node: str | None = None,
    ) -> None:
        """``imports``: as `stand_by` takes it; None: none is started before that is called.
        ``folder``: private to this user, for the output of standbys.

        They run in the folder of this process, as ranks do.
        ``node``: a mark beside the job's, if several nodes are on one machine.
        """
        self._python = python
        self._imports = imports
        self._count = count
        self._job_id = job_id
        self._environment = environment
        self._folder = folder
        self._site = site
        self._clock = clock
        self._node = node
        self._standbys: dict[int, _Standby] = {}
        self._next_slot = 0
        self._failures = 0

    @property
    def ready(self) -> int:
        return sum(standby.is_ready for standby in self._standbys.values())

    def stand_by(self, imports: str) -> None:
        """Start standbys that import these modules (``torch,numpy``) or what a list names (an absolute path).

        Without effect where a person has named modules.
        """
        self._imports = self._imports or imports

    def tick(self, guardian: Guardian, *, may_start: bool) -> None:
        """Hear of standbys that are ready, and start the next one if there is room."""
        self._hear()
        now_s = self._clock.now_s()
        starting = [item for item in self._standbys.values() if not item.is_ready]
        for standby in starting:
            if now_s - standby.started_at_s >= READY_S_MAX and standby.pid:
                with contextlib.suppress(
                    LaunchError
                ):  # the guardian is gone, and the standby with it
                    guardian.signal(STANDBY_ATTEMPT, signal.SIGKILL, [standby.slot])
        is_done = self._failures >= FAILURES_MAX or len(self._standbys) >= self._count
        is_done = is_done or self._imports is None
        if may_start and not starting and not is_done:
            self._start(guardian, now_s)

    def note_spawned(self, slot: int, pid: int) -> None:
        if slot in self._standbys:
            self._standbys[slot].pid = pid

    def note_ended(self, slot: int, how: str) -> None:
        """Forget a standby that has ended by itself or never started."""
        standby = self._standbys.pop(slot, None)
        if standby is None:
            return
        standby.channel.close()
        self._failures += 1
        last = " (no more will be started)" if self._failures >= FAILURES_MAX else ""
        log.warning("a standby ended: %s%s: %s", how, last, log_end(self._log(slot)))

    def promote(self, guardian: Guardian, spawn: Spawn, tells_to: Path | None = None) -> bool:
        """Make a ready standby the rank to spawn; False if none is ready.

        ``tells_to``: the file in which a rank of a list reports what else it imports.
        """
        if len(spawn.argv) < 3 or spawn.argv[0] != self._python:
            return False
        self._hear()
        ready = next((standby for standby in self._standbys.values() if standby.is_ready), None)
        if ready is None:
            return False
        env = spawn.env
        if tells_to is not None and self._has_list:
            env = {**env, layout.ENV_IMPORTS_FILE: str(tells_to)}
        del self._standbys[ready.slot]
        # Adopt it first and send the message then: everything that it starts is fenced from the beginning.
        guardian.adopt(ready.slot, spawn.attempt, spawn.rank)
        body = encode_body(SpawnBody(spawn.argv, env, spawn.cwd, spawn.cpus))
        ready.channel.settimeout(_SEND_S_MAX)
        try:
            descriptor = os.memfd_create("rankmend-standby", os.MFD_CLOEXEC)
            with os.fdopen(descriptor, "w+b") as file:
                file.write(body)
                file.flush()
                descriptors = [file.fileno(), spawn.stdout_fd, spawn.stderr_fd]
                if spawn.stdin_fd is not None:
                    descriptors.append(spawn.stdin_fd)
                socket.send_fds(ready.channel, [b"go"], descriptors)
        except OSError as error:  # it died meanwhile, which counts as the rank's end
            log.warning("a standby process did not start its rank: %s", error)
        finally:
            ready.channel.close()
        return True

    def take_event(self, event: Event) -> None:
        """Note the guardian's report on a standby."""
        match event:
            case Spawned(rank=slot, pid=pid):
                self.note_spawned(slot, pid)
            case SpawnFailed(rank=slot, message=message):
                self.note_ended(slot, message)
            case Exited(rank=slot, exit_code=code, signal=signum):
                how = f"exit code {code}" if signum is None else f"signal {signum}"
                self.note_ended(slot, how)

    def forget_all(self) -> None:
        """Forget standbys that died with their guardian."""
        for standby in self._standbys.values():
            standby.channel.close()
        self._standbys.clear()

    @property
    def _has_list(self) -> bool:
        return self._imports is not None and self._imports.startswith("/")

    def _start(self, guardian: Guardian, now_s: float) -> None:
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        environment = waiting_environment(
            self._environment, self._site, self._job_id, self._node, self._count
        )
        assert self._imports is not None, "else none is started"
        argv = (self._python, "-u", "-c", _MAIN, self._imports, ROOM_FOR_TITLE)
        with contextlib.ExitStack() as stack:
            try:
                folder = str(Path.cwd())
                output = open_new(self._log(slot))
                stack.callback(os.close, output)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.enter_context(theirs)
            except OSError as error:
                self._failures = FAILURES_MAX
                log.warning("no standby processes: they can't start: %s", error)
                return
            ours.setblocking(False)
            spawn = Spawn(
                attempt=STANDBY_ATTEMPT,
                rank=slot,
                argv=argv,
                env=environment,
                cwd=folder,
                stdout_fd=output,
                stderr_fd=output,
                stdin_fd=theirs.fileno(),
            )
            try:
                guardian.spawn(spawn)
            except LaunchError as error:
                ours.close()
                self._failures += 1
                log.warning("no standby process: %s", error)
                return
        self._standbys[slot] = _Standby(slot, now_s, ours)

    def _hear(self) -> None:
        """Note which standbys say that they are ready; the end of one comes as an event of the guardian."""
        for standby in self._standbys.values():
            if standby.is_ready:
                continue
            try:
                standby.is_ready = standby.channel.recv(_WORD_BYTES_MAX) == layout.STANDS_BY
            except OSError:  # nothing yet, or it has ended
                continue
            if standby.is_ready:
                with contextlib.suppress(OSError):
                    self._log(standby.slot).unlink()

    def _log(self, slot: int) -> Path:
        return self._folder / f"standby-{slot}.log"
