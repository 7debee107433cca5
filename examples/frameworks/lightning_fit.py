"""Lightning: `rankmend run --checkpoint-dir ckpt lightning_fit.py --ckpt_path {checkpoint}`.

`--snapshot-every 5` also keeps each fifth step in host memory.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import rankmend

parser = argparse.ArgumentParser()
parser.add_argument("--ckpt_path")
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--snapshot-every", type=int, default=0, help="steps; 0: none")
parser.add_argument("--folder", default="ckpt")
options = parser.parse_args()


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)

    def training_step(self, batch, _index):
        x, y = batch
        return (self.layer(x) - y).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


lightning.seed_everything(1)
x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
save = ModelCheckpoint(
    options.folder, every_n_train_steps=10, save_top_k=2, monitor="step", mode="max", save_last=True
)
trainer = lightning.Trainer(
    accelerator="auto",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    strategy="ddp",
    max_steps=options.steps,
    callbacks=[save],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model()
if options.snapshot_every:
    rankmend.keep_snapshots(trainer, every=options.snapshot_every)
trainer.fit(model, loader, ckpt_path=options.ckpt_path)
if trainer.is_global_zero:
    print("final", model.layer.weight.double().sum().item(), flush=True)
torch.distributed.destroy_process_group()
