"""Keeps the agent's memory small and its collections cheap, whatever the environment says.

glibc gives threads arenas of their own, up to eight a core (mallopt(3), M_ARENA_MAX), and each keeps
what its peak needed. The agent's collectors run in many short-lived threads, one at a time under
the GIL: one arena costs them no time, and without this the agent grew from 47 to 57 MiB in 20 minutes.
"""

import ctypes
import gc
from typing import Final

# malloc.h of glibc
_M_ARENA_MAX: Final = -8
ARENAS_MAX: Final = 1
TIDY_S: Final = 60.0  # between collections: each takes about 4 ms


def use_one_arena() -> bool:
    """Let all threads that start from now on share one arena; False: this libc has no such option."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, ARENAS_MAX))


def settle() -> None:
    """Exclude the objects that the start has made from all later garbage collections.

    Modules live as long as the agent, and answers are freed by their reference count. Searching all
    of them for cycles at every 700th new object took a tenth of the agent's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def tidy() -> None:
    """Collect garbage, and free the tuples, lists and dicts that Python keeps for reuse: 1.2 MiB."""
    gc.collect()
