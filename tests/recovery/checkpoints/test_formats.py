"""Each framework's folder: recognised without an option, its step, and what it proves to be torn.

The trees are built in place after what the libraries write; `test_frameworks.py` has the real ones.
"""

import os
import pickle
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import pytest

from recovery.messages.candidates import CheckpointFormat, CheckpointVerdict, Hindrance
from tests.support.checkpoint_saves import (
    FORMATS,
    date,
    find,
    make_safetensors,
    save_accelerate,
    save_dcp,
    save_deepspeed,
    save_dlrover,
    save_megatron,
    save_nemo,
    save_nvrx,
    save_orbax,
    save_trainer,
    told,
    torch_file,
    training_args,
    valid_names,
    write,
)
from tests.support.torch_here import needs_torch

pytestmark = pytest.mark.process

# The content tells the step; elsewhere the name does, or (Accelerate) nothing.
EXACT = set(FORMATS) - {
    *(CheckpointFormat.DCP, CheckpointFormat.ACCELERATE, CheckpointFormat.DLROVER),
    *(CheckpointFormat.SAFETENSORS, CheckpointFormat.TORCH),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_is_recognised_without_an_option(tmp_path: Path, kind: CheckpointFormat) -> None:
    path = FORMATS[kind](tmp_path, 10)

    (verdict,) = find(tmp_path)

    candidate = verdict.candidate
    assert verdict.is_valid, verdict.reason
    assert (candidate.path, candidate.format) == (str(path), kind)
    assert candidate.step == (None if kind is CheckpointFormat.ACCELERATE else 10)
    assert candidate.is_step_exact == (kind in EXACT)
    assert candidate.size_bytes > 0


# What a save lacks when it was killed between two files, or when rotation has begun to delete it.
TORN: list[tuple[CheckpointFormat, str, str]] = [
    (CheckpointFormat.DCP, ".metadata", "marker file .metadata is missing"),
    (CheckpointFormat.DCP, "__1_0.distcp", "shard __1_0.distcp, which it names, is missing"),
    (CheckpointFormat.TRAINER, "trainer_state.json", "trainer_state.json is missing"),
    (CheckpointFormat.TRAINER, "optimizer.pt", "the optimizer's state (optimizer.pt) is missing"),
    (CheckpointFormat.TRAINER, "model-00002-of-00002.safetensors", "which it names, is missing"),
    (CheckpointFormat.TRAINER, "model.safetensors.index.json", "(*.index.json) is missing"),
    (CheckpointFormat.TRAINER, "rng_state_0.pth", "rng_state_0.pth is missing"),
    (
        CheckpointFormat.TRAINER,
        "rng_state_1.pth",
        "rng_state_1.pth is missing: training_args.bin says 2 processes",
    ),
    (CheckpointFormat.ACCELERATE, "model.safetensors", "(model.safetensors) are missing"),
    (CheckpointFormat.ACCELERATE, "random_states_0.pkl", "random_states_0.pkl is missing"),
    (CheckpointFormat.ACCELERATE, "custom_checkpoint_0.pkl", "which the save before has"),
    (CheckpointFormat.LIGHTNING, "meta.pt", "meta.pt, which is written last, is missing"),
    (CheckpointFormat.LIGHTNING, ".metadata", "marker file .metadata is missing"),
    (
        CheckpointFormat.MEGATRON,
        "mp_rank_01_001/model_optim_rng.pt",
        "model_optim_rng.pt is missing",
    ),
    (CheckpointFormat.MEGATRON, "mp_rank_01_000/distrib_optim.pt", "distrib_optim.pt is missing"),
    (CheckpointFormat.MEGATRON_DIST, "metadata.json", "metadata.json is missing"),
    (CheckpointFormat.MEGATRON_DIST, "common.pt", "common.pt is missing"),
    (CheckpointFormat.MEGATRON_DIST, "__0_0.distcp", "shard __0_0.distcp, which it names"),
    (CheckpointFormat.DEEPSPEED, "mp_rank_00_model_states.pt", "model_states.pt is missing"),
    (CheckpointFormat.DEEPSPEED, "zero_pp_rank_3_mp_rank_00_optim_states.pt", "zero_pp_rank_3"),
    (CheckpointFormat.NEMO, "weights/metadata.json", "weights/metadata.json is missing"),
    (CheckpointFormat.NEMO, "weights/.metadata", "weights/marker file .metadata is missing"),
    (CheckpointFormat.ORBAX, "_CHECKPOINT_METADATA", "_CHECKPOINT_METADATA is missing"),
    (CheckpointFormat.ORBAX, "commit_success.txt", "commit_success.txt is missing"),
    (CheckpointFormat.ORBAX, "state/commit_success.txt", "state/commit_success.txt is missing"),
    (CheckpointFormat.ORBAX, "state/manifest.ocdbt", "state/manifest.ocdbt is missing"),
    (CheckpointFormat.ORBAX, "state/d/0a", "state/d/0a, which manifest.ocdbt names, is missing"),
    (CheckpointFormat.ORBAX, "state/d/0b", "state/d/0b, which manifest.ocdbt names, is missing"),
    (CheckpointFormat.DLROVER, "rank_1.pt", "rank_1.pt is missing: the save before has one"),
    (CheckpointFormat.SAFETENSORS, "optimizer.pt", "optimizer.pt is missing: the save before"),
    (CheckpointFormat.TORCH, "model_20.pt", "model_20.pt is missing: the save before has one"),
]


@pytest.mark.parametrize(("kind", "name", "reason"), TORN)
def test_a_save_that_lacks_a_file_is_passed_over(
    tmp_path: Path, kind: CheckpointFormat, name: str, reason: str
) -> None:
    whole = FORMATS[kind](tmp_path, 10)
    torn = FORMATS[kind](tmp_path, 20)
    (torn / name).unlink()

    verdicts = {verdict.candidate.path: verdict for verdict in find(tmp_path)}

    assert verdicts[str(whole)].is_valid, verdicts[str(whole)].reason
    assert reason in verdicts[str(torn)].reason
    assert verdicts[str(torn)].hindrance is Hindrance.DAMAGED


@pytest.mark.parametrize("kind", sorted(set(FORMATS) - {CheckpointFormat.ORBAX}, key=str))
def test_any_file_of_torch_that_is_cut_off_or_flipped_is_found(
    tmp_path: Path, kind: CheckpointFormat
) -> None:
    saved = FORMATS[kind](tmp_path, 10)
    names = [file for file in saved.rglob("*") if file.is_file() and file.read_bytes()[:2] == b"PK"]
    assert names

    for file in names:
        whole = file.read_bytes()
        flipped = bytearray(whole)
        flipped[whole.index(bytes(range(256))) + 5] ^= 1
        for torn in (whole[:-9], b"", bytes(flipped)):
            file.write_bytes(torn)
            (verdict,) = find(tmp_path)
            assert not verdict.is_valid, f"{file} of {len(torn)} bytes"
            assert file.name in verdict.reason
        file.write_bytes(whole)

    assert find(tmp_path)[0].is_valid


def test_what_was_found_is_said_in_the_singular_where_it_is_one(tmp_path: Path) -> None:
    save_orbax(tmp_path, 10)

    (verdict,) = find(tmp_path)

    assert "with its commit time, 1 item, commit_success.txt of each" in verdict.reason


# Markers that lie


def test_a_trainer_state_of_another_step_is_no_proof(tmp_path: Path) -> None:
    path = save_trainer(tmp_path, 20)
    write(path / "trainer_state.json", {"global_step": 10})

    reason = told(find(tmp_path))["checkpoint-20"]

    assert reason == "trainer_state.json is of step 10, the folder of step 20"


def test_a_trainer_that_saves_the_model_alone_can_be_restored_and_says_so(tmp_path: Path) -> None:
    path = save_trainer(tmp_path, 10)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        (path / name).unlink()

    (verdict,) = find(tmp_path)

    assert verdict.is_valid
    assert "no optimizer (save_only_model)" in verdict.reason


def test_a_deepspeed_pointer_to_a_save_without_all_shards_is_not_followed(tmp_path: Path) -> None:
    save_deepspeed(tmp_path, 10)
    torn = save_deepspeed(tmp_path, 20)
    (torn / "zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["global_step10"]
    assert told(verdicts)["global_step20"] == (
        "zero_pp_rank_2_mp_rank_00_optim_states.pt is missing; latest points to it"
    )


def test_an_empty_tracker_of_megatron_hides_nothing(tmp_path: Path) -> None:
    save_megatron(tmp_path, 10)
    write(tmp_path / "latest_checkpointed_iteration.txt", "")

    assert valid_names(find(tmp_path)) == ["iter_0000010"]


def test_a_megatron_save_without_a_pipeline_rank_is_torn(tmp_path: Path) -> None:
    path = save_megatron(tmp_path, 10)
    for tensor in range(2):
        for file in (path / f"mp_rank_{tensor:02}_001").iterdir():
            file.unlink()
        (path / f"mp_rank_{tensor:02}_001").rmdir()

    assert told(find(tmp_path))[path.name].startswith("mp_rank_00_001 is missing")


def test_a_nemo_save_beside_its_unfinished_marker_is_torn(tmp_path: Path) -> None:
    save_nemo(tmp_path, 10)
    torn = save_nemo(tmp_path, 20)
    write(tmp_path / f"{torn.name}-unfinished")

    verdicts = find(tmp_path)

    assert told(verdicts)[torn.name].startswith("the save did not finish: ")
    assert [verdict.candidate.step for verdict in verdicts if verdict.is_valid] == [10]


@pytest.mark.parametrize("arguments", [torch_file({"another": "version"}), None])
def test_random_states_of_fewer_ranks_are_a_remark_where_no_count_is_known(
    tmp_path: Path, arguments: bytes | None
) -> None:
    save_trainer(tmp_path, 10)
    path = save_trainer(tmp_path, 20)
    (path / "rng_state_1.pth").unlink()
    if arguments is None:
        (path / "training_args.bin").unlink()
    else:
        write(path / "training_args.bin", arguments)

    verdict = find(tmp_path)[0]

    assert (verdict.is_valid, verdict.candidate.tag) == (True, "checkpoint-20")
    assert "rng states of 1 rank (the save before: of 2)" in verdict.reason


def test_a_folder_that_each_node_has_for_itself_holds_the_random_states_of_its_ranks(
    tmp_path: Path,
) -> None:
    path = save_trainer(tmp_path, 10)
    each = Namespace(save_on_each_node=True, distributed_state=Namespace(num_processes=16))
    write(path / "training_args.bin", torch_file(each))

    (verdict,) = find(tmp_path)

    assert verdict.is_valid, verdict.reason


@pytest.mark.parametrize("processes", [1, 2])
def test_a_save_of_one_process_has_one_random_state_without_a_number(
    tmp_path: Path, processes: int
) -> None:
    save_trainer(tmp_path, 10)
    path = save_trainer(tmp_path, 20)
    for rank in range(2):
        (path / f"rng_state_{rank}.pth").unlink()
    write(path / "rng_state.pth", torch_file())
    write(path / "training_args.bin", training_args(processes))

    verdict = find(tmp_path)[0]

    assert (verdict.is_valid, verdict.candidate.tag) == (True, "checkpoint-20")


def test_an_accelerate_save_with_fewer_random_states_is_remarked(tmp_path: Path) -> None:
    save_accelerate(tmp_path, 0)
    (save_accelerate(tmp_path, 1) / "random_states_1.pkl").unlink()

    verdict = find(tmp_path)[0]

    assert verdict.is_valid
    assert "random states of 1 rank (the save before: of 2)" in verdict.reason


def test_an_orbax_save_without_its_commit_time_or_its_final_name_is_torn(tmp_path: Path) -> None:
    save_orbax(tmp_path, 10)
    torn = save_orbax(tmp_path, 20)
    write(torn / "_CHECKPOINT_METADATA", {"commit_timestamp_nsecs": None})
    save_orbax(tmp_path, 30).rename(tmp_path / "30.orbax-checkpoint-tmp-1700")

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["10"]
    assert told(verdicts)["20"] == (
        "_CHECKPOINT_METADATA holds no commit time: the save did not finish"
    )


def test_a_dlrover_save_that_is_newer_than_the_tracker_was_not_committed(tmp_path: Path) -> None:
    save_dlrover(tmp_path, 10)
    save_dlrover(tmp_path, 20)
    write(tmp_path / "dlrover_latest.txt", "10")

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["checkpoint-10"]
    assert "not committed: dlrover_latest.txt is at 10" in told(verdicts)["checkpoint-20"]


def test_an_nvrx_session_is_at_the_newest_iteration_that_all_ranks_have(tmp_path: Path) -> None:
    save_nvrx(tmp_path, 10)
    write(tmp_path / "session" / "0" / "iter_0000020_0_local.pt", torch_file())

    (verdict,) = find(tmp_path / "session")

    assert verdict.is_valid
    assert verdict.candidate.step == 10


def parts(verdict: CheckpointVerdict) -> list[tuple[int, int, int]]:
    return [(part.step, part.rank, part.holder) for part in verdict.parts]


def test_an_nvrx_session_tells_which_parts_lie_here(tmp_path: Path) -> None:
    save_nvrx(tmp_path, 10)
    write(tmp_path / "session" / "0" / "iter_0000010_5_local.pt", torch_file())  # a replica

    (verdict,) = find(tmp_path)

    assert parts(verdict) == [(10, 0, 0), (10, 1, 1), (10, 5, 0)]


def test_an_nvrx_session_that_lacks_parts_tells_of_those_that_are_whole(tmp_path: Path) -> None:
    save_nvrx(tmp_path, 10)
    (tmp_path / "session" / "2").mkdir()  # of a rank that ran here once

    (verdict,) = find(tmp_path)
    assert not verdict.is_valid
    assert parts(verdict) == [(10, 0, 0), (10, 1, 1)]

    write(tmp_path / "session" / "1" / "iter_0000010_1_local.pt", torch_file()[:-40])
    (verdict,) = find(tmp_path)
    assert parts(verdict) == []
    assert "1/iter_0000010_1_local.pt" in verdict.reason


def test_an_nvrx_part_whose_save_was_killed_is_ignored(tmp_path: Path) -> None:
    save_nvrx(tmp_path, 10)
    write(tmp_path / "session" / "1" / "iter_0000020_1_local.dirty.pt", torch_file()[:50])

    (verdict,) = find(tmp_path)

    assert verdict.is_valid, verdict.reason
    assert verdict.candidate.step == 10


def save_rank_dcp(path: Path, *ranks: int) -> None:
    """Save as with use_collectives=False: each rank has a marker of its own."""
    for rank in ranks:
        write(path / f"__{rank}_0.distcp", torch_file())
        marker = pickle.dumps({"storage": [f"__{rank}_0.distcp"]}, protocol=4)
        write(path / f"__{rank}.metadata", marker)


def test_a_dcp_save_with_a_marker_of_each_rank_tells_which_parts_lie_here(tmp_path: Path) -> None:
    save_rank_dcp(tmp_path / "first" / "step-10", 0, 1)
    save_rank_dcp(tmp_path / "second" / "step-10", 2, 3)

    (first,) = find(tmp_path / "first")
    (second,) = find(tmp_path / "second")

    assert (first.is_valid, parts(first)) == (True, [(0, 0, 0), (0, 1, 1)])
    assert (second.is_valid, second.reason) == (False, "__0_0.distcp is missing")
    assert parts(second) == [(0, 2, 2), (0, 3, 3)]

    write(tmp_path / "second" / "step-10" / "__3_0.distcp", torch_file()[:-40])
    (torn,) = find(tmp_path / "second")
    assert parts(torn) == []
    assert "__3_0.distcp" in torn.reason


def test_a_dcp_shard_that_ends_before_its_last_item_is_torn(tmp_path: Path) -> None:
    needs_torch()
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.arange(999.0), "step": 41}
    dcp.save(state, checkpoint_id=tmp_path / "step_40", no_dist=True)
    assert find(tmp_path)[0].candidate.step == 41
    shard = tmp_path / "step_40" / "__0_0.distcp"
    size_bytes = shard.stat().st_size
    os.truncate(shard, size_bytes - 1)

    reason = told(find(tmp_path))["step_40"]

    assert reason == (
        f"__0_0.distcp: truncated: {size_bytes - 1} bytes, but .metadata says {size_bytes}"
    )


# Newest means newest


def test_last_ckpt_of_lightning_wins_over_the_best_one(tmp_path: Path) -> None:
    content = {"pytorch-lightning_version": "2.6.6", "epoch": 0, "global_step": 80}
    date(_written(tmp_path / "last.ckpt", torch_file(content)), 100)
    best = torch_file({**content, "global_step": 20})
    date(_written(tmp_path / "epoch=0-step=20.ckpt", best), 900)

    newest = find(tmp_path)[0].candidate

    assert (newest.tag, newest.step, newest.is_step_exact) == ("last.ckpt", 80, True)
    assert newest.format is CheckpointFormat.LIGHTNING


@pytest.mark.parametrize(
    ("content", "step"),
    [
        ({"step": 95}, 95),
        ({"global_step": 95, "epoch": 3}, 95),
        ({"iteration": 95, "model": OrderedDict(a=1)}, 95),
        ({"step": 5, "epoch": 3}, None),  # may count from the beginning of the epoch
        ({"step": -1}, None),
        ({"step": True}, None),
        ({"step": "95"}, None),
        ({"step": 1 << 70}, None),
        ([("step", 95)], None),
    ],
)
def test_a_step_in_a_file_of_torch_is_read_where_it_is_certain(
    tmp_path: Path, content: object, step: int | None
) -> None:
    write(tmp_path / "last.pt", torch_file(content))

    (verdict,) = find(tmp_path)

    assert (verdict.candidate.step, verdict.candidate.is_step_exact) == (step, step is not None)


def test_last_pt_wins_over_a_best_one_with_a_number(tmp_path: Path) -> None:
    date(_written(tmp_path / "best_step_10.pt", torch_file()), 100)
    date(_written(tmp_path / "last.pt", torch_file()), 900)

    assert find(tmp_path)[0].candidate.tag == "last.pt"


def test_saves_that_accelerate_numbers_have_an_order_and_no_step(tmp_path: Path) -> None:
    for number, unix_s in ((9, 300), (10, 100)):
        path = save_accelerate(tmp_path / "checkpoints", number)
        date(path, unix_s)

    verdicts = find(tmp_path)

    assert [verdict.candidate.tag for verdict in verdicts] == ["checkpoint_10", "checkpoint_9"]
    assert {verdict.candidate.step for verdict in verdicts} == {None}


# Two files of one save


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("model_step_{}.pt", "optimizer_step_{}.pt"),
        ("step_{}.pt", "step_{}_optim.pt"),
        ("ckpt-{}.safetensors", "opt-ckpt-{}.pt"),
    ],
)
def test_model_and_optimizer_of_one_step_are_one_candidate(
    tmp_path: Path, model: str, optimizer: str
) -> None:
    for step in (10, 20):
        _written(tmp_path / model.format(step), torch_file())
        _written(tmp_path / optimizer.format(step), torch_file())

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == [model.format(20), model.format(10)]
    assert len(verdicts) == 2
    assert verdicts[0].candidate.parts == (str(tmp_path / optimizer.format(20)),)


@pytest.mark.parametrize("missing", ["model_20.pt", "optimizer_20.pt"])
def test_a_save_that_was_killed_between_two_files_is_passed_over(
    tmp_path: Path, missing: str
) -> None:
    for name in ("model_10.pt", "optimizer_10.pt", "model_20.pt", "optimizer_20.pt"):
        _written(tmp_path / name, torch_file())
    (tmp_path / missing).unlink()

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["model_10.pt"]
    assert [verdict.hindrance for verdict in verdicts] == [Hindrance.DAMAGED, None]


def test_a_torn_optimizer_makes_its_model_no_checkpoint(tmp_path: Path) -> None:
    _written(tmp_path / "model.pt", torch_file())
    _written(tmp_path / "optimizer.pt", torch_file()[:-9])

    assert told(find(tmp_path)) == {
        "model.pt": "optimizer.pt: truncated: no zip directory at its end"
    }


def test_model_and_optimizer_of_two_steps_are_no_checkpoint(tmp_path: Path) -> None:
    _written(tmp_path / "model.pt", torch_file({"step": 20}))
    _written(tmp_path / "optimizer.pt", torch_file({"step": 10}))

    assert told(find(tmp_path)) == {"model.pt": "it is of step 20, optimizer.pt of step 10"}


# Nothing here, or something that can't be restored


def test_what_a_finished_run_of_trainer_leaves_is_no_checkpoint(tmp_path: Path) -> None:
    save_trainer(tmp_path, 60)
    write(tmp_path / "model.safetensors", make_safetensors())
    write(tmp_path / "training_args.bin", torch_file())
    write(tmp_path / "config.json", "{}")
    write(tmp_path / "tokenizer.json", "{}")

    assert [verdict.candidate.tag for verdict in find(tmp_path)] == ["checkpoint-60"]


def test_pretrained_weights_and_data_are_nothing(tmp_path: Path) -> None:
    write(tmp_path / "config.json", "{}")
    write(tmp_path / "model-00001-of-00002.safetensors", make_safetensors())
    write(tmp_path / "pytorch_model.bin", torch_file())
    write(tmp_path / "training_args.bin", torch_file())
    write(tmp_path / "train.bin", b"\x01\x02\x03" * 100)
    write(tmp_path / "train_data.npz", b"PK\x03\x04")
    write(tmp_path / "tokenizer.pt", torch_file())
    write(tmp_path / "runs" / "events.out.tfevents.1", b"x")

    assert find(tmp_path) == []


@pytest.mark.parametrize("model", ["model.pt", "model.safetensors"])
def test_weights_beside_a_configuration_and_an_optimizer_are_a_checkpoint(
    tmp_path: Path, model: str
) -> None:
    write(tmp_path / "config.json", "{}")
    write(tmp_path / model, make_safetensors())
    write(tmp_path / "optimizer.pt", torch_file())

    assert valid_names(find(tmp_path)) == [model]


def test_folders_that_look_like_checkpoints_are_told_apart_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-10").mkdir()
    write(tmp_path / "step_20" / "notes.txt", "x")
    write(tmp_path / "iter_0000030" / "common.pt", torch_file())

    verdicts = find(tmp_path)

    assert len(verdicts) == 3
    assert all(_is_damaged(verdict) for verdict in verdicts)


def _is_damaged(verdict: CheckpointVerdict) -> bool:
    return verdict.looks_like_checkpoint and verdict.hindrance is Hindrance.DAMAGED


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def save_verl(root: Path, step: int) -> Path:
    """Two ranks, each with files of its own in a folder, as verl's FSDP checkpoint manager names them."""
    path = root / f"global_step_{step}"
    for kind in ("model", "optim", "extra_state"):
        for rank in range(2):
            write(path / "actor" / f"{kind}_world_size_2_rank_{rank}.pt", torch_file())
    write(path / "actor/huggingface/config.json", "{}")
    write(path / "data.pt", torch_file())
    for file in (one for one in path.rglob("*") if one.is_file()):
        os.utime(file, (1e9 + step, 1e9 + step))
    return path


@pytest.mark.parametrize(
    "missing", ["optim_world_size_2_rank_1.pt", "model_world_size_2_rank_0.pt"]
)
def test_a_save_that_lacks_a_file_in_one_of_its_folders_is_passed_over(
    tmp_path: Path, missing: str
) -> None:
    save_verl(tmp_path, 10)
    newest = save_verl(tmp_path, 20)
    assert valid_names(find(tmp_path)) == ["global_step_20", "global_step_10"]

    (newest / "actor" / missing).unlink()

    verdicts = find(tmp_path)
    assert valid_names(verdicts) == ["global_step_10"]
    assert f"actor/{missing} is missing: the save before has one" in verdicts[0].reason


def save_parts(root: Path, step: int) -> Path:
    """OLMo's sharded saves: a folder for each of model, optimizer and trainer."""
    path = root / f"step{step}"
    for name in ("model", "optim", "train"):
        for rank in range(2):
            write(path / name / f"rank{rank}.pt", torch_file())
    for file in (one for one in path.rglob("*") if one.is_file()):
        os.utime(file, (1e9 + step, 1e9 + step))
    return path


def test_a_save_whose_optimizer_has_a_folder_of_its_own_is_whole_as_the_one_before(
    tmp_path: Path,
) -> None:
    save_parts(tmp_path, 10)
    newest = save_parts(tmp_path, 20)
    assert valid_names(find(tmp_path)) == ["step20", "step10"]

    (newest / "optim/rank1.pt").unlink()

    verdicts = find(tmp_path)
    assert valid_names(verdicts) == ["step10"]
    assert "optim/rank1.pt is missing: the save before has one" in verdicts[0].reason


def test_a_first_save_whose_optimizers_folder_is_empty_is_torn(tmp_path: Path) -> None:
    path = save_parts(tmp_path, 10)
    for file in (path / "optim").iterdir():
        file.unlink()

    assert told(find(tmp_path)) == {"step10": "optim/ holds no checkpoint file"}


def test_shards_in_a_folder_of_a_save_need_their_marker(tmp_path: Path) -> None:
    """OLMo-core: `model_and_optim/` is of DCP, `train/` has a file for each rank."""
    path = tmp_path / "step10"
    save_dcp(path / "model_and_optim")
    write(path / "train/rank0.pt", torch_file())
    assert valid_names(find(tmp_path)) == ["step10"]

    (path / "model_and_optim/.metadata").unlink()

    assert told(find(tmp_path)) == {"step10": "model_and_optim/: marker file .metadata is missing"}


def test_what_came_into_an_older_save_later_is_no_part_of_a_save(tmp_path: Path) -> None:
    older = save_verl(tmp_path, 10)
    newest = save_verl(tmp_path, 20)
    write(older / "actor/huggingface/model.safetensors", make_safetensors())  # an export
    write(older / "evaluation/samples.npz", b"")
    os.utime(older / "evaluation/samples.npz", (1e9 + 15, 1e9 + 15))

    assert find(tmp_path)[0].candidate.path == str(newest)
    assert find(tmp_path)[0].is_valid


def test_the_file_of_a_rank_is_missed_where_steps_are_as_low_as_ranks(tmp_path: Path) -> None:
    for step in (1, 2):
        for rank in range(4):
            write(tmp_path / f"step_{step}" / f"rank{rank}.pt", torch_file())
    (tmp_path / "step_2" / "rank1.pt").unlink()

    verdicts = find(tmp_path)

    assert valid_names(verdicts) == ["step_1"]
    assert verdicts[0].reason == "rank1.pt is missing: the save before has one"


def test_an_accelerate_save_has_the_weights_that_a_hook_saved(tmp_path: Path) -> None:
    """As the LoRA scripts of diffusers do."""
    for step in (500, 1000):
        save = save_accelerate(tmp_path, step).rename(tmp_path / f"checkpoint-{step}")
        (save / "model.safetensors").rename(save / "pytorch_lora_weights.safetensors")
        write(save / "scaler.pt", torch_file())

    assert valid_names(find(tmp_path)) == ["checkpoint-1000", "checkpoint-500"]
    (save / "pytorch_lora_weights.safetensors").unlink()
    verdicts = find(tmp_path)
    assert valid_names(verdicts) == ["checkpoint-500"]
    assert "the model's weights (model.safetensors) are missing" in verdicts[0].reason


def test_a_short_text_of_a_counter_is_part_of_its_folder_and_a_pointer_in_the_place_of_weights_is_not(
    tmp_path: Path,
) -> None:
    for name, text in (
        ("step_10", "7\n"),
        ("step_20", "version https://git-lfs.github.com/spec/v1\n"),
    ):
        write(tmp_path / name / "model.ckpt", torch_file({"weight": [1.0]}))
        write(tmp_path / name / "counter.ckpt", text.encode())

    assert valid_names(find(tmp_path)) == ["step_10"]


def test_a_lerobot_save_without_its_optimizer_is_torn(tmp_path: Path) -> None:
    for step in ("000010", "000020"):
        write(tmp_path / step / "pretrained_model" / "model.safetensors", make_safetensors())
        write(tmp_path / step / "training_state" / "training_step.json", b'{"step": 10}')
        if step == "000010":
            state = tmp_path / step / "training_state" / "optimizer_state.safetensors"
            write(state, make_safetensors())

    assert valid_names(find(tmp_path)) == ["000010"]
