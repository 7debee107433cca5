"""Checks a large checkpoint that was just saved out of the page cache, in a process that has only what others leave idle.

Beside training a launcher reads slowly (`recovery.checkpoints.priority`), so a failure soon after a large save used to find it
unchecked. Its bytes are still in memory then. To read them there costs no disk, only 0.3 s of a processor for each GB, and a process
of the kernel's idle class takes that from nobody: any other process that wants the processor gets it at once.

It is a process and not a thread: a thread of that class would hold the interpreter's lock while it waits for a processor, and stop
the launcher's other threads. It reports how far it came every 32 MiB; whoever waits for the file goes on from there. Its word
counts only for what it found right: what doesn't fit is read and judged again by who started it.

None is started where the file system doesn't say what is cached (`RWF_NOWAIT`: FUSE, NFS), or under a quota of the processor, which
the idle class uses up, too. Where it gets less than the usual rate it is ended.

Sources: sched(7), "SCHED_IDLE" and "The autogroup feature" (a session is a group, within which alone priorities count);
Linux Documentation/scheduler/sched-bwc.rst (quotas).
"""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import Clock, SystemClock
from rankmend.errors import RankmendError
from rankmend.parts_path import program
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.digests import BLOCK_BYTES, DIGEST_BYTES
from recovery.checkpoints.files.archive import check_members, read_archives
from recovery.checkpoints.files.reader import FileReader, MemberProgress, ReadProgress
from recovery.checkpoints.priority import lower_disk_priority

# 0.07 s of a restart; the process takes 0.1 s of a processor to start
LEAST_BYTES: Final = 256 << 20
_REPORT_BYTES: Final = 8 * BLOCK_BYTES
_PROBES: Final = 16
_CACHED_MIN: Final = 12  # of these; what lies between is read past the cache, at the usual rate
PATIENCE_S: Final = 5.0  # in which it must come further than the usual rate would
_POLL_S: Final = 0.02
_LEFT_MAX: Final = 4  # processes that were killed and haven't gone: on a full machine they wait for a processor to end
_LINE_BYTES_MAX: Final = 1 << 16
_GROUPS_2: Final = (("sys/fs/cgroup", "sys/fs/cgroup/unified"), "cpu.max")
_GROUPS_1: Final = (("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"), "cpu.cfs_quota_us")
_AUTOGROUP_TRIES: Final = 5
_AUTOGROUP_S: Final = 0.15  # the kernel takes one change in 0.1 s from those who aren't root


class IdleRead(msgspec.Struct, frozen=True):
    """How far a file was read, up to the end of a block: what both processes go on from."""

    end: int
    digests: str  # hexadecimal, of the blocks before the end that the other side doesn't have
    members: int
    packed_bytes: int  # of the next member, which isn't compressed
    crc: int


class IdleOrder(msgspec.Struct, frozen=True):
    """What the process is to read."""

    path: str
    inode: int
    size_bytes: int
    modified_ns: int
    rate_bytes_per_s: float  # for what the page cache doesn't hold
    begin: IdleRead


class IdleReads:
    def __init__(
        self,
        clock: Clock | None = None,
        *,
        least_bytes: int = LEAST_BYTES,
        patience_s: float = PATIENCE_S,
        has_quota: Callable[[], bool] | None = None,
        start: Callable[[IdleOrder], "subprocess.Popen[bytes]"] | None = None,
    ) -> None:
        """``start``: starts the process, which is given the order by its standard input."""
        self._clock = clock or SystemClock()
        self._least_bytes = least_bytes
        self._patience_s = patience_s
        self._has_quota = has_quota or has_processor_quota
        self._start = start or start_idle
        self._left: list[threading.Thread] = []  # that wait for the end of a killed process

    def read_on(self, progress: ReadProgress, descriptor: int, deadline: Deadline) -> None:
        self._left = [reaper for reaper in self._left if reaper.is_alive()]
        rate = deadline.rate_bytes_per_s
        if (
            len(self._left) >= _LEFT_MAX
            or not rate
            or progress.unread_bytes < self._least_bytes
            or self._has_quota()
        ):
            return
        if not is_mostly_cached(descriptor, progress.end, progress.signature[2]):
            return
        path, inode, size_bytes, modified_ns = progress.signature
        order = IdleOrder(
            *(path, inode, size_bytes, modified_ns, rate),
            state_of(progress, progress.end, len(progress.digests)),
        )
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            # no process, or not the one that was meant: read at the usual rate
            process = self._start(order)
            try:
                self._follow(process, progress, deadline)
            finally:
                self._end(process)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the process, and wait for nothing: whoever waits for the file would wait for it, too."""
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        reaper = threading.Thread(target=process.wait, name="idle-read-end", daemon=True)
        reaper.start()
        self._left.append(reaper)

    def _follow(
        self, process: "subprocess.Popen[bytes]", progress: ReadProgress, deadline: Deadline
    ) -> None:
        """Take over what the process reports, until it ends, somebody waits or it is slower than the usual rate."""
        assert process.stdout is not None, "it is a pipe"
        descriptor = process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        line = b""
        since_s, since_bytes = self._clock.now_s(), progress.end
        least_bytes = deadline.rate_bytes_per_s * self._patience_s
        while not deadline.is_awaited:
            deadline.check()
            if poll.poll(_POLL_S * 1000):
                data = os.read(descriptor, _LINE_BYTES_MAX)
                if not data or len(line) > _LINE_BYTES_MAX:
                    return
                *lines, line = (line + data).split(b"\n")
                for text in lines:
                    take_over(progress, msgspec.json.decode(text, type=IdleRead))
            if self._clock.now_s() - since_s >= self._patience_s:
                if progress.end - since_bytes < min(least_bytes, progress.unread_bytes):
                    return
                since_s, since_bytes = self._clock.now_s(), progress.end
        # Somebody waits: the next check of the deadline ends the read, or goes on with it at full speed.


def take_over(progress: ReadProgress, read: IdleRead) -> None:
    """Move the progress on to what was reported, where that is further and fits."""
    blocks = read.end // BLOCK_BYTES
    known = blocks - len(read.digests) // (2 * DIGEST_BYTES)
    is_behind = (read.end, read.members) < (progress.end, progress.members)
    if read.end % BLOCK_BYTES or is_behind or not 0 <= known <= len(progress.digests):
        return
    digests = bytes.fromhex(read.digests)
    progress.digests[known:] = [
        digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)
    ]
    progress.end, progress.hash = read.end, None
    progress.members = read.members
    progress.member = (
        MemberProgress(read.packed_bytes, read.packed_bytes, read.crc)
        if read.packed_bytes
        else None
    )


def state_of(progress: ReadProgress, end: int, known: int) -> IdleRead:
    """Return the progress at the end of a block; ``known``: so many digests the other side has."""
    member = progress.member
    if member is None or member.inflater is not None:  # a compressed one begins anew
        member = MemberProgress()
    digests = b"".join(progress.digests[known : end // BLOCK_BYTES])
    return IdleRead(end, digests.hex(), progress.members, member.packed_bytes, member.crc)


def is_mostly_cached(descriptor: int, begin: int, end: int) -> bool:
    """Return whether most of these bytes are in the page cache, by a few of them; False where that can't be known."""
    if not hasattr(os, "RWF_NOWAIT") or end <= begin:
        return False
    probe, cached = bytearray(1), 0
    for number in range(_PROBES):
        try:
            os.preadv(descriptor, [probe], begin + (end - begin) * number // _PROBES, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError:
            return False
        cached += 1
    return cached >= _CACHED_MIN


def has_processor_quota(root: Path = Path("/")) -> bool:
    """Return whether a quota limits the processor time of this process's control groups, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        tops, name = _GROUPS_2 if number == "0" else _GROUPS_1
        # In a container the group's path may be the host's; its own group is the topmost one there.
        inside = Path(group.lstrip("/"))
        for top, at in product(tops, (inside, *inside.parents)):
            with contextlib.suppress(OSError):
                words = (root / top / at / name).read_text(encoding="ascii").split()
                if words and words[0] not in {"max", "-1"}:
                    return True
    return False


def start_idle(
    order: IdleOrder, command: Sequence[str] = program("recovery.checkpoints.idle_reads")
) -> "subprocess.Popen[bytes]":
    """Start the process and give it the order; ``command``: what Python runs."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an autogroup of its own, and a terminal's Ctrl-C is the launcher's business
    )
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended; then it says nothing
        os.set_blocking(process.stdin.fileno(), False)
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.close()
    return process


class _Reports(Deadline):
    """The deadline of the idle process: it paces what isn't cached, and reports at the ends of blocks."""

    def __init__(self, progress: ReadProgress, rate_bytes_per_s: float) -> None:
        super().__init__(
            *(SystemClock(), float("inf")), is_awaited=False, rate_bytes_per_s=rate_bytes_per_s
        )
        self._progress = progress
        self._known = len(progress.digests)

    def count(self, read_bytes: int, *, is_cached: bool = False) -> None:
        if not is_cached:
            super().count(read_bytes)

    def check(self) -> None:
        super().check()
        end = self._progress.end
        if end % BLOCK_BYTES == 0 and end - self._known * BLOCK_BYTES >= _REPORT_BYTES:
            self.report(end)

    def report(self, end: int) -> None:
        data = msgspec.json.encode(state_of(self._progress, end, self._known)) + b"\n"
        os.write(1, data)
        self._known = end // BLOCK_BYTES


def read_idle(order: IdleOrder) -> None:
    """Read the file of the order to its end, and write to standard output how far it came."""
    progress = ReadProgress((order.path, order.inode, order.size_bytes, order.modified_ns))
    progress.digests = [b""] * (order.begin.end // BLOCK_BYTES)  # who started it has them
    take_over(progress, order.begin)
    reports = _Reports(progress, order.rate_bytes_per_s)
    with FileReader(order.path, reports, is_whole=True, progress=progress) as reader:
        reader.check_unchanged(progress.signature)
        archives = read_archives(reader)
        check_members(reader, archives)
        reader.digests()
        reader.check_unchanged(progress.signature)
    reports.report(order.size_bytes - order.size_bytes % BLOCK_BYTES)


def become_idle() -> bool:
    """Return whether the kernel runs this process only where no other wants the processor."""
    lower_disk_priority()
    if not _lower_autogroup():
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return False
    return True


def _lower_autogroup() -> bool:
    """Give the session's group the lowest weight; return True also where no session is a group."""
    for _try in range(_AUTOGROUP_TRIES):
        try:
            Path("/proc/self/autogroup").write_text("19", encoding="ascii")
        except FileNotFoundError:
            return True
        except BlockingIOError:
            time.sleep(_AUTOGROUP_S)
        except OSError:
            return False
        else:
            return True
    return False


def main(_arguments: Sequence[str] = ()) -> int:
    """Read what standard input says, if that takes nothing from others; the exit code says nothing."""
    return serve() if become_idle() else 1


def serve() -> int:
    """Read what standard input says, whatever the priority."""
    try:
        read_idle(msgspec.json.decode(sys.stdin.buffer.readline(), type=IdleOrder))
    except (RankmendError, OSError, msgspec.MsgspecError):
        return 1
    return 0
