"""The library in which a rank crashed, by the kernel's log; one record of a file stands for /dev/kmsg."""

import time
from pathlib import Path

from recovery.launcher.evidence.surroundings import CRASH_WINDOW_S, read_crashed_in

LINE = "pt_main_thread[4711]: segfault at 10 ip 00007f0c1d2e sp 00007ffd error 4 in libcuda.so.535.104.05[7f0c1d000000+1c2000]"


def kernel_log(folder: Path, text: str, age_s: float = 0.0) -> Path:
    stamp_us = int((time.clock_gettime(time.CLOCK_MONOTONIC) - age_s) * 1e6)
    path = folder / "kmsg"
    path.write_text(f"6,81,{max(0, stamp_us)},-;{text}\n")
    return path


def test_the_kernels_line_names_the_library_for_this_process_and_for_one_of_its_threads(
    tmp_path: Path,
) -> None:
    log = kernel_log(tmp_path, LINE)

    assert read_crashed_in({4711}, log) == "libcuda.so.535.104.05"
    assert read_crashed_in({12}, log) == "libcuda.so.535.104.05"


def test_an_old_line_and_a_log_that_nobody_may_read_say_nothing(tmp_path: Path) -> None:
    old = kernel_log(tmp_path, LINE, age_s=CRASH_WINDOW_S + 60.0)

    assert read_crashed_in({4711}, old) == ""
    assert read_crashed_in({4711}, tmp_path / "absent") == ""


def test_other_lines_say_nothing(tmp_path: Path) -> None:
    assert read_crashed_in({4711}, kernel_log(tmp_path, "usb 1-1: new device")) == ""
