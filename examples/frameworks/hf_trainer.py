"""Hugging Face Trainer: `rankmend run --checkpoint-dir out hf_trainer.py --resume_from_checkpoint {checkpoint}`.

`--snapshot-every 5` also keeps each fifth step in host memory.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import rankmend

parser = argparse.ArgumentParser()
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--snapshot-every", type=int, default=0, help="steps; 0: none")
parser.add_argument("--folder", default="out")
options = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        seed = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 64, (16,), generator=seed)
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config)
arguments = TrainingArguments(
    output_dir=options.folder,
    max_steps=options.steps,
    save_steps=10,
    save_total_limit=2,
    per_device_train_batch_size=2,
    report_to=[],
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
    seed=1,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
if options.snapshot_every:
    rankmend.keep_snapshots(trainer, every=options.snapshot_every)
trainer.train(resume_from_checkpoint=options.resume_from_checkpoint)
if trainer.is_world_process_zero():
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print("final", total, flush=True)
trainer.accelerator.end_training()
