"""Snapshots of a Hugging Face Trainer.

The Trainer resumes from a folder. It gets one that holds its own small state alone, `trainer_state.json`, as its code wants it;
model, optimizer, scheduler, scaler and random states come from the snapshot, where it would load each from a file.
"""

import dataclasses
import json
import os
import tempfile

from rankmend.hook import random_states

_STATE_FILE = "trainer_state.json"


def keep_trainer(trainer, every, snapshots, callback_class):
    for name in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        if getattr(trainer, name, False):
            raise snapshots.UnsupportedTrainerError(
                "this Trainer uses %s, which holds its state itself"
                % ("DeepSpeed" if "deepspeed" in name else "FSDP")
            )
    retained = _Snapshots(trainer, every, snapshots)

    class RankmendSnapshots(callback_class):
        def on_step_end(self, args, state, control, **_others):  # noqa: ARG002
            snapshots.step(state.global_step)

        def on_epoch_end(self, args, state, control, **_others):  # noqa: ARG002
            retained.has_epoch_ended = True

        def on_epoch_begin(self, args, state, control, **_others):  # noqa: ARG002
            retained.has_epoch_ended = False

    trainer.add_callback(RankmendSnapshots)
    trainer._maybe_log_save_evaluate = retained.after(trainer._maybe_log_save_evaluate)
    trainer.train = retained.resuming(trainer.train)


class _Snapshots:
    def __init__(self, trainer, every, snapshots):
        self._trainer = trainer
        self._every = every
        self._snapshots = snapshots
        self._taken = 0  # the newest step
        self.has_epoch_ended = False

    def after(self, log_save_evaluate):
        """Return it with a snapshot behind it: an evaluation belongs to the step before, and may draw random numbers."""

        def wrapper(*arguments, **named):
            result = log_save_evaluate(*arguments, **named)  # rankmend passes this on
            state = self._trainer.state
            step = state.global_step
            # At an epoch's last step it is called twice, the second time to evaluate the epoch.
            is_last_of_epoch = state.epoch is not None and float(state.epoch).is_integer()
            if is_last_of_epoch and not self.has_epoch_ended:
                return result
            if step > self._taken and step % self._every == 0:
                self._taken = step
                self._snapshots.take(step, self._state_of)
            return result

        return wrapper

    def resuming(self, train):
        """Return ``train`` such that its first call goes on from the snapshot that this attempt restores."""
        is_first = [True]

        def wrapper(*arguments, **named):
            restored = self._snapshots.restore() if is_first[0] else None
            is_first[0] = False
            if restored is None:
                return train(*arguments, **named)  # rankmend passes this on
            self._taken = restored.step
            with tempfile.TemporaryDirectory(prefix="rankmend-trainer-") as folder:
                with open(os.path.join(folder, _STATE_FILE), "w") as file:
                    file.write(restored.state["trainer"])
                self._load_instead(folder, restored.state)
                del restored  # frees the file as soon as all is loaded
                if arguments:
                    arguments = (folder, *arguments[1:])
                else:
                    named["resume_from_checkpoint"] = folder
                return train(*arguments, **named)  # rankmend passes this on

        return wrapper

    def _load_instead(self, folder, state):
        trainer, load = self._trainer, self._snapshots.loading
        left = dict(state)

        def of_ours(original, loader):
            def wrapper(checkpoint, *arguments, **named):
                if checkpoint != folder:
                    return original(checkpoint, *arguments, **named)  # rankmend passes this on
                return load(loader)

            return wrapper

        def load_model():
            _load_model(trainer.model, left.pop("model"))

        def load_optimizer():
            trainer.optimizer.load_state_dict(left.pop("optimizer"))
            trainer.lr_scheduler.load_state_dict(left.pop("scheduler"))

        def load_scaler():
            scaler = left.pop("scaler")
            if scaler is not None:
                trainer.accelerator.scaler.load_state_dict(scaler)

        def load_random():
            random_states.give_back(left.pop("random"))

        for name, loader in (
            ("_load_from_checkpoint", load_model),
            ("_load_optimizer_and_scheduler", load_optimizer),
            ("_load_scaler", load_scaler),
            ("_load_rng_state", load_random),
        ):
            setattr(trainer, name, of_ours(getattr(trainer, name), loader))

    def _state_of(self):
        trainer = self._trainer
        scaler = getattr(trainer.accelerator, "scaler", None)
        return {
            "model": _model_state(trainer.model),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": random_states.take(),
            "trainer": _trainer_state(trainer),
        }


def _trainer_state(trainer):
    """Return the Trainer's own state as the JSON of its checkpoints."""
    found = dataclasses.asdict(trainer.state)
    callbacks = {}
    for callback in (*trainer.callback_handler.callbacks, trainer.control):
        name = type(callback).__name__
        if name not in (found.get("stateful_callbacks") or {}):
            continue
        # As the Trainer writes it: a list where there are several of a kind.
        if isinstance(found["stateful_callbacks"][name], list):
            callbacks.setdefault(name, []).append(callback.state())
        else:
            callbacks[name] = callback.state()
    if "stateful_callbacks" in found:
        found["stateful_callbacks"] = {**found["stateful_callbacks"], **callbacks}
    return json.dumps(found)


def _frozen(model):
    """Return the names of parameters that an adapter (PEFT) leaves as the script has loaded them."""
    if not hasattr(model, "peft_config"):
        return frozenset()
    return frozenset(name for name, item in model.named_parameters() if not item.requires_grad)


def _model_state(model):
    frozen = _frozen(model)
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def _load_model(model, state):
    frozen = _frozen(model)
    reported = model.load_state_dict(state, strict=not frozen)
    missing = [name for name in reported.missing_keys if name not in frozen]
    if missing or reported.unexpected_keys:
        raise ValueError(
            "the model differs: %.200r are missing, %.200r are unexpected"
            % (missing[:3], list(reported.unexpected_keys)[:3])
        )
