"""A Hugging Face Trainer that keeps one checkpoint, beside a torn save with a higher number.

Its rotation goes by the number, so it deletes the only checkpoint that can be restored, after the ranks of the
second attempt have begun from it. They die before they save again.
"""

import argparse
import os
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import rotate_checkpoints

parser = argparse.ArgumentParser()
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--folder", required=True)
options = parser.parse_args()
attempt = os.environ["RANKMEND_ATTEMPT"]


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 500

    def __getitem__(self, index):
        seed = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 64, (16,), generator=seed)
        return {"input_ids": tokens, "labels": tokens}


class Faults(TrainerCallback):
    def on_train_begin(self, args, state, control, **_others):
        if attempt == "2" and state.is_world_process_zero:
            rotate_checkpoints(args.output_dir, save_total_limit=args.save_total_limit)
            print(
                "left by the rotation:",
                sorted(one.name for one in Path(args.output_dir).iterdir()),
                flush=True,
            )

    def on_step_end(self, args, state, control, **_others):
        if state.is_world_process_zero and (attempt, state.global_step) == ("1", 24):
            torn = f"{args.output_dir}/checkpoint-30"
            shutil.copytree(f"{args.output_dir}/checkpoint-20", torn)
            os.truncate(f"{torn}/model.safetensors", 100)
            Path(torn, "trainer_state.json").unlink()  # written last
            os._exit(1)
        if state.is_world_process_zero and (attempt, state.global_step) == ("2", 26):
            os._exit(1)


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
)
arguments = TrainingArguments(
    output_dir=options.folder,
    max_steps=32,
    save_steps=10,
    save_total_limit=1,
    per_device_train_batch_size=2,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=1,
)
trainer = Trainer(
    model=LlamaForCausalLM(config), args=arguments, train_dataset=Tokens(), callbacks=[Faults()]
)
trainer.train(resume_from_checkpoint=options.resume_from_checkpoint)
trainer.accelerator.end_training()
