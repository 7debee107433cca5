"""rankmend inside a training script: reports the rank's progress to the launcher.

    import rankmend

    checkpoint = rankmend.resume()            # None, or .path, .step, .attempt ...
    for step in range(start, end):
        with rankmend.section("compute"):     # compute, communication, io, checkpoint
            ...
        rankmend.step(step, loss=loss)        # after the optimizer step with that number
        rankmend.work(flops=f, tokens=t)      # what this rank did in it: throughput and MFU
    rankmend.groups(dp=d, tp=t, pp=p)         # once, where the hook can't see it: who does the same work
                                              # in a thread that reads ahead: rankmend.background("io")
        if rankmend.may_publish(path):        # just before you rename a checkpoint into place
            os.replace(temporary, path)

    restored = rankmend.restore()             # None, or .step, .state: a snapshot in host memory
    rankmend.snapshot(step, state)            # keep one; docs/use/snapshots.md
    rankmend.keep_snapshots(trainer)          # or both in one, for a Trainer of transformers or Lightning

Without `rankmend run` around the script all of this does nothing. Nothing here but what restores ever
raises, nothing starts a thread or opens a socket; standard library and Python 3.8 and later only. For
one thread of the process, the one that trains; `background` is for the others. Cost: docs/use/hook.md.
In a job of several nodes a rank that all its keepers have left ends itself (`rankmend.hook.lease`).
"""

import os
import sys
from _thread import allocate_lock as _allocate_lock

from rankmend.hook import layout as _layout

__all__ = [
    "RestoreError",
    "attach",
    "background",
    "groups",
    "keep_snapshots",
    "may_publish",
    "random_states",
    "restore",
    "resume",
    "section",
    "set_random_states",
    "snapshot",
    "step",
    "work",
]

_writer = None
_attach_error = None  # why this process reports no progress
_is_refused = False  # at a step, too
_explicit = False  # the script calls step() itself
_attaching = _allocate_lock()
_make_file = None  # makes the progress file of a rank that another launcher has started
_keeper = None  # of this rank's snapshots
_keeper_error = None  # why there is none


class _Nothing:
    """A section of a process that reports nothing."""

    __slots__ = ()

    def __enter__(self):
        return None

    def __exit__(self, *_error):
        return None


_NOTHING = _Nothing()


class Resume(tuple):  # type: ignore[type-arg] # "tuple[...]" needs Python 3.9
    """The checkpoint to continue from: ``path``, ``step`` (None where unknown), ``attempt``.

    Functions that take a path take it, too. ``directory`` and ``tag`` are the two parts of the path, for DeepSpeed's
    ``load_checkpoint``.
    """

    __slots__ = ()
    path = property(lambda self: self[0])
    step = property(lambda self: self[1])
    attempt = property(lambda self: self[2])
    directory = property(lambda self: os.path.dirname(self[0]))
    tag = property(lambda self: os.path.basename(self[0]))

    def __fspath__(self):
        return self[0]

    def __repr__(self):
        return "Resume(path=%r, step=%r, attempt=%r)" % (self.path, self.step, self.attempt)


class RestoredSnapshot(tuple):  # type: ignore[type-arg] # as Resume
    """A snapshot that was given back: ``step`` after which it was taken, ``state`` as it was given."""

    __slots__ = ()
    step = property(lambda self: self[0])
    state = property(lambda self: self[1])

    def __repr__(self):
        return "RestoredSnapshot(step=%r)" % (self.step,)


class RestoreError(RuntimeError):
    """This rank can't give back the snapshot that all ranks of the attempt restore."""


def attach():
    """Start reporting to the launcher, and return whether there is one.

    `step` and `section` attach by themselves; call it early to have the start-up time told
    from the time to restore. Safe to call again, and in a process that is no rank.
    """
    return _attach(0)


def _attach(flags, is_at_step=False):
    """Attach this process. ``is_at_step``: it has just finished a step (`rankmend.hook.nested_launchers`)."""
    global _writer, _attach_error, section, step, work, background
    if _writer is not None:
        return True
    if _attach_error is not None:
        return False
    # Another thread is at it, or code that a signal has interrupted: this call reports nothing, for a
    # second writer would take the first one for another process, or count beside it.
    if not _attaching.acquire(False):
        return False
    try:
        if _writer is not None:
            return True
        writer = _make_writer(flags, is_at_step)
        _writer = writer
        section, work, background = writer.section, writer.work, writer.background
    except Exception as error:
        _attach_error = error
        step, section, work, background = _no_step, _no_section, _no_work, _no_section
        if not is_at_step and _may_be_rank_later(error):
            step = _first_step
        return False
    finally:
        _attaching.release()
    _offer_stacks()
    return True


def _may_be_rank_later(error):
    nested_launchers = sys.modules.get("rankmend.hook.nested_launchers")
    return nested_launchers is not None and isinstance(error, nested_launchers.NoRankYetError)


def _attach_at_step(flags):
    """Attach a process that has just finished a step, also one that was no rank before; return whether it reports."""
    global _attach_error, _is_refused
    if _writer is not None or _is_refused:
        return _writer is not None
    try:
        from rankmend.hook import nested_launchers

        if not _may_be_rank_later(_attach_error) or not nested_launchers.may_be_rank(
            _is_multiprocessing_child()
        ):
            return False
        _attach_error = None
        if not _attach(flags, is_at_step=True):
            _is_refused = True
            return False
        torch_rendezvous = sys.modules.get("rankmend.hook.torch_rendezvous")
        if torch_rendezvous is not None:
            torch_rendezvous.tell_unreported(_writer)
        return True
    except Exception:  # it costs the reports of this process alone
        return False


def _watch_end(writer):
    """Have the end of the script reported to a launcher: what hangs after that is no training."""
    try:
        if os.environ.get(_layout.ENV_PROGRESS_FILE):
            from rankmend.hook import leaving

            leaving.watch(writer)
    except Exception:  # a hang at the end is then one like others
        pass


def _offer_stacks():
    """Make this process, not its parent, answer requests for stacks: it is the one that trains."""
    try:
        if os.environ.get(_layout.ENV_STACKS_FILE):
            from rankmend.hook import stacks

            stacks.offer(take_over=True)
    except Exception:  # a hang then has less evidence, and the training goes on
        pass


def _make_writer(flags, is_at_step=False):
    path = os.environ.get(_layout.ENV_PROGRESS_FILE)
    if not path and _make_file is None:
        raise RuntimeError("not started by rankmend run")
    is_child = _is_multiprocessing_child()
    if path:
        from rankmend.hook import nested_launchers

        if is_child and not is_at_step:
            raise nested_launchers.NoRankYetError("a worker process of a rank is not a rank")
        if nested_launchers.is_own_process():
            raise RuntimeError(
                "a launcher is not a rank: one of those that it starts takes the file"
            )
    from rankmend.hook.writer import OtherWriterError, Writer

    if not path:
        return Writer(_make_file(is_child), flags)  # in silence: this costs the watching alone

    try:
        return Writer(path, flags, takes_place=is_at_step)
    except OtherWriterError:  # a child of the rank: not an error
        raise
    except Exception as error:
        _warn("cannot report this rank's progress: %s", error)
        raise


def _is_multiprocessing_child():
    """Return whether multiprocessing started this process (or is just doing so)."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and (
        process.parent_process() is not None
        or getattr(process.current_process(), "_inheriting", False)  # set while it imports main
    )


def _detach_child():
    """Detach a forked child, such as a data loader worker: it must not write as its parent."""
    global _writer, _attach_error, _is_refused, _explicit, _keeper, step, section, work, background
    _keeper, _is_refused = None, False
    try:
        writer, _writer, _explicit = _writer, None, False
        _attach_error = RuntimeError("forked from a rank")
        step, section, work, background = _no_step, _no_section, _no_work, _no_section
        if os.environ.get(_layout.ENV_PROGRESS_FILE):
            from rankmend.hook import nested_launchers

            nested_launchers.note_fork()
            _attach_error = nested_launchers.NoRankYetError("forked from a rank")
            step = _first_step
        if writer is not None:
            writer.abandon()  # for callers that kept the parent's functions
    except Exception:  # whatever it is, the child goes on with what it was forked for
        pass


def _warn(text, *values):
    from rankmend.hook.notice import warn

    warn(text, *values)


def _no_step(number, loss=None, grad_norm=None):  # noqa: ARG001
    return None


def _no_section(name):  # noqa: ARG001
    return _NOTHING


def _no_work(flops=None, tokens=None, samples=None, dtype="bf16"):  # noqa: ARG001
    return None


def _first_work(flops=None, tokens=None, samples=None, dtype="bf16"):
    """Report work that this rank has done since the last call, for throughput and MFU (docs/use/report.md).

    Of this rank alone: its share of the batch, and of the model's FLOPs. ``flops``: of the model, without what is
    computed again for activation checkpoints. ``dtype`` of the FLOPs: fp64, fp32, tf32, fp16, bf16, fp8 or fp4.
    """
    if _attach(0):
        _writer.work(flops, tokens, samples, dtype)


def groups(dp=None, tp=None, pp=None, cp=None, ep=None):
    """Report this rank's index in the data, tensor, pipeline, context and expert parallel groups of its model.

    Ranks that differ only in ``dp`` do the same work: a slow one is found by comparing them (docs/use/hook.md).
    DeviceMesh and Megatron-LM name their process groups, so that this is known without a call; it wins over those names.
    """
    if _attach(0):
        _writer.groups(dp, tp, pp, cp, ep)


def _first_step(number, loss=None, grad_norm=None):
    """Report that the step with this number (counted over the whole job) is done.

    ``loss``, ``grad_norm``: of this step, as floats, to be told when they go wrong (docs/use/numbers.md).
    They are read and never changed. A tensor on an accelerator is not read: that would wait for the device.
    """
    if _explicit:  # reached through `from rankmend import step`, bound before attaching
        _writer.step(number, loss=loss, grad_norm=grad_norm)
    elif _attach(0) or _attach_at_step(0):
        _mark_explicit()
        _writer.step(number, loss=loss, grad_norm=grad_norm)


def _first_section(name):
    """Return a context manager for the time spent in ``name``.

    Names: compute, communication, io, checkpoint, wait. Another name measures nothing.
    """
    return _writer.section(name) if _attach(0) else _no_section(name)


def _first_background(name):
    """Return a context manager for work beside the training, in another thread: ``io`` or ``communication``.

    The time in which it runs and the thread that trains does its own work is hidden (docs/use/hook.md). Another name
    measures nothing. Several threads may be in it at once: the time counts once.
    """
    return _writer.background(name) if _attach(0) else _no_section(name)


def _mark_explicit():
    """Note that the script calls step() itself: the optimizer hook stops counting."""
    global step, _explicit
    try:
        from rankmend.hook import nccl, torch_steps

        torch_steps.stop_counting()
        _writer.set_flags(0)  # neither counted by the hook nor relative
        step, _explicit = _writer.step, True
        nccl.tell(_writer)
        _note_first_step()
    except Exception:  # the caller's step is reported all the same
        pass


def _note_first_step():
    """Tell what the script has imported, and have its end reported: only now is there a training to end."""
    _watch_end(_writer)
    try:
        imports = sys.modules.get("rankmend.hook.imports")  # in a forked rank
        if imports is None and os.environ.get(_layout.ENV_IMPORTS_FILE):
            from rankmend.hook import imports
        if imports is not None:
            imports.tell()
    except Exception:  # the next start is slower for it, and no more
        pass


step = _first_step
section = _first_section
work = _first_work
background = _first_background


def resume():
    """Return the checkpoint that rankmend chose for this attempt, or None to start afresh."""
    try:
        if _attach(0):
            _writer.mark_resumed()
        path = os.environ.get(_layout.ENV_RESUME_PATH)
        if not path:
            return None
        return Resume((path, _number(_layout.ENV_RESUME_STEP), _number(_layout.ENV_ATTEMPT)))
    except Exception:  # a script that starts afresh is better off than one that ends here
        return None


def _number(name):
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return None


def may_publish(path):
    """Return whether this attempt may still rename a checkpoint to ``path``.

    False when a newer attempt of the job has started, when that can't be told, or when this rank's lease is over: this
    process is then a leftover, and its checkpoint would replace a newer one. True without rankmend.
    """
    try:
        fence_path = os.environ.get(_layout.ENV_FENCE_FILE)
        if not fence_path:
            return True
        from rankmend.hook import lease

        if lease.is_over(os.environ.get(_layout.ENV_PROGRESS_FILE, "")):
            _warn(
                "%s is not published: the lease of this rank is over, and so is its attempt", path
            )
            return False
        mine = os.environ.get(_layout.ENV_ATTEMPT, "")
        with open(fence_path, "rb") as file:
            current = file.read(64).decode("ascii").strip()
        if mine and current == mine:
            return True
        _warn(
            "%s is not published: attempt %s is current, this process belongs to attempt %s",
            path,
            current,
            mine,
        )
    except (OSError, ValueError) as error:
        _warn("%s is not published: cannot read the fence: %s", path, error)
    return False


def snapshot(step, state):
    """Keep ``state`` after the step with this number in host memory, and return whether that was done.

    ``state``: a nested dict, list or tuple of torch tensors, numpy arrays and plain values. False
    where the state can't be kept, which is said on stderr once; training goes on.
    """
    if _keeper is not None:
        # In no section: a checkpoint section measures what saves cost. The keeper reports its own stall.
        return _keeper.take(step, state)
    if not os.environ.get(_layout.ENV_PROGRESS_FILE) or not _attach(0) or not _make_keeper():
        return False
    return snapshot(step, state)


def _make_keeper():
    global _keeper, _keeper_error
    if _keeper_error is not None:
        return False
    try:
        from rankmend.hook.snapshots import keeper, layout

        folder = os.environ.get(_layout.ENV_SNAPSHOTS)
        if not folder:
            raise RuntimeError("this job keeps no snapshots")
        try:
            _keeper = keeper.SnapshotKeeper(
                folder,
                keeper.read_identity(os.environ),
                _writer.tell_snapshots,
                layout.parse_choice(os.environ.get(_layout.ENV_SNAPSHOT)),
                _number("LOCAL_WORLD_SIZE") or 1,
                is_over=_writer.is_lease_over,
            )
        except Exception as error:
            _warn("no snapshot is kept: %s: %s", type(error).__name__, error)
            raise
        return True
    except Exception as error:
        _keeper_error = error
        return False


def restore(mesh=None):
    """Return the snapshot that rankmend chose for this attempt, or None where it chose none.

    The tensors are writable and on the CPU; what is written to them never changes the snapshot. With
    ``mesh``, a DeviceMesh, what was a DTensor comes back as one, else as its local shard.
    Raises `RestoreError`, and only that, where this rank can't give it back: all others have it, and a
    rank that began afresh would spoil the training. rankmend then restarts the ranks from something else.
    """
    try:
        from rankmend.hook.snapshots import layout

        choice = layout.parse_choice(os.environ.get(_layout.ENV_SNAPSHOT))
        if choice is None:
            return None
    except Exception:  # a choice that can't be read is none
        return None
    from rankmend.hook.snapshots import keeper, restoring

    try:
        folder = os.environ.get(_layout.ENV_SNAPSHOTS)
        if not folder:
            raise ValueError("%s is not set" % _layout.ENV_SNAPSHOTS)
        state = restoring.restore(folder, keeper.read_identity(os.environ), choice, mesh)
        if _attach(0):
            _writer.mark_resumed()
        return RestoredSnapshot((choice[1], state))
    except Exception as error:
        if keeper.is_from_script(error):
            raise
        problem = error if isinstance(error, ValueError) else repr(error)
        text = "cannot restore the snapshot of step %d, attempt %d: %s" % (*choice[::-1], problem)
        _warn("%s", text)
        raise RestoreError(text) from error


def random_states():
    """Return the random states of Python, numpy, torch and this rank's accelerator, for the state of a snapshot."""
    from rankmend.hook import random_states as states

    return states.take()


def set_random_states(states):
    """Set what `random_states` returned. Raises `RestoreError` where that can't be: numbers would repeat or differ."""
    from rankmend.hook import random_states as own

    try:
        own.give_back(states)
    except Exception as error:
        raise RestoreError("cannot set the random states: %s" % error) from error


def keep_snapshots(trainer, every=10):
    """Have ``trainer`` restore the snapshot of this attempt, and keep one after each ``every`` steps.

    ``trainer``: a Trainer of transformers or of Lightning, before `train` or `fit` is called. Returns whether it is done:
    False without rankmend, in a job that keeps none, and, said on stderr, for a trainer of which none can be kept. Raises
    `RestoreError`, there or in `train` or `fit`, where this rank can't give back the snapshot that all ranks restore.
    """
    if not os.environ.get(_layout.ENV_SNAPSHOTS) or not _attach(0):
        return False
    try:
        from rankmend.hook import frameworks

        every = int(every)
        if every < 1:
            raise ValueError("every=%d: at least 1" % every)
        frameworks.keep(trainer, every)
        return True
    except Exception as error:
        text = "no snapshot of this trainer is kept: %s: %s" % (type(error).__name__, error)
        _warn("%s", text)
        if os.environ.get(_layout.ENV_SNAPSHOT):
            raise RestoreError(text) from error
        return False


def _watch_by(make_file):
    """Have this process, a rank of another launcher, report to the agent once it trains."""
    global _make_file
    _make_file = make_file
    os.register_at_fork(after_in_child=_detach_child)


if os.environ.get(_layout.ENV_PROGRESS_FILE):
    # Now and not when attaching: a worker forked before must not attach in the rank's place.
    os.register_at_fork(after_in_child=_detach_child)
