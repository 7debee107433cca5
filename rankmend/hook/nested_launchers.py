"""Launchers that start ranks of their own, such as torchrun: below `rankmend run` their process is no rank.

Standard library and Python 3.8 only.
"""

import os

_PROGRAMS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "composer", "fabric")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
)
_WITH_VALUE = ("-W", "-X")  # options of Python that may take the next argument
_BYTES_MAX = 65536  # of a command line


def named_by(target, is_module):
    """Return the launcher that a target of `rankmend run` is, or None."""
    name = target if is_module else os.path.basename(target)
    return name if name in (_MODULES if is_module else _PROGRAMS) else None


def started_by(arguments):
    """Return the launcher that a command line of Python runs, or None."""
    words = iter(arguments[1:])
    for word in words:
        if word == "-m":
            return named_by(next(words, ""), True)
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return named_by(word, False)
        elif word == "-c":
            return None
    return None


def is_own_process():
    """Return whether this process is such a launcher."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read(_BYTES_MAX).decode("utf-8", "replace").split("\0")
    except OSError:
        return False
    return started_by(words) is not None
