"""Folders as training codes and their habits leave them, written down by somebody who had not read the corpus.

A name is the project whose save function writes so, or the habit. Files are listed in the order in which they were
written, a minute apart unless `at` says otherwise; `name -> target` is a link. Folders are those that a person names with
`--checkpoint-dir`. "" among the truths: to restore nothing, and ask the person, is right, too.
"""

import io
import json
import zipfile
from typing import Any, Final

from tests.recovery.checkpoints.corpus import Folder, at
from tests.support.checkpoint_contents import (
    Tensor,
    adam,
    npz_file,
    safetensors_file,
    torch_file,
    weights,
)

NET: Final = weights()
LARGE: Final = weights(64, 6, "enc")
OTHER: Final = weights(24, 3, "blocks")
SMALL: Final = weights(8, 1, "head")
RAW: Final = b"\x80\x04\x95" + bytes(200) + b"."  # a pickle that no library wrote into a zip


def folder(name: str, truth: str | tuple[str, ...], *files: Any) -> Folder:
    """Return an entry of the corpus."""
    return Folder(
        f"layout: {name}",
        "the save function of the project, or a habit of scripts",
        tuple(files),
        truth,
    )


def reported(source: str, name: str, truth: str | tuple[str, ...], *files: Any) -> Folder:
    """Return an entry of the corpus with its own source."""
    return Folder(f"{source}: {name}", source, tuple(files), truth)


def state(
    key: str = "model", optimizer_key: str = "optimizer", net: Any = NET, **more: Any
) -> bytes:
    """A model with its optimizer."""
    return torch_file({key: net, optimizer_key: adam(net), **more})


def model(net: Any = NET, key: str | None = None, **more: Any) -> bytes:
    return torch_file({key: net, **more}) if key else torch_file(net)


def optimizer(net: Any = NET) -> bytes:
    return torch_file(adam(net))


def safe(net: Any = NET, **texts: str) -> bytes:
    return safetensors_file({name: tensor.sizes for name, tensor in net.items()}, **texts)


def lightning(step: int, epoch: int, is_whole: bool = True, **more: Any) -> bytes:
    states = {"optimizer_states": [adam(NET)], "lr_schedulers": []} if is_whole else {}
    version = {"pytorch-lightning_version": "2.1", "epoch": epoch, "global_step": step}
    return torch_file({**version, "state_dict": NET, **more, **states})


def values(**more: Any) -> bytes:
    return torch_file(more)


def text(**more: Any) -> bytes:
    return json.dumps(more).encode()


def torn(content: bytes) -> bytes:
    return content[: len(content) // 2]


PREDICTIONS: Final = npz_file(pred=[1.0] * 9)


# fmt: off
def trainer(b: Any, step: Any, lora: Any=False, whole: Any=True, ranks: Any=1) -> Any:
    w = 'adapter_model.safetensors' if lora else 'model.safetensors'
    r = [(f'{b}/{w}', safe(SMALL if lora else NET)), (f'{b}/config.json' if not lora else f'{b}/adapter_config.json', b'{}'), (f'{b}/training_args.bin', values(lr=0.1))]
    if whole:
        r += [(f'{b}/optimizer.pt', optimizer(SMALL if lora else NET)), (f'{b}/scheduler.pt', values(last_epoch=1))]
        r += [(f'{b}/rng_state.pth', values(python=1))] if ranks == 1 else [(f'{b}/rng_state_{i}.pth', values(python=1)) for i in range(ranks)]
    r += [(f'{b}/tokenizer.json', b'{}'), (f'{b}/trainer_state.json', text(global_step=step, epoch=1.0, max_steps=9999))]
    return r


def accelerate(b: Any, *more: Any, w: Any='model.safetensors') -> Any:
    return [*((f'{b}/{n}', c) for n, c in more), (f'{b}/{w}', safe()) if w else (f'{b}/scaler.pt', values(scale=1.0)), (f'{b}/optimizer.bin', optimizer()), (f'{b}/scheduler.bin', values(last=1)), (f'{b}/random_states_0.pkl', b'\x80\x02}.')]


def megatron_ranks(n: Any, ranks: Any=(0, 1)) -> Any:
    return [(f'iter_{n:07d}/mp_rank_{r:02d}/model_optim_rng.pt', state(iteration=n)) for r in ranks]


def deepspeed(b: Any, n: Any, ranks: Any=(0, 1), name: Any=None) -> Any:
    d = f"{b}{name or f'global_step{n}'}"
    return [(f'{d}/mp_rank_00_model_states.pt', torch_file({'module': NET, 'global_steps': n, 'dp_world_size': 2, 'mp_world_size': 1})), *((f'{d}/zero_pp_rank_{r}_mp_rank_00_optim_states.pt', torch_file({'optimizer_state_dict': adam(NET)})) for r in ranks)]


def stable_baselines(n: Any) -> Any:
    b = io.BytesIO()
    with zipfile.ZipFile(b, 'w') as z:
        z.writestr('data', b'{}')
        z.writestr('pytorch_variables.pth', torch_file({}))
        z.writestr('policy.pth', torch_file(NET))
        z.writestr('policy.optimizer.pth', optimizer())
        z.writestr('_stable_baselines3_version', '2.3')
        z.writestr('system_info.txt', '')
    return b.getvalue()


def litgpt(n: Any) -> Any:
    return state(iter_num=n * 4, step_count=n, hparams={})


def torchtune(e: Any) -> Any:
    return [(f'epoch_{e}/model-0000{i}-of-00002.safetensors', safe()) for i in (1, 2)] + [(f'epoch_{e}/config.json', b'{}'), (f'epoch_{e}/tokenizer.model', b'x')]


def olmo(n: Any, s: Any='') -> Any:
    return [(f'step{n}{s}/model.pt', model()), (f'step{n}{s}/optim.pt', optimizer()), (f'step{n}{s}/train.pt', values(global_step=n)), (f'step{n}{s}/config.yaml', b'')]


def olmo_sharded(n: Any, rs: Any=(0, 1)) -> Any:
    return [(f'step{n}/{k}/rank{r}.pt', c) for k, c in (('model', model()), ('optim', optimizer()), ('train', values(global_step=n))) for r in rs] + [(f'step{n}/config.yaml', b'')]


def neox(n: Any) -> Any:
    return [(f'global_step{n}/layer_{i:02d}-model_00-model_states.pt', model()) for i in (0, 2, 3)] + deepspeed('', n)


def nanotron(n: Any) -> Any:
    return [(f'{n}/model/model/decoder/0/model_weight_pp-rank-0-of-1_tp-rank-{r}-of-2.safetensors', safe()) for r in (0, 1)] + [(f'{n}/optimizer/optimizer_pp-0-of-1_dp-0-of-1_tp-{r}-of-2.pt', optimizer()) for r in (0, 1)] + [(f'{n}/lr_scheduler/lr_scheduler.pt', values(l=1)), (f'{n}/random/tp-0.pt', values(r=1)), (f'{n}/checkpoint_metadata.json', b'{}'), (f'{n}/model_config.json', b'{}')]


def picotron(n: Any) -> Any:
    return [(f'{n}/weights_tp_rank_world_size={t}_2_pp_rank_world_size=0_1.pth', state(trained_steps=n, trained_tokens=n * 9)) for t in (0, 1)]


def lerobot(b: Any, n: Any) -> Any:
    return [(f'{b}/pretrained_model/model.safetensors', safe()), (f'{b}/pretrained_model/config.json', b'{}'), (f'{b}/pretrained_model/train_config.json', b'{}'), (f'{b}/training_state/optimizer_state.safetensors', safe()), (f'{b}/training_state/optimizer_param_groups.json', b'[]'), (f'{b}/training_state/rng_state.safetensors', safe(SMALL)), (f'{b}/training_state/training_step.json', text(step=n))]


def ac(n: Any) -> Any:
    return torch_file({'step': n, 'actor_state_dict': NET, 'critic_state_dict': OTHER, 'actor_optimizer_state_dict': adam(NET), 'critic_optimizer_state_dict': adam(OTHER)})


def jepa(e: Any) -> Any:
    return torch_file({'encoder': NET, 'predictor': SMALL, 'target_encoder': NET, 'opt': adam(NET), 'epoch': e, 'loss': 0.1})


def llmc() -> Any:
    return (20240326).to_bytes(4, 'little') + bytes(2000)


def composer(b: Any, e: Any) -> Any:
    return torch_file({'state': {'model': NET, 'optimizers': {'DecoupledAdamW': adam(NET)}, 'timestamp': {'epoch': e, 'batch': b}}, 'rng': [1]})


def mmengine(e: Any, i: Any) -> Any:
    return torch_file({'meta': {'epoch': e, 'iter': i, 'seed': 1}, 'state_dict': NET, 'optimizer': adam(NET), 'message_hub': {}})


def yolo(e: Any, fin: Any=False) -> Any:
    return torch_file({'epoch': -1 if fin else e, 'best_fitness': 0.5, 'model': None if not fin else NET, 'ema': NET if not fin else None, 'updates': e * 10, 'optimizer': None if fin else adam(NET), 'train_args': {'lr': 0.1}, 'train_metrics': {'a': 0.1}, 'date': 'x'})


def nnunet(e: Any) -> Any:
    return state('network_weights', 'optimizer_state', current_epoch=e, grad_scaler_state=None, logging={'a': [0.1]}, _best_ema=0.4)


def cyclegan(p: Any, m: Any) -> Any:
    return [at(f'{p}_net_{k}.pth', model(NET if k[0] == 'G' else OTHER), m) for k in ('G_A', 'G_B', 'D_A', 'D_B')]


def vits(k: Any, n: Any, e: Any) -> Any:
    return torch_file({'model': NET if k == 'G' else OTHER, 'iteration': e, 'optimizer': adam(NET if k == 'G' else OTHER), 'learning_rate': 0.1})


def guided(n: Any) -> Any:
    return [(f'model{n:06d}.pt', model()), (f'ema_0.9999_{n:06d}.pt', model()), (f'opt{n:06d}.pt', optimizer())]


def coqui(n: Any, e: Any) -> Any:
    return torch_file({'config': {}, 'model': NET, 'optimizer': adam(NET), 'scaler': None, 'step': n, 'epoch': e, 'model_loss': 0.1})


def fairseq(u: Any, e: Any) -> Any:
    return torch_file({'args': None, 'cfg': {}, 'model': NET, 'criterion': None, 'optimizer_history': [{'criterion_name': 'x', 'optimizer_name': 'FairseqAdam', 'lr_scheduler_state': {'best': 1.0}, 'num_updates': u}], 'extra_state': {'train_iterator': {'epoch': e, 'iterations_in_epoch': 1}, 'val_loss': 1.0}, 'last_optimizer_state': adam(NET)})


def speechbrain(t: Any, e: Any) -> Any:
    return [(f'{t}/{n}', c) for n, c in (('model.ckpt', model()), ('optimizer.ckpt', optimizer()), ('counter.ckpt', str(e).encode()), ('scheduler_model.ckpt', values(a=1)), ('dataloader-TRAIN.ckpt', b'10'), ('CKPT.yaml', b'end-of-epoch: true'))]


def icefall(b: Any) -> Any:
    return torch_file({'model': NET, 'model_avg': NET, 'optimizer': adam(NET), 'scheduler': {'b': 1}, 'grad_scaler': {}, 'sampler': {}, 'batch_idx_train': b})


def verl(n: Any, ranks: Any=(0, 1), critic: Any=True) -> Any:
    r = []
    for who in ('actor', 'critic') if critic else ('actor',):
        for k in ranks:
            r += [(f'global_step_{n}/{who}/model_world_size_2_rank_{k}.pt', model()), (f'global_step_{n}/{who}/optim_world_size_2_rank_{k}.pt', optimizer()), (f'global_step_{n}/{who}/extra_state_world_size_2_rank_{k}.pt', values(lr=1))]
        r += [(f'global_step_{n}/{who}/huggingface/config.json', b'{}')]
    return [*r, (f'global_step_{n}/data.pt', values(step=n))]


def colossal(n: Any) -> Any:
    return [(f'epoch0-global_step{n}/{f}', c) for f, c in (('model/pytorch_model-00001.bin', model()), ('model/pytorch_model.bin.index.json', b'{}'), ('optimizer/pytorch_optim-00001.bin', optimizer()), ('optimizer/pytorch_optim.bin.index.json', b'{}'), ('optimizer/pytorch_optim_group.bin', values(a=1)), ('lr_scheduler', values(a=1)), ('ema.pt', model()), ('running_states.json', text(step=n)))]


def onetrainer(n: Any, d: Any) -> Any:
    return [(f'2026-01-01_1{d}-00-00-backup-{n}-1-20/{f}', c) for f, c in (('unet/diffusion_pytorch_model.safetensors', safe(LARGE)), ('unet/config.json', b'{}'), ('optimizer/optimizer.pt', optimizer()), ('ema/ema.pt', model()), ('meta.json', b'{}'), ('model_index.json', b'{}'))]


def styletts(e: Any) -> Any:
    return torch_file({'net': {'decoder': NET, 'text': SMALL}, 'optimizer': adam(NET), 'iters': e * 100, 'val_loss': 0.1, 'epoch': e})


def yolox(e: Any) -> Any:
    return torch_file({'start_epoch': e, 'model': NET, 'optimizer': adam(NET), 'best_ap': 0.1, 'curr_ap': 0.1})


def openpcdet(e: Any) -> Any:
    return torch_file({'epoch': e, 'it': e * 100, 'model_state': NET, 'optimizer_state': adam(NET), 'version': 'x'})


def ace(n: Any) -> Any:
    return torch_file({'epoch': n, 'num_batches_seen': n * 100, 'stepper': {'module': NET}, 'optimization': {'optimizer_state_dict': adam(NET)}, 'ema': {}})


def makani(e: Any) -> Any:
    return torch_file({'iters': e * 10, 'epoch': e, 'model_state': NET, 'optimizer_state_dict': adam(NET)})


def inside(b: Any, *k: Any) -> Any:
    return [(f'{b}/{n}', c) for n, c in k]


def pair_folder(b: Any, net: Any=NET) -> Any:
    return inside(b, ('model.pt', model(net)), ('optimizer.pt', optimizer(net)))


def old_trainer(n: Any) -> Any:
    return inside(f'checkpoint-{n}', ('pytorch_model.bin', model()), ('optimizer.pt', optimizer()), ('scheduler.pt', values(a=1)), ('rng_state.pth', values(a=1)), ('trainer_state.json', text(global_step=n)), ('config.json', b'{}'))


LAYOUTS: Final = (
    folder('nanogpt', 'ckpt.pt', ('meta.pkl', RAW), ('ckpt.pt', state(iter_num=2000, best_val_loss=1.2, model_args={'n': 1}, config={'lr': 0.1})), ('train.log', b'x')),
    folder('nanogpt named by iteration', 'ckpt_2000.pt', *((f'ckpt_{n}.pt', state(iter_num=n)) for n in (500, 1000, 2000))),
    folder('mingpt', 'model.pt', ('args.txt', b''), ('config.json', b'{}'), ('model.pt', model())),
    folder('mingpt snapshot', 'snapshot.pt', ('snapshot.pt', torch_file({'model_state': NET, 'optimizer_state': adam(NET), 'finished_epoch': 3}))),
    folder('litgpt pretrain', 'step-00002000', *[x for n in (1000, 2000) for x in ((f'step-{n:08d}/lit_model.pth', litgpt(n)), (f'step-{n:08d}/model_config.yaml', b''), (f'step-{n:08d}/tokenizer.json', b'{}'), (f'step-{n:08d}/hyperparameters.yaml', b''))]),
    folder('litgpt pretrain finished', ('step-00002000', 'final'), *[x for n in ('step-00001000', 'step-00002000', 'final') for x in ((f'{n}/lit_model.pth', litgpt(1000)), (f'{n}/config.json', b'{}'))]),
    folder('lit-gpt old flat', 'iter-120000-ckpt.pth', *((f'iter-{n:06d}-ckpt.pth', state(iter_num=n, step_count=n)) for n in (40000, 80000, 120000))),
    folder('torchtune full', ('epoch_1', ''), *torchtune(0), ('recipe_state/recipe_state.pt', torch_file({'optimizer': adam(NET), 'epochs_run': 1, 'seed': 1})), *torchtune(1), ('recipe_state/recipe_state.pt', torch_file({'optimizer': adam(NET), 'epochs_run': 2, 'seed': 1}))),
    folder('torchtune lora', ('epoch_1', ''), *[x for e in (0, 1) for x in ((f'epoch_{e}/adapter_model.safetensors', safe(SMALL)), (f'epoch_{e}/adapter_config.json', b'{}'), (f'epoch_{e}/adapter_model.pt', model(SMALL)))], ('recipe_state/recipe_state.pt', torch_file({'optimizer': adam(SMALL), 'epochs_run': 2}))),
    folder('olmo unsharded', 'step2000-unsharded', *olmo(1000, '-unsharded'), *olmo(2000, '-unsharded'), ('latest-unsharded -> step2000-unsharded', b'')),
    folder('olmo sharded', 'step2000', *olmo_sharded(1000), *olmo_sharded(2000), ('latest -> step2000', b'')),
    folder('olmo sharded torn', 'step1000', *olmo_sharded(1000), *olmo_sharded(2000, (0,))[:3], ('latest -> step1000', b'')),
    folder('olmo both', 'step2000', *olmo_sharded(1000), *olmo(1000, '-unsharded'), *olmo_sharded(2000)),
    folder('megatron', 'iter_0000200', *megatron_ranks(100), *megatron_ranks(200), ('latest_checkpointed_iteration.txt', b'200')),
    folder('megatron distrib_optim', 'iter_0000200', *[x for n in (100, 200) for r in (0, 1) for x in ((f'iter_{n:07d}/mp_rank_{r:02d}/model_optim_rng.pt', torch_file({'model': NET, 'iteration': n, 'opt_param_scheduler': {'lr': 0.1}})), (f'iter_{n:07d}/mp_rank_{r:02d}/distrib_optim.pt', optimizer()))], ('latest_checkpointed_iteration.txt', b'200')),
    folder('megatron release', ('release', ''), *[(f'release/mp_rank_0{r}/model_optim_rng.pt', model(key='model')) for r in (0, 1)], ('latest_checkpointed_iteration.txt', b'release')),
    folder('deepspeed', 'global_step200', *deepspeed('', 100), *deepspeed('', 200), ('latest', b'global_step200'), ('zero_to_fp32.py', b'#')),
    folder('deepspeed torn', 'global_step100', *deepspeed('', 100), ('latest', b'global_step100'), *deepspeed('', 200, (0,))),
    folder('deepspeed own tags', 'epoch2', *deepspeed('', 100, name='epoch1'), *deepspeed('', 200, name='epoch2'), ('latest', b'epoch2')),
    folder('gpt-neox', 'global_step200', *neox(100), *neox(200), ('latest', b'global_step200')),
    folder('nanotron', '200', *nanotron(100), *nanotron(200), ('latest.txt', b'200')),
    folder('picotron', '200', *picotron(100), *picotron(200)),
    folder('modded-nanogpt', 'state_step002000.pt', ('log.txt', b''), *((f'state_step{n:06d}.pt', torch_file({'step': n, 'code': 'x', 'model': NET, 'optimizers': [adam(NET), adam(SMALL)]})) for n in (1000, 2000))),
    folder('llm.c', '', *[x for n in (100, 200) for x in ((f'model_{n:08d}.bin', llmc()), (f'state_{n:08d}_00000.bin', llmc()), (f'DONE_{n:08d}', b''))], ('main.log', b'')),
    folder('rwkv', 'rwkv-4.pth', ('rwkv-init.pth', model()), *((f'rwkv-{n}.pth', model()) for n in range(5))),
    folder('llama-recipes full', 'model-2.pt', *[x for e in (0, 1, 2) for x in ((f'model-{e}.pt', model()), (f'optimizer-model-{e}.pt', optimizer()))]),
    folder('composer', 'ep1-ba1100-rank0.pt', ('ep0-ba900-rank0.pt', composer(900, 0)), ('ep1-ba1100-rank0.pt', composer(1100, 1)), ('latest-rank0.pt -> ep1-ba1100-rank0.pt', b'')),
    folder('composer with best link', 'ep2-ba300-rank0.pt', *((f'ep{e}-ba{e * 100 + 100}-rank0.pt', composer(e * 100 + 100, e)) for e in (0, 1, 2)), ('best-rank0.pt -> ep1-ba200-rank0.pt', b'')),
    folder('hf trainer', 'checkpoint-1000', *trainer('checkpoint-500', 500), *trainer('checkpoint-1000', 1000), ('model.safetensors', safe()), ('config.json', b'{}'), ('training_args.bin', values(a=1)), ('tokenizer.json', b'{}')),
    folder('hf lora', 'checkpoint-1000', *trainer('checkpoint-500', 500, True), *trainer('checkpoint-1000', 1000, True), ('adapter_model.safetensors', safe(SMALL)), ('adapter_config.json', b'{}')),
    folder('hf weights only', ('checkpoint-1000', ''), *trainer('checkpoint-500', 500, whole=False), *trainer('checkpoint-1000', 1000, whole=False)),
    folder('hf many gpus', 'checkpoint-1000', *trainer('checkpoint-500', 500, ranks=4), *trainer('checkpoint-1000', 1000, ranks=4)),
    folder('hf many gpus torn', 'checkpoint-500', *trainer('checkpoint-500', 500, ranks=4), *[f for f in trainer('checkpoint-1000', 1000, ranks=4) if 'rng_state_3' not in f[0] and 'trainer_state' not in f[0]]),
    folder('hf tmp', 'checkpoint-500', *trainer('checkpoint-500', 500), *trainer('tmp-checkpoint-1000', 1000)),
    folder('hf tmp new style', 'checkpoint-500', *trainer('checkpoint-500', 500), *list(trainer('tmp-checkpoint-1000-abc', 1000))[:3]),
    folder('hf deepspeed', 'checkpoint-1000', *[x for n in (500, 1000) for x in (*deepspeed(f'checkpoint-{n}/', n), (f'checkpoint-{n}/latest', f'global_step{n}'.encode()), (f'checkpoint-{n}/zero_to_fp32.py', b''), (f'checkpoint-{n}/model.safetensors', safe()), (f'checkpoint-{n}/config.json', b'{}'), (f'checkpoint-{n}/rng_state_0.pth', values(a=1)), (f'checkpoint-{n}/rng_state_1.pth', values(a=1)), (f'checkpoint-{n}/trainer_state.json', text(global_step=n)))]),
    folder('hf sharded weights', 'checkpoint-1000', *[x for n in (500, 1000) for x in (*[(f'checkpoint-{n}/model-0000{i}-of-00002.safetensors', safe()) for i in (1, 2)], (f'checkpoint-{n}/model.safetensors.index.json', text(weight_map={'a': 'model-00001-of-00002.safetensors', 'b': 'model-00002-of-00002.safetensors'})), (f'checkpoint-{n}/optimizer.pt', optimizer()), (f'checkpoint-{n}/scheduler.pt', values(a=1)), (f'checkpoint-{n}/rng_state.pth', values(a=1)), (f'checkpoint-{n}/trainer_state.json', text(global_step=n)))]),
    folder('hf run in a subfolder with a merged model', 'checkpoint-200', *trainer('checkpoint-100', 100, True), *trainer('checkpoint-200', 200, True), ('merged/model.safetensors', safe(LARGE)), ('merged/config.json', b'{}')),
    folder('llama-factory', 'checkpoint-200', *trainer('checkpoint-100', 100, True), *trainer('checkpoint-200', 200, True), ('trainer_log.jsonl', b''), ('training_loss.png', b'png'), ('all_results.json', b'{}')),
    folder('setfit / sentence transformers', 'checkpoint-20', *trainer('checkpoint-10', 10), *trainer('checkpoint-20', 20), ('eval/similarity.csv', b''), ('1_Pooling/config.json', b'{}'), ('modules.json', b''), ('model.safetensors', safe())),
    folder('accelerate auto', 'checkpoints/checkpoint_2', *[x for n in range(3) for x in accelerate(f'checkpoints/checkpoint_{n}')]),
    folder('accelerate steps and epochs', 'epoch_1', *accelerate('step_100'), *accelerate('epoch_0'), *accelerate('step_200'), *accelerate('epoch_1')),
    folder('accelerate steps and epochs, a step last', 'step_300', *accelerate('step_100'), *accelerate('epoch_0'), *accelerate('step_200'), *accelerate('epoch_1'), *accelerate('step_300')),
    folder('diffusers', 'checkpoint-1000', *[x for n in (500, 1000) for x in accelerate(f'checkpoint-{n}', ('unet/diffusion_pytorch_model.safetensors', safe(LARGE)), ('unet/config.json', b'{}'), ('unet_ema/diffusion_pytorch_model.safetensors', safe(LARGE)), w=None)]),
    folder('diffusers finished', 'checkpoint-1000', *[x for n in (500, 1000) for x in accelerate(f'checkpoint-{n}', ('unet/diffusion_pytorch_model.safetensors', safe(LARGE)), w=None)], ('unet/diffusion_pytorch_model.safetensors', safe(LARGE)), ('unet/config.json', b'{}'), ('vae/diffusion_pytorch_model.safetensors', safe(OTHER)), ('vae/config.json', b'{}'), ('model_index.json', b'{}')),
    folder('diffusers lora', 'checkpoint-1000', *[x for n in (500, 1000) for x in accelerate(f'checkpoint-{n}', ('pytorch_lora_weights.safetensors', safe(SMALL)), w=None)], ('pytorch_lora_weights.safetensors', safe(SMALL))),
    folder('textual inversion', 'checkpoint-1000', *accelerate('checkpoint-500'), ('learned_embeds-steps-500.safetensors', safe(SMALL)), *accelerate('checkpoint-1000'), ('learned_embeds-steps-1000.safetensors', safe(SMALL)), ('learned_embeds.safetensors', safe(SMALL))),
    folder('kohya state', 'out-000002-state', *[x for n in (1, 2) for x in ((f'out-{n:06d}.safetensors', safe(SMALL, ss_epoch=str(n))), *accelerate(f'out-{n:06d}-state', ('train_state.json', text(current_epoch=n, current_step=n * 100))))]),
    folder('kohya step state', 'out-step00001000-state', *[x for n in (500, 1000) for x in ((f'out-step{n:08d}.safetensors', safe(SMALL)), *accelerate(f'out-step{n:08d}-state'))]),
    folder('kohya final', ('out-state', 'out-000002-state'), *[x for n in (1, 2) for x in ((f'out-{n:06d}.safetensors', safe(SMALL)), *accelerate(f'out-{n:06d}-state'))], ('out.safetensors', safe(SMALL)), *accelerate('out-state')),
    folder('kohya no state', 'out-000003.safetensors', *((f'out-{n:06d}.safetensors', safe(SMALL)) for n in (1, 2, 3)), ('sample/out_e000003_00.png', b'')),
    folder('lightning', 'lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', ('lightning_logs/version_0/hparams.yaml', b''), ('lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', lightning(400, 3))),
    folder('lightning resumed in new version', 'lightning_logs/version_1/checkpoints/epoch=5-step=600.ckpt', ('lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', lightning(400, 3)), ('lightning_logs/version_1/checkpoints/epoch=5-step=600.ckpt', lightning(600, 5))),
    folder('lightning run anew in new version', 'lightning_logs/version_1/checkpoints/epoch=0-step=100.ckpt', *(at(f'lightning_logs/version_0/checkpoints/epoch={e}-step={e * 100 + 100}.ckpt', lightning(e * 100 + 100, e), e) for e in range(4)), *(at(f'lightning_logs/version_1/checkpoints/epoch={e}-step={e * 100 + 100}.ckpt', lightning(e * 100 + 100, e), 100 + e) for e in range(1))),
    folder('lightning last-v1', 'last-v1.ckpt', ('epoch=1-step=200.ckpt', lightning(200, 1)), ('last.ckpt', lightning(200, 1)), ('epoch=2-step=300.ckpt', lightning(300, 2)), ('last-v1.ckpt', lightning(350, 3))),
    folder('lightning best and last', 'last.ckpt', ('best-epoch=2-val_loss=0.30.ckpt', lightning(300, 2)), ('last.ckpt', lightning(500, 4))),
    folder('lightning best weights only', 'last.ckpt', ('last.ckpt', lightning(500, 4)), ('best-epoch=4-val_loss=0.30.ckpt', lightning(500, 4, False))),
    folder('lightning hpc', 'hpc_ckpt_1.ckpt', ('checkpoints/epoch=1-step=200.ckpt', lightning(200, 1)), ('hpc_ckpt_1.ckpt', lightning(250, 2))),
    folder('lightning metric in name', 'epoch=10-val_acc=0.81.ckpt', *((f'epoch={e:02d}-val_acc={a}.ckpt', lightning(e * 10, e)) for e, a in ((8, 0.9), (9, 0.85), (10, 0.81)))),
    folder('nemo', 'm--val_loss=0.5000-epoch=3-last.ckpt', ('m--val_loss=0.7000-epoch=2.ckpt', lightning(200, 2)), ('m--val_loss=0.5000-epoch=3.ckpt', lightning(300, 3)), ('m--val_loss=0.5000-epoch=3-last.ckpt', lightning(350, 3)), ('m.nemo', b'tarish')),
    folder('lightning deepspeed', 'epoch=1-step=200.ckpt', *[x for e in (0, 1) for x in (*deepspeed(f'epoch={e}-step={e * 100 + 100}.ckpt/', 100, name='checkpoint'), (f'epoch={e}-step={e * 100 + 100}.ckpt/latest', b'checkpoint'), (f'epoch={e}-step={e * 100 + 100}.ckpt/zero_to_fp32.py', b''))]),
    folder('timm', 'last.pth.tar', *((f'checkpoint-{e}.pth.tar', state('state_dict', epoch=e, arch='x', metric=1.0)) for e in (2, 3, 4)), ('model_best.pth.tar', state('state_dict', epoch=3)), ('last.pth.tar', state('state_dict', epoch=5)), ('summary.csv', b'')),
    folder('timm recovery', 'recovery-5-200.pth.tar', *((f'checkpoint-{e}.pth.tar', state('state_dict', epoch=e)) for e in (3, 4)), ('last.pth.tar', state('state_dict', epoch=4)), ('model_best.pth.tar', state('state_dict', epoch=3)), ('recovery-5-200.pth.tar', state('state_dict', epoch=5))),
    folder('detectron2', 'model_0009999.pth', ('metrics.json', b''), ('model_0004999.pth', state(scheduler={}, iteration=4999)), ('last_checkpoint', b'model_0004999.pth'), ('inference/instances_predictions.pth', torch_file([{'image_id': 1, 'instances': []}])), ('model_0009999.pth', state(scheduler={}, iteration=9999)), ('last_checkpoint', b'model_0009999.pth')),
    folder('detectron2 finished', 'model_final.pth', ('model_0004999.pth', state(iteration=4999)), ('model_0009999.pth', state(iteration=9999)), ('model_final.pth', state(iteration=11999)), ('last_checkpoint', b'model_final.pth')),
    folder('mmengine', ('epoch_3.pth', 'best_coco_bbox_mAP_epoch_3.pth'), *((f'epoch_{e}.pth', mmengine(e, e * 10)) for e in (1, 2, 3)), ('last_checkpoint', b'/x/epoch_3.pth'), ('best_coco_bbox_mAP_epoch_3.pth', mmengine(3, 30)), ('20260101_000000/vis_data/scalars.json', b'')),
    folder('mmseg iters', 'iter_16000.pth', *((f'iter_{n}.pth', mmengine(0, n)) for n in (8000, 16000)), ('best_mIoU_iter_8000.pth', mmengine(0, 8000)), ('last_checkpoint', b'/x/iter_16000.pth')),
    folder('yolo v8 weights folder', 'last.pt', ('best.pt', yolo(7)), ('last.pt', yolo(9))),
    folder('yolo v8 run folder', 'weights/last.pt', ('args.yaml', b''), ('results.csv', b''), ('weights/last.pt', yolo(9)), ('weights/best.pt', yolo(8))),
    folder('yolo save period', 'last.pt', ('epoch0.pt', yolo(0)), ('epoch10.pt', yolo(10)), ('best.pt', yolo(12)), ('last.pt', yolo(14))),
    folder('yolo best equal last', ('last.pt', 'best.pt'), ('last.pt', yolo(9)), ('best.pt', yolo(9))),
    folder('torchvision refs', ('checkpoint.pth', 'model_2.pth'), *[x for e in (0, 1, 2) for x in ((f'model_{e}.pth', state(epoch=e, lr_scheduler={}, args={})),)], ('checkpoint.pth', state(epoch=2, lr_scheduler={}, args={}))),
    folder('imagenet example', ('checkpoint.pth.tar', 'model_best.pth.tar'), ('checkpoint.pth.tar', state('state_dict', epoch=5, best_acc1=0.5)), ('model_best.pth.tar', state('state_dict', epoch=5, best_acc1=0.5))),
    folder('imagenet example, best older', 'checkpoint.pth.tar', ('model_best.pth.tar', state('state_dict', epoch=3)), ('checkpoint.pth.tar', state('state_dict', epoch=5))),
    folder('open_clip', ('checkpoints/epoch_latest.pt', 'checkpoints/epoch_3.pt'), *((f'checkpoints/epoch_{e}.pt', state('state_dict', epoch=e, name='x', scaler={})) for e in (1, 2, 3)), ('checkpoints/epoch_latest.pt', state('state_dict', epoch=3)), ('out.log', b'')),
    folder('open_clip latest mid', 'epoch_latest.pt', *((f'epoch_{e}.pt', state('state_dict', epoch=e)) for e in (5, 10)), ('epoch_latest.pt', state('state_dict', epoch=12))),
    folder('dino', 'checkpoint.pth', *((f'checkpoint{e:04d}.pth', torch_file({'student': NET, 'teacher': NET, 'optimizer': adam(NET), 'epoch': e + 1})) for e in (0, 20, 40)), ('checkpoint.pth', torch_file({'student': NET, 'teacher': NET, 'optimizer': adam(NET), 'epoch': 45})), ('log.txt', b'')),
    folder('mae', 'checkpoint-40.pth', *((f'checkpoint-{e}.pth', state(epoch=e, scaler={}, args={})) for e in (0, 20, 40)), ('log.txt', b'')),
    folder('swin', 'ckpt_epoch_10.pth', *((f'ckpt_epoch_{e}.pth', state(epoch=e, lr_scheduler={}, max_accuracy=0.5)) for e in (8, 9, 10)), ('config.json', b'{}')),
    folder('detr', 'checkpoint.pth', ('checkpoint0099.pth', state(epoch=99)), ('checkpoint.pth', state(epoch=120)), ('eval/latest.pth', torch_file({'precision': Tensor((10, 101, 80)), 'recall': Tensor((10, 80))}))),
    folder('moco', 'checkpoint_0010.pth.tar', *((f'checkpoint_{e:04d}.pth.tar', state('state_dict', epoch=e + 1)) for e in (8, 9, 10))),
    folder('slowfast', 'checkpoints/checkpoint_epoch_00010.pyth', *((f'checkpoints/checkpoint_epoch_{e:05d}.pyth', state('model_state', 'optimizer_state', epoch=e, cfg='x')) for e in (5, 10))),
    folder('pycls', 'checkpoints/model_epoch_0003.pyth', *((f'checkpoints/model_epoch_{e:04d}.pyth', state('model_state', 'optimizer_state', epoch=e)) for e in (1, 2, 3)), ('checkpoints/model.pyth', model(key='model_state'))),
    folder('dinov2', 'model_0024999.rank_0.pth', *[(f'model_{n:07d}.rank_{r}.pth', state(iteration=n)) for n in (12499, 24999) for r in (0, 1)], ('last_checkpoint.rank_0', b'model_0024999.rank_0.pth'), ('last_checkpoint.rank_1', b'model_0024999.rank_1.pth'), ('eval/training_24999/teacher_checkpoint.pth', model(key='teacher'))),
    folder('mmf', 'current.ckpt', ('models/model_1000.ckpt', state(current_iteration=1000, current_epoch=1)), ('models/model_2000.ckpt', state(current_iteration=2000, current_epoch=2)), ('best.ckpt', state(current_iteration=1000, current_epoch=1)), ('current.ckpt', state(current_iteration=2400, current_epoch=2))),
    folder('monai', 'checkpoint_epoch=10.pt', *((f'checkpoint_epoch={e}.pt', torch_file({'net': NET, 'opt': adam(NET)})) for e in (8, 9, 10)), ('net_key_metric=0.8512.pt', model(key='net'))),
    folder('monai finished', 'checkpoint_final_iteration=1000.pt', *((f'checkpoint_iteration={e}.pt', torch_file({'net': NET, 'opt': adam(NET)})) for e in (400, 800)), ('checkpoint_final_iteration=1000.pt', torch_file({'net': NET, 'opt': adam(NET)}))),
    folder('nnunet', ('fold_0/checkpoint_latest.pth', 'checkpoint_latest.pth'), ('checkpoint_best.pth', nnunet(93)), ('checkpoint_latest.pth', nnunet(100)), ('validation/a.npz', npz_file(a=[1.0])), ('progress.png', b'')),
    folder('nnunet best later', ('checkpoint_best.pth', 'checkpoint_latest.pth'), ('checkpoint_latest.pth', nnunet(100)), ('checkpoint_best.pth', nnunet(103))),
    folder('nnunet fold folders', ('fold_1/checkpoint_latest.pth', ''), ('plans.json', b''), ('fold_0/checkpoint_final.pth', nnunet(1000)), ('fold_1/checkpoint_latest.pth', nnunet(50))),
    folder('efficientdet zylo', 'efficientdet-d0_12_3500.pth', *((f'efficientdet-d0_{e}_{n}.pth', model()) for e, n in ((9, 2500), (10, 3000), (12, 3500)))),
    folder('segment: weights.12-0.34 style', 'weights.10-0.29.pt', *((f'weights.{e:02d}-{v}.pt', state()) for e, v in ((8, '0.41'), (9, '0.34'), (10, '0.29')))),
    folder('loss alone in the name', 'model_loss_0.231.pt', *((f'model_loss_{v}.pt', state()) for v in ('0.912', '0.511', '0.231'))),
    folder('loss alone, weights alone', '0.231.pth', *((f'{v}.pth', model()) for v in ('0.912', '0.511', '0.231'))),
    folder('acc alone, last lower', 'acc_71.30.pth', *((f'acc_{v}.pth', state()) for v in ('70.10', '74.52', '71.30'))),
    folder('epoch and acc', 'model_epoch10_acc0.910.pth', *((f'model_epoch{e}_acc{a}.pth', state()) for e, a in ((8, '0.930'), (9, '0.925'), (10, '0.910')))),
    folder('acc then epoch', 'acc0.910_epoch10.pth', *((f'acc{a}_epoch{e}.pth', state()) for e, a in ((8, '0.930'), (9, '0.925'), (10, '0.910')))),
    folder('epoch, step within it', 'epoch_10_step_50.pt', *((f'epoch_{e}_step_{s}.pt', state()) for e, s in ((9, 50), (9, 100), (10, 50)))),
    folder('e b within it', 'ckpt_e10_b200.pt', *((f'ckpt_e{e}_b{s}.pt', state()) for e, s in ((9, 200), (9, 400), (10, 200)))),
    folder('epoch batch, no words', 'model_2_100.pth', *((f'model_{e}_{s}.pth', state()) for e, s in ((1, 100), (1, 200), (1, 300), (2, 100)))),
    folder('bare epochs', '10.pth', *((f'{e}.pth', model()) for e in (8, 9, 10))),
    folder('stylegan2-ada', '', ('network-snapshot-000000.pkl', RAW), ('network-snapshot-000200.pkl', RAW), ('metric-fid50k_full.jsonl', b''), ('fakes000200.png', b''), ('training_options.json', b'')),
    folder('edm', 'training-state-005000.pt', *[x for n in (2500, 5000) for x in ((f'network-snapshot-{n:06d}.pkl', RAW), (f'training-state-{n:06d}.pt', torch_file({'net': NET, 'optimizer_state': adam(NET)})))]),
    folder('stylegan2 rosinality', '020000.pt', *((f'{n:06d}.pt', torch_file({'g': NET, 'd': OTHER, 'g_ema': NET, 'g_optim': adam(NET), 'd_optim': adam(OTHER), 'args': {}, 'ada_aug_p': 0.1})) for n in (10000, 20000))),
    folder('pix2pix mid', 'latest_net_G.pth', ('5_net_G.pth', model()), ('5_net_D.pth', model(OTHER)), ('10_net_G.pth', model()), ('10_net_D.pth', model(OTHER)), ('latest_net_G.pth', model()), ('latest_net_D.pth', model(OTHER))),
    folder('pix2pix end of epoch', ('latest_net_G.pth', '10_net_G.pth'), ('5_net_G.pth', model()), ('5_net_D.pth', model(OTHER)), at('latest_net_G.pth', model(), 10), at('latest_net_D.pth', model(OTHER), 10), at('10_net_G.pth', model(), 10.01), at('10_net_D.pth', model(OTHER), 10.01)),
    folder('cyclegan mid', 'latest_net_G_A.pth', *cyclegan('5', 1), *cyclegan('10', 2), *cyclegan('latest', 3)),
    folder('vits', 'G_2000.pth', *[(f'{k}_{n}.pth', vits(k, n, n // 100)) for n in (1000, 2000) for k in 'GD'], ('train.log', b''), ('eval/events.out.tfevents.1', b'')),
    folder('so-vits', 'G_2000.pth', ('G_0.pth', vits('G', 0, 1)), ('D_0.pth', vits('D', 0, 1)), *[(f'{k}_{n}.pth', vits(k, n, n // 100)) for n in (1000, 2000) for k in 'GD'], ('kmeans_10000.pt', torch_file({'cluster_centers_': Tensor((100, 16))})), ('diffusion/model_0.pt', model(OTHER))),
    folder('vits torn pair', 'G_1000.pth', *[(f'{k}_{n}.pth', vits(k, n, n // 100)) for n in (1000, 2000) for k in 'GD'][:3]),
    folder('rvc', 'G_2333333.pth', ('G_2333333.pth', vits('G', 0, 20)), ('D_2333333.pth', vits('D', 0, 20)), ('weights/me_e20_s4000.pth', model(key='weight')), ('added_IVF.index', b'idx'), ('total_fea.npy', b'\x93NUMPY')),
    folder('basicsr', ('training_states/10000.state', 'models/net_g_10000.pth', ''), *[x for n in (5000, 10000) for x in ((f'models/net_g_{n}.pth', model(key='params')), (f'models/net_d_{n}.pth', model(OTHER, key='params')), (f'training_states/{n}.state', torch_file({'epoch': n // 100, 'iter': n, 'optimizers': [adam(NET)], 'schedulers': [{'l': 1}]})))], ('models/net_g_latest.pth', model(key='params'))),
    folder('basicsr states folder', '10000.state', *((f'{n}.state', torch_file({'epoch': n // 100, 'iter': n, 'optimizers': [adam(NET)], 'schedulers': [{'l': 1}]})) for n in (5000, 10000))),
    folder('guided-diffusion', 'model020000.pt', *guided(10000), *guided(20000), ('progress.csv', b'')),
    folder('guided-diffusion torn', 'model010000.pt', *guided(10000), *guided(20000)[:1]),
    folder('lucidrains ddpm', 'model-10.pt', *[x for n in (8, 9, 10) for x in ((f'model-{n}.pt', torch_file({'step': n * 1000, 'model': NET, 'opt': adam(NET), 'ema': NET, 'scaler': None})), (f'sample-{n}.png', b''))]),
    folder('dit', '0100000.pt', *((f'{n:07d}.pt', torch_file({'model': NET, 'ema': NET, 'opt': adam(NET), 'args': {}})) for n in (50000, 100000))),
    folder('yunjey encoder decoder', 'encoder-10-3000.ckpt', *[(f'{k}-{e}-3000.ckpt', model(NET if k == 'encoder' else OTHER)) for e in (8, 9, 10) for k in ('decoder', 'encoder')]),
    folder('dcgan example', 'netG_epoch_10.pth', *[(f'net{k}_epoch_{e}.pth', model(NET if k == 'G' else OTHER)) for e in (8, 9, 10) for k in 'GD'], ('fake_samples_epoch_010.png', b'')),
    folder('G.pth D.pth optimizers overwritten', 'generator.pth', ('generator.pth', model()), ('discriminator.pth', model(OTHER)), ('optimizer_G.pth', optimizer()), ('optimizer_D.pth', optimizer(OTHER))),
    folder('eriklindernoren', ('generator_20.pth', 'G_AB_20.pth'), *[(f'{k}_{e}.pth', model(NET if k == 'generator' else OTHER)) for e in (10, 20) for k in ('generator', 'discriminator')]),
    folder('lora and resume pickle', 'checkpoint_300.pt', *[x for n in (100, 200, 300) for x in ((f'checkpoint_{n}.pt', state(step=n)), (f'lora_{n}.safetensors', safe(SMALL)))], ('lora_final.safetensors', safe(SMALL))),
    folder('coqui', 'checkpoint_20000.pth', ('checkpoint_10000.pth', coqui(10000, 1)), ('best_model_9000.pth', coqui(9000, 1)), ('best_model.pth', coqui(9000, 1)), ('checkpoint_20000.pth', coqui(20000, 2)), ('config.json', b'{}')),
    folder('fairseq', 'checkpoint_last.pt', ('checkpoint1.pt', fairseq(100, 1)), ('checkpoint_1_150.pt', fairseq(150, 1)), ('checkpoint2.pt', fairseq(200, 2)), ('checkpoint_best.pt', fairseq(200, 2)), ('checkpoint_last.pt', fairseq(250, 3))),
    folder('fairseq shards', ('checkpoint_last-shard0.pt', 'checkpoint_1_200-shard0.pt'), *[(f'checkpoint_{n}-shard{r}.pt', fairseq(u, 1)) for n, u in (('1_100', 100), ('1_200', 200), ('last', 250)) for r in (0, 1)]),
    folder('fairseq without optimizer state in best', 'checkpoint_last.pt', ('checkpoint_last.pt', fairseq(250, 3)), ('checkpoint_best.pt', torch_file({'model': NET, 'optimizer_history': [{'num_updates': 250}], 'extra_state': {'train_iterator': {'epoch': 3}}}))),
    folder('espnet', 'checkpoint.pth', *((f'{e}epoch.pth', model()) for e in (1, 2, 3)), ('checkpoint.pth', torch_file({'reporter': {'epoch': 3}, 'model': NET, 'optimizers': [adam(NET)], 'schedulers': [None], 'scaler': None})), ('latest.pth -> 3epoch.pth', b''), ('valid.acc.best.pth -> 2epoch.pth', b''), ('valid.acc.ave_10best.pth', model()), ('config.yaml', b'')),
    folder('speechbrain', 'CKPT+2026-01-01+12-00-00+00', *speechbrain('CKPT+2026-01-01+10-00-00+00', 1), *speechbrain('CKPT+2026-01-01+11-00-00+00', 2), *speechbrain('CKPT+2026-01-01+12-00-00+00', 3)),
    folder('wenet', '3.pt', ('init.pt', model()), *[x for e in (0, 1, 2, 3) for x in ((f'{e}.pt', model()), (f'{e}.yaml', b''))]),
    folder('icefall', ('epoch-2.pt', 'best-valid-loss.pt'), ('checkpoint-4000.pt', icefall(4000)), ('epoch-1.pt', icefall(5000)), ('checkpoint-8000.pt', icefall(8000)), ('epoch-2.pt', icefall(10000)), ('best-valid-loss.pt', icefall(10000))),
    folder('icefall mid', 'checkpoint-12000.pt', ('checkpoint-4000.pt', icefall(4000)), ('epoch-1.pt', icefall(5000)), ('best-train-loss.pt', icefall(5000)), ('checkpoint-8000.pt', icefall(8000)), ('epoch-2.pt', icefall(10000)), ('checkpoint-12000.pt', icefall(12000))),
    folder('tacotron2', 'checkpoint_2000', *((f'checkpoint_{n}', state('state_dict', iteration=n, learning_rate=0.1)) for n in (1000, 2000)), ('logs/x', b'')),
    folder('hifigan', ('g_00020000', 'do_00020000'), *[x for n in (10000, 20000) for x in ((f'g_{n:08d}', model(key='generator')), (f'do_{n:08d}', torch_file({'mpd': OTHER, 'msd': OTHER, 'optim_g': adam(NET), 'optim_d': adam(OTHER), 'steps': n, 'epoch': 1})))]),
    folder('parallel wavegan', 'checkpoint-200000steps.pkl', *((f'checkpoint-{n}steps.pkl', torch_file({'optimizer': {'generator': adam(NET), 'discriminator': adam(OTHER)}, 'scheduler': {}, 'steps': n, 'epochs': 1, 'model': {'generator': NET, 'discriminator': OTHER}})) for n in (100000, 200000))),
    folder('fastspeech2', '200000.pth.tar', *((f'{n}.pth.tar', state()) for n in (100000, 200000))),
    folder('whisper jax/flax msgpack', '', ('flax_model.msgpack', b'\x81\xa1'), ('checkpoint_1000', b'\x81\xa6params'), ('checkpoint_2000', b'\x81\xa6params')),
    folder('sb3', 'rl_model_20000_steps.zip', *[x for n in (10000, 20000) for x in ((f'rl_model_{n}_steps.zip', stable_baselines(n)), (f'rl_model_replay_buffer_{n}_steps.pkl', RAW), (f'rl_model_vecnormalize_{n}_steps.pkl', RAW))], ('best_model.zip', stable_baselines(0)), ('evaluations.npz', npz_file(timesteps=[1], results=[[0.1]]))),
    folder('sb3 large numbers', 'rl_model_1000000_steps.zip', *((f'rl_model_{n}_steps.zip', stable_baselines(n)) for n in (800000, 900000, 1000000))),
    folder('cleanrl', ('ppo.cleanrl_model', ''), ('ppo.cleanrl_model', model()), ('events.out.tfevents.1', b'')),
    folder('rllib', ('checkpoint_000020', ''), *[x for n in (10, 20) for x in ((f'checkpoint_{n:06d}/algorithm_state.pkl', RAW), (f'checkpoint_{n:06d}/rllib_checkpoint.json', b'{}'), (f'checkpoint_{n:06d}/policies/default_policy/policy_state.pkl', RAW))]),
    folder('td3', ('TD3_Ant_0_actor', ''), *((f'TD3_Ant_0_{k}', c) for k, c in (('critic', model(OTHER)), ('critic_optimizer', optimizer(OTHER)), ('actor', model()), ('actor_optimizer', optimizer())))),
    folder('actor critic numbers', 'actor_300.pth', *[(f'{k}_{n}.pth', model(NET if k == 'actor' else OTHER)) for n in (100, 200, 300) for k in ('actor', 'critic')], ('replay_buffer.pt', torch_file({'obs': Tensor((1000, 4))}))),
    folder('actor critic with optimizer files', 'actor_300.pth', *[(f'{k}_{n}.pth', c) for n in (100, 200, 300) for k, c in (('actor', model()), ('critic', model(OTHER)), ('actor_optimizer', optimizer()), ('critic_optimizer', optimizer(OTHER)))]),
    folder('dreamer pt', 'latest.pt', ('latest.pt', torch_file({'agent_state_dict': NET, 'optims_state_dict': {'model': adam(NET)}})), ('metrics.jsonl', b''), ('train_eps/2026-1.npz', npz_file(image=[1.0]))),
    folder('rsl_rl', 'model_200.pt', *((f'model_{n}.pt', state('model_state_dict', 'optimizer_state_dict', iter=n, infos=None)) for n in (0, 50, 100, 150, 200)), ('git/x.diff', b''), ('exported/policy.pt', model())),
    folder('two files overwritten', 'model.pt', ('model.pt', model()), ('optimizer.pt', optimizer())),
    folder('four files overwritten', 'model.pt', ('model.pt', model()), ('optimizer.pt', optimizer()), ('scheduler.pt', values(last_epoch=1)), ('scaler.pt', values(scale=1.0)), ('rng.pt', torch_file({'torch': Tensor((5056,))}))),
    folder('epoch folders of four files', 'epoch_2', *[x for e in (0, 1, 2) for x in ((f'epoch_{e}/model.pt', model()), (f'epoch_{e}/optimizer.pt', optimizer()), (f'epoch_{e}/scheduler.pt', values(a=1)))]),
    folder('epoch folders torn', 'epoch_1', *[x for e in (0, 1) for x in ((f'epoch_{e}/model.pt', model()), (f'epoch_{e}/optimizer.pt', optimizer()))], ('epoch_2/model.pt', model())),
    folder('models and optimizers folders', ('models/step_200.pt', ''), *[x for n in (100, 200) for x in ((f'models/step_{n}.pt', model()), (f'optimizers/step_{n}.pt', optimizer()))]),
    folder('weights container and optimizer file', 'weights/step_200.pt', *((f'weights/step_{n}.pt', model()) for n in (100, 200)), ('optimizer.pt', optimizer())),
    folder('rank folders', ('rank_0/step_200.pt', ''), *[(f'rank_{r}/step_{n}.pt', state(step=n)) for n in (100, 200) for r in (0, 1)]),
    folder('step folders of rank files', 'step_200', *[(f'step_{n}/rank_{r}.pt', state(step=n)) for n in (100, 200) for r in (0, 1, 2, 3)]),
    folder('step folders of rank files torn', 'step_100', *[(f'step_{n}/rank_{r}.pt', state(step=n)) for n in (100, 200) for r in (0, 1, 2, 3)][:-1]),
    folder('step folders model and optim ranks', 'step_200', *[(f'step_{n}/{k}_rank{r}.pt', c) for n in (100, 200) for r in (0, 1) for k, c in (('model', model()), ('optim', optimizer()))]),
    folder('latest and backup', 'latest.pt', ('latest_backup.pt', state(step=200)), ('latest.pt', state(step=300))),
    folder('latest torn, backup whole', 'latest_backup.pt', ('latest_backup.pt', state(step=200)), ('latest.pt', torn(state(step=300)))),
    folder('pt.bak, torn', 'ckpt.pt.bak', ('ckpt.pt.bak', state(step=200)), ('ckpt.pt', torn(state(step=300)))),
    folder('pt.bak, whole', 'ckpt.pt', ('ckpt.pt.bak', state(step=200)), ('ckpt.pt', state(step=300))),
    folder('bak copied after', ('ckpt.pt', 'ckpt.pt.bak'), ('ckpt.pt', state(step=300)), ('ckpt.pt.bak', state(step=300))),
    folder('prev without steps', 'ckpt.pt', ('ckpt_prev.pt', state()), ('ckpt.pt', state())),
    folder('prev copied before the save', 'ckpt.pt', at('ckpt_prev.pt', state(), 10), at('ckpt.pt', state(), 10.05)),
    folder('logrotate', 'ckpt.pt', ('ckpt.pt.2', state(step=100)), ('ckpt.pt.1', state(step=200)), ('ckpt.pt', state(step=300))),
    folder('enhanced system', 'emergency_step_019876_20251106_203145.pt', ('epoch_00000.pt', state(step=10000)), ('best_model_previous.pt', state(step=12000)), ('best_model_backup.pt', state(step=15000)), ('best_model.pt', state(step=15000)), *((f'rolling_step_{n:06d}.pt', state(step=n)) for n in (18000, 18500, 19000)), ('rolling_last_backup.pt', state(step=19000)), ('latest_backup.pt', state(step=18500)), ('latest.pt', state(step=19000)), ('emergency_step_012345_20251106_143022.pt', state(step=12345)), ('emergency_step_019876_20251106_203145.pt', state(step=19876))),
    folder('enhanced without steps in content', 'emergency_step_019876_20251106_203145.pt', ('epoch_00000.pt', state()), ('emergency_step_012345_20251106_143022.pt', state()), ('best_model.pt', state()), *((f'rolling_step_{n:06d}.pt', state()) for n in (18000, 18500, 19000)), ('latest.pt', state()), ('emergency_step_019876_20251106_203145.pt', state())),
    folder('preempted', 'preempt_step_350.pt', *((f'step_{n}.pt', state()) for n in (100, 200, 300)), ('preempt_step_350.pt', state())),
    folder('interrupted', 'interrupted.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200, 300)), ('interrupted.pt', state(step=350))),
    folder('interrupted weights', 'step_300.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200, 300)), ('INTERRUPTED.pth', model())),
    folder('milesial unet interrupted', 'INTERRUPTED.pth', *((f'checkpoint_epoch{e}.pth', model()) for e in (1, 2, 3)), ('INTERRUPTED.pth', model())),
    folder('milesial unet', 'checkpoint_epoch3.pth', ('INTERRUPTED.pth', model()), *((f'checkpoint_epoch{e}.pth', model()) for e in (1, 2, 3))),
    folder('copied back, times equal', 'step_1000.pt', *(at(f'step_{n}.pt', state(), 5) for n in (100, 200, 900, 1000))),
    folder('copied back, times reversed', 'epoch_3.pt', *(at(f'epoch_{n}.pt', state(), 5 - n) for n in (1, 2, 3))),
    folder('copied back, last and best, epoch inside', 'last.pt', *(at(n, state(epoch=e), 5) for n, e in (('best.pt', 7), ('last.pt', 9)))),
    folder('copied back, last and best, nothing inside', 'last.pt', *(at(n, state(), 5) for n in ('best.pt', 'last.pt'))),
    folder('copied back, copy order reversed, nothing inside', 'last.pt', at('last.pt', state(), 5), at('best.pt', state(), 5.02)),
    folder('link latest', 'step_300.pt', *((f'step_{n}.pt', state()) for n in (100, 200, 300)), ('latest.pt -> step_300.pt', b'')),
    folder('two runs by prefix', 'run2_step_200.pt', *(at(f'run1_step_{n}.pt', state(step=n), n / 100) for n in (100, 200, 300, 400, 500)), *(at(f'run2_step_{n}.pt', state(step=n), 50 + n / 100) for n in (100, 200))),
    folder('two runs by prefix, names only', 'run2_step_200.pt', *(at(f'run1_step_{n}.pt', state(), n / 100) for n in (100, 200, 300, 400, 500)), *(at(f'run2_step_{n}.pt', state(), 50 + n / 100) for n in (100, 200))),
    folder('two models by prefix, names only', 'unet_epoch_2.pth', *(at(f'resnet_epoch_{n}.pth', state(), n) for n in (1, 2, 3, 4, 5)), *(at(f'unet_epoch_{n}.pth', state(net=OTHER), 50 + n) for n in (1, 2))),
    folder('overwritten from lower, exact', 'step_200.pt', *(at(f'step_{n}.pt', state(step=n), n / 100) for n in (300, 400, 500)), *(at(f'step_{n}.pt', state(step=n), 60 + n / 100) for n in (100, 200))),
    folder('dated run folders', ('2026-01-02_10-00-00/step_200.pt', ''), *((f'2026-01-0{d}_10-00-00/step_{n}.pt', state(step=n)) for d, n in ((1, 100), (1, 200), (2, 100), (2, 200)))),
    folder('run folders', ('run_2/step_200.pt', 'run_2', ''), *((f'run_{d}/step_{n}.pt', state(step=n)) for d, n in ((1, 100), (1, 200), (2, 100), (2, 200)))),
    folder('version folders in checkpoints', 'checkpoints/version_1/step_200.pt', *((f'checkpoints/version_{d}/step_{n}.pt', state()) for d, n in ((0, 100), (0, 200), (1, 100), (1, 200)))),
    folder('cached datasets', 'ckpt.pt', ('ckpt.pt', state()), ('train_dataset.pt', torch_file({'x': Tensor((1000, 16)), 'y': Tensor((1000,))})), ('cached_features_train_128', torch_file([{'ids': [1, 2]}])), ('val_split.pt', torch_file([1, 2, 3]))),
    folder('cached tensors beside a series', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('processed.pt', torch_file({'x': Tensor((1000, 16)), 'y': Tensor((1000,))})), ('tokens_10000.pt', torch_file(Tensor((10000,))))),
    folder('embedding series beside last', 'last.pt', ('embeddings_100.pt', torch_file(Tensor((10, 16)))), ('last.pt', state()), ('embeddings_200.pt', torch_file(Tensor((10, 16)))), ('embeddings_300.pt', torch_file(Tensor((10, 16))))),
    folder('embedding series beside weights alone', 'model.pt', ('embeddings_100.pt', torch_file(Tensor((10, 16)))), ('model.pt', model()), ('embeddings_200.pt', torch_file(Tensor((10, 16))))),
    folder('prediction series beside last', 'last.pt', ('last.pt', state()), *((f'preds_epoch_{e}.npz', npz_file(p=[1.0, 2.0])) for e in (1, 2, 3))),
    folder('feature dict series beside weights alone', 'model.pt', ('model.pt', model()), *((f'feats_epoch_{e}.pt', torch_file({'feats': Tensor((100, 16)), 'labels': Tensor((100,))})) for e in (1, 2, 3))),
    folder('latents beside a series of weights', 'epoch_3.pth', *((f'epoch_{e}.pth', model()) for e in (1, 2, 3)), ('latents.pt', torch_file({'z': Tensor((64, 512))}))),
    folder('probe heads beside a series', 'epoch_3.pth', *((f'epoch_{e}.pth', state()) for e in (1, 2, 3)), *((f'probe_epoch_{e}.pth', state(net=SMALL)) for e in (1, 2, 3))),
    folder('probe heads with exact steps', 'step_300.pth', *((f'step_{e}.pth', state(step=e)) for e in (100, 200, 300)), *((f'linear_probe_{e}.pth', state(net=SMALL, step=e * 5)) for e in (100, 200, 300))),
    folder('ema series', 'step_300.pt', *[x for n in (100, 200, 300) for x in ((f'step_{n}.pt', state(step=n)), (f'step_{n}_ema.pt', model()))]),
    folder('ema series, no content steps', 'model_300.pt', *[x for n in (100, 200, 300) for x in ((f'model_{n}.pt', model()), (f'model_ema_{n}.pt', model()))]),
    folder('adapter folders and a state', 'state_300.pt', *[x for n in (100, 200, 300) for x in ((f'state_{n}.pt', state(net=SMALL)), (f'adapter_{n}/adapter_model.safetensors', safe(SMALL)), (f'adapter_{n}/adapter_config.json', b'{}'))]),
    folder('export folders and a state', 'state_300.pt', *[x for n in (100, 200, 300) for x in ((f'state_{n}.pt', state(step=n)), (f'hf_step_{n}/model.safetensors', safe()), (f'hf_step_{n}/config.json', b'{}'))]),
    folder('raw pickles', '', *((f'model_{n}.pkl', RAW) for n in (1, 2))),
    folder('legacy torch', '', *((f'epoch_{n}.pth', b'\x80\x02\x8a\nl\xfcjF\xf9 j\xa8P\x19.' + bytes(300)) for n in (1, 2))),
    folder('legacy torch and new zip', 'epoch_2.pth', ('pretrained_resnet.pth', b'\x80\x02\x8a\nl\xfcjF\xf9 j\xa8P\x19.' + bytes(300)), *((f'epoch_{n}.pth', state()) for n in (1, 2))),
    folder('tuple of states', 'epoch_2.pt', *((f'epoch_{n}.pt', torch_file((n, NET, adam(NET)))) for n in (1, 2)), ('best.pt', model())),
    folder('opt keys', '9.pt', *((f'{n}.pt', torch_file({'net': NET, 'opt_g': adam(NET), 'it': n})) for n in (7, 8, 9)), ('best.pt', torch_file({'net': NET}))),
    folder('solver key', 'iter_300.pth', *((f'iter_{n}.pth', torch_file({'params': NET, 'solver': adam(NET)})) for n in (100, 200, 300)), ('latest_params.pth', torch_file({'params': NET}))),
    folder('no optimizer saved anywhere, epoch inside', 'checkpoint.pt', ('checkpoint.pt', torch_file({'epoch': 9, 'state_dict': NET})), ('model_best.pt', torch_file({'epoch': 7, 'state_dict': NET}))),
    folder('best newest, last not, epoch inside', ('last.pt', 'best.pt'), ('last.pt', state(epoch=9)), ('best.pt', state(epoch=9))),
    folder('best newer epoch than last', 'best.pt', ('last.pt', state(epoch=9)), ('best.pt', state(epoch=12))),
    folder('chkpt_ep pyth', 'chkpt_ep10.pyth', *((f'chkpt_ep{e}.pyth', torch_file({'ep': e, 'model': NET, 'optim': adam(NET)})) for e in (8, 9, 10))),
    folder('checkpoint.tar', 'checkpoint.tar', ('checkpoint.tar', state('model_state_dict', 'optimizer_state_dict', epoch=1, losses=[0.1]))),
    folder('model without suffix', ('model', ''), ('model', state()), ('model_args.pkl', RAW)),
    folder('pkl saves of cyclegan', 'G_XtoY.pkl', *((f'{k}.pkl', model(NET if k[0] == 'G' else OTHER)) for k in ('G_XtoY', 'G_YtoX', 'D_X', 'D_Y'))),
    folder('pkl epochs', 'model_10_.pkl', *((f'model_{e}_.pkl', state(epoch=e)) for e in (8, 9, 10)), ('model_best.pkl', state(epoch=8))),
    folder('th allennlp', ('model_state_epoch_2.th', 'training_state_epoch_2.th'), *[x for e in (0, 1, 2) for x in ((f'model_state_epoch_{e}.th', model()), (f'training_state_epoch_{e}.th', torch_file({'metric_tracker': {}, 'optimizer': adam(NET), 'batch_num_total': e * 100})))], ('best.th', model())),
    folder('per model files with state', 'checkpoint_gen.pth', *((f'checkpoint_{k}.pth', state('state_dict', net=n, epoch=3)) for k, n in (('gen', NET), ('dis', OTHER)))),
    folder('opennmt', 'm_step_10000.pt', *((f'm_step_{n}.pt', torch_file({'model': NET, 'generator': SMALL, 'vocab': {}, 'opt': {}, 'optim': {'training_step': n, 'optimizer': adam(NET)}})) for n in (5000, 10000))),
    folder('flair', 'checkpoint.pt', ('best-model.pt', model()), ('checkpoint.pt', torch_file({'state_dict': NET, 'optimizer_state_dict': adam(NET), 'epoch': 4})), ('loss.tsv', b'')),
    folder('flair finished', 'checkpoint.pt', ('best-model.pt', model()), ('checkpoint.pt', torch_file({'state_dict': NET, 'optimizer_state_dict': adam(NET), 'epoch': 4})), ('final-model.pt', model())),
    folder('parlai', ('model.checkpoint', ''), ('model.dict', b''), ('model.opt', b''), ('model', state()), ('model.checkpoint', state()), ('model.checkpoint.trainstats', b'')),
    folder('paddle', '', *((f'epoch_{e}{s}', RAW) for e in (1, 2) for s in ('.pdparams', '.pdopt', '.pdstates'))),
    folder('keras tf', '', ('ckpt-10.index', b'x'), ('ckpt-10.data-00000-of-00001', bytes(50)), ('checkpoint', b'model_checkpoint_path: "ckpt-10"'), ('epoch_05.weights.h5', b'\x89HDF'), ('model.keras', b'PK')),
    folder('wandb and tensorboard beside', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('wandb/run-1/files/model.pt', model()), ('runs/events.out.tfevents.1', b''), ('tb/events.out.tfevents.2', b'')),
    folder('jit export beside', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('model_scripted.pt', model(LARGE)), ('model.onnx', b'onnx')),
    folder('pretrained beside the first saves', 'step_100.pt', ('vit_b_16.pth', model(LARGE)), ('step_100.pt', state())),
    folder('pretrained weights, no save yet', ('', 'vit_b_16.pth'), ('vit_b_16.pth', model(LARGE))),
    folder('hp search trials', ('trial_3/ckpt.pt', 'trial_3', ''), *((f'trial_{t}/ckpt.pt', state(step=n)) for t, n in ((1, 500), (2, 500), (3, 200)))),
    folder('folds', ('fold2_best.pt', 'fold2_last.pt'), *[x for f in (0, 1, 2) for x in ((f'fold{f}_last.pt', state(epoch=9 if f < 2 else 3)), (f'fold{f}_best.pt', state(epoch=7 if f < 2 else 3)))]),
    folder('stages', 'stage2_epoch_1.pt', *((f'stage1_epoch_{e}.pt', state(epoch=e)) for e in (1, 2, 3)), ('stage2_epoch_1.pt', state(epoch=1))),
    folder('pretrain then finetune in one folder', 'finetune_epoch_2.pt', *(at(f'pretrain_epoch_{e}.pt', state(epoch=e), e) for e in range(1, 11)), *(at(f'finetune_epoch_{e}.pt', state(epoch=e), 60 + e) for e in (1, 2))),
    folder('verl', 'global_step_200', *verl(100), *verl(200), ('latest_checkpointed_iteration.txt', b'200')),
    folder('verl torn', 'global_step_100', *verl(100), ('latest_checkpointed_iteration.txt', b'100'), *verl(200, critic=False)[:-1]),
    folder('verl torn rank', 'global_step_100', *verl(100), ('latest_checkpointed_iteration.txt', b'100'), *[f for f in verl(200) if 'critic/optim_world_size_2_rank_1' not in f[0]]),
    folder('open-sora / colossalai', 'epoch0-global_step2000', *colossal(1000), *colossal(2000)),
    folder('open-sora torn', 'epoch0-global_step1000', *colossal(1000), *colossal(2000)[:2]),
    folder('internevo', '200', *[(f'{n}/{f}', c) for n in (100, 200) for f, c in (('model_tp0_pp0.pt', model()), ('optimizer_tp0_pp0_zo0.pt', optimizer()), ('optimizer_tp0_pp0_zo1.pt', optimizer()), ('context.pt', values(step_count=n)), ('sampler.pt', values(a=1)), ('schedulder.pt', values(a=1)))]),
    folder('bagel', '0002000', *[(f'{n:07d}/{f}', c) for n in (1000, 2000) for f, c in (('model.safetensors', safe()), ('ema.safetensors', safe()), ('optimizer.00000-of-00002.pt', optimizer()), ('optimizer.00001-of-00002.pt', optimizer()), ('scheduler.pt', values(a=1)), ('data_status.pt', values(a=1)))]),
    folder('fairseq2', 'step_2000', *[(f'step_{n}/{f}', c) for n in (1000, 2000) for f, c in (('model.pt', model()), ('rank_0.pt', torch_file({'optimizer': adam(NET)})), ('rank_1.pt', torch_file({'optimizer': adam(NET)})), ('metadata.pt', values(a=1)))]),
    folder('simpletuner', 'checkpoint-1000', *[x for n in (500, 1000) for x in accelerate(f'checkpoint-{n}', ('pytorch_lora_weights.safetensors', safe(SMALL)), ('training_state.json', text(global_step=n)), ('ema/ema_model.safetensors', safe()), w=None)]),
    folder('ai-toolkit', 'lora_000001000.safetensors', *[x for n in (500, 1000) for x in ((f'lora_{n:09d}.safetensors', safe(SMALL)),)], ('optimizer.pt', optimizer(SMALL)), ('config.yaml', b''), ('samples/1.jpg', b'')),
    folder('ai-toolkit finished', ('lora.safetensors', 'lora_000001000.safetensors'), *[x for n in (500, 1000) for x in ((f'lora_{n:09d}.safetensors', safe(SMALL)), ('optimizer.pt', optimizer(SMALL)))], ('lora.safetensors', safe(SMALL))),
    folder('onetrainer', ('2026-01-01_11-00-00-backup-200-1-20', ''), *onetrainer(100, 0), *onetrainer(200, 1)),
    folder('f5-tts', 'model_last.pt', ('pretrained_model.pt', model(key='ema_model_state_dict')), *((f'model_{n}.pt', torch_file({'model_state_dict': NET, 'optimizer_state_dict': adam(NET), 'ema_model_state_dict': NET, 'scheduler_state_dict': {}, 'update': n})) for n in (1000, 2000)), ('model_last.pt', torch_file({'model_state_dict': NET, 'optimizer_state_dict': adam(NET), 'ema_model_state_dict': NET, 'scheduler_state_dict': {}, 'update': 2500}))),
    folder('styletts2', 'epoch_2nd_00002.pth', *((f'epoch_1st_{e:05d}.pth', styletts(e)) for e in (8, 9, 10)), ('first_stage.pth', styletts(10)), *((f'epoch_2nd_{e:05d}.pth', styletts(e)) for e in (1, 2))),
    folder('bert-vits2', 'G_2000.pth', *[(f'{k}_{n}.pth', torch_file({'model': w, 'iteration': n // 100, 'optimizer': adam(w), 'learning_rate': 0.1})) for n in (1000, 2000) for k, w in (('G', NET), ('D', OTHER), ('DUR', SMALL))]),
    folder('diffsinger', 'model_ckpt_steps_20000.ckpt', *((f'model_ckpt_steps_{n}.ckpt', torch_file({'state_dict': {'model': NET}, 'optimizer_states': [adam(NET)], 'epoch': 1, 'global_step': n})) for n in (10000, 20000)), ('model_ckpt_best.pt', torch_file({'state_dict': {'model': NET}, 'epoch': 1, 'global_step': 10000}))),
    folder('s3prl', 'states-2000.ckpt', *((f'states-{n}.ckpt', torch_file({'Downstream': NET, 'Optimizer': adam(NET), 'Step': n, 'Epoch': 1, 'Args': None})) for n in (1000, 2000)), ('dev-best.ckpt', torch_file({'Downstream': NET, 'Optimizer': adam(NET), 'Step': 1000, 'Epoch': 1, 'Args': None}))),
    folder('s3prl best last', ('states-2000.ckpt', 'dev-best.ckpt'), *((f'states-{n}.ckpt', torch_file({'Downstream': NET, 'Optimizer': adam(NET), 'Step': n, 'Epoch': 1})) for n in (1000, 2000)), ('dev-best.ckpt', torch_file({'Downstream': NET, 'Optimizer': adam(NET), 'Step': 2000, 'Epoch': 1}))),
    folder('yolox', 'latest_ckpt.pth', ('last_mosaic_epoch_ckpt.pth', yolox(285)), ('best_ckpt.pth', yolox(290)), ('latest_ckpt.pth', yolox(295)), ('train_log.txt', b'')),
    folder('yolov7', 'last.pt', *((f'epoch_{e:03d}.pt', yolo(e)) for e in (0, 24, 49)), ('best_040.pt', yolo(40)), ('init.pt', yolo(0)), ('best.pt', yolo(47)), ('last.pt', yolo(51))),
    folder('d-fine', 'last.pth', ('best_stg1.pth', torch_file({'date': 'x', 'last_epoch': 10, 'model': NET, 'optimizer': adam(NET), 'ema': {'module': NET}})), ('checkpoint0011.pth', torch_file({'last_epoch': 11, 'model': NET, 'optimizer': adam(NET)})), ('best_stg2.pth', torch_file({'last_epoch': 14, 'model': NET, 'optimizer': adam(NET)})), ('last.pth', torch_file({'last_epoch': 15, 'model': NET, 'optimizer': adam(NET)}))),
    folder('medsam', 'medsam_model_latest.pth', ('medsam_model_best.pth', state(epoch=7)), ('medsam_model_latest.pth', state(epoch=9))),
    folder('medsam, best saved last', ('medsam_model_latest.pth', 'medsam_model_best.pth'), ('medsam_model_latest.pth', state(epoch=9)), ('medsam_model_best.pth', state(epoch=9))),
    folder('transunet', 'epoch_149.pth', *((f'epoch_{e}.pth', model()) for e in (99, 119, 149)), ('log.txt', b'')),
    folder('openpcdet', 'ckpt/latest_model.pth', *((f'ckpt/checkpoint_epoch_{e}.pth', openpcdet(e)) for e in (78, 79, 80)), ('ckpt/latest_model.pth', openpcdet(81))),
    folder('openpcdet end of epoch', 'ckpt/checkpoint_epoch_80.pth', *((f'ckpt/checkpoint_epoch_{e}.pth', openpcdet(e)) for e in (78, 79)), ('ckpt/latest_model.pth', openpcdet(79)), ('ckpt/checkpoint_epoch_80.pth', openpcdet(80))),
    folder('nerf-pytorch', '200000.tar', ('args.txt', b''), *((f'{n:06d}.tar', torch_file({'global_step': n, 'network_fn_state_dict': NET, 'network_fine_state_dict': NET, 'optimizer_state_dict': adam(NET)})) for n in (100000, 200000)), ('testset_200000/000.png', b'')),
    folder('nerfstudio', 'step-000002000.ckpt', *((f'step-{n:09d}.ckpt', torch_file({'step': n, 'pipeline': NET, 'optimizers': {'fields': adam(NET)}, 'schedulers': {}, 'scalers': {}})) for n in (1000, 2000))),
    folder('gaussian splatting', 'chkpnt30000.pth', *((f'chkpnt{n}.pth', torch_file(((3, Tensor((100, 3)), Tensor((100, 1, 3)), adam(NET), 0.5), n))) for n in (7000, 30000)), ('point_cloud/iteration_30000/point_cloud.ply', b'ply'), ('cameras.json', b'[]')),
    folder('fairchem', 'checkpoint.pt', ('best_checkpoint.pt', torch_file({'epoch': 4, 'step': 400, 'state_dict': NET, 'optimizer': adam(NET), 'config': {}, 'ema': None})), ('checkpoint.pt', torch_file({'epoch': 5, 'step': 500, 'state_dict': NET, 'optimizer': adam(NET), 'config': {}, 'ema': None}))),
    folder('mace', 'MACE_run-123_epoch-20_swa.pt', ('MACE_run-123_epoch-10.pt', torch_file({'model': NET, 'optimizer': adam(NET), 'lr_scheduler': {}})), ('MACE_run-123_epoch-20_swa.pt', torch_file({'model': NET, 'optimizer': adam(NET), 'lr_scheduler': {}})), ('MACE.model', model())),
    folder('neuraloperator', 'model_state_dict.pt', ('best_model_state_dict.pt', model()), ('model_state_dict.pt', model()), ('optimizer.pt', optimizer()), ('scheduler.pt', values(a=1)), ('manifest.pt', values(epoch=4))),
    folder('physicsnemo', ('checkpoint.0.10.pt', ''), *[x for e in (8, 9, 10) for x in ((f'FNO.0.{e}.mdlus', b'zipish'), (f'checkpoint.0.{e}.pt', torch_file({'optimizer_state_dict': adam(NET), 'scheduler_state_dict': {}, 'epoch': e})))]),
    folder('ace', ('ckpt.tar', 'ema_ckpt.tar', 'best_inference_ckpt.tar'), ('ckpt_0001.tar', ace(1)), ('ckpt_0002.tar', ace(2)), ('best_ckpt.tar', ace(2)), ('ckpt.tar', ace(3)), ('ema_ckpt.tar', ace(3)), ('best_inference_ckpt.tar', ace(3))),
    folder('makani', 'ckpt_mp0_v0.tar', ('ckpt_mp0_v1.tar', makani(8)), ('ckpt_mp0_v2.tar', makani(9)), ('best_ckpt_mp0.tar', makani(9)), ('ckpt_mp0_v0.tar', makani(10))),
    folder('skrl', 'checkpoints/agent_2000.pt', *((f'checkpoints/agent_{n}.pt', torch_file({'policy': NET, 'value': SMALL, 'optimizer': adam(NET)})) for n in (1000, 2000)), ('checkpoints/best_agent.pt', torch_file({'policy': NET, 'value': SMALL, 'optimizer': adam(NET)}))),
    folder('aloha act', 'policy_epoch_1000_seed_0.ckpt', ('dataset_stats.pkl', RAW), *((f'policy_epoch_{n}_seed_0.ckpt', model()) for n in range(100, 1001, 300))),
    folder('diffusion policy', 'checkpoints/latest.ckpt', *((f'checkpoints/epoch={e:04d}-test_mean_score={s}.ckpt', torch_file({'cfg': {}, 'state_dicts': {'model': NET, 'ema_model': NET, 'optimizer': adam(NET)}, 'pickles': {}})) for e, s in ((50, '0.812'), (100, '0.790'))), ('checkpoints/latest.ckpt', torch_file({'cfg': {}, 'state_dicts': {'model': NET, 'ema_model': NET, 'optimizer': adam(NET)}, 'pickles': {}}))),
    folder('prismatic', ('latest-checkpoint.pt', 'step-001000-epoch-01-loss=0.4321.pt'), *((f'step-{n:06d}-epoch-{e:02d}-loss={loss}.pt', torch_file({'model': {'llm': NET}, 'optimizer': adam(NET)})) for n, e, loss in ((500, 0, '0.7000'), (1000, 1, '0.4321'))), ('latest-checkpoint.pt', torch_file({'model': {'llm': NET}, 'optimizer': adam(NET)}))),
    folder('mlx lora', ('adapters.safetensors', '0000200_adapters.safetensors'), *((f'{n:07d}_adapters.safetensors', safe(SMALL)) for n in (100, 200)), ('adapters.safetensors', safe(SMALL)), ('adapter_config.json', b'{}')),
    folder('kaldi-like ep ck arch', 'train_ep02_ck1_arch1.pkl', *((f'train_ep{e:02d}_ck{k}_arch1.pkl', torch_file({'model_par': NET, 'optimizer_par': adam(NET)})) for e in (0, 1, 2) for k in (0, 1))),
    folder('nequip', ('trainer.pth', 'last_model.pth'), ('best_model.pth', model()), ('trainer.pth', torch_file({'state_dict': {'optim': adam(NET), 'lr_sched': {}}, 'progress': {'epoch': 9}})), ('last_model.pth', model())),
    folder('slots A B', 'B.pt', ('A.pt', state()), ('B.pt', state())),
    folder('slots A B exact', 'A.pt', ('B.pt', state(step=100)), ('A.pt', state(step=200))),
    folder('slots save_0 save_1', 'save_0.pt', ('save_1.pt', state()), ('save_0.pt', state())),
    folder('latest without suffix', 'ckpt-latest', ('ckpt-best', state(epoch=2)), ('ckpt-latest', state(epoch=4))),
    folder('epoch folders of one file', 'epoch_0010', *((f'epoch_{n:04d}/ckpt.pth', state(epoch=n)) for n in (8, 9, 10))),
    folder('bare number folders', '30', *((f'{n}/model.pth', model()) for n in (10, 20, 30))),
    folder('bare number folders with best', '30', *((f'{n}/model.pth', state()) for n in (10, 20, 30)), ('best/model.pth', state())),
    folder('E names', 'net_E10.pth', *((f'net_E{n}.pth', state()) for n in (8, 9, 10))),
    folder('upper case', 'LAST.pth', ('Epoch10.pth', state(epoch=10)), ('BEST.pth', state(epoch=10)), ('LAST.pth', state(epoch=11))),
    folder('numbered downloads', 'last.pt', ('last (1).pt', state(step=100)), ('last (2).pt', state(step=200)), ('last.pt', state(step=300))),
    folder('copy of', ('ckpt.pt', 'ckpt copy.pt'), ('ckpt.pt', state(step=300)), ('ckpt copy.pt', state(step=300))),
    folder('many best and last', 'last.pt', ('best_0.71.pt', state()), ('best_0.74.pt', state()), ('last.pt', state())),
    folder('many best and last, best just after', ('last.pt', 'best_0.78.pt'), at('best_0.71.pt', state(), 1), at('best_0.74.pt', state(), 2), at('last.pt', state(), 3), at('best_0.78.pt', state(), 3.02)),
    folder('best alone', 'best_0.74.pt', ('best_0.71.pt', state()), ('best_0.74.pt', state())),
    folder('best alone, falling', 'best_loss_0.31.pt', ('best_loss_0.9.pt', state()), ('best_loss_0.51.pt', state()), ('best_loss_0.31.pt', state())),
    folder('early stopping weights beside a state', 'ckpt_epoch.pt', ('ckpt_epoch.pt', state(epoch=9)), ('checkpoint.pt', model())),
    folder('latest weights after latest state', 'latest_state.pth', at('latest_state.pth', state(), 10), at('latest.pth', model(), 10.05)),
    folder('iter roles last', 'iter_2000_model.pth', *[(f'iter_{n}_{k}.pth', c) for n in (1000, 2000) for k, c in (('model', model()), ('optim', optimizer()), ('sched', values(a=1)))]),
    folder('iter roles torn', 'iter_1000_model.pth', *[(f'iter_{n}_{k}.pth', c) for n in (1000, 2000) for k, c in (('model', model()), ('optim', optimizer()), ('sched', values(a=1)))][:-2]),
    folder('npz pair', 'params_2000.npz', *[(f'{k}_{n}.npz', npz_file(**{a: [[1.0] * 4] * 4})) for n in (1000, 2000) for k, a in (('params', 'w'), ('opt_state', 'm'))]),
    folder('npz series and metrics', 'state_2000.npz', *((f'state_{n}.npz', npz_file(step=n, w=[1.0] * 9, m_w=[1.0] * 9, v_w=[1.0] * 9)) for n in (1000, 2000)), ('metrics.npz', npz_file(loss=[0.5] * 40))),
    folder('safetensors pair', 'model_2000.safetensors', *[x for n in (1000, 2000) for x in ((f'model_{n}.safetensors', safe()), (f'optimizer_{n}.safetensors', safetensors_file({'exp_avg.0': (16, 16), 'exp_avg_sq.0': (16, 16)})))]),
    folder('dataloader states beside', 'ckpt_200.pt', *[x for n in (100, 200) for x in ((f'ckpt_{n}.pt', state(step=n)), (f'dataloader_{n}_rank0.pt', values(index=n)), (f'dataloader_{n}_rank1.pt', values(index=n)))]),
    folder('rng per rank beside a pair', 'model.pt', ('model.pt', model()), ('optimizer.pt', optimizer()), ('rng_state_rank0.pt', values(a=1)), ('rng_state_rank1.pt', values(a=1))),
    folder('trainer state values beside', 'checkpoint-200.pt', *[x for n in (100, 200) for x in ((f'checkpoint-{n}.pt', state()), (f'trainer_state-{n}.pt', values(step=n)))]),
    folder('zero by hand', 'model_200.pt', *[(f, c) for n in (100, 200) for f, c in ((f'model_{n}.pt', model()), (f'optim_{n}_rank0.pt', optimizer()), (f'optim_{n}_rank1.pt', optimizer()))]),
    folder('zero by hand torn', 'model_100.pt', *[(f, c) for n in (100, 200) for f, c in ((f'model_{n}.pt', model()), (f'optim_{n}_rank0.pt', optimizer()), (f'optim_{n}_rank1.pt', optimizer()))][:-1]),
    folder('newest torn', 'step_200.pt', ('step_100.pt', state(step=100)), ('step_200.pt', state(step=200)), ('step_300.pt', torn(state(step=300)))),
    folder('newest empty', 'step_200.pt', ('step_100.pt', state(step=100)), ('step_200.pt', state(step=200)), ('step_300.pt', b'')),
    folder('newest two torn, weights beside', 'step_100.pt', ('step_100.pt', state(step=100)), ('step_200.pt', torn(state(step=200))), ('step_300.pt', b''), ('model_weights.pt', model())),
    folder('torn last, whole series', 'step_300.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200, 300)), ('last.pt', torn(state(step=350)))),
    folder('partial suffixes', 'step_200.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('step_300.pt.partial', state(step=300)), ('step_300.pt_tmp', state(step=300)), ('step_300.pt.incomplete', torn(state(step=300)))),
    folder('temp prefix', 'step_200.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('temp_step_300.pt', state(step=300)), ('temp_ckpt.pt', state(step=300))),
    folder('tmp folder', 'step_200', *[(f'step_{n}/{f}', c) for n in (100, 200) for f, c in (('model.pt', model()), ('optimizer.pt', optimizer()))], ('step_300_tmp/model.pt', model()), ('step_300_tmp/optimizer.pt', optimizer())),
    folder('to be deleted', 'step_200', *[(f'step_{n}/{f}', c) for n in (100, 200) for f, c in (('model.pt', model()), ('optimizer.pt', optimizer()))], ('old_step_100/model.pt', model()), ('old_step_100/optimizer.pt', optimizer())),
    folder('temperature in the name', 'temp_0.7_step_200.pt', *((f'temp_0.7_step_{n}.pt', state()) for n in (100, 200))),
    folder('dates, equal times', '2026-01-03_08-00-00.pt', *(at(f'2026-01-0{d}_0{9 - d + 2}-00-00.pt', state(), 5) for d in (1, 2, 3))),
    folder('unix times, equal', 'ckpt_1767261700.pt', *(at(f'ckpt_{n}.pt', state(), 5) for n in (1767261600, 1767261700, 1767261650))),
    folder('hashes', '9bc1e.pt', ('f3a90.pt', state()), ('9bc1e.pt', state())),
    folder('lightning -v2', 'epoch=1-v2.ckpt', ('epoch=1.ckpt', lightning(100, 1)), ('epoch=1-v1.ckpt', lightning(200, 1)), ('epoch=1-v2.ckpt', lightning(300, 1))),
    folder('distillation', 'student_30.pt', ('teacher.pt', model(LARGE)), *((f'student_{n}.pt', state()) for n in (10, 20, 30))),
    folder('mean teacher series', 'student_30.pt', *[x for n in (10, 20, 30) for x in ((f'student_{n}.pt', state()), (f'teacher_{n}.pt', model()))]),
    folder('reward model beside', 'policy_step_200.pt', *((f'policy_step_{n}.pt', state()) for n in (100, 200)), ('reward_model.pt', model(LARGE))),
    folder('two stages of other models', 'transformer_epoch_2.pt', *(at(f'vqgan_epoch_{n}.pt', state(net=LARGE), n) for n in (80, 90, 100)), *(at(f'transformer_epoch_{n}.pt', state(), 200 + n) for n in (1, 2))),
    folder('swa after', 'epoch_9.pt', *((f'epoch_{n}.pt', state()) for n in (7, 8, 9)), ('swa_model.pt', model()), ('bn_update.pt', model(SMALL))),
    folder('weights of each epoch and last state', 'last_state.pt', *[(f'weights_{n}.pt', model()) for n in (1, 2, 3)], ('last_state.pt', state(epoch=3))),
    folder('last state older than new weights', 'last_state.pt', ('weights_1.pt', model()), ('last_state.pt', state(epoch=1)), ('weights_2.pt', model()), ('weights_3.pt', model())),
    folder('whole series and one step folder export', 'step_300.pt', *((f'step_{n}.pt', state()) for n in (100, 200, 300)), ('export_step_300/pytorch_model.bin', model()), ('export_step_300/config.json', b'{}')),
    folder('hf cache beside', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('models--bert/snapshots/abc/model.safetensors', safe(LARGE)), ('models--bert/snapshots/abc/config.json', b'{}')),
    folder('init and step 0', 'step_0.pt', ('init_weights.pt', model()), ('step_0.pt', state(step=0))),
    folder('metric with steps', 'model_step=2000_psnr=27.31.pth', *((f'model_step={n}_psnr={p}.pth', model()) for n, p in ((1000, '28.90'), (2000, '27.31')))),
    folder('epoch dash loss', 'model-10-0.2317.pt', *((f'model-{n}-{loss}.pt', state()) for n, loss in ((8, '0.4001'), (9, '0.3100'), (10, '0.2317')))),
    folder('metric first then epoch, no words', '0.2317-10.pt', *((f'{loss}-{n}.pt', state()) for n, loss in ((8, '0.4001'), (9, '0.3100'), (10, '0.2317')))),
    folder('scientific', 'lr1e-05_ep3.pt', *((f'lr1e-05_ep{n}.pt', state()) for n in (1, 2, 3))),
    folder('loss scientific', 'ckpt_loss=1.2e-05.pt', ('ckpt_loss=9.1e-04.pt', state()), ('ckpt_loss=1.2e-05.pt', state())),
    folder('percent accuracy, integer', 'resnet18_acc91.pth', *((f'resnet18_acc{a}.pth', state()) for a in (88, 93, 91))),
    folder('model name with version', 'llama3.1_8b_step_200.pt', *((f'llama3.1_8b_step_{n}.pt', state()) for n in (100, 200))),
    folder('version as folder of saves', ('v2/step_200.pt', ''), *((f'v{v}/step_{n}.pt', state()) for v in (1, 2) for n in (100, 200))),
    folder('fp16 state', 'step_300_fp16.pt', *((f'step_{n}_fp16.pt', state()) for n in (100, 200, 300))),
    folder("ema states as the run's only saves", 'ema_step_300.pt', *((f'ema_step_{n}.pt', state()) for n in (100, 200, 300))),
    folder('resumed counts again from 0 in one pattern, exact', 'ckpt_7.pt', *(at(f'ckpt_{i}.pt', state(step=s), i) for i, s in ((1, 100), (2, 200), (3, 300), (4, 400), (5, 100), (6, 200), (7, 300)))),
    folder("features dict in a state's folder", 'last.pt', ('last.pt', state()), ('features.pt', torch_file({'features': Tensor((500, 16)), 'labels': Tensor((500,))}))),
    folder('big embedding store beside weights', 'encoder.pt', ('encoder.pt', model()), ('index.pt', torch_file({'vectors': Tensor((5000, 64)), 'ids': Tensor((5000,))}))),
    folder('class prototypes beside weights', 'net.pth', ('net.pth', model()), ('prototypes.pth', torch_file({'proto': Tensor((10, 64))}))),
    folder('scripted from scratch params', 'params_300.pt', *((f'params_{n}.pt', torch_file({'W1': Tensor((16, 8)), 'b1': Tensor((8,)), 'W2': Tensor((8, 4)), 'b2': Tensor((4,))})) for n in (100, 200, 300)), ('losses.pt', torch_file([0.1, 0.2]))),
    folder('square params', 'params_300.pt', *((f'params_{n}.pt', torch_file({'Wq': Tensor((16, 16)), 'Wk': Tensor((16, 16)), 'Wv': Tensor((16, 16))})) for n in (100, 200, 300))),
    folder('ckpt with opt inside trainer key', 'e3.pt', *((f'e{e}.pt', torch_file({'trainer': {'model': NET, 'optim': adam(NET)}, 'epoch': e})) for e in (1, 2, 3)), ('e3_pred.pt', torch_file({'p': Tensor((9,))}))),
    folder('val_loss first, step last', 'vl0.41-s300.pt', *((f'vl{loss}-s{s}.pt', state()) for loss, s in (('0.61', 100), ('0.39', 200), ('0.41', 300)))),
    folder('loss only, integers in millis', 'best_loss_312.pt', *((f'best_loss_{loss}.pt', state()) for loss in (901, 555, 312))),
    folder('f1 metric', 'model_f1_0.71.pt', *((f'model_f1_{loss}.pt', state()) for loss in ('0.60', '0.75', '0.71'))),
    folder('map50', 'yolo_map50_0.51_ep12.pt', *((f'yolo_map50_{m}_ep{e}.pt', state()) for m, e in (('0.55', 10), ('0.53', 11), ('0.51', 12)))),
    folder('top3 kept by score', 'ckpt_score=71.2_epoch=30.pt', *((f'ckpt_score={s}_epoch={e}.pt', state()) for s, e in (('73.1', 12), ('72.5', 20), ('71.2', 30)))),
    folder('ratio percent', 'acc=87pct_ep9.pth', *((f'acc={a}pct_ep{e}.pth', model()) for a, e in ((91, 7), (89, 8), (87, 9)))),
    folder('lr decades in folders', ('lr_0.001/step_200.pt', ''), *((f'lr_{loss}/step_{n}.pt', state()) for loss in ('0.01', '0.001') for n in (100, 200))),
    folder('graph dataset pt', 'model_9.pt', ('processed_graphs.pt', torch_file(({'x': Tensor((900, 4)), 'edge_index': Tensor((2, 4000)), 'y': Tensor((30,))}, {'x': 1}))), *((f'model_{e}.pt', model()) for e in (8, 9)), ('split_idx.pt', torch_file({'train': Tensor((800,)), 'val': Tensor((100,))}))),
    folder('graph dataset last', 'model_9.pt', *((f'model_{e}.pt', model()) for e in (8, 9)), ('graphs.pt', torch_file({'x': Tensor((900, 4)), 'edge_index': Tensor((2, 4000)), 'y': Tensor((30,))}))),
    folder('single model and graph data', 'gcn.pt', ('gcn.pt', model()), ('graphs.pt', torch_file({'x': Tensor((900, 4)), 'edge_index': Tensor((2, 4000)), 'y': Tensor((30,))}))),
    folder('stats means', 'net.pt', ('net.pt', state()), ('mean_std.pt', torch_file({'mean': Tensor((64,)), 'std': Tensor((64,))}))),
    folder('replay tensors', 'agent.pt', ('agent.pt', model()), ('buffer_500.pt', torch_file({'obs': Tensor((500, 4)), 'act': Tensor((500, 2)), 'rew': Tensor((500,))})), ('buffer_1000.pt', torch_file({'obs': Tensor((1000, 4)), 'act': Tensor((1000, 2)), 'rew': Tensor((1000,))}))),
    folder('kv cache', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('kv_cache.pt', torch_file([Tensor((2, 4, 8))]))),
    folder('grad dump series', 'last.pt', ('last.pt', model()), *((f'grads_{n}.pt', model()) for n in (1, 2, 3))),
    folder('hessian/fisher', 'last.pt', ('last.pt', state()), ('fisher_100.pt', model()), ('fisher_200.pt', model())),
    folder('activations', 'ckpt.pt', ('ckpt.pt', model()), *((f'layer_{n}_acts.pt', torch_file(Tensor((100, 16)))) for n in (1, 2, 3))),
    folder('eval outputs npz folder', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), *((f'eval/step_{n}.npz', npz_file(p=[1.0])) for n in (300, 400))),
    folder('tokenizer bpe', 'ckpt_2.pt', *((f'ckpt_{n}.pt', state()) for n in (1, 2)), ('tokenizer.pt', values(vocab=1)), ('bpe_32000.model', b'spm'), ('vocab_32000.pt', values(a=1))),
    folder('config dumps with steps', 'ckpt_2.pt', *((f'ckpt_{n}.pt', state()) for n in (1, 2)), ('config_step_3.pt', values(lr=1))),
    folder('optimizer newest, model missing', 'step_100_model.pt', ('step_100_model.pt', model()), ('step_100_optimizer.pt', optimizer()), ('step_200_optimizer.pt', optimizer())),
    folder('scheduler first, then model', 'step_100_model.pt', *[(f'step_100_{k}.pt', c) for k, c in (('sched', values(a=1)), ('optim', optimizer()), ('model', model()))], ('step_200_sched.pt', values(a=1))),
    folder('amp scaler per step', 'step_200.pt', *[x for n in (100, 200) for x in ((f'step_{n}.pt', state()), (f'step_{n}_scaler.pt', values(scale=1.0)))]),
    folder('optimizer folder beside flat weights', ('model_200.pt', ''), *((f'model_{n}.pt', model()) for n in (100, 200)), *((f'optim/optim_{n}.pt', optimizer()) for n in (100, 200))),
    folder('train/ and eval/ folders', ('train/ckpt_200.pt', ''), *((f'train/ckpt_{n}.pt', state()) for n in (100, 200)), ('eval/best.pt', model())),
    folder('models folder', ('models/ckpt_200.pt', ''), *((f'models/ckpt_{n}.pt', state()) for n in (100, 200))),
    folder('pair of folders per step', 'step_200', *[(f'step_{n}/{k}/{f}', c) for n in (100, 200) for k, f, c in (('generator', 'model.safetensors', safe()), ('discriminator', 'model.safetensors', safe(OTHER)), ('optimizer', 'state.pt', optimizer()))]),
    folder('pair of folders per step, torn', 'step_100', *[(f'step_{n}/{k}/{f}', c) for n in (100, 200) for k, f, c in (('generator', 'model.safetensors', safe()), ('discriminator', 'model.safetensors', safe(OTHER)), ('optimizer', 'state.pt', optimizer()))][:-1]),
    folder('unet and text encoder folders, no optimizer folder', ('step_200', ''), *[(f'step_{n}/{k}/model.safetensors', safe(w)) for n in (100, 200) for k, w in (('unet', LARGE), ('text_encoder', NET))]),
    folder('hf pretrained dirs per epoch with optimizer.pt', 'epoch-2', *[(f'epoch-{e}/{f}', c) for e in (1, 2) for f, c in (('model.safetensors', safe()), ('config.json', b'{}'), ('optimizer.pt', optimizer()), ('tokenizer.json', b'{}'))]),
    folder('hf pretrained dirs per epoch', ('epoch-2', ''), *[(f'epoch-{e}/{f}', c) for e in (1, 2) for f, c in (('model.safetensors', safe()), ('config.json', b'{}'), ('tokenizer.json', b'{}'))]),
    folder('hf resumed with lower limit', 'checkpoint-300', *trainer('checkpoint-100', 100), *trainer('checkpoint-300', 300), ('checkpoint-200/model.safetensors', safe())),
    folder('hf best copied', 'checkpoint-300', *trainer('checkpoint-100', 100), *trainer('checkpoint-300', 300), *trainer('best_checkpoint', 100)),
    folder('hf last-checkpoint dir', 'checkpoint-300', *trainer('checkpoint-100', 100), *trainer('checkpoint-300', 300), ('last-checkpoint/adapter_model.safetensors', safe(SMALL)), ('last-checkpoint/adapter_config.json', b'{}')),
    folder('accelerate latest and numbered', 'step_300', *accelerate('step_100'), *accelerate('step_200'), *accelerate('latest'), *accelerate('step_300')),
    folder('accelerate latest newer', 'latest', *accelerate('step_100'), *accelerate('step_200'), *accelerate('latest')),
    folder('ema dir beside state dirs', 'step_200', *[x for n in (100, 200) for x in ((f'step_{n}/model.pt', model()), (f'step_{n}/optimizer.pt', optimizer()))], ('ema/model.safetensors', safe()), ('ema/config.json', b'{}')),
    folder('renamed old dir', 'ckpt', ('ckpt.old/model.pt', model()), ('ckpt.old/optimizer.pt', optimizer()), ('ckpt/model.pt', model()), ('ckpt/optimizer.pt', optimizer())),
    folder('renamed old dir, new torn', ('ckpt.old', 'ckpt_old'), ('ckpt_old/model.pt', model()), ('ckpt_old/optimizer.pt', optimizer()), ('ckpt/model.pt', torn(model())), ('ckpt/optimizer.pt', optimizer())),
    folder('ckpt-1 and ckpt-2 kept by deleting', 'ckpt-8.pt', *((f'ckpt-{n}.pt', state()) for n in (3, 5, 8))),
    folder('kept rank best: top1 top2 top3', 'last.pt', ('top3.pt', state()), ('top1.pt', state()), ('top2.pt', state()), ('last.pt', state())),
    folder('keep every 1000 and rolling', 'rolling_1900.pt', ('keep_1000.pt', state()), ('rolling_1700.pt', state()), ('rolling_1800.pt', state()), ('rolling_1900.pt', state())),
    folder('milestone younger', 'milestone_2000.pt', ('rolling_1700.pt', state()), ('rolling_1800.pt', state()), ('rolling_1900.pt', state()), ('milestone_2000.pt', state())),
    folder('phases ph1 ph2', 'ph2_100.pt', *(at(f'ph1_{n}.pt', state(), n / 100) for n in (100, 200, 300)), at('ph2_100.pt', state(), 50)),
    folder('seeds in one folder', 'seed2_ep3.pt', *(at(f'seed1_ep{e}.pt', state(epoch=e), e) for e in (1, 2, 3, 4, 5)), *(at(f'seed2_ep{e}.pt', state(epoch=e), 50 + e) for e in (1, 2, 3))),
    folder('run number in last place', 'ep3_run2.pt', *(at(f'ep{e}_run1.pt', state(epoch=e), e) for e in (1, 2, 3, 4, 5)), *(at(f'ep{e}_run2.pt', state(epoch=e), 50 + e) for e in (1, 2, 3))),
    folder('datasets names', 'cifar_ep3.pt', *(at(f'mnist_ep{e}.pt', state(), e) for e in (1, 2, 3, 4, 5)), *(at(f'cifar_ep{e}.pt', state(), 50 + e) for e in (1, 2, 3))),
    folder('federated interleaved', 'global_round_9.pt', *[x for n in (7, 8, 9) for x in ((f'client_0_round_{n}.pt', model()), (f'client_1_round_{n}.pt', model()), (f'global_round_{n}.pt', model()))]),
    folder('population based', (*tuple(f'member_{m}_step_200.pt' for m in (0, 1, 2)), ''), *[(f'member_{m}_step_{n}.pt', state()) for n in (100, 200) for m in (0, 1, 2)]),
    folder('target and online dqn', 'online_300.pt', *[(f'{k}_{n}.pt', model()) for n in (100, 200, 300) for k in ('target', 'online')]),
    folder('policy value files', 'policy_300.pt', *[(f'{k}_{n}.pt', model(w)) for n in (100, 200, 300) for k, w in (('policy', NET), ('value', OTHER))]),
    folder('q1 q2 actor', 'actor_300.pt', *[(f'{k}_{n}.pt', model(w)) for n in (100, 200, 300) for k, w in (('q1', OTHER), ('q2', OTHER), ('actor', NET))]),
    folder('alpha tensor beside', 'sac_300.pt', *[x for n in (100, 200, 300) for x in ((f'sac_{n}.pt', state()), (f'log_alpha_{n}.pt', torch_file(Tensor((1,)))))]),
    folder('obs normalizer series', 'ppo_300.pt', *[x for n in (100, 200, 300) for x in ((f'ppo_{n}.pt', state()), (f'obs_rms_{n}.pt', torch_file({'mean': Tensor((8,)), 'var': Tensor((8,))})))]),
    folder('obs normalizer series, weights alone', 'ppo_300.pt', *[x for n in (100, 200, 300) for x in ((f'ppo_{n}.pt', model()), (f'obs_rms_{n}.pt', torch_file({'mean': Tensor((8,)), 'var': Tensor((8,))})))]),
    folder('encoder decoder optimizers triple', 'enc_30.pt', *[(f'{k}_{n}.pt', c) for n in (10, 20, 30) for k, c in (('enc', model()), ('dec', model(OTHER)), ('opt', optimizer()))]),
    folder('disc first alphabetical torn', 'gen_20.pt', *[(f'{k}_{n}.pt', model(w)) for n in (10, 20, 30) for k, w in (('disc', OTHER), ('gen', NET))][:-1]),
    folder('crash dump', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('crash_batch.pt', torch_file({'x': Tensor((8, 16)), 'y': Tensor((8,))})), ('nan_dump_210.pt', torch_file({'x': Tensor((8, 16))}))),
    folder('debug batch', 'model.pt', ('model.pt', model()), ('bad_batch.pt', torch_file({'input_ids': Tensor((8, 16)), 'labels': Tensor((8, 16))}))),
    folder('profile trace', 'ckpt.pt', ('ckpt.pt', state()), ('rank0.1767.pt.trace.json', b'{}'), ('trace.pt.gz', b'\x1f\x8b')),
    folder('gz compressed', '', ('ckpt_100.pt.gz', b'\x1f\x8b' + bytes(50)), ('ckpt_200.pt.gz', b'\x1f\x8b' + bytes(50))),
    folder('lfs pointer newest', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('step_300.pt', b'version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n')),
    folder('html in place', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('step_300.pt', b'<html>quota</html>')),
    folder('tail cut by copying', 'step_200.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('step_300.pt', state(step=300)[:-10])),
    folder('all zero', 'step_200.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('step_300.pt', bytes(2000))),
    folder('link last to best elsewhere', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('last.pt -> ../elsewhere.pt', b'')),
    folder('dangling latest', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('latest.pt -> step_300.pt', b'')),
    folder('paused', 'paused.pt', *((f'epoch_{n}.pt', state(epoch=n)) for n in (1, 2)), ('paused.pt', state(epoch=3))),
    folder('autosave', 'autosave.pt', *((f'epoch_{n}.pt', state()) for n in (1, 2)), ('autosave.pt', state())),
    folder('autosave old', 'epoch_2.pt', ('autosave.pt', state()), *((f'epoch_{n}.pt', state()) for n in (1, 2))),
    folder('sigterm with exact', 'sigterm_ckpt.pt', *((f'ckpt_{n}.pt', state(global_step=n)) for n in (100, 200)), ('sigterm_ckpt.pt', state(global_step=230))),
    folder('hourly time stamps', '20260101_2300.pt', *((f'20260101_{h}00.pt', state()) for h in (21, 22, 23))),
    folder('day change', '20260102_0010.pt', ('20260101_2350.pt', state()), ('20260102_0010.pt', state())),
    folder('steps in thousands', 'ckpt_12k.pt', *((f'ckpt_{n}k.pt', state()) for n in (8, 10, 12))),
    folder('steps in millions', 'sac_1.5M.pt', *((f'sac_{n}M.pt', state()) for n in ('0.5', '1.0', '1.5'))),
    folder('tokens in billions', 'step1000-tokens4B', *[(f'step{n}-tokens{t}B/{f}', c) for n, t in ((500, 2), (1000, 4)) for f, c in (('model.safetensors', safe()), ('optim.pt', optimizer()))]),
    folder('padded and not', 'step_1000.pt', *((n, state()) for n in ('step_0900.pt', 'step_950.pt', 'step_1000.pt'))),
    folder('negative epoch', 'epoch_1.pt', *((f'epoch_{n}.pt', state()) for n in (-1, 0, 1))),
    folder('float steps', 'step_200.0.pt', *((f'step_{n}.pt', state()) for n in ('100.0', '150.0', '200.0'))),
    folder('float epochs copied back', 'epoch_2.50.pt', *(at(f'epoch_{n}.pt', state(), 3) for n in ('1.50', '2.50', '2.00'))),
    folder('epoch-step as decimal', 'ckpt_3.1500.pt', *((f'ckpt_{n}.pt', state()) for n in ('2.1500', '3.500', '3.1500'))),
    folder('sample folders beside weights', 'model.pt', ('model.pt', model()), *inside('samples_step_100', ('a.npz', PREDICTIONS)), *inside('samples_step_200', ('a.npz', PREDICTIONS))),
    folder('eval folders beside states', 'step_200.pt', *[x for n in (100, 200) for x in ((f'step_{n}.pt', state(step=n)), *inside(f'eval_step_{n}', ('preds.pt', values(p=1))))]),
    folder('eval folders beside weights', 'step_200.pt', *[x for n in (100, 200) for x in ((f'step_{n}.pt', model()), *inside(f'eval_step_{n}', ('preds.npz', PREDICTIONS)))]),
    folder('eval folders beside hf', 'checkpoint-200', *[x for n in (100, 200) for x in (*trainer(f'checkpoint-{n}', n), *inside(f'eval-{n}', ('predictions.npz', PREDICTIONS)))]),
    folder('export folders beside state folders', 'step_200', *[x for n in (100, 200) for x in (*pair_folder(f'step_{n}'), *inside(f'hf-step-{n}', ('model.safetensors', safe()), ('config.json', b'{}')))]),
    folder('ema folders beside state folders', 'step_200', *[x for n in (100, 200) for x in (*pair_folder(f'step_{n}'), *inside(f'ema_step_{n}', ('model.safetensors', safe())))]),
    folder('lora folders beside state folders', 'step_200', *[x for n in (100, 200) for x in (*pair_folder(f'step_{n}'), *inside(f'step_{n}_lora', ('adapter_model.safetensors', safe(SMALL)), ('adapter_config.json', b'{}')))]),
    folder('samples pt named by epoch', 'epoch_2.pt', *[x for n in (1, 2) for x in ((f'epoch_{n}.pt', state()), (f'epoch_{n}_samples.pt', torch_file(Tensor((4, 3, 8, 8)))))]),
    folder('best and last folders', 'last', *pair_folder('best'), *pair_folder('last')),
    folder('hf best and last', 'checkpoint-last', *trainer('checkpoint-best', 100), *trainer('checkpoint-last', 300)),
    folder('hf epoch names', 'checkpoint-epoch-3', *trainer('checkpoint-epoch-2', 200), *trainer('checkpoint-epoch-3', 300)),
    folder('hf of old', 'checkpoint-1000', *old_trainer(500), *old_trainer(1000), ('pytorch_model.bin', model()), ('config.json', b'{}')),
    folder('bare slot folders', '1', *pair_folder('1')[:0], *inside('0', ('state.pt', state(step=100))), *inside('1', ('state.pt', state(step=200)))),
    folder('slot folders', 'slot0', *pair_folder('slot1'), *pair_folder('slot0')),
    folder('rotation half done', 'step_300', ('step_100/optimizer.pt', optimizer()), *pair_folder('step_200'), *pair_folder('step_300')),
    folder('zero file in the newest folder', 'step_200', *pair_folder('step_100'), *pair_folder('step_200'), ('step_300/model.pt', model()), ('step_300/optimizer.pt', b'')),
    folder('pair, second torn', 'model_200.pt', *[(f'{k}_{n}.pt', c) for n in (100, 200, 300) for k, c in (('model', model()), ('optimizer', optimizer() if n < 300 else torn(optimizer())))]),
    folder('overwritten folder half way', 'step_200', *[x for n in (100, 200) for x in inside(f'step_{n}', ('model.pt', torch_file({'model': NET, 'step': n})), ('optimizer.pt', torch_file({'optimizer': adam(NET), 'step': n})))], ('last/optimizer.pt', torch_file({'optimizer': adam(NET), 'step': 200})), ('last/model.pt', torch_file({'model': NET, 'step': 300}))),
    folder('fewer files in the newest', 'step_100_rank0.pt', *[(f'step_{n}_rank{r}.pt', state(step=n)) for n, w in ((100, 8), (200, 4)) for r in range(w)]),
    folder('flat sharded', 'ckpt-300-00001-of-00002.safetensors', *((f'ckpt-{n}-0000{i}-of-00002.safetensors', safe()) for n in (200, 300) for i in (1, 2))),
    folder('flat sharded torn', 'ckpt-200-00001-of-00002.safetensors', *[(f'ckpt-{n}-0000{i}-of-00002.safetensors', safe()) for n in (200, 300) for i in (1, 2)][:-1]),
    folder('spaces', 'model epoch 10.pt', *((f'model epoch {n}.pt', state()) for n in (8, 9, 10))),
    folder('unicode', '模型_10.pt', *((f'模型_{n}.pt', state()) for n in (8, 9, 10))),
    folder('number after the suffix', 'model.pt.20', *((f'model.pt.{n}', state()) for n in (9, 10, 20))),
    folder('number first', '10-model.pt', *((f'{n}-model.pt', state()) for n in (8, 9, 10))),
    folder('dotted number', 'model.10.pt', *((f'model.{n}.pt', state()) for n in (8, 9, 10))),
    folder('dotted epoch and step', 'ckpt.3.1000.pt', *((f'ckpt.{e}.{n}.pt', state()) for e, n in ((2, 1000), (3, 500), (3, 1000)))),
    folder('hash and step of two runs', 'def456_step_100.pt', *(at(f'abc123_step_{n}.pt', state(), n / 100) for n in (300, 400, 500)), *(at(f'def456_step_{n}.pt', state(), 20 + n / 100) for n in (50, 100))),
    folder('one best one last with epochs', 'last_model_epoch_15.pt', ('best_model_epoch_12.pt', state(epoch=12)), ('last_model_epoch_15.pt', state(epoch=15))),
    folder('marked as broken', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('step_300_broken.pt', state())),
    folder('marked as corrupted, suffix', 'step_200.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('step_300.pt.corrupted', state(step=300))),
    folder('diverged', 'step_200.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('diverged_step_300.pt', state(step=300))),
    folder('gguf and quantized', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), ('model-q4_0.gguf', b'GGUF'), ('model_int8.pt', model(SMALL))),
    folder('xla flat', 'rank-00000-of-00002-step_200.pth', *((f'rank-0000{r}-of-00002-step_{n}.pth', state()) for n in (100, 200) for r in (0, 1))),
    folder('local states', 'local_state_rank0_step200.pt', *((f'local_state_rank{r}_step{n}.pt', state()) for n in (100, 200) for r in (0, 1))),
    folder('metaseq', 'checkpoint_1_1000-model_part-0-shard0.pt', *((f'checkpoint_1_{n}-model_part-{p}-shard{s}.pt', state()) for n in (500, 1000) for p in (0, 1) for s in (0, 1))),
    folder('fairseq moe', ('checkpoint_1_1000-shared.pt', 'checkpoint_1_1000-rank-0.pt', ''), *((f'checkpoint_1_{n}-{k}.pt', state(net=w)) for n in (500, 1000) for k, w in (('rank-0', NET), ('rank-1', NET), ('shared', OTHER)))),
    folder('deepspeed moe', 'global_step200', *[x for n in (100, 200) for x in (*deepspeed('', n), (f'global_step{n}/layer_0_expert_0_mp_rank_00_model_states.pt', model()), (f'global_step{n}/expp_rank_0_mp_rank_00_optim_states.pt', optimizer()))], ('latest', b'global_step200')),
    folder('state without steps, logs as npz series', 'last.pt', ('last.pt', state()), *((f'log_{n}.npz', PREDICTIONS) for n in (1, 2, 3))),
    folder('weights without steps, logs as npz series', 'net.pt', ('net.pt', model()), *((f'run_{n}.npz', PREDICTIONS) for n in (1, 2, 3))),
    folder('weights without steps, tensors as pt series', 'net.pt', ('net.pt', model()), *((f'traj_{n}.pt', torch_file({'pos': Tensor((50, 3)), 'vel': Tensor((50, 3))})) for n in (1, 2, 3))),
    folder('weights without steps, safetensors latents', 'net.safetensors', ('net.safetensors', safe()), *((f'latent_{n}.safetensors', safetensors_file({'latent': (4, 8, 8)})) for n in (1, 2, 3))),
    folder('image latents cache dir', 'step_200.pt', *((f'step_{n}.pt', state()) for n in (100, 200)), *((f'latents/img_{n}.safetensors', safetensors_file({'latent': (4, 8, 8)})) for n in (1, 2, 3))),
    folder('text embeds with step', 'last.pt', ('last.pt', state()), *((f'prompt_embeds_{n}.pt', torch_file(Tensor((77, 768)))) for n in (1, 2, 3))),
    folder('soft prompt is the training', 'prompt_300.pt', *((f'prompt_{n}.pt', torch_file({'prompt_embeddings': Tensor((20, 64))})) for n in (100, 200, 300))),
    folder('single tensor parameter run', 'theta_300.pt', *((f'theta_{n}.pt', torch_file(Tensor((64,)))) for n in (100, 200, 300))),
    folder('state dict of numbers', 'es_300.pt', *((f'es_{n}.pt', torch_file({'mean': Tensor((64,)), 'sigma': 0.1, 'generation': n})) for n in (100, 200, 300))),
    folder('hydra in checkpoints', 'checkpoints/last.ckpt', ('.hydra/config.yaml', b''), ('checkpoints/epoch_003.ckpt', lightning(300, 3)), ('checkpoints/last.ckpt', lightning(400, 4)), ('tensorboard/version_0/hparams.yaml', b''), ('csv/version_0/metrics.csv', b'')),
    folder('lightning csv logger versions', 'checkpoints/last.ckpt', *((f'lightning_logs/version_{v}/metrics.csv', b'') for v in (0, 1)), ('checkpoints/last.ckpt', lightning(400, 4))),
    folder('lightning versions, newest empty', 'lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', ('lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', lightning(400, 3)), ('lightning_logs/version_1/hparams.yaml', b'')),
    folder('lightning versions, newest torn', 'lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', ('lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', lightning(400, 3)), ('lightning_logs/version_1/checkpoints/epoch=0-step=50.ckpt', torn(lightning(50, 0)))),
    folder('lightning versions, weights alone in the new', 'lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', ('lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', lightning(400, 3)), ('lightning_logs/version_1/checkpoints/epoch=0-step=50.ckpt', lightning(50, 0, False))),
    folder('lightning interleaved versions', 'lightning_logs/version_0/checkpoints/epoch=4-step=500.ckpt', at('lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt', lightning(400, 3), 1), at('lightning_logs/version_1/checkpoints/epoch=0-step=50.ckpt', lightning(50, 0), 2), at('lightning_logs/version_0/checkpoints/epoch=4-step=500.ckpt', lightning(500, 4), 3)),
    folder('batch index as step within epoch, exact epoch', 'ckpt_e2_i100.pt', *((f'ckpt_e{e}_i{i}.pt', state(epoch=e, it=i)) for e, i in ((1, 100), (1, 200), (1, 300), (2, 100)))),
    folder('step in content within epoch without epoch key', 'epoch4.pt', *((f'epoch{e}.pt', state(step=s)) for e, s in ((2, 900), (3, 905), (4, 890)))),
    folder('restored backups of last', 'last.pt', at('last.pt', state(step=500), 5), at('last.pt.bak1', state(step=300), 6), at('last.pt.bak2', state(step=400), 7)),
    folder('snapshots by cp -p names', ('snap_20260103/last.pt', 'snap_20260103', ''), *((f'snap_2026010{d}/last.pt', state(step=d * 100)) for d in (1, 2, 3))),
    folder('nightly copies in one folder', 'last.pt', ('last_0101.pt', state(step=100)), ('last_0102.pt', state(step=200)), ('last.pt', state(step=250))),
    folder('three parts overwritten', 'encoder.pt', at('encoder.pt', model(), 1), at('decoder.pt', model(OTHER), 1.01), at('projector.pt', model(SMALL), 1.02)),
    folder('rl episode rewards', 'agent_ep300_r-12.5.pth', *((f'agent_ep{e}_r{r}.pth', state()) for e, r in ((100, '-80.1'), (200, '-5.2'), (300, '-12.5')))),
    folder('negative reward alone', 'agent_-12.5.pth', *((f'agent_{r}.pth', state()) for r in ('-80.1', '-5.2', '-12.5'))),
    folder('fid and kimg', 'network-002000-fid8.3.pt', *((f'network-{k:06d}-fid{f}.pt', state()) for k, f in ((1000, '9.9'), (1600, '7.1'), (2000, '8.3')))),
    folder('psnr and integer iter', 'G_iter_9000_psnr_31.pth', *((f'G_iter_{k}_psnr_{f}.pth', state()) for k, f in ((7000, 33), (8000, 32), (9000, 31)))),
    folder('top1 in percent', 'ep12-top1-75.pth', *((f'ep{e}-top1-{a}.pth', state()) for e, a in ((10, 78), (11, 77), (12, 75)))),
    folder('val acc two metrics', 'e12_loss0.31_acc0.80.pt', *((f'e{e}_loss{loss}_acc{a}.pt', state()) for e, loss, a in ((10, '0.35', '0.83'), (11, '0.33', '0.82'), (12, '0.31', '0.80')))),
    folder('epoch zero padded acc no sep', 'ep012acc80.pt', *((f'ep{e:03d}acc{a}.pt', state()) for e, a in ((10, 83), (11, 82), (12, 80)))),
    folder('best by metric beside last by step', 'last_step_500.pt', ('best_acc_0.81.pt', state()), ('last_step_400.pt', state()), ('best_acc_0.84.pt', state()), ('last_step_500.pt', state())),
    folder('lr schedule cycles', 'cycle3_ep2.pt', *(at(f'cycle{c}_ep{e}.pt', state(), c * 10 + e) for c, e in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)))),
    folder('phase words', 'phase2-epoch1.pt', *(at(f'phase{c}-epoch{e}.pt', state(epoch=e), c * 10 + e) for c, e in ((1, 1), (1, 2), (1, 3), (2, 1)))),
    folder('task incremental', 'task_2_last.pt', *((f'task_{t}_{k}.pt', state()) for t in (0, 1, 2) for k in ('best', 'last'))),
    folder('curriculum levels', 'level3.pt', *((f'level{t}.pt', state(step=s)) for t, s in ((1, 500), (2, 800), (3, 120)))),
    folder('cv folders', ('fold_2/last.pt', 'fold_2', ''), *((f'fold_{t}/last.pt', state()) for t in (0, 1, 2))),
    folder('seed suffix last', 'model_seed2.pt', *((f'model_seed{t}.pt', state(epoch=e)) for t, e in ((0, 50), (1, 50), (2, 7)))),
    folder('attempts', 'attempt_3_step_40.pt', *(at(f'attempt_{a}_step_{s}.pt', state(step=s), a * 50 + s / 10) for a, s in ((1, 100), (1, 200), (2, 100), (3, 20), (3, 40)))),
    folder('rerun lower overwrites, exact, rest left', 'step_150.pt', *(at(f'step_{n}.pt', state(step=n), n / 10) for n in (200, 250, 300)), *(at(f'step_{n}.pt', state(step=n), 90 + n / 10) for n in (50, 100, 150))),
    folder('optimizer saved only in last', 'last.pt', *[x for n in (1, 2, 3) for x in ((f'epoch_{n}.pt', model()), ('last.pt', state()))][-4:]),
    folder('optimizer only every tenth', 'ckpt_20.pt', *((f'ckpt_{n}.pt', state() if n % 10 == 0 else model()) for n in (10, 15, 20))),
    folder('optimizer only every tenth, newer weights', 'ckpt_20.pt', *((f'ckpt_{n}.pt', state() if n % 10 == 0 else model()) for n in (10, 15, 20, 25))),
    folder('generator with optimizer, ema generator', 'gan_300.pt', *[x for n in (100, 200, 300) for x in ((f'gan_{n}.pt', torch_file({'G': NET, 'D': OTHER, 'optG': adam(NET), 'optD': adam(OTHER)})), (f'G_ema_{n}.pt', model()))]),
    folder('inference pack later', 'ckpt.pt', ('ckpt.pt', state(epoch=3)), ('inference_pack.pt', torch_file({'model': NET, 'config': {}, 'vocab': [1]})), ('tokenizer.model', b'x')),
    folder('stats with model word', 'ckpt.pt', ('ckpt.pt', state(epoch=3)), ('model_stats.pt', values(params=1)), ('model_summary.pt', values(params=1))),
    folder('activation statistics tensors', 'ckpt.pt', ('ckpt.pt', model()), ('fid_stats.pt', torch_file({'mu': Tensor((64,)), 'sigma': Tensor((64, 64))}))),
    folder('class weights', 'ckpt.pt', ('ckpt.pt', model()), ('class_weights.pt', torch_file(Tensor((10,))))),
    folder('word vectors', 'lm.pt', ('lm.pt', model()), ('glove_300d.pt', torch_file({'vectors': Tensor((900, 300)), 'itos': ['a']}))),
    folder('optimizer of another', 'step_200.pt', *((f'step_{n}.pt', state(step=n)) for n in (100, 200)), ('lr_finder.pt', torch_file({'model': NET, 'optimizer': adam(NET)}))),
    folder('lr finder first (Lightning)', 'epoch=0-step=50.ckpt', ('.lr_find_abc.ckpt', lightning(0, 0)), ('epoch=0-step=50.ckpt', lightning(50, 0))),
    folder('lr finder named', 'step_100.pt', ('lr_find_abc.ckpt', lightning(0, 0)), ('step_100.pt', state())),
    folder('batch size finder', 'epoch=0-step=50.ckpt', ('epoch=0-step=50.ckpt', lightning(50, 0)), ('.scale_batch_size_x.ckpt', lightning(0, 0))),
    folder('on_exception', 'on_exception.ckpt', ('epoch=0-step=50.ckpt', lightning(50, 0)), ('on_exception.ckpt', lightning(70, 0))),
    folder('pl weights export of last', 'last.ckpt', ('last.ckpt', lightning(70, 0)), ('last_weights.pt', model()), ('last.safetensors', safe())),
    folder('hf trainer + trainer_state at the root', 'checkpoint-200', *trainer('checkpoint-100', 100), *trainer('checkpoint-200', 200), ('trainer_state.json', text(global_step=200)), ('model.safetensors', safe()), ('optimizer.pt', optimizer())),
    folder('deepspeed with best tag', 'global_step200', *deepspeed('', 100), *deepspeed('', 150, name='best'), *deepspeed('', 200), ('latest', b'global_step200')),
    folder('deepspeed fp32 export', 'global_step200', *deepspeed('', 100), *deepspeed('', 200), ('latest', b'global_step200'), ('pytorch_model.bin', model()), ('output/pytorch_model.bin', model())),
    folder('megatron and hf export', 'iter_0000200', *megatron_ranks(100), *megatron_ranks(200), ('latest_checkpointed_iteration.txt', b'200'), ('hf_iter_0000200/model.safetensors', safe()), ('hf_iter_0000200/config.json', b'{}')),
    folder('numbered exports younger than states', 'state_200.pt', *((f'state_{n}.pt', state()) for n in (100, 200)), *((f'export_{n}.safetensors', safe()) for n in (100, 200, 300))),
    folder('weights series finer than state series', 'state_200.pt', *((f'state_{n}.pt', state()) for n in (100, 200)), *((f'weights_{n}.pt', model()) for n in (100, 150, 200, 250))),
    folder('npz statistics of a distribution', 'ckpt.pt', ('ckpt.pt', model()), ('fid_stats.npz', npz_file(mu=[1.0] * 9, sigma=[[1.0] * 9] * 9))),
)

# Folders of reports and of training codes that others have published; the source names the project or its tracker's number.
REPORTED: Final = (
    reported('zylo117/Yet-Another-EfficientDet-Pytorch#686', 'epoch_iter, fewer iterations after another batch size', 'efficientdet-d0_13_5200.pth', *((f'efficientdet-d0_{e}_{i}.pth', model()) for e, i in ((10, 8000), (11, 8800), (12, 4800), (13, 5200)))),
    reported('mozilla/TTS#643', 'copied, all of one time', 'checkpoint_125000.pth.tar', at('best_model.pth.tar', state(step=110000), 5), *(at(f'checkpoint_{n}.pth.tar', state(step=n), 5) for n in (100000, 125000, 25000, 50000, 75000))),
    reported('metatensor/metatrain#720', 'copied in reverse order', 'model_200.ckpt', *(at(f'model_{n}.ckpt', state(epoch=n), 10 - n / 50) for n in (0, 50, 100, 150, 200))),
    reported('strands-labs/robots#3165', 'lerobot steps of two widths', 'checkpoints/1000000', *lerobot('checkpoints/080000', 80000), *lerobot('checkpoints/900000', 900000), *lerobot('checkpoints/1000000', 1000000)),
    reported('strands-labs/robots#3165', 'lerobot with a dangling last', 'checkpoints/100000', *lerobot('checkpoints/080000', 80000), *lerobot('checkpoints/100000', 100000), ('checkpoints/last -> 120000', b'')),
    reported('invoke-ai/invoke-training#108', 'epoch and step in a folder', 'checkpoints/checkpoint-epoch_00000100-step_00000400', *(x for e, s in ((50, 200), (100, 400)) for x in ((f'checkpoints/checkpoint-epoch_{e:08d}-step_{s:08d}/embeddings.safetensors', safe(SMALL)), (f'checkpoints/checkpoint-epoch_{e:08d}-step_{s:08d}/lora.safetensors', safe()), (f'validation/epoch_{e:08d}-step_{s:08d}/prompt_0000/0000.jpg', b'x')))),
    reported('Red-Hat-AI-Innovation-Team/mini_trainer#96', 'full states, the newest torn', 'step_100', ('step_50/training_state.pt', state(step=50)), ('step_100/training_state.pt', state(step=100)), ('step_150/training_state.pt', torn(state(step=150)))),
    reported('Red-Hat-AI-Innovation-Team/mini_trainer#96', 'full states, the newest empty', 'step_100', ('step_50/training_state.pt', state(step=50)), ('step_100/training_state.pt', state(step=100)), ('step_150/notes.txt', b'x')),
    reported('IvanDrokin/torch-conv-kan#7', 'accelerate with a model without a suffix', ('epoch_2', ''), *(x for e in (1, 2) for x in accelerate(f'epoch_{e}', ('vgg19v4-64p-tiny-imagenet', model()), w=''))),
    reported('Lightning-AI/litgpt#661', 'iter-N-ckpt past a million', 'iter-1080000-ckpt.pth', *((f'iter-{n}-ckpt.pth', litgpt(n // 4)) for n in (120000, 40000 * 13, 1000000, 1040000, 1080000))),
    reported('tdrussell/diffusion-pipe#159', 'files without a byte after a power cut', 'epoch418', *(x for e, c in ((416, safe(SMALL)), (418, safe(SMALL)), (420, b''), (422, b'')) for x in ((f'epoch{e}/adapter_model.safetensors', c), (f'epoch{e}/adapter_config.json', b'{}' if c else b'')))),
    reported('tdrussell/diffusion-pipe#159', 'adapters of epochs beside states', 'global_step200', *deepspeed('', 100), ('epoch2/adapter_model.safetensors', safe(SMALL)), *deepspeed('', 200), ('latest', b'global_step200'), ('epoch4/adapter_model.safetensors', safe(SMALL)), ('epoch4/adapter_config.json', b'{}')),
    reported('RVC-Project/Retrieval-based-Voice-Conversion-WebUI#2417', 'the newest alone kept, under a number of its own', 'G_2333333.pth', ('G_2333333.pth', state(iteration=140)), ('D_2333333.pth', state(net=OTHER, iteration=140)), ('config.json', b'{}'), ('added_IVF256_Flat.index', b'x')),
    reported('svc-develop-team/so-vits-svc', 'a pretrained pair of step 0, diffusion beside it', 'G_1600.pth', ('G_0.pth', state(iteration=0)), ('D_0.pth', state(net=OTHER, iteration=0)), *(x for n in (800, 1600) for x in ((f'G_{n}.pth', state(iteration=n)), (f'D_{n}.pth', state(net=OTHER, iteration=n)))), ('kmeans_10000.pt', values(k=1)), ('diffusion/model_0.pt', model(SMALL))),
    reported('voicepaw/so-vits-svc-fork#63', 'capital letters and steps without a separator', 'G5600.pth', *(x for n in (5200, 5600) for x in ((f'G{n}.pth', state(iteration=n)), (f'D{n}.pth', state(net=OTHER, iteration=n))))),
    reported('RVC-Boss/GPT-SoVITS#2651', 'weights of epochs beside the pair', 'G_233333333333.pth', ('G_233333333333.pth', state(iteration=8)), ('D_233333333333.pth', state(net=OTHER, iteration=8)), ('custom_e4_s72.pth', model(key='weight')), ('custom_e8_s144.pth', model(key='weight'))),
    reported('Akegarasu/lora-scripts#464', 'states of epochs beside their weights', 'SilverWolf-000002-state', *(x for e in (1, 2) for x in (*accelerate(f'SilverWolf-{e:06d}-state', ('train_state.json', text(current_epoch=e, current_step=e * 60))), (f'SilverWolf-{e:06d}.safetensors', safe(SMALL)))), ('SilverWolf.safetensors', safe(SMALL))),
    reported('kohya-ss/sd-scripts#1921', 'states of steps, the weights first', 'at-step00001000-state', *(x for n in (500, 1000) for x in ((f'at-step{n:08d}.safetensors', safe(SMALL)), *accelerate(f'at-step{n:08d}-state', ('train_state.json', text(current_epoch=1, current_step=n)))))),
    reported('bmaltais/kohya_ss#2384', 'the state of the end', 'clara-state', *(x for e in (8, 9) for x in accelerate(f'clara-{e:06d}-state')), ('clara.safetensors', safe(SMALL)), *accelerate('clara-state')),
    reported('bmaltais/kohya_ss#2771', 'steps in train_state that begin anew', 'x-0000050-state', *(x for e, n in ((4, 60), (25, 60), (50, 435)) for x in accelerate(f'x-{e:07d}-state', ('train_state.json', text(current_epoch=e, current_step=n))))),
    reported('openai/improved-diffusion#152', 'model, ema and opt', 'model020000.pt', *(x for n in (10000, 20000) for x in ((f'model{n:06d}.pt', model()), (f'ema_0.9999_{n:06d}.pt', model()), (f'opt{n:06d}.pt', optimizer())))),
    reported('openai/improved-diffusion#152', 'model, ema and no opt in the newest', 'model020000.pt', *(x for n in (10000, 20000) for x in ((f'model{n:06d}.pt', model()), (f'ema_0.9999_{n:06d}.pt', model()), (f'opt{n:06d}.pt', optimizer()))), ('model030000.pt', model()), ('ema_0.9999_030000.pt', model())),
    reported('LiuYu-pku/i-Fold', 'EPOCH-STEP.ckpt', '10-13750.ckpt', *((f'{e}-{s}.ckpt', lightning(s, e)) for e, s in ((8, 11250), (9, 12500), (10, 13750)))),
    reported('a README of checkpoints', 'epoch and loss', 'transformer-61-1.79.ckpt', *((f'transformer-{e}-{v}.ckpt', lightning(e * 100, e)) for e, v in ((59, '1.78'), (60, '1.80'), (61, '1.79')))),
    reported('a README of models', 'days as numbers', 'ppo_silverstone_20260117.pt', *((f'ppo_silverstone_{d}.pt', state()) for d in (20251230, 20260102, 20260117))),
    reported('a loader of checkpoints', 'light copies of each epoch', 'chkpt-3.pt', *(x for e in (1, 2, 3) for x in ((f'chkpt-{e}.pt', state(epoch=e)), (f'chkpt-{e}-light.pt', model())))),
    reported('a callback', 'steps in scientific notation', 'steps=1.00e+04__species=3.pt', *((f'steps={s}__species=3.pt', state()) for s in ('1.00e+03', '5.00e+03', '1.00e+04'))),
    reported('RuifanLiu/Deep-auction', 'a suffix that few use', 'chkpt_ep12.pyth', *((f'chkpt_ep{e}.pyth', torch_file({'ep': e, 'model': NET, 'optim': adam(NET)})) for e in (9, 10, 11, 12))),
    reported('an actor-critic script', 'the best is a whole state, too', 'checkpoint_step_200.pth', ('checkpoint_step_100.pth', ac(100)), ('best_checkpoint.pth', ac(150)), ('checkpoint_step_200.pth', ac(200))),
    reported('a SAC checkpointer', 'folders of parts and a replay buffer', '2000', *(x for n in (1000, 2000) for x in ((f'{n}/policy.pth', state()), (f'{n}/q.pth', state(net=OTHER)), (f'{n}/alpha.pth', values(a=1.0)), (f'{n}/replay_buffer.pkl', RAW)))),
    reported('facebookresearch/dinov2', 'a file of each rank, teachers of evaluations', 'model_0002499.rank_0.pth', *(x for n in (1249, 2499) for x in (*((f'model_{n:07d}.rank_{r}.pth', state(iteration=n)) for r in (0, 1)), (f'eval/training_{n}/teacher_checkpoint.pth', model(key='teacher')))), ('last_checkpoint.rank_0', b'model_0002499.rank_0.pth'), ('last_checkpoint.rank_1', b'model_0002499.rank_1.pth')),
    reported('facebookresearch/ijepa', 'latest beside epochs', 'jepa-latest.pth.tar', *((f'jepa-ep{e}.pth.tar', jepa(e)) for e in (50, 100)), ('jepa-latest.pth.tar', jepa(117))),
    reported('aigc-apps/VideoX-Fun#65', 'weights of steps beside folders of steps', 'checkpoint-200', *(x for n in (100, 200) for x in (*accelerate(f'checkpoint-{n}', w='pytorch_lora_weights.safetensors'), (f'checkpoint-{n}.safetensors', safe(SMALL))))),
    reported('ace-step/ACE-Step-1.5#589', 'an adapter and its state in a folder', 'checkpoints/epoch_100', *(x for e in (50, 100) for x in ((f'checkpoints/epoch_{e}/adapter_model.safetensors', safe(SMALL)), (f'checkpoints/epoch_{e}/adapter_config.json', b'{}'), (f'checkpoints/epoch_{e}/training_state.pt', torch_file({'epoch': e, 'global_step': e * 7, 'optimizer_state_dict': adam(SMALL)})))), ('final/adapter_model.safetensors', safe(SMALL)), ('final/adapter_config.json', b'{}')),
    reported('sgl-project/SpecForge#587', 'states of ranks in a folder', 'epoch_1_step_2000', *(x for e, s in ((0, 1000), (1, 2000)) for x in ((f'epoch_{e}_step_{s}/model.safetensors', safe()), (f'epoch_{e}_step_{s}/config.json', b'{}'), *((f'epoch_{e}_step_{s}/training_state_rank{r}.pt', torch_file({'epoch': e, 'global_step': s, 'optimizer_state_dict': adam(NET)})) for r in (0, 1))))),
    reported('NVIDIA/physicsnemo#1843', 'padding of two widths and a final', 'epoch_10000.pt', *((f'epoch_{e:04d}.pt', state(epoch=e)) for e in (998, 999, 1000, 9999, 10000)), ('epoch_abc.pt', model())),
    reported('karpathy/nanochat', 'optimizers of ranks', 'model_001000.pt', *(x for n in (500, 1000) for x in ((f'model_{n:06d}.pt', model()), (f'meta_{n:06d}.json', text(step=n)), *((f'optim_{n:06d}_rank{r}.pt', optimizer()) for r in (0, 1))))),
    reported('karpathy/nanochat', 'the newest lacks an optimizer', 'model_000500.pt', *(x for n in (500, 1000) for x in ((f'model_{n:06d}.pt', model()), (f'meta_{n:06d}.json', text(step=n)), *((f'optim_{n:06d}_rank{r}.pt', optimizer()) for r in (0, 1) if n == 500 or r == 0)))),
    reported('mlfoundations/open_clip', 'epoch_latest', 'epoch_latest.pt', *((f'epoch_{e}.pt', state('state_dict', epoch=e)) for e in (1, 2)), ('epoch_latest.pt', state('state_dict', epoch=3))),
    reported('huggingface/pytorch-image-models', 'last and best are copies', ('last.pth.tar', 'checkpoint-12.pth.tar'), *((f'checkpoint-{e}.pth.tar', state('state_dict', epoch=e)) for e in (10, 11)), ('model_best.pth.tar', state('state_dict', epoch=11)), at('checkpoint-12.pth.tar', state('state_dict', epoch=12), 9), at('last.pth.tar', state('state_dict', epoch=12), 9)),
    reported('marin-community/levanter#991', 'no whole one at all', '', ('step_100.pt', torn(state(step=100))), ('step_200.pt', torn(state(step=200)))),
    reported('NVIDIA/physicsnemo', 'the state in one file, the model in another', ('checkpoint.0.20.pt', 'Net.0.20.mdlus'), *(x for e in (10, 20) for x in ((f'Net.0.{e}.mdlus', RAW), (f'checkpoint.0.{e}.pt', torch_file({'epoch': e, 'optimizer_state_dict': adam(NET)}))))),
)
