"""Reads what rankmend's processes name on `RANKMEND_MILESTONES_FD`, so that a test waits for it."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rankmend.milestones import ENV_MILESTONES_FD, ProcessMilestone
from tests.support.eventually import DEADLINE_S


@dataclass(frozen=True)
class Reached:
    process: str
    pid: int
    milestone: ProcessMilestone
    number: int


@dataclass
class Milestones:
    """A pipe of which a started process gets the writing end: ``**milestones.options`` of `subprocess.Popen`."""

    _reader: int
    _writer: int
    _rest: bytes = b""
    reached: list[Reached] = field(default_factory=list)

    @property
    def descriptor(self) -> int:
        return self._writer

    @property
    def environment(self) -> dict[str, str]:
        return {ENV_MILESTONES_FD: str(self._writer)}

    def wait(self, process: str, milestone: ProcessMilestone, number: int = 0) -> Reached:
        """Return the first line of this kind with at least this number."""
        end_s = time.monotonic() + DEADLINE_S
        looked = 0
        while True:
            for line in self.reached[looked:]:
                if (line.process, line.milestone) == (process, milestone) and line.number >= number:
                    return line
            looked = len(self.reached)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise AssertionError(
                    f"no {process} {milestone.value} {number}: {self.reached[-20:]}"
                )
            if select.select([self._reader], [], [], left_s)[0]:
                self._read()

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._reader, 1 << 16)).split(b"\n")
        for line in lines:
            process, pid, milestone, number = line.decode("ascii").split(" ")
            self.reached.append(
                Reached(process, int(pid), ProcessMilestone(milestone), int(number))
            )


@contextmanager
def milestones() -> Iterator[Milestones]:
    """Open the pipe, and close it at the end."""
    reader, writer = os.pipe()
    try:
        yield Milestones(reader, writer)
    finally:
        os.close(reader)
        os.close(writer)
