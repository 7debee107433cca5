"""Reads /dev/kmsg from the oldest record on, and remembers how far over a restart.

Source: Linux Documentation/ABI/testing/dev-kmsg. One read gives one record; EAGAIN: no more;
        EPIPE: records were overwritten before they were read. Records are numbered without gaps,
        so what is missing between two numbers was lost: that is counted, and nothing else is.
Cost:   1 system call a record; nothing while the kernel is silent.
"""

import logging
import os
import select
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

import msgspec

from detectors.kernel.event_groups import StateSnapshot
from detectors.kernel.log import Record, parse_kmsg
from rankmend.errors import NoSourceError, SourceError
from rankmend.files import read_if_there, replace_file

log = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 16_384  # CONSOLE_EXT_LOG_MAX is 8192 (kernel/printk/printk.c)
SAVED_BYTES_MAX: Final = 4_000_000  # 550 groups of at most 6 KB
_VERSION: Final = 1
_OVERWRITTEN_IN_A_ROW_MAX: Final = 100  # reads that find their record gone: the log runs too fast


class KernelLogDevice(Protocol):
    """A source of records, one a read."""

    def read(self) -> bytes | None:
        """Return the next record, or None where there is none yet.

        Raises BrokenPipeError where records were overwritten; the next read goes on behind them.
        """
        ...

    def wait(self, timeout_s: float) -> bool:
        """Return whether there is something to read within the time, or `wake` was called."""
        ...

    def wake(self) -> None:
        """End a wait, from another thread."""
        ...

    def close(self) -> None: ...


class KmsgDevice:
    """/dev/kmsg, or a file that behaves as it does."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NoSourceError(f"no kernel log at {path}") from error
        except PermissionError as error:
            raise SourceError(
                f"cannot open {path}: it needs CAP_SYSLOG (kernel.dmesg_restrict)"
            ) from error
        except OSError as error:
            raise SourceError(f"cannot open {path}") from error
        self._path = path
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._waker, select.POLLIN)
        self._is_closed = False
        # a descriptor of another file may have the number of one that is closed
        self._closing = Lock()

    def read(self) -> bytes | None:
        try:
            return os.read(self._fd, RECORD_BYTES_MAX) or None
        except BlockingIOError:
            return None
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SourceError(f"cannot read {self._path}") from error

    def wait(self, timeout_s: float) -> bool:
        return bool(self._poll.poll(timeout_s * 1000))  # POLLERR, too: records were overwritten

    def wake(self) -> None:
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            os.close(self._fd)
            os.close(self._waker)


class KmsgReader:
    """Records in order, each once, with a count of those that were lost."""

    def __init__(
        self, device: KernelLogDevice, after: int = -1, lost: int = 0, broken: int = 0
    ) -> None:
        """``after``: number of the newest record that has been read before, -1 for none."""
        self._device = device
        self.newest = after
        self.lost = lost  # overwritten before anybody read them
        self.broken = broken  # in no form that the kernel documents

    def read_batch(self, records_max: int) -> list[Record]:
        """Return the records that are there, at most so many; none while there is nothing."""
        records: list[Record] = []
        overwritten = 0
        for _ in range(records_max):
            try:
                raw = self._device.read()
            except BrokenPipeError:
                overwritten += 1
                if overwritten > _OVERWRITTEN_IN_A_ROW_MAX:
                    break
                continue  # the gap in the numbers tells how many
            if raw is None:
                break
            overwritten = 0
            record = parse_kmsg(raw.decode("utf-8", "replace"))
            if record is None or record.seq is None:
                self.broken += 1
            elif record.seq > self.newest:  # else read before a restart
                self.lost += record.seq - self.newest - 1
                self.newest = record.seq
                records.append(record)
        return records

    def wait(self, timeout_s: float) -> bool:
        return self._device.wait(timeout_s)

    def wake(self) -> None:
        self._device.wake()

    def close(self) -> None:
        self._device.close()


@dataclass(frozen=True, slots=True)
class SavedKernelLog:
    """How far the log was read and what was found, written together: nothing counts twice."""

    boot_id: str
    newest: int
    lost: int
    broken: int
    state: StateSnapshot = field(default_factory=StateSnapshot)
    version: int = _VERSION


def load_saved(path: Path, boot_id: str) -> SavedKernelLog | None:
    """Return what an agent of this boot has saved, or None: then all of the log is read again."""
    try:
        data = read_if_there(path, SAVED_BYTES_MAX, SourceError)
        if data is None:
            return None
        saved = msgspec.json.decode(data, type=SavedKernelLog)
        if saved.version != _VERSION:
            raise ValueError(f"version {saved.version}")
    except (SourceError, ValueError) as error:  # msgspec's errors are ValueErrors
        log.warning(
            "saved kernel log state ignored", extra={"path": str(path), "error": str(error)}
        )
        return None
    return saved if saved.boot_id == boot_id else None


def save(path: Path, saved: SavedKernelLog) -> None:
    """Put the file in place at once. Not flushed to disk: a new boot has a new log anyway."""
    replace_file(path, msgspec.json.encode(saved), SourceError, mode=0o644, durable=False)
