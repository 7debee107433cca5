"""The processes of checks: their last line, their time-out, and what they leave behind."""

import os
import signal
from pathlib import Path

import pytest

from recovery.schedulers.slurm.node_check import (
    LINE_MAX,
    CheckEnd,
    RunningCheck,
    start_check,
    words_for,
)
from tests.support.eventually import eventually

pytestmark = pytest.mark.process


def end_of(check: RunningCheck) -> CheckEnd:
    return eventually(check.end, "the check ends")


def shell(script: str, timeout_s: float = 30.0) -> CheckEnd:
    return end_of(start_check(["sh", "-c", script], timeout_s))


def test_the_exit_code_and_the_last_line_are_kept() -> None:
    assert shell("echo one; echo two >&2; echo; exit 3") == CheckEnd(3, "two")
    assert shell("true") == CheckEnd(0, "")


def test_a_long_output_is_read_and_bounded() -> None:
    end = shell("head -c 3000000 /dev/zero | tr '\\0' x; printf '\\033[2J'")

    assert end.exit_code == 0
    assert len(end.text) <= LINE_MAX
    assert "\033" not in end.text


def test_nothing_is_passed_to_a_shell(tmp_path: Path) -> None:
    words = words_for(["echo", "{node}", "$(touch x)", ";", "a{node}b"], "n1")
    assert end_of(start_check(words, 30.0)) == CheckEnd(0, "n1 $(touch x) ; an1b")


def test_a_check_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    end = shell(f"sleep 600 & echo $! > {file}; echo waits; wait", timeout_s=5.0)

    assert (end.exit_code, end.is_passed, end.text) == (None, False, "no end after 5 s: waits")
    wait_gone(int(file.read_text()))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_gone(pid: int) -> None:
    eventually(lambda: not is_running(pid), "what the check started is killed")


def test_what_a_check_leaves_behind_with_its_output_does_not_keep_it_open() -> None:
    end = shell("setsid sleep 600 & echo $!")

    left = int(end.text)
    try:
        assert end == CheckEnd(0, str(left))
        assert is_running(left)
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_command_that_is_not_there_fails() -> None:
    end = end_of(start_check(["/nowhere/check", "n1"], 30.0))
    assert end.exit_code == 127
    assert "/nowhere/check" in end.text
    assert not end.is_passed


def test_a_stopped_check_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    check = start_check(["sh", "-c", f"echo $$ > {file}; exec sleep 600"], 600.0)
    eventually(lambda: file.exists() and file.read_text(), "the check runs")

    check.stop()

    assert end_of(check).exit_code != 0
    wait_gone(int(file.read_text()))


def test_the_controllers_environment_is_not_passed_on(tmp_path: Path) -> None:
    os.environ["RANKMEND_SECRET_OF_A_TEST"] = "x"
    try:
        assert shell("env | grep -c RANKMEND").text == "0"
    finally:
        del os.environ["RANKMEND_SECRET_OF_A_TEST"]
