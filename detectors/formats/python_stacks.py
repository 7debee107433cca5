"""Python stacks as `faulthandler` writes them.

Source: Modules/faulthandler.c and Python/traceback.c of CPython 3.8 to 3.13:

    Thread 0x00007f3a6dffb700 [name] (most recent call first):
      File "/job/train.py", line 12 in load
"""

import re
from typing import Final

from detectors.hang.python_stack import Frame, ThreadStack

FRAMES_MAX: Final = 32  # per thread; frames further out are the framework's start
THREADS_MAX: Final = 256
_HEAD: Final = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME: Final = re.compile(r'^  File "(.{0,4096})", line (\d{1,9}|\?\?\?) in (.{1,512})$')


def parse_stacks(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of what `faulthandler` wrote; the main thread comes last. Never raises."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if _HEAD.match(line):
            if len(threads) == THREADS_MAX:
                break
            threads.append((line.partition(" (most")[0], []))
        elif threads and (found := _FRAME.match(line)) and len(threads[-1][1]) < FRAMES_MAX:
            number = int(found[2]) if found[2].isdigit() else 0
            threads[-1][1].append(Frame(found[1], number, found[3]))
    return tuple(ThreadStack(title, tuple(frames)) for title, frames in threads)


def main_frames(threads: tuple[ThreadStack, ...]) -> tuple[Frame, ...]:
    """Return the calls of the main thread, which `faulthandler` writes last."""
    return threads[-1].frames if threads else ()
