"""Sends a signal to a rank: to the process that trains, not to all that it or its wrappers have started.

| who | receives |
| --- | --- |
| the process that holds the rank's progress file | every signal, once |
| other ranks that the same Python launcher started (an inner torchrun), if they catch it | the same |
| a shell in front of it that catches the signal while it waits for it in the foreground: its trap runs once the rank has ended | the same |
| another program in front of it that catches SIGTERM: it may forward it, so the rank would get it twice | SIGTERM, once the rank has ended and this program goes on |
| workers of data loaders, helpers, programs in front that don't catch it | nothing, until the grace is over |

Without such a process the leader receives it; behind a shell that doesn't catch it, the program that the shell waits for. In a
container that is the first process behind the prefix. SIGUSR1 and SIGUSR2 end no process: one that neither catches, ignores nor blocks
them gets none.

The kernel keeps a signal without a handler from the first process of a PID namespace, where outside it would end the process:
there SIGKILL takes the place of SIGTERM. A worker of a DataLoader that dies ends its rank before that can save (PyTorch,
torch/utils/data/_utils/signal_handling.py), so a process group is no address for a signal.

Reading /proc/PID/environ can hang, so a child of the guardian does all this. Each process is addressed by a pidfd with its start time
checked, so a pid that is used again is never signalled.
Source: pid_namespaces(7), proc_pid_status(5), signal(7); POSIX 2018, Shell, 2.11 (a command in the background ignores SIGINT and
SIGQUIT where the shell has no job control) and bash(1), SIGNALS (a trap waits for the command in the foreground).
The guardian runs this without site-packages.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.errors import SourceError
from rankmend.hook.layout import ENV_ATTEMPT, ENV_JOB_ID
from recovery.launcher.guardian.kill import become_child
from recovery.launcher.processes.process_tree import (
    ENV_INSIDE,
    PROC,
    KernelProcess,
    ProcessRef,
    is_alive,
    pids,
    read_environ,
    read_processes,
    read_status,
    send_signal,
)

LATER_S_MAX: Final = 600.0  # for ranks to end; the kill at the end of the grace ends the wait, too
# For a program whose rank has ended to end by itself: torchrun looks every 0.1 s (monitor_interval).
PROGRAM_END_S: Final = 0.5
_ALL: Final = (1 << 64) - 1
_WORD_BYTES_MAX: Final = 512
_RANK: Final = "RANK"
_SHELLS: Final = frozenset(
    ("sh", "bash", "dash", "ash", "busybox", "ksh", "ksh93", "mksh", "zsh", "yash")
)
# Their default action would end a process that knows nothing of them (signal(7)).
_SPARING: Final = frozenset((signal.SIGUSR1, signal.SIGUSR2))
# What a process without a handler lives through (signal(7), default actions).
_HARMLESS: Final = frozenset(
    (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP)
)


@dataclass(frozen=True, slots=True)
class SignalMasks:
    """What a process does with signals: bit N-1 stands for signal N."""

    caught: int = 0
    ignored: int = 0
    blocked: int = 0  # by every thread
    program: str = ""  # its executable, without symbolic links; empty: not known

    def catches(self, signum: int) -> bool:
        return bool(self.caught >> (signum - 1) & 1)

    def ignores(self, signum: int) -> bool:
        return bool(self.ignored >> (signum - 1) & 1)

    def survives(self, signum: int) -> bool:
        """Return whether the signal's default action does not come into play."""
        return bool((self.caught | self.ignored | self.blocked) >> (signum - 1) & 1)

    @property
    def is_shell(self) -> bool:
        return os.path.basename(self.program) in _SHELLS  # noqa: PTH119 - no pathlib in the guardian


Look = Callable[[int], SignalMasks]


@dataclass(frozen=True, slots=True)
class Receivers:
    """Who receives a signal, by pid."""

    now: tuple[int, ...] = ()
    later: tuple[int, ...] = ()  # once those have ended


@dataclass(frozen=True, slots=True)
class SignalledRank:
    """A running rank as the guardian knows it."""

    rank: int
    leader: ProcessRef  # what the guardian has started
    is_contained: bool  # the rank runs behind the leader, perhaps in a container
    holder: ProcessRef | None  # of its progress file; None: nobody holds it


def choose_receivers(
    signum: int,
    leader: int,
    holder: int | None,
    processes: Mapping[int, KernelProcess],
    look: Look,
) -> Receivers:
    """Return who receives a signal for the rank that ``leader`` leads. Pure but for ``look``."""
    if holder is None:
        receiver = _first_that_catches(signum, leader, processes, look)
        return Receivers(_that_live(signum, (receiver,), look))
    above = _between(leader, holder, processes)
    if not above:
        return Receivers(_that_live(signum, (holder,), look))
    masks = {pid: look(pid) for pid in above}
    catching = [pid for pid in above if masks[pid].catches(signum)]
    shells = [
        pid
        for pid, below in zip(above, (*above[1:], holder), strict=True)
        if pid in catching
        and masks[pid].is_shell
        and _is_in_foreground(processes[below], processes[pid], look)
    ]
    peers = _peers(signum, holder, processes, look)
    later = [pid for pid in catching if not masks[pid].is_shell] if signum == signal.SIGTERM else []
    return Receivers((*_that_live(signum, (holder, *peers), look), *shells), tuple(later))


def _that_live(signum: int, chosen: Sequence[int], look: Look) -> tuple[int, ...]:
    """Return those of the chosen that such a signal doesn't end by its default action, where it may not."""
    if signum not in _SPARING:
        return tuple(chosen)
    return tuple(pid for pid in chosen if look(pid).survives(signum))


def _between(leader: int, holder: int, processes: Mapping[int, KernelProcess]) -> list[int]:
    """Return the leader and what is between it and the holder, top down; none where the holder isn't below it."""
    found: list[int] = []
    state = processes.get(holder)
    while state is not None and state.pid != leader and state.ppid not in found:
        found.append(state.ppid)
        state = processes.get(state.ppid)
    return found[::-1] if found and found[-1] == leader else []


def _is_in_foreground(below: KernelProcess, shell: KernelProcess, look: Look) -> bool:
    """Return whether a shell waits for this command and can do nothing else: its trap runs afterwards.

    A command in the background of a script ignores SIGQUIT, which a rank is started without, and has its own process group where
    the shell has job control.
    """
    return below.group == shell.group and not look(below.pid).ignores(signal.SIGQUIT)


def _peers(
    signum: int, holder: int, processes: Mapping[int, KernelProcess], look: Look
) -> list[int]:
    """Return the other ranks that a launcher in the rank's place has started, as far as they catch the signal."""
    parent, program = processes[holder].ppid, look(holder).program
    if not program or look(parent).program != program:
        return []
    others = [
        state.pid
        for state in processes.values()
        if state.ppid == parent and state.pid != holder and not state.is_gone
    ]
    masks = {pid: look(pid) for pid in others}
    return [pid for pid in others if masks[pid].program == program and masks[pid].catches(signum)]


def _first_that_catches(
    signum: int, leader: int, processes: Mapping[int, KernelProcess], look: Look
) -> int:
    """Return the leader, or what it runs in the foreground if it is a shell without a trap for this signal."""
    pid, seen = leader, {leader}
    while look(pid).is_shell and not look(pid).catches(signum):
        below = [
            process for process in processes.values() if process.ppid == pid and not process.is_gone
        ]
        if len(below) != 1 or below[0].pid in seen or pid not in processes:
            break
        if not _is_in_foreground(below[0], processes[pid], look):
            break
        pid = below[0].pid
        seen.add(pid)
    return pid if look(pid).survives(signum) else leader


def send_to_ranks(job_id: str, attempt: int, ranks: Sequence[SignalledRank], signum: int) -> None:
    """Send a signal to the ranks, from a child of this process that may be left behind."""
    guardian_pid = os.getpid()
    if not ranks or os.fork() != 0:
        return
    with contextlib.suppress(BaseException):
        become_child(guardian_pid)
        _send_to_ranks(job_id, attempt, ranks, signum)
    os._exit(0)


def _send_to_ranks(job_id: str, attempt: int, ranks: Sequence[SignalledRank], signum: int) -> None:
    processes: dict[int, KernelProcess] = {}
    with contextlib.suppress(
        OSError, SourceError
    ):  # no descriptors left: leaders and holders, then
        processes = read_processes()
    sent: list[ProcessRef] = []
    later: list[tuple[ProcessRef, ...]] = []
    hidden: list[SignalledRank] = []
    for rank in ranks:
        holder = rank.holder if rank.holder is not None and is_alive(rank.holder) else None
        if holder is None and rank.is_contained:
            hidden.append(rank)
            continue
        chosen = choose_receivers(
            signum, rank.leader.pid, None if holder is None else holder.pid, processes, read_masks
        )
        known = {rank.leader.pid: rank.leader} | ({holder.pid: holder} if holder else {})
        for pid in chosen.now:
            ref = _ref_of(pid, processes, known)
            _send(ref, signum)
            sent.append(ref)
        later.append(tuple(_ref_of(pid, processes, known) for pid in chosen.later))
    for rank in hidden:  # last: a look at environments may hang
        for ref in _inside(job_id, attempt, rank, signum, processes):
            _send(ref, signum)
    if any(later):
        _wait_for_ends(sent)
        for refs in later:
            for ref in refs:
                send_signal(ref, signal.Signals(signum))


def _ref_of(
    pid: int, processes: Mapping[int, KernelProcess], known: Mapping[int, ProcessRef]
) -> ProcessRef:
    return known[pid] if pid in known else ProcessRef(pid, processes[pid].start_ticks)


def _inside(
    job_id: str,
    attempt: int,
    rank: SignalledRank,
    signum: int,
    processes: Mapping[int, KernelProcess],
) -> Iterator[ProcessRef]:
    """Yield who receives a signal where nobody holds the progress file behind a prefix; the tool in front if none is there."""
    wanted = {ENV_JOB_ID: job_id, ENV_ATTEMPT: str(attempt), _RANK: str(rank.rank)}
    found = {pid for pid in find_inside(wanted) if pid in processes}
    first = [pid for pid in found if processes[pid].ppid not in found]
    for pid in first:
        for chosen in choose_receivers(signum, pid, None, processes, read_masks).now:
            yield ProcessRef(chosen, processes[chosen].start_ticks)
    if not found and _that_live(signum, (rank.leader.pid,), read_masks):
        yield rank.leader


def _wait_for_ends(refs: Collection[ProcessRef]) -> None:
    """Wait until these processes have ended, and a moment longer."""
    until_s = time.monotonic() + LATER_S_MAX
    poll = select.poll()
    open_fds: set[int] = set()
    for ref in refs:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(ref.pid)
            if not is_alive(ref):
                continue
            poll.register(descriptor, select.POLLIN)
            open_fds.add(descriptor)
    while open_fds and (left_s := until_s - time.monotonic()) > 0:
        for descriptor, _mask in poll.poll(1000 * left_s):
            poll.unregister(descriptor)
            open_fds.discard(descriptor)
    time.sleep(PROGRAM_END_S)


def find_inside(wanted: dict[str, str], root: str = PROC) -> list[int]:
    """Return the processes behind a prefix whose environment has these values."""
    lines = [f"\0{name}={value}\0".encode() for name, value in {**wanted, ENV_INSIDE: "1"}.items()]
    found = []
    for pid in pids(root):
        with contextlib.suppress(OSError):
            environ = b"\0" + read_environ(pid, root)
            if all(line in environ for line in lines):
                found.append(pid)
    return found


def read_masks(pid: int, root: str = PROC) -> SignalMasks:
    """Return what a process does with signals; nothing of one that is gone. Takes no process's memory lock."""
    status = read_status(pid, root)
    blocked = _ALL if status else 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"{root}/{pid}/task"):
            thread = read_status(entry.name, f"{root}/{pid}/task")
            blocked &= _mask(thread, "SigBlk") | _awaited(pid, entry.name, root)
    try:
        # no pathlib in the guardian
        program = os.readlink(f"{root}/{pid}/exe")  # noqa: PTH115
    except OSError:
        program = status.get("Name", "")
    return SignalMasks(_mask(status, "SigCgt"), _mask(status, "SigIgn"), blocked, program)


def _awaited(pid: int, thread: str, root: str) -> int:
    """Return the signals for which a thread waits in `sigwait`: meanwhile the kernel shows them as not blocked (kernel/signal.c, do_sigtimedwait).

    All of them where the set can't be read: who waits for signals, waits for this one rather than for none of ours.
    """
    folder = f"{root}/{pid}/task/{thread}"
    try:
        with open(f"{folder}/wchan", "rb") as file:  # noqa: PTH123 - no pathlib in the guardian
            if not file.read(_WORD_BYTES_MAX).startswith(
                b"do_sigtimedwait"
            ):  # compilers add .isra.0
                return 0
        with open(f"{folder}/syscall", "rb") as file:  # noqa: PTH123
            address = int(file.read(_WORD_BYTES_MAX).split()[1], 16)
        with open(f"{root}/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
            memory.seek(address)
            return int.from_bytes(memory.read(8), sys.byteorder)
    except (OSError, ValueError, IndexError, OverflowError):
        return _ALL


def _mask(status: Mapping[str, str], name: str) -> int:
    return int(status.get(name, "0"), 16)


def _send(ref: ProcessRef, signum: int) -> None:
    number = signal.SIGKILL if _is_kept_from(ref.pid, signum) else signum
    send_signal(ref, signal.Signals(number))


def _is_kept_from(pid: int, signum: int) -> bool:
    """Return whether the kernel drops a signal that would end this process in no PID namespace of its own."""
    status = read_status(pid)
    inner = status.get("NSpid", "").split()
    if len(inner) < 2 or inner[-1] != "1" or signum in _HARMLESS:
        return False
    return not (_mask(status, "SigCgt") | _mask(status, "SigIgn")) >> (signum - 1) & 1
