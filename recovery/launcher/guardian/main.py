"""The guardian: forks the ranks of one launcher, waits for them, and outlives the launcher.

A process of its own with one thread, because PR_SET_PDEATHSIG follows the thread that forks,
because orphans of the ranks become children of it (PR_SET_CHILD_SUBREAPER), and because it is
still there to kill them when the launcher is killed. It never waits for the launcher.

Run by `guardian_client.Guardian` through `rankmend.parts_path`, with ``python -I -S`` and the arguments
``SOCKET LAUNCHER_PID JOB_ID NODE LIST``: standard library only, and little of it (16 MB resident, 0.05 s to start).
"""

import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.clock import read_boot_id
from rankmend.errors import SourceError
from rankmend.hook.layout import RUNNING
from rankmend.milestones import ProcessMilestone, name_milestone
from recovery.launcher.guardian.forks import PendingForks
from recovery.launcher.guardian.kill import TreeKill
from recovery.launcher.guardian.launcher_link import LauncherLink
from recovery.launcher.guardian.packets import (
    EVERY_ATTEMPT,
    LISTED_MAX,
    PACKET_BYTES_MAX,
    STANDBY_ATTEMPT,
    SURVIVORS_MAX,
    TEXT_MAX,
    AdoptCommand,
    DismissCommand,
    Emptied,
    Exited,
    Exiting,
    ForkCommand,
    KillCommand,
    KillPending,
    LastWordCommand,
    LeaseCommand,
    LeaseExpired,
    Message,
    Ready,
    SignalCommand,
    SpawnCommand,
    Spawned,
    SpawnFailed,
)
from recovery.launcher.guardian.rank_process import become_rank, read_body
from recovery.launcher.guardian.rank_signals import SignalledRank, send_to_ranks
from recovery.launcher.processes.identity import parse_mark
from recovery.launcher.processes.prctl import become_subreaper
from recovery.launcher.processes.process_list import ProcessList
from recovery.launcher.processes.process_tree import (
    ENV_LAUNCHER,
    ProcessRef,
    is_process_exiting,
    parse_memory,
    read_exit_status,
    read_state,
)

# The kernel tells of a death only when the memory is freed: 35 to 45 ms for each GB in 4 KiB
# pages, and longer while other ranks keep the processors busy. A rank gives up its memory map first, so
# that of a rank from this size on is looked at. Each such wake-up takes 0.1 ms of a busy processor.
BIG_BYTES: Final = 256 << 20
MAP_LOOK_S: Final = 0.02
SIZE_LOOK_S: Final = 1.0

PENDING_AFTER_S: Final = 2.0
PENDING_EVERY_S: Final = 10.0
KILL_S_MAX: Final = 600.0  # without a launcher; then the guardian leaves what can't be killed
COMMANDS_A_TURN: Final = 64
# epoll counts no time in which the machine was suspended, a lease does: look this often.
LEASE_LOOK_S: Final = 0.5
# Its socket closes before its process is gone: milliseconds. One that is only stopped stays.
LAUNCHER_END_S_MAX: Final = 2.0
LAUNCHER_LOOK_S: Final = 0.01
_EXEC_ERROR_BYTES_MAX: Final = 16 << 10
_STATM_BYTES_MAX: Final = 256  # seven numbers

# Signals that a shell, a scheduler or a service manager may send to all processes of a job.
_IGNORED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGPIPE,
    signal.SIGXCPU,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


@dataclass(slots=True)
class _Rank:
    attempt: int
    rank: int
    pid: int
    start_ticks: int
    exec_pipe: int | None  # or link: open until the program runs, or could not be started
    pidfd: int | None
    statm: int | None  # /proc/PID/statm: read in 4 us, where PID/stat takes 10
    is_big: bool = False
    is_told_exiting: bool = False
    is_failed: bool = False  # never became a program
    is_contained: bool = False  # the rank runs behind this process, perhaps in a container

    @property
    def is_awaited(self) -> bool:
        """Return whether somebody waits for the first sign of its end: not for a standby's."""
        is_running = self.exec_pipe is None and self.attempt != STANDBY_ATTEMPT
        return is_running and self.statm is not None and not self.is_told_exiting

    def read_memory(self) -> tuple[int, int] | None:
        """Return its virtual size in pages, 0 from its exit on, and its resident bytes; None: it is reaped."""
        assert self.statm is not None, "asked of awaited ones"
        try:
            return parse_memory(os.pread(self.statm, _STATM_BYTES_MAX, 0))
        except ProcessLookupError:
            return None

    def has_left(self) -> bool:
        """Return whether it has given up its memory; the part of `read_memory` that is done 50 times a second."""
        assert self.statm is not None, "asked of awaited ones"
        try:
            return os.pread(self.statm, 2, 0) == b"0 "
        except ProcessLookupError:
            return True


class GuardianProcess:
    def __init__(
        self,
        link: LauncherLink,
        launcher_pid: int,
        job_id: str,
        node: str | None = None,
        process_list: ProcessList | None = None,
    ) -> None:
        self._link = link
        self._list = process_list
        self._launcher_pid = launcher_pid
        self._job_id = job_id
        self._node = node
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._is_waiting_for_room = False
        self._ranks: dict[int, _Rank] = {}  # by pid, those not reaped yet
        self._forks = PendingForks(self._watch, self._unwatch, self._adopt, self._fail_spawn)
        self._fenced_through = -1  # no rank of these attempts starts from now on
        self._newest_attempt = -1
        self._kill: TreeKill | None = None
        self._lease: LeaseCommand | None = None
        self._pending_at_s = 0.0
        self._lost_at_s: float | None = None
        self._last_word: tuple[tuple[str, ...], int] | None = None  # arguments, stdin
        self._size_look_at_s = 0.0
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def serve(self) -> int:
        """Serve until the launcher is gone, and return 0 when nothing is left of its ranks."""
        self._watch_children()
        self._watch(self._link.fileno(), self._on_link, select.EPOLLIN | select.EPOLLRDHUP)
        self._watch_launcher()
        self._send(Ready(os.getpid()))
        name_milestone("guardian", ProcessMilestone.READY)
        return self._loop()

    def abandon(self) -> int:
        """Kill everything, after an error that the guardian can't go on from; vouch for nothing."""
        self._last_word = None
        self._lose_launcher()
        return self._loop() or 1

    def _loop(self) -> int:
        while True:
            for descriptor, mask in self._wait():
                handler = self._handlers.get(descriptor)
                if handler is not None:  # else closed by a handler before it
                    handler(mask)
            now_s = time.monotonic()
            self._check_lease()
            self._forks.check(now_s)
            self._look_for_exiting(now_s)
            self._go_on_killing(now_s)
            if self._list is not None and self._ranks and now_s >= self._list.due_s:
                self._list.update()
            if self._lost_at_s is not None:
                if self._kill is None and self._has_spoken(now_s):
                    return 0
                if now_s - self._lost_at_s >= KILL_S_MAX:
                    return 1

    def _wait(self) -> list[tuple[int, int]]:
        """Wait for events and return them; none where something is due, or a rank gives up its memory."""
        wait_s = self._wait_s()
        big = [rank for rank in self._ranks.values() if rank.is_big and rank.is_awaited]
        if not big:
            return self._epoll.poll(wait_s)
        until_s = time.monotonic() + wait_s  # as long as a rank lives its size is due
        while wait_s > 0:  # 50 times a second: little else than the looks themselves
            if events := self._epoll.poll(min(wait_s, MAP_LOOK_S)):
                return events
            if any(rank.has_left() for rank in big):
                return []
            wait_s = until_s - time.monotonic()
        return self._epoll.poll(0)

    def _wait_s(self) -> float:
        due_s = [*self._forks.due_s, *([self._size_look_at_s] if self._ranks else [])]
        if self._list is not None and self._ranks:
            due_s.append(self._list.due_s)
        now_s = time.monotonic()
        if self._kill is not None:
            due_s.append(self._kill.due_s)
        elif self._lost_at_s is not None:
            due_s.append(now_s + LAUNCHER_LOOK_S)
        if self._lease is not None and self._lease.until_s is not None:
            left_s = self._lease.until_s - time.clock_gettime(time.CLOCK_BOOTTIME)
            due_s.append(now_s + min(left_s, LEASE_LOOK_S))
        return max(0.0, min(due_s) - now_s) if due_s else -1

    def _watch(self, descriptor: int, handler: Callable[[int], None], mask: int) -> None:
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, mask)

    def _unwatch(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._epoll.unregister(descriptor)

    # The launcher.

    def _watch_launcher(self) -> None:
        """Beside the socket, whose other end a forked child of the launcher may have kept."""
        with contextlib.suppress(OSError, AttributeError):
            self._watch(os.pidfd_open(self._launcher_pid), self._on_launcher, select.EPOLLIN)
        if os.getppid() != self._launcher_pid:
            self._lose_launcher()

    def _on_launcher(self, _mask: int) -> None:
        self._lose_launcher()

    def _on_link(self, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                self._link.flush()
            for _turn in range(COMMANDS_A_TURN):
                command = self._link.receive()
                if command is None:
                    break
                self._carry_out(*command)
                if self._lost_at_s is not None:
                    return
        except ConnectionError:
            self._lose_launcher()
            return
        self._watch_for_room()

    def _carry_out(self, command: Message, descriptors: list[int]) -> None:
        try:
            match command:
                case SpawnCommand():
                    self._spawn(command, descriptors)
                case ForkCommand():
                    self._expect_fork(command, *descriptors)
                case AdoptCommand():
                    self._make_rank(command)
                case SignalCommand():
                    self._signal(command)
                case KillCommand(through_attempt=through):
                    self._kill_through(through)
                case LeaseCommand():
                    self._lease = command
                case LastWordCommand(argv=argv):
                    self._keep_last_word(argv, *descriptors)
                case DismissCommand():
                    self._last_word = None
                    self._lose_launcher()
                case _:
                    raise SourceError(f"not a command: {command}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _lose_launcher(self) -> None:
        if self._lost_at_s is not None:
            return
        self._lost_at_s = time.monotonic()
        self._unwatch(self._link.fileno())
        self._link.close()
        for descriptor, handler in list(self._handlers.items()):
            if handler == self._on_launcher:
                self._unwatch(descriptor)
                os.close(descriptor)
        self._kill_through(EVERY_ATTEMPT)

    def _keep_last_word(self, argv: tuple[str, ...], standard_input: int) -> None:
        if self._last_word is not None:
            os.close(self._last_word[1])
        self._last_word = (argv, os.dup(standard_input))

    def _has_spoken(self, now_s: float) -> bool:
        """Send the report that nothing is left, where the launcher is dead and can't send it itself.

        For one that lives nobody else may speak: it may start ranks again, with another guardian.
        """
        if self._last_word is None:
            return True
        assert self._lost_at_s is not None, "called once the launcher is lost"
        is_there = os.getppid() == self._launcher_pid
        if is_there and not is_process_exiting(self._launcher_pid):
            return now_s - self._lost_at_s >= LAUNCHER_END_S_MAX
        (program, *arguments), standard_input = self._last_word
        argv = [program, *arguments, str(max(0, self._newest_attempt))]
        actions = [
            (os.POSIX_SPAWN_DUP2, standard_input, 0),
            (os.POSIX_SPAWN_DUP2, self._null, 1),
            (os.POSIX_SPAWN_DUP2, self._null, 2),
        ]
        # Its mark is a guardian's: a newer launcher of the node ends it, and speaks in its place.
        with contextlib.suppress(OSError):  # then the lease decides
            os.posix_spawn(program, argv, os.environ, file_actions=actions)
        return True

    def _send(self, message: Message) -> None:
        if self._lost_at_s is not None:
            return
        try:
            self._link.send(message)
        except ConnectionError:
            self._lose_launcher()
        else:
            self._watch_for_room()

    def _watch_for_room(self) -> None:
        if self._link.is_behind is not self._is_waiting_for_room:
            self._is_waiting_for_room = self._link.is_behind
            writable = select.EPOLLOUT if self._link.is_behind else 0
            self._epoll.modify(self._link.fileno(), select.EPOLLIN | select.EPOLLRDHUP | writable)

    # Starting.

    def _spawn(self, command: SpawnCommand, descriptors: list[int]) -> None:
        if command.attempt != STANDBY_ATTEMPT:
            self._newest_attempt = max(self._newest_attempt, command.attempt)
        if self._refuse_fenced(command):
            return
        body_fd, stdout, stderr, *others = descriptors
        stdin = others[0] if others else self._null
        body = read_body(body_fd)
        guardian_pid = os.getpid()
        exec_pipe, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(exec_pipe, False)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(exec_pipe)
            os.close(write_end)
            text = f"cannot fork for {body.argv[0]!r}: {error.strerror}"
            self._fail_spawn(command, error.errno or errno.EAGAIN, text)
            return
        if pid == 0:
            os.close(self._link.fileno())  # an exec that hangs must not pass for a guardian
            become_rank(guardian_pid, body, (stdin, stdout, stderr), write_end)
        os.close(write_end)
        self._adopt(command, pid, exec_pipe)

    def _refuse_fenced(self, command: SpawnCommand | ForkCommand) -> bool:
        """Return whether this attempt is fenced, after saying so."""
        through = self._fenced_through
        if command.attempt > through:
            return False
        text = f"attempt {command.attempt} is fenced: all up to {through} have ended"
        self._fail_spawn(command, errno.ESTALE, text)
        return True

    def _expect_fork(self, command: ForkCommand, link: int) -> None:
        """Wait for a rank that is forked elsewhere and becomes a child of this process."""
        if command.attempt != STANDBY_ATTEMPT:
            self._newest_attempt = max(self._newest_attempt, command.attempt)
        if not self._refuse_fenced(command):
            retained = os.dup(link)  # close-on-exec, as all that Python duplicates
            self._forks.expect(command, retained, select.EPOLLIN)

    def _make_rank(self, command: AdoptCommand) -> None:
        """Make a standby a rank of an attempt: from now on it is fenced with it."""
        self._newest_attempt = max(self._newest_attempt, command.attempt)
        requested = SpawnCommand(command.attempt, command.rank)
        standby = next(
            (
                rank
                for rank in self._ranks.values()
                if rank.attempt == STANDBY_ATTEMPT and rank.rank == command.slot
            ),
            None,
        )
        if command.attempt <= self._fenced_through:
            self._fail_spawn(requested, errno.ESTALE, f"attempt {command.attempt} is fenced")
        elif standby is None:
            self._fail_spawn(requested, errno.ESRCH, f"standby {command.slot} has ended")
        else:
            standby.attempt, standby.rank = command.attempt, command.rank
            standby.is_told_exiting = False
            self._send(Spawned(command.attempt, command.rank, standby.pid, standby.start_ticks))

    def _adopt(self, command: SpawnCommand | ForkCommand, pid: int, exec_pipe: int) -> None:
        state = read_state(pid)
        assert state is not None, "a child that is not reaped has a state"
        rank = _Rank(
            command.attempt,
            command.rank,
            pid,
            state.start_ticks,
            exec_pipe,
            _pidfd(pid),
            _statm(pid),
            is_contained=isinstance(command, SpawnCommand) and command.is_contained,
        )
        self._ranks[pid] = rank
        if self._list is not None:
            self._list.hurry()
        self._watch(exec_pipe, lambda _mask: self._read_exec(rank), select.EPOLLIN)
        if rank.pidfd is not None:
            # Edge-triggered: the zombie of a traced rank stays readable until its tracer goes.
            self._watch(rank.pidfd, lambda _mask: self._reap(), select.EPOLLIN | select.EPOLLET)

    def _read_exec(self, rank: _Rank, *, is_over: bool = False) -> None:
        """Tell how the start of a rank went: the pipe was closed by exec, or holds the error.

        ``is_over``: the rank has ended; the fork server may still hold the other end of its link.
        """
        assert rank.exec_pipe is not None
        try:
            data = os.read(rank.exec_pipe, _EXEC_ERROR_BYTES_MAX)
        except BlockingIOError:  # meant for an older pipe of the same number
            if not is_over:
                return
            data = b""
        except ConnectionError:  # it has ended before it read our word
            data = b""
        self._unwatch(rank.exec_pipe)
        os.close(rank.exec_pipe)
        rank.exec_pipe = None
        if data and data != RUNNING:
            number, _space, text = data.decode("utf-8", "replace").partition(" ")
            rank.is_failed = True
            self._fail_spawn(SpawnCommand(rank.attempt, rank.rank), int(number), text)
        else:
            self._send(Spawned(rank.attempt, rank.rank, rank.pid, rank.start_ticks))

    def _fail_spawn(self, command: SpawnCommand | ForkCommand, number: int, text: str) -> None:
        self._send(SpawnFailed(command.attempt, command.rank, number, text[:TEXT_MAX]))

    # Ending.

    def _watch_children(self) -> None:
        """Have SIGCHLD wake the loop: for orphans, whose pids nobody knows."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)

        def on_child(_mask: int) -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(read_end, PACKET_BYTES_MAX)
            self._reap()

        self._watch(read_end, on_child, select.EPOLLIN)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._end(rank, status)
        if self._kill is not None and not self._ranks_through(self._kill.through):
            self._kill.due_s = 0.0

    def _end(self, rank: _Rank, status: int) -> None:
        if rank.exec_pipe is not None:
            self._read_exec(rank, is_over=True)
        if rank.pidfd is not None:
            self._unwatch(rank.pidfd)
            os.close(rank.pidfd)
        if rank.statm is not None:
            os.close(rank.statm)
        if rank.is_failed:
            return
        code, signum = _split_status(status)
        self._send(Exited(rank.attempt, rank.rank, rank.pid, code, signum, os.WCOREDUMP(status)))

    def _look_for_exiting(self, now_s: float) -> None:
        is_size_look = now_s >= self._size_look_at_s
        if is_size_look:
            self._size_look_at_s = now_s + SIZE_LOOK_S
        for rank in self._ranks.values():
            if rank.is_awaited and (rank.is_big or is_size_look):
                self._look_at(rank, is_size_look)

    def _look_at(self, rank: _Rank, is_size_look: bool) -> None:
        memory = rank.read_memory()
        if memory is None:
            return
        size_pages, resident_bytes = memory
        if is_size_look:
            rank.is_big = resident_bytes >= BIG_BYTES
        if not size_pages and is_process_exiting(rank.pid):
            rank.is_told_exiting = True
            status = read_exit_status(rank.pid)
            code, signum = (None, None) if status is None else _split_status(status)
            self._send(Exiting(rank.attempt, rank.rank, code, signum))

    # Signals, and the end of an attempt.

    def _signal(self, command: SignalCommand) -> None:
        if command.signum in (signal.SIGTERM, signal.SIGKILL):
            self._forks.cancel(command.attempt, command.ranks)
        ranks = [
            rank
            for rank in self._ranks.values()
            if rank.attempt == command.attempt
            and (command.ranks is None or rank.rank in command.ranks)
        ]
        if command.signum == signal.SIGKILL:
            for rank in ranks:
                _kill_group(rank.pid)
            return
        holders = {holder.rank: holder.ref for holder in command.holders}
        signalled = [
            SignalledRank(
                rank.rank,
                ProcessRef(rank.pid, rank.start_ticks),
                rank.is_contained,
                holders.get(rank.rank),
            )
            for rank in ranks
        ]
        send_to_ranks(self._job_id, command.attempt, signalled, command.signum)

    def _check_lease(self) -> None:
        lease = self._lease
        if lease is None or lease.until_s is None:
            return
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= lease.until_s:
            self._lease = None
            self._send(LeaseExpired(lease.through_attempt))
            self._kill_through(lease.through_attempt)

    def _kill_through(self, through: int) -> None:
        self._fenced_through = max(self._fenced_through, through)
        self._forks.drop_through(through)
        if self._kill is None:
            self._kill = TreeKill(
                self._job_id,
                self._watch,
                self._unwatch,
                node=self._node,
                launcher=parse_mark(os.environ.get(ENV_LAUNCHER, ""), read_boot_id()),
            )
            self._pending_at_s = time.monotonic() + PENDING_AFTER_S
        if through < EVERY_ATTEMPT:
            self._newest_attempt = max(self._newest_attempt, through)
        # Where the launcher is gone, another one may be running newer attempts already.
        self._kill.widen(through, marked_through=min(through, self._newest_attempt))
        ranks = self._ranks_through(through)
        self._kill.strike(ProcessRef(rank.pid, rank.start_ticks, rank.attempt) for rank in ranks)

    def _ranks_through(self, through: int) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if rank.attempt <= through]

    def _go_on_killing(self, now_s: float) -> None:
        kill = self._kill
        if kill is None or now_s < kill.due_s:
            return
        newer = {rank.pid for rank in self._ranks.values() if rank.attempt > kill.through}
        is_ending = bool(self._ranks_through(kill.through))
        if kill.advance(now_s, newer, are_ranks_ending=is_ending):
            self._reap()  # so that every exit is reported before the emptiness
            kill.close()
            self._kill = None
            killed, unreadable = kill.killed_pids[:LISTED_MAX], kill.unreadable_pids[:LISTED_MAX]
            name_milestone("guardian", ProcessMilestone.KILLED, kill.through)
            self._send(Emptied(kill.through, tuple(killed), tuple(unreadable)))
        elif now_s >= self._pending_at_s:
            self._pending_at_s = now_s + PENDING_EVERY_S
            survivors = kill.survivors()[:SURVIVORS_MAX]
            self._send(KillPending(kill.through, tuple(survivors)))


def _kill_group(pid: int) -> None:
    """Kill the process group of a rank that is not reaped, so that its pid is no other's."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # not the leader of its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):  # Linux before 5.3: only SIGCHLD reports it
        return None


def _statm(pid: int) -> int | None:
    try:
        return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _split_status(status: int) -> tuple[int | None, int | None]:
    """Return exit code and signal of a wait status, one of them None."""
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def main(arguments: Sequence[str]) -> int:
    link_fd, launcher_pid, job_id, node, list_path = arguments
    for ignored in _IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # blocked by the launcher until here
    become_subreaper()
    os.chdir("/")  # holds no file system
    process_list = ProcessList(list_path) if list_path else None
    guardian = GuardianProcess(
        LauncherLink(int(link_fd)), int(launcher_pid), job_id, node or None, process_list
    )
    try:
        return guardian.serve()
    except Exception as error:  # noqa: BLE001 - no rank may be left, whatever happened
        sys.excepthook(type(error), error, error.__traceback__)
        return guardian.abandon()
