"""Standbys: processes that have imported the framework and can become ranks at once.

One per rank of this node, started one after another once all ranks train, so that they never
compete with a start. Like ranks they are children of the guardian and die with it. Their mark has an
attempt number above all others, so they belong to no attempt until they are promoted. They run
`rankmend.hook.standby`.
"""

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.foreign_links import open_new
from rankmend.hook import layout
from rankmend.hook.becoming import ROOM_FOR_TITLE
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
# The folder in which Python runs is no place for the modules of a rank; that of its script is (`becoming.run`).
WAITING_MAIN: Final = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
_MAIN: Final = WAITING_MAIN + "from rankmend.hook.standby import main; main()"


@dataclass(slots=True)
class _Standby:
    slot: int
    started_at_s: float
    pid: int = 0
    channel: socket.socket | None = None  # connected once it is ready


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
        modules: tuple[str, ...],
        count: int,
        job_id: str,
        environment: Mapping[str, str],
        folder: Path,
        site: Path,
        clock: Clock,
        node: str | None = None,
    ) -> None:
        """``folder``: private to this user, for the socket and the output of standbys.

        They run in the folder of this process, as ranks do.
        ``node``: a mark beside the job's, if several nodes are on one machine.
        """
        self._python = python
        self._modules = modules
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
        self._path = folder / "standby.sock"
        self._path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(str(self._path))
        self._server.listen(16)
        self._server.setblocking(False)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a standby has become ready."""
        return self._server.fileno()

    @property
    def ready(self) -> int:
        return sum(standby.channel is not None for standby in self._standbys.values())

    def tick(self, guardian: Guardian, *, may_start: bool) -> None:
        """Accept standbys that are ready, and start the next one if there is room."""
        self._accept()
        now_s = self._clock.now_s()
        starting = [one for one in self._standbys.values() if one.channel is None]
        for standby in starting:
            if now_s - standby.started_at_s >= READY_S_MAX and standby.pid:
                guardian.signal(STANDBY_ATTEMPT, 9, [standby.slot])
        is_done = self._failures >= FAILURES_MAX or len(self._standbys) >= self._count
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
        if standby.channel is not None:
            standby.channel.close()
        self._failures += 1
        last = " (no more will be started)" if self._failures >= FAILURES_MAX else ""
        log.warning("a standby ended: %s%s: %s", how, last, log_end(self._log(slot)))

    def promote(self, guardian: Guardian, spawn: Spawn) -> bool:
        """Make a ready standby the rank to spawn; False if none is ready."""
        if len(spawn.argv) < 3 or spawn.argv[0] != self._python:
            return False
        self._accept()
        ready = next((one for one in self._standbys.values() if one.channel is not None), None)
        if ready is None:
            return False
        assert ready.channel is not None
        del self._standbys[ready.slot]
        # Adopt it first and send the message then: everything that it starts is fenced from the beginning.
        guardian.adopt(ready.slot, spawn.attempt, spawn.rank)
        body = encode_body(SpawnBody(spawn.argv, spawn.env, spawn.cwd, spawn.cpus))
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
            if standby.channel is not None:
                standby.channel.close()
        self._standbys.clear()

    def close(self) -> None:
        self.forget_all()
        self._server.close()

    def _start(self, guardian: Guardian, now_s: float) -> None:
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        environment = waiting_environment(
            self._environment, self._site, self._job_id, self._node, self._count
        )
        modules = ",".join(self._modules)
        argv = (self._python, "-u", "-c", _MAIN, str(self._path), modules, ROOM_FOR_TITLE)
        try:
            output = open_new(self._log(slot))
        except OSError as error:
            self._failures = FAILURES_MAX
            log.warning(
                "no standby processes: cannot write %s: %s", self._log(slot), error.strerror
            )
            return
        try:
            guardian.spawn(
                Spawn(STANDBY_ATTEMPT, slot, argv, environment, str(Path.cwd()), output, output)
            )
            self._standbys[slot] = _Standby(slot, now_s)
        except LaunchError as error:
            self._failures += 1
            log.warning("no standby process: %s", error)
        finally:
            os.close(output)

    def _accept(self) -> None:
        while True:
            try:
                channel, _address = self._server.accept()
            except (BlockingIOError, OSError):
                return
            channel.settimeout(_SEND_S_MAX)
            peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _gid = struct.unpack("3i", peer)
            standby = next((one for one in self._standbys.values() if one.pid == pid), None)
            if standby is None or uid != os.getuid():
                channel.close()
                continue
            standby.channel = channel
            with contextlib.suppress(OSError):
                self._log(standby.slot).unlink()

    def _log(self, slot: int) -> Path:
        return self._folder / f"standby-{slot}.log"
