"""A Trainer of three epochs of seven steps with dropout, shuffled data and evaluations: `forked.py`."""

import os
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.hook.frameworks.jobs import forked


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 8),
            torch.nn.Dropout(0.3),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 1),
        )

    def forward(self, x, labels=None):
        loss = (self.layers(x).squeeze(1) - labels).pow(2).mean()
        return {"loss": loss, "logits": loss.detach()[None]}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 27  # the last batch of an epoch is smaller

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum()}


def train(case, every, after_step):
    import rankmend

    class Told(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            after_step(state.global_step)

    torch.manual_seed(3)
    more = {"gradient_accumulation_steps": 2} if case == "accumulated" else {}
    if case == "evaluated":
        more = {"eval_strategy": "steps", "eval_steps": 2}
    elif case == "epochs":
        more = {"eval_strategy": "epoch", "dataloader_num_workers": 1}
    model = Model()
    if case == "tied":
        model.layers[0].weight = torch.nn.Parameter(torch.randn(8, 8))
        model.same = model.layers[0]
    if case == "adapter":  # as PEFT: most parameters stay as the script has loaded them
        model.peft_config = {}
        model.layers[0].requires_grad_(False)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir="out",
            num_train_epochs=3,
            per_device_train_batch_size=4,
            save_strategy="no",
            logging_steps=3,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=1,
            lr_scheduler_type="cosine",
            **more,
        ),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=[Told()],
    )
    kept = rankmend.keep_snapshots(trainer, every=every)
    print("kept", kept, file=sys.stderr)
    trainer.train()
    return model


class Linear(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(8, width)

    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels[:, None]).pow(2).mean()}


def make(width):
    arguments = TrainingArguments(
        "out", max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    return Trainer(model=Linear(width), args=arguments, train_dataset=Rows())


def another_model():
    """Return how a trainer ends that is given the snapshot of a model of another width."""
    import rankmend

    def keep():
        trainer = make(2)
        rankmend.keep_snapshots(trainer, 1)
        trainer.train()
        return "trained"

    def restore():
        trainer = make(3)
        assert rankmend.keep_snapshots(trainer)
        try:
            trainer.train()
        except rankmend.RestoreError as error:
            return str(error)
        return "trained"

    told = [forked.run_once(keep), forked.run_once(restore, "3:3")]
    forked.clear()
    return told


def holds_its_state():
    """Return what a trainer that uses FSDP prints, and the snapshots that it leaves."""
    import rankmend

    def refuse():
        with Path("said").open("w+") as said:
            os.dup2(said.fileno(), 2)
            trainer = make(1)
            trainer.is_fsdp_enabled = True
            print(rankmend.keep_snapshots(trainer), file=sys.stderr, flush=True)
            trainer.is_fsdp_enabled = False
            trainer.train()
            said.seek(0)
            return said.read()

    return [forked.run_once(refuse), [path.name for path in forked.FOLDER.iterdir()]]


torch.set_num_threads(1)
forked.run(train, another_model, holds_its_state)
