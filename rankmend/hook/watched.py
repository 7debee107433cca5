"""Watches a rank that another launcher has started: `rankmend watch env`.

A process is a rank where its launcher's variables say so, and nothing is made before its first optimizer step. So the
launcher itself, data loader workers and other children are left alone. With RANKMEND_WATCH_ANY a process that steps an optimizer
without a launcher is watched, too: as the rank that it is in its process group, else as a job of one rank. Then the rank makes its own progress file:

    /dev/shm/rankmend-watch-<uid>/<job>/job.json            what its launcher says of the job
    /dev/shm/rankmend-watch-<uid>/<job>/rank-<R>.progress   as `rankmend.hook.layout` has it

Only the user writes there, and everybody reads. The job's UUID is made of the user's id and of what all its ranks know
alike, so that ranks on other nodes have the same one, and another user can't speak for it. Steps are counted, and nothing
is wrapped, unless the owner asks for sections (RANKMEND_WATCH_SECTIONS). Whatever fails costs the watching alone.
"""

import os
from time import monotonic_ns

import rankmend
from rankmend.hook import layout
from rankmend.hook.watched_layout import find_rank
from rankmend.hook.writer import file_at

_LOOK_NS = 5 * 10**9  # between two looks at whether the file is still there: each takes 2 us


def watch(module):
    """Count the steps of this process, if it is a rank, from its first optimizer step on; ``module``: torch.optim.optimizer."""
    if find_rank(os.environ) is not None or os.environ.get(layout.ENV_WATCH_ANY) == "1":
        rankmend._watch_by(_make_file)
        _register(module)


def _make_file(is_child):
    from rankmend.hook import watched_file

    return watched_file.make(is_child)


def _keep_file(writer):
    """Make the file anew where somebody has removed it, with all that was told in it."""
    try:
        if writer is None or file_at(writer.path) == writer.file:
            return
    except FileNotFoundError:
        pass
    except OSError:
        return
    try:
        writer.move_to(_make_file(rankmend._is_multiprocessing_child()))
    except (
        OSError,
        ValueError,
    ):  # and nothing else: it may be a signal handler's, and so the script's
        pass


def _register(module):
    try:
        from rankmend.hook import torch_steps

        class Counter(torch_steps.Counter):
            """Attaches at the first step, and looks after its file every few seconds."""

            look_ns = 0  # when to look next

            def after_step(self, optimizer, arguments, named):
                now_ns = monotonic_ns()
                if now_ns >= self.look_ns:
                    if self.look_ns:
                        _keep_file(rankmend._writer)
                    else:
                        rankmend._attach(layout.FLAG_AUTO)
                    self.look_ns = now_ns + _LOOK_NS
                super().after_step(optimizer, arguments, named)

            after_step._torchdynamo_disable = True
            after_step._torchdynamo_disable_msg = None

        # To tell sections, collectives are wrapped: only where the job's owner asks for it.
        has_sections = os.environ.get(layout.ENV_WATCH_SECTIONS) == "1"
        counter = Counter(torch_steps.Installer() if has_sections else torch_steps.NoInstaller())
        module.register_optimizer_step_post_hook(counter.after_step)
    except Exception:  # it costs the watching alone
        pass
