"""Real frameworks save real checkpoints: `python -m tests.support.framework_saves NAME FOLDER`.

In a process of its own, because the imports take seconds and hundreds of megabytes. With NAMES that have commas between, that
process imports once what they share, forks one child for each, which saves to FOLDER/NAME, and prints their exit codes as JSON.
"""

import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rankmend.hook import gloo_threads

REQUIRED = "RANKMEND_TESTS_REQUIRE_FRAMEWORKS"  # set by `make test-rest`, which installs them
PARALLEL = Path(
    sys.prefix, "parallel"
)  # where `make .venv/.parallel` puts DeepSpeed and megatron-core


def require(*libraries: str, is_parallel: bool = False) -> dict[str, str]:
    """Skip the test where a library is missing; return the variables with which a process finds all.

    Fail where it has to be there. ``is_parallel``: it is one that has a folder of its own.
    """
    absent = missing(*libraries, is_parallel=is_parallel)
    if not absent:
        is_apart = is_parallel and PARALLEL.is_dir()
        return {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(PARALLEL)} if is_apart else {}
    made_by = "make .venv/.parallel" if is_parallel else "make .venv/.frameworks"
    reason = f"{', '.join(absent)} is not installed: {made_by}"
    if os.environ.get(REQUIRED) and not is_parallel:
        pytest.fail(reason)
    pytest.skip(reason)


def missing(*libraries: str, is_parallel: bool = False) -> list[str]:
    """Return which of these libraries are not installed."""
    places = [str(PARALLEL)] if is_parallel and PARALLEL.is_dir() else []
    return [
        name
        for name in libraries
        if find_spec(name) is None and PathFinder.find_spec(name, places) is None
    ]


def leave_group() -> None:
    """Destroy the default process group, once gloo's threads have let go of it."""
    import torch

    gloo_threads.let_go()
    torch.distributed.destroy_process_group()


def _tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_attention_heads=2, **sizes))


def trainer(folder: Path) -> None:
    """Save steps 2 and 4, and the finished model beside them."""
    import torch
    from transformers import Trainer, TrainingArguments

    tokens = torch.arange(8)
    data = [{"input_ids": tokens, "labels": tokens}] * 16
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    training = Trainer(model=_tiny_llama(), args=arguments, train_dataset=data)
    training.train()
    training.save_model()


def accelerate(folder: Path) -> None:
    """Save twice under automatic names."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    project = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        accelerator.save_state()


def lightning(folder: Path) -> None:
    """Save the best one at step 5, and the last one at step 15."""
    import lightning as pl
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, _index: int) -> Any:
            self.log("metric", float(self.global_step))  # grows: the first one is the best
            return (self.layer(batch[0]) ** 2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-3)

    saving = ModelCheckpoint(
        dirpath=str(folder), monitor="metric", mode="min", every_n_train_steps=5, save_last=True
    )
    training = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=15,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    training.fit(Module(), DataLoader(TensorDataset(torch.ones(64, 8)), batch_size=4))


def orbax(folder: Path) -> None:
    """Save steps 10 and 20 with an array and a JSON item."""
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder.absolute()) as manager:
        for step in (10, 20):
            state = ocp.args.StandardSave({"w": np.arange(8.0)})
            items = ocp.args.Composite(state=state, meta=ocp.args.JsonSave({"a": 1}))
            manager.save(step, args=items)
        manager.wait_until_finished()


def orbax_arrays(folder: Path) -> None:
    """Save arrays in each of Orbax's ways, and beside them what TensorStore reads in some of these."""
    import jax.numpy as jnp
    import numpy as np
    import orbax.checkpoint as ocp
    import tensorstore as ts

    noise = np.random.default_rng(0).normal(size=(300, 512)).astype("float32")
    state = {"w": jnp.asarray(noise), "h": jnp.ones((400, 7), jnp.bfloat16), "step": 7}
    path = (folder / "ocdbt").absolute()
    for step, options in (
        (10, {"use_ocdbt": True}),
        (30, {"use_ocdbt": False}),
        (40, {"use_ocdbt": True, "use_zarr3": True}),
    ):
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as saver:
            saver.save(path / str(step), state)
    with ocp.CheckpointManager(path) as manager:
        manager.save(20, args=ocp.args.StandardSave(state), force=True)
    deep = {"max_decoded_node_bytes": 2000, "max_inline_value_bytes": 20}  # a tree of three levels
    spec = {"driver": "ocdbt", "base": f"file://{folder}/deep/", "config": deep}
    store = ts.KvStore.open(spec).result()
    transaction = ts.Transaction()
    for number in range(3000):
        value = b"x" * (number % 50)
        store.with_transaction(transaction)[f"layers.{number // 100}/{number}"] = value
    transaction.commit_async().result()
    for name in ("ocdbt/10", "ocdbt/20/default", "deep"):
        dumped = json.dumps(_dump_ocdbt(folder / name))
        (folder / f"{name.replace('/', '-')}.json").write_text(dumped)


def _dump_ocdbt(folder: Path) -> dict[str, Any]:
    """Return of each key the length of its value, or file, offset and length, as TensorStore reads it."""
    import tensorstore as ts

    base = ts.KvStore.open({"driver": "file", "path": f"{folder}/"}).result()
    found: dict[str, Any] = {}
    pending = [(ts.ocdbt.dump(base).result()["versions"][-1]["root"]["location"], b"")]
    while pending:
        place, prefix = pending.pop()
        for entry in ts.ocdbt.dump(base, place).result()["entries"]:
            key = prefix + entry["key"]
            if "location" in entry:
                pending.append((entry["location"], prefix + entry["subtree_common_prefix"]))
            elif "inline_value" in entry:
                found[key.decode()] = len(entry["inline_value"])
            else:
                _kind, base_path, path, offset, size = entry["indirect_value"].split(":")
                found[key.decode()] = [base_path + path, int(offset), int(size)]
    return found


def pretrained(folder: Path) -> None:
    """Save steps 10 and 20 as shards with an index."""
    for step in (10, 20):
        _tiny_llama().save_pretrained(folder / f"step_{step}", max_shard_size="5KB")


def deepspeed(folder: Path) -> None:
    """Save steps 10 and 20 with ZeRO stage 2 on each of two ranks."""
    import deepspeed as ds
    import torch

    # Else DeepSpeed compiles an operator for shared memory when it starts, for minutes.
    ds.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    ds.init_distributed("gloo")
    model = torch.nn.Linear(8, 8)
    engine, *_rest = ds.initialize(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        },
    )
    for step in range(1, 21):
        engine.backward(engine(torch.ones(2, 8)).sum())
        engine.step()
        if step % 10 == 0:
            engine.save_checkpoint(folder, f"global_step{step}")
    leave_group()


def megatron(folder: Path) -> None:
    """Save iterations 10 and 20 of a tensor that two ranks share, without a GPU to wait for."""
    import torch
    from megatron.core import dist_checkpointing, parallel_state

    torch.cuda.current_device = lambda: "cpu"  # the device of a flag that the ranks share
    torch.cuda.synchronize = lambda *_device: None
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    rank = torch.distributed.get_rank()
    weight = dist_checkpointing.ShardedTensor.from_rank_offsets("w", torch.ones(8), (0, rank, 2))
    for iteration in (10, 20):
        path = folder / f"iter_{iteration:07}"
        path.mkdir(exist_ok=True)
        dist_checkpointing.save({"model": {"w": weight}, "iteration": iteration}, str(path))
        torch.distributed.barrier()
        (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    leave_group()


# In the order in which they are imported and run: whoever comes later has what was imported before.
IMPORTS: dict[str, tuple[str, ...]] = {
    "deepspeed": ("torch",),  # the rest in the child, which has a folder of its own on its path
    "megatron": ("torch",),
    "trainer": ("torch.distributed.checkpoint", "accelerate", "transformers.trainer"),
    "accelerate": ("accelerate",),
    "pretrained": ("transformers.models.llama.modeling_llama",),
    "lightning": (),
    "orbax": (),  # JAX has threads, and is not to be forked
}
RANKS_IMPORT = {"deepspeed": "deepspeed", "megatron": "megatron.core.dist_checkpointing"}


def save_each(names: Sequence[str], folder: Path) -> dict[str, int]:
    """Have each of them save to a folder of its name, and return the exit codes; output goes to NAME.log."""
    codes = {}
    for name in sorted(names, key=list(IMPORTS).index):
        (folder / name).mkdir()
        for module in IMPORTS[name]:
            importlib.import_module(module)
        log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT, 0o600)
        codes[name] = _wait(_fork(lambda name=name: _save(name, folder / name), log))
        os.close(log)
    return codes


def _save(name: str, folder: Path) -> None:
    if name not in RANKS_IMPORT:
        globals()[name](folder)
        return
    os.environ["DS_ACCELERATOR"] = "cpu"
    sys.path.insert(0, str(PARALLEL))
    importlib.import_module(RANKS_IMPORT[name])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(group, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")

    def run_rank(number: int) -> None:
        os.environ.update(RANK=str(number), LOCAL_RANK=str(number))
        globals()[name](folder)

    ranks = [_fork(lambda number=number: run_rank(number)) for number in range(2)]
    ends = [_wait(rank) for rank in ranks]
    assert ends == [0, 0], f"exit codes of the ranks: {ends}"


def _fork(run: Callable[[], None], log: int | None = None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if log is not None:
            os.dup2(log, 1)
            os.dup2(log, 2)
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    if "," in sys.argv[1]:
        print(json.dumps(save_each(sys.argv[1].strip(",").split(","), Path(sys.argv[2]))))
    else:
        globals()[sys.argv[1]](Path(sys.argv[2]))
