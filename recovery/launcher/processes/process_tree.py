"""The processes of a job: found by parentage and by mark, killed, and proved gone.

Three ways lead to a process: it descends from a rank; it carries the job's mark in the environment
that it was started with; it descends from one that does. Reading /proc/PID/environ takes the memory
lock of that process, which a stuck driver call can hold for ever: a caller that must not hang calls
`find_marked` in a child that can be left behind, as the guardian does. /proc/PID/stat takes no such
lock.

Source: proc(5), proc_pid_stat(5), proc_pid_status(5), pid_namespaces(7); PF_EXITING and PF_KTHREAD in include/linux/sched.h;
load_elf_binary in fs/binfmt_elf.c.
Imports stay few: the guardian runs this without site-packages.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Final

from rankmend.errors import SourceError
from rankmend.hook.layout import ENV_ATTEMPT, ENV_JOB_ID

PROC: Final = "/proc"
ENV_GUARDIAN: Final = "RANKMEND_GUARDIAN_OF"
"""Mark of a guardian, and of its children until they have become ranks: the job's UUID."""
ENV_NODE: Final = "RANKMEND_NODE"
"""Mark beside the job's, where several nodes of a job may be on one machine: the node's name."""
ENV_INSIDE: Final = "RANKMEND_INSIDE"
"""Mark beside the job's: runs behind the prefix of `--rank-prefix`, and is not the prefix itself."""
ENV_LAUNCHER: Final = "RANKMEND_LAUNCHER"
"""Mark beside the job's: the launcher whose guardian started it (`processes.identity`)."""

_PF_EXITING: Final = 0x4
_PF_KTHREAD: Final = 0x00200000
_GONE: Final = frozenset("ZXx")
_STAT_BYTES_MAX: Final = 8192
# The kernel gives arguments and environment at most 6 MiB (execve(2): 3/4 of _STK_LIM).
_ENVIRON_BYTES_MAX: Final = 6 << 20
_READ_BYTES: Final = 64 << 10
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_POLL_S: Final = 0.002
_POLL_S_MAX: Final = 0.05
_LISTINGS_MAX: Final = 10  # on a machine that starts processes faster than they are listed
_WCHAN_BYTES_MAX: Final = 128
_EXEC_LOOK_S: Final = 0.001
# An exec shows no environment for some 100 us, on a busy machine for as long as it waits for a processor.
_EXEC_S_MAX: Final = 10.0

LOOK_S: Final = 2.0  # between two looks for a process that was not found


@dataclass(frozen=True, slots=True)
class KernelProcess:
    """One process as the kernel shows it."""

    pid: int
    command: str  # at most 15 bytes, chosen by the process
    letter: str  # R, S, D, T, t, Z, X ...
    ppid: int
    group: int
    session: int
    flags: int  # the main thread's flags
    threads: int  # 0 or 1 in a zombie of which nothing runs any more
    start_ticks: int  # clock ticks since boot
    resident_bytes: int

    @property
    def is_gone(self) -> bool:
        """Nothing of it can run again. A zombie main thread may still have living threads."""
        return self.letter in _GONE and self.threads <= 1


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """One process for good: a pid is used again, a pid with its start time is not."""

    pid: int
    start_ticks: int
    attempt: int | None = None  # by its mark; None: the mark names none
    launcher: str = field(default="", compare=False)  # by its mark; "": it names none


class MarkKind(Enum):
    """What a marked process is: a rank, a process that a rank has started, or a guardian."""

    RANK = "rank"
    GUARDIAN = "guardian"


@dataclass(frozen=True, slots=True)
class Marked:
    """What a search by mark found."""

    processes: tuple[ProcessRef, ...]  # ranks, and what they have started
    guardians: tuple[ProcessRef, ...]  # and their children that have not become ranks yet
    unreadable: tuple[int, ...]  # pids of this user whose environment could not be read


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that SIGKILL has not ended yet."""

    pid: int
    start_ticks: int
    letter: str  # D: inside a system call that cannot be interrupted
    wchan: str  # the kernel function that it waits in; empty where the kernel does not show it
    note: str = ""  # why it was not killed, where that is so


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was left of a job by a launcher and a guardian that were both killed."""

    killed: tuple[ProcessRef, ...]
    alive: tuple[Survivor, ...]  # not proved gone: nothing may be started
    unreadable: tuple[int, ...]
    foreign: tuple[ProcessRef, ...] = ()  # not killed: their own launcher lives, or may live

    @property
    def is_empty(self) -> bool:
        return not self.alive and not self.foreign


def is_exiting(flags: int) -> bool:
    """Return whether a thread with these flags is inside its exit, never to run user code."""
    return bool(flags & _PF_EXITING)


def parse_stat(data: bytes) -> KernelProcess:
    """Return the fields of one /proc/PID/stat line; the name in it may hold any byte."""
    try:
        opening, closing = data.index(b"("), data.rindex(b")")
        fields = data[closing + 1 :].split()
        return KernelProcess(
            pid=int(data[:opening]),
            command=data[opening + 1 : closing].decode("utf-8", "replace"),
            letter=fields[0].decode("ascii"),
            ppid=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            flags=int(fields[6]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            resident_bytes=int(fields[21]) * _PAGE_BYTES,
        )
    except (ValueError, IndexError) as error:
        raise SourceError(f"no process state: {data[:200]!r}") from error


def parse_memory(data: bytes) -> tuple[int, int]:
    """Return virtual size (pages) and resident bytes of /proc/PID/statm.

    The size is 0 once the main thread has left its memory map, the first thing of its exit (kernel/exit.c, exit_mm).
    """
    try:
        size, resident, _rest = data.split(b" ", 2)
        return int(size), int(resident) * _PAGE_BYTES
    except ValueError as error:
        raise SourceError(f"no memory sizes of a process: {data[:200]!r}") from error


def read_state(pid: int | str, root: str = PROC) -> KernelProcess | None:
    """Return the state of a process, or None where there is none."""
    try:
        data = _read(f"{root}/{pid}/stat", _STAT_BYTES_MAX)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise SourceError(f"cannot read {root}/{pid}/stat: {error.strerror}") from error
    return parse_stat(data)


def is_process_exiting(pid: int, root: str = PROC) -> bool:
    """Return whether every thread of a process is inside its exit.

    The main thread's flag alone is not enough: it may have ended while the others live on.
    """
    try:
        threads = [entry.name for entry in os.scandir(f"{root}/{pid}/task")]
    except OSError:
        return False
    states = [read_state(int(thread), f"{root}/{pid}/task") for thread in threads]
    return all(state is None or is_exiting(state.flags) for state in states)


def read_exit_status(pid: int, root: str = PROC) -> int | None:
    """Return the wait status that a dying process will have, where the kernel already shows it.

    Field 52 of the line, exit_code: set before the memory is freed (kernel/exit.c, do_exit),
    shown to who may trace the process, and 0 to everybody else.
    """
    try:
        data = _read(f"{root}/{pid}/stat", _STAT_BYTES_MAX)
        status = int(data[data.rindex(b")") + 2 :].split()[49])
    except (OSError, ValueError, IndexError):
        return None
    return status or None


def read_processes(root: str = PROC) -> dict[int, KernelProcess]:
    """Return all processes of this machine (of this PID namespace), by pid."""
    found = {}
    for pid in pids(root):
        state = read_state(pid, root)
        if state is not None:
            found[pid] = state
    return found


def descendants(pid: int, processes: Mapping[int, KernelProcess]) -> list[KernelProcess]:
    """Return all processes below ``pid``, children before grandchildren, zombies included."""
    children: dict[int, list[KernelProcess]] = {}
    for state in processes.values():
        if state.pid != pid:
            children.setdefault(state.ppid, []).append(state)
    found = list(children.pop(pid, ()))
    for state in found:  # grows while it is walked; pop: a torn snapshot may hold a circle
        found.extend(children.pop(state.pid, ()))
    return found


def ancestors(pid: int, processes: Mapping[int, KernelProcess]) -> frozenset[int]:
    """Return the pids of all processes above ``pid``."""
    found: set[int] = set()
    state = processes.get(pid)
    while state is not None and state.ppid not in found:
        found.add(state.ppid)
        state = processes.get(state.ppid)
    return frozenset(found - {0})


def find_marked(
    job_id: str, attempt_through: int | None = None, node: str | None = None
) -> list[ProcessRef]:
    """Return every living process of the ranks of a job, in its attempts up to one."""
    return list(search_marks(job_id, attempt_through, node=node).processes)


def search_marks(
    job_id: str, attempt_through: int | None = None, root: str = PROC, node: str | None = None
) -> Marked:
    """Return every living process that carries the mark of a job, in its attempts up to one.

    ``node``: only of this node's launchers, where several nodes of a job are on one machine.

    Only the environment at the start of a process is seen; a process that writes over it
    (setproctitle) or was started without it is found by its parentage alone. A process that
    this user may not read is another user's, or is reported as unreadable where it is not.
    """
    processes, guardians, unreadable = [], [], []
    for pid in settled_pids(root):
        try:
            kind, ref = read_mark(pid, job_id, root, node) or (None, None)
        except PermissionError:
            if is_of_this_user(pid, root):
                unreadable.append(pid)
            continue
        if ref is None:
            continue
        if kind is MarkKind.GUARDIAN:
            guardians.append(ref)
        elif is_attempt_within(ref.attempt, attempt_through):
            processes.append(ref)
    return Marked(tuple(processes), tuple(guardians), tuple(unreadable))


def is_attempt_within(attempt: int | None, attempt_through: int | None) -> bool:
    """Return whether a process is of an attempt up to one; an unknown attempt counts as old."""
    return attempt is None or attempt_through is None or attempt <= attempt_through


def read_mark(
    pid: int,
    job_id: str,
    root: str = PROC,
    node: str | None = None,
    on_exec: Callable[[], object] = lambda: None,
) -> tuple[MarkKind, ProcessRef] | None:
    """Return a living process if it carries the mark of this job, else None.

    With ``node``, a mark that names another node does not count; a mark that names none does. Raises PermissionError where this user may not look.
    ``on_exec``: as in `read_environ`.
    """
    try:
        environ = b"\0" + read_environ(pid, root, on_exec)
    except PermissionError:
        raise
    except OSError:
        return None  # gone meanwhile
    is_rank = _has(environ, ENV_JOB_ID, job_id)
    if not is_rank and not _has(environ, ENV_GUARDIAN, job_id):
        return None
    if node is not None and _value(environ, ENV_NODE) not in (b"", node.encode()):
        return None
    state = read_state(pid, root)
    if state is None or state.is_gone:
        return None
    launcher = _value(environ, ENV_LAUNCHER).decode("ascii", "replace")
    if not is_rank:
        return MarkKind.GUARDIAN, ProcessRef(pid, state.start_ticks, launcher=launcher)
    attempt = _value(environ, ENV_ATTEMPT)
    number = int(attempt) if attempt.isdigit() else None
    return MarkKind.RANK, ProcessRef(pid, state.start_ticks, number, launcher)


def read_environ(pid: int, root: str = PROC, on_exec: Callable[[], object] = lambda: None) -> bytes:
    """Return the environment that a process was started with. May hang where the process is stuck in a driver.

    Within execve the kernel shows none: the old memory is gone, and the stack with the new environment isn't there yet.
    Such a process is looked at again, after a call of ``on_exec``, until it runs; PermissionError, as of one that
    can't be read, where that takes too long.
    """
    deadline_s = time.monotonic() + _EXEC_S_MAX
    while True:
        environ = _read(f"{root}/{pid}/environ", _ENVIRON_BYTES_MAX)
        if environ or _has_no_environ(pid, root):
            return environ
        if time.monotonic() >= deadline_s:
            raise PermissionError(f"process {pid} is within execve")
        on_exec()
        time.sleep(_EXEC_LOOK_S)


def _has_no_environ(pid: int, root: str) -> bool:
    """Return whether an environment that was read as empty is empty, and not that of a process within execve.

    By /proc/PID/stat: startcode (field 26) is the last that execve sets, 0 until then, after env_start and env_end
    (50 and 51). Who may not look reads 1, 0 and 0, and no environment either.
    """
    try:
        flags, start_code, begin, end = _exec_fields(pid, root)
    except (OSError, ValueError, IndexError):  # gone, or Linux before 3.5
        return True
    if flags & (_PF_KTHREAD | _PF_EXITING) or not _shows_start_code():
        return True
    return start_code != 0 and begin == end


def _exec_fields(pid: int | str, root: str) -> tuple[int, int, int, int]:
    """Return flags, startcode, env_start and env_end of a process."""
    data = _read(f"{root}/{pid}/stat", _STAT_BYTES_MAX)
    fields = data[data.rindex(b")") + 2 :].split()
    return int(fields[6]), int(fields[23]), int(fields[47]), int(fields[48])


@cache
def _shows_start_code() -> bool:
    """Return whether this kernel shows it at all: sandboxes that imitate Linux show 0 of a process that runs, too."""
    try:
        return _exec_fields("self", PROC)[1] != 0
    except (OSError, ValueError, IndexError):
        return False


def read_status(pid: int | str, root: str = PROC) -> dict[str, str]:
    """Return the lines of /proc/PID/status by name; none where the process is gone."""
    try:
        text = _read(f"{root}/{pid}/status", _STAT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _colon, value in lines}


def is_alive(ref: ProcessRef, root: str = PROC) -> bool:
    """Return whether this very process can still run; a zombie can't."""
    state = read_state(ref.pid, root)
    return state is not None and state.start_ticks == ref.start_ticks and not state.is_gone


def send_kill(ref: ProcessRef) -> bool:
    """Send SIGKILL to this very process, and return whether it was there to be sent to."""
    return send_signal(ref, signal.SIGKILL)


def send_signal(ref: ProcessRef, number: signal.Signals) -> bool:
    """Send a signal to this very process, and return whether it was there to be sent to."""
    try:
        handle = os.pidfd_open(ref.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        # Linux before 5.3, or a Python built without it. A pid comes round again after all
        # the others (32,768 at least), not between these two lines.
        return is_alive(ref) and _signal(lambda: os.kill(ref.pid, number))
    try:
        if not is_alive(ref):
            return False
        return _signal(lambda: signal.pidfd_send_signal(handle, number))
    finally:
        os.close(handle)


def kill_all(refs: Iterable[ProcessRef], deadline_s: float) -> tuple[Survivor, ...]:
    """Kill these processes and return those that are not gone at ``deadline_s`` (monotonic)."""
    waiting = list(refs)
    for ref in waiting:
        send_kill(ref)
    pause_s = _POLL_S
    while waiting := [ref for ref in waiting if is_alive(ref)]:
        if time.monotonic() >= deadline_s:
            return tuple(survivor(ref) for ref in waiting)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S_MAX)
    return ()


def survivor(ref: ProcessRef, note: str = "", root: str = PROC) -> Survivor:
    """Return what a person needs to know of a process that does not go."""
    state = read_state(ref.pid, root)
    try:
        wchan = _read(f"{root}/{ref.pid}/wchan", _WCHAN_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        wchan = ""
    letter = state.letter if state is not None else ""
    return Survivor(ref.pid, ref.start_ticks, letter, "" if wchan == "0" else wchan, note)


def fence_leftovers(
    job_id: str,
    attempt_through: int | None,
    deadline_s: float,
    exclude: Collection[int] = (),
    node: str | None = None,
    listed: Collection[ProcessRef] = (),
    is_foreign: Callable[[str], bool] | None = None,
) -> Leftovers:
    """Kill all that older launchings of a job have left on this machine, and prove it gone.

    For the start of a launcher, under the job's lock and before it starts a guardian of its
    own. Guardians are killed too: an old one may still hold a command that it has not read.
    Never killed are this process, ``exclude`` and what stands above this process; an old
    process of the job above it is a survivor, with a note. Nor are processes whose launcher
    ``is_foreign`` (by its mark): another launching that lives. ``deadline_s`` is monotonic.
    ``listed``: what an older guardian listed as below it (`processes.listing.read_list`).
    """
    killed: dict[tuple[int, int], ProcessRef] = {}
    while True:
        marked = search_marks(job_id, attempt_through, node=node)
        processes = read_processes()
        above = ancestors(os.getpid(), processes)
        spared = {os.getpid(), *exclude}
        found = [*marked.processes, *marked.guardians]
        foreign = [ref for ref in found if is_foreign is not None and is_foreign(ref.launcher)]
        # Where another launcher lives, its guardian may have written the list.
        unmarked = [] if foreign else filter(is_alive, listed)
        old = [*(ref for ref in found if ref not in foreign), *unmarked]
        ours = [ref for ref in old if ref.pid not in above | spared]
        targets = {
            (state.pid, state.start_ticks): ProcessRef(state.pid, state.start_ticks, ref.attempt)
            for ref in ours
            if ref.pid in processes
            for state in (processes[ref.pid], *descendants(ref.pid, processes))
            if not state.is_gone and state.pid not in spared
        }
        # One that has ended since it was found may have left a child that was not listed yet: look again.
        if (targets and not killed) or (ours and time.monotonic() < deadline_s):
            killed |= targets
            kill_all(targets.values(), deadline_s)
            continue
        note = "not killed: this launcher runs below it"
        alive = [survivor(ref, note) for ref in old if ref.pid in above]
        # Of what has ended by now, too, a child may live: without another look nothing is proved.
        alive += [survivor(ref) for ref in targets.values() or ours]
        return Leftovers(tuple(killed.values()), tuple(alive), marked.unreadable, tuple(foreign))


def settled_pids(root: str = PROC) -> Iterator[int]:
    """Return the ids of all processes, then of those that have begun meanwhile, until a look shows no new one.

    A process that forks and exits between the listing and its reading would otherwise hide its child.
    """
    seen: set[int] = set()
    for _ in range(_LISTINGS_MAX):
        fresh = [pid for pid in pids(root) if pid not in seen]
        if not fresh:
            return
        yield from fresh
        seen.update(fresh)


def pids(root: str = PROC) -> Iterator[int]:
    """Return the ids of all processes."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name.isdigit():
                yield int(entry.name)


def _read(path: str, size_max: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks, size = [], 0
        while size < size_max:
            chunk = os.read(descriptor, min(_READ_BYTES, size_max - size))
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def _has(environ: bytes, name: str, value: str) -> bool:
    return f"\0{name}={value}\0".encode() in environ


def _value(environ: bytes, name: str) -> bytes:
    _before, _found, after = environ.partition(f"\0{name}=".encode())
    return after.partition(b"\0")[0]


def is_of_this_user(pid: int, root: str = PROC) -> bool:
    """Return whether a process runs as this user; its /proc folder may belong to root."""
    try:
        status = _read(f"{root}/{pid}/status", _STAT_BYTES_MAX)
    except OSError:
        return False
    _before, _name, after = status.partition(b"\nUid:")
    words = after.partition(b"\n")[0].split()
    return bool(words) and words[0] == str(os.getuid()).encode()


def _signal(send: Callable[[], None]) -> bool:
    try:
        send()
    except (ProcessLookupError, PermissionError):  # the latter: it has become another user's
        return False
    return True


def find_outer(
    inner: ProcessRef, below: int, is_it: Callable[[int], bool], root: str = PROC
) -> ProcessRef | None:
    """Return the process whose innermost pid and start time are ``inner``; None where there is none, or several fit.

    The start time of a rank in a container is the same everywhere, and /proc/PID/status has the
    innermost pid (NSpid). Two containers can start a process in one clock tick under one inner pid.
    So the process also has to be below the process that was started for the rank, or to have a file
    open under the descriptor that it reported: where a daemon has started the container. Takes no
    process's memory lock (environ, maps).

    ``below``: an ancestor that proves it; ``is_it``: another proof, for a process with another parent.
    """
    try:
        processes = read_processes(root)
    except (OSError, SourceError):
        return None
    found = [
        state.pid
        for state in processes.values()
        if state.start_ticks == inner.start_ticks
        and not state.is_gone
        and read_status(state.pid, root).get("NSpid", "").split()[-1:] == [str(inner.pid)]
    ]
    own = [pid for pid in found if pid == below or below in ancestors(pid, processes)]
    own = own or [pid for pid in found if is_it(pid)]
    return ProcessRef(own[0], inner.start_ticks) if len(own) == 1 else None
