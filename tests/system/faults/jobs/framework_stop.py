"""A job of Lightning or transformers' Trainer with loader workers that saves once it is asked to end, as its users write it.

Lightning raises at the next batch after SIGTERM, and `OnExceptionCheckpoint` saves. Trainer has nothing of the kind: a callback notes the
signal, and all ranks stop at the same step.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

STEPS = 100_000


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        row = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": row, "labels": row.sum()}


def lightning(folder: Path, workers: int) -> None:
    import lightning
    from lightning.pytorch.callbacks import OnExceptionCheckpoint

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, _number: int) -> Any:
            time.sleep(0.05)
            return (self.layer(batch["x"]).squeeze(1) - batch["labels"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=STEPS,
        callbacks=[OnExceptionCheckpoint(folder, filename="preempted")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=workers)
    trainer.fit(Model(), loader)


def trainer(folder: Path, workers: int) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

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

    stops = StopsTogether()

    def note(_number: int, _frame: object) -> None:
        stops.was_asked = True

    signal.signal(signal.SIGTERM, note)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        dataloader_num_workers=workers,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(Net(), arguments, train_dataset=Numbers(), callbacks=[stops]).train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=["lightning", "trainer"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    {"lightning": lightning, "trainer": trainer}[given.framework](given.folder, given.workers)


if __name__ == "__main__":
    main()
