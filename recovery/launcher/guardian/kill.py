"""Kills all processes of old attempts, in rounds, until none is proved to be left.

The proof has two parts. No process below the guardian remains (it is their subreaper: without a child
it has no descendant; otherwise two looks in a row that find none). And a search by mark, begun after
that tree was killed, finds none outside it.

Nothing here waits: the guardian calls `TreeKill.advance` when a process has ended, and by timer. The
search reads /proc/PID/environ, which a process stuck in a driver can block forever, so it runs in a
forked child that is killed, or left behind, if it hangs.
"""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from rankmend.errors import SourceError
from recovery.launcher.processes.identity import ProcessIdentity
from recovery.launcher.processes.prctl import die_with_parent
from recovery.launcher.processes.process_tree import (
    PROC,
    KernelProcess,
    MarkKind,
    ProcessRef,
    Survivor,
    ancestors,
    descendants,
    is_alive,
    is_attempt_within,
    is_of_this_user,
    read_mark,
    read_processes,
    read_state,
    send_kill,
    settled_pids,
    survivor,
)
from recovery.launcher.processes.standing import ForeignMarks

_ROUND_S: Final = 0.005
_LOOK_S: Final = (
    0.05  # while struck ranks end: a look takes their processors, 3 ms with 80 processes
)
_ROUND_S_MAX: Final = 0.25  # a round also begins at once when a child of the guardian ends
_STANDSTILL_S: Final = 2.0  # reading one environment takes about 20 us
_STARVED_S: Final = 60.0  # of a search that a busy or paused machine gives no processor
_SKIPPED_MAX: Final = 8  # processes that block a search; each costs a standstill
_SEARCHES_MAX: Final = 100
_EMPTY_LOOKS: Final = 2
_LINES_BYTES: Final = 64 << 10

Watch = Callable[[int, Callable[[int], None], int], None]


class MarkSearch:
    """A child that searches for the marked processes of a job and reports them through a pipe."""

    def __init__(
        self,
        job_id: str,
        node: str | None,
        through: int,
        skip: Collection[int],
        now_s: float,
        root: str = PROC,
        launcher: ProcessIdentity | None = None,
    ) -> None:
        self.found: list[ProcessRef] = []
        self.unreadable: list[int] = []
        self.is_complete = False
        self.reading: int | None = None
        self._moved_at_s = now_s
        self._rest = b""
        self._pipe, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        guardian_pid = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                os.set_blocking(write_end, True)
                become_child(guardian_pid, write_end)
                _search(job_id, node, through, skip, write_end, root, launcher)
            os._exit(0)
        os.close(write_end)

    def fileno(self) -> int:
        return self._pipe

    def read(self, now_s: float) -> bool:
        """Read the child's results, and return whether it has finished."""
        while True:
            try:
                data = os.read(self._pipe, _LINES_BYTES)
            except BlockingIOError:
                return False
            self._moved_at_s = now_s
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line.split())
            if not data:
                return True

    def is_stuck(self, now_s: float) -> bool:
        return stands_still(self.pid, now_s - self._moved_at_s)

    def close(self) -> None:
        os.close(self._pipe)
        with contextlib.suppress(ProcessLookupError):  # reaped
            os.kill(self.pid, signal.SIGKILL)

    def _take(self, words: list[bytes]) -> None:
        what, *numbers = words
        if what == b"end":
            self.is_complete = True
        elif what == b"reading":
            self.reading = int(numbers[0])
        elif what == b"unreadable":
            self.unreadable.append(int(numbers[0]))
        else:
            pid, start_ticks, attempt = map(int, numbers)
            self.found.append(ProcessRef(pid, start_ticks, None if attempt < 0 else attempt))


def stands_still(pid: int, silent_s: float, root: str = PROC) -> bool:
    """Return whether a search that has reported nothing for so long is blocked, and not only waits for a processor.

    What it reads when it is taken for blocked is passed over: on a busy machine that could be a process of the job.
    """
    if silent_s < _STANDSTILL_S:
        return False
    state = read_state(pid, root)
    return state is None or state.letter != "R" or silent_s >= _STARVED_S


def become_child(guardian_pid: int, write_end: int | None = None) -> None:
    """Close the guardian's descriptors: an open end of its socket would mean that it lives."""
    signal.set_wakeup_fd(-1)
    with os.scandir("/proc/self/fd") as entries:
        descriptors = [int(entry.name) for entry in entries]
    for descriptor in descriptors:
        if descriptor > 2 and descriptor != write_end:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    die_with_parent(guardian_pid)


def _search(
    job_id: str,
    node: str | None,
    through: int,
    skip: Collection[int],
    write_end: int,
    root: str,
    launcher: ProcessIdentity | None,
) -> None:
    is_foreign = ForeignMarks(launcher, root) if launcher is not None else None
    for pid in settled_pids(root):
        if pid in skip:
            continue
        reading = b"reading %d\n" % pid
        os.write(write_end, reading)
        try:
            on_exec = partial(os.write, write_end, reading)  # it waits, and is not stuck
            kind, ref = read_mark(pid, job_id, root, node, on_exec) or (None, None)
        except PermissionError:
            if is_of_this_user(pid, root):
                os.write(write_end, b"unreadable %d\n" % pid)
            continue
        if ref is None or kind is MarkKind.GUARDIAN:
            continue
        if is_foreign is not None and is_foreign(ref.launcher):
            continue
        if is_attempt_within(ref.attempt, through):
            attempt = -1 if ref.attempt is None else ref.attempt
            os.write(write_end, b"found %d %d %d\n" % (pid, ref.start_ticks, attempt))
    os.write(write_end, b"end\n")


class TreeKill:
    """The killing of every process of all attempts up to one."""

    def __init__(
        self,
        job_id: str,
        watch: Watch,
        unwatch: Callable[[int], None],
        root: str = PROC,
        node: str | None = None,
        launcher: ProcessIdentity | None = None,
    ) -> None:
        """``watch`` registers a handler for a readable descriptor, until ``unwatch``.

        ``launcher``: processes with the mark of another living launcher are spared.
        """
        self.through = -1
        self.due_s = 0.0
        self._job_id = job_id
        self._node = node
        self._watch = watch
        self._unwatch = unwatch
        self._root = root  # root of the search
        self._launcher = launcher
        self._marked_through = -1
        self._search: MarkSearch | None = None
        self._round_s = _ROUND_S
        self._killed: dict[tuple[int, int], ProcessRef] = {}
        self._outside: list[ProcessRef] = []  # found by mark and killed, but perhaps not gone yet
        self._searches: set[int] = set()  # pids of our own children that search
        self._skip: set[int] = set()
        self._unreadable: set[int] = set()
        self._is_searched = False
        self._empty_looks = 0
        self._look_at_s = 0.0  # while ranks are ending

    @property
    def killed_pids(self) -> list[int]:
        return sorted(pid for pid, _start_ticks in self._killed)

    @property
    def unreadable_pids(self) -> list[int]:
        return sorted(self._unreadable | self._skip)

    def survivors(self) -> list[Survivor]:
        return [survivor(ref) for ref in self._killed.values() if is_alive(ref)]

    def widen(self, through: int, marked_through: int) -> None:
        """Kill through a higher attempt; the search by mark, which other launchers share, may stay lower."""
        self.through = max(self.through, through)
        self._marked_through = max(self._marked_through, marked_through)
        self._is_searched = False
        self._empty_looks = 0
        self._round_s = _ROUND_S
        self._look_at_s = 0.0
        self.due_s = 0.0
        self.close()

    def strike(self, ranks: Iterable[ProcessRef]) -> None:
        """Kill the process groups of unreaped ranks, before any search."""
        for ref in ranks:
            self._killed[ref.pid, ref.start_ticks] = ref
            try:
                os.killpg(ref.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # not the leader of its group yet
                send_kill(ref)

    def advance(self, now_s: float, newer: Collection[int], *, are_ranks_ending: bool) -> bool:
        """Do one round and return whether nothing is left.

        ``newer``: ranks to spare. ``are_ranks_ending``: a struck rank has not ended yet.
        """
        self.due_s = now_s + self._round_s
        self._round_s = min(2 * self._round_s, _ROUND_S_MAX)
        self._read_search(now_s)
        if are_ranks_ending and now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + _LOOK_S
        targets = self._look(newer) if _has_children() else None
        if self._kill_fresh(targets or ()):
            self._round_s = _ROUND_S
            self._look_at_s = 0.0
            self._is_searched = False
            self.close()  # a process killed only now may have started others unnoticed
        elif not self._is_searched and self._search is None:
            self._start_search(now_s)
        self._empty_looks = 0 if targets else self._empty_looks + 1
        if 0 < self._empty_looks < _EMPTY_LOOKS:
            self.due_s = now_s  # the next look: a pause between them proves no more
        is_tree_empty = targets is None or self._empty_looks >= _EMPTY_LOOKS
        self._outside = [ref for ref in self._outside if is_alive(ref)]
        return is_tree_empty and self._is_searched and not self._outside

    def close(self) -> None:
        if self._search is not None:
            self._unwatch(self._search.fileno())
            self._search.close()
            self._search = None

    def _kill_fresh(self, targets: Iterable[KernelProcess]) -> bool:
        fresh = [state for state in targets if (state.pid, state.start_ticks) not in self._killed]
        for state in fresh:
            self._kill(ProcessRef(state.pid, state.start_ticks))
        return bool(fresh)

    def _kill(self, ref: ProcessRef) -> None:
        self._killed[ref.pid, ref.start_ticks] = ref
        send_kill(ref)

    def _look(self, newer: Collection[int]) -> list[KernelProcess]:
        """Return the living processes below this one that belong to no newer attempt."""
        processes = read_processes()
        below = [
            state
            for state in descendants(os.getpid(), processes)
            if not state.is_gone and state.pid not in self._searches
        ]
        if not newer:
            return below
        spared = set(newer)
        for pid in newer:
            spared.update(state.pid for state in descendants(pid, processes))
        return [
            state
            for state in below
            if state.pid not in spared and state.session not in newer and not self._is_newer(state)
        ]

    def _is_newer(self, state: KernelProcess) -> bool:
        """Return whether an orphan's mark names a newer attempt; needed only while one runs, so rarely."""
        try:
            _kind, ref = read_mark(state.pid, self._job_id) or (None, None)
        except PermissionError:
            return False
        return ref is not None and not is_attempt_within(ref.attempt, self.through)

    def _start_search(self, now_s: float) -> None:
        if len(self._searches) >= _SEARCHES_MAX:
            raise SourceError(f"no search by mark was completed in {_SEARCHES_MAX}")
        self._search = MarkSearch(
            self._job_id,
            self._node,
            self._marked_through,
            self._skip,
            now_s,
            self._root,
            self._launcher,
        )
        self._searches.add(self._search.pid)
        self._watch(self._search.fileno(), lambda _mask: self._hurry(), select.EPOLLIN)

    def _hurry(self) -> None:
        self.due_s = 0.0

    def _read_search(self, now_s: float) -> None:
        search = self._search
        if search is None or not (search.read(now_s) or search.is_stuck(now_s)):
            return
        self.close()
        self._unreadable.update(search.unreadable)
        if not search.is_complete and search.reading is not None:
            self._skip.add(search.reading)
        is_over = search.is_complete or len(self._skip) >= _SKIPPED_MAX
        self._is_searched = not self._kill_outside(search.found) and is_over

    def _kill_outside(self, found: list[ProcessRef]) -> bool:
        """Kill marked processes and their descendants, and return whether there were any, so that a search has to follow.

        That is also so where they have ended by themselves: each may have left a child that was not listed yet.
        The ancestors of this process are spared: they belong to the launcher's own environment.
        """
        fresh = [ref for ref in found if (ref.pid, ref.start_ticks) not in self._killed]
        if not fresh:
            return False
        processes = read_processes()
        spared = {os.getpid(), *ancestors(os.getpid(), processes)}
        ours = [ref for ref in fresh if ref.pid not in spared]
        targets = [
            target
            for ref in ours
            for target in (ref, *_refs(descendants(ref.pid, processes)))
            if is_alive(target)
        ]
        for target in targets:
            self._kill(target)
        self._outside += targets
        return bool(ours)


def _refs(states: Iterable[KernelProcess]) -> list[ProcessRef]:
    return [ProcessRef(state.pid, state.start_ticks) for state in states]


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
