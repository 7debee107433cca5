"""A Lightning Trainer of three epochs of seven batches with dropout and shuffled data: `forked.py`."""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.hook.frameworks.jobs import forked


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"made_by": object()})  # nothing that could be kept
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 8),
            torch.nn.Dropout(0.3),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 1),
        )

    def training_step(self, batch, _index):
        (x,) = batch
        loss = (self.layers(x).squeeze(1) - x.sum(1)).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _index):
        (x,) = batch
        self.log("checked", self.layers(x).mean() + torch.rand(()))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "epoch"}]


def train(case, every, after_step):
    import rankmend

    class Told(lightning.pytorch.Callback):
        def on_train_batch_start(self, trainer, *_arguments):
            after_step(trainer.global_step)

    lightning.seed_everything(1, verbose=False)
    x = torch.randn(28, 8, generator=torch.Generator().manual_seed(0))
    workers = 1 if case == "workers" else 0
    more = {"accumulate_grad_batches": 2} if case == "accumulated" else {}
    if case == "validated":
        more = {"val_check_interval": 3}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        callbacks=[Told()],
        logger=False,
        num_sanity_val_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **more,
    )
    print("kept", rankmend.keep_snapshots(trainer, every=every), file=sys.stderr)
    model = Model()
    data = TensorDataset(x)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    checks = DataLoader(data, batch_size=7) if case == "validated" else None
    trainer.fit(model, loader, checks)
    return model


torch.set_num_threads(1)
forked.run(train)
