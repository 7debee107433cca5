"""Folders as training sites have them: by public trackers and by what frameworks write beside, labelled before anybody ran the rules on them.

A chain says what a restart begins from, and what it begins from once that has been removed, and so on: second choices in their
order. "" ends a chain where nothing that is left is a checkpoint, or where a person has to decide.

SITES are three rounds of 54, 23 and 20; 45, 20 and 17 of these were right at first sight, each with the rules that the rounds before it
had mended. SIBLINGS were invented after each round, five or so for each kind that was wrong.
"""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.recovery.checkpoints.corpus import Files, at
from tests.recovery.checkpoints.corpus_layouts import (
    LARGE,
    NET,
    OTHER,
    RAW,
    SMALL,
    accelerate,
    deepspeed,
    fairseq,
    icefall,
    lightning,
    model,
    nanotron,
    optimizer,
    safe,
    state,
    text,
    torn,
    trainer,
    values,
    yolo,
)
from tests.support.checkpoint_contents import Tensor, adam, torch_file
from tests.support.ocdbt_files import zarray, zstd_frame


@dataclass(frozen=True)
class Site:
    name: str
    source: str
    chain: tuple[str | tuple[str, ...], ...]
    files: Files


def site(source: str, name: str, chain: Any, *files: Any) -> Site:
    """Return a folder; a list among the files is one of several."""
    return Site(f"{source}: {name}", source, chain, tuple(flat(files)))


def sibling(name: str, chain: Any, *files: Any) -> Site:
    return Site(f"sibling: {name}", "invented after a round", chain, tuple(flat(files)))


def flat(files: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for file in files:
        found += file if isinstance(file, list) else [file]
    return found


class Index:
    """What names an item in the metadata of PyTorch's DCP."""

    def __init__(self, fqn: str) -> None:
        self.fqn = fqn


class Info:
    """Where an item lies."""

    def __init__(self, name: str) -> None:
        self.relative_path, self.offset, self.length = name, 0, 4


class Metadata:
    def __init__(self, items: dict[str, str]) -> None:
        self.storage_data = {Index(fqn): Info(name) for fqn, name in items.items()}


# fmt: off
def dcp(b: str, ranks: int = 2, marker: bool = True) -> Any:
    shards = [f"__{r}_0.distcp" for r in range(ranks)]
    return [*((f"{b}/{s}", values(a=1)) for s in shards), *([(f"{b}/.metadata", pickle.dumps({"storage": shards}, protocol=4))] if marker else [])]


def mcore(b: str, n: int, common: bool = True, marker: bool = True, *more: Any) -> Any:
    found = dcp(b, 2, marker)
    found += [(f"{b}/common.pt", values(iteration=n))] if common else []
    found += [(f"{b}/metadata.json", text(sharded_backend="torch_dist", common_backend="torch"))] if marker else []
    return [*found, *inn(b, *more)]


def with_metadata(files: Any, **items: str) -> Any:
    """The files, DCP's metadata with the names of these items."""
    return [(f[0], pickle.dumps(Metadata({k.replace("__", "/"): v for k, v in items.items()}), protocol=4)) if f[0].endswith("/.metadata") else f for f in files]


def new_mcore(n: int, b: str = "iter_{:07d}") -> Any:
    return with_metadata(mcore(b.format(n), n, False), decoder="__0_0.distcp", common_state__shard_0_1="__1_0.distcp")


def orbax(b: str, item: str = "items", done: bool = True) -> Any:
    meta = text(commit_timestamp_nsecs=5 if done else None, item_handlers={})
    return [(f"{b}/{item}/_METADATA", text(use_ocdbt=False)), (f"{b}/{item}/w/.zarray", zarray([1], [1])), (f"{b}/{item}/w/0", zstd_frame(bytes(4))), (f"{b}/_CHECKPOINT_METADATA", meta)]


def inn(b: str, *k: Any) -> Any:
    return [(f"{b}/{n}", c) for n, c in k]


def veomni(n: int, marker: bool = True) -> Any:
    return [*dcp(f'global_step_{n}/model', 2, marker), *dcp(f'global_step_{n}/optimizer', 2, marker), (f'global_step_{n}/extra_state/extra_state_rank_0.pt', values(a=1)), (f'global_step_{n}/extra_state/extra_state_rank_1.pt', values(a=1))]


def speculators(n: int, whole: bool = True) -> Any:
    return inn(str(n), ('config.json', b'{}'), ('model.safetensors', safe() if whole else safe()[:300]), *([('optimizer_state_dict.pt', optimizer()), ('scheduler_state_dict.pt', values(a=1)), ('training_state.json', text(epoch=n, local_step=0, global_step=n * 90))] if whole else []))


def fsdp(n: int, optim: bool = True) -> Any:
    return [*dcp(f'checkpoint-{n}/pytorch_model_fsdp_0'), *dcp(f'checkpoint-{n}/optimizer_0', 2, optim), *inn(f'checkpoint-{n}', ('scheduler.pt', values(a=1)), *((f'rng_state_{r}.pth', values(a=1)) for r in (0, 1)), ('trainer_state.json', text(global_step=n)))]


def prime_rl(n: int, orch: bool = True) -> Any:
    return [*dcp(f'checkpoints/step_{n}/trainer'), *([(f'checkpoints/step_{n}/orchestrator/progress.pt', values(step=n))] if orch else [])]


def rlinf(n: int, data: bool = True) -> Any:
    return [*dcp(f'global_step_{n}/actor/dcp_checkpoint'), (f'global_step_{n}/actor/model_state_dict/full_weights.pt', model()), *dcp(f'global_step_{n}/critic/dcp_checkpoint'), *([(f'global_step_{n}/data/data.pt', values(a=1))] if data else [])]


def slime(n: int) -> Any:
    return [*dcp(f'iter_{n:07d}/model'), *dcp(f'iter_{n:07d}/optimizer'), *inn(f'iter_{n:07d}', ('rng.pt', values(a=1)), ('meta.json', text(iteration=n)))]


def olmo_core(n: int, marker: bool = True) -> Any:
    return [*dcp(f'step{n}/model_and_optim', 2, marker), *inn(f'step{n}', ('train/rank0.pt', values(a=1)), ('train/rank1.pt', values(a=1)), *([('.metadata.json', b'{}'), ('config.json', b'{}'), ('data_paths.txt', b'x')] if marker else []))]


def paddle(n: int, k: int = 2) -> Any:
    return inn(f'checkpoint-{n}', *((f'model-0000{i}-of-00002.safetensors', safe()) for i in (1, 2)), ('model.safetensors.index.json', text(weight_map={'a': 'model-00001-of-00002.safetensors', 'b': 'model-00002-of-00002.safetensors'})), *((f'optimizer-0000{i}-of-00002.safetensors', safe()) for i in range(1, k + 1)), ('optimizer.safetensors.index.json', text(weight_map={'a': 'optimizer-00001-of-00002.safetensors', 'b': 'optimizer-00002-of-00002.safetensors'})), ('rng_state_2.pth', values(a=1)), ('trainer_state.json', text(global_step=n)), ('config.json', b'{}'), *((f'saved_signal_{i - 1}', b'1') for i in range(1, k + 1)))


def rl_step(n: int, d: str = '') -> Any:
    return [*dcp(f'{d}step_{n}/trainer'), (f'{d}step_{n}/orchestrator/progress.pt', values(step=n))]


def exported(b: str) -> Any:
    return inn(b, ('model.safetensors', safe()), ('config.json', b'{}'))


def step_folder(n: int, *m: str) -> Any:
    return [*inn(f'step_{n}', ('model.pt', model()), ('optimizer.pt', optimizer())), *((f'step_{n}/{k}', b'ok') for k in m)]


def rank_files(n: int, rs: Any = (0, 1, 2)) -> Any:
    return [(f'step_{n}_rank_{r}.pt', state(step=n)) for r in rs]


def lightning_zero(b: str, n: int, ranks: Any) -> Any:
    return [(f'{b}/checkpoint/mp_rank_00_model_states.pt', torch_file({'module': NET, 'global_step': n, 'dp_world_size': 2, 'mp_world_size': 1, 'pytorch-lightning_version': '2.1'})), *((f'{b}/checkpoint/bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt', torch_file({'optimizer_state_dict': adam(NET)})) for r in ranks)]


def in_bucket(n: int, mark: bool) -> Any:
    return [*orbax(str(n)), *([(f'{n}/commit_success.txt', b'x'), (f'{n}/items/commit_success.txt', b'x')] if mark else [])]


def cosmos(n: int, whole: bool = True) -> Any:
    return [f for k in ('model', 'optim', 'scheduler', 'trainer') for f in dcp(f'checkpoints/iter_{n:09d}/{k}', 2, whole or k != 'trainer')]


def everydream(b: str) -> Any:
    return inn(b, ('model_index.json', b'{}'), ('unet/diffusion_pytorch_model.safetensors', safe(LARGE)), ('unet/config.json', b'{}'), ('text_encoder/model.safetensors', safe()), ('optimizer.pt', optimizer()))


def lm_engine(n: int, end: Any = True) -> Any:
    return [*dcp(f'global_step{n}/model'), *dcp(f'global_step{n}/optimizer', 2, end), (f'global_step{n}/lr_scheduler.pt', values(a=1)), (f'global_step{n}/rng_state/rng_state-0.pt', values(a=1)), *([(f'global_step{n}/metadata.json', b'{}')] if end else [])]


def vissl(p: int, n: int) -> Any:
    return torch_file({'phase': p, 'iteration': n, 'classy_state_dict': {'base_model': NET, 'optimizer': adam(NET)}})


def model_folder(b: str) -> Any:
    return inn(b, ('model.pt', model()), ('optimizer.pt', optimizer()))


def apart(n: int, o: bool = True) -> Any:
    return [(f'epoch_{n}.pt', model()), *([(f'optimizer_{n}.pt', optimizer())] if o else [])]


def nemo2(b: str) -> Any:
    return [(f'{b}/weights/' + f[0].removeprefix('x/'), f[1]) for f in mcore('x', 1)] + [(f'{b}/context/model.yaml', b'a: 1')]


def farm(e: int, s: int) -> Any:
    return inn(f'epoch_{e}_step_{s}', ('language_model.bin', model()), ('prediction_head_0.bin', model(SMALL)), ('language_model_config.json', b'{}'), ('trainer_checkpoint', torch_file({'optimizer': adam(NET), 'from_epoch': e})))


def layers(n: int, ls: Any, ms: Any = (0,)) -> Any:
    return [*((f'global_step{n}/layer_{i:02d}-model_{m:02d}-model_states.pt', model()) for i in ls for m in ms), *deepspeed('', n)]


def verl_megatron(n: int, end: bool = True) -> Any:
    return [*mcore(f'global_step_{n}/actor/dist_ckpt', n, True, end), (f'global_step_{n}/actor/huggingface/config.json', b'{}'), *([(f'global_step_{n}/data.pt', values(a=1))] if end else [])]


def diffusers(n: int, whole: bool = True) -> Any:
    models = [f for k in ('unet_ema', 'unet') for f in inn(f'checkpoint-{n}/{k}', ('diffusion_pytorch_model.safetensors', safe()), ('config.json', b'{}'))]
    return [*models, *(inn(f'checkpoint-{n}', ('optimizer.bin', optimizer()), ('scheduler.bin', values(a=1)), ('random_states_0.pkl', b'\x80\x02}.')) if whole else [])]


def automodel(b: str, end: int = 4) -> Any:
    parts: list[Any] = [dcp(f'{b}/model'), dcp(f'{b}/optim', 2, end > 1)]
    parts.append([*((f'{b}/rng/rng_rank_{r}.pt', values(a=1)) for r in (0, 1)), *((f'{b}/dataloader/dataloader_dp_rank_{r}.pt', values(a=1)) for r in (0, 1))])
    parts.append(inn(b, ('step_scheduler.pt', values(step=1)), ('config.yaml', b'a: 1'), ('losses.json', b'{}')))
    return flat(parts[:max(end, 2)])


SHARDS: Final = [(p, s) for p in (0, 1) for s in (0, 1)]
TRAIN_STATE: Final = values(step=200, consumed_train_samples=6400)
SITES: Final = (
    site('facebookresearch/metaseq#53', 'a temporary shard, empty SHARDS of the last', ('checkpoint_22_22500-model_part-0-shard0.pt', ''), *((f'checkpoint_22_22500-model_part-{p}-shard{s}.pt', state(a=1)) for p, s in SHARDS), *((f'checkpoint_23_22750-model_part-{p}-shard{s}.pt', state(a=1)) for p, s in SHARDS[:3]), ('checkpoint_23_22750-model_part-1-shard1.pt.tmp', torn(state())), *((f'checkpoint_last-model_part-{p}-shard{s}.pt', b'' if s == 0 else state(a=1)) for p, s in SHARDS)),
    site('facebookresearch/metaseq#494', 'one number and parts of shards', ('checkpoint_200-model_part-0-shard0.pt', 'checkpoint_100-model_part-0-shard0.pt', ''), *((f'checkpoint_{n}-model_part-{p}-shard{s}.pt', state(a=1)) for n in (100, 200) for p, s in SHARDS), ('063c834d-9c0d-4b5e-bee7-b17691981649.sh', b'#!/bin/bash')),
    site('ByteDance-Seed/VeOmni#106', 'model and optimizer in DCP, the newest without .metadata', ('global_step_100', ''), veomni(100), veomni(200, False)),
    site('ByteDance-Seed/VeOmni#1181', 'lr_scheduler first, DCP in the step folder', ('global_step_100', ''), ('global_step_100/lr_scheduler.pt', values(a=1)), dcp('global_step_100'), inn('global_step_100/hf_ckpt', ('model.safetensors', safe()), ('config.json', b'{}')), ('global_step_200/lr_scheduler.pt', values(a=1)), dcp('global_step_200', 2, False)),
    site('NVIDIA-NeMo/Speech#14837', 'context folders that rotation left, one whole file', ('checkpoint-step=19400-last.ckpt', ''), *(x for n in (1950, 10000) for x in inn(f'checkpoint-step={n}-last/context', ('io.json', b'{}'), ('model.yaml', b'a: 1'))), ('checkpoint-step=19400-last.ckpt', lightning(19400, 1)), inn('checkpoint-step=19400-last/context', ('io.json', b'{}'), ('model.yaml', b'a: 1'))),
    site('NVIDIA-NeMo/Speech#7707', 'a folder of each rank, steps below', ('',), *((f'mp_rank_0{r}/step=0{n}.ckpt', lightning(n, 0)) for n in (2250, 2500) for r in (0, 1))),
    site('NVIDIA-NeMo/Speech#7952', 'the marker of an unfinished file', ('gpt--val_loss=2.31-step=1000-last.ckpt', ''), ('gpt--val_loss=2.31-step=1000-last.ckpt', lightning(1000, 0)), ('gpt--val_loss=2.11-step=2000-last-unfinished', b''), ('gpt--val_loss=2.11-step=2000-last.ckpt', lightning(2000, 0))),
    site('NVIDIA-NeMo/Speech#16112', 'EMA beside each, and the export', ('gpt--val_loss=2.11-step=2000-last.ckpt', ('gpt--val_loss=2.11-step=2000-last-EMA.ckpt', 'gpt--val_loss=2.31-step=1000.ckpt')), *(x for n, v, end in ((1000, '2.31', ''), (2000, '2.11', '-last')) for x in ((f'gpt--val_loss={v}-step={n}{end}.ckpt', lightning(n, 0)), (f'gpt--val_loss={v}-step={n}{end}-EMA.ckpt', lightning(n, 0)))), ('gpt.nemo', b'ustar' * 300)),
    site('NVIDIA-NeMo/Automodel#3261', 'interrupted in the optimizer, LATEST and LOWEST_VAL', ('epoch_0_step_20', 'epoch_0_step_10', ''), automodel('epoch_0_step_10'), automodel('epoch_0_step_20'), ('LATEST -> epoch_0_step_20', b''), ('LOWEST_VAL -> epoch_0_step_10', b''), automodel('epoch_0_step_30', 1)),
    site('NVIDIA-NeMo/Automodel#3261', 'interrupted before the dataloader', ('epoch_0_step_20',), automodel('epoch_0_step_20'), ('LATEST -> epoch_0_step_20', b''), automodel('epoch_0_step_30', 2)),
    site('vllm-project/speculators#739', 'epochs as numbers, the newest truncated, links for people', ('1', '0', ''), speculators(0), ('epoch0_end -> 0', b''), speculators(1), ('epoch1_end -> 1', b''), ('checkpoint_best -> 1', b''), speculators(2, False), ('epoch2_step500 -> 2', b'')),
    site('pytorch/torchtitan#4197', 'a staging folder that was not renamed', ('step-200', 'step-100', ''), dcp('step-100'), dcp('step-200'), dcp('tmp-step-300')),
    site('pytorch/torchtitan, its notes on debugging', 'the dump folder with snapshots and traces', ('checkpoint/step-500', ''), dcp('checkpoint/step-500'), ('memory_snapshot/iteration_600_exit/rank0_memory_snapshot.pickle', RAW), ('profile_traces/iteration_1000/rank0_trace.json', b'{}'), ('tb/20260101-1000/events.out.tfevents.1', b'x'), ('comm_traces/rank_0', RAW)),
    site('pytorch/torchtitan, its notes on debugging', 'snapshots and traces in the checkpoint folder', ('step-500', ''), dcp('step-500'), ('iteration_600_exit/rank0_memory_snapshot.pickle', RAW), ('iteration_1000/rank0_trace.json', b'{}'), ('iteration_1000/rank1_trace.json.gz', b'\x1f\x8b')),
    site('NVIDIA-NeMo/Megatron-Bridge#5964', 'the folder of an asynchronous save, empty', ('iter_0000010', ''), mcore('iter_0000010', 10), ('latest_checkpointed_iteration.txt', b'10'), ('iter_0000020/run_config.yaml', b'a: 1')),
    site('NVIDIA/Megatron-LM#5160', 'no common.pt: its state lies in the shards', ('iter_0000200', 'iter_0000100', ''), *(new_mcore(n) for n in (100, 200)), ('latest_checkpointed_iteration.txt', b'200')),
    site('NVIDIA-NeMo/Megatron-Bridge#829', 'latest_train_state.pt at the root', ('iter_0000200', 'iter_0000100', ''), *(x for n in (100, 200) for x in (*mcore(f'iter_{n:07d}', n, True, True, ('train_state.pt', TRAIN_STATE), ('run_config.yaml', b'a: 1'), ('tokenizer/tokenizer.json', b'{}')), ('latest_train_state.pt', TRAIN_STATE), ('latest_checkpointed_iteration.txt', str(n).encode())))),
    site('NVIDIA/Megatron-LM --non-persistent-save-interval', 'a newer one that is not kept', (('iter_0000200', 'non_persistent/iter_0000250'),), mcore('iter_0000200', 200), ('latest_checkpointed_iteration.txt', b'200'), mcore('non_persistent/iter_0000250', 250), ('non_persistent/latest_checkpointed_iteration.txt', b'250')),
    site('modelscope/ms-swift megatron', 'iter in checkpoint-N, with the safetensors of the model', (('checkpoint-20', 'checkpoint-20/iter_0000020', ''),), *(x for n in (10, 20) for x in (*mcore(f'checkpoint-{n}/iter_{n:07d}', n), *inn(f'checkpoint-{n}', ('latest_checkpointed_iteration.txt', str(n).encode()), ('args.json', b'{}'), ('model.safetensors', safe()), ('config.json', b'{}')))), ('logging.jsonl', b'{}'), ('images/train_loss.png', b'x')),
    site('modelscope/ms-swift', 'a folder of each run, above the runs', ('',), *(x for v, n in (('v0-20260101-120000', 100), ('v1-20260102-090000', 50)) for x in (*trainer(f'{v}/checkpoint-{n}', n), (f'{v}/logging.jsonl', b'{}'), (f'{v}/images/train_loss.png', b'x')))),
    site('haotian-liu/LLaVA#1566', 'a finished LoRA run: weights that no checkpoint has', ('checkpoint-200', 'checkpoint-100', ''), *(x for n in (100, 200) for x in (*trainer(f'checkpoint-{n}', n, lora=True), *deepspeed(f'checkpoint-{n}/', n), (f'checkpoint-{n}/latest', f'global_step{n}'.encode()))), ('adapter_config.json', b'{}'), ('adapter_model.safetensors', safe(SMALL)), ('config.json', b'{}'), ('non_lora_trainables.bin', model(OTHER)), ('trainer_state.json', text(global_step=210))),
    site('haotian-liu/LLaVA#852', 'pretraining: the projector alone', ('',), *(x for n in (24000, 48000) for x in inn(f'checkpoint-{n}', ('mm_projector.bin', model(OTHER)), ('config.json', b'{}'))), ('mm_projector.bin', model(OTHER)), ('config.json', b'{}'), ('trainer_state.json', text(global_step=50000))),
    site('pacman100/LLM-Workshop#25', 'FSDP, an optimizer without .metadata', ('checkpoint-100', ''), fsdp(100), fsdp(200, False)),
    site('deepspeedai/DeepSpeed#6691', 'a universal copy of the newest', ('global_step200', ('global_step200_universal', 'global_step100')), deepspeed('', 100), deepspeed('', 200), ('latest', b'global_step200'), ('zero_to_fp32.py', b'#'), inn('global_step200_universal', ('mp_rank_00_model_states.pt', torch_file({'module': NET, 'global_steps': 200, 'dp_world_size': 2, 'mp_world_size': 1})), *((f'zero/layers.0.weight/{k}.pt', torch_file({'param': Tensor((16, 16))})) for k in ('fp32', 'exp_avg', 'exp_avg_sq', 'step')), ('zero/optimizer_state.pt', values(a=1))), ('latest_universal', b'global_step200_universal')),
    site('DeepSpeed', 'the named one is half deleted', ('global_step200', 'global_step100'), deepspeed('', 100), deepspeed('', 200), deepspeed('', 300)[:1], ('latest', b'global_step300')),
    site('aws/sagemaker-python-sdk', 'marks of the upload beside the files', ('epoch_2.pt', 'epoch_1.pt', ''), ('epoch_1.pt', state(epoch=1)), ('epoch_1.pt.sagemaker-uploaded', b''), ('epoch_2.pt', state(epoch=2)), ('epoch_2.pt.sagemaker-uploading', b'')),
    site('aws s3 cp, rsync, rclone', 'copies under way, of three programs', ('step_200.pt', 'step_100.pt', ''), ('step_100.pt', state(step=100)), ('step_200.pt', state(step=200)), ('step_300.pt.6eF3c1D2', torn(state(step=300))), ('.step_400.pt.X7Gk2a', torn(state(step=400))), ('step_500.pt.1a2b3c4d.partial', torn(state(step=500))), ('.nfs000000001a2b3c0000007d', state(step=50))),
    site('PrimeIntellect-ai/prime-rl#1825', 'no orchestrator in the newest, weights for inference', (('checkpoints/step_50', ''), ''), prime_rl(50), ('checkpoints/step_50/STABLE', b''), inn('weights/step_100', ('model.safetensors', safe()), ('config.json', b'{}'), ('STABLE', b'')), prime_rl(100, False)),
    site('RLinf/RLinf#1469', 'no data/data.pt in the newest', (('global_step_10', ''), ''), rlinf(10), rlinf(20, False)),
    site('THUDM/slime#677', 'FSDP with Megatron names', ('iter_0000006', 'iter_0000004', ''), slime(4), slime(6), ('latest_checkpointed_iteration.txt', b'6')),
    site('OpenRLHF/OpenRLHF', 'actor and critic in folders of their own', ('',), *(x for w in ('_actor', '_critic') for x in (*deepspeed(f'{w}/', 20), *deepspeed(f'{w}/', 40), (f'{w}/latest', b'global_step40')))),
    site('InternLM/xtuner', 'iter_N.pth is a folder of DeepSpeed', ('iter_1000.pth', 'iter_500.pth', ''), *(x for n in (500, 1000) for x in deepspeed('', n, name=f'iter_{n}.pth')), ('last_checkpoint', b'/work/iter_1000.pth'), ('zero_to_fp32.py', b'#'), ('20260101_120000/vis_data/scalars.json', b'{}')),
    site('mosaicml/llm-foundry', 'sharded, links in text files, exports', ('ep0-ba200', 'ep0-ba100', ''), dcp('ep0-ba100'), dcp('ep0-ba200'), ('latest-rank0.pt.symlink', b'ep0-ba200'), ('latest -> ep0-ba200', b''), inn('huggingface/ba200', ('model.safetensors', safe()), ('config.json', b'{}')), ('torch_traces/rank0.10.memory_snapshot.pickle', RAW), dcp('ep0-ba300', 2, False)),
    site('allenai/OLMo-core', 'the newest without its metadata', ('step1000', 'step0', ''), olmo_core(0), olmo_core(1000), olmo_core(2000, False)),
    site('marin-community/levanter', 'arrays of TensorStore with metadata.json', (('step-2000', ''),), *(x for n in (1000, 2000) for x in inn(f'step-{n}', ('manifest.ocdbt', b'\x0c\xdb'), ('d/0a1b', b'x'), ('metadata.json', text(step=n))))),
    site('young-geng/EasyLM', 'streams of msgpack', ('',), *(x for n in (1000, 2000) for x in ((f'streaming_train_state_{n}', b'\x82\xa5' + bytes(300)), (f'streaming_params_{n}', b'\x82\xa5' + bytes(100)), (f'dataset_{n}.pkl', RAW), (f'metadata_{n}.pkl', RAW)))),
    site('google-research/t5x', 'a temporary folder with a time', (('checkpoint_1000', ''),), inn('checkpoint_1000', ('checkpoint', b'\x82' + bytes(100)), ('target.w/.zarray', zarray([1], [1])), ('target.w/0', zstd_frame(bytes(4)))), inn('checkpoint_2000.tmp-1703334121', ('checkpoint', b'\x82' + bytes(100)), ('target.w/.zarray', zarray([1], [1])))),
    site('AI-Hypercomputer/maxtext', 'a save under way, another not committed', ('checkpoints/1000', ''), orbax('checkpoints/1000'), orbax('checkpoints/2000.orbax-checkpoint-tmp-1703334121930256'), orbax('checkpoints/3000', done=False), ('tensorboard/events.out.tfevents.1', b'x'), ('metrics/metrics_step_003000.txt', b'x')),
    site('ultralytics, disk full', 'last without a byte', (('weights/best.pt', 'weights/epoch10.pt'), ('weights/best.pt', 'weights/epoch10.pt'), ''), ('weights/epoch10.pt', yolo(10)), ('weights/best.pt', yolo(14)), ('weights/last.pt', b''), ('results.csv', b'epoch\n'), ('args.yaml', b'a: 1')),
    site('facebookresearch/detectron2', 'killed in the save, the pointer at the one before', ('model_0004999.pth', ''), ('model_0004999.pth', torch_file({'model': NET, 'optimizer': adam(NET), 'iteration': 4999})), ('last_checkpoint', b'model_0004999.pth'), ('model_0009999.pth', torn(torch_file({'model': NET, 'optimizer': adam(NET), 'iteration': 9999}))), ('inference/instances_predictions.pth', torch_file([{'image_id': 1}])), ('metrics.json', b'{}')),
    site('facebookresearch/fairseq', 'shards of the last of two updates', ('checkpoint_1_1000-shard0.pt', 'checkpoint_1_500-shard0.pt', ''), *((f'checkpoint_1_{n}-shard{s}.pt', fairseq(n, 1)) for n in (500, 1000) for s in (0, 1)), ('checkpoint_last-shard0.pt', fairseq(1000, 1)), at('checkpoint_last-shard1.pt', fairseq(500, 1), 2)),
    site('espnet/espnet', 'the state torn, models and links whole', (('20epoch.pth', ''),), *((f'{n}epoch.pth', model()) for n in (18, 19, 20)), ('latest.pth -> 20epoch.pth', b''), ('valid.acc.best.pth -> 18epoch.pth', b''), ('checkpoint.pth', torn(torch_file({'model': NET, 'optimizers': [adam(NET)]}))), ('images/acc.png', b'x')),
    site('k2-fsa/icefall', 'bad models and exports beside', ('checkpoint-12000.pt', ('best-valid-loss.pt', 'epoch-3.pt')), ('epoch-3.pt', icefall(11000)), *((f'checkpoint-{n}.pt', icefall(n)) for n in (8000, 12000)), ('best-valid-loss.pt', icefall(11000)), ('bad-model-0.pt', icefall(12500)), ('jit_script.pt', model()), ('pretrained.pt', model(key='model')), ('epoch-3-avg-2.pt', model(key='model'))),
    site('huggingface/nanotron', 'the newest lacks the optimizer of a rank', ('100',), nanotron(100), [f for f in nanotron(200) if 'tp-1-of-2' not in f[0] and 'metadata' not in f[0]], ('latest.txt', b'100')),
    site('unslothai/unsloth-zoo#782', 'a new run beside the high number of an old one', ('checkpoint-20',), *(at(n, c, m) for m, k in ((1, 1000), (500, 10), (510, 20)) for n, c in trainer(f'checkpoint-{k}', k))),
    site('trl and axolotl', 'a merged model in a folder with the number', ('checkpoint-200', 'checkpoint-100', ''), *(x for n in (100, 200) for x in trainer(f'checkpoint-{n}', n, lora=True)), inn('checkpoint-200-merged', ('model.safetensors', safe()), ('config.json', b'{}'), ('generation_config.json', b'{}'), ('tokenizer.json', b'{}'))),
    site('aws-neuron/neuronx-distributed', 'done in each, the newest without', ('step_100',), *(x for n in (100, 200) for x in inn(f'step_{n}', *((f'{k}/dp_rank_00_tp_rank_0{t}_pp_rank_00.pt', c) for k, c in (('model', model()), ('optim', optimizer())) for t in (0, 1) if n == 100 or k == 'model' or t == 0), ('checkpoint', b''), *([('done', b'')] if n == 100 else []))), ('newest', b'step_100')),
    site('allenai/open-instruct', 'COMPLETED in each, the newest without', ('step_500',), *(x for n in (500, 1000) for x in (*accelerate(f'step_{n}'), *((f'step_{n}/{k}', c) for k, c in (('random_states_1.pkl', b'\x80\x02}.'), ('COMPLETED', b'COMPLETED')) if n == 500)))),
    site('saforem2/ezpz#196', '.complete in each, the newest without', ('step-100',), dcp('step-100'), ('step-100/meta.json', text(step=100)), ('step-100/.complete', b''), dcp('step-200'), ('step-200/meta.json', text(step=200))),
    site('goodfire-ai/spd#520', 'training state and model of a number', ('training_2000.pth', 'training_1000.pth'), *(x for n in (1000, 2000) for x in ((f'model_{n}.pth', model()), (f'training_{n}.pth', torch_file({'model_state': NET, 'optimizer_state': adam(NET), 'step': n}))))),
    site('PaddlePaddle/PaddleNLP#7256', 'unified checkpoint, the newest lacks a shard of the optimizer', ('checkpoint-100', ''), paddle(100), paddle(200, 1)),
    site('Hadoop and s3fs', 'marks of folders in an object store', ('step_200', 'step_100', ''), *(x for n in (100, 200) for x in (*inn(f'step_{n}', ('model.pt', model()), ('optimizer.pt', optimizer())), (f'step_{n}_$folder$', b''))), ('step_300_$folder$', b''), ('_SUCCESS', b'')),
    site('PyTorch DCP', '.metadata.tmp that was not renamed', ('step-100', ''), dcp('step-100'), dcp('step-200', 2, False), ('step-200/.metadata.tmp', pickle.dumps({'storage': ['__0_0.distcp', '__1_0.distcp']}))),
    site('Lightning FSDP', 'sharded, without meta.pt', ('epoch=0-step=100.ckpt', ''), dcp('epoch=0-step=100.ckpt'), ('epoch=0-step=100.ckpt/meta.pt', torch_file({'global_step': 100, 'epoch': 0})), dcp('epoch=0-step=200.ckpt')),
    site('bghira/SimpleTuner#1443', 'rolling saves, a temporary folder', ('checkpoint-1050-rolling', 'checkpoint-1000', ''), accelerate('checkpoint-1000'), accelerate('checkpoint-1050-rolling'), accelerate('checkpoint-1100-tmp')),
    site('Lightning-AI/pytorch-lightning#15834', 'DeepSpeed below checkpoint/, a rank missing', ('epoch=0-step=10000.ckpt', ''), lightning_zero('epoch=0-step=10000.ckpt', 10000, (0, 1)), ('epoch=0-step=10000.ckpt/latest', b'checkpoint'), ('epoch=0-step=10000.ckpt/zero_to_fp32.py', b'#'), lightning_zero('epoch=1-step=20187.ckpt', 20187, (0,))),
    site('mosaicml/composer#199', 'DeepSpeed in folders of epochs, the newest begun', ('ep2', 'ep1'), *(x for e in (1, 2) for x in (*deepspeed('', e * 100, name=f'ep{e}'), (f'ep{e}/mosaic_states.pt', values(timer=e)))), ('ep3/mosaic_states.pt', values(timer=3)), ('hparams.yaml', b'a: 1')),
    site('google/orbax#394', 'one written to a bucket, another copied to it', (('200', '100'),), in_bucket(100, True), in_bucket(200, False)),
    site('google/orbax#3537', 'a bucket with old and new marks', ('200', '100', ''), in_bucket(100, False), in_bucket(200, True)),
    site('mlfoundations/open_lm', 'epoch, optimizer and stats apart', ('checkpoints/epoch_2.pt', 'checkpoints/epoch_1.pt'), *(x for n in (1, 2, 3) for x in ((f'checkpoints/epoch_{n}.pt', torch_file({'epoch': n, 'state_dict': NET})), *([(f'checkpoints/optimizer_{n}.pt', torch_file({'epoch': n, 'optimizer': adam(NET)})), (f'checkpoints/stats_{n}.pt', values(epoch=n, evaluation_loss=0.1))] if n < 3 else [])))),
    site('nvidia-cosmos/cosmos-predict2', 'DCP of each kind, the last kind not finished', ('checkpoints/iter_000001000', ''), cosmos(1000), ('checkpoints/latest_checkpoint.txt', b'iter_000001000'), cosmos(2000, False)),
    site('nvidia-cosmos/cosmos-predict1', 'a folder of each kind, iterations below', ('',), *((f'{k}/iter_{n:09d}.pt', c) for n in (1000, 2000) for k, c in (('model', model()), ('optim', optimizer()), ('scheduler', values(a=1)), ('trainer', values(iteration=n)))), ('latest_checkpoint.txt', b'iter_000002000.pt')),
    site('facebookresearch/audiocraft', 'ranks behind the suffix, the newest torn', ('checkpoint_20.th',), *((f'checkpoint_{n}.th{r}', state(epoch=n)) for n in (10, 20) for r in ('', '.1')), ('checkpoint.th', torn(state(epoch=25))), ('checkpoint.th.1', state(epoch=25))),
    site('victorchall/EveryDream2trainer#254', 'interrupted, and by epochs', ('interrupted-proj-ep07-gs00700', 'proj-ep05-gs00500', ''), everydream('proj-ep05-gs00500'), everydream('interrupted-proj-ep07-gs00700')),
    site('open-lm-engine/lm-engine', 'the optimizer of the newest not finished', ('global_step1000', ''), lm_engine(1000), ('latest_checkpointed_iteration.json', text(latest_checkpointed_iteration=1000)), lm_engine(2000, False)),
    site('SamsungSAILMontreal/TinyRecursiveModels', 'files without a suffix', ('step_2000', 'step_1000', ''), ('all_config.yaml', b'a: 1'), ('losses.py', b'#'), *((f'step_{n}', model()) for n in (1000, 2000))),
    site('facebookresearch/vissl', 'phases, iterations and a link', ('model_iteration12000.torch', 'model_phase10.torch', ''), ('model_phase10.torch', vissl(10, 11000)), ('checkpoint.torch -> model_phase10.torch', b''), ('model_iteration12000.torch', vissl(11, 12000))),
    site('submitit, requeue', 'numbers of jobs, the newer one lower', ('checkpoint_100023.pt', 'checkpoint_991234.pt', ''), ('checkpoint_991234.pt', state(step=500)), ('checkpoint_100023.pt', state(step=900))),
    site('NCCL flight recorder, core dumps', 'what a crash leaves beside', ('ckpt_step_200.pt', 'ckpt_step_100.pt', ''), *((f'ckpt_step_{n}.pt', state(step=n)) for n in (100, 200)), ('nccl_trace_rank_0', RAW), ('nccl_trace_rank_1', RAW), ('core.12345', b'\x7fELF' + bytes(300)), ('oom_rank0_step_205.pickle', RAW), ('py-spy-dump-step_205.txt', b'x')),
    site('NVIDIA/Megatron-Energon', 'the state of the data loader alone in the newest', ('iter_0000200', ''), mcore('iter_0000200', 200), ('iter_0000200/train_dataloader_dprank000.pt', values(a=1)), ('latest_checkpointed_iteration.txt', b'200'), ('iter_0000300/train_dataloader_dprank000.pt', values(a=1))),
    site('lm-evaluation-harness', 'results of each step', ('ckpt_step_200.pt', 'ckpt_step_100.pt', ''), *(x for n in (100, 200) for x in ((f'ckpt_step_{n}.pt', state(step=n)), (f'results_step_{n}.pt', torch_file({'samples': [1.0, 2.0], 'acc': 0.1})), (f'results_step_{n}.json', b'{}'))), ('results_step_300.pt', torch_file({'samples': [1.0], 'acc': 0.1}))),
    site('unslothai/unsloth', 'a 16 bit model and a GGUF', ('checkpoint-120', 'checkpoint-60', ''), *(x for n in (60, 120) for x in trainer(f'checkpoint-{n}', n, lora=True)), inn('checkpoint-120-16bit', ('model.safetensors', safe()), ('config.json', b'{}')), inn('lora_model', ('adapter_model.safetensors', safe(SMALL)), ('adapter_config.json', b'{}')), ('unsloth.Q4_K_M.gguf', b'GGUF' + bytes(300))),
    site('huggingface/transformers', 'an optimizer without a byte', ('checkpoint-200', 'checkpoint-100', ''), *(x for n in (100, 200) for x in trainer(f'checkpoint-{n}', n)), [f if not f[0].endswith('optimizer.pt') else (f[0], b'') for f in trainer('checkpoint-300', 300)]),
    site('skydiscover-ai/skydiscover#9', 'numbers, latest and old', (('latest', 'checkpoint_20'), ('latest', 'checkpoint_20'), 'checkpoint_10'), model_folder('checkpoint_old'), model_folder('checkpoint_10'), model_folder('checkpoint_20'), model_folder('latest')),
    site('ray-project/ray', 'Lightning in folders that count reports', ('checkpoint_000001', 'checkpoint_000000', ''), *((f'checkpoint_{n:06d}/checkpoint.ckpt', lightning(100 * n + 100, n)) for n in (0, 1)), ('checkpoint_tmp_9f3a12/checkpoint.ckpt', lightning(300, 2)), ('.validate_storage_marker', b''), ('result.json', b'{}')),
    site('mindspore', 'protobuf', ('',), *((f'net-{e}_100.ckpt', b'\n\x10\n\x06weight' + bytes(200)) for e in (9, 10))),
    site('flock and Hugging Face', 'locks beside', ('step_200.pt', 'step_100.pt', ''), *(x for n in (100, 200) for x in ((f'step_{n}.pt', state(step=n)), (f'step_{n}.pt.lock', b''))), ('step_300.pt.lock', b'')),
    site('NVIDIA-NeMo/Automodel#3390', 'LATEST is stale after the quota', ('epoch_0_step_69999', 'epoch_0_step_59999', ''), automodel('epoch_0_step_59999'), ('LATEST -> epoch_0_step_59999', b''), automodel('epoch_0_step_69999')),
    site('huggingface/transformers#37260', 'the first save of a new run: nothing tells it from a copied folder', (('checkpoint-100', 'checkpoint-700'),), *(at(n, c, m) for m, k in ((1, 500), (2, 600), (3, 700), (500, 100)) for n, c in trainer(f'checkpoint-{k}', k))),
    site('deepmodeling/deepmd-kit#5420', 'a link, and an average of its own series', ('model.ckpt-2000.pt', 'model.ckpt-1000.pt'), *(x for n in (1000, 2000) for x in ((f'model.ckpt-{n}.pt', torch_file({'model': NET, 'optimizer': adam(NET)})), (f'model.ckpt_ema-{n}.pt', model(key='model')))), ('model.ckpt.pt -> model.ckpt-2000.pt', b''), ('checkpoint', b'model.ckpt-2000.pt'), ('lcurve.out', b'x')),
    site('NVIDIA-NeMo/Speech#12804', 'a bad one that a person renamed', ('gpt--step=2000-last', ''), nemo2('gpt--step=2000-last'), nemo2('bad_gpt--step=3000-last')),
    site('deepset-ai/FARM#279', 'steps that begin anew in each epoch', ('epoch_2_step_200', 'epoch_1_step_300'), farm(1, 150), farm(1, 300), farm(2, 200)),
    site('awslabs/awsome-distributed-ai#190', 'cancelled in a sharded save', ('llama_v2-100steps', ''), dcp('llama_v2-100steps'), dcp('llama_v2-200steps', 2, False)),
    site('llnl/scr', 'files of ranks, one missing', ('ckpt.12', ), *((f'ckpt.12/rank_{r}.ckpt', state(step=12)) for r in (0, 1)), ('.scr/index.scr', b'x'), ('ckpt.18/rank_0.ckpt', state(step=18))),
    site('shootthesound/Fizgig#19', 'a state that a pause left', ('pause-state', 'lora-000010-state'), accelerate('lora-000010-state'), ('lora-000010.safetensors', safe(SMALL)), accelerate('pause-state'), ('lora-000012.safetensors', safe(SMALL))),
    site('microsoft/CodeBERT', 'checkpoint-last and checkpoint-best', ('checkpoint-last', ('checkpoint-best-ppl', '')), inn('checkpoint-best-bleu', ('pytorch_model.bin', model())), inn('checkpoint-last', ('pytorch_model.bin', model()), ('optimizer.pt', optimizer()), ('scheduler.pt', values(a=1)), ('step_file.txt', b'900')), inn('checkpoint-best-ppl', ('pytorch_model.bin', model()))),
    site('awslabs/graphstorm', 'the optimizer of the newest is missing', ('epoch-0',), inn('epoch-0', ('model.bin', model()), ('optimizers.bin', optimizer())), inn('epoch-1', ('model.bin', model()))),
    site('bigscience-workshop/Megatron-DeepSpeed#159', 'a layer of the newest is missing', ('global_step100',), layers(100, (1, 3, 4)), layers(200, (1, 3)), ('latest', b'global_step200')),
    site('verl-project/verl', 'Megatron below the actor, killed before the data', ('global_step_10', ''), verl_megatron(10), ('latest_checkpointed_iteration.txt', b'10'), verl_megatron(20, False)),
    site('THUDM/slime', 'states of the rollout beside', ('iter_0000020', 'iter_0000010', ''), *(x for n in (10, 20) for x in (*mcore(f'iter_{n:07d}', n), (f'rollout/global_dataset_state_dict_{n}.pt', values(sample_offset=n)))), ('latest_checkpointed_iteration.txt', b'20'), inn('hf', ('model.safetensors', safe()), ('config.json', b'{}'))),
    site('huggingface/diffusers --use_ema', 'killed after the model and its average', ('checkpoint-500', ''), diffusers(500), diffusers(1000, False)),
    site('pytorch/xla FSDP', 'ranks with their count, a consolidated model, the newest lacks one', ('ckpt_epoch_1_rank-00000000-of-00000002.pth', ('ckpt_epoch_1_consolidated.pth', '')), *((f'ckpt_epoch_1_rank-0000000{r}-of-00000002.pth', state(epoch=1)) for r in (0, 1)), ('ckpt_epoch_1_consolidated.pth', model(key='model')), ('ckpt_epoch_2_rank-00000000-of-00000002.pth', state(epoch=2))),
    site('Jupyter', 'its hidden copies', ('step_200.pt', 'step_100.pt', ''), *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('.ipynb_checkpoints/step_300-checkpoint.pt', state(step=300))),
    site('a person before an upgrade', 'the newest torn, a copy of it kept', (('checkpoint-200.bak', 'checkpoint-100'),), trainer('checkpoint-100', 100), trainer('checkpoint-200.bak', 200), [f for f in trainer('checkpoint-200', 200) if 'trainer_state' not in f[0] and 'rng' not in f[0]]),
    site('scripts, a mark while they save', 'INCOMPLETE in the newest', ('step_200', 'step_100', ''), *(model_folder(f'step_{n}') for n in (100, 200)), ('step_300/INCOMPLETE', b''), model_folder('step_300')),
    site('huggingface_hub', 'a download under way in the newest', ('checkpoint-200', 'checkpoint-100', ''), *(x for n in (100, 200) for x in trainer(f'checkpoint-{n}', n)), trainer('checkpoint-300', 300), ('checkpoint-300/optimizer.pt.7f3a.incomplete', torn(optimizer()))),
    site('cloud-storage sync', 'duplicates that a conflict made', (('step_200.pt', 'step_200 (conflicted copy 2026-01-02).pt'),), ('step_100.pt', state(step=100)), ('step_200.pt', state(step=200)), ('step_200 (conflicted copy 2026-01-02).pt', state(step=200)), ('step_150 (conflicted copy 2026-01-02).pt', state(step=150))),
)
SIBLINGS: Final = (
    sibling('unfinished: marker with the whole name', ('a-step=1.ckpt', ''), ('a-step=1.ckpt', lightning(1, 0)), ('a-step=2.ckpt-unfinished', b''), ('a-step=2.ckpt', lightning(2, 0))),
    sibling('unfinished: of the EMA copy', ('a-step=1.ckpt',), ('a-step=1.ckpt', lightning(1, 0)), ('a-step=2-unfinished', b''), ('a-step=2.ckpt', lightning(2, 0)), ('a-step=2-EMA.ckpt', lightning(2, 0))),
    sibling('unfinished: one that is being removed', ('a-step=2.ckpt', ''), ('a-step=1.ckpt', lightning(1, 0)), ('a-step=2.ckpt', lightning(2, 0)), ('a-step=1-unfinished', b'')),
    sibling('unfinished: of a name that only begins alike', ('a-step=20.ckpt', 'a-step=2.ckpt', ''), ('a-step=2.ckpt', lightning(2, 0)), ('a-step=20.ckpt', lightning(20, 0)), ('a-step=200-unfinished', b'')),
    sibling('unfinished: a folder of NeMo 1, distributed', ('gpt--step=100-last', ''), mcore('gpt--step=100-last', 100), mcore('gpt--step=200-last', 200), ('gpt--step=200-last-unfinished', b'')),
    sibling('mcore: before and after the upgrade', ('iter_0000200', 'iter_0000100', ''), mcore('iter_0000100', 100), new_mcore(200), ('latest_checkpointed_iteration.txt', b'200')),
    sibling('mcore: new, without metadata.json', ('iter_0000100', ''), new_mcore(100), [f for f in new_mcore(200) if not f[0].endswith('metadata.json')]),
    sibling('mcore: common.pt lost of an old one', ('iter_0000100', ''), mcore('iter_0000100', 100), with_metadata(mcore('iter_0000200', 200, False), decoder='__0_0.distcp')),
    sibling('mcore: new, a shard missing', ('iter_0000100', ''), new_mcore(100), [f for f in new_mcore(200) if not f[0].endswith('__1_0.distcp')]),
    sibling('mcore: NeMo 2 with the new core', ('m--step=200-last', 'm--step=100', ''), *(x for b in ('m--step=100', 'm--step=200-last') for x in ([(f'{b}/weights/' + f[0].split('/')[1], f[1]) for f in new_mcore(1)] + [(f'{b}/context/model.yaml', b'a: 1')]))),
    sibling('ds: converted before the newest', ('global_step300', ('global_step200', 'global_step200_universal')), deepspeed('', 200), [(f'global_step200_universal/{n}', c) for n, c in (('mp_rank_00_model_states.pt', torch_file({'module': NET, 'global_steps': 200})), ('zero/w/fp32.pt', values(a=1)))], deepspeed('', 300), ('latest', b'global_step300'), ('latest_universal', b'global_step200_universal')),
    sibling('ds: only the universal one is kept', ('global_step200_universal', ''), [(f'global_step200_universal/{n}', c) for n, c in (('mp_rank_00_model_states.pt', torch_file({'module': NET, 'global_steps': 200, 'ds_config': {'zero_optimization': {'stage': 1}}})), ('zero/w/fp32.pt', values(a=1)))], ('latest_universal', b'global_step200_universal')),
    sibling('ds: named by epochs, universal', ('epoch2', ('epoch1', 'epoch2_universal')), deepspeed('', 100, name='epoch1'), deepspeed('', 200, name='epoch2'), [(f'epoch2_universal/{n}', c) for n, c in (('mp_rank_00_model_states.pt', torch_file({'module': NET, 'global_steps': 200})), ('zero/w/fp32.pt', values(a=1)))]),
    sibling('ds: only models in the newest of many', ('global_step200', 'global_step100', ''), *(deepspeed('', n) for n in (100, 200)), [('global_step300/mp_rank_00_model_states.pt', torch_file({'module': NET, 'global_steps': 300, 'ds_config': {'zero_optimization': {'stage': 2}}}))]),
    sibling('ds: no ZeRO at all', ('global_step200', 'global_step100', ''), *((f'global_step{n}/mp_rank_00_model_states.pt', torch_file({'module': NET, 'optimizer': adam(NET), 'global_steps': n})) for n in (100, 200)), ('latest', b'global_step200')),
    sibling('export: hf-N of XTuner', (('step_200', ''), ''), rl_step(100), rl_step(200), exported('hf-200')),
    sibling('export: torn states of the Trainer', ('',), [f for f in trainer('checkpoint-100', 100) if 'trainer_state' not in f[0]], exported('epoch_1'), exported('epoch_2')),
    sibling('export: weights alone are what the run saves', ('epoch_2', 'epoch_1', ''), exported('epoch_1'), exported('epoch_2'), ('iteration_1000/rank0_trace.json', b'{}')),
    sibling('export: whole states beside', ('global_step200', ''), deepspeed('', 200), exported('epoch_3'), ('latest', b'global_step200')),
    sibling('export: the Trainer saves the model alone', ('checkpoint-200', 'checkpoint-100', ''), *(trainer(f'checkpoint-{n}', n, whole=False) for n in (100, 200))),
    sibling('mark: _SUCCESS', ('step_100', ), step_folder(100, '_SUCCESS'), step_folder(200)),
    sibling('mark: save_complete.txt', ('step_100',), step_folder(100, 'save_complete.txt'), step_folder(200)),
    sibling('mark: an evaluator leaves eval_done', ('step_200', 'step_100', ''), step_folder(100, 'eval_done'), step_folder(200)),
    sibling('mark: an uploader leaves .uploaded.done', ('step_200', 'step_100', ''), step_folder(100, '.uploaded.done'), step_folder(200)),
    sibling('mark: it came after the newest', ('step_200', 'step_100', ''), step_folder(100), step_folder(200), ('step_100/DONE', b'')),
    sibling('mark: in all', ('step_200', 'step_100', ''), step_folder(100, 'READY', '.complete'), step_folder(200, 'READY', '.complete')),
    sibling('mark: of three, the middle without', ('step_300', ), step_folder(100, 'done'), step_folder(200), step_folder(300, 'done')),
    sibling('part: of the first save', ('',), rank_files(20, (0, 1)), ('step_20_rank_2.pt.tmp', torn(state()))),
    sibling('part: hidden', ('step_10_rank_0.pt', ''), rank_files(10), rank_files(20, (0, 1)), ('.step_20_rank_2.pt.tmp', torn(state()))),
    sibling('part: the whole one is there, too', ('step_20_rank_0.pt', 'step_10_rank_0.pt', ''), rank_files(10), rank_files(20), ('step_20_rank_2.pt.tmp', torn(state()))),
    sibling('part: of the optimizer', ('model_10.pt', ), ('model_10.pt', model()), ('optimizer_10.pt', optimizer()), ('model_20.pt', model()), ('optimizer_20.pt.tmp', torn(optimizer()))),
    sibling('part: a single file under way', ('step_20.pt', 'step_10.pt', ''), ('step_10.pt', state(step=10)), ('step_20.pt', state(step=20)), ('step_30.pt.tmp', torn(state(step=30)))),
    sibling('converted: step_200_hf', ('step_200', ''), step_folder(200), exported('step_200_hf')),
    sibling('converted: consolidated beside DCP', ('step-200', ''), dcp('step-200'), exported('step-200-consolidated')),
    sibling('converted: best_epoch_3 is what the run saves', ('best_epoch_3', ''), exported('best_epoch_3')),
    sibling('converted: an adapter merged in an epoch', ('checkpoint-200', ''), trainer('checkpoint-200', 200, lora=True), exported('merged_checkpoint-200')),
    sibling('converted: a state under such a name', ('fused_step_200', 'fused_step_100', ''), *(inn(f'fused_step_{n}', ('model.safetensors', safe()), ('config.json', b'{}'), ('optimizer.pt', optimizer())) for n in (100, 200))),
    sibling('bin: value_head.bin beside an adapter', ('',), ('adapter_config.json', b'{}'), ('adapter_model.safetensors', safe(SMALL)), ('value_head.bin', model(SMALL))),
    sibling('bin: numbered states in bin', ('ckpt_200.bin', 'ckpt_100.bin', ''), ('config.json', b'{}'), *((f'ckpt_{n}.bin', state(step=n)) for n in (100, 200))),
    sibling('bin: the only state, with config.json of the run', ('checkpoint.bin', ''), ('config.json', b'{}'), ('checkpoint.bin', state(step=7))),
    sibling('counters: trainer_state.pt beside torn states', ('',), ('trainer_state.pt', values(step=5)), ('step_5.pt', torn(state()))),
    sibling('counters: training_state.pt that is the state', ('training_state.pt', ''), ('training_state.pt', state(step=5))),
    sibling('paddle: whole', ('checkpoint-200', 'checkpoint-100', ''), paddle(100), paddle(200)),
    sibling('paddle: a signal missing', ('checkpoint-100', ''), paddle(100), [f for f in paddle(200) if 'saved_signal_1' not in f[0]]),
    sibling('trainer: random states of rank 2 alone', ('checkpoint-100', ''), trainer('checkpoint-100', 100, ranks=3), [f for f in trainer('checkpoint-200', 200, ranks=3) if 'rng_state_0' not in f[0] and 'rng_state_1' not in f[0]]),
    sibling('paddle: pdparams', (('checkpoint-200', ''), ), *(inn(f'checkpoint-{n}', ('model_state.pdparams', RAW), ('optimizer.pdopt', RAW), ('scheduler.pdparams', RAW), ('trainer_state.json', text(global_step=n))) for n in (100, 200))),
    sibling('trainer: SHARDS of the model, the index of the optimizer torn', ('checkpoint-100', ''), paddle(100), [f if 'optimizer.safetensors.index' not in f[0] else (f[0], b'{"weight_m') for f in paddle(200)]),
    sibling('before: tags of epochs, the newest without optimizer', ('epoch2', ('epoch1',)), *(deepspeed('', e * 100, name=f'epoch{e}') for e in (1, 2)), deepspeed('', 300, name='epoch3')[:1]),
    sibling('before: torn common.pt tells no iteration', ('iter_0000020', 'iter_0000010', ''), mcore('iter_0000010', 1000), mcore('iter_0000020', 2000), [f if not f[0].endswith('common.pt') else (f[0], b'PK') for f in mcore('iter_0000030', 3000)]),
    sibling('before: ep10 after ep9, only a timer', ('ep9', 'ep8'), *(x for e in (8, 9) for x in (*deepspeed('', e * 100, name=f'ep{e}'), (f'ep{e}/timer.pt', values(a=1)))), ('ep10/timer.pt', values(a=1))),
    sibling('before: Lightning folders whose content tells', ('epoch=1-step=200.ckpt', 'epoch=0-step=100.ckpt', ''), *((f'epoch={e}-step={e * 100 + 100}.ckpt/meta.pt', torch_file({'global_step': e * 100 + 100, 'epoch': e})) for e in (0, 1)), *(dcp(f'epoch={e}-step={e * 100 + 100}.ckpt') for e in (0, 1))),
    sibling('before: a marked one whose content tells, then one that does not', ('step_100',), step_folder(100, 'done'), ('step_100/train.pt', values(global_step=1)), step_folder(200)),
    sibling('apart: optimizers of all', ('epoch_2.pt', 'epoch_1.pt'), apart(1), apart(2)),
    sibling('apart: weights of each, one optimizer kept', ('weights_30.pt', ), *((f'weights_{n}.pt', model()) for n in (10, 20, 30)), ('optim_30.pt', optimizer())),
    sibling('apart: two kinds of models', (('actor_2.pt', 'critic_2.pt', ''),), *(x for n in (1, 2) for x in ((f'actor_{n}.pt', model()), (f'critic_{n}.pt', model(OTHER)), (f'optimizer_{n}.pt', optimizer())))),
    sibling('apart: states that have their own optimizer', ('ckpt_2.pt', 'ckpt_1.pt'), *(x for n in (1, 2) for x in ((f'ckpt_{n}.pt', state(epoch=n)), (f'optimizer_{n}.pt', optimizer())))),
    sibling('apart: safetensors with an optimizer in torch.save', ('net-200.safetensors', 'net-100.safetensors'), *(x for n in (100, 200) for x in ((f'net-{n}.safetensors', safe()), (f'optimizer-{n}.pt', optimizer())))),
    sibling('apart: the optimizer of the newest is not there yet', ('snapshot_200.pt', 'snapshot_100.pt'), *(x for n in (100, 200) for x in ((f'snapshot_{n}.pt', model()), (f'opt_{n}.pt', optimizer()))), ('snapshot_300.pt', model())),
    sibling('behind: a rotation', ('ckpt.pt', 'ckpt.pt.1'), at('ckpt.pt.2', state(step=100), 1), at('ckpt.pt.1', state(step=200), 10), at('ckpt.pt', state(step=300), 20)),
    sibling('behind: a rotation, the newest torn', ('ckpt.pt.1',), at('ckpt.pt.1', state(step=200), 10), at('ckpt.pt', torn(state(step=300)), 20)),
    sibling('behind: whole ranks', (('checkpoint.th', 'checkpoint_20.th'),), *((f'checkpoint_{n}.th{r}', state(epoch=n)) for n in (10, 20) for r in ('', '.1')), ('checkpoint.th', state(epoch=25)), ('checkpoint.th.1', state(epoch=25))),
    sibling('behind: a rank is missing', ('m_10.pt',), *((f'm_10.pt{r}', state(step=10)) for r in ('', '.1', '.2')), *((f'm_20.pt{r}', state(step=20)) for r in ('', '.1'))),
    sibling('behind: numbers of saves', ('model.ckpt.200', 'model.ckpt.100', ''), *((f'model.ckpt.{n}', state(step=n)) for n in (100, 200))),
    sibling('width: 4bit', ('checkpoint-120', ''), trainer('checkpoint-120', 120), exported('checkpoint-120-4bit')),
    sibling('width: a state in bf16', ('bf16_step_200', ''), inn('bf16_step_200', ('model.safetensors', safe()), ('config.json', b'{}'), ('optimizer.pt', optimizer()))),
    sibling('width: vllm', ('global_step_10', ''), deepspeed('', 10, name='global_step_10'), exported('global_step_10_vllm')),
    sibling('width: weights alone in fp16 without config', ('step_20_fp16', 'step_10_fp16', ''), *(inn(f'step_{n}_fp16', ('model.safetensors', safe())) for n in (10, 20))),
    sibling('width: mlx', ('checkpoint-9', ''), trainer('checkpoint-9', 9, lora=True), exported('checkpoint-9-mlx')),
    sibling('beside: rng and scheduler alone', ('',), inn('step_300', ('rng_0.pt', values(a=1)), ('scheduler.pt', values(a=1)))),
    sibling('beside: scaler in the newest', ('step_200', ''), step_folder(200), inn('step_300', ('scaler.pt', values(scale=1.0)))),
    sibling('beside: a model whose name has a word of these', ('step_200', 'step_100', ''), *(inn(f'step_{n}', ('lr_model.pt', state(step=n))) for n in (100, 200))),
    sibling('beside: sampler states in a folder of numbers', ('step_200.pt', ''), ('step_200.pt', state(step=200)), inn('dataloader/step_200', ('sampler_0.pt', values(a=1))), inn('dataloader_step_300', ('rank0.pt', values(a=1)))),
    sibling('beside: extra_state of ranks', ('',), inn('global_step_5', *((f'extra_state_rank_{r}.pt', values(a=1)) for r in (0, 1)))),
    sibling('under way: .in_progress', ('step-100', ''), dcp('step-100'), dcp('step-200'), ('step-200/.in_progress', b'')),
    sibling('under way: checkpoint_incomplete.txt', ('step_100', ''), step_folder(100), step_folder(200), ('step_200/checkpoint_incomplete.txt', b'x')),
    sibling('under way: progress.json is none', ('step_200', 'step_100', ''), step_folder(100), step_folder(200), ('step_200/progress.json', b'{}'), ('step_100/training_progress.csv', b'x')),
    sibling('under way: UNCOMMITTED of a Trainer', ('checkpoint-100', ''), trainer('checkpoint-100', 100), trainer('checkpoint-200', 200), ('checkpoint-200/UNCOMMITTED', b'')),
    sibling('under way: a mark deeper down is of another', ('step_200', 'step_100', ''), step_folder(100), step_folder(200), ('step_200/logs/INCOMPLETE', b'')),
    sibling('layers: another number of tensor ranks', ('global_step200', 'global_step100'), layers(100, (1, 2), (0, 1)), layers(200, (1, 2))),
    sibling('layers: more of them in the newest', ('global_step200', 'global_step100'), layers(100, (1, 2)), layers(200, (1, 2, 3))),
    sibling('layers: no layer file any more', ('global_step100',), layers(100, (1, 2)), layers(200, ())),
    sibling('layers: of another tag', ('epoch2', 'epoch1'), [(f[0].replace('global_step1', 'epoch1', 1), f[1]) for f in layers(1, (1, 2))], [(f[0].replace('global_step2', 'epoch2', 1), f[1]) for f in layers(2, (1, 2))]),
    sibling('layers: the first save has fewer', ('global_step300', 'global_step200', 'global_step100'), layers(100, (1,)), layers(200, (1, 2)), layers(300, (1, 2))),
    sibling('count: one of two, alone', ('',), ('ckpt-20-1of2.pt', model())),
    sibling('count: one of one', ('ckpt_rank-0-of-1.pt', ''), ('ckpt_rank-0-of-1.pt', state())),
    sibling('count: the newest has one of four', ('ckpt-10-1of4.pt', ''), *((f'ckpt-10-{k}of4.pt', model()) for k in (1, 2, 3, 4)), ('ckpt-20-2of4.pt', model())),
    sibling('count: an older whole model beside', ('model.pt', ''), ('model.pt', state()), ('ckpt_rank0_world_size_4.pt', state())),
    sibling('under way: progress.txt is none', ('step_200', 'step_100', ''), step_folder(100), step_folder(200), ('step_200/progress.txt', b'x')),
    sibling('mark: a model of that name in the one before', ('step_200', 'step_100', ''), step_folder(100, 'saved_model.pb', 'stable_audio.yaml'), step_folder(200)),
    sibling('mark: ckpt_done.flag', ('step_100',), step_folder(100, 'ckpt_done.flag'), step_folder(200)),
)
