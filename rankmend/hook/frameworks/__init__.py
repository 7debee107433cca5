"""Keeps snapshots of a trainer that a framework runs: `rankmend.keep_snapshots`.

A module for each framework, imported when its trainer is given. They replace methods of that one trainer: what these do
beside snapshots stays as it was.
"""

import sys

import rankmend
from rankmend.hook.notice import warn


class UnsupportedTrainerError(Exception):
    """Why no snapshots of this trainer are kept; never leaves the hook."""


class Snapshots:
    """What a framework's module needs of rankmend."""

    UnsupportedTrainerError = UnsupportedTrainerError

    def __init__(self):
        self._has_warned = False

    def step(self, number):
        rankmend.step(number)

    def take(self, step, make_state):
        """Keep what ``make_state`` returns; what it raises never reaches the training."""
        try:
            state = make_state()
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                warn("no snapshot is kept: %s: %s", type(error).__name__, error)
            return
        rankmend.snapshot(step, state)

    def restore(self):
        return rankmend.restore()

    def loading(self, load):
        """Return what ``load`` returns. Raises `rankmend.RestoreError` where the snapshot does not fit."""
        try:
            return load()
        except Exception as error:
            text = "cannot continue from the snapshot: %s: %s" % (type(error).__name__, error)
            warn("%s", text)
            raise rankmend.RestoreError(text) from error


def keep(trainer, every):
    """Have snapshots taken and restored. Raises `UnsupportedTrainerError`, or what a framework of another version may."""
    roots = {base.__module__.partition(".")[0] for base in type(trainer).__mro__}
    if "transformers" in roots and hasattr(trainer, "callback_handler"):
        from rankmend.hook.frameworks.hf_trainer import keep_trainer

        return keep_trainer(
            trainer, every, Snapshots(), sys.modules["transformers"].TrainerCallback
        )
    for root, module in (("lightning", "lightning.pytorch"), ("pytorch_lightning",) * 2):
        if root in roots and hasattr(trainer, "fit_loop"):
            from rankmend.hook.frameworks.lightning_trainer import keep_lightning

            return keep_lightning(trainer, every, Snapshots(), sys.modules[module].Callback)
    raise UnsupportedTrainerError(
        "%s.%s is not a Trainer of transformers or Lightning"
        % (type(trainer).__module__, type(trainer).__qualname__)
    )
