"""The meaning of a rank's last error and output, as values. Pure.

The words are read where they lie, on the rank's node (`detectors.failed.error_classes`); what decides gets these.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class FailureCause(Enum):
    """Why a rank ended; the stronger word first, by which failures at one time are named.

    Each is a kind of a finding's symptom, too.
    """

    DO_NOT_RETRY = "do_not_retry"  # exit code 93: the rank's own word
    OOM_KILLED = "oom_killed"  # by the kernel or the cgroup
    HOST_MEMORY = "host_memory"  # an allocation was refused, or /dev/shm is full
    DEVICE_MEMORY = "device_memory"  # the accelerator's memory is used up
    DEVICE = "device"  # an accelerator, its link or its driver
    KERNEL_FAULT = "kernel_fault"  # a program on the accelerator went wrong: code or silicon
    KILLED = "killed"  # by a signal whose sender is not known
    CRASHED = "crashed"  # SIGSEGV, SIGBUS, SIGABRT ...
    MIXED_NCCL = "mixed_nccl"  # ranks have loaded NCCLs of two versions
    PROGRAM = "program"  # an error that no state of a machine brings about
    STORAGE = "storage"  # a file system is full, over its quota, read-only, stale or broken
    SERVICE = (
        "service"  # something outside the job is away: a tracker, a hub, a store, a data base, DNS
    )
    EXCEPTION = "exception"  # an exception that names no cause of the other classes
    EXIT = "exit"  # an exit code and no error
    USER = "user"  # SIGTERM, SIGINT ... from somebody else than the launcher
    COMMUNICATION = "communication"  # another rank is gone or silent: a victim's error
    STOPPED = "stopped"  # by the launcher: no failure

    @classmethod
    def _missing_(cls, _value: object) -> "FailureCause":
        """Return the class, or an ordinary exception if only a newer version knows it."""
        return cls.EXCEPTION


SAID: Final = frozenset(
    {
        FailureCause.HOST_MEMORY,
        FailureCause.DEVICE_MEMORY,
        FailureCause.DEVICE,
        FailureCause.KERNEL_FAULT,
        FailureCause.KILLED,
        FailureCause.MIXED_NCCL,
        FailureCause.PROGRAM,
        FailureCause.STORAGE,
        FailureCause.SERVICE,
        FailureCause.EXCEPTION,
        FailureCause.USER,
        FailureCause.COMMUNICATION,
    }
)
"""Causes that a rank's words can tell; the others are read from its exit code and signal."""


@dataclass(frozen=True, slots=True)
class SaidError:
    """One error that a rank reported."""

    cause: FailureCause
    fingerprint: str  # the error without what differs between ranks and attempts
    line: str  # as Python prints it, for people
    may_be_peer: bool = False  # a broken connection that may have led to another rank
    is_uncaught: bool = False  # it ended the script: a crash after it is one of the exit


@dataclass(frozen=True, slots=True)
class SaidAtEnd:
    """The meaning of an ended rank's error file and last output."""

    error: SaidError | None = None  # the last error
    device: SaidError | None = (
        None  # where no error tells a cause: a line that tells of a device's own fault
    )
    beside: tuple[str, ...] = ()  # errors of threads, exit handlers and other processes, for people
    exit_text: str = ""  # where there is no error: the text of `sys.exit`, for people


NOTHING_SAID: Final = SaidAtEnd()
