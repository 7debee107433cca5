"""Asks mounts whether they answer, in children that can be left behind (agent/sources/mount_probe_child.py).

One child asks all mounts that answered last time, one after the other. A mount that gives no
answer in time is hung: its child is killed, and left behind where that does not end it (state D).
The mounts behind it in the row, and from then on the hung one itself, are asked by a child each.
A hung mount never holds more than two children: the one left behind and one replacement.
"""

import errno
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

from agent.sources import mount_probe_child
from rankmend.clock import Clock

# a loaded NFS server answers within 50 ms; NFS itself sends its request again only after 60 s
ANSWER_S_MAX: Final = 5.0
START_S_MAX: Final = 30.0  # until the child's first word, on a machine that is starved of CPU
LEFT_BEHIND_MAX: Final = 2  # children of one mount: one abandoned, one replacement
CHILDREN_MAX: Final = 32  # at the same time
_END_S_MAX: Final = 1.0
_ALL_ANSWERED: Final = ""


@dataclass(frozen=True, slots=True)
class MountSpace:
    """An answer of statvfs."""

    size_bytes: int
    available_bytes: int
    inodes: int
    inodes_available: int
    took_s: float


@dataclass(frozen=True, slots=True)
class MountRefusal:
    errno: int


@dataclass(frozen=True, slots=True)
class HungMount:
    since_s: float  # our monotonic seconds


Answer = MountSpace | MountRefusal | HungMount


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    points: tuple[str, ...]
    deadline_s: float
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: str = _ALL_ANSWERED  # the mount that it waits for
    rest: bytes = b""

    def receive(self, data: bytes) -> None:
        """Understand the lines that have come."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            kind, *words = line.decode("ascii").split()
            index, *figures = [int(word) for word in words]
            point = self.points[index]
            if kind == "B":
                self.asked = point
                continue
            self.asked = _ALL_ANSWERED
            if kind == "E":
                self.answers[point] = MountRefusal(figures[0])
            else:
                fragment, blocks, available, inodes, inodes_available, took_us = figures
                self.answers[point] = MountSpace(
                    fragment * blocks,
                    fragment * available,
                    inodes,
                    inodes_available,
                    took_us / 1e6,
                )


def read_space(point: str) -> MountSpace | MountRefusal:
    """Return how full a file system is, in this process: for those that never wait."""
    began_s = perf_counter()
    try:
        found = os.statvfs(point)
    except OSError as error:
        return MountRefusal(error.errno or errno.EIO)
    return MountSpace(
        found.f_frsize * found.f_blocks,
        found.f_frsize * found.f_bavail,
        found.f_files,
        found.f_favail,
        perf_counter() - began_s,
    )


class MountProber:
    """Used by one thread only."""

    def __init__(self, clock: Clock, answer_s_max: float = ANSWER_S_MAX) -> None:
        self._clock = clock
        self._answer_s_max = answer_s_max
        self._hung_since_s: dict[str, float] = {}
        self._left_behind: dict[str, list[subprocess.Popen[bytes]]] = {}

    def left_behind(self, point: str) -> int:
        """Return how many children wait for a mount without an end."""
        return len(self._left_behind.get(point, ()))

    def probe(self, points: Sequence[str]) -> dict[str, Answer]:
        """Ask all mount points; return an answer for each that a child could be started for."""
        self._bury()
        for point in set(self._hung_since_s) - set(points):
            del self._hung_since_s[point]  # unmounted
        healthy = tuple(point for point in points if point not in self._hung_since_s)
        hung = [point for point in points if point in self._hung_since_s]
        alone = [(point,) for point in hung if self.left_behind(point) < LEFT_BEHIND_MAX]
        answers = self._ask([*([healthy] if healthy else []), *alone])
        missed = [(point,) for point in healthy if point not in answers]
        answers.update(self._ask([group for group in missed if not self._is_hung(group[0])]))
        for point in points:
            if self._is_hung(point):
                answers[point] = HungMount(self._hung_since_s[point])
        return answers

    def _is_hung(self, point: str) -> bool:
        return point in self._hung_since_s

    def _ask(self, groups: Sequence[tuple[str, ...]]) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        for first in range(0, len(groups), CHILDREN_MAX):
            children = [self._start(group) for group in groups[first : first + CHILDREN_MAX]]
            self._wait(children)
            for child in children:
                answers.update(child.answers)
                for point in child.answers:
                    self._hung_since_s.pop(point, None)
                if child.asked != _ALL_ANSWERED:
                    asked_at_s = self._clock.now_s() - self._answer_s_max
                    self._hung_since_s.setdefault(child.asked, asked_at_s)
                self._end(child)
        return answers

    def _start(self, points: tuple[str, ...]) -> _Child:
        program = str(Path(mount_probe_child.__file__))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", program, *points],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        return _Child(process, points, self._clock.now_s() + START_S_MAX)

    def _wait(self, children: Sequence[_Child]) -> None:
        """Read what the children say until each has ended or has kept silent for too long."""
        with selectors.DefaultSelector() as selector:
            for child in children:
                assert child.process.stdout is not None
                selector.register(child.process.stdout, selectors.EVENT_READ, child)
            waiting = list(children)
            while waiting:
                timeout_s = min(child.deadline_s for child in waiting) - self._clock.now_s()
                # a stop of this process that outlasts the time ends select() without a look
                for key, _events in selector.select(max(0.0, timeout_s)) or selector.select(0):
                    child = key.data
                    if data := os.read(key.fd, 65_536):
                        child.receive(data)
                        child.deadline_s = self._clock.now_s() + self._answer_s_max
                    else:
                        selector.unregister(key.fileobj)
                        waiting.remove(child)
                now_s = self._clock.now_s()
                for child in [child for child in waiting if child.deadline_s <= now_s]:
                    assert child.process.stdout is not None
                    selector.unregister(child.process.stdout)
                    waiting.remove(child)

    def _end(self, child: _Child) -> None:
        process = child.process
        assert process.stdout is not None
        process.stdout.close()
        if child.asked != _ALL_ANSWERED or len(child.answers) < len(child.points):
            process.kill()
        try:
            process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            self._left_behind.setdefault(child.asked, []).append(process)

    def _bury(self) -> None:
        for point, processes in list(self._left_behind.items()):
            alive = [process for process in processes if process.poll() is None]
            if alive:
                self._left_behind[point] = alive
            else:
                del self._left_behind[point]
