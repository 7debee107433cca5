"""The controller's look at a site's file of units."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from detectors.formats.site.plant_files import COOLING_FILE
from detectors.parts.cooling import CoolingReading
from rankmend.clock import SystemClock
from recovery.service.pager import SILENT_S, ReadingsWatch
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

READING = CoolingReading("cdu-0", 1.8e9)


class SetClock:
    def __init__(self) -> None:
        self.s = 0.0

    def now_s(self) -> float:
        return self.s

    def unix_s(self) -> float:
        return self.s


def test_controller_reads_the_file_in_force_and_says_why_one_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cooling.json"
    told: list[str | None] = [str(file)]
    watch = ReadingsWatch("coolant units", lambda: told[0], COOLING_FILE.parse, SystemClock())

    watch.read()
    missing = watch.newest()
    file.write_bytes(COOLING_FILE.encode([READING]))
    watch.read()
    good = watch.newest()
    file.write_text("broken")
    watch.read()
    broken = watch.newest()
    told[0] = None
    watch.read()
    unnamed = watch.newest()

    assert (missing.readings, missing.problem) == ((), f"cannot read {file}: No such file or directory")  # fmt: skip
    assert (good.readings, good.problem) == ((READING,), "")
    assert broken.readings == ()
    assert broken.problem.startswith(f"{file}: not a file of coolant units")
    assert (unnamed.path, unnamed.readings, unnamed.problem) == ("", (), "")


def test_storage_that_hangs_keeps_what_is_known_and_is_told_of_after_a_while() -> None:
    clock, is_inside, may_end = SetClock(), threading.Event(), threading.Event()

    def parse(body: bytes) -> tuple[CoolingReading, ...]:
        if body:
            is_inside.set()
            may_end.wait(DEADLINE_S)
        return (replace(READING, unit=f"cdu-{len(body)}"),)

    paths = iter(["/dev/null", "/proc/version", "/proc/version"])
    watch = ReadingsWatch("coolant units", lambda: next(paths), parse, clock)
    watch.read()
    hung = threading.Thread(target=watch.read)
    hung.start()
    assert is_inside.wait(DEADLINE_S)

    at_once = watch.newest()
    clock.s += SILENT_S + 1
    later = watch.newest()
    may_end.set()
    hung.join(DEADLINE_S)

    assert (at_once.path, len(at_once.readings), at_once.problem) == ("/dev/null", 1, "")
    assert (later.readings, later.problem) == ((), "/proc/version gives no answer")
    assert (watch.newest().path, watch.newest().problem) == ("/proc/version", "")
