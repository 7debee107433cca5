"""A signal that asks to end raises an exception in the main thread, whatever the process does at the time."""

import subprocess
import sys

import pytest

from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process
RAISING = """
import os, signal, sys, threading, time
from rankmend.signals import StoppedError, raising_signals
try:
    with raising_signals():
        BLOCK
        threading.Lock().acquire() and threading.Event().wait()
except StoppedError as error:
    os.kill(os.getpid(), signal.SIGINT)  # srun hands on each Ctrl-C
    time.sleep(0.01)
    print(error, error.exit_code)
"""


def run(block: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", RAISING.replace("BLOCK", block.strip().replace("\n", "\n        "))],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.stdout, done.stderr


def test_signal_that_another_thread_takes_ends_the_wait_of_the_main_thread() -> None:
    told = run(
        """
def take():
    time.sleep(0.2)  # until the main thread waits
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=take).start()
"""
    )

    assert told == ("stopped by SIGTERM 143\n", "")


def test_exception_that_a_finaliser_swallows_is_raised_again() -> None:
    told = run(
        """
class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
last = Last()
del last
"""
    )

    assert told == ("stopped by SIGINT 130\n", "")


def test_further_signals_do_not_disturb_the_end() -> None:
    told = run(
        """
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(100)
finally:
    for _again in range(3):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    print("tidied up")
"""
    )

    assert told == ("tidied up\nstopped by SIGTERM 143\n", "")


def test_closed_terminal_ends_nothing_that_nohup_started() -> None:
    told = subprocess.run(
        ["nohup", sys.executable, "-c", RAISING.replace("BLOCK", "os.kill(os.getpid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGTERM)")],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip

    assert told.stdout == "stopped by SIGTERM 143\n"


def test_what_came_before_is_there_again_where_no_signal_came() -> None:
    code = (
        "import signal, sys\n"
        "from rankmend.signals import SIGNALS, raising_signals\n"
        "before = [signal.getsignal(one) for one in SIGNALS], sys.unraisablehook\n"
        "with raising_signals(): pass\n"
        "assert before == ([signal.getsignal(one) for one in SIGNALS], sys.unraisablehook)\n"
        "assert signal.set_wakeup_fd(-1) == -1\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)
