"""Accelerate: `rankmend run --checkpoint-dir out accelerate_loop.py --resume_from_checkpoint {checkpoint}`."""

import argparse
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--folder", type=Path, default=Path("out"))
options = parser.parse_args()


class Progress:
    """What Accelerate saves and loads beside the model and the optimizer."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
progress = Progress()
accelerator.register_for_checkpointing(progress)
if options.resume_from_checkpoint:
    accelerator.load_state(options.resume_from_checkpoint)
while progress.step < options.steps:
    progress.step += 1
    seed = progress.step * 100 + accelerator.process_index
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    accelerator.backward((model(x) - x.sum(1, keepdim=True)).pow(2).mean())
    optimizer.step()
    if progress.step % 10 == 0:
        accelerator.save_state(options.folder / f"step_{progress.step}")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            steps = sorted(options.folder.glob("step_*"), key=lambda path: int(path.name[5:]))
            for old in steps[:-2]:
                shutil.rmtree(old)
if accelerator.is_main_process:
    print("final", accelerator.unwrap_model(model).weight.double().sum().item(), flush=True)
accelerator.end_training()
