"""Terminals of ranks: progress bars and colours if the user has a terminal, as under torchrun.

A rank gets a pseudoterminal whose outer end is read like a pipe. It is raw, so the user's terminal
gets exactly what the rank writes.
"""

import contextlib
import fcntl
import os
import struct
import termios
from typing import Final

_SIZE: Final = struct.Struct("HHHH")  # rows, columns, pixels twice: tty_ioctl(4), struct winsize
_OUTPUT_FLAGS: Final = 1  # places in what tcgetattr returns
_LOCAL_FLAGS: Final = 3


def open_terminal() -> tuple[int, int]:
    """Return the outer and inner end of a new terminal that changes and echoes nothing."""
    outer, inner = os.openpty()
    attributes = termios.tcgetattr(inner)
    attributes[_OUTPUT_FLAGS] &= ~termios.OPOST
    attributes[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    return outer, inner


def copy_size(source: int, target: int, columns_taken: int) -> None:
    """Give a terminal the size of another one, less the columns of a prefix."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(_SIZE.size))
        rows, columns, *_pixels = _SIZE.unpack(size)
        left = max(1, columns - columns_taken) if columns else 0
        fcntl.ioctl(target, termios.TIOCSWINSZ, _SIZE.pack(rows, left, 0, 0))
