"""The processes of one node that wait to become ranks, or to fork them: the fork server and the standbys.

A rank is forked where that is possible, else made of a standby, else started afresh by the guardian.
"""

import contextlib
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rankmend.errors import LaunchError
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Event, SpawnFailed
from recovery.launcher.ranks.fork_server import ForkServer, ServerState
from recovery.launcher.ranks.standbys import StandbyPool
from recovery.launcher.rendezvous.rendezvous_store import StoreFork
from recovery.messages.exchange import RankStart, StartKind

AFRESH: Final = RankStart(StartKind.FRESH)


class WaitingProcesses:
    """For the launcher's thread alone."""

    def __init__(self, standbys: StandbyPool | None, server: ForkServer | None) -> None:
        self._standbys = standbys
        self._server = server

    @property
    def is_learning(self) -> bool:
        """Return whether the ranks should tell what they import."""
        return self._server is not None and self._server.is_learning

    @property
    def imports_torch(self) -> bool | None:
        """Return whether the ranks import PyTorch, as an earlier run has reported; None: not known."""
        return None if self._server is None else self._server.imports_torch

    def store_fork(self, guardian: Guardian) -> StoreFork | None:
        """Return how the fork server forks a process for rendezvous stores, if this node has a server."""
        if self._server is None:
            return None
        server = self._server

        def kill(slot: int) -> None:
            with contextlib.suppress(LaunchError):  # the guardian is gone, and the process with it
                guardian.signal(STANDBY_ATTEMPT, signal.SIGKILL, [slot])

        return StoreFork(lambda channel, output: server.fork_store(guardian, channel, output), kill)

    @property
    def has_ready_server(self) -> bool:
        return self._server is not None and self._server.state is ServerState.READY

    def learn_from(self, sources: Iterable[Path]) -> None:
        if self._server is not None:
            self._server.learn_from(sources)

    def tick(self, guardian: Guardian, *, may_start: bool) -> None:
        """Take in what has happened; ``may_start``: there is CPU time for imports."""
        if self._server is not None:
            self._server.tick(guardian, may_start=may_start)
            if self._standbys is not None and self._server.standby_list is not None:
                self._standbys.stand_by(str(self._server.standby_list))
        if self._standbys is not None:
            self._standbys.tick(guardian, may_start=may_start)

    def start(self, guardian: Guardian, spawn: Spawn, tells_to: Path | None) -> RankStart:
        """Make one of these processes the rank to spawn; `FRESH` where the caller has to.

        ``tells_to``: the rank's file for what it imports.
        """
        if self._server is not None and self._server.fork(guardian, spawn, tells_to):
            return RankStart(StartKind.FORKED)
        why_not = "" if self._server is None else self._server.why_not
        if self._standbys is not None and self._standbys.promote(guardian, spawn, tells_to):
            return RankStart(StartKind.STANDBY, why_not)
        return RankStart(StartKind.FRESH, why_not)

    def note_failed_fork(self, guardian: Guardian, failed: SpawnFailed) -> None:
        if self._server is not None:
            self._server.note_failed_fork(guardian, failed)

    def take_event(self, event: Event) -> None:
        """Note the guardian's report on one of these processes."""
        if self._server is not None and self._server.take_event(event):
            return
        if self._standbys is not None:
            self._standbys.take_event(event)

    def forget_all(self) -> None:
        """Forget those that died with their guardian."""
        if self._server is not None:
            self._server.forget()
        if self._standbys is not None:
            self._standbys.forget_all()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._standbys is not None:
            self._standbys.forget_all()
