"""The collector children of one agent: the reading one, the one on trial, and abandoned ones.

An abandoned child is left to end by itself, because its connection is closed. It is killed only
much later: killing a process in a driver call has frozen GPUs (NVIDIA/dcgm-exporter issue 84).
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from agent.nvml.child_rules import OverdueLook, ProcessWork
from agent.nvml.fields import CALL_ON_PAGE, NO_GPU, NvmlCall
from rankmend.clock import read_boot_id
from rankmend.errors import StorageError
from rankmend.files import read_if_there, replace_file
from rankmend.parts_path import program

log = logging.getLogger(__name__)

# What a node shows of NVIDIA's driver without a call into it: whether to start a child at all.
#
# A child that finds no library has taken 0.1 s of CPU. These files change when a driver is installed or loaded: ldconfig
# writes its cache anew, and a module has a folder in sysfs.

_LIBRARY_CACHE: Final = Path("/etc/ld.so.cache")
_DEVICE: Final = Path("/dev/nvidiactl")


class DriverTraces(NamedTuple):
    has_module: bool
    has_device: bool
    library_cache_ns: int | None  # when the list of libraries was written


def read_traces(sysfs_root: Path) -> DriverTraces:
    """Return the traces: three calls of stat(2)."""
    try:
        written_ns: int | None = os.stat(_LIBRARY_CACHE).st_mtime_ns  # noqa: PTH116 - Path is dear
    except OSError:
        written_ns = None
    module = sysfs_root / "module" / "nvidia"
    return DriverTraces(module.exists(), _DEVICE.exists(), written_ns)


# Saves the release of the GPUs, so that it survives a restart of the agent.
#
# One small file, replaced atomically. It is valid for the boot in which it was written: after a reboot, a
# reset or a change of the MIG mode is over. An invalid file means no release.

_BYTES_MAX: Final = 1_000


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boot_id: str
    since_s: float  # CLOCK_MONOTONIC of that boot
    until_s: float


class ReleaseFile:
    def __init__(self, path: Path, boot_id: str | None = None) -> None:
        self._path = path
        self._boot_id = read_boot_id() if boot_id is None else boot_id

    def load(self, now_s: float) -> Release | None:
        """Return the release that is still in force, if any."""
        try:
            body = read_if_there(self._path, _BYTES_MAX, StorageError)
            if body is None:
                return None
            release = msgspec.json.decode(body, type=Release)
        except (StorageError, msgspec.MsgspecError) as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("saved release of the GPUs ignored", extra=fields)
            return None
        holds = release.boot_id == self._boot_id and release.since_s <= now_s < release.until_s
        return release if holds else None

    def save(self, since_s: float, until_s: float) -> None:
        """Write the file, or raise StorageError."""
        body = msgspec.json.encode(Release(self._boot_id, since_s, until_s))
        replace_file(self._path, body, StorageError, mode=0o644, durable=False)

    def clear(self) -> None:
        """Remove the release: the agent reads the GPUs again."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("saved release of the GPUs not removed", extra=fields)


# The agent's handle of one collector child: its process, its end of the connection, its page.

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
DEATH_S_MAX: Final = 0.2  # from the end of a connection to the end of the process


def make_page() -> int:
    """Return the descriptor of a new page for the child's current call."""
    descriptor = os.memfd_create("rankmend-gpu-call", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, CALL_ON_PAGE.size)
    return descriptor


def read_call(descriptor: int) -> NvmlCall | None:
    """Return the call in progress, or None between two calls (or while one is being written)."""
    size = CALL_ON_PAGE.size
    number, began_at_s, gpu, name = CALL_ON_PAGE.unpack(os.pread(descriptor, size, 0))
    if number % 2 == 0 or CALL_ON_PAGE.unpack(os.pread(descriptor, size, 0))[0] != number:
        return None
    return NvmlCall(number, began_at_s, gpu, name.rstrip(b"\0").decode("ascii", "replace"))


def read_work(pid: int) -> ProcessWork | None:
    """Return what the main thread of a process does, from proc_pid_stat(5); None: not known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()  # from the state on, the third field
    if len(words) < 13 or not (words[11].isdigit() and words[12].isdigit()):
        return None
    return ProcessWork(words[0] == "R", (int(words[11]) + int(words[12])) / _TICKS_PER_S)


class ChildProcess:
    """One collector child with its end of the connection and its page."""

    def __init__(
        self,
        interval_s: float,
        skipped: Sequence[int],
        now_s: float,
        *,
        has_profiling: bool = True,
    ) -> None:
        self.started_at_s = self.reported_at_s = now_s
        self.page = make_page()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        command = [sys.executable, *program("agent.nvml.child")]
        command += [str(theirs.fileno()), str(self.page)]
        command += [str(interval_s), str(int(has_profiling)), *map(str, skipped)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a stuck child must not keep the agent's stderr open
                pass_fds=(theirs.fileno(), self.page),
                start_new_session=True,  # Ctrl-C ends the agent, and the agent ends the child
            )
        except OSError:
            self.disconnect()
            os.close(self.page)
            raise
        finally:
            theirs.close()
        self.is_connected = True
        self.stuck_call: NvmlCall | None = None
        self.first_overdue: OverdueLook | None = None
        self.killed_at_s: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self) -> NvmlCall | None:
        return read_call(self.page)

    def work(self) -> ProcessWork | None:
        return read_work(self.pid)

    def disconnect(self) -> None:
        """Close the connection: the child ends as soon as it is out of its call."""
        self.is_connected = False
        self.channel.close()

    def is_gone(self) -> bool:
        return self.process.poll() is not None

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout_s: float) -> None:
        """Wait until the process has ended, at most this long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)

    def status_text(self) -> str:
        """Return how the process ended after it closed its connection; empty if unknown."""
        try:
            code = self.process.wait(DEATH_S_MAX)
        except subprocess.TimeoutExpired:
            return ""
        return f" of signal {-code}" if code < 0 else f" with status {code}"

    def close(self) -> None:
        if self.is_connected:
            self.disconnect()
        os.close(self.page)


ABANDONED_S_MAX: Final = 60.0  # until an abandoned child is killed
RELEASE_WAIT_S_MAX: Final = (
    10.0  # until an abandoned child is killed if somebody waits for the GPUs
)


class CollectorChild(Protocol):
    """A process that reads GPUs: `agent/nvml/children.py`."""

    started_at_s: float
    reported_at_s: float  # time of its newest message
    channel: socket.socket
    is_connected: bool
    stuck_call: NvmlCall | None  # the call in which it was abandoned
    first_overdue: OverdueLook | None  # of its newest overdue call
    killed_at_s: float | None

    @property
    def pid(self) -> int: ...
    def call(self) -> NvmlCall | None: ...
    def work(self) -> ProcessWork | None: ...
    def disconnect(self) -> None: ...
    def is_gone(self) -> bool: ...
    def status_text(self) -> str: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


Spawn = Callable[[float, Sequence[int], float], CollectorChild]
"""Starts a child with an interval in seconds, the GPUs to leave out, and the time of now."""


class Children:
    def __init__(self) -> None:
        self.collector: CollectorChild | None = None
        self.trial: CollectorChild | None = None  # asks about one left-out GPU
        self.trial_gpu = NO_GPU
        self.abandoned: list[CollectorChild] = []

    def talking(self) -> list[CollectorChild]:
        return [child for child in (self.collector, self.trial) if child is not None]

    def pids(self) -> list[int]:
        return [child.pid for child in (*self.talking(), *self.abandoned)]

    def channels(self) -> list[socket.socket]:
        return [child.channel for child in self.talking()]

    def stuck_calls(self) -> list[NvmlCall]:
        calls = (child.stuck_call for child in self.abandoned)
        return [call for call in calls if call is not None]

    def hanging_gpus(self) -> list[int]:
        """Return the GPU that each abandoned child hangs on, or NO_GPU."""
        calls = (child.stuck_call for child in self.abandoned)
        return [NO_GPU if call is None else call.gpu for call in calls]

    def abandon(self, child: CollectorChild, call: NvmlCall | None) -> None:
        """Abandon a child: it ends when it finds the connection closed."""
        child.stuck_call = call
        child.disconnect()
        if child.call() is None:  # in a call, a signal could harm the driver
            child.terminate()
        self.abandoned.append(child)
        if child is self.trial:
            self.trial, self.trial_gpu = None, NO_GPU
        else:
            self.collector = None

    def bury(self, now_s: float) -> None:
        """Reap the abandoned children that have ended, and kill those abandoned long ago."""
        for child in list(self.abandoned):
            if child.is_gone():
                child.close()
                self.abandoned.remove(child)
                if child.stuck_call is not None:
                    log.info("a stuck GPU collector has ended", extra={"pid": child.pid})
            elif child.killed_at_s is None and now_s - child.reported_at_s > ABANDONED_S_MAX:
                log.warning("killing a GPU collector", extra={"pid": child.pid})
                child.kill()
                child.killed_at_s = now_s

    def hurry_burial(self, now_s: float) -> None:
        """Kill abandoned children sooner, because somebody waits for the GPUs."""
        for child in self.abandoned:
            kill_at_s = now_s + RELEASE_WAIT_S_MAX
            child.reported_at_s = min(child.reported_at_s, kill_at_s - ABANDONED_S_MAX)

    def abandon_all(self) -> None:
        for child in self.talking():
            self.abandon(child, None)

    def close(self, now_s: Callable[[], float], wait_s: float) -> None:
        """Wait for all to end, at most this long in total, and release them."""
        deadline_s = now_s() + wait_s
        for child in self.abandoned:
            child.wait(max(0.0, deadline_s - now_s()))
            child.close()
        self.abandoned.clear()
