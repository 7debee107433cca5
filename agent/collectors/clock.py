"""The node's clock: steps that were seen, and what the kernel knows of its synchronisation.

Source: clock_gettime(2), adjtimex(2), <root>/devices/system/clocksource/clocksource0/
        current_clocksource (Linux Documentation/ABI/testing/sysfs-devices-clocksource).
Cost:   three system calls and one small read; no privilege (adjtimex only asks). A service with
        ProtectClock=yes may not ask it and then has no ``clock_synchronised``.

A clock that is slewed stays: both clocks run faster or slower alike. A step moves CLOCK_REALTIME
and leaves CLOCK_MONOTONIC, so their difference changes by the step.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from rankmend.errors import NoSourceError

# far above the uncertainty of one reading, far below the smallest step of a daemon (ntpd: 128 ms)
STEP_S_MIN: Final = 0.01
_READ_S_MAX: Final = 0.001  # a reading that was interrupted for longer is taken again
_READS_MAX: Final = 5
_CLOCKSOURCE: Final = "devices/system/clocksource/clocksource0/current_clocksource"
# <linux/timex.h>
_STA_UNSYNC: Final = 0x0040
_STA_NANO: Final = 0x2000
_TIME_ERROR: Final = 5

FAMILIES: Final[tuple[Family, ...]] = (
    counter("clock_steps", "", (), "Times that the clock was set since the agent started."),
    counter("clock_step_seconds", "seconds", ("way",), "By how much in all, forward and backward."),
    gauge(
        "clock_kernel_success",
        "",
        (),
        "1 when the kernel said how its clock is kept (adjtimex), 0 when it may not be asked.",
    ),
    gauge("clock_synchronised", "", (), "1 when a time service keeps the clock, 0 when none does."),
    gauge("clock_offset_seconds", "seconds", (), "What is left to correct."),
    gauge("clock_error_max_seconds", "seconds", (), "Largest error that the clock can have."),
    gauge("clock_error_estimated_seconds", "seconds", (), "Error as the time service estimates."),
    gauge(
        "clock_frequency_correction_ratio",
        "ratio",
        (),
        "Correction of the clock's rate; 0.00001 is 10 parts per million.",
    ),
    gauge("clock_source_info", "", ("source",), "Hardware behind the clock; always 1."),
)


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The state of the kernel's clock, by adjtimex(2)."""

    is_synchronised: bool
    offset_s: float  # what is left to slew
    error_max_s: float
    error_estimated_s: float
    frequency_ratio: float  # correction of the clock's rate


def decode_timex(
    state: int, status: int, offset: int, freq: int, maxerror_us: int, esterror_us: int
) -> KernelClock:
    """Return the fields of ``struct timex`` in base units (adjtimex(2))."""
    return KernelClock(
        is_synchronised=state != _TIME_ERROR and not status & _STA_UNSYNC,
        offset_s=offset / (1e9 if status & _STA_NANO else 1e6),
        error_max_s=maxerror_us / 1e6,
        error_estimated_s=esterror_us / 1e6,
        frequency_ratio=freq / 65_536 / 1e6,  # parts per million, scaled by 2^16
    )


def make_adjtimex() -> Callable[[], KernelClock]:
    """Return a function that asks the kernel, or raises OSError where it can't."""
    try:
        import ctypes  # noqa: PLC0415 - `import agent` stays light

        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (ImportError, AttributeError) as error:  # a Python without libffi, a foreign libc
        return _refuse(f"no way to call adjtimex: {error}")

    class Timex(ctypes.Structure):
        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 256),  # never read; the kernel's own is 208 bytes in all
        )

    def ask() -> KernelClock:
        timex = Timex()  # modes 0: change nothing
        state = adjtimex(ctypes.byref(timex))
        if state < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return decode_timex(
            state, timex.status, timex.offset, timex.freq, timex.maxerror, timex.esterror
        )

    return ask


def _refuse(problem: str) -> Callable[[], KernelClock]:
    def ask() -> KernelClock:
        raise OSError(errno.ENOSYS, problem)

    return ask


def read_gap_s() -> float:
    """Return CLOCK_REALTIME minus CLOCK_MONOTONIC, from a reading that was not interrupted."""
    gap_s, best_s = 0.0, float("inf")
    for _attempt in range(_READS_MAX):
        before_s = time.monotonic()
        unix_s = time.time()
        after_s = time.monotonic()
        if after_s - before_s < best_s:
            gap_s, best_s = unix_s - (before_s + after_s) / 2, after_s - before_s
        if best_s <= _READ_S_MAX:
            break
    return gap_s


class ClockCollector:
    name = "clock"
    interval_s = 5.0

    def __init__(
        self,
        sysfs_root: Path,
        gap_s: Callable[[], float] = read_gap_s,
        ask_kernel: Callable[[], KernelClock] | None = None,
        is_live: bool = True,
    ) -> None:
        """``is_live`` False: the tree is a recorded one, and this machine's clock is not its."""
        self._clocksource = sysfs_root / _CLOCKSOURCE
        self._is_live = is_live
        self._gap_s = gap_s
        self._ask_kernel = ask_kernel or make_adjtimex()
        self._last_gap_s = gap_s()
        self._steps = 0
        self._forward_s = 0.0
        self._backward_s = 0.0

    def collect(self) -> Iterator[Metric]:
        source = self._read_source()
        if source:
            yield Metric("rankmend_clock_source_info", 1, (("source", source[:32]),))
        if self._is_live:
            yield from self._ask()
        elif not source:
            raise NoSourceError(f"no {self._clocksource}")

    def _ask(self) -> Iterator[Metric]:
        self._look_for_step()
        yield Metric("rankmend_clock_steps_total", self._steps)
        for way, total_s in (("forward", self._forward_s), ("backward", self._backward_s)):
            yield Metric("rankmend_clock_step_seconds_total", total_s, (("way", way),))
        try:
            kernel = self._ask_kernel()
        except OSError:
            yield Metric("rankmend_clock_kernel_success", 0)
            return
        yield Metric("rankmend_clock_kernel_success", 1)
        yield Metric("rankmend_clock_synchronised", int(kernel.is_synchronised))
        yield Metric("rankmend_clock_offset_seconds", kernel.offset_s)
        yield Metric("rankmend_clock_error_max_seconds", kernel.error_max_s)
        yield Metric("rankmend_clock_error_estimated_seconds", kernel.error_estimated_s)
        yield Metric("rankmend_clock_frequency_correction_ratio", kernel.frequency_ratio)

    def _read_source(self) -> str:
        try:
            return self._clocksource.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def _look_for_step(self) -> None:
        gap_s = self._gap_s()
        step_s = gap_s - self._last_gap_s
        self._last_gap_s = gap_s
        if abs(step_s) < STEP_S_MIN:
            return
        self._steps += 1
        if step_s > 0:
            self._forward_s += step_s
        else:
            self._backward_s -= step_s
