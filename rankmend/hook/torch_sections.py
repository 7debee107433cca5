"""Tells communication and data loading of an unchanged PyTorch script from its own work.

`Installer.look` runs after each optimizer step until there is something to wrap; until then
nothing of PyTorch is touched. What is wrapped, and what it counts as:
  Work.wait                   waiting for others: blocking and asynchronous collectives, sends and
                              receives of every backend, however they were called (FSDP, too)
  ProcessGroup.allreduce ...  counts a collective; times it where the backend blocks right there
  the end of backward         waiting for others: DistributedDataParallel reduces gradients in C++,
                              and waits for them in a final callback of autograd. One callback
                              before it and one behind it take the time. Its communication hook is
                              left alone: the default one divides in another place than C++ does
  DDP's broadcast of buffers  waiting for others
  the data loader's __next__  io: loading, or waiting for workers
On a GPU the host hardly waits: `rankmend.hook.stream_waits` takes the time that the stream stood still.
What ran beside the rank's own work `rankmend.hook.hidden_work` tells.

Nothing is changed in what these functions get or return, and none is traced by the compiler.
"""

import sys
from _thread import get_ident

import rankmend
from rankmend.hook import hidden_work, layout, stream_flights, stream_waits
from rankmend.hook.hidden_work import Hidden, ReplicaFinder
from rankmend.hook.model_place import find_place
from rankmend.hook.own_errors import OWN_ERRORS
from rankmend.hook.process_groups import BY_NOBODY, Groups, is_on_gpu, read_timeout, seen_by
from rankmend.hook.stream_waits import StreamWaits, make_find_stream
from rankmend.hook.writer import Writer

_WAIT = layout.SECTIONS.index("wait")
_IO = layout.SECTIONS.index("io")
_PAIRS = ("send", "recv", "recv_anysource")
_COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "broadcast",
    "gather",
    "scatter",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
)
_LOOKS_MAX = 10000  # looks for a process group: without one by then, the script is not distributed


class Installer:
    """Wraps PyTorch functions as the script imports them, each once."""

    def __init__(self):
        self.is_done = False
        self._has_loader = False
        self._looks = 0

    def look(self):
        """Wrap what the script has imported and set up so far; never raise."""
        try:
            self._looks += 1
            if self._looks == 1:
                hide_from_compiler(*_OWN_CODE)
            if not self._has_loader:
                self._has_loader = True
                _wrap_loader()
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_initialized():
                self.is_done = True
                _wrap_distributed()
            self.is_done = self.is_done or self._looks >= _LOOKS_MAX
        except OWN_ERRORS:
            self.is_done = True


def hide_from_compiler(*functions):
    """Have torch.compile neither trace nor compile the code of these functions.

    A wrapper that is met in a compiled region breaks the graph, as what it wraps does; without
    this its own code, and what it calls, would then be compiled.
    """
    skip = _find_skip()
    codes = [function.__code__ for function in functions]
    while skip is not None and codes:
        code = codes.pop()
        skip(code)
        codes += [inner for inner in code.co_consts if isinstance(inner, type(code))]


def _find_skip():
    """Return what makes the compiler pass over a code object, or None; imports no compiler."""
    frames = sys.modules.get("torch._C._dynamo.eval_frame")
    if not hasattr(frames, "set_code_exec_strategy"):  # older PyTorch
        return getattr(frames, "skip_code", None)
    only_this = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, only_this)


def _wrap_loader():
    loader = sys.modules.get("torch.utils.data.dataloader")
    if loader is not None:
        _replace(loader._BaseDataLoaderIter, "__next__", _make_loading, _workers_of(loader))


def _wrap_distributed():
    c10d = sys.modules["torch._C._distributed_c10d"]
    trainer = get_ident()  # an optimizer steps in it
    torch = sys.modules["torch"]
    events = StreamWaits(torch.cuda, make_find_stream(torch))
    hidden = Hidden(events)
    groups = Groups()
    if rankmend._writer is not None:  # DDP reduces in the default group, unseen
        rankmend._writer.mark_timeout(groups.of(sys.modules["torch.distributed"].group.WORLD)[0])
    _replace(c10d.Work, "wait", _make_wait, trainer, events, hidden)
    shared = (trainer, events, groups, hidden)
    for name in _COLLECTIVES:
        _replace(c10d.ProcessGroup, name, _make_collective, *shared, False)
    for name in _PAIRS:
        _replace(c10d.ProcessGroup, name, _make_collective, *shared, True)
    _replace(c10d.ProcessGroup, "_start_coalescing", hidden_work.make_joining, trainer, hidden)
    _replace(c10d.ProcessGroup, "_end_coalescing", hidden_work.make_joined, trainer, groups, hidden)
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is not None:
        replica = parallel.DistributedDataParallel
        _replace(replica, "_distributed_broadcast_coalesced", _make_timed, _WAIT)
        _replace(
            sys.modules["torch.autograd"], "_engine_run_backward", _make_backward, events, hidden
        )
        ReplicaFinder(replica, hidden, _replace).begin()


def _replace(owner, name, make, *arguments):
    original = getattr(owner, name, None)
    if original is None:  # another version of PyTorch
        return
    wrapper = make(original, *arguments)
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        try:
            setattr(wrapper, attribute, getattr(original, attribute))
        except (AttributeError, TypeError):
            pass
    wrapper.__wrapped__ = original
    # As torch.compiler.disable, which costs a second, because it imports the compiler.
    wrapper._torchdynamo_disable = True
    wrapper._torchdynamo_disable_msg = None
    setattr(owner, name, wrapper)


# Nothing to catch in the wrappers: what comes by is the function's own, or a signal handler's.


def _make_timed(original, code):
    trainer = get_ident()

    def timed(*arguments, **named):
        writer = rankmend._writer  # None in a forked child
        if writer is None or get_ident() != trainer or not writer.enter(code):
            return original(*arguments, **named)  # rankmend passes this on
        try:
            return original(*arguments, **named)  # rankmend passes this on
        finally:
            writer.leave()

    return timed


def _make_loading(original, in_workers):
    trainer = get_ident()

    def loading(*arguments, **named):
        writer = rankmend._writer
        if writer is None or get_ident() != trainer or not writer.enter(_IO):
            return original(*arguments, **named)  # rankmend passes this on
        try:
            is_beside = bool(arguments) and isinstance(arguments[0], in_workers)
            writer.mark_fact(layout.LOADS_IN_WORKERS if is_beside else layout.LOADS_ITSELF)
            return original(*arguments, **named)  # rankmend passes this on
        finally:
            writer.leave()

    return loading


def _workers_of(loader):
    """Return the kinds of iterators whose batches other processes make."""
    found = getattr(loader, "_MultiProcessingDataLoaderIter", None)
    return () if found is None else (found,)


def _make_wait(original, trainer, events, hidden):
    def wait(*arguments, **named):
        writer = rankmend._writer
        if writer is None or get_ident() != trainer:
            return original(*arguments, **named)  # rankmend passes this on
        issue = None
        if arguments:
            hidden.waits(arguments[0], writer)
            issue = hidden.flights.waits(arguments[0], writer)
        if not writer.enter(_WAIT):
            return original(*arguments, **named)  # rankmend passes this on
        start = events.begin(writer) if events.is_on() else None
        try:
            return original(*arguments, **named)  # rankmend passes this on
        finally:
            if start is not None:
                events.end(start, writer, issue)
                hidden.tell_when_due(writer)
            elif issue is not None:
                hidden.flights.lose(issue, writer)
            writer.leave()
            writer.end_collective()

    return wait


def _make_collective(original, trainer, events, groups, hidden, is_pair):
    def collective(*arguments, **named):
        writer = rankmend._writer
        if writer is None or get_ident() != trainer:
            return original(*arguments, **named)  # rankmend passes this on
        seen = BY_NOBODY
        if arguments:
            timeout_ns, seen = groups.of(arguments[0])
            writer.mark_timeout(timeout_ns)
            if groups.news is not None:
                place, groups.news = groups.news, None
                writer.mark_place(place)
        if is_pair:
            writer.mark_pairs()
        writer.begin_collective()
        is_timed = writer.enter(_WAIT)
        # The stream goes on beside an asynchronous one, and stands still where it is waited for.
        is_asynchronous = is_pair or _is_asynchronous(arguments)
        start = None
        if is_timed and is_asynchronous is not True and events.is_on():
            start = events.begin(writer)
        work = None
        try:
            work = original(*arguments, **named)  # rankmend passes this on
        finally:
            if start is not None:
                events.end(start, writer)
            if is_timed:
                writer.leave()
            if work is None:  # the backend has waited itself
                writer.end_collective()
        if is_timed and work is not None:
            hidden.began(work, writer, seen, arguments, is_asynchronous)
        return work

    return collective


def _is_asynchronous(arguments):
    """Return whether the options of a collective say so, which PyTorch's do since 2.8; None where they don't."""
    return getattr(arguments[-1], "asyncOp", None) if arguments else None


def _make_backward(original, events, hidden):
    """Wrap autograd's engine: take the time between the last gradient and the end of backward.

    Final callbacks run in the order in which they were queued. One queued when backward begins
    runs before DDP's, which is queued with the last gradient; one queued by that runs behind it.
    """
    trainer = get_ident()
    engine = sys.modules["torch.autograd"].Variable._execution_engine
    place = _Place()

    def end():
        if place.is_inside:
            place.is_inside = False
            writer, start = place.writer, place.start
            place.writer = place.start = None
            if start is not None:
                events.end(start, writer)
            writer.leave()
            writer.end_collective()
            hidden.look_at_replica(writer)

    def begin():
        writer = rankmend._writer
        if writer is not None and not place.is_inside:
            writer.begin_collective()
            if writer.enter(_WAIT):
                place.is_inside, place.writer = True, writer
                place.start = events.begin(writer) if events.is_on() else None
                engine.queue_callback(end)

    def started(_gradient):
        engine.queue_callback(begin)

    def backward(tensors, *arguments, **named):
        writer = rankmend._writer
        if (
            writer is None
            or place.depth
            or get_ident() != trainer
            or not named.get("accumulate_grad")
            or _is_compiling_backward()
        ):
            return original(tensors, *arguments, **named)  # rankmend passes this on
        handle = _hook_first(tensors, started)
        place.depth = 1
        events.mark_own()
        hidden.look(writer)
        try:
            return original(tensors, *arguments, **named)  # rankmend passes this on
        finally:
            place.depth = 0
            end()  # where backward failed on its way
            hidden.look(writer)
            if handle is not None:
                handle.remove()

    return backward


class _Place:
    __slots__ = ("depth", "is_inside", "start", "writer")

    def __init__(self):
        self.depth = 0
        self.is_inside = False
        self.writer = self.start = None


def _hook_first(tensors, hook):
    """Return the handle of a hook that runs when backward begins, or None where it can't be."""
    try:
        return next(tensor for tensor in tensors if tensor.requires_grad).register_hook(hook)
    except (*OWN_ERRORS, StopIteration):  # a gradient edge, or nothing that has a gradient
        return None


def _is_compiling_backward():
    """Return whether compiled autograd is on, which would trace the hook."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiled is not None and getattr(compiled, "compiled_autograd_enabled", False)


_OWN_CODE = (
    _make_timed,
    _make_loading,
    hidden_work.make_finding,
    hidden_work.make_joining,
    hidden_work.make_joined,
    ReplicaFinder.found,
    Hidden.began,
    Hidden.issued,
    Hidden.waits,
    Hidden.tell_when_due,
    Hidden.look,
    Hidden._look,
    Hidden._end,
    Hidden._settle,
    Hidden.follow,
    Hidden.look_at_replica,
    Hidden._tell,
    hidden_work.length_of,
    _make_wait,
    _make_collective,
    _make_backward,
    Groups.of,
    find_place,
    seen_by,
    is_on_gpu,
    read_timeout,
    _hook_first,
    _is_compiling_backward,
    *stream_waits.OWN_CODE,
    *stream_flights.OWN_CODE,
    Writer._make_calls,
    Writer.mark_place,
)
