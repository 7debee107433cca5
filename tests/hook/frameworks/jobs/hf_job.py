"""A Trainer of three epochs of seven steps with dropout, shuffled data and evaluations: `forked.py`."""

import sys

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.hook.frameworks.jobs import forked

CASE, EVERY, KILLS = forked.arguments()


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


def train(after_step):
    import rankmend

    class Told(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            after_step(state.global_step)

    torch.manual_seed(3)
    more = {"gradient_accumulation_steps": 2} if CASE == "accumulated" else {}
    if CASE == "evaluated":
        more = {"eval_strategy": "steps", "eval_steps": 2}
    elif CASE == "epochs":
        more = {"eval_strategy": "epoch", "dataloader_num_workers": 1}
    model = Model()
    if CASE == "tied":
        model.layers[0].weight = torch.nn.Parameter(torch.randn(8, 8))
        model.same = model.layers[0]
    if CASE == "adapter":  # as PEFT: most parameters stay as the script has loaded them
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
    kept = rankmend.keep_snapshots(trainer, every=EVERY)
    print("kept", kept, file=sys.stderr)
    trainer.train()
    return model


torch.set_num_threads(1)
forked.run(train, KILLS)
