"""Dates the first rendezvous of an unchanged PyTorch script, and has its process groups end well.

`torch.distributed.init_process_group` is wrapped, and called as before; only a call that succeeds is
reported, and only the first one of the process, by a rank that a script starts at its first step. Before each, the rank tells which NCCL it has loaded. Before `destroy_process_group`, and at the end of the process,
gloo's threads get the time to finish (`gloo_threads`).
"""

import atexit
import functools
from time import monotonic_ns

import rankmend
from rankmend.hook import gloo_threads, leaving, nccl, new_modules
from rankmend.hook.on_import import when_imported

_MODULE = "torch.distributed.distributed_c10d"
_INIT, _DESTROY = "init_process_group", "destroy_process_group"
_unreported_ns = None  # when the groups of a process formed that doesn't report yet
_holders_ahead = {
    _INIT: (),
    _DESTROY: (),
}  # in a forked rank: modules of its server that have the function


def watch():
    """Wrap both functions as soon as this process imports torch.distributed."""
    when_imported(_MODULE, _wrap)


def tell_unreported(writer):
    """Report the rendezvous that was before this process reported."""
    if _unreported_ns is not None:
        writer.mark_rendezvous(*_unreported_ns)


def look_ahead():
    """Look at each module, in the fork server: its ranks look at new ones only."""
    for name in (_INIT, _DESTROY):
        _holders_ahead[name] = tuple(_holders(name))


def _holders(function):
    """Return the modules of PyTorch that have the function: in a forked rank there are several already."""
    return [
        module
        for name, module in new_modules.find()
        if type(name) is str
        and name.startswith("torch.")
        and function in getattr(module, "__dict__", {})
    ]


def _wrap(module):
    for name, make in ((_INIT, _make_dated), (_DESTROY, _make_patient)):
        try:
            original = getattr(module, name)
            wrapper = make(original)
            for other in (*_holders_ahead.get(name, ()), *_holders(name), module):
                if getattr(other, name) is original:
                    setattr(other, name, wrapper)
        except Exception:  # a PyTorch that has it otherwise keeps its own
            pass


def _make_dated(original):
    @functools.wraps(original)
    def init_process_group(*arguments, **named):
        global _unreported_ns
        writer = rankmend._writer  # None in a child of a rank
        if writer is not None:
            nccl.tell(writer)  # before: two versions that meet end here
            writer.mark_end(0)  # it had destroyed its groups before
        began_ns = monotonic_ns()
        result = original(*arguments, **named)  # rankmend passes this on
        if writer is not None:
            writer.mark_rendezvous(began_ns, monotonic_ns())
            atexit.unregister(gloo_threads.let_go)
            atexit.register(gloo_threads.let_go)
        elif _unreported_ns is None:
            _unreported_ns = began_ns, monotonic_ns()
        return result

    return init_process_group


def _make_patient(original):
    @functools.wraps(original)
    def destroy_process_group(*arguments, **named):
        writer = rankmend._writer
        if writer is not None:
            group = arguments[0] if arguments else named.get("group")
            members = original.__globals__.get("GroupMember")
            is_default = group is not None and group is getattr(members, "WORLD", None)
            leaving.destroys(writer, None if is_default else group)
        gloo_threads.let_go()
        return original(*arguments, **named)  # rankmend passes this on

    return destroy_process_group
