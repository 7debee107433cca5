"""Dates the first rendezvous of an unchanged PyTorch script: when the ranks begin to meet, and when they have met.

`torch.distributed.init_process_group` is wrapped, and called as before; only a call that succeeds is
reported, and only the first one of the process.
"""

import functools
import sys
from time import monotonic_ns

import rankmend
from rankmend.hook.on_import import when_imported

_MODULE = "torch.distributed.distributed_c10d"
_NAME = "init_process_group"


def watch():
    """Date the rendezvous as soon as this process imports torch.distributed."""
    when_imported(_MODULE, _wrap)


def _wrap(module):
    try:
        original = getattr(module, _NAME)
        wrapper = _make_dated(original)
        # In a forked rank other modules of PyTorch have taken the function over already.
        for name, other in list(sys.modules.items()):
            if name.startswith("torch.") and getattr(other, "__dict__", {}).get(_NAME) is original:
                setattr(other, _NAME, wrapper)
    except Exception:
        pass


def _make_dated(original):
    @functools.wraps(original)
    def init_process_group(*arguments, **named):
        began_ns = monotonic_ns()
        result = original(*arguments, **named)
        writer = rankmend._writer  # None in a forked child
        if writer is not None:
            writer.mark_rendezvous(began_ns, monotonic_ns())
        return result

    return init_process_group
