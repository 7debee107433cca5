"""DeepSpeed: `rankmend run --checkpoint-dir ckpt deepspeed_loop.py --load {checkpoint_dir} --tag {checkpoint_tag}`."""

import argparse
import shutil
from pathlib import Path

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--load")
parser.add_argument("--tag")
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--folder", type=Path, default=Path("ckpt"))
parser.add_argument("--zero", type=int, default=1)
options = parser.parse_args()

# On a CPU DeepSpeed compiles an operator for shared memory when it starts: minutes, and not needed.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
config = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {"stage": options.zero},
    "zero_allow_untested_optimizer": True,
}
engine, _optimizer, _loader, _schedule = deepspeed.initialize(
    model=model, optimizer=optimizer, config=config
)
start = 0
if options.load:
    _path, state = engine.load_checkpoint(options.load, options.tag)
    start = state["step"]
for step in range(start + 1, options.steps + 1):
    seed = torch.Generator().manual_seed(step * 100 + engine.global_rank)
    x = torch.randn(8, 32, generator=seed)
    engine.backward((engine(x) - x.sum(1, keepdim=True)).pow(2).mean())
    engine.step()
    if step % 10 == 0:
        engine.save_checkpoint(options.folder, f"global_step{step}", client_state={"step": step})
        if engine.global_rank == 0:
            steps = sorted(
                options.folder.glob("global_step*"), key=lambda path: int(path.name[11:])
            )
            for old in steps[:-2]:
                shutil.rmtree(old)
if engine.global_rank == 0:
    print("final", engine.module.weight.double().sum().item(), flush=True)
torch.distributed.destroy_process_group()
