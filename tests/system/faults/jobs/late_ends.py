"""Ranks of ten steps that end in many ways, in the first attempt. The second goes on from step 0.

    late_ends.py CASE

exit: rank 1 exits with 0 in its loop and the others wait for it. alone: the same, and they wait in no collective.
thread: all return, and a thread of rank 0 runs on. finish: rank 0 hangs after its last step, the others return.
all: every rank has returned, and a thread of each runs on. failed: rank 0 exits with 3, and its thread runs on.
"""

import os
import sys
import threading
import time

import rankmend

STEPS = 10


def wait_for_ever() -> None:
    while True:
        time.sleep(0.5)


def all_reduce() -> None:
    with rankmend.section("communication"):
        wait_for_ever()


def upload() -> None:
    threading.Thread(target=wait_for_ever, name="uploader").start()


def finish() -> None:
    wait_for_ever()


def main() -> None:
    case, rank = sys.argv[1], int(os.environ["RANK"])
    is_first = os.environ["RANKMEND_ATTEMPT"] == "1"
    rankmend.attach()
    for step in range(1, STEPS + 1):
        time.sleep(0.01)
        rankmend.step(step)
        if is_first and step == 5 and case in ("exit", "alone"):
            if rank == 1:
                sys.exit(0)
            (all_reduce if case == "exit" else wait_for_ever)()
    if is_first and (case == "all" or (case in ("thread", "failed") and rank == 0)):
        upload()
    if is_first and case == "failed" and rank == 0:
        sys.exit(3)
    if is_first and case == "finish" and rank == 0:
        finish()


main()
