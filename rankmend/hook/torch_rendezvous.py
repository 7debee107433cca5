"""Dates the first rendezvous of an unchanged PyTorch script: when the ranks begin to meet, and when they have met.

`torch.distributed.init_process_group` is wrapped, and called as before; only a call that succeeds is
reported, and only the first one of the process.
"""

import functools
from time import monotonic_ns

import rankmend
from rankmend.hook import new_modules
from rankmend.hook.on_import import when_imported

_MODULE = "torch.distributed.distributed_c10d"
_NAME = "init_process_group"
_holders_ahead = ()  # in a forked rank: modules of its server's that have the function


def watch():
    """Date the rendezvous as soon as this process imports torch.distributed."""
    when_imported(_MODULE, _wrap)


def look_ahead():
    """Look at each module, in the fork server: its ranks look at new ones only."""
    global _holders_ahead
    _holders_ahead = tuple(_holders())


def _holders():
    """Return the modules of PyTorch that have the function: in a forked rank there are several already."""
    return [
        module
        for name, module in new_modules.find()
        if type(name) is str
        and name.startswith("torch.")
        and _NAME in getattr(module, "__dict__", {})
    ]


def _wrap(module):
    try:
        original = getattr(module, _NAME)
        wrapper = _make_dated(original)
        for other in (*_holders_ahead, *_holders(), module):
            if getattr(other, _NAME) is original:
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
