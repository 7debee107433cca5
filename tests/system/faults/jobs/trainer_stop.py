"""A job of transformers' Trainer with a loader worker that saves once it is asked to end, as its users write it.

trainer_stop.py FOLDER

Trainer has nothing for it: a callback notes the signal, and all ranks stop at the same step.
"""

import signal
import sys
import time
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 100_000


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        row = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": row, "labels": row.sum()}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: Any, labels: Any) -> Any:
        time.sleep(0.05)
        return {"loss": (self.layer(x).squeeze(1) - labels).square().mean()}


class StopsTogether(TrainerCallback):  # type: ignore[misc]
    was_asked = False

    def on_step_end(self, _arguments: Any, _state: Any, control: Any, **_more: Any) -> Any:
        asked = torch.tensor(int(self.was_asked))
        torch.distributed.all_reduce(asked)
        if asked.item():
            control.should_save = control.should_training_stop = True
        return control


def main() -> None:
    torch.set_num_threads(1)
    stops = StopsTogether()

    def note(_number: int, _frame: object) -> None:
        stops.was_asked = True

    signal.signal(signal.SIGTERM, note)
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=STEPS,
        per_device_train_batch_size=4,
        dataloader_num_workers=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(Net(), arguments, train_dataset=Numbers(), callbacks=[stops]).train()


if __name__ == "__main__":
    main()
