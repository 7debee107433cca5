"""Checkpoints as each framework lays them out, and what a finder says of them."""

import io
import json
import os
import pickle
import struct
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np

from recovery.checkpoints.finder import CheckpointFinder
from recovery.messages.candidates import CheckpointFormat, CheckpointSettings, CheckpointVerdict
from tests.support.ocdbt_files import write_ocdbt, zarray, zstd_frame

NOW = 2_000_000_000.0
Save = Callable[[Path, int], Path]


def make_torch_layout() -> bytes:
    """The layout of torch.save, for tests that run without torch."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        file.writestr("archive/data/0", bytes(range(256)) * 4)
        file.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def make_safetensors(tensors: int = 3, metadata: object = None) -> bytes:
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    for number in range(tensors):
        offsets = [number * 16, number * 16 + 16]
        header[f"t{number}"] = {"dtype": "F32", "shape": [2, 2], "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + os.urandom(16 * tensors)


def save_npz(path: Path, step: int | None = None) -> Path:
    arrays = {"w": np.arange(50.0)} | ({} if step is None else {"step": np.int64(step)})
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def date(path: Path, unix_s: float) -> Path:
    os.utime(path, (unix_s, unix_s))
    return path


def save_folder(path: Path, marker: str = ".metadata") -> Path:
    path.mkdir(parents=True)
    for rank in range(2):
        (path / f"__{rank}_0.distcp").write_bytes(make_torch_layout() * 3)
    (path / "config.json").write_text("{}")
    shards = [f"__{rank}_0.distcp" for rank in range(2)]
    (path / marker).write_bytes(pickle.dumps({"storage": shards}, protocol=4))
    return path


def find(folder: Path, **settings: object) -> list[CheckpointVerdict]:
    return CheckpointFinder(folder, CheckpointSettings(**settings)).find(NOW)  # type: ignore[arg-type]


def told(verdicts: list[CheckpointVerdict] | tuple[CheckpointVerdict, ...]) -> dict[str, str]:
    return {Path(verdict.candidate.path).name: verdict.reason for verdict in verdicts}


def valid_names(verdicts: list[CheckpointVerdict] | tuple[CheckpointVerdict, ...]) -> list[str]:
    return [Path(verdict.candidate.path).name for verdict in verdicts if verdict.is_valid]


def torch_file(content: object = None) -> bytes:
    """Return a file as torch.save lays it out, with this content beside one tensor's bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content or {}, protocol=2))
        archive.writestr("archive/data/0", bytes(range(256)))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def write(path: Path, content: bytes | str | dict[str, object] = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def save_dcp(path: Path) -> None:
    for rank in range(2):
        write(path / f"__{rank}_0.distcp", torch_file())
    shards = [f"__{rank}_0.distcp" for rank in range(2)]
    write(path / ".metadata", pickle.dumps({"storage": shards}, protocol=4))


def training_args(processes: int, **options: object) -> bytes:
    """Return the arguments of a run of the Trainer, as far as they are read."""
    state = Namespace(num_processes=processes)
    return torch_file(Namespace(save_on_each_node=False, distributed_state=state, **options))


def save_trainer(root: Path, step: int) -> Path:
    path = root / f"checkpoint-{step}"
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        write(path / name, make_safetensors())
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    write(path / "model.safetensors.index.json", {"weight_map": names})
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        write(path / name, torch_file())
    write(path / "training_args.bin", training_args(2))
    write(path / "config.json", "{}")
    write(path / "trainer_state.json", {"global_step": step, "log_history": []})
    return path


def save_accelerate(root: Path, step: int) -> Path:
    path = root / f"checkpoint_{step}"
    write(path / "model.safetensors", make_safetensors())
    for name in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl", "random_states_1.pkl"):
        write(path / name, torch_file({"step": 0}))
    write(path / "custom_checkpoint_0.pkl", torch_file())
    return path


def save_lightning(root: Path, step: int) -> Path:
    path = root / f"epoch=0-step={step}.ckpt"
    save_dcp(path)
    write(path / "meta.pt", torch_file({"global_step": step, "epoch": 0}))
    return path


def save_megatron(root: Path, step: int) -> Path:
    path = root / f"iter_{step:07}"
    args = Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    for tensor in range(2):
        for pipeline in range(2):
            rank = path / f"mp_rank_{tensor:02}_{pipeline:03}"
            write(rank / "model_optim_rng.pt", torch_file({"iteration": step, "args": args}))
            write(rank / "distrib_optim.pt", torch_file())
    write(root / "latest_checkpointed_iteration.txt", str(step))
    return path


def save_megatron_dist(root: Path, step: int) -> Path:
    path = root / f"iter_{step:07}"
    save_dcp(path)
    write(path / "common.pt", torch_file({"iteration": step}))
    write(path / "metadata.json", {"sharded_backend": "torch_dist", "common_backend": "torch"})
    return path


def save_deepspeed(root: Path, step: int) -> Path:
    path = root / f"global_step{step}"
    config = {"zero_optimization": {"stage": 2}}
    state = {"global_steps": step, "dp_world_size": 4, "mp_world_size": 1, "ds_config": config}
    write(path / "mp_rank_00_model_states.pt", torch_file(state))
    for rank in range(4):
        write(path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", torch_file())
    write(root / "latest", f"global_step{step}")
    return path


def save_nemo(root: Path, step: int) -> Path:
    path = root / f"model--val_loss=0.10-step={step}-last"
    save_dcp(path / "weights")
    write(path / "weights" / "common.pt", torch_file({"global_step": step}))
    write(path / "weights" / "metadata.json", {"sharded_backend": "torch_dist"})
    write(path / "context" / "model.yaml", "a: 1")
    return path


def save_orbax(root: Path, step: int) -> Path:
    path = root / str(step)
    write(path / "_CHECKPOINT_METADATA", {"commit_timestamp_nsecs": 5, "item_handlers": {}})
    write(path / "commit_success.txt", "ok")
    write(path / "state" / "commit_success.txt", "ok")
    write(path / "state" / "_METADATA", {"use_ocdbt": True})
    write_ocdbt(path / "state", {"w/.zarray": zarray([1], [1])}, {"w/0": zstd_frame(bytes(4))})
    return path


def save_nvrx(root: Path, step: int) -> Path:
    path = root / "session"
    for rank in range(2):
        write(path / str(rank) / f"iter_{step:07}_{rank}_local.pt", torch_file())
    return path


def save_dlrover(root: Path, step: int) -> Path:
    path = root / f"checkpoint-{step}"
    for rank in range(2):
        write(path / f"rank_{rank}.pt", torch_file())
    write(root / "dlrover_latest.txt", str(step))
    return path


def save_safetensors(root: Path, step: int) -> Path:
    path = root / f"step_{step}"
    write(path / "model.safetensors", make_safetensors())
    write(path / "optimizer.pt", torch_file())
    return path


def save_torch_folder(root: Path, step: int) -> Path:
    path = root / f"step_{step}"
    for name in (f"model_{step}.pt", "optimizer.pt"):
        write(path / name, torch_file())
    return path


def save_titan(root: Path, step: int) -> Path:
    save_dcp(root / f"step-{step}")
    return root / f"step-{step}"


FORMATS: dict[CheckpointFormat, Save] = {
    CheckpointFormat.DCP: save_titan,
    CheckpointFormat.TRAINER: save_trainer,
    CheckpointFormat.ACCELERATE: save_accelerate,
    CheckpointFormat.LIGHTNING: save_lightning,
    CheckpointFormat.MEGATRON: save_megatron,
    CheckpointFormat.MEGATRON_DIST: save_megatron_dist,
    CheckpointFormat.DEEPSPEED: save_deepspeed,
    CheckpointFormat.NEMO: save_nemo,
    CheckpointFormat.ORBAX: save_orbax,
    CheckpointFormat.NVRX_LOCAL: save_nvrx,
    CheckpointFormat.DLROVER: save_dlrover,
    CheckpointFormat.SAFETENSORS: save_safetensors,
    CheckpointFormat.TORCH: save_torch_folder,
}


def flip_last_member(path: Path) -> None:
    """Flip a bit of the last tensor that `make_torch_layout` has written."""
    data = bytearray(path.read_bytes())
    data[data.rindex(bytes(range(256))) + 100] ^= 1
    path.write_bytes(data)
