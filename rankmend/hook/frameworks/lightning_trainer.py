"""Snapshots of a Lightning Trainer.

A snapshot holds what Lightning puts into a checkpoint, and random states. Lightning resumes within an epoch with a data
loader that begins anew. So a resumed epoch gets the random states of its beginning, the batches that were trained on are
skipped, and then the random states of the snapshot are set: it goes on with the batches and random numbers of an
undisturbed run. A loader that has a state of its own is left to Lightning.

None is taken after an epoch's last batch, or before a validation: what resumes from there skips the epoch's end. The next
batch is taken instead.
"""

from rankmend.hook import random_states

# The script's own arguments: not needed to go on, and often no plain values.
_NOT_KEPT = ("hyper_parameters", "hparams_name", "hparams_type", "datamodule_hyper_parameters")


def keep_lightning(trainer, every, snapshots, callback_class):
    if trainer.strategy.restore_checkpoint_after_setup:
        raise snapshots.UnsupportedTrainerError(
            "this Trainer uses %s, which holds its state itself" % type(trainer.strategy).__name__
        )
    retained = _Snapshots(trainer, every, snapshots)

    class RankmendSnapshots(callback_class):
        def on_train_batch_end(self, trainer, *_arguments, **_named):
            retained.after_batch(trainer.global_step)

    connector, fit_loop = trainer._checkpoint_connector, trainer.fit_loop
    resume_start = retained.resuming(connector, connector.resume_start)
    setup_data = retained.setting_up(fit_loop.setup_data)
    on_run_start = retained.starting_epoch(fit_loop.epoch_loop.on_run_start)
    connector.resume_start, fit_loop.setup_data = resume_start, setup_data
    fit_loop.epoch_loop.on_run_start = on_run_start
    trainer.callbacks.insert(0, RankmendSnapshots())


class _Snapshots:
    def __init__(self, trainer, every, snapshots):
        self._trainer = trainer
        self._every = every
        self._snapshots = snapshots
        self._step = 0  # the newest that was told
        self._is_due = False
        self._is_restored = False
        self._resumed = None  # of the snapshot, until the first batch
        # Random states before this epoch's iterator over the data was made, and before its first batch.
        self._before_iterator = self._before_batches = None
        self._is_made_in_setup = (
            False  # the iterator; what came before it in setup may draw numbers, too
        )

    def after_batch(self, step):
        if step <= self._step:
            return  # gradients are accumulated
        self._step = step
        self._snapshots.step(step)
        self._is_due = self._is_due or step % self._every == 0
        if self._is_due and self._goes_on():
            self._is_due = False
            self._snapshots.take(step, self._state_of)

    def _goes_on(self):
        """Return whether the next thing that happens is the epoch's next batch."""
        epoch_loop, fetcher = (
            self._trainer.fit_loop.epoch_loop,
            self._trainer.fit_loop._data_fetcher,
        )
        return not fetcher.done and not epoch_loop._should_check_val_fx(fetcher)

    def _state_of(self):
        checkpoint = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        for name in _NOT_KEPT:
            checkpoint.pop(name, None)
        return {
            "checkpoint": checkpoint,
            "random": random_states.take(),
            "before_iterator": self._before_iterator,
            "before_batches": self._before_batches,
            "is_made_in_setup": self._is_made_in_setup,
        }

    def resuming(self, connector, resume_start):
        """Return what loads a checkpoint, such that the first fit loads the snapshot that this attempt restores."""

        def wrapper(*arguments, **named):
            if self._is_restored or self._trainer.state.fn != "fit":
                return resume_start(*arguments, **named)  # rankmend passes this on
            self._is_restored = True
            restored = self._snapshots.restore()
            if restored is None:
                return resume_start(*arguments, **named)  # rankmend passes this on
            self._step = restored.step
            connector._ckpt_path = None
            connector._loaded_checkpoint = restored.state.pop("checkpoint")
            self._resumed = restored.state
            return None

        return wrapper

    def setting_up(self, setup_data):
        """Return what makes the data loaders, and the iterator for the first epoch."""
        fit_loop = self._trainer.fit_loop

        def wrapper(*arguments, **named):
            resumed = self._resumed
            if resumed is not None and resumed["is_made_in_setup"]:
                self._set(resumed["before_iterator"])
            states, iterator = random_states.take(), _iterator(fit_loop._data_fetcher)
            result = setup_data(*arguments, **named)  # rankmend passes this on
            if _iterator(fit_loop._data_fetcher) is not iterator:
                self._before_iterator, self._is_made_in_setup = states, True
            return result

        return wrapper

    def starting_epoch(self, on_run_start):
        """Return what begins an epoch's batches, such that those are skipped that the snapshot has seen."""

        def wrapper(data_fetcher, *arguments, **named):
            resumed, self._resumed = self._resumed, None
            states, iterator = random_states.take(), _iterator(data_fetcher)
            result = on_run_start(data_fetcher, *arguments, **named)  # rankmend passes this on
            if _iterator(data_fetcher) is not iterator:
                self._before_iterator, self._is_made_in_setup = states, False
            if resumed is not None and not self._is_stateful():
                if not resumed["is_made_in_setup"]:
                    self._set(resumed["before_iterator"])
                    self._before_iterator, self._is_made_in_setup = random_states.take(), False
                    iter(data_fetcher)
                self._set(resumed["before_batches"])
            self._before_batches = random_states.take()
            if resumed is not None:
                if not self._is_stateful():
                    self._skip(data_fetcher)
                self._set(resumed["random"])
            return result

        return wrapper

    def _is_stateful(self):
        loaders = self._trainer.fit_loop._combined_loader.flattened
        return all(
            hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
            for loader in loaders
        )

    def _skip(self, data_fetcher):
        data_fetcher.fetched = 0  # Lightning has added what is counted here
        for _ in range(self._trainer.fit_loop.epoch_loop.batch_progress.current.ready):
            next(data_fetcher)

    def _set(self, states):
        self._snapshots.loading(lambda: random_states.give_back(states))


def _iterator(data_fetcher):
    """Return what is made anew each time that an epoch's data begins."""
    loader = None if data_fetcher is None else data_fetcher._combined_loader
    return None if loader is None else loader._iterator
