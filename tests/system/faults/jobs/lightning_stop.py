"""A job of Lightning with a loader worker that saves once it is asked to end, as its users write it.

lightning_stop.py FOLDER

Lightning raises at the next batch after SIGTERM, and `OnExceptionCheckpoint` saves.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint

STEPS = 100_000


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        row = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": row, "labels": row.sum()}


class Model(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, _number: int) -> Any:
        time.sleep(0.05)
        return (self.layer(batch["x"]).squeeze(1) - batch["labels"]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    torch.set_num_threads(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=STEPS,
        callbacks=[OnExceptionCheckpoint(Path(sys.argv[1]), filename="preempted")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1))


if __name__ == "__main__":
    main()
