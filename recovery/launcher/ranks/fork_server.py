"""The launcher's side of the fork server of its node (`rankmend.hook.fork_server`).

Its life: learn what the ranks import (they tell at their first step), start the server once all ranks train, fork
from it whenever ranks start, and start another one when it has ended. Where an earlier run has left its list
(`recovery.launcher.ranks.rank_imports`), the server starts with the launcher, and the first ranks wait until it is ready. In a
script's first run it starts as early, with the imports at the head of the script (`recovery.launcher.ranks.rank_imports`). Ranks also wait for one that
imports by a guess, which is ahead of them, but for none that tries each package. Like a standby it is a child of the guardian
with a mark above all attempts, and dies with it. Whatever goes wrong with it, ranks start without it.
"""

import contextlib
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.hook import layout
from rankmend.hook.becoming import ROOM_FOR_TITLE
from rankmend.milestones import ProcessMilestone, name_milestone
from rankmend.own_folder import open_new
from recovery.launcher.guardian.guardian_client import Guardian, Spawn
from recovery.launcher.guardian.packets import STANDBY_ATTEMPT, Event, Exited, Spawned, SpawnFailed
from recovery.launcher.guardian.rank_process import SpawnBody, encode_body
from recovery.launcher.ranks.rank_imports import (
    KeptImports,
    Statement,
    TriedImports,
    is_package_file,
    share,
    varying,
)
from recovery.launcher.ranks.standbys import WAITING_MAIN, log_end, waiting_environment

log = logging.getLogger(__name__)

FIRST_SLOT: Final = 1 << 20  # above those of standbys
FIRST_STORE_SLOT: Final = 1 << 24  # above those of servers
TRY_S_MAX: Final = 300.0  # to import one package, perhaps from a cold network file system
READY_S_MAX: Final = (
    1500.0  # 900 s in which it begins to try a package, the last one, and 300 s more
)
FAILURES_MAX: Final = 3  # servers that ended by themselves or forked no rank; after that no more
FORGIVEN_AFTER_S: Final = 600.0  # a server that has been ready so long clears those before it
# For ranks that wait for a server which imports what was tried before: twice what it took then, at least this long,
# and at most as long as for one that tries.
KNOWN_S_MIN: Final = 30.0
# A fork of 220 MB takes 3 ms, of 10 GB some 100, and a busy node takes seconds; a server that is stopped never answers.
FORK_S_MAX: Final = 10.0
# A server guesses that it may import everything, which takes half the time of trials. A wrong guess names one package.
GUESSES_MAX: Final = 3
GUESS_S_MAX: Final = 120.0  # to get ready by a guess: what hangs at import is found by a trial
# Until the next one, after a server that ended or could not start. Short of memory, one at once could cost a rank its life.
RETRY_S: Final = 60.0
# A server of a first run that lacks more of what its ranks have reported gives way to one that has it. The ranks import the rest.
LACKING_SHARE_MAX: Final = 0.1
_NO_IMPORTS: Final[Mapping[str, Any]] = {
    "modules": [],
    "changes": [],
    "by_imports": {},
    "expected": {},
    "environment": {},
}
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


@dataclass(slots=True)
class _Verdicts:
    """As `rankmend.hook.fork_server` takes them."""

    left_out: dict[str, str] = field(default_factory=dict)  # package: reason
    missing: dict[str, list[str]] = field(default_factory=dict)  # package: modules to pass over
    stamps: dict[str, Any] = field(default_factory=dict)
    by_fork: list[str] = field(default_factory=list)  # left out for what only a fork breaks


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
        kept: KeptImports | None = None,
        first: Sequence[Statement] = (),
        say: Callable[[str], None] | None = None,
        try_s_max: float = TRY_S_MAX,
        known_s_min: float = KNOWN_S_MIN,
        guesses: int = GUESSES_MAX,
        retry_s: float = RETRY_S,
        fork_s_max: float = FORK_S_MAX,
    ) -> None:
        """``count``: ranks of this node. ``folder``: private to this user, for a list and the output.

        ``kept``: from an earlier run. ``first``: what the script imports first, used where nothing is kept. ``say``: prints, once, that a restart is quick from now on. ``try_s_max``: seconds to import one package, before it is left out.
        ``fork_s_max``: seconds to fork one process. The server runs in the folder of this process, as ranks do.
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
        self._known_s_min = known_s_min
        self._guesses_max = guesses
        self._retry_s = retry_s
        self._fork_s_max = fork_s_max
        self._sources: list[Path] = []  # in which the ranks tell of their imports
        self._kept = kept
        self._say = say
        self._told: Mapping[str, Any] = {}
        self._tried: TriedImports | None = None  # this list, with verdicts that have held
        self._guess: _Verdicts = _Verdicts()  # what may hold, until it is clear that it doesn't
        self._guesses_left = 0
        self._first: Sequence[Statement] = ()  # of a first run, until its ranks have reported
        self._first_ready: dict[str, Any] | None = (
            None  # what the server of a first run has imported
        )
        self._first_verdicts: dict[str, Any] = {}
        self._first_took_s = 0.0
        self._slot = FIRST_SLOT - 1  # of the newest server
        self._store_slot = FIRST_STORE_SLOT - 1  # of the newest process that serves stores
        self._pid = 0
        self._channel: socket.socket | None = None
        self._started_at_s = 0.0
        self._ready_at_s: float | None = None
        self._asked: dict[tuple[int, int], int] = {}  # attempt and rank: slot of the server asked
        self._not_before_s = 0.0
        self._failures = 0
        self.state = ServerState.LEARNING
        self.why_not = "no rank had made a step, so what they import wasn't known"
        """Why no rank is forked now; empty when all goes well."""
        self.left_out: dict[str, str] = {}  # package: why each rank imports it by itself
        self.standby_list: Path | None = None
        """What standbys can import instead, where that breaks at a fork alone."""
        if kept is not None and (tried := kept.read()) is not None:
            self._told, self._tried = tried.told, tried
            self._wait("the fork server had not started yet")
        elif first and (kept is None or not kept.had_wrong_guess()):
            self._first, self._guesses_left = first, 1
            self._told = {**_NO_IMPORTS, "statements": first}
            self._wait("the fork server had not started yet")

    @property
    def is_learning(self) -> bool:
        return self.state is ServerState.LEARNING or bool(self._first)

    @property
    def pid(self) -> int:
        """The server's process; 0: none."""
        return self._pid

    def learn_from(self, sources: Iterable[Path]) -> None:
        """Read what the ranks import from these files once all have been written."""
        self._sources = list(sources)

    def tick(self, guardian: Guardian, *, may_start: bool) -> None:
        """Take in what the server says, and start one if there is none.

        ``may_start``: the ranks leave CPU time for trials. Ranks wait for a server that needs none.
        """
        self._hear()
        now_s = self._clock.now_s()
        ready_s_max = self._ready_s_max
        if self.state is ServerState.STARTING and now_s - self._started_at_s >= ready_s_max:
            self._stop(guardian, f"it was not ready within {ready_s_max:g} s")
        if not may_start and self._tried is None and not self._first:
            return
        if self._sources and self.state in (ServerState.LEARNING, ServerState.READY):
            self._hear_ranks(guardian)
        if self.state is ServerState.WAITING and now_s >= self._not_before_s:
            self._start(guardian, now_s)

    def fork(self, guardian: Guardian, spawn: Spawn, tells_to: Path | None = None) -> bool:
        """Have this rank forked; False if that is impossible now (`why_not` says why).

        ``tells_to``: the file in which it reports what else it imports.
        """
        self._hear()
        within_s = self._within_s()
        if spawn.argv[0] != self._python or within_s is None:
            return False
        assert self._channel is not None
        request = json.dumps({"attempt": spawn.attempt}).encode()
        env = spawn.env
        if tells_to is not None:
            env = {**env, layout.ENV_IMPORTS_FILE: str(tells_to)}
        with contextlib.ExitStack() as stack:
            try:
                body = _memory_file(SpawnBody(spawn.argv, env, spawn.cwd, spawn.cpus))
                stack.callback(os.close, body)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            except OSError as error:
                self.why_not = f"this launcher can't order a fork: {error.strerror}"
                return False
            stack.enter_context(ours)
            stack.enter_context(theirs)
            self.why_not = ""
            self._asked = {
                key: slot for key, slot in self._asked.items() if key[0] == spawn.attempt
            }
            self._asked[spawn.attempt, spawn.rank] = self._slot
            # The guardian first: if the server does not get it, the guardian sees that the link is closed.
            guardian.expect_fork(spawn.attempt, spawn.rank, ours.fileno(), within_s)
            descriptors = [theirs.fileno(), body, spawn.stdout_fd, spawn.stderr_fd]
            if spawn.stdin_fd is not None:
                descriptors.append(spawn.stdin_fd)
            try:
                socket.send_fds(self._channel, [request], descriptors)
            except OSError as error:  # dead or stopped: the guardian says that no rank came
                log.warning("the fork server took no order: %s", error)
        return True

    @property
    def shares_torch(self) -> bool | None:
        """Return whether the server's list has PyTorch; None: there is no list yet."""
        if not self._told:
            return None
        left_out = self.left_out if self._tried is None else self._tried.verdicts["left_out"]
        return self._lists_torch and "torch" not in left_out

    @property
    def imports_torch(self) -> bool | None:
        """Return whether the ranks import PyTorch, by an earlier run or the script; None: not known."""
        if self._first:
            return self._lists_torch or None
        return None if self._tried is None else self._lists_torch

    @property
    def _lists_torch(self) -> bool:
        listed = self._first or self._told["modules"]
        return any(name.partition(".")[0] == "torch" for name, _more in listed)

    def fork_store(self, guardian: Guardian, channel: int, output: int) -> int | None:
        """Have a process forked that serves rendezvous stores, and return its slot; None: impossible now.

        ``channel``: its end of the pair that `rankmend.hook.store_host` takes its orders from. The guardian knows it as
        it knows the server: a child of its own above all attempts, which no fence ends.
        """
        self._hear()
        within_s = self._within_s()
        if within_s is None or not self.shares_torch:
            return None
        assert self._channel is not None
        request = json.dumps({"attempt": STANDBY_ATTEMPT, "store": True}).encode()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        with ours, theirs:
            self._store_slot += 1
            guardian.expect_fork(STANDBY_ATTEMPT, self._store_slot, ours.fileno(), within_s)
            try:
                socket.send_fds(
                    self._channel, [request], [theirs.fileno(), channel, output, output]
                )
            except OSError as error:  # the guardian says that nothing came
                log.warning("the fork server took no order: %s", error)
        return self._store_slot

    def _within_s(self) -> float | None:
        """Return within what time the server forks a process on a request now; None: not at all."""
        waited_s = self._clock.now_s() - self._started_at_s
        if self.state is ServerState.READY:
            return self._fork_s_max
        if self.state is not ServerState.STARTING:
            return None
        if self._tried is not None:
            return self._fork_s_max + max(0.0, self._known_s_max - waited_s)
        if self._guesses_left:
            # It is ahead of ranks that would import the same afresh, each for itself.
            return self._fork_s_max + max(0.0, min(GUESS_S_MAX, self._known_s_min) - waited_s)
        return None

    def note_failed_fork(self, guardian: Guardian, failed: SpawnFailed) -> None:
        """Take a server that has forked no rank out of use."""
        self._hear()  # it may have ended, and reported why
        is_its = self._asked.pop((failed.attempt, failed.rank), None) == self._slot
        is_up = self.state in (ServerState.STARTING, ServerState.READY)
        if is_its and is_up and failed.errno in (errno.ETIMEDOUT, errno.ESRCH):
            self._stop(guardian, failed.message)

    def take_event(self, event: Event) -> bool:
        """Note the guardian's report on a server; False if it is about another process."""
        match event:
            case Spawned() | SpawnFailed() | Exited() if event.rank >= FIRST_STORE_SLOT:
                pass  # the store process: its channel shows the launcher its end
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
            self._not_before_s = 0.0
            self._wait("the fork server ended with its guardian")

    def close(self) -> None:
        self._drop_channel()

    # The list of imports.

    def _hear_ranks(self, guardian: Guardian) -> None:
        """Take in what the ranks have reported at their first step, once all of them have.

        Fresh ranks tell a list; so do forked ones that have started themselves afresh (`rankmend.hook.variables`).
        Other forked ranks tell the packages of which the server doesn't know, and in a first run a list that follows the server's.
        """
        reported: list[Any] = []
        for path in self._sources:
            try:
                with path.open("rb") as file:
                    reported.append(json.loads(file.read(_IMPORTS_BYTES_MAX)))
            except OSError:
                return
            except ValueError:
                self._give_up(f"{path.name} is not a list of imports")
                return
        more = [item["more"] for item in reported if type(item) is dict and "more" in item]
        if any(more) and self._kept is not None:
            log.info("the ranks import packages that the fork server does not know: %s", more)
            self._kept.forget()  # the next run learns them
        is_known = not self._first and all(
            type(item) is dict and item.get("follows") for item in reported
        )  # later ranks of the server of a first run
        if reported and not more and not is_known:
            self._learn(guardian, [self._whole(item) for item in reported])
        self._sources = []

    def _whole(self, reported: Any) -> Any:
        """Return the list of a rank that was forked in a first run with that of its server in front."""
        before = self._first_ready
        if type(reported) is not dict or not reported.get("follows") or before is None:
            return reported
        count = len(before["modules"])
        return {
            **reported,
            "modules": [*before["modules"], *reported["modules"]],
            "changes": [[count + index, variables] for index, variables in reported["changes"]],
            "by_imports": {**before["by_imports"], **reported["by_imports"]},
        }

    def _learn(self, guardian: Guardian, reported: list[Any]) -> None:
        try:
            shared = share(reported)
        except ValueError as error:
            self._give_up(f"a rank reported {error}")
            return
        if self._first and self._serves(shared):
            self._first = ()
            self._tried = TriedImports(shared, self._first_verdicts, self._first_took_s)
            self._told = shared
            if self._kept is not None:
                self._kept.write(self._tried)
            return
        if self.state is not ServerState.LEARNING:
            self._end(guardian)  # its list is another one
        if self.state is not ServerState.LEARNING and not self._first:
            names = varying(self._told, shared)
            if names and self._kept is not None:
                self._kept.note_varying(names)
        self._first, self._told, self._tried = (), shared, None
        self._guess, self._guesses_left = _Verdicts(), self._guesses_max
        self._wait("the fork server had not started yet")

    # The server.

    def _start(self, guardian: Guardian, now_s: float) -> None:
        self._slot += 1
        numbers = (str(self._try_s_max), str(self._count))
        argv = (self._python, "-u", "-c", _MAIN, str(self._imports_file), *numbers, ROOM_FOR_TITLE)
        environment = waiting_environment(
            self._environment, self._site, self._job_id, self._node, self._count
        )
        with contextlib.ExitStack() as stack:
            try:
                self._verdicts_file.unlink(missing_ok=True)
                self._imports_file.write_text(
                    json.dumps({**self._told, "verdicts": self._verdicts()})
                )
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
                self._not_before_s = now_s + self._retry_s
                self._wait(f"the fork server can't start: {error}")
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
        self.why_not = "the fork server was still importing"

    def _hear(self) -> None:
        """Process the server's messages; its end comes as an event of the guardian."""
        while self._channel is not None:
            try:
                word = json.loads(self._channel.recv(_WORD_BYTES_MAX) or b"{}")
            except BlockingIOError:
                return
            except (
                ConnectionResetError
            ):  # it ended with a request unread; its earlier messages follow
                continue
            except ValueError:
                word = {}
            match word:
                case {"left_out": dict(left_out), "imported": int(count), "took_s": float(took_s)}:
                    self._note_ready(left_out, count, took_s)
                case {"failed": str(reason), "can_stand_by": bool(can_stand_by)}:
                    if self._first:
                        self._drop_first(reason)
                        continue
                    if can_stand_by:
                        self._keep_for_standbys()
                    self._forget_trials()
                    self._give_up(reason)
                case {"wrong": {"package": str(name), "reason": str(reason)} as wrong}:
                    self._note_wrong_verdict(name, reason, wrong)
                case {"stale": str(path)}:
                    self._learn_again(f"{path} has changed since the fork server imported it")
                case _:  # closed
                    self._drop_channel()
                    self.state = ServerState.ENDING
                    self.why_not = "the fork server had ended"

    def _learn_again(self, why_not: str) -> None:
        self._drop_channel()
        self._forget_trials()
        self.state = ServerState.LEARNING
        self.why_not = why_not
        log.info("%s: the next ranks start without the fork server", why_not)

    def _note_ready(self, left_out: dict[str, str], count: int, took_s: float) -> None:
        self.state = ServerState.READY
        name_milestone("fork_server", ProcessMilestone.READY)
        self._ready_at_s = self._clock.now_s()
        self.why_not = ""
        self.left_out = left_out
        if self._first:
            self._first_took_s, self._first_ready = took_s, self._read_first()
        elif self._tried is None:
            self._keep_trials(took_s)
        with contextlib.suppress(OSError):
            self._log().unlink()
        log.info("the fork server is ready, with %d modules", count)
        if self._say is not None:
            self._say("a restart is quick from now on: the fork server is ready")
            self._say = None
        for package, reason in list(left_out.items())[:_SHOWN_MAX]:
            log.info("the fork server leaves out %s: it %s", package, reason)

    # The results of the trials.

    @property
    def _ready_s_max(self) -> float:
        if self._tried is not None:
            return self._known_s_max
        return GUESS_S_MAX if self._guesses_left else READY_S_MAX

    def _serves(self, shared: Mapping[str, Any]) -> bool:
        """Return whether the server of a first run has nearly all that its ranks have reported."""
        if self.state is not ServerState.READY or self._first_ready is None:
            return False
        has = {name for name, _origin in self._first_ready["modules"]}
        wanted = [name for name, origin in shared["modules"] if is_package_file(origin)]
        lacking = sum(name not in has for name in wanted)
        return lacking <= LACKING_SHARE_MAX * len(wanted)

    def _read_first(self) -> dict[str, Any] | None:
        try:
            self._first_verdicts = json.loads(self._verdicts_file.read_bytes())
            return dict(self._first_verdicts.pop("first"))
        except (OSError, ValueError, KeyError) as error:
            log.info("the fork server has left no list: %r", error)
            return None

    def _drop_first(self, reason: str) -> None:
        """Go on as without a list: a fork would break what the script imports first, or it ends the server."""
        self._drop_channel()
        self._first, self._told, self._guesses_left = (), {}, 0
        self.state = ServerState.LEARNING
        self.why_not = reason
        if self._kept is not None:
            self._kept.note_wrong_guess()
        log.info("the first imports of the script are left to its ranks: %s", reason)

    def _note_wrong_verdict(self, package: str, reason: str, wrong: Mapping[str, Any]) -> None:
        if self._first:
            self._drop_first(f"{package} {reason}".strip())
            return
        if self._tried is not None:
            self._learn_again(
                f"imports are not what they were: {package} {reason}".replace("  ", " ")
            )
            return
        self._drop_channel()
        self._guesses_left -= 1
        if not package:
            self._guesses_left = 0  # the trials will name it
        elif wrong.get("missing"):
            self._guess.missing.setdefault(package, []).extend(wrong["missing"])
        else:
            self._guess.left_out[package] = reason
            if wrong.get("by_fork"):
                self._guess.by_fork.append(package)
        self._wait("the fork server was still importing")

    @property
    def _known_s_max(self) -> float:
        """Return how long a server that tries nothing may take to get ready."""
        assert self._tried is not None, "there is a list that was tried"
        return min(READY_S_MAX, max(self._known_s_min, 2 * self._tried.took_s))

    def _keep_trials(self, took_s: float) -> None:
        try:
            body = self._verdicts_file.read_bytes()
            self._tried = TriedImports(self._told, json.loads(body), took_s)
        except (OSError, ValueError):  # no room for them: the next server tries again
            return
        if self._kept is not None:
            self._kept.write(self._tried)

    def _keep_for_standbys(self) -> None:
        """Leave a list with verdicts, as `rankmend.hook.standby` takes it."""
        path = self._folder / "standby-imports.json"
        try:
            verdicts = json.loads(self._verdicts_file.read_bytes())
            path.write_text(json.dumps({**self._told, "verdicts": verdicts}))
        except (OSError, ValueError) as error:
            log.warning("no standby processes: no list for them: %s", error)
            return
        self.standby_list = path

    def _forget_trials(self) -> None:
        self._tried, self._first = None, ()
        if self._kept is not None:
            self._kept.forget()

    def _note_end(self, slot: int, how: str) -> None:
        if slot != self._slot:
            return
        self._hear()
        self._pid = 0
        if self.state in _ALIVE:
            self._note_failure(f"{how}: {log_end(self._log())}")

    def _stop(self, guardian: Guardian, reason: str) -> None:
        self._end(guardian)
        self._note_failure(reason)

    def _end(self, guardian: Guardian) -> None:
        """Kill the server; its end is then no news."""
        self._drop_channel()
        with contextlib.suppress(LaunchError):  # the guardian is gone, and the server with it
            guardian.signal(STANDBY_ATTEMPT, signal.SIGKILL, [self._slot])
        self._slot += 1

    def _note_failure(self, reason: str) -> None:
        self._drop_channel()
        if self._ready_at_s is None and self._tried is not None:
            self._forget_trials()  # it died of what had been found harmless
        elif self._ready_at_s is None and self._first:
            self._drop_first(reason)
            return
        elif self._ready_at_s is None and self._guesses_left:
            self._guesses_left = 0
            self._wait("the fork server was still importing")
            return
        now_s = self._clock.now_s()
        if self._ready_at_s is not None and now_s - self._ready_at_s >= FORGIVEN_AFTER_S:
            self._failures = 0
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._give_up(reason)
            return
        log.warning("the fork server ended: %s", reason)
        self._not_before_s = now_s + self._retry_s
        self._wait("the fork server had ended")

    def _wait(self, why_not: str) -> None:
        self.state = ServerState.WAITING
        self.why_not = why_not

    def _give_up(self, reason: str) -> None:
        self._drop_channel()
        self.state = ServerState.GIVEN_UP
        self.why_not = reason
        log.info("no rank will be forked: %s", reason)

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def _imports_file(self) -> Path:
        return self._folder / "imports.json"

    @property
    def _verdicts_file(self) -> Path:
        return Path(f"{self._imports_file}.verdicts")

    def _verdicts(self) -> Mapping[str, Any] | None:
        """Return by which verdicts the next server imports; None: it tries each package first."""
        if self._tried is not None:
            return self._tried.verdicts
        return asdict(self._guess) if self._guesses_left else None

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
