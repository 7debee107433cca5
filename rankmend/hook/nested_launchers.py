"""Ranks below a rank of `rankmend run`: those of another launcher, such as torchrun, and those that a script starts itself.

The launcher's own process is no rank. All processes below a rank share its progress file, and one of them reports: the
first that attaches. A script that starts its ranks (torch.multiprocessing.spawn, notebook_launcher, torchrun as a
subprocess) has attached by then, but finishes no step. So the first of them that finishes one takes the place of an ancestor
that has reported neither a step nor a section. A process that multiprocessing or a fork has made counts as a rank where it has
formed a process group itself, as for `rankmend watch` (`rankmend.hook.watched_file.find_unlaunched`): a data loader's worker has not.

Standard library and Python 3.8 only.
"""

import os
import sys

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
_GENERATIONS_MAX = (
    16  # between a script and a rank that it starts: mostly one, with a launcher and a shell three
)


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


# What a script starts.


class NoRankYetError(Exception):
    """This process reports nothing, unless it finishes a step."""


_had_group_at_fork = (
    None  # whether the process was in a group when this one was forked of it; None: not forked
)


def note_fork():
    """Note, in a forked child, what it has of its parent."""
    global _had_group_at_fork
    _had_group_at_fork = _is_in_group()


def may_be_rank(is_child):
    """Return whether a process that finishes a step may be a rank; ``is_child``: multiprocessing has started it."""
    if not is_child and _had_group_at_fork is None:
        return True
    return not _had_group_at_fork and _is_in_group()


def _is_in_group():
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def is_below(ancestor):
    """Return whether this process descends from that one."""
    pid = os.getppid()
    for _generation in range(_GENERATIONS_MAX):
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                stat = file.read()
            pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False
