"""The three tiers of tests: what each may use, how a file says its own, and what keeps a unit test to it.

unit      the default: no process, socket, thread, sleep or PyTorch. Thousands a minute, and never repeated.
process   real processes, threads, sockets of this machine.
site      what a site has: Slurm, PostgreSQL, Kubernetes, systemd, hosts of their own, Chromium.

A file says its tier in its `pytestmark`, so that a run of one tier imports no file of another. `safety` beside it names
a file about fencing, journals, ownership, budgets or attempts: a failure there is never put down to chance.
"""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import ModuleType


class Tier(Enum):
    UNIT = "unit"
    PROCESS = "process"
    SITE = "site"


_ASSIGNED = re.compile(r"^pytestmark = (?:\[.*?\]$|[^\[\n]*$)", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"\bmark\.(\w+)")


@cache
def marks_of(file: Path) -> frozenset[str]:
    """Return the marks of a whole test file, read from its text: nothing is imported for it."""
    try:
        assigned = _ASSIGNED.search(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return frozenset()
    return frozenset(_MARK.findall(assigned.group())) if assigned else frozenset()


def tier_of(file: Path) -> Tier:
    """Return the tier that a test file says it belongs to."""
    marks = marks_of(file)
    return next((tier for tier in (Tier.SITE, Tier.PROCESS) if tier.value in marks), Tier.UNIT)


def is_safety_file(file: Path) -> bool:
    """Return whether no failure in a test file is ever put down to chance."""
    return "safety" in marks_of(file)


_BED = re.compile(
    r'@pytest\.fixture\([^)]*scope="(?:module|class|package)"[^)]*\)\n(?:async )?def (\w+)'
)


@cache
def _beds_of(file: Path) -> tuple[str, ...]:
    """Return the fixtures in a file that are made once for a module."""
    return tuple(_BED.findall(file.read_text(encoding="utf-8"))) if file.exists() else ()


# Whole jobs, each with a name and folders of its own. Tests of other files may share something of the machine: a number
# of a Slurm job, a user, a port.
_SPREAD = ("system/faults", "hook/frameworks")


@cache
def stays_together(file: Path) -> bool:
    """Return whether the tests of a file run on one worker: all but whole jobs that use no bed of their module."""
    if not file.as_posix().rpartition("/tests/")[2].startswith(_SPREAD):
        return True
    above = takewhile(lambda folder: folder.name != "tests", file.parents)
    beds = {name for folder in above for name in _beds_of(folder / "conftest.py")}
    words = set(re.findall(r"\w+", file.read_text(encoding="utf-8"))) if beds else set()
    return bool(_beds_of(file)) or not beds.isdisjoint(words)


# CPython's audit events (PEP 578), and what a unit test would do by each.
_FORBIDDEN = {
    "subprocess.Popen": "starts a process",
    "os.fork": "forks",
    "os.forkpty": "forks",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "socket.bind": "binds a socket",
    "socket.connect": "connects a socket",
    "socket.getaddrinfo": "asks for an address",
    "socket.sendto": "sends through a socket",
    "_thread.start_new_thread": "starts a thread",
    "_thread.start_joinable_thread": "starts a thread",
    "time.sleep": "sleeps",
}


class TierError(RuntimeError):
    """A unit test does what only the other tiers may."""


class UnitGuard:
    """Refuses what no unit test may do, and keeps it for a test whose code swallows the refusal."""

    def __init__(self) -> None:
        """Install the hook, which stays for the life of the process: CPython knows no way back."""
        self._is_armed = False
        self._had_torch = False
        self._refused: list[str] = []
        sys.addaudithook(self._look)
        # Not audited before Python 3.12 and 3.13.
        self._guard(threading, "_start_new_thread", "_thread.start_new_thread")
        self._guard(threading, "_start_joinable_thread", "_thread.start_new_thread")
        self._guard(time, "sleep", "time.sleep")

    def _guard(self, module: ModuleType, name: str, event: str) -> None:
        """Look at each call of a function of the standard library, as an audit event of its name would."""
        function = getattr(module, name, None)
        if function is None:
            return

        def guarded(*arguments: object, **options: object) -> object:
            self._look(event, arguments)
            return function(*arguments, **options)

        setattr(module, name, guarded)

    def _look(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._is_armed:
            return
        deed = _FORBIDDEN.get(event)
        if event == "import" and arguments[0] == "torch":
            deed = "imports PyTorch"
        if deed is None or (event == "time.sleep" and arguments[0] == 0):
            return
        self._refused.append(deed)
        raise TierError(f"this unit test {deed}: its file needs `pytest.mark.process` or `.site`")

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Refuse while this block runs."""
        self._refused.clear()
        self._had_torch = "torch" in sys.modules
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def deed(self) -> str | None:
        """Return what the test did that it may not do, also where its code has swallowed the refusal."""
        if self._is_armed and "torch" in sys.modules and not self._had_torch:
            return "imports PyTorch"  # by importlib, which is no audit event
        return next(iter(self._refused), None)
