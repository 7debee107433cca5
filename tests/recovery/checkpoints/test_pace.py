"""Reading beside training: a rate that ends where somebody waits, and a priority below training's."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from rankmend.clock import SystemClock
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.finder import CheckpointFinder
from recovery.checkpoints.priority import NICE, yield_to_training
from recovery.messages.candidates import CheckpointSettings
from tests.support.checkpoint_saves import valid_names
from tests.support.clocks import FakeClock
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

HOUR_S = 3600.0
SLOW = CheckpointSettings(check_rate_bytes_per_s=1.0, grace_s=0.0)


def save_large(path: Path) -> Path:
    with path.open("wb") as file:
        np.savez(file, w=np.zeros(1_000_000))
    return path


def has_read(watch: CheckpointWatch) -> bool:
    """Return whether the look under way has read something, and so waits for the rate."""
    deadline = watch._deadline
    return deadline is not None and deadline.read_bytes > 0


def begin(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "deadline",
    [
        Deadline(SystemClock(), HOUR_S, rate_bytes_per_s=1.0),
        Deadline(SystemClock(), HOUR_S, is_awaited=False, rate_bytes_per_s=0.0),
    ],
    ids=["awaited", "no limit"],
)
def test_what_somebody_waits_for_or_has_no_limit_is_read_without_a_pause(
    deadline: Deadline,
) -> None:
    reader = begin(lambda: deadline.share(0.5).count(10**9))

    reader.join(DEADLINE_S)

    assert not reader.is_alive()
    assert deadline.read_bytes == 10**9


def test_a_pause_ends_as_soon_as_somebody_waits(tmp_path: Path) -> None:
    deadline = Deadline(SystemClock(), HOUR_S, is_awaited=False, rate_bytes_per_s=1.0)
    began_s = deadline.checked_at_s
    reader = begin(lambda: deadline.share(0.5).count(10**9))
    eventually(lambda: deadline.checked_at_s > began_s, "it pauses")
    was_paused = reader.is_alive()

    deadline.shorten(HOUR_S)
    reader.join(DEADLINE_S)

    assert was_paused
    assert not reader.is_alive()
    assert deadline.is_awaited
    assert deadline.share(0.5).is_awaited


def test_a_pause_ends_with_the_deadline() -> None:
    clock = FakeClock()
    deadline = Deadline(clock, 5.0, is_awaited=False, rate_bytes_per_s=1.0)
    clock.time_s += 5.0

    reader = begin(lambda: deadline.count(10**9))
    reader.join(DEADLINE_S)

    assert not reader.is_alive()


def test_a_recovery_reads_without_a_pause_what_the_rate_holds_back(tmp_path: Path) -> None:
    save_large(tmp_path / "step-1.npz")
    watch = CheckpointWatch(CheckpointFinder(tmp_path, SLOW), SystemClock())
    watch.start()
    try:
        eventually(lambda: has_read(watch), "it has read something")
        paused = watch.looks_total

        verdicts = watch.candidates(timeout_s=DEADLINE_S)

        assert paused == 0
        assert valid_names(verdicts) == ["step-1.npz"]
    finally:
        assert watch.stop()


def test_stopping_does_not_wait_for_the_rate(tmp_path: Path) -> None:
    save_large(tmp_path / "step-1.npz")
    watch = CheckpointWatch(CheckpointFinder(tmp_path, SLOW), SystemClock())
    watch.start()
    eventually(lambda: has_read(watch), "it has read something")

    assert watch.stop(timeout_s=DEADLINE_S)


def test_the_slow_thread_and_its_reads_alone_have_a_low_priority() -> None:
    told: list[tuple[int, object]] = []

    def tell() -> None:
        thread = threading.get_native_id()
        io_class = psutil.Process(thread).ionice()[0]  # type: ignore[index]
        told.append((os.getpriority(os.PRIO_PROCESS, thread), io_class))

    def lower() -> None:
        yield_to_training()
        tell()
        begin(tell).join(DEADLINE_S)  # each read has a thread of its own

    tell()
    begin(lower).join(DEADLINE_S)
    tell()

    before, lowered, read, after = told
    assert lowered == read == (max(NICE, before[0]), psutil.IOPRIO_CLASS_IDLE)
    assert after == before
